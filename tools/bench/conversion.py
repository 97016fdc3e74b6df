"""What converting minibatches on the fly costs, as ratios measured in one run."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from evclplus import permuted_tasks
from tools.bench.plain import BATCH, plain_step


@dataclass(frozen=True)
class ConversionCost:
    """Seconds per step of a plain 784-100-100-10 network fed in three ways.

    `floats` copies rows of a ready float tensor, the least any training loop does. `plain`
    converts stored bytes, and `gathered` is a permuted task as the training loop reads it,
    reordered once.
    """

    floats: float
    plain: float
    gathered: float


def conversion_cost(rounds: int = 15, examples: int = 20_000, steps: int = 40) -> ConversionCost:
    """The least of `rounds` measurements of each way, in turn so that all see the same load."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (examples, 1, 28, 28), dtype=torch.uint8, generator=generator)
    y = torch.randint(0, 10, (examples,), generator=generator)
    plain, permuted = permuted_tasks(x, y, 2, test=(x, y), permute_first=False)
    ready = permuted.train.inputs()
    labels = permuted.train.labels
    order = torch.randperm(len(labels), generator=generator)[: BATCH * steps]
    step = plain_step(_network())

    def seconds(inputs: Callable[[Tensor], Tensor]) -> float:
        start = time.perf_counter()
        for index in order.split(BATCH):
            step(inputs(index), labels.index_select(0, index))
        return (time.perf_counter() - start) / steps

    ways: tuple[Callable[[Tensor], Tensor], ...] = (
        lambda index: ready.index_select(0, index),
        plain.train.inputs,
        permuted.train.gathered().inputs,
    )
    taken = [[seconds(way) for way in ways] for _ in range(rounds)]
    return ConversionCost(*(min(times) for times in zip(*taken, strict=True)))


def _network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(784, 100),
            nn.ReLU(),
            nn.Linear(100, 100),
            nn.ReLU(),
            nn.Linear(100, 10),
        )
