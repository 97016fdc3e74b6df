"""What every worker does, here or elsewhere."""

import os
import platform
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep

from evclplus.callbacks import Callback, LazyTerms
from evclplus.errors import EvclplusError
from evclplus.experiments.environment import environment
from evclplus.experiments.executors.base import (
    SECONDS_BETWEEN_EVENTS,
    Event,
    Host,
    Outcome,
    Work,
)
from evclplus.locks import BusyError


def one_thread() -> None:
    """A worker has one core, and compilers beside it would outlive it when it is ended."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # see cli/runs.py


def tried(act: Callable[[], bytes]) -> Outcome:
    """Do a work. What was wrong with what was asked is an answer too: it would be wrong again."""
    try:
        return Outcome(act())
    except EvclplusError as error:
        return Outcome(error=str(error))
    except Exception as error:
        traceback.print_exc()
        return Outcome(
            error=f"{type(error).__name__}: {error} (a bug: please report the lines above it)"
        )


class Told(Callback):
    """Sends events, a few times a second."""

    def __init__(
        self, send: Callable[[Event], None], seconds: float = SECONDS_BETWEEN_EVENTS
    ) -> None:
        self.send, self.seconds = send, seconds
        self.label, self.steps, self.last = "", 0, 0.0

    def start(self, label: str, steps: int) -> None:
        self.label, self.steps = label, steps

    def advance(self, step: int, terms: LazyTerms) -> None:
        now = monotonic()
        if now - self.last > self.seconds:
            self.last = now
            self.send(Event(step, self.steps, self.label))


# Workers on other machines.

PATIENCE = 60.0
"""Seconds a work waits for who has its folder: one of a driver that was killed is ending."""


def elsewhere(
    work: Work, keep: Path, data: str | None, callback: Callback, command: str
) -> Outcome:
    """Do a work on a machine that the driver may not share a disk with. An error says where."""
    one_thread()
    if data is not None:  # a node's own wins: where data lie is a matter of the node
        os.environ.setdefault("EVCLPLUS_DATA", data)
    outcome = tried(lambda: _in_turn(work, keep, callback, command))
    if outcome.error is None:
        return outcome
    return replace(outcome, error=f"on {platform.node()}: {outcome.error}")


def _in_turn(work: Work, keep: Path, callback: Callback, command: str) -> bytes:
    deadline = monotonic() + PATIENCE
    while True:
        try:
            return work(keep, callback, command)
        except BusyError:
            if monotonic() > deadline:
                return work(None, callback, command)
            sleep(SECONDS_BETWEEN_EVENTS)


def data_folder() -> str | None:
    """Where the driver has its datasets, for nodes that do not say it themselves."""
    folder = os.environ.get("EVCLPLUS_DATA")
    return None if folder is None else os.path.abspath(folder)


def this_host() -> Host:
    return Host(platform.node(), environment())
