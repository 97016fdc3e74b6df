"""Works as tasks of a Ray cluster. The driver runs on one of its nodes, as Ray's drivers do.

A work is kept on the node that does it, or in a shared folder. Ray tells when a worker or a node is
lost; the work is then given to another, by the driver, which can say so.
"""

import logging
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from evclplus.errors import SettingsError
from evclplus.experiments.executors.base import (
    SECONDS_BETWEEN_EVENTS,
    Event,
    Host,
    News,
    Outcome,
    Work,
)
from evclplus.experiments.executors.worker import Told, data_folder, elsewhere, this_host
from evclplus.files import cache_folder
from evclplus.signals import Signals, Stopped, watched

RETRIES = 3


class OnRay:
    """So many tasks at once as asked for, or as the cluster has cores."""

    retries = RETRIES

    def __init__(self, address: str, jobs: int | None, scratch: Path | None) -> None:
        self.ray = _connected(address)
        self.jobs, self.scratch = jobs, None if scratch is None else scratch.absolute()
        self.running: dict[Any, int] = {}
        task = self.ray.remote(max_retries=0, scheduling_strategy="SPREAD")
        self.task = task(_run)
        here = self.ray.get_runtime_context().get_node_id()
        beside = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(here, False)
        board = self.ray.remote(Board).options(num_cpus=0, scheduling_strategy=beside)
        self.board = board.remote()

    def room(self) -> int:
        cores = int(self.ray.cluster_resources().get("CPU", 0))
        return self.jobs or max(1, cores)

    def start(self, number: int, work: Work, command: str) -> None:
        task = self.task.options(num_cpus=1, num_gpus=work.gpus, name=work.name)
        where = (self.scratch, data_folder())
        self.running[task.remote(work, command, number, self.board, *where)] = number

    def news(self) -> Iterator[tuple[int, News]]:
        ended, _ = self.ray.wait([*self.running], num_returns=1, timeout=SECONDS_BETWEEN_EVENTS)
        with suppress(self.ray.exceptions.RayError):  # it is how far they are, no more
            yield from self.ray.get(self.board.take.remote())
        for task in ended:
            yield self.running.pop(task), self._outcome(task)

    def _outcome(self, task: Any) -> Outcome:
        errors = self.ray.exceptions
        try:
            outcome: Outcome = self.ray.get(task)
            return outcome
        except (errors.RayTaskError, errors.RaySystemError) as error:
            # Ours are caught on the other side: it could not even begin.
            return Outcome(error=f"a node cannot do it: {_last_line(error)}; {INSTALL}")
        except errors.NodeDiedError:
            return Outcome(error="its node died", lost=True)
        except errors.RayError as error:
            reason = "ran out of memory" if isinstance(error, errors.OutOfMemoryError) else "died"
            return Outcome(error=f"its worker {reason}", lost=True)

    def save(self) -> None:
        self.board.save.remote()

    def __enter__(self) -> "OnRay":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        tasks = [*self.running]
        try:
            for task in tasks:
                self.ray.cancel(task)  # interrupts it: it saves and ends
            # Sleeping is done here, not by Ray, which takes our exceptions for its own.
            while tasks and self.ray.wait(tasks, num_returns=len(tasks), timeout=0)[1]:
                time.sleep(SECONDS_BETWEEN_EVENTS)
        finally:
            self.ray.shutdown()  # ends what has not ended


INSTALL = "every node needs the same evclplus, installed or on its PYTHONPATH"


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _connected(address: str) -> Any:
    try:
        import ray
        import ray.util.scheduling_strategies
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise SettingsError(
            "--on ray needs ray: install it with `pip install 'evclplus[ray]'`"
        ) from None
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    handler = signal.getsignal(signal.SIGTERM)  # Ray has one of its own, which ends the process
    try:
        ray.init(address=address or "auto", log_to_driver=False, logging_level=logging.CRITICAL)
    except (ConnectionError, ValueError, RuntimeError, TimeoutError, AssertionError):
        where = f"at {address}" if address else "that this machine belongs to"
        raise SettingsError(
            f"there is no Ray cluster {where}; start one with `ray start --head` (and `ray start "
            "--address=HOST:PORT` on other nodes), or give the address of its head: "
            "--on ray://HOST:PORT"
        ) from None
    finally:
        signal.signal(signal.SIGTERM, handler or signal.SIG_DFL)
    return ray


class Board:
    """An actor beside the driver on which workers note how far they are."""

    def __init__(self) -> None:
        self.notes: list[tuple[int, Event | Host]] = []
        self.saves = 0

    def note(self, number: int, event: Event | Host) -> int:
        """Returns how often workers were asked to save."""
        self.notes.append((number, event))
        return self.saves

    def take(self) -> list[tuple[int, Event | Host]]:
        taken, self.notes = self.notes, []
        return taken

    def save(self) -> None:
        self.saves += 1


def _run(
    work: Work, command: str, number: int, board: Any, scratch: Path | None, data: str | None
) -> Outcome:
    """In a worker of the cluster."""
    keep = (scratch or cache_folder() / "cells") / work.name
    # By this Ray cancels a task. A shell that starts a node in the background has it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with watched() as signals:
        notes = _Notes(board, number, signals)
        notes.send(this_host())
        try:
            outcome = elsewhere(work, keep, data, Told(notes.send), command)
        except Stopped as stopped:
            if stopped.number != signal.SIGINT:
                raise
            signals.heard.clear()
            signals.stop = None  # it is obeyed: the task is cancelled, its worker goes on
            return Outcome(error="it was interrupted", lost=True)
    shutil.rmtree(keep, ignore_errors=True)
    return outcome


class _Notes:
    """Notes of one work for the board. It waits for none of them."""

    def __init__(self, board: Any, number: int, signals: Signals) -> None:
        self.board, self.number, self.signals = board, number, signals
        self.under_way: Any = None
        self.saves: int | None = None

    def send(self, event: Event | Host) -> None:
        # A board that is gone is no reason to stop: when the driver is, Ray ends this worker.
        with suppress(Exception):
            self._send(event)

    def _send(self, event: Event | Host) -> None:
        import ray

        if self.under_way is not None:
            if not ray.wait([self.under_way], timeout=0)[0]:
                return
            saves = ray.get(self.under_way)
            self.signals.save |= self.saves is not None and saves > self.saves
            self.saves = saves
        self.under_way = self.board.note.remote(self.number, event)
