"""The cells of a comparison: experiments and the folders of their records."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evclplus.callbacks import Callback
from evclplus.experiments.config import Experiment
from evclplus.experiments.run import (
    MINUTES,
    check_unfinished,
    finished,
    resolve,
    run_into,
    written_out,
)
from evclplus.methods import method
from evclplus.progress import Every


@dataclass(frozen=True)
class Cell:
    """One experiment of a comparison and the folder its record goes to."""

    experiment: Experiment
    folder: Path
    overwrite: bool = False
    every: Every = MINUTES

    @property
    def title(self) -> str:
        one = self.experiment
        return f"{one.benchmark} {one.method} seed {one.seed}"

    def run(self, callback: Callback, command: str) -> None:
        run_into(self.folder, self.experiment, callback, command, self.overwrite, every=self.every)


def cells(
    experiments: Sequence[Experiment],
    out: Path,
    overwrite: bool = False,
    every: Every = MINUTES,
) -> list[Cell]:
    """A cell for each experiment, with every setting checked and written out."""
    streams: dict[str, dict[str, Any]] = {}
    made = []
    for one in experiments:
        # A stream is built to see its settings and data, once for all seeds, and not kept.
        key = json.dumps([one.benchmark, one.stream], sort_keys=True, default=str)
        if key not in streams:
            streams[key] = resolve(one).experiment.stream
        settled = written_out(one, method(one.method, **one.options), streams[key])
        folder = out / one.benchmark / one.method / f"seed-{one.seed}"
        made.append(Cell(settled, folder, overwrite, every))
    return made


def split_finished(all_cells: Sequence[Cell]) -> tuple[list[Cell], list[Cell]]:
    """The cells that have their record already, and the others."""
    done: list[Cell] = []
    todo: list[Cell] = []
    for cell in all_cells:
        if not cell.overwrite and finished(cell.folder, cell.experiment):
            done.append(cell)
        else:
            if not cell.overwrite:
                check_unfinished(cell.folder, cell.experiment)
            todo.append(cell)
    return done, todo
