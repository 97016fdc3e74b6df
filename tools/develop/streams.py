"""The development set: sixteen streams as different as the data at hand allows.

Few and many examples (100 to 54,000 a task), 2 to 20 tasks, 2 to 26 classes, a head per task and
one head, related and unrelated tasks, pictures and a table, an MLP and a convnet.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from torch import nn

from evclplus.benchmarks.registry import benchmark
from evclplus.data.loading import dataset
from evclplus.networks import convnet, mlp
from evclplus.streams.sequence import tasks
from evclplus.streams.split import split_tasks
from evclplus.streams.task import Stream


@dataclass(frozen=True)
class Case:
    """A stream and the network that learns it, both made when they are asked for."""

    about: str
    stream: Callable[[], Stream]
    network: Callable[[Stream, int], nn.Module]


def _mlp(*hidden: int) -> Callable[[Stream, int], nn.Module]:
    return lambda stream, seed: mlp(stream.input_size, hidden, (), seed)


def _convnet(*channels: int) -> Callable[[Stream, int], nn.Module]:
    return lambda stream, seed: convnet(stream.input_shape, channels, (), seed)


def _benchmark(name: str, **settings: Any) -> Callable[[], Stream]:
    return lambda: benchmark(name, **settings)


def letter() -> tuple[np.ndarray, np.ndarray]:
    """Sixteen measures of 20,000 printed capital letters."""
    x, y = dataset("letter").train
    return np.asarray(x, dtype=np.float32) / 15, np.asarray(y)


def _letters(per_task: int) -> Callable[[], Stream]:
    return lambda: split_tasks(*letter(), classes_per_task=per_task, name=f"letter-{per_task}")


@cache
def _pictures() -> list[tuple[np.ndarray, np.ndarray]]:
    every = [dataset(name).train for name in ("mnist", "fashion-mnist", "notmnist")]
    return [(np.asarray(x), np.asarray(y)) for x, y in every]


def unrelated() -> Stream:
    """Digits, clothes, letters: 10 classes and 4,000 examples each."""
    order = np.random.default_rng(0)
    pairs = []
    for x, y in _pictures():
        rows = order.permutation(len(x))[:6000]
        pairs.append((x[rows], y[rows]))
    return tasks(pairs, name="unrelated", test_fraction=0.01, validation_fraction=1 / 3)


def alphabets() -> Stream:
    """24 classes a task, 20 examples a class: pictures of three datasets, each also turned by a
    quarter, a half and three quarters, which are other classes."""
    order = np.random.default_rng(0)
    classes = order.permutation(120)
    pairs = []
    for chosen in classes.reshape(5, 24):
        xs, ys = [], []
        for label in chosen:
            source, rest = divmod(int(label), 40)
            kind, turns = divmod(rest, 4)
            x, y = _pictures()[source]
            rows = order.permutation(np.flatnonzero(y == kind))[:42]
            xs.append(np.rot90(x[rows], turns, axes=(2, 3)).copy())
            ys.append(np.full(len(rows), label))
        pairs.append((np.concatenate(xs), np.concatenate(ys)))
    return tasks(pairs, name="alphabets", test_fraction=0.05, validation_fraction=0.5)


CASES: dict[str, Case] = {
    "digits": Case(
        "8x8 digits, 5 tasks of 2 classes, about 260 examples each; MLP 2x100",
        _benchmark("split-digits", validation_fraction=0.3),
        _mlp(100, 100),
    ),
    "mnist-100": Case(
        "SplitMNIST with 100 examples a task; MLP 2x256",
        _benchmark("split-mnist", examples_per_task=100),
        _mlp(256, 256),
    ),
    "alphabets": Case(alphabets.__doc__ or "", alphabets, _mlp(256, 256)),
    "letter-2": Case(
        "letter, 13 tasks of 2 classes, about 1,100 examples each; MLP 2x100",
        _letters(2),
        _mlp(100, 100),
    ),
    "letter-13": Case(
        "letter, 2 tasks of 13 classes, 7,200 examples each; MLP 2x100",
        _letters(13),
        _mlp(100, 100),
    ),
    "unrelated": Case(unrelated.__doc__ or "", unrelated, _mlp(256, 256)),
    "permuted-20": Case(
        "PermutedMNIST, 20 tasks of 2,000 examples, one head; MLP 2x100",
        _benchmark("permuted-mnist", tasks=20, examples_per_task=2000),
        _mlp(100, 100),
    ),
    "rotated": Case(
        "RotatedMNIST, 5 tasks of 5,000 examples, one head; MLP 2x100",
        _benchmark("rotated-mnist", examples_per_task=5000),
        _mlp(100, 100),
    ),
    "parity": Case(
        "SplitMNIST, first or second of two digits, 2,000 examples a task, one head; MLP 2x256",
        _benchmark("split-mnist", scenario="domain", examples_per_task=2000),
        _mlp(256, 256),
    ),
    "colour": Case(
        "SplitCIFAR-10 in colour, 2,000 examples a task; convnet 8, 16",
        _benchmark("split-cifar10", input="rgb32", examples_per_task=2000),
        _convnet(8, 16),
    ),
    "fashion-conv": Case(
        "SplitFashionMNIST, 1,000 examples a task; convnet 8, 16",
        _benchmark("split-fashion-mnist", examples_per_task=1000),
        _convnet(8, 16),
    ),
    "split-notmnist": Case("as published", _benchmark("split-notmnist"), _mlp(*[150] * 4)),
    "split-mnist": Case("as published", _benchmark("split-mnist"), _mlp(256, 256)),
    "split-fashion-mnist": Case(
        "as published", _benchmark("split-fashion-mnist"), _mlp(*[150] * 4)
    ),
    "split-cifar10": Case("as published", _benchmark("split-cifar10"), _mlp(*[150] * 4)),
    "permuted-mnist": Case("as published", _benchmark("permuted-mnist"), _mlp(100, 100)),
}
