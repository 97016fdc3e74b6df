"""A-GEM: averaged gradient episodic memory (Chaudhry, Ranzato, Rohrbach and Elhoseiny, ICLR 2019),
with point weights.

    minimise  -log p(y|x, theta), by steps that do not raise the loss of stored examples:

    d <- d - (d.r / r.r) r   where d.r > 0,   r the gradient of a random batch of stored examples

The paper projects the gradient g, and d = -rate * g: the same. Projected after the optimiser, it
holds whatever that makes of g, so Adam may be taken; the paper has plain steps.

It keeps examples: M of the whole stream, each with the same probability, or, as the paper's code
does, so many of each class of each task.
"""

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from evclplus.core.batches import Source
from evclplus.core.engine import Here, Step
from evclplus.methods.base import Lesson, Method, Start, Trained
from evclplus.methods.reservoir import Reservoir, beside, reservoir
from evclplus.methods.space import PLAIN_STEPS, OneOf, Space
from evclplus.settings import Optimiser

SMALLEST = 1e-30
"""Added to a square that may be zero."""


class AGEM(Method):
    """Point weights that make no step against the gradient of stored examples."""

    name: ClassVar[str] = "a-gem"
    colour: ClassVar[str] = "#4B0092"
    marker: ClassVar[str] = "3"
    memory_type: ClassVar[type] = Reservoir
    space: ClassVar[Space] = PLAIN_STEPS | {"reference_batch": OneOf((32, 128, 256))}

    buffer_size: int = Field(200, ge=1, description="examples stored in all")
    per_class: int | None = Field(
        None, ge=1, description="store so many of each class of each task, without buffer_size"
    )
    reference_batch: int = Field(
        256, ge=1, description="stored examples whose gradient a step does not go against"
    )

    @property
    def optimisers(self) -> tuple[Optimiser, ...]:
        return ("sgd", "adam")

    def move(self, step: Step, memory: Reservoir, here: Here) -> Step:
        if here.reference is None:
            return step
        return Step(not_against(step.mean, here.reference.mean), step.log_std)

    def begin(self, lesson: Lesson) -> Start:
        sources: tuple[Source, ...] = (Source((lesson.task,)),)
        if lesson.memory.stored:
            stored = beside(lesson.memory.stored, lesson.task)
            sources = (*sources, Source(stored, per_step=self.reference_batch, apart=True))
        return Start(lesson.q, lesson.memory, lesson.task, sources)

    def end(self, lesson: Lesson, start: Start, trained: Trained) -> Reservoir:
        memory, task, draws = start.memory, lesson.task, lesson.generator("reservoir")
        if self.per_class is None:
            return reservoir(memory, task, self.buffer_size, draws)
        chosen = task.take(of_each_class(task.labels, self.per_class, draws)).materialised()
        return Reservoir((*memory.stored, chosen), memory.seen + len(task))


def not_against(step: Tensor, gradient: Tensor) -> Tensor:
    """The step without its part along a gradient, if it goes up there."""
    up = (step * gradient).sum().clamp_min(0)
    return step - up / (gradient.square().sum() + SMALLEST) * gradient


def of_each_class(labels: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Positions of `count` random examples of each class, or of all where there are fewer."""
    order = torch.randperm(len(labels), generator=generator)
    mixed = labels[order]
    parts = [order[mixed == label][:count] for label in mixed.unique()]
    return torch.cat(parts).sort().values
