"""Random orders that are the same on every machine and with every version of numpy.

PCG64's raw output and SeedSequence are promised never to change; `Generator.permutation` and
`torch.randperm` are not. So an order is the sort of raw 64-bit numbers.
"""

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from evclplus.settings import whole


class Purpose(IntEnum):
    """What a random order is for: one seed never gives two purposes the same order."""

    TEST = 1
    VALIDATION = 2
    SUBSET = 3
    PIXELS = 4
    CLASSES = 5
    ANGLES = 6


def random_order(size: int, purpose: Purpose, seed: int, index: int = 0) -> NDArray[np.int64]:
    """The numbers 0..size-1 in the order that belongs to this purpose, seed and index."""
    return np.argsort(_raw(size, purpose, seed, index), kind="stable").astype(np.int64)


def random_fractions(size: int, purpose: Purpose, seed: int, index: int = 0) -> NDArray[np.float64]:
    """Numbers from 0 to below 1, all equally likely."""
    return (_raw(size, purpose, seed, index) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _raw(size: int, purpose: Purpose, seed: int, index: int) -> NDArray[np.uint64]:
    seed = whole("seed", seed, 0)
    sequence = np.random.SeedSequence(entropy=seed, spawn_key=(int(purpose), index))
    return np.asarray(np.random.PCG64(sequence).random_raw(size), dtype=np.uint64)
