"""Checkpoints inside a task: what its training has done so far, in one file that is always whole.

Between two tasks a learner is all there is, and `checkpoint.py` saves it. Inside one there is the
training loop besides: weights, moments and running vectors, its place in the data, running
statistics of the network. Random numbers follow from seed, task, purpose and epoch and need not be
kept. Neither need what a method does before and after training: it is done again from the same
numbers, with the same result.

    FOLDER/task-3/progress.safetensors    the third task while it is learned
    FOLDER/task-2/learner.json, state-*   the learner after the second
    FOLDER/task-2/done.json               what it was learned from: written last
"""

import hashlib
import json
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from evclplus.core import tree
from evclplus.core.engine import State
from evclplus.core.examples import Examples, rows_at_once
from evclplus.core.network import BayesianNetwork
from evclplus.errors import FileError, SettingsError
from evclplus.files import make_folder, write_atomically
from evclplus.locks import only_writer
from evclplus.ranks import ALONE, Ranks
from evclplus.seeding import random_state, set_random_state
from evclplus.signals import Signals

logger = logging.getLogger("evclplus")

PROGRESS, DONE = "progress.safetensors", "done.json"
SCHEMA = 2
NO_DIGEST = "0" * 64

Every = float | Literal["epoch"]
Identity = dict[str, str]
"""What a training depends on, by name: two that have it in common have the same result."""


@dataclass
class Checkpoints:
    """Where and how often training is saved.

    every   minutes, or "epoch": after each one
    least   seconds: the end of a task is not saved so soon after the last save or the beginning
    """

    folder: Path
    every: Every = 5.0
    least: float = 0.0
    alone: bool = True
    """Whether it must see to it by itself that nobody else writes here."""
    ranks: Ranks = ALONE
    """Of several processes that train together the first one writes."""
    last: float = field(default_factory=time.monotonic)
    failing: bool = False
    pending: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        self.folder = Path(self.folder)
        right = self.every == "epoch" or (isinstance(self.every, int | float) and self.every >= 0)
        if not right:
            raise SettingsError(f"every = {self.every!r} is wrong: minutes, or 'epoch'")

    @contextmanager
    def locked(self) -> Iterator[None]:
        with only_writer(self.folder) if self.alone and self.ranks.writes else nullcontext():
            yield

    def task(self, position: int) -> Path:
        return self.folder / f"task-{position + 1}"

    def is_due(self, epoch_ended: bool) -> bool:
        if self.every == "epoch":
            return epoch_ended
        return time.monotonic() - self.last >= 60 * self.every

    def task_ended(self, complete: Callable[[], None]) -> None:
        """Save the learner, now or when it is asked for."""
        self.pending = complete
        if self.every == "epoch" or time.monotonic() - self.last >= self.least:
            self.flush()

    def flush(self) -> None:
        """Save the learner if that is still to be done."""
        complete, self.pending = self.pending, None
        if complete is not None:
            complete()

    def write(self, write: Callable[[], None]) -> bool:
        """Do it, or warn in one line and go on: what was saved before stays, and the next time
        there may be room."""
        if not self.ranks.writes:
            return True
        try:
            write()
        except (FileError, OSError) as error:
            if not self.failing:
                logger.warning("training goes on, but cannot be saved now: %s", error)
            self.failing = True
            return False
        if self.failing:
            logger.warning("training can be saved again, in %s", self.folder)
        self.failing = False
        return True

    def forget(self, before: int) -> None:
        """Remove what earlier tasks have left."""
        for position in range(before if self.ranks.writes else 0):
            shutil.rmtree(self.task(position), ignore_errors=True)


