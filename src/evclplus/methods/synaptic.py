"""SI: synaptic intelligence (Zenke, Poole and Ganguli, ICML 2017), with point weights.

    minimise  -log p(y|x, theta) + c sum_i O_i (theta_i - theta_i_prev)^2

    during a task   w_i <- w_i - g_i d_i,   g the likelihood's gradient, d the step really taken
    after it        O_i <- max(0, O_i + w_i / ((theta_i - theta_i_prev)^2 + xi))

w_i is how much of the loss's fall weight i brought about. It keeps the last weights and O.
"""

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from evclplus.core.engine import Gradient, Running, Step, Terms
from evclplus.core.gaussian import MeanField
from evclplus.methods.base import Lesson, Start, Trained
from evclplus.methods.importance import ByImportance, Importance
from evclplus.methods.space import TRAINING, Log, Space


class SynapticIntelligence(ByImportance):
    """Point weights held in proportion to what each contributed to learning."""

    name: ClassVar[str] = "si"
    colour: ClassVar[str] = "#117733"
    marker: ClassVar[str] = "p"
    space: ClassVar[Space] = TRAINING | {"c": Log(1e-3, 1e3), "xi": Log(1e-4, 1.0)}

    c: float = Field(1.0, ge=0, description="strength of the penalty")
    xi: float = Field(1e-3, gt=0, description="bounds the importance of a weight that stood still")

    def regulariser(self, q: MeanField, memory: Importance, examples: Tensor) -> Terms:
        return {"penalty": self.penalty(q, memory, self.c)}

    def trace(self, q: MeanField) -> Running:
        return {"path": q.mean.new_zeros(q.mean.shape)}

    def follow(self, running: Running, gradient: Gradient, step: Step) -> Running:
        return {"path": running["path"] - gradient.mean * step.mean}

    def end(self, lesson: Lesson, start: Start, trained: Trained) -> Importance:
        moved = (trained.q.mean - start.q.mean).square()
        omega = trained.running["path"] / (moved + self.xi)
        return self.kept(lesson, start, trained, omega)
