"""Joint training: all data so far at once, from the first weights (multitask learning, Caruana,
1997). The upper bound.

    minimise  -log p(y|x, theta) over the union of all tasks seen

It keeps every example, which continual learning must not; that is what makes it a bound.
"""

from dataclasses import dataclass
from typing import ClassVar

from evclplus.core.batches import Source
from evclplus.core.examples import Examples
from evclplus.methods.base import Lesson, Method, Role, Start


@dataclass(frozen=True)
class AllExamples:
    """Every example of every task."""

    stored: tuple[Examples, ...] = ()


class Joint(Method):
    """Training on all tasks seen so far, from scratch: the upper bound."""

    name: ClassVar[str] = "joint"
    colour: ClassVar[str] = "#000000"
    marker: ClassVar[str] = "h"
    role: ClassVar[Role] = "upper bound"
    memory_type: ClassVar[type] = AllExamples

    def begin(self, lesson: Lesson) -> Start:
        stored = (*lesson.memory.stored, lesson.task.kept())
        q = self.initial(lesson.network)
        return Start(q, AllExamples(stored), lesson.task, (Source(stored),))