@dataclass(frozen=True)
class Fit:
    """One run of the training loop: how far it is, and its tensors by name."""

    purpose: str
    step: int
    finished: bool
    compiles: bool
    """Whether nothing has failed to compile so far."""
    local: tuple[str, ...]
    tensors: dict[str, Tensor]

    @classmethod
    def of(
        cls,
        purpose: str,
        step: int,
        state: State,
        network: BayesianNetwork,
        total: Tensor | None = None,
        moments: bool = True,
        compiles: bool = True,
    ) -> "Fit":
        """Without a `total` it is finished. The gradient is no part of it: each step makes its
        own."""
        finished = total is None
        unused = ("gradient.", "reference.", *(() if moments else ("mean_", "variance_")))
        found = {
            f"vectors.{name}": tensor
            for name, tensor in tree.tensors(state.vectors)
            if not name.startswith(unused)
        }
        found |= {f"buffer.{name}": one.clone() for name, one in network.buffers.items()}
        if total is not None:
            found |= {f"random.{name}": one for name, one in random_state(network.device).items()}
            found["total"] = total
        local = tuple(network.local_layers)
        return cls(purpose, step, finished, compiles, local, found)

    def restore(self, state: State, network: BayesianNetwork) -> None:
        """Put a loop where this one was."""
        targets = {f"vectors.{name}": one for name, one in tree.tensors(state.vectors)}
        targets |= {f"buffer.{name}": one for name, one in network.buffers.items()}
        needed = {name for name in targets if name.startswith(("buffer.", "vectors.running"))}
        given = {name: one for name, one in self.tensors.items() if name in targets}
        fit = all(targets[name].shape == one.shape for name, one in given.items())
        if not fit or not {"vectors.mean", "vectors.variance", *needed} <= given.keys():
            raise FileError(
                "the checkpoint does not fit the network or what its method follows; remove it"
            )
        with torch.no_grad():
            for name, tensor in given.items():
                targets[name].copy_(tensor)
        network.keep_local(self.local)

    def restore_random_state(self, device: torch.device) -> None:
        states = {name: one for name, one in self.tensors.items() if name.startswith("random.")}
        set_random_state(device, {name.partition(".")[2]: one for name, one in states.items()})


class Progress:
    """The training of one task: the runs of the loop that are finished, and the one under way."""

    def __init__(
        self, place: Checkpoints, position: int, identity: Callable[[], Identity], signals: Signals
    ) -> None:
        self.place, self.signals = place, signals
        self.folder = place.task(position)
        self._identity = identity
        self._known: Identity | None = None
        self.fits: list[Fit] = []
        self.forms: set[str] = set()
        self._begun = 0
        self._unsaved = False

    @property
    def identity(self) -> Identity:
        """Asked for when something is read or written: it looks at all data."""
        if self._known is None:
            self._known = self._identity()
        return self._known

    # The loop asks these.

    def begin(self, purpose: str) -> Fit | None:
        """What is known of the next run of the loop."""
        number, self._begun = self._begun, self._begun + 1
        if number < len(self.fits) and self.fits[number].purpose == purpose:
            return self.fits[number]
        del self.fits[number:]
        return None

    def is_wanted(self, epoch_ended: bool = False) -> bool:
        """Whether to save after this step."""
        asked = self.signals.stop is not None or self.signals.save
        return asked or self.place.is_due(epoch_ended)

    def save(self, fit: Fit) -> None:
        """Save, and stop if that was asked."""
        self._note(fit)
        self.write()
        self.signals.saved()
        self.signals.obey()

    def finish(self, fit: Fit) -> None:
        """A run of the loop is over; it is written with what comes next."""
        self._note(fit)

    def _note(self, fit: Fit) -> None:
        self.fits[self._begun - 1 :] = [fit]
        self._unsaved = True

    # On disk.

    def write(self) -> None:
        """Write what is not on disk yet."""
        if self._unsaved:
            self.place.last = time.monotonic()
            self._unsaved = not self.place.write(self._write)

    def _write(self) -> None:
        make_folder(self.folder)
        write_atomically(self.folder / PROGRESS, as_bytes(self.fits, self.identity, self.forms))

    def read(self) -> None:
        """Take up what a stopped training of the same task has left."""
        path = self.folder / PROGRESS
        if not path.exists():
            return
        try:
            about, fits = from_bytes(path.read_bytes())
        except (OSError, ValueError, KeyError, TypeError, SafetensorError, RecursionError):
            logger.warning("%s is damaged; the task is learned from its beginning", path)
            return
        self._check(about["identity"], path)
        self.fits, self.forms = fits, set(about["forms"])

    @property
    def how_far(self) -> tuple[int, int]:
        """The runs of the loop, and the steps of all of them."""
        return len(self.fits), sum(fit.step for fit in self.fits)

    def done(self, unknown: str = "") -> dict[str, Any] | None:
        """What there is to know of the learner that has learned this task, if there is one.
        `unknown` is not asked of its identity."""
        path = self.folder / DONE
        try:
            about: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            known = isinstance(about["identity"], dict) and isinstance(about["local"], list)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        if not known:
            return None
        self._check({**about["identity"], unknown: self.identity.get(unknown, "")}, path)
        return about

    def complete(
        self, save: Callable[[Path], object], forms: set[str], local: Sequence[str]
    ) -> None:
        """Keep the learner that has learned the task, and nothing of how it did."""

        def write() -> None:
            save(make_folder(self.folder))
            content = {"identity": self.identity, "forms": sorted(forms), "local": list(local)}
            write_atomically(self.folder / DONE, json.dumps(content, indent=1) + "\n")
            (self.folder / PROGRESS).unlink(missing_ok=True)

        self.place.last = time.monotonic()
        with self.signals.held():
            self.place.write(write)

    def _check(self, found: Identity, path: Path) -> None:
        wanted = self.identity
        for name in wanted:
            if found.get(name) != wanted[name]:
                raise FileError(
                    f"{path} is a checkpoint of another training: {name} is not the same; remove "
                    "the folder or choose another"
                )


