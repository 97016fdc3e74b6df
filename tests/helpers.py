"""Small learning problems that tests share."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

import evclplus as ec
from evclplus.core.batches import Batch, Source, steps_of_epoch
from evclplus.core.engine import loss
from evclplus.core.gaussian import MeanField
from evclplus.core.noise import Noise
from evclplus.methods.base import Lesson, Start


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


def small_network(heads: Sequence[int] = (), seed: int = 0) -> ec.networks.ReadyNetwork:
    return ec.networks.mlp(4, [8], heads=heads, seed=seed)


def learned_first_task(method: ec.Method, **training: Any) -> tuple[ec.Learner, ec.Stream]:
    """A learner that has learned the first of two tasks."""
    stream = blobs()
    settings = {"epochs": 15, "batch_size": 20, "learning_rate": 1e-2, **training}
    learner = ec.Learner(small_network(stream.heads), method, **settings)
    return learner.learn(stream[0]), stream


def begun(learner: ec.Learner, task: ec.Task) -> tuple[Lesson, Start]:
    """A task as the learner's method sees it, and what it would train."""
    network, q, memory = learner._with_head(task.train)
    trainer = learner._trainer("test")
    lesson = learner._lesson(network.copy(), q, memory, task, trainer)
    return lesson, learner.method.begin(lesson)


def first_batch(task: ec.Task, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    (batch,) = next(steps_of_epoch((Source((task.train,)),), 20, generator))
    return batch


def moved(q: MeanField, by: float = 0.1, seed: int = 0) -> MeanField:
    """q with every mean and log-std pushed a little, ready for gradients."""
    generator = torch.Generator().manual_seed(seed)
    noise = [by * torch.randn(v.shape, generator=generator) for v in (q.mean, q.variance)]
    variance = q.variance * (2 * noise[1]).exp()
    return MeanField((q.mean + noise[0]).requires_grad_(), variance.requires_grad_(), q.layout)


def gradients(
    learner: ec.Learner, method: ec.Method, q: MeanField, batch: Batch
) -> tuple[Tensor, Tensor]:
    """The gradient of a method's loss in means and variances, with the learner's memory."""
    noise = None if method.is_point else Noise(torch.arange(4, dtype=torch.int32))
    terms = loss(method, q, learner.memory, batch, learner.network, torch.tensor(40.0), noise)
    found = torch.autograd.grad(
        torch.stack(list(terms.values())).sum(),
        (q.mean, q.variance),
        allow_unused=True,
        materialize_grads=True,
    )
    return found[0], found[1]


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
