"""Finding equal rows of a store, with whole-array operations."""

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

CHUNK = 512
"""Rows hashed together: few enough to stay in the processor's cache."""


def first_equal(store: Tensor, rows: Tensor) -> NDArray[np.int64]:
    """For each of `rows`, the position of the first one with the same content."""
    numbers = _first_occurrence(fingerprints(store, rows))
    copies = np.flatnonzero(numbers != np.arange(len(rows)))
    content, index = store.numpy(), rows.numpy()
    if not np.array_equal(_bytes(content[index[copies]]), _bytes(content[index[numbers[copies]]])):
        # Two different rows share a fingerprint: slower, but sure.
        every = _bytes(content[index])
        numbers = _first_occurrence(every.view(f"V{every.shape[1]}").ravel())
    return numbers


def fingerprints(store: Tensor, rows: Tensor) -> NDArray[np.uint64]:
    """A 64-bit hash of every row's bytes; equal rows of two stores have equal ones."""
    content, index = store.numpy(), rows.numpy()
    words = _mixed(content[:1]).shape[1]
    keys = np.random.default_rng(0).integers(2**64, size=words, dtype=np.uint64)
    hashes = np.empty(len(index), dtype=np.uint64)
    for start in range(0, len(index), CHUNK):
        part = slice(start, start + CHUNK)
        hashes[part] = _mixed(content[index[part]]) @ keys
    return hashes


def _mixed(taken: NDArray[np.generic]) -> NDArray[np.uint64]:
    """Rows as 64-bit words, each hashed, so that a sum of products tells high bits apart too."""
    content = _bytes(taken)
    padded = np.pad(content, ((0, 0), (0, -content.shape[1] % 8)))
    words: NDArray[np.uint64] = padded.view(np.uint64)
    # Multiplying moves differences up, shifting moves them down.
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(32)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(29)
    return words


def _bytes(taken: NDArray[np.generic]) -> NDArray[np.uint8]:
    return taken.reshape(len(taken), prod(taken.shape[1:])).view(np.uint8)


def _first_occurrence(values: NDArray[Any]) -> NDArray[np.int64]:
    """For each value, the position of the first one equal to it."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    found: NDArray[np.int64] = first[inverse]
    return found
