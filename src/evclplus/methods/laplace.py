"""What KFAC Laplace and NCL share: a posterior with Kronecker factors, kept from task to task.

    posterior precision = tau I + lambda sum over tasks of A (x) G, layer by layer

They minimise the same loss and differ in the way there.
"""

from dataclasses import dataclass, replace
from itertools import compress
from operator import not_
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from evclplus.core.batches import Source
from evclplus.core.engine import Terms
from evclplus.core.fisher import diagonal_fisher
from evclplus.core.gaussian import MeanField
from evclplus.core.kronecker import (
    Blocks,
    kronecker_fisher,
    nearest,
    placed,
    quadratic,
    scaled,
)
from evclplus.core.likelihoods import Labels
from evclplus.core.matrices import names_of
from evclplus.core.tree import per_weight
from evclplus.methods.base import Lesson, Method, Start, Trained
from evclplus.methods.space import TRAINING, Log, OneOf, Space


@dataclass(frozen=True)
class Curvature:
    """The last weights, where the prior of the next task has its centre, and its precision beside
    tau: blocks of layers, and a diagonal that is zero where a block stands. While a task is learned
    the blocks of heads that it does not use rest: their weights do not move."""

    prior: MeanField
    blocks: Blocks
    diagonal: Tensor = per_weight()
    resting: Blocks = ()


class Laplace(Method):
    """Point weights whose last posterior, with Kronecker factors, is the prior of the next task."""

    memory_type: ClassVar[type] = Curvature
    space: ClassVar[Space] = TRAINING | {
        "lam": Log(1e-2, 1e3),
        "prior_precision": Log(1e-3, 1e3),
        "tasks": OneOf(("nearest", "scaled")),
    }

    lam: float = Field(1.0, ge=0, description="lambda, the weight of what was learned; 1 is Bayes")
    prior_precision: float = Field(1.0, gt=0, description="tau of the first prior, N(0, 1 / tau)")
    tasks: Literal["nearest", "scaled", "separate"] = Field(
        "nearest", description="how the factors of all tasks are added up"
    )
    fisher_labels: Labels = Field(
        "exact", description="labels in the Fisher: the model's expectation, a draw, or the data's"
    )
    fisher_examples: int = Field(5000, ge=1, description="examples used at most")

    def first_memory(self, q: MeanField) -> Curvature:
        return Curvature(q, (), q.mean.new_zeros(q.mean.shape))

    def regulariser(self, q: MeanField, memory: Curvature, examples: Tensor) -> Terms:
        moved = q.mean - memory.prior.mean
        held = (memory.diagonal * moved.square()).sum()
        if memory.blocks:
            held = held + quadratic(memory.blocks, moved)
        return {
            "penalty": self.lam / examples * 0.5 * held,
            "prior": self.prior_precision / examples * 0.5 * moved.square().sum(),
        }

    def begin(self, lesson: Lesson) -> Start:
        """Weights that come into use have the first prior, all others their last values."""
        network, memory = lesson.network, lesson.memory
        used = set(network.names_for(lesson.task.head))
        moves = [
            bool(used.intersection(names_of(network.layout, one.path))) for one in memory.blocks
        ]
        memory = replace(
            memory,
            prior=memory.prior.replaced(lesson.new(), 0.0, 1.0),
            blocks=placed(tuple(compress(memory.blocks, moves)), network.layout),
            resting=tuple(compress(memory.blocks, map(not_, moves))),
        )
        return Start(lesson.q, memory, lesson.task, (Source((lesson.task,)),))

    def end(self, lesson: Lesson, start: Start, trained: Trained) -> Curvature:
        blocks, diagonal = self.fisher(lesson, start, trained)
        every = (*start.memory.resting, *start.memory.blocks, *blocks)
        if self.tasks == "nearest":
            every = nearest(every)
        elif self.tasks == "scaled":
            every = scaled(every)
        return Curvature(trained.q, every, start.memory.diagonal + diagonal)

    def fisher(self, lesson: Lesson, start: Start, trained: Trained) -> tuple[Blocks, Tensor]:
        """Of the task that was just learned: blocks, and the diagonal of all other weights."""
        network, q, likelihood = lesson.network, trained.q, lesson.likelihood
        labels, maximum = self.fisher_labels, self.fisher_examples
        blocks = kronecker_fisher(
            *(network, q, start.task, lesson.generator("fisher")), labels, maximum, likelihood
        )
        covered = {name for block in blocks for name in names_of(network.layout, block.path)}
        diagonal = torch.zeros_like(q.mean)
        if not covered.issuperset(network.names_for(start.task.head)):
            diagonal = len(start.task) * diagonal_fisher(
                *(network, q, start.task, lesson.generator("fisher"), labels),
                maximum=maximum,
                likelihood=likelihood,
            )
            for name, part in network.layout.named(diagonal).items():
                if name in covered:
                    part.zero_()
        return blocks, diagonal
