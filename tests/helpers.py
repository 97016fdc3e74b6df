"""Small learning problems that tests share."""

from collections.abc import Sequence

import torch
from torch import nn

import evclplus as ec
from evclplus.core.batches import Batch, minibatches
from evclplus.core.gaussian import MeanField
from evclplus.methods.base import Memory


def blobs(tasks: int = 2, count: int = 60, seed: int = 0, scenario: str = "task") -> ec.Stream:
    """Tasks of two classes: clouds of points on opposite sides of a line that turns."""
    generator = torch.Generator().manual_seed(seed)
    pairs = []
    for task in range(tasks):
        angle = torch.tensor(task * torch.pi / (2 * tasks))
        direction = torch.stack([angle.cos(), angle.sin(), angle.cos(), -angle.sin()])
        y = torch.arange(count) % 2
        x = (2.0 * y[:, None] - 1) * direction + 0.3 * torch.randn(count, 4, generator=generator)
        pairs.append((x, y + 2 * task if scenario == "class" else y))
    return ec.tasks(pairs, scenario=scenario)  # type: ignore[arg-type]


def small_network(heads: Sequence[int], seed: int = 0) -> ec.networks.ReadyNetwork:
    return ec.networks.mlp(4, [8], heads=heads, seed=seed)


def learned_first_task(method: ec.Method, **training: object) -> tuple[ec.Learner, ec.Stream]:
    """A learner that has learned the first of two tasks."""
    stream = blobs()
    settings = {"epochs": 15, "batch_size": 20, "learning_rate": 1e-2, **training}
    learner = ec.Learner(small_network(stream.heads), method, **settings)  # type: ignore[arg-type]
    return learner.learn(stream[0]), stream


def first_batch(learner: ec.Learner, task: ec.Task, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return next(minibatches(learner.network, [task.train], 20, generator))


def moved(q: MeanField, by: float = 0.1, seed: int = 0) -> MeanField:
    """q with every mean and log-std pushed a little, ready for gradients."""
    generator = torch.Generator().manual_seed(seed)
    noise = [by * torch.randn(v.shape, generator=generator) for v in (q.mean, q.variance)]
    variance = q.variance * (2 * noise[1]).exp()
    return MeanField((q.mean + noise[0]).requires_grad_(), variance.requires_grad_(), q.layout)


def gradients(
    method: ec.Method, q: MeanField, memory: Memory, batch: Batch
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient of the total loss with respect to means and variances."""
    total = method.loss(q, memory, batch).total
    found = torch.autograd.grad(total, [q.mean, q.variance], allow_unused=True)
    first, second = (torch.zeros(0) if g is None else g for g in found)
    return first, second


class Convolutional(nn.Module):
    """A user's own module, with normalisation, dropout and a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(1, 3, 2)
        self.norm = nn.BatchNorm1d(3)
        self.dropout = nn.Dropout(0.2)
        self.output = nn.Linear(9, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.dropout(self.norm(self.convolution(x.unsqueeze(1))).relu())
        out: torch.Tensor = self.output(h.flatten(1))
        return out


class CalledTwice(nn.Module):
    """One layer used twice in a pass, then three outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.output = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.output(self.layer(self.layer(x).tanh()).tanh())
        return out
