"""Callbacks that send the terms of the loss to TensorBoard or Weights & Biases while a learner
learns. Their packages are extras, imported when a tracker is made.

    with TensorBoard("runs/mine") as tracker:
        learner = ec.Learner(network, callback=tracker)
        learner.learn(task)
        tracker.log({"accuracy": 0.97})

A term is a number that the device still computes, and asking for it waits: so it is asked for a few
times a second at most. What is logged otherwise stands at the step where training is.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from evclplus.callbacks import Callback, LazyTerms
from evclplus.errors import SettingsError
from evclplus.files import own_path

SECONDS_BETWEEN_LOOKS = 0.25
Mode = Literal["online", "offline"]


class Tracker(Callback, AbstractContextManager["Tracker"], ABC):
    """Numbers by name and step. Steps count through all phases and tasks."""

    def __init__(self, every: float = SECONDS_BETWEEN_LOOKS) -> None:
        self.every = every
        self.step = 0
        self._before = 0
        self._looked = float("-inf")

    @abstractmethod
    def write(self, values: Mapping[str, float], step: int) -> None:
        """Send some numbers."""

    @abstractmethod
    def close(self) -> None:
        """All is sent; nothing more will come."""

    def log(self, values: Mapping[str, float]) -> None:
        """Numbers of your own, at the present step."""
        self.write(values, self.step)

    def start(self, label: str, steps: int) -> None:
        self._before = self.step

    def advance(self, step: int, terms: LazyTerms) -> None:
        self.step = self._before + step
        now = time.monotonic()
        if now - self._looked >= self.every:
            self._looked = now
            self.write({f"loss/{name}": float(value) for name, value in terms().items()}, self.step)

    def __exit__(self, *error: object) -> None:
        self.close()


class TensorBoard(Tracker):
    """Event files in a folder, for `tensorboard --logdir`."""

    def __init__(self, folder: Path | str, every: float = SECONDS_BETWEEN_LOOKS) -> None:
        super().__init__(every)
        self.writer = tensorboard().SummaryWriter(str(own_path(folder, "the folder")))

    def write(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class WandB(Tracker):
    """A run of Weights & Biases; `mode="offline"` keeps it on disk for `wandb sync`. Other options
    are those of `wandb.init`."""

    def __init__(
        self,
        project: str = "evclplus",
        mode: Mode = "online",
        every: float = SECONDS_BETWEEN_LOOKS,
        **options: Any,
    ) -> None:
        super().__init__(every)
        self.run = wandb().init(project=project, mode=mode, **options)

    def write(self, values: Mapping[str, float], step: int) -> None:
        self.run.log(dict(values), step=step)

    def close(self) -> None:
        self.run.finish()


def tensorboard() -> ModuleType:
    """torch's own writer of event files."""
    try:
        from torch.utils import tensorboard as found
    except ModuleNotFoundError as error:
        raise _missing("tensorboard", error) from None
    return found


def wandb() -> ModuleType:
    try:
        import wandb as found
    except ModuleNotFoundError as error:
        raise _missing("wandb", error) from None
    return found


def _missing(name: str, error: ModuleNotFoundError) -> Exception:
    if (error.name or "").partition(".")[0] != name:
        return error
    return SettingsError(f"this needs {name}: install it with `pip install 'evclplus[{name}]'`")
