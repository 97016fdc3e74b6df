"""Processes of this machine, one thread each. One that fails or is killed stops no other."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from types import TracebackType

from evclplus.experiments.executors.base import (
    SECONDS_BETWEEN_EVENTS,
    Event,
    News,
    Outcome,
    Work,
)
from evclplus.experiments.executors.worker import Told, one_thread, tried
from evclplus.signals import Signals

SECONDS_WITHOUT_PARENT = 3.0
DIED = "its process died (killed, or out of memory); run the same command again"


class Processes:
    """So many processes at once, begun when they are first needed."""

    retries = 0
    """What kills a process here, mostly memory, would kill it again."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.idle: list[_Worker] = []
        self.running: dict[Future[Outcome], tuple[_Worker, int]] = {}

    def room(self) -> int:
        return self.count

    def start(self, number: int, work: Work, command: str) -> None:
        worker = self.idle.pop() if self.idle else _Worker()
        self.running[worker.start(work, command)] = worker, number

    def news(self) -> Iterator[tuple[int, News]]:
        ended, _ = wait(self.running, SECONDS_BETWEEN_EVENTS, FIRST_COMPLETED)
        for worker, number in list(self.running.values()):
            for event in worker.events():
                yield number, event
        for future in ended:
            worker, number = self.running.pop(future)
            outcome = worker.outcome(future)
            self.idle.append(worker)
            yield number, outcome

    def save(self) -> None:
        for worker in self._workers():
            worker.send(signal.SIGUSR1)

    def _workers(self) -> "list[_Worker]":
        return self.idle + [worker for worker, _ in self.running.values()]

    def __enter__(self) -> "Processes":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        workers = self._workers()
        if kind is not None:
            for worker in workers:
                worker.pipe.close()  # it saves and exits
        try:
            for worker in workers:
                worker.end()
        except BaseException:  # asked again
            for worker in workers:
                worker.kill()
            raise


class _Worker:
    """A process and the executor around it, one for each: a process that dies takes its whole
    executor with it. The pipe carries events here; when it closes, the process exits."""

    def __init__(self) -> None:
        self._open()

    def _open(self) -> None:
        # A fresh interpreter: torch's threads do not survive a fork.
        context = get_context("spawn")
        self.pipe, self.theirs = context.Pipe()
        self.pid: int | None = None
        self.executor = ProcessPoolExecutor(1, context, _prepare, (self.theirs,))

    def start(self, work: Work, command: str) -> "Future[Outcome]":
        # The process is born with interrupts blocked: they are for this one to handle.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            future = self.executor.submit(_run, work, command)
        except BrokenProcessPool:  # it died between two jobs
            self._open_again()
            future = self.executor.submit(_run, work, command)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self.theirs.close()  # the process has its own; with two, it would not see ours close
        return future

    def events(self) -> Iterator[Event]:
        try:
            while self.pipe.poll():
                message = self.pipe.recv()
                if isinstance(message, Event):
                    yield message
                else:
                    self.pid = message
        except (EOFError, OSError):
            return  # the process died, which the future says better

    def outcome(self, future: "Future[Outcome]") -> Outcome:
        """What came of a work that has ended. A dead process is replaced."""
        try:
            return future.result()
        except BrokenProcessPool:
            self.kill()
            self._open_again()
            return Outcome(error=DIED, lost=True)

    def send(self, number: int) -> None:
        if self.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """The process and all that it has started, such as a compiler, also when it is dead."""
        if self.pid is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def _open_again(self) -> None:
        self.end()
        self._open()

    def end(self) -> None:
        self.executor.shutdown(cancel_futures=True)
        self.pipe.close()
        self.theirs.close()


_pipe: Connection
"""In a worker process: the pipe to the process that started it."""


def _prepare(pipe: Connection) -> None:
    """Make a fresh process a worker: one thread, and gone as soon as its pipe closes."""
    global _pipe
    _pipe = pipe
    os.setpgrp()  # with what it starts itself, so that all of it can be ended
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A worker that is ended saves first, and leaves no file half written.
    signals = Signals()
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signals.receive)
    with suppress(ImportError):
        # Torch's compiler shows a bar that is switched off. The bar's lock is a semaphore of the
        # system, and Python complains about those of a worker that is ended.
        from tqdm import tqdm

        tqdm.set_lock(threading.RLock())
    pipe.send(os.getpid())
    threading.Thread(target=_exit_when_closed, args=(pipe,), daemon=True).start()
    one_thread()


def _exit_when_closed(pipe: Connection) -> None:
    """The parent closes its end to stop the worker, and so does the system when the parent dies.
    Without a parent nobody could end a worker that does not come to its next step."""
    with suppress(EOFError, OSError):
        pipe.recv()  # nothing is ever sent
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
    parent = parent_process()
    while parent is not None and os.getppid() == parent.pid:
        time.sleep(SECONDS_BETWEEN_EVENTS)
    time.sleep(SECONDS_WITHOUT_PARENT)
    os.killpg(0, signal.SIGKILL)


def _leave() -> None:
    """End this worker and what it has started."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    os._exit(128 + signal.SIGTERM)


def _run(work: Work, command: str) -> Outcome:
    def send(event: Event) -> None:
        with suppress(OSError):  # the parent is gone, and the worker will be told
            _pipe.send(event)

    try:
        return tried(lambda: work(work.home, Told(send), command))
    except SystemExit:
        _leave()  # the executor would take an exit for a failed job and wait for the next
        raise
