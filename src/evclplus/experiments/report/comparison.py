"""Records grouped into fair comparisons: one problem each, one row per method and its settings.

Records are never mixed unless everything but the seed is equal. A different stream of tasks is a
different problem and gets a comparison of its own; different settings of a method on the same
problem get rows of their own, labelled by what differs.
"""

import json
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, nan
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from evclplus.core.metrics import ACCURACY, ERROR, Metric
from evclplus.experiments.record import Record
from evclplus.experiments.report.escape import plain
from evclplus.experiments.report.statistics import (
    DISTANCE,
    FRACTION,
    PairedDifference,
    Spread,
    holm,
    paired_difference,
    spread,
)
from evclplus.methods import role_of

PROBLEM = {"stream", "evaluate_on"}
"""The settings that say what is asked, not how it is answered."""

UNCOMMITTED = "made by code with uncommitted changes"

BOUNDS = {ACCURACY.average: FRACTION, ERROR.average: DISTANCE}
"""Where a figure can only lie."""

Key = TypeVar("Key", bound=Hashable)
Setting = tuple[str, str]
"""The path of a setting and its value as JSON."""


@dataclass(frozen=True)
class MethodRow:
    """One method with one set of settings: a record per seed, in the order of the seeds."""

    method: str
    label: str
    variant: int
    records: tuple[Record, ...]
    notes: tuple[str, ...]

    @property
    def is_upper_bound(self) -> bool:
        return role_of(self.method) == "upper bound"

    @property
    def is_ours(self) -> bool:
        return role_of(self.method) == "ours"

    @property
    def seeds(self) -> list[int]:
        return [record.seed for record in self.records]

    @property
    def metric(self) -> Metric:
        return self.records[0].metric

    @property
    def average_by_seed(self) -> dict[int, float]:
        return {record.seed: record.average for record in self.records}

    def spread(self, field: str) -> Spread:
        """The spread over seeds of one of the record's summary figures, such as "forgetting" or
        "uncertainty.noise_auroc". It has no mean where a record does not say it."""
        within = BOUNDS.get(field)
        part, _, name = field.rpartition(".")
        whole = [getattr(record, part) if part else record for record in self.records]
        values = [getattr(one, name, None) for one in whole]
        return spread([nan if value is None else value for value in values], within)

    @cached_property
    def average(self) -> Spread:
        """Of its metric over all tasks after the last one."""
        return self.spread(self.metric.average)

    @property
    def curves(self) -> npt.NDArray[np.float64]:
        """The metric's mean over the tasks seen so far: a row per seed, a column per task
        learned."""
        return np.array([[np.mean(seen) for seen in record.matrix] for record in self.records])

    @property
    def matrix(self) -> npt.NDArray[np.float64]:
        """The metric's mean matrix; NaN where a task was not yet learned."""
        size = len(self.records[0].tasks)
        matrix = np.full((size, size), np.nan)
        matrix[np.tril_indices(size)] = np.mean(
            [np.concatenate(record.matrix) for record in self.records], axis=0
        )
        return matrix


@dataclass(frozen=True)
class Comparison:
    """Every row on one problem, the best first."""

    title: str
    rows: tuple[MethodRow, ...]

    @cached_property
    def baseline(self) -> MethodRow | None:
        """The best row that is neither EVCL+, with or without a coreset, nor the upper bound."""
        baselines = (row for row in self.rows if not row.is_ours and not row.is_upper_bound)
        return next((row for row in baselines if row.average.mean is not None), None)

    @property
    def metric(self) -> Metric:
        """What all its rows are judged by."""
        return self.rows[0].metric

    @property
    def task_count(self) -> int:
        return len(self.rows[0].records[0].tasks)

    @property
    def task_names(self) -> list[str]:
        """The names of the tasks, or nothing where the seeds order them differently."""
        names = {tuple(record.tasks) for row in self.rows for record in row.records}
        return list(names.pop()) if len(names) == 1 else []

    @property
    def notes(self) -> list[str]:
        return list(dict.fromkeys(note for row in self.rows for note in row.notes))

    def against_baseline(self, row: MethodRow) -> PairedDifference | None:
        """None for the baseline itself and where there is none."""
        return self._differences.get(row.label)

    @cached_property
    def _differences(self) -> dict[str, PairedDifference]:
        """Every other row against the baseline, p-values corrected for how many there are."""
        if self.baseline is None:
            return {}
        baseline = self.baseline.average_by_seed
        found = {
            row.label: paired_difference(row.average_by_seed, baseline)
            for row in self.rows
            if row is not self.baseline
        }
        corrected = holm([difference.p_value for difference in found.values()])
        pairs = zip(found.items(), corrected, strict=True)
        return {label: replace(one, p_value=p_value) for (label, one), p_value in pairs}


