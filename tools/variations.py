"""Runs that differ from a first one in a single thing, and the table of what each change does."""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from evclplus.experiments.compare import Cell, cells, split_finished
from evclplus.experiments.config import Experiment
from evclplus.experiments.display import ComparisonBars
from evclplus.experiments.executors.local import Processes
from evclplus.experiments.executors.loop import work_through
from evclplus.experiments.report.statistics import paired_difference, spread
from evclplus.experiments.store import find_record
from evclplus.files import make_folder, write_atomically


@dataclass(frozen=True)
class Variation:
    """A name that is also a folder's, what is changed in words, and the runs."""

    name: str
    changed: str
    experiments: Sequence[Experiment]


def vary(
    out: Path,
    heading: str,
    variations: Sequence[Variation],
    command: Sequence[str],
    benchmarks: Sequence[str] = (),
) -> None:
    """Run what is not finished, of all benchmarks or some, and write `out`/table.md with all there
    is; the first variation is the yardstick."""
    console = Console()
    runs = {one.name: cells(one.experiments, out / one.name) for one in variations}
    # Seed by seed through all of them, so that a stop leaves them equally far.
    everything = sorted(
        (cell for made in runs.values() for cell in made), key=lambda cell: cell.experiment.seed
    )
    _, todo = split_finished(everything)
    if benchmarks:
        todo = [cell for cell in todo if cell.experiment.benchmark in benchmarks]
    make_folder(out)
    if todo:
        with ComparisonBars(console, len(todo)) as bars:
            work_through(todo, Processes(os.cpu_count() or 1), bars, shlex.join(command))
    text = f"{heading}\n\n{_table(variations, runs)}"
    write_atomically(out / "table.md", text)
    console.print(text, soft_wrap=True)


def _table(variations: Sequence[Variation], runs: Mapping[str, Sequence[Cell]]) -> str:
    """Mean, deviation and what changed against the first, paired over seeds."""
    first, *_ = variations
    benchmarks = tuple(dict.fromkeys(one.benchmark for one in first.experiments))
    lines = [
        f"| variation | changed | {' | '.join(benchmarks)} |",
        f"|---|---|{'---|' * len(benchmarks)}",
    ]
    for one in variations:
        parts = [
            _cell(_accuracy(runs[one.name], name), _accuracy(runs[first.name], name), one != first)
            if any(experiment.benchmark == name for experiment in one.experiments)
            else "nothing to change"
            for name in benchmarks
        ]
        lines.append(f"| {one.name} | {one.changed} | {' | '.join(parts)} |")
    return "\n".join(lines) + "\n"


def _accuracy(made: Sequence[Cell], benchmark: str) -> dict[int, float]:
    return {
        cell.experiment.seed: 100 * record.average
        for cell in made
        if cell.experiment.benchmark == benchmark
        and (record := find_record(cell.folder)) is not None
    }


def _cell(found: dict[int, float], first: dict[int, float], differs: bool) -> str:
    if not found:
        return "not run"
    ours = spread(list(found.values()))
    text = f"{ours.mean:.2f}" + (f" ± {ours.deviation:.2f}" if ours.deviation is not None else "")
    change = paired_difference(found, first)
    if differs and change.interval is not None:
        low, high = change.interval.low, change.interval.high
        text += f" ({change.mean:+.2f}; {low:+.2f} to {high:+.2f})"
    return text