def as_bytes(fits: list[Fit], identity: Identity, forms: set[str]) -> bytes:
    """One safetensors file. Its digest is that of the file with zeros in the digest's place."""
    tensors: dict[str, Tensor] = {}
    described = []
    for number, fit in enumerate(fits):
        for name, tensor in fit.tensors.items():
            tensors[f"{number}.{name}"] = tensor.detach().cpu().clone().contiguous()
        about = {"purpose": fit.purpose, "step": fit.step, "finished": fit.finished}
        described.append({**about, "compiles": fit.compiles, "local": list(fit.local)})
    about = {"schema": SCHEMA, "identity": identity, "fits": described, "forms": sorted(forms)}
    content = save_tensors(tensors, {"about": json.dumps(about), "sha256": NO_DIGEST})
    digest = hashlib.sha256(content).hexdigest()
    return content.replace(NO_DIGEST.encode(), digest.encode(), 1)


def from_bytes(content: bytes) -> tuple[dict[str, Any], list[Fit]]:
    """The same back, or a ValueError, KeyError or TypeError."""
    length = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + length])["__metadata__"]
    about, digest = json.loads(metadata["about"]), metadata["sha256"]
    if (
        hashlib.sha256(content.replace(digest.encode(), NO_DIGEST.encode(), 1)).hexdigest()
        != digest
    ):
        raise ValueError("the checksum does not match")
    if about["schema"] != SCHEMA:
        raise ValueError("another schema")
    tensors = load_tensors(content)
    fits = []
    for number, one in enumerate(about["fits"]):
        prefix = f"{number}."
        own = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
        how_far = one["purpose"], one["step"], one["finished"], one["compiles"]
        fits.append(Fit(*how_far, tuple(one["local"]), own))
    return about, fits


def digest_of(*values: Any) -> str:
    """A digest of all tensors in some values; examples count as what they are, wherever they are
    stored."""
    found = hashlib.sha256()
    for value in values:
        for name, tensor in _named(value):
            found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            plain = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
            found.update(plain.numpy().data)
    return found.hexdigest()


def _named(value: Any) -> Iterator[tuple[str, Tensor]]:
    if not isinstance(value, Examples):
        if isinstance(value, Tensor):
            yield "", value
        for name, part in tree.parts(value):
            yield from ((f"{name}.{inner}", tensor) for inner, tensor in _named(part))
        return
    about = (value.head, value.outputs, value.view.scale, value.view.shift)
    yield f"labels {about}", value.labels
    for index in torch.arange(len(value)).split(rows_at_once(value.store)):
        yield "rows", value.stored(index)
