"""A strength that means the same on every dataset: lambda = 1 undoes a task at its true price.

    c_t = 2 [L_t(body before, head after) - L_t(body after, head after)]
          / sum over shared weights of O_i (mu_i - mu_i_before)^2

L_t is the mean loss on the task, O the importance that a method gives the weights; c_t O takes the
place of O. The quadratic (c_t / 2) sum_i O_i (mu_i - mu_i_before)^2 then costs, at the one point
where that is known, what leaving the task's solution really costs. A diagonal Fisher by itself
does not: predictions saturate, and thousands of weights move together.
"""

from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from evclplus.core.calibration import rise_of_loss, secant_strength
from evclplus.core.gaussian import MeanField
from evclplus.methods.base import Lesson, Method


class Calibrated(Method):
    """A method with a quadratic penalty whose strength can be found on each task."""

    before: ClassVar[dict[str, Any]] = {"calibration": "none"}

    calibration: Literal["secant", "none"] = Field(
        "secant",
        description="secant: scale a task's importances so that one strength suits every dataset",
    )

    def calibrated(self, lesson: Lesson, after: MeanField, importance: Tensor) -> Tensor:
        """The importances of a task's weights, with its strength if one is asked for."""
        if self.calibration == "none":
            return importance
        shared = lesson.network.shared().to(importance.device)
        rise = rise_of_loss(lesson.network, lesson.q, after, shared, lesson.task, lesson.likelihood)
        moved = (after.mean - lesson.q.mean).square()
        strength = secant_strength(rise, (importance * moved)[shared].sum())
        lesson.calibrated["strength"] = float(strength)
        return strength * importance
