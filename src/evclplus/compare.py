"""Many experiments in parallel processes, one thread each; what is finished is kept."""

import json
import multiprocessing
import queue
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Protocol

import torch

from evclplus.benchmarks import Stream
from evclplus.config import Experiment
from evclplus.errors import EvclplusError
from evclplus.progress import Progress, Terms
from evclplus.run import finished, resolve, run_into


@dataclass(frozen=True)
class Cell:
    """One experiment of a comparison and the folder its record goes to."""

    experiment: Experiment
    folder: Path

    @property
    def title(self) -> str:
        one = self.experiment
        return f"{one.benchmark} {one.method} seed {one.seed}"


@dataclass(frozen=True)
class News:
    """What a worker has to say of its cell: how far it is, that it is done, or what failed."""

    cell: int
    step: int = 0
    steps: int = 0
    text: str = ""
    done: bool = False
    error: str | None = None


class Watcher(Protocol):
    """Shows the news."""

    def started(self, cell: Cell) -> None: ...
    def moved(self, cell: Cell, news: News) -> None: ...
    def ended(self, cell: Cell, error: str | None) -> None: ...


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


def compare(todo: Sequence[Cell], workers: int, watcher: Watcher, command: str = "") -> list[str]:
    """Run the cells and return what went wrong, a line each. Others go on after a failure.

    An interrupt ends the workers at once; every finished cell has its record, every other one
    is started anew by the next call.
    """
    pool = _Pool(min(workers, len(todo)), command)
    try:
        return pool.run(list(todo), watcher)
    finally:
        pool.close()


def split_finished(all_cells: Sequence[Cell]) -> tuple[list[Cell], list[Cell]]:
    """The cells that have their record already, and the others."""
    done = [cell for cell in all_cells if finished(cell.folder, cell.experiment)]
    return done, [cell for cell in all_cells if cell not in done]


class _Worker:
    """A process that runs one cell after another, and the pipe to it."""

    def __init__(self, command: str) -> None:
        # A fresh interpreter: torch's threads do not survive a fork.
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_work, args=(theirs, command))
        self.process.start()
        theirs.close()
        self.cell: int | None = None

    def give(self, index: int, cell: Cell) -> None:
        self.cell = index
        self.pipe.send((index, cell))

    def end(self) -> None:
        self.process.terminate()
        self.process.join()
        self.pipe.close()


class _Pool:
    def __init__(self, size: int, command: str) -> None:
        self.command = command
        self.workers = [_Worker(command) for _ in range(size)]

    def run(self, todo: list[Cell], watcher: Watcher) -> list[str]:
        waiting = queue.SimpleQueue[int]()
        for index in range(len(todo)):
            waiting.put(index)
        failed: list[str] = []
        for worker in self.workers:
            _give_next(worker, waiting, todo, watcher)
        while any(worker.cell is not None for worker in self.workers):
            for worker in self._with_news():
                cell = todo[worker.cell]  # type: ignore[index]
                news = self._receive(worker)
                if not news.done:
                    watcher.moved(cell, news)
                    continue
                # The next cell first: a watcher may take its time, a worker should not wait.
                _give_next(worker, waiting, todo, watcher)
                watcher.ended(cell, news.error)
                if news.error is not None:
                    failed.append(f"{cell.title}: {news.error}")
        return failed

    def _with_news(self) -> list[_Worker]:
        busy = {worker.pipe: worker for worker in self.workers if worker.cell is not None}
        return [busy[pipe] for pipe in wait(list(busy)) if isinstance(pipe, Connection)]

    def _receive(self, worker: _Worker) -> News:
        """The next news. A worker that died is replaced and its cell counted as failed."""
        try:
            news: News = worker.pipe.recv()
        except (EOFError, OSError):
            worker.process.join()
            code, index = worker.process.exitcode, worker.cell
            fresh = _Worker(self.command)
            worker.pipe, worker.process = fresh.pipe, fresh.process
            reason = f"its process died with code {code}; run the same command again"
            return News(cell=index or 0, done=True, error=reason)
        return news

    def close(self) -> None:
        for worker in self.workers:
            worker.end()


def _give_next(
    worker: _Worker, waiting: "queue.SimpleQueue[int]", todo: list[Cell], watcher: Watcher
) -> None:
    worker.cell = None
    if not waiting.empty():
        index = waiting.get()
        watcher.started(todo[index])
        worker.give(index, todo[index])


def _work(pipe: Connection, command: str) -> None:
    """The life of a worker process: run what comes through the pipe until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the parent to handle
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # see cli.main
    while True:
        try:
            index, cell = pipe.recv()
        except EOFError:
            return
        try:
            progress = _PipeProgress(pipe, index)
            run_into(cell.folder, cell.experiment, progress, command, overwrite=True)
            pipe.send(News(index, done=True))
        except EvclplusError as error:
            pipe.send(News(index, done=True, error=str(error)))


class _PipeProgress(Progress):
    """Sends the news through a pipe, a few times a second."""

    def __init__(self, pipe: Connection, cell: int, seconds: float = 0.2) -> None:
        self.pipe, self.cell, self.seconds = pipe, cell, seconds
        self.label, self.steps, self.last = "", 0, 0.0

    def start(self, label: str, steps: int) -> None:
        self.label, self.steps = label, steps

    def advance(self, step: int, terms: Terms) -> None:
        now = time.monotonic()
        if now - self.last > self.seconds:
            self.last = now
            self.pipe.send(News(self.cell, step, self.steps, self.label))
