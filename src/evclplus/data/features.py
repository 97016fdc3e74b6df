"""Features of pretrained networks: computed once on a machine, kept in parts with checksums.

To compute them takes minutes, so it is done when it is asked for (`evclplus data prepare`) and not
in the middle of a run. A part is computed by one process while others wait; one that is stopped has
lost a part at most.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evclplus.data import efficientnet, minilm
from evclplus.data.cache import Array, keep_array, open_array
from evclplus.data.datasets import CIFAR10, EFFICIENTNET, MINILM, NEWSGROUPS, Published
from evclplus.data.loading import dataset
from evclplus.data.local import Folder
from evclplus.data.texts import texts
from evclplus.errors import FileError
from evclplus.files import cache_folder, make_folder
from evclplus.locks import in_turn

TOKENS = 64
"""Of a text that MiniLM reads: its subject and first sentences. The time goes with them."""
SIDE = 96
"""Pixels that a picture's side is drawn with for EfficientNet, three times as many as it has."""
PART = 500
"""Rows that are computed and kept together."""
AT_ONCE = 50
"""Pictures that are looked at together: what lies between layers stays in a processor's cache."""

Labelled = tuple[Tensor, Tensor]
Advance = Callable[[int], None]
"""Is told how many rows are done."""


@dataclass(frozen=True)
class Features:
    """Features of one split: where they are kept and how they are computed."""

    name: str
    count: int
    width: int
    key: str
    compute: Callable[[range], Tensor]

    @property
    def folder(self) -> Path:
        return cache_folder() / "features" / f"{self.name}-{self.key}"

    def prepare(self, advance: Advance) -> None:
        """Compute the parts that are not kept yet."""
        make_folder(self.folder)
        for rows in self._parts():
            advance(rows.start)
            if self._kept(rows) is None:
                with in_turn(self.folder):  # whoever was first has computed it meanwhile
                    if self._kept(rows) is None:
                        keep_array(self._path(rows), self._computed(rows))
        advance(self.count)

    def read(self, benchmark: str) -> Tensor:
        """All of them, float32 of shape (count, width)."""
        parts = []
        for rows in self._parts():
            part = self._kept(rows)
            if part is None:
                raise FileError(
                    f"the features {self.name} are not computed yet, or no longer whole;"
                    f" `evclplus data prepare {benchmark}` does it, once"
                )
            parts.append(part)
        return torch.from_numpy(np.concatenate(parts))

    def _parts(self) -> list[range]:
        starts = range(0, self.count, PART)
        return [range(start, min(start + PART, self.count)) for start in starts]

    def _path(self, rows: range) -> Path:
        return self.folder / f"{rows.start:06d}.npy"

    def _kept(self, rows: range) -> Array | None:
        return open_array(self._path(rows), (len(rows), self.width), np.float32)

    def _computed(self, rows: range) -> Array:
        found = self.compute(rows)
        assert found.shape == (len(rows), self.width), found.shape
        assert found.isfinite().all()
        return found.to(torch.float32).numpy()


Pair = tuple[tuple[Features, Tensor], tuple[Features, Tensor]]
"""Features and labels for training and for testing."""


def of_newsgroups(data_dir: Folder = None) -> Pair:
    """20 Newsgroups as vectors of MiniLM, 384 numbers each, from the first tokens of a text."""
    found = texts("newsgroups", data_dir=data_dir)
    made: list[tuple[Any, Any]] = []

    def of(split: str, words: list[str]) -> Features:
        def compute(rows: range) -> Tensor:
            if not made:
                made.append(minilm.minilm(data_dir))
            tokenizer, model = made[0]
            some = words[rows.start : rows.stop]
            return minilm.embedded(model, minilm.tokens(tokenizer, some, TOKENS))

        key = _key((MINILM, NEWSGROUPS), f"{split} {TOKENS} tokens")
        return Features(f"newsgroups-{split}", len(words), minilm.FEATURES, key, compute)

    train, test = found.train, found.test
    return (of("train", train[0]), train[1]), (of("test", test[0]), test[1])


def of_cifar10(data_dir: Folder = None) -> Pair:
    """CIFAR-10 in colour as features of EfficientNet-lite0, 1280 numbers each."""
    arrays = dataset("cifar10", data_dir=data_dir, input="rgb32")
    assert arrays.test is not None, "cifar10 has an official test split"
    made: list[efficientnet.EfficientNet] = []

    def of(split: str, pixels: Tensor) -> Features:
        def compute(rows: range) -> Tensor:
            if not made:
                made.append(efficientnet.efficientnet(data_dir))
            parts = pixels[rows.start : rows.stop].split(AT_ONCE)
            return torch.cat([made[0](part, SIDE) for part in parts])

        key = _key((EFFICIENTNET, CIFAR10), f"{split} {SIDE} pixels")
        return Features(f"cifar10-{split}", len(pixels), efficientnet.FEATURES, key, compute)

    train, test = arrays.train, arrays.test
    return (of("train", train[0]), train[1]), (of("test", test[0]), test[1])


def _key(made_of: Sequence[Published], form: str) -> str:
    """Names features by all that they were computed from."""
    content = "".join(file.sha256 for one in made_of for file in one.files) + form
    return hashlib.sha256(content.encode()).hexdigest()[:12]
