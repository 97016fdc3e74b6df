"""The cells of a comparison: experiments and the folders of their records."""

import hashlib
import json
import platform
import uuid
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evclplus.callbacks import Callback
from evclplus.experiments.config import Experiment
from evclplus.experiments.executors.base import Outcome
from evclplus.experiments.record import Record
from evclplus.experiments.run import (
    MINUTES,
    check_unfinished,
    finish,
    finished,
    refuse_finished,
    resolve,
    run,
    written_out,
)
from evclplus.experiments.unfinished import clear
from evclplus.locks import only_writer
from evclplus.methods import method
from evclplus.progress import Every


@dataclass(frozen=True)
class CellWork:
    """A cell as a worker sees it. Its answer is the record's bytes."""

    experiment: Experiment
    name: str
    home: Path
    every: Every

    @property
    def gpus(self) -> int:
        return gpus_of(self.experiment)

    def __call__(self, keep: Path | None, callback: Callback, command: str) -> bytes:
        with nullcontext() if keep is None else only_writer(keep):
            if keep is not None:
                check_unfinished(keep, self.experiment)
            record = run(self.experiment, callback, command, keep=keep, every=self.every)
        return record.to_bytes()


def gpus_of(experiment: Experiment) -> int:
    return int((experiment.training.device or "").startswith("cuda"))


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

    def work(self) -> CellWork:
        if self.overwrite:
            with only_writer(self.folder):
                clear(self.folder)
        return CellWork(self.experiment, self._name(), self.folder, self.every)

    def _name(self) -> str:
        """For this folder of this machine and these settings. What is to be replaced does not go
        on from what an earlier call has left."""
        place = [platform.node(), str(self.folder.absolute()), self.experiment.fingerprint()]
        if self.overwrite:
            place.append(uuid.uuid4().hex)
        return place_name(self.title, place)

    def receive(self, outcome: Outcome) -> None:
        if outcome.error is not None:
            return
        record = Record.of(json.loads(outcome.answer), self.folder)
        with only_writer(self.folder):
            refuse_finished(self.folder, self.overwrite)  # another one may have been here meanwhile
            finish(record, self.folder)


def place_name(title: str, parts: Sequence[str]) -> str:
    """A name of a folder for people and machines."""
    plain = "".join(letter if letter.isalnum() else "-" for letter in title)
    return f"{plain[:60]}-{hashlib.sha256(' '.join(parts).encode()).hexdigest()[:16]}"


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
