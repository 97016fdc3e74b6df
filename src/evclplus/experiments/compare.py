"""The cells of a comparison: experiments and the folders of their records."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evclplus.callbacks import Progress
from evclplus.experiments.config import Experiment
from evclplus.experiments.run import finished, resolve, run_into
from evclplus.streams.task import Stream


@dataclass(frozen=True)
class Cell:
    """One experiment of a comparison and the folder its record goes to."""

    experiment: Experiment
    folder: Path

    @property
    def title(self) -> str:
        one = self.experiment
        return f"{one.benchmark} {one.method} seed {one.seed}"

    def run(self, progress: Progress, command: str) -> None:
        run_into(self.folder, self.experiment, progress, command, overwrite=True)


def cells(experiments: Sequence[Experiment], out: Path) -> list[Cell]:
    """A cell for each experiment, with every setting checked and written out."""
    streams: dict[str, Stream] = {}
    made = []
    for one in experiments:
        key = json.dumps([one.benchmark, one.seed, one.stream], sort_keys=True, default=str)
        resolved, streams[key] = resolve(one, streams.get(key))
        folder = out / one.benchmark / one.method / f"seed-{one.seed}"
        made.append(Cell(resolved, folder))
    return made


def split_finished(all_cells: Sequence[Cell]) -> tuple[list[Cell], list[Cell]]:
    """The cells that have their record already, and the others."""
    done: list[Cell] = []
    todo: list[Cell] = []
    for cell in all_cells:
        (done if finished(cell.folder, cell.experiment) else todo).append(cell)
    return done, todo
