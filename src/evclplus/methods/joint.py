"""Joint training: all data so far at once, from the first weights. The upper bound.

    minimise  -log p(y|x, theta) over the union of all tasks seen

It keeps every example, which continual learning must not; that is what makes it a bound.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from evclplus.core.examples import Examples
from evclplus.core.gaussian import MeanField
from evclplus.methods.base import Lesson, Memory, Method


class Joint(Method):
    """Training on all tasks seen so far, from scratch: the upper bound."""

    name: ClassVar[str] = "joint"

    def gather(
        self, memory: Memory, task: Examples, generator: torch.Generator
    ) -> tuple[Sequence[Examples], Memory]:
        stored = (*memory.stored, task)
        return stored, replace(memory, stored=stored)

    def prepare(self, q: MeanField, memory: Memory, lesson: Lesson) -> tuple[MeanField, Memory]:
        return self.initial(lesson.network), memory

    def regulariser(self, q: MeanField, memory: Memory, examples: Tensor) -> dict[str, Tensor]:
        return {}
