"""SI: synaptic intelligence (Zenke, Poole and Ganguli, ICML 2017), with point weights.

    minimise  -log p(y|x, theta) + c sum_i O_i (theta_i - theta_i_prev)^2

    during a task   w_i <- w_i - g_i d_i,   g the likelihood's gradient, d the step really taken
    after it        O_i <- max(0, O_i + w_i / ((theta_i - theta_i_prev)^2 + xi))

w_i is how much of the loss's fall weight i brought about. It keeps the last weights and O.
"""

from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from evclplus.core.engine import Gradient, Running, Step, Terms
from evclplus.core.gaussian import MeanField
from evclplus.core.tree import per_weight
from evclplus.methods.base import Lesson, Method, Start, Trained
from evclplus.methods.space import TRAINING, Log, Space


@dataclass(frozen=True)
class Importance:
    """The last weights, and how important each was to all tasks so far."""

    anchor: Tensor = per_weight()
    omega: Tensor = per_weight()


class SynapticIntelligence(Method):
    """Point weights held in proportion to what each contributed to learning."""

    name: ClassVar[str] = "si"
    colour: ClassVar[str] = "#117733"
    marker: ClassVar[str] = "p"
    memory_type: ClassVar[type] = Importance
    space: ClassVar[Space] = TRAINING | {"c": Log(1e-3, 1e3), "xi": Log(1e-4, 1.0)}

    c: float = Field(1.0, ge=0, description="strength of the penalty")
    xi: float = Field(1e-3, gt=0, description="bounds the importance of a weight that stood still")

    def first_memory(self, q: MeanField) -> Importance:
        return Importance(q.mean, q.mean.new_zeros(q.mean.shape))

    def regulariser(self, q: MeanField, memory: Importance, examples: Tensor) -> Terms:
        return {"penalty": self.c * (memory.omega * (q.mean - memory.anchor).square()).sum()}

    def trace(self, q: MeanField) -> Running:
        return {"path": q.mean.new_zeros(q.mean.shape)}

    def follow(self, running: Running, gradient: Gradient, step: Step) -> Running:
        return {"path": running["path"] - gradient.mean * step.mean}

    def end(self, lesson: Lesson, start: Start, trained: Trained) -> Importance:
        moved = (trained.q.mean - start.q.mean).square()
        omega = start.memory.omega + trained.running["path"] / (moved + self.xi)
        return Importance(trained.q.mean, omega.clamp_min(0))
