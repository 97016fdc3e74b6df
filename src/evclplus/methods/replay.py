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

from typing import ClassVar

from pydantic import Field

from evclplus.core.batches import Source
from evclplus.methods.base import Lesson, Method, Start, Trained
from evclplus.methods.reservoir import Reservoir, beside, reservoir
from evclplus.methods.space import TRAINING, OneOf, Space


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
