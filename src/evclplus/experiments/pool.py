"""Jobs in parallel processes, one thread each. A job that fails or is killed stops no other."""

import os
import signal
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from typing import Protocol, TypeVar

from evclplus.callbacks import Callback, LazyTerms
from evclplus.errors import EvclplusError
from evclplus.signals import Signals, current

SECONDS_BETWEEN_EVENTS = 0.2
SECONDS_WITHOUT_PARENT = 3.0
DIED = "its process died (killed, or out of memory); run the same command again"


class Job(Protocol):
    """What a worker process can do: run a cell, or try settings. No two have the same title."""

    @property
    def title(self) -> str: ...
    def run(self, callback: Callback, command: str) -> None: ...


AnyJob = TypeVar("AnyJob", bound=Job)
Heard = TypeVar("Heard", bound=Job, contravariant=True)


@dataclass(frozen=True)
class Event:
    """How far a job is."""

    step: int
    steps: int
    text: str


class Listener(Protocol[Heard]):
    """Is told what becomes of every job, in the process that started them."""

    def started(self, job: Heard, /) -> None: ...
    def moved(self, job: Heard, event: Event, /) -> None: ...
    def ended(self, job: Heard, error: str | None, /) -> None: ...


def work_through(
    todo: Sequence[AnyJob], workers: int, listener: Listener[AnyJob], command: str = ""
) -> list[str]:
    """Run the jobs and return what went wrong, a line each. Others go on after a failure.

    A request to stop is passed on: the workers save what they are at and end. Asked again, they
    are killed.
    """
    failed: list[str] = []
    waiting = iter(todo)
    running: dict[Future[str | None], tuple[_Worker, AnyJob]] = {}
    pool = [_Worker() for _ in range(min(workers, len(todo)))]

    def start_next(worker: _Worker) -> None:
        if (job := next(waiting, None)) is not None:
            listener.started(job)
            running[worker.start(job, command)] = worker, job

    signals = current() or Signals()
    try:
        with signals.held():
            for worker in pool:
                start_next(worker)
            while running:
                signals.obey()
                _pass_on_saving(signals, pool)
                ended, _ = wait(running, SECONDS_BETWEEN_EVENTS, FIRST_COMPLETED)
                for worker, job in running.values():
                    for event in worker.events():
                        listener.moved(job, event)
                for future in ended:
                    worker, job = running.pop(future)
                    error = worker.outcome(future)
                    # The next job first: a listener may take its time, a worker should not wait.
                    start_next(worker)
                    listener.ended(job, error)
                    if error is not None:
                        failed.append(f"{job.title}: {error}")
    except BaseException:
        for worker in pool:
            worker.pipe.close()  # it saves and exits
        raise
    finally:
        _end(pool)
    return failed


def _pass_on_saving(signals: Signals, pool: "Sequence[_Worker]") -> None:
    """Who asks this process to save means its workers."""
    if signals.save:
        signals.saved()
        for worker in pool:
            worker.send(signal.SIGUSR1)


def _end(pool: "Sequence[_Worker]") -> None:
    try:
        for worker in pool:
            worker.end()
    except BaseException:  # asked again
        for worker in pool:
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

    def start(self, job: Job, command: str) -> "Future[str | None]":
        # The process is born with interrupts blocked: they are for this one to handle.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            future = self.executor.submit(_run, job, command)
        except BrokenProcessPool:  # it died between two jobs
            self._open_again()
            future = self.executor.submit(_run, job, command)
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

    def outcome(self, future: "Future[str | None]") -> str | None:
        """What went wrong with a job that has ended. A dead process is replaced."""
        try:
            return future.result()
        except BrokenProcessPool:
            self.kill()
            self._open_again()
            return DIED

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
    pipe.send(os.getpid())
    threading.Thread(target=_exit_when_closed, args=(pipe,), daemon=True).start()
    # A worker has one core, and compilers beside it would outlive it when it is ended.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # see cli/runs.py


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


def _run(job: Job, command: str) -> str | None:
    """Run a job in a worker and return what went wrong."""
    try:
        job.run(_PipeCallback(_pipe), command)
    except EvclplusError as error:
        return str(error)
    except SystemExit:
        _leave()  # the executor would take an exit for a failed job and wait for the next
    except Exception as error:
        traceback.print_exc()
        return f"{type(error).__name__}: {error} (a bug: please report the lines above it)"
    return None


class _PipeCallback(Callback):
    """Sends events through a pipe, a few times a second."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.label, self.steps, self.last = "", 0, 0.0

    def start(self, label: str, steps: int) -> None:
        self.label, self.steps = label, steps

    def advance(self, step: int, terms: LazyTerms) -> None:
        now = time.monotonic()
        if now - self.last > SECONDS_BETWEEN_EVENTS:
            self.last = now
            with suppress(OSError):  # the parent is gone, and the worker will be told
                self.pipe.send(Event(step, self.steps, self.label))
