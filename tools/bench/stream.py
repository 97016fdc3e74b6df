"""The five tasks of a whole run, for both sides of the comparison."""

import torch
from torch import Tensor

import evclplus as ec

SYNTHETIC = "synthetic"


def five_tasks(name: str, examples: int = 12_000) -> ec.Stream:
    """A benchmark, or random pictures as many as SplitMNIST has and a sixth of that to test."""
    if name != SYNTHETIC:
        return ec.benchmark(name)
    generator = torch.Generator().manual_seed(0)

    def pair(count: int) -> tuple[Tensor, Tensor]:
        x = torch.randint(0, 256, (count, 1, 28, 28), dtype=torch.uint8, generator=generator)
        return x, torch.arange(count) % 2

    pairs = [(pair(examples), pair(examples // 6)) for _ in range(5)]
    return ec.tasks([train for train, _ in pairs], test=[test for _, test in pairs])
