"""OGD: orthogonal gradient descent (Farajtabar et al., AISTATS 2020), with point weights.

    minimise  -log p(y|x, theta), with every step projected:

    d <- d - B^T B d

The rows of B are an orthonormal basis of the gradients d f_y(x) / d theta of what the network says
of the right class, at a few stored examples of every earlier task and the weights that it ended
with. To first order a step then changes none of these answers. Outputs that are no classes each
have a row.

It keeps B and no data: weights x stored examples x tasks numbers, more than any other method here.
Before a task is learned it says what the basis will take, and refuses beyond `limit_mb`.

Departures: the paper projects the gradient; we project the step, after the optimiser, which with
plain SGD is the same and with Adam stays exact. Steps are projected in all weights, so with a head
per task an old head may move along to keep its answers; public code projects the body alone.
"""

import logging
from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from evclplus.core.batches import Source
from evclplus.core.engine import Here, Step
from evclplus.core.examples import Examples
from evclplus.core.fisher import example_gradients
from evclplus.core.gaussian import MeanField
from evclplus.core.layer_gradients import at_most
from evclplus.core.network import BayesianNetwork
from evclplus.core.tree import per_weight
from evclplus.errors import SettingsError
from evclplus.methods.base import Lesson, Method, Start, Trained
from evclplus.methods.space import PLAIN_STEPS, OneOf, Space
from evclplus.settings import Optimiser

logger = logging.getLogger("evclplus")

ROUNDING = 1e-6
"""Directions that have a smaller part of all gradients are there by rounding."""


@dataclass(frozen=True)
class Directions:
    """B: a row for every direction that steps leave alone, all of them orthonormal."""

    basis: Tensor = per_weight()


class OrthogonalGradientDescent(Method):
    """Point weights whose steps leave the answers to stored examples alone, to first order."""

    name: ClassVar[str] = "ogd"
    colour: ClassVar[str] = "#C71585"
    marker: ClassVar[str] = "+"
    memory_type: ClassVar[type] = Directions
    space: ClassVar[Space] = PLAIN_STEPS | {"directions": OneOf((50, 100, 200))}

    directions: int = Field(100, ge=1, description="stored examples of each task")
    limit_mb: float = Field(1000.0, gt=0, description="the most that the basis may take, in MB")

    @property
    def optimisers(self) -> tuple[Optimiser, ...]:
        # Plain steps as in the paper; a projected step of Adam's is exact to first order as well.
        return ("sgd", "adam")

    def first_memory(self, q: MeanField) -> Directions:
        return Directions(q.mean.new_zeros(0, len(q.mean)))

    def move(self, step: Step, memory: Directions, here: Here) -> Step:
        if memory.basis.shape[0] == 0:
            return step
        return Step(orthogonal(step.mean, memory.basis), step.log_std)

    def begin(self, lesson: Lesson) -> Start:
        basis, task = lesson.memory.basis, lesson.task
        new = min(self.directions, len(task)) * (1 if _is_class(task) else task.outputs)
        self._announce(basis, new)
        return Start(lesson.q, lesson.memory, task, (Source((task,)),))

    def _announce(self, basis: Tensor, new: int) -> None:
        """Say what the basis will take, or that it is too much."""
        rows, weights = len(basis) + new, basis.shape[1]
        takes = rows * weights * basis.element_size() / 1e6
        if takes > self.limit_mb:
            raise SettingsError(
                f"ogd would keep {rows:,} directions of {weights:,} weights, {takes:,.1f} MB, more "
                f"than limit_mb = {self.limit_mb:g}; raise limit_mb, lower directions, or take gpm "
                "or kfac, which do not grow"
            )
        logger.info("ogd: %s directions of %s weights take %.1f MB", f"{rows:,}", weights, takes)

    def end(self, lesson: Lesson, start: Start, trained: Trained) -> Directions:
        examples = at_most(start.task, self.directions, lesson.generator("directions"))
        new = answer_gradients(lesson.network, trained.q, examples)
        return Directions(extended(start.memory.basis, new))


def orthogonal(vectors: Tensor, basis: Tensor) -> Tensor:
    """What is left of each vector outside of the span of orthonormal rows."""
    return vectors - (vectors @ basis.T) @ basis


def extended(basis: Tensor, vectors: Tensor) -> Tensor:
    """An orthonormal basis of the old span and these vectors. Singular vectors, and not Gram's and
    Schmidt's, which go astray after a vector that is a sum of others."""
    # Twice: rounding leaves a part of what is taken away, which counts where little else is left.
    new = orthogonal(orthogonal(vectors, basis), basis)
    _, lengths, rows = torch.linalg.svd(new, full_matrices=False)
    return torch.cat([basis, rows[lengths > ROUNDING * vectors.norm()]])


def answer_gradients(network: BayesianNetwork, q: MeanField, examples: Examples) -> Tensor:
    """d f_y(x) / d theta, a row for each example; without classes one for each of its outputs."""
    x, outputs = examples.inputs().to(q.mean.device), examples.outputs
    if _is_class(examples):
        asked = [F.one_hot(examples.labels.to(x.device), outputs)]
    else:
        asked = list(torch.eye(outputs, device=x.device)[:, None].expand(-1, len(x), -1))
    names, means = network.names_for(examples.head), network.layout.named(q.mean)
    rows = []
    for direction in asked:
        found = example_gradients(network, means, names, x, direction.to(q.mean), examples.head)
        result = q.mean.new_zeros(len(x), len(q.mean))
        for name, part in network.layout.named(result).items():
            if name in found:
                part.copy_(found[name])
        rows.append(result)
    return torch.cat(rows)


def _is_class(examples: Examples) -> bool:
    return examples.labels.dtype == torch.int64 and examples.labels.ndim == 1