def comparisons_of(records: Sequence[Record]) -> list[Comparison]:
    """Group records into comparisons, in the order of the benchmarks' names."""
    problems = _labelled_groups(records, lambda record: record.benchmark, _problem_settings)
    return [Comparison(problem.label, _rows(problem.records)) for problem in problems]


def settings_but_seed(record: Record) -> tuple[Setting, ...]:
    """Everything a run was told, the same for all seeds of a row."""
    return _flat(record.full_config.model_dump(exclude={"seed"}))


def _problem_settings(record: Record) -> tuple[Setting, ...]:
    problem = record.config.model_dump(include=PROBLEM)
    asked = {"number of tasks": len(record.tasks), "metric": record.metric.title}
    return _flat({**asked, **problem})


def _method_settings(record: Record) -> tuple[Setting, ...]:
    return _flat(record.full_config.model_dump(exclude={"seed", *PROBLEM}))


def _flat(settings: dict[str, object]) -> tuple[Setting, ...]:
    flat: dict[str, object] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            flat.update({f"{key}.{inner}": item for inner, item in value.items()})
        else:
            flat[key] = value
    return tuple((key, json.dumps(flat[key], sort_keys=True)) for key in sorted(flat))


def _rows(records: Sequence[Record]) -> tuple[MethodRow, ...]:
    groups = _labelled_groups(records, lambda record: record.method, _method_settings)
    rows = [_row(group) for group in groups]
    return tuple(sorted(rows, key=_rank))


def _rank(row: MethodRow) -> tuple[float, str]:
    """The best first, what has no mean last."""
    mean = row.average.mean
    return inf if mean is None else -row.metric.sign * mean, row.label


@dataclass(frozen=True)
class _Group:
    name: str
    label: str
    variant: int
    records: list[Record]


def _labelled_groups(
    records: Sequence[Record],
    name_of: Callable[[Record], str],
    settings_of: Callable[[Record], tuple[Setting, ...]],
) -> list[_Group]:
    """Groups of equal name and settings, labelled by the settings that differ under one name."""
    groups = []
    for name, members in sorted(_grouped(records, name_of).items()):
        variants = sorted(_grouped(members, settings_of).items())
        common = set.intersection(*(set(settings) for settings, _ in variants))
        keys = sorted({key for settings, _ in variants for key, _ in set(settings) - common})
        for variant, (settings, alike) in enumerate(variants):
            label = _label(name, keys, dict(settings))
            groups.append(_Group(name, label, variant, alike))
    return groups


def _grouped(records: Sequence[Record], key_of: Callable[[Record], Key]) -> dict[Key, list[Record]]:
    groups: dict[Key, list[Record]] = {}
    for record in records:
        groups.setdefault(key_of(record), []).append(record)
    return groups


def _label(name: str, keys: Sequence[str], settings: dict[str, str]) -> str:
    """The name and the value of each of the settings `keys`."""
    values = [f"{key.split('.', 1)[-1]}={settings.get(key, 'not set')}" for key in keys]
    return plain(f"{name} ({', '.join(values)})" if values else name)


def _row(group: _Group) -> MethodRow:
    ordered = sorted(group.records, key=lambda record: record.seed)
    by_seed = _grouped(ordered, lambda record: record.seed)
    notes = [note for record in ordered for note in record.notes]
    if changed := [str(record.seed) for record in ordered if record.is_dirty]:
        notes.append(f"{UNCOMMITTED}: seed {', '.join(changed)}")
    repeated = [str(seed) for seed, alike in by_seed.items() if len(alike) > 1]
    if repeated:
        seeds = ", ".join(repeated)
        notes.append(f"more than one record for seed {seeds} with equal settings; the first counts")
    return MethodRow(
        group.name,
        group.label,
        group.variant,
        tuple(alike[0] for alike in by_seed.values()),
        tuple(dict.fromkeys(map(plain, notes))),
    )
