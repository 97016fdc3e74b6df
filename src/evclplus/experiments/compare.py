"""Many jobs in parallel processes, one thread each; what is finished is kept."""

import json
import multiprocessing
import os
import queue
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import torch

from evclplus.callbacks import Progress, Terms
from evclplus.errors import EvclplusError
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


class Job(Protocol):
    """What a worker process can do: run a cell, or try settings. No two have the same title."""

    @property
    def title(self) -> str: ...
    def run(self, progress: Progress, command: str) -> None: ...


AnyJob = TypeVar("AnyJob", bound=Job)
Watched = TypeVar("Watched", bound=Job, contravariant=True)


@dataclass(frozen=True)
class News:
    """What a worker has to say of its job: how far it is, that it is done, or what failed."""

    job: int
    step: int = 0
    steps: int = 0
    text: str = ""
    done: bool = False
    error: str | None = None


class Watcher(Protocol[Watched]):
    """Shows the news."""

    def started(self, job: Watched, /) -> None: ...
    def moved(self, job: Watched, news: News, /) -> None: ...
    def ended(self, job: Watched, error: str | None, /) -> None: ...


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


def work_through(
    todo: Sequence[AnyJob], workers: int, watcher: Watcher[AnyJob], command: str = ""
) -> list[str]:
    """Run the jobs and return what went wrong, a line each. Others go on after a failure.

    An interrupt ends the workers at once: every finished cell has its record, every other one
    is started anew by the next call.
    """
    pool = _Pool(list(todo), min(workers, len(todo)), watcher, command)
    try:
        return pool.run()
    finally:
        pool.close()


def split_finished(all_cells: Sequence[Cell]) -> tuple[list[Cell], list[Cell]]:
    """The cells that have their record already, and the others."""
    done = [cell for cell in all_cells if finished(cell.folder, cell.experiment)]
    return done, [cell for cell in all_cells if cell not in done]


class _Worker(Generic[AnyJob]):
    """A process that runs one job after another, and the pipe to it."""

    def __init__(self, command: str) -> None:
        # A fresh interpreter: torch's threads do not survive a fork.
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_work, args=(theirs, command))
        self.process.start()
        theirs.close()
        self.job: int | None = None

    def give(self, index: int, job: AnyJob) -> None:
        self.job = index
        self.pipe.send((index, job))

    def end(self) -> None:
        self.process.terminate()
        self.process.join()
        self.pipe.close()


class _Pool(Generic[AnyJob]):
    def __init__(
        self, todo: list[AnyJob], size: int, watcher: Watcher[AnyJob], command: str
    ) -> None:
        self.todo, self.watcher, self.command = todo, watcher, command
        self.waiting = queue.SimpleQueue[int]()
        for index in range(len(todo)):
            self.waiting.put(index)
        self.workers = [_Worker[AnyJob](command) for _ in range(size)]

    def run(self) -> list[str]:
        failed: list[str] = []
        for worker in self.workers:
            self._give_next(worker)
        while any(worker.job is not None for worker in self.workers):
            for worker in self._with_news():
                job = self.todo[worker.job]  # type: ignore[index]
                news = self._receive(worker)
                if not news.done:
                    self.watcher.moved(job, news)
                    continue
                # The next job first: a watcher may take its time, a worker should not wait.
                self._give_next(worker)
                self.watcher.ended(job, news.error)
                if news.error is not None:
                    failed.append(f"{job.title}: {news.error}")
        return failed

    def _with_news(self) -> list[_Worker[AnyJob]]:
        busy = {worker.pipe: worker for worker in self.workers if worker.job is not None}
        return [busy[pipe] for pipe in wait(list(busy)) if isinstance(pipe, Connection)]

    def _receive(self, worker: _Worker[AnyJob]) -> News:
        """The next news. A worker that died is replaced and its job counted as failed."""
        try:
            news: News = worker.pipe.recv()
        except (EOFError, OSError):
            worker.process.join()
            code, index = worker.process.exitcode, worker.job
            fresh = _Worker[AnyJob](self.command)
            worker.pipe, worker.process = fresh.pipe, fresh.process
            reason = f"its process died with code {code}; run the same command again"
            return News(job=index or 0, done=True, error=reason)
        return news

    def _give_next(self, worker: _Worker[AnyJob]) -> None:
        worker.job = None
        if not self.waiting.empty():
            index = self.waiting.get()
            self.watcher.started(self.todo[index])
            worker.give(index, self.todo[index])

    def close(self) -> None:
        for worker in self.workers:
            worker.end()


def _work(pipe: Connection, command: str) -> None:
    """The life of a worker process: run what comes through the pipe until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the parent to handle
    # A worker that is ended exits, so that what it holds (files half written, the compiler's
    # semaphores) is put away, where the signal itself would leave it behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # see cli.main
    # A worker has one core, and compilers beside it would outlive it when it is ended.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    while True:
        try:
            index, job = pipe.recv()
        except (EOFError, ConnectionError):
            return  # the parent has ended or was killed
        try:
            job.run(_PipeProgress(pipe, index), command)
            pipe.send(News(index, done=True))
        except EvclplusError as error:
            pipe.send(News(index, done=True, error=str(error)))
        except BrokenPipeError:
            return  # the parent was killed: nobody waits for this job


class _PipeProgress(Progress):
    """Sends the news through a pipe, a few times a second."""

    def __init__(self, pipe: Connection, job: int, seconds: float = 0.2) -> None:
        self.pipe, self.job, self.seconds = pipe, job, seconds
        self.label, self.steps, self.last = "", 0, 0.0

    def start(self, label: str, steps: int) -> None:
        self.label, self.steps = label, steps

    def advance(self, step: int, terms: Terms) -> None:
        now = time.monotonic()
        if now - self.last > self.seconds:
            self.last = now
            self.pipe.send(News(self.job, step, self.steps, self.label))
