"""The one loop behind every grid: jobs go to an executor, what comes of them is put away."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Generic

from evclplus.errors import EvclplusError
from evclplus.experiments.environment import environment
from evclplus.experiments.executors.base import (
    AnyJob,
    Event,
    Executor,
    Host,
    Listener,
    Outcome,
    Work,
)
from evclplus.signals import Signals, current

COMPARED = (
    *("evclplus", "commit", "dirty", "python", "torch", "numpy"),
    *("platform", "instruction_set"),
)
"""What should be the same on all machines that make one table."""


def work_through(
    todo: Sequence[AnyJob], executor: Executor, listener: Listener[AnyJob], command: str = ""
) -> list[str]:
    """Do the jobs and return what went wrong, a line each. Others go on after a failure.

    A request to stop is passed on: the workers save what they are at and end. Asked again, they
    are killed.
    """
    signals = current() or Signals()
    grid = _Grid(todo, executor, listener, command)
    with executor, signals.held():
        grid.fill()
        while grid.running:
            signals.obey()
            if signals.save:  # who asks this process to save means its workers
                signals.saved()
                executor.save()
            for number, news in executor.news():
                if number in grid.running:  # not of one that is lost or has ended
                    grid.hear(number, news)
    return grid.failed


class _Grid(Generic[AnyJob]):
    """Which jobs wait, run and have failed."""

    def __init__(
        self,
        todo: Sequence[AnyJob],
        executor: Executor,
        listener: Listener[AnyJob],
        command: str,
    ) -> None:
        self.executor, self.listener, self.command = executor, listener, command
        self.waiting = iter(enumerate(todo))
        self.running: dict[int, tuple[AnyJob, Work]] = {}
        self.losses: dict[int, int] = {}
        self.differences: set[str] = set()
        self.failed: list[str] = []

    def fill(self) -> None:
        """Start what there is room for."""
        while len(self.running) < self.executor.room():
            number, job = next(self.waiting, (None, None))
            if number is None or job is None:
                return
            self.listener.started(job)
            try:
                work = job.work()
            except EvclplusError as error:
                self._ended(job, str(error))
                continue
            self.running[number] = job, work
            self.executor.start(number, work, self.command)

    def hear(self, number: int, news: Event | Host | Outcome) -> None:
        job, work = self.running[number]
        if isinstance(news, Event):
            self.listener.moved(job, news)
        elif isinstance(news, Host):
            self._compare(news)
        elif news.lost and self.losses.get(number, 0) < self.executor.retries:
            self.losses[number] = self.losses.get(number, 0) + 1
            self.listener.told(f"{job.title}: {news.error}; it is begun again")
            self.executor.start(number, work, self.command)
        else:
            del self.running[number]
            error = _received(job, news)
            # The next job first: a listener may take its time, a worker should not wait.
            self.fill()
            self._ended(job, error)

    def _ended(self, job: AnyJob, error: str | None) -> None:
        self.listener.ended(job, error)
        if error is not None:
            self.failed.append(f"{job.title}: {error}")

    @cached_property
    def here(self) -> dict[str, Any]:
        return environment()

    def _compare(self, host: Host) -> None:
        line = difference(host, self.here)
        if line is not None and line not in self.differences:
            self.differences.add(line)
            self.listener.told(line)


def _received(job: AnyJob, outcome: Outcome) -> str | None:
    """Have an outcome put away; what went wrong at last."""
    try:
        job.receive(outcome)
    except EvclplusError as error:
        return str(error)
    return outcome.error


def difference(host: Host, here: dict[str, Any]) -> str | None:
    """What is other on a host than here, in one line."""
    there = host.environment
    parts = [
        f"{name} {there.get(name)} there, {here.get(name)} here"
        for name in COMPARED
        if there.get(name) != here.get(name)
    ]
    if not parts:
        return None
    return f"{host.name} is not as this machine, results may differ: {'; '.join(parts)}"
