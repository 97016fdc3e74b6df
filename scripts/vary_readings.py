"""What each reading of the paper's text does to EVCL+: every one varied alone.

The paper leaves several things open or says them twice differently; each is a setting with a
default. This runs EVCL+ with the paper's settings, fewer epochs, and one reading changed at a
time, on the test data, because nothing is chosen by it. Finished runs are kept: call it again to
go on. Writes results/readings/table.md.

    python scripts/vary_readings.py
"""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from evclplus.compare import Cell, cells, split_finished, work_through
from evclplus.config import Experiment, Training
from evclplus.display import ComparisonBars
from evclplus.files import make_folder, write_atomically
from evclplus.record import RECORD, Record
from evclplus.report.statistics import paired_difference, spread

OUT = Path("results", "readings")
BENCHMARKS = ("split-mnist", "split-fashion-mnist")
EPOCHS = 20
SEEDS = range(3)

READINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "kl-unscaled": {"kl_scale": "none"},
    "indicator-per-tensor": {"norm": "tensor"},
    "fisher-sampled-labels": {"fisher_labels": "sampled"},
    "fisher-true-labels": {"fisher_labels": "true"},
    "fisher-sum": {"fisher_reduction": "sum"},
    "fisher-accumulated": {"fisher_tasks": "accumulated"},
    "fisher-sum-accumulated": {"fisher_reduction": "sum", "fisher_tasks": "accumulated"},
    "penalise-old-heads": {"protect": "all"},
    "random-start": {"start": "random"},
    "small-first-variance": {"initial_variance": 1e-6},
    "prior-at-start": {"prior_mean": "mle"},
    "predict-at-mean": {"prediction": "mean"},
}
"""Changed options by the reading's name. Only `fisher-sum-accumulated` changes two at once."""


def experiments(reading: str) -> list[Experiment]:
    return [
        Experiment(
            method="evcl+",
            benchmark=benchmark,
            seed=seed,
            options=READINGS[reading],
            training=Training(epochs=EPOCHS),
        )
        for seed in SEEDS
        for benchmark in BENCHMARKS
    ]


def table(runs: dict[str, list[Cell]]) -> str:
    """Mean, deviation and what changed against the default, paired over seeds."""
    lines = [
        f"Average test accuracy after five tasks, %; EVCL+, {EPOCHS} epochs, mean ± deviation over "
        f"{len(SEEDS)} seeds, and the change against the default with its 95 % interval.",
        "",
        f"| reading | changed | {' | '.join(BENCHMARKS)} |",
        f"|---|---|{'---|' * len(BENCHMARKS)}",
    ]
    accuracy = {
        reading: {
            benchmark: {
                cell.experiment.seed: 100 * Record.read(cell.folder / RECORD).average_accuracy
                for cell in made
                if cell.experiment.benchmark == benchmark and (cell.folder / RECORD).exists()
            }
            for benchmark in BENCHMARKS
        }
        for reading, made in runs.items()
    }
    for reading, changed in READINGS.items():
        options = ", ".join(f"{name} = {value}" for name, value in changed.items())
        parts = [
            _cell(accuracy[reading][name], accuracy["default"][name], bool(changed))
            for name in BENCHMARKS
        ]
        lines.append(f"| {reading} | {options or '-'} | {' | '.join(parts)} |")
    return "\n".join(lines) + "\n"


def _cell(found: dict[int, float], default: dict[int, float], differs: bool) -> str:
    if not found:
        return "not run"
    ours = spread(list(found.values()))
    text = f"{ours.mean:.1f}" + (f" ± {ours.deviation:.1f}" if ours.deviation is not None else "")
    change = paired_difference(found, default)
    if differs and change.interval is not None:
        low, high = change.interval.low, change.interval.high
        text += f" ({change.mean:+.1f}; {low:+.1f} to {high:+.1f})"
    return text


def main(arguments: Sequence[str]) -> None:
    console = Console()
    runs = {reading: cells(experiments(reading), OUT / reading) for reading in READINGS}
    # Seed by seed through all readings, so that a stop leaves them equally far.
    everything = sorted(
        (cell for made in runs.values() for cell in made), key=lambda cell: cell.experiment.seed
    )
    _, todo = split_finished(everything)
    make_folder(OUT)
    command = shlex.join(["python", "scripts/vary_readings.py", *arguments])
    if todo:
        with ComparisonBars(console, len(todo)) as bars:
            work_through(todo, os.cpu_count() or 1, bars, command)
    write_atomically(OUT / "table.md", table(runs))
    console.print(table(runs), soft_wrap=True)


if __name__ == "__main__":
    main(sys.argv[1:])
