"""The page: one HTML file that needs nothing beside it."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from evclplus.core.metrics import Metric
from evclplus.experiments.report.chart import Chart, narrow_chart, wide_chart
from evclplus.experiments.report.comparison import Comparison, MethodRow, settings_but_seed
from evclplus.experiments.report.escape import plain
from evclplus.experiments.report.figures import (
    MOST_TASKS_WITH_NUMBERS,
    Colours,
    colours,
    row_style,
    short,
)
from evclplus.experiments.report.headline import headline
from evclplus.experiments.report.numbers import DASH, heading, number, with_unit
from evclplus.experiments.report.statistics import spread
from evclplus.experiments.report.tables import (
    MEASURES,
    Table,
    baseline_table,
    results_table,
    summary_table,
)
from evclplus.experiments.report.uncertainty import section as uncertainty_section
from evclplus.experiments.report.writers import baseline_rule

VERSIONS = ("evclplus", "torch", "python")


@dataclass(frozen=True)
class Heat:
    """A cell of a matrix, the text in a colour that can be read on it."""

    text: str
    title: str
    heat: str
    ink: str


@dataclass(frozen=True)
class Matrix:
    """The matrix of one row; nothing where a task was not yet learned."""

    label: str
    rows: list[list[Heat | None]]

    @property
    def many(self) -> bool:
        return len(self.rows) > MOST_TASKS_WITH_NUMBERS


@dataclass(frozen=True)
class Provenance:
    """How the records of one row came about; every list holds distinct values."""

    label: str
    seeds: str
    commands: list[str]
    commit: str
    versions: str
    threads: str
    seconds: str
    settings: str


@dataclass(frozen=True)
class Section:
    """What the template shows of one comparison."""

    title: str
    metric: Metric
    heading: str
    """Of the metric, with its unit."""
    rule: str
    """What the best baseline is."""
    tasks: list[str]
    headline: list[str]
    summary: Table
    results: Table
    against: Table | None
    baseline: str
    notes: list[str]
    labels: list[str]
    ours: list[str]
    colours: dict[str, str]
    wide: Chart
    narrow: Chart
    matrices: list[Matrix]
    uncertainty: Markup
    provenance: list[Provenance]


def page(comparisons: Sequence[Comparison], unfinished: int) -> str:
    """The whole page as HTML. Everything that comes from records is escaped by the template."""
    script = part("page.js")
    return (
        environment()
        .from_string(part("template.html"))
        .render(
            sections=[_section(comparison) for comparison in comparisons],
            unfinished=unfinished,
            measures=dict.fromkeys(m for each in comparisons for m in MEASURES[each.metric].all),
            record_count=sum(len(row.records) for each in comparisons for row in each.rows),
            style=Markup(part("page.css")),
            script=Markup(script),
            script_hash=script_hash(script),
        )
    )


def environment() -> Environment:
    return Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )


def part(name: str) -> str:
    """A file beside this one."""
    return files("evclplus.experiments.report").joinpath(name).read_text(encoding="utf-8")


def script_hash(script: str) -> str:
    """What a page's security policy calls the one script that may run."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def _section(comparison: Comparison) -> Section:
    rows = comparison.rows
    return Section(
        title=comparison.title,
        metric=comparison.metric,
        heading=heading(comparison.metric),
        rule=baseline_rule(comparison.metric),
        tasks=[plain(name) for name in comparison.task_names],
        headline=headline(comparison),
        summary=summary_table(comparison),
        results=results_table(comparison),
        against=baseline_table(comparison),
        baseline=comparison.baseline.label if comparison.baseline else "",
        notes=comparison.notes,
        labels=[row.label for row in rows],
        ours=[row.label for row in rows if row.is_ours],
        colours={row.label: row_style(row)[0] for row in rows},
        wide=wide_chart(comparison),
        narrow=narrow_chart(comparison),
        matrices=_matrices(comparison),
        uncertainty=uncertainty_section(comparison),
        provenance=[_provenance(row) for row in rows],
    )


def _matrices(comparison: Comparison) -> list[Matrix]:
    """On one scale of colours."""
    scale = colours(comparison)
    return [
        Matrix(row.label, [_heats(row, after, scale) for after in range(len(row.matrix))])
        for row in comparison.rows
    ]


def _heats(row: MethodRow, after: int, scale: Colours) -> list[Heat | None]:
    size = len(row.matrix)
    heats: list[Heat | None] = [None] * size
    for task in range(after + 1):
        value = float(row.matrix[after, task])
        heats[task] = Heat(
            text="" if size > MOST_TASKS_WITH_NUMBERS else short(row.metric, value, size),
            title=f"task {task + 1} after task {after + 1}: {with_unit(row.metric, value)}",
            heat=scale.hex(value),
            ink=scale.ink(value),
        )
    return heats


def _provenance(row: MethodRow) -> Provenance:
    versions = [f"{name} {', '.join(_environment(row, name) or [DASH])}" for name in VERSIONS]
    return Provenance(
        label=row.label,
        seeds=", ".join(map(str, row.seeds)),
        commands=_environment(row, "command") or [DASH],
        commit=_commits(row),
        versions=" · ".join(versions),
        threads=", ".join(_environment(row, "threads")) or DASH,
        seconds=_seconds([record.seconds for record in row.records]),
        settings="\n".join(
            f"{plain(key)} = {plain(value)}" for key, value in settings_but_seed(row.records[0])
        ),
    )


def _environment(row: MethodRow, key: str) -> list[str]:
    """The distinct values the records of a row give for one key; a record may lack it."""
    values = (record.environment.get(key) for record in row.records)
    return list(dict.fromkeys(plain(value) for value in values if value is not None))


def _commits(row: MethodRow) -> str:
    marked = [
        f"{plain(record.environment['commit'])}{' with changes' if record.is_dirty else ''}"
        for record in row.records
        if record.environment.get("commit") is not None
    ]
    return ", ".join(dict.fromkeys(marked)) or DASH


def _seconds(runs: Sequence[Mapping[str, float]]) -> str:
    """Each phase's mean over the runs that have it."""
    phases = dict.fromkeys(phase for run in runs for phase in run)
    means = {phase: spread([run[phase] for run in runs if phase in run]).mean for phase in phases}
    return ", ".join(f"{plain(phase)} {number(mean, 1)}" for phase, mean in means.items()) or DASH
