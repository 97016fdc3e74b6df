"""NCL: natural continual learning (Kao et al., NeurIPS 2021), with point weights.

    theta <- theta - r tau S (grad L + (1 / N) S^-1 (theta - theta_prev))
    S^-1 = tau I + lambda sum over tasks of A (x) G

L is the mean loss of the task, S the covariance of the last posterior. The loss is that of KFAC
Laplace, and so is its minimum; but every step is made in the metric of the prior, so that on the
way there, too, weights stay where earlier tasks are known. On the first task S is I / tau and a
step is one of plain SGD. It keeps what KFAC Laplace keeps.

The metric needs plain steps, with or without momentum (the paper has 0.9): Adam would undo it.
Departures: the inverse of tau I + lambda A (x) G is exact, by eigenvectors of A and G, where the
paper's code adds a part of tau to both factors; A (x) G are added up by the nearest product.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from evclplus.core.engine import Here, Step
from evclplus.core.kronecker import Block
from evclplus.core.matrices import matrix_at, put_at
from evclplus.methods.base import Lesson, Start, Trained
from evclplus.methods.laplace import Curvature, Laplace
from evclplus.methods.space import PLAIN_STEPS, Space
from evclplus.settings import Optimiser


@dataclass(frozen=True)
class Metric:
    """tau S of one layer: eigenvectors of A and G, and tau / (tau + lambda a g) for each pair of
    their eigenvalues."""

    a: Tensor
    g: Tensor
    scale: Tensor
    places: tuple[int, ...]


@dataclass(frozen=True)
class Natural(Curvature):
    """With the metric of every layer, while a task is learned."""

    metrics: tuple[Metric, ...] = ()


class NaturalContinualLearning(Laplace):
    """Point weights whose steps are made in the metric of the last posterior."""

    name: ClassVar[str] = "ncl"
    colour: ClassVar[str] = "#4B0082"
    marker: ClassVar[str] = "."
    memory_type: ClassVar[type] = Natural
    space: ClassVar[Space] = Laplace.space | PLAIN_STEPS

    tasks: Literal["nearest", "scaled"] = Field(
        "nearest", description="how the factors of all tasks are added up"
    )

    @property
    def optimisers(self) -> tuple[Optimiser, ...]:
        return ("sgd",)

    def first_memory(self, q: Any) -> Natural:
        return Natural(q, (), q.mean.new_zeros(q.mean.shape))

    def move(self, step: Step, memory: Natural, here: Here) -> Step:
        tau = self.prior_precision
        mean = step.mean * (tau / (tau + self.lam * memory.diagonal))
        for metric in memory.metrics:
            change = matrix_at(mean, metric.places, len(metric.g), len(metric.a))
            mean = put_at(mean, metric.places, natural(change, metric))
        return Step(mean, step.log_std)

    def begin(self, lesson: Lesson) -> Start:
        start = super().begin(lesson)
        metrics = tuple(
            metric_of(block, self.prior_precision, self.lam) for block in start.memory.blocks
        )
        return replace(start, memory=replace(start.memory, metrics=metrics))

    def end(self, lesson: Lesson, start: Start, trained: Trained) -> Natural:
        kept = super().end(lesson, start, trained)
        return Natural(kept.prior, kept.blocks, kept.diagonal)


def metric_of(block: Block, tau: float, lam: float) -> Metric:
    """tau (tau I + lambda A (x) G)^-1, exactly."""
    a_values, a = torch.linalg.eigh(block.inputs.double())
    g_values, g = torch.linalg.eigh(block.outputs.double())
    curvature = lam * g_values.clamp_min(0).outer(a_values.clamp_min(0))
    like = block.inputs
    return Metric(a.to(like), g.to(like), (tau / (tau + curvature)).to(like), block.places)


def natural(change: Tensor, metric: Metric) -> Tensor:
    """A layer's change in the metric: V_G (scale * (V_G^T dW V_A)) V_A^T."""
    a, g = metric.a, metric.g
    return g @ (metric.scale * (g.T @ change @ a)) @ a.T
