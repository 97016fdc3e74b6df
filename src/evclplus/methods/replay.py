"""ER: experience replay from a reservoir (Chaudhry et al., 2019; Vitter, 1985), point weights.

    minimise  -log p(y|x, theta), mean over a batch of the task and one of stored examples together

It keeps M examples: each example of the stream, whatever its task, is among them with the same
probability.

The reservoir is filled when a task ends. Public code fills it step by step, so that a task's own
examples are drawn again while it is learned, at the cost of older ones: in the second of two
equal tasks, from none at its start to half of a draw at its end. Here all of a draw is old. What
is stored when a task ends has the same distribution, and with more than one epoch a step-by-step
reservoir would count every example several times.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from pydantic import Field

from evclplus.core.batches import Source
from evclplus.core.examples import Examples
from evclplus.methods.base import Lesson, Method, Start, Trained
from evclplus.methods.space import TRAINING, OneOf, Space


@dataclass(frozen=True)
class Reservoir:
    """The stored examples, task by task, and how many examples the stream has had."""

    stored: tuple[Examples, ...] = ()
    seen: int = 0


class ExperienceReplay(Method):
    """Point weights trained on the task and on a few stored examples of earlier ones."""

    name: ClassVar[str] = "er"
    colour: ClassVar[str] = "#AA4499"
    marker: ClassVar[str] = ">"
    memory_type: ClassVar[type] = Reservoir
    space: ClassVar[Space] = TRAINING | {"replay_batch": OneOf((32, 128, 256))}

    buffer_size: int = Field(200, ge=1, description="examples stored in all")
    replay_batch: int | None = Field(
        None, ge=1, description="stored examples in each step; none: as many as of the task"
    )

    def begin(self, lesson: Lesson) -> Start:
        stored = beside(lesson.memory.stored, lesson.task)
        sources: tuple[Source, ...] = (Source((lesson.task,)),)
        if stored:
            sources = (*sources, Source(stored, per_step=self.replay_batch))
        return Start(lesson.q, lesson.memory, lesson.task, sources)

    def end(self, lesson: Lesson, start: Start, trained: Trained) -> Reservoir:
        return reservoir(start.memory, lesson.task, self.buffer_size, lesson.generator("reservoir"))


def beside(stored: tuple[Examples, ...], task: Examples) -> tuple[Examples, ...]:
    """Stored examples as they are trained on beside a task: in a head that grows, they compete
    with the new classes too."""
    outputs = {task.head: task.outputs}
    for one in stored:
        outputs[one.head] = max(one.outputs, outputs.get(one.head, 0))
    return tuple(replace(one, outputs=outputs[one.head]) for one in stored)


def reservoir(
    memory: Reservoir, task: Examples, size: int, generator: torch.Generator
) -> Reservoir:
    """Vitter's algorithm R: the n-th example of the stream takes a random place of n, and is stored
    if that is one of the first `size`."""
    places = [(old, row) for old, one in enumerate(memory.stored) for row in range(len(one))]
    new = len(memory.stored)
    first = max(0, min(len(task), size - memory.seen))
    places += [(new, row) for row in range(first)]
    counts = memory.seen + 1 + torch.arange(first, len(task))
    drawn = (torch.rand(len(counts), generator=generator, dtype=torch.float64) * counts).long()
    for row, place in zip(range(first, len(task)), drawn.tolist(), strict=True):
        if place < size:
            places[place] = (new, row)
    stored = []
    for index, one in enumerate((*memory.stored, task)):
        rows = [row for owner, row in places if owner == index]
        if rows:
            stored.append(one.take(torch.tensor(rows)).materialised())
    return Reservoir(tuple(stored), memory.seen + len(task))
