"""What everything is compared with: the same network in plain PyTorch."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from evclplus import networks
from tools.bench.timing import Work

INPUTS = 784
OUTPUTS = 2
BATCH = 256
EXAMPLES = 12_000
"""As many as the second task of SplitMNIST has, give or take a hundred."""


def pictures(shape: tuple[int, ...] = (1, 28, 28), count: int = EXAMPLES) -> Tensor:
    """Random bytes, as datasets of pictures store them."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=generator)


def pixels(count: int = EXAMPLES) -> Tensor:
    return pictures(count=count).float() / 255


def labels(count: int = EXAMPLES) -> Tensor:
    return torch.randint(0, OUTPUTS, (count,), generator=torch.Generator().manual_seed(1))


def plain_mlp(hidden: Sequence[int]) -> nn.Sequential:
    body = networks.mlp(INPUTS, hidden).body
    return nn.Sequential(*body.children(), nn.Linear(hidden[-1], OUTPUTS))


def loader(x: Tensor, y: Tensor, batch_size: int = BATCH) -> "DataLoader[tuple[Tensor, ...]]":
    dataset = TensorDataset(x, y)
    return DataLoader(dataset, batch_size=batch_size, shuffle=True, generator=torch.Generator())


def plain_epoch(network: nn.Module, x: Tensor, batch_size: int = BATCH) -> Work:
    """What people do every day: a DataLoader, autograd and torch's Adam, eager."""
    batches = loader(x, labels(len(x)), batch_size)
    step = plain_step(network)

    def work() -> None:
        for inputs, targets in batches:
            step(inputs, targets)

    return work


def plain_step(network: nn.Module) -> Callable[[Tensor, Tensor], None]:
    optimiser = torch.optim.Adam(network.parameters())

    def step(x: Tensor, y: Tensor) -> None:
        optimiser.zero_grad()
        F.cross_entropy(network(x), y).backward()
        optimiser.step()

    return step
