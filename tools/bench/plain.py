"""What everything is compared with: the same network in plain PyTorch, and its matrix products."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from evclplus import networks
from tools.bench.timing import Work, repeated

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


def loader(x: Tensor, y: Tensor) -> "DataLoader[tuple[Tensor, ...]]":
    dataset = TensorDataset(x, y)
    return DataLoader(dataset, batch_size=BATCH, shuffle=True, generator=torch.Generator())


def plain_epoch(network: nn.Module, x: Tensor) -> Work:
    """What people do every day: a DataLoader, autograd and torch's Adam, eager."""
    batches = loader(x, labels(len(x)))
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


def matrix_products(hidden: Sequence[int], batch: int = BATCH) -> Work:
    """Every product of one step of ours and nothing else: two in each direction per layer, as
    one batched product. The data lies example by example, all else output by output."""
    widths = [INPUTS, *hidden, OUTPUTS]
    data = torch.randn(2, batch, INPUTS)
    inputs = [data.mT, *(torch.randn(2, width, batch) for width in widths[1:])]
    weights = [torch.randn(2, b, a) for a, b in pairwise(widths)]

    def step() -> None:
        for layer, weight in enumerate(weights):
            torch.bmm(weight, inputs[layer])
            torch.bmm(inputs[layer + 1], inputs[layer].mT)
            if layer:
                torch.bmm(weight.mT, inputs[layer + 1])

    return step


def matrix_products_of_an_epoch(hidden: Sequence[int]) -> Work:
    return repeated(matrix_products(hidden), EXAMPLES // BATCH + 1)
