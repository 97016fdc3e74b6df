"""What SI and MAS share: point weights, each with an importance O, and the penalty

    strength * sum_i O_i (theta_i - theta_i_prev)^2

They differ in what makes a weight important.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from evclplus.core.gaussian import MeanField
from evclplus.core.tree import per_weight
from evclplus.methods.base import Lesson, Start, Trained
from evclplus.methods.calibrated import Calibrated
from evclplus.methods.function_space import FunctionSpace, HeldHeads


@dataclass(frozen=True)
class Importance:
    """The last weights, how important each was to all tasks so far, and while a task is learned
    the heads that are held."""

    prior: MeanField
    omega: Tensor = per_weight()
    held: HeldHeads = field(default_factory=HeldHeads)


class ByImportance(Calibrated, FunctionSpace):
    """A method that holds point weights in proportion to their importance."""

    before: ClassVar[dict[str, Any]] = Calibrated.before | FunctionSpace.before
    memory_type: ClassVar[type] = Importance

    calibration: Literal["secant", "none"] = Field(
        "none",
        description="secant: scale a task's importances so that one strength suits every dataset",
    )

    def first_memory(self, q: MeanField) -> Importance:
        return Importance(q, q.mean.new_zeros(q.mean.shape))

    def penalty(self, q: MeanField, memory: Importance, strength: float) -> Tensor:
        return strength * (memory.omega * (q.mean - memory.prior.mean).square()).sum()

    def kept(self, lesson: Lesson, start: Start, trained: Trained, new: Tensor) -> Importance:
        """With the importances of a task added, none of them below zero."""
        # A penalty without 1 / 2 is the quadratic of twice the importances.
        new = self.calibrated(lesson, trained.q, 2 * new) / 2
        return Importance(trained.q, (start.memory.omega + new).clamp_min(0))
