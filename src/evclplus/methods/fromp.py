"""FROMP: functional regularisation of the memorable past (Pan et al., NeurIPS 2020), point weights.

    minimise  -log p(y|x, theta)
              + (tau / 2) sum_s sum_c (m_sc - m_sc_prev)^T K_sc^-1 (m_sc - m_sc_prev)

    m_sc    the probability of class c at the stored points of earlier task s, softmax(z)_c
    K_sc    J S J^T + epsilon I, of the network linearised at theta_prev; J = d m_sc / d theta
    S       1 / (prior precision + sum over all tasks' data of their Fisher), a diagonal

An answer is held as firmly as it was sure, and answers of which the network moves one with the
other are held together: that is what K knows and a squared distance (K = I) does not. The points
of a task are those of each class that are the nearest to its border: sum_c p_c (1 - p_c) is
largest there.

It keeps the points and the sum of Fishers; m_prev and K are computed when a task comes, for all
earlier tasks at the last weights. Every point is in every step.

The paper's code also clips the gradient, by 0.1 or 0.01: clip_norm of the training, which is off
unless it is asked for. In a head that grows, which the paper does not have, stored points compete
with the new classes too: their probability before was zero, and their K is that of all outputs.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from evclplus.core.batches import Batch, Source
from evclplus.core.engine import Terms
from evclplus.core.examples import Examples
from evclplus.core.fisher import diagonal_fisher, example_gradients
from evclplus.core.gaussian import MeanField
from evclplus.core.network import BayesianNetwork, Weights
from evclplus.core.tree import per_weight
from evclplus.methods.base import Lesson, Method, Start, Trained
from evclplus.methods.function_space import answers_of
from evclplus.methods.needs import needs_classes
from evclplus.methods.reservoir import beside
from evclplus.methods.space import TRAINING, Log, OneOf, Space

EPSILON = 1e-6
"""Added to K's diagonal: a point that nothing moves has no variance."""


@dataclass(frozen=True)
class Memorable:
    """The stored points, task by task, and the Fisher of every weight, summed over all data."""

    fisher: Tensor = per_weight()
    points: tuple[Examples, ...] = ()


class FROMP(Method):
    """Point weights whose answers at a few memorable points are held as a Gaussian process."""

    name: ClassVar[str] = "fromp"
    colour: ClassVar[str] = "#A0522D"
    marker: ClassVar[str] = "p"
    memory_type: ClassVar[type] = Memorable
    space: ClassVar[Space] = TRAINING | {
        "tau": Log(0.01, 100.0),
        "prior_precision": Log(1e-5, 1.0),
        "points": OneOf((40, 100, 200)),
    }

    tau: float = Field(10.0, ge=0, description="tau, the strength of holding stored answers")
    points: int = Field(40, ge=1, description="points stored of each task")
    prior_precision: float = Field(1e-3, gt=0, description="that of every weight before any data")
    fisher_examples: int = Field(5000, ge=1, description="examples used at most")

    def first_memory(self, q: MeanField) -> Memorable:
        return Memorable(torch.zeros_like(q.mean))

    def likelihood(
        self, weights: Weights, memory: Memorable, batch: Batch, network: BayesianNetwork
    ) -> Terms:
        if batch.answers is None:
            return super().likelihood(weights, memory, batch, network)
        now = network(weights, batch.inputs, batch.head)[:, : batch.outputs].softmax(1)
        before, factor = batch.answers[:, :, 0], batch.answers[:, :, 1:]
        return {"function": 0.5 * self.tau * distance(now, before, factor)}

    def begin(self, lesson: Lesson) -> Start:
        needs_classes(self.name, lesson)
        start = super().begin(lesson)
        variance = 1 / (lesson.memory.fisher + self.prior_precision)
        held = (_held(one, lesson, variance) for one in beside(lesson.memory.points, lesson.task))
        own = Source((lesson.task,), weight=1.0)
        past = (Source((one,), weight=1.0, whole=True) for one in held)
        return replace(start, sources=(own, *past))

    def end(self, lesson: Lesson, start: Start, trained: Trained) -> Memorable:
        memory, task = start.memory, start.task
        answers = answers_of(lesson.network, trained.q, task, task.head)[:, : task.outputs]
        chosen = task.take(memorable(answers.softmax(1), task.labels, self.points))
        fisher = diagonal_fisher(
            *(lesson.network, trained.q, task, lesson.generator("fisher")),
            maximum=self.fisher_examples,
        )
        return Memorable(
            memory.fisher + len(task) * fisher, (*memory.points, chosen.materialised())
        )


def distance(now: Tensor, before: Tensor, factor: Tensor) -> Tensor:
    """sum_c d_c^T K_c^-1 d_c with d = m - m_prev, (points, classes); the factor A has K^-1 = A A^T
    for every class, with a row for each point."""
    return torch.einsum("nc,ncm->cm", now - before, factor).square().sum()


def memorable(probabilities: Tensor, labels: Tensor, count: int) -> Tensor:
    """Positions of `count` examples in all, as many of each class: those with the largest
    sum_c p_c (1 - p_c)."""
    spread = (probabilities * (1 - probabilities)).sum(1)
    classes = labels.unique()
    order = spread.argsort(descending=True, stable=True)
    each = max(1, count // len(classes))
    parts = [order[labels[order] == label][:each] for label in classes]
    return torch.cat(parts)


def _held(one: Examples, lesson: Lesson, variance: Tensor) -> Examples:
    """The points with what was answered, and the factors of K^-1, (points, classes, 1 + points)."""
    network, q = lesson.network, lesson.q
    logits = answers_of(network, q, one, one.head)[:, : one.outputs]
    # Classes that came with this task had no probability when the points were last learned.
    seen = logits[:, : lesson.seen[one.head]].softmax(1)
    before = torch.zeros_like(logits)
    before[:, : seen.shape[1]] = seen
    factor = precision_factor(kernel(network, q, one, logits.softmax(1), variance))
    held = torch.cat([before[:, :, None], factor.transpose(0, 1).to(before)], 2)
    return replace(one, answers=held)


def kernel(
    network: BayesianNetwork, q: MeanField, points: Examples, p: Tensor, variance: Tensor
) -> Tensor:
    """J S J^T for every class, (classes, points, points). The derivative of p_c in the logits is
    p_c (e_c - p)."""
    x, names = points.inputs().to(q.mean.device), network.names_for(points.head)
    means, spread = network.layout.named(q.mean), network.layout.named(variance)
    found = []
    for c, one in enumerate(torch.eye(p.shape[1])):
        direction = (p[:, c, None] * (one - p)).to(q.mean)
        rows = example_gradients(network, means, names, x, direction, points.head)
        # Twice as many digits: a matrix with epsilon as its least eigenvalue has to stay one.
        each = [
            (g.flatten(1).double() * spread[name].flatten()) @ g.flatten(1).double().T
            for name, g in rows.items()
        ]
        found.append(torch.stack(each).sum(0))
    return torch.stack(found)


def precision_factor(kernels: Tensor) -> Tensor:
    """A with (K + epsilon I)^-1 = A A^T, of each of the matrices."""
    eye = torch.eye(kernels.shape[-1], dtype=kernels.dtype, device=kernels.device)
    lower = torch.linalg.cholesky(kernels + EPSILON * eye)
    inverse: Tensor = torch.linalg.solve_triangular(lower, eye, upper=False)
    return inverse.transpose(-2, -1)
