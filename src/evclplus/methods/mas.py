"""MAS: memory aware synapses (Aljundi et al., ECCV 2018), with point weights.

    minimise  -log p(y|x, theta) + lambda sum_i O_i (theta_i - theta_i_prev)^2

    after a task   O_i <- O_i + mean over x of |d |f(x; theta)|^2 / d theta_i|

How much a weight moves the outputs says how important it is; no labels are needed. It keeps the
last weights and O.
"""

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from evclplus.core.engine import Terms
from evclplus.core.fisher import output_sensitivity
from evclplus.core.gaussian import MeanField
from evclplus.methods.base import Lesson, Start, Trained
from evclplus.methods.importance import ByImportance, Importance
from evclplus.methods.space import TRAINING, Log, Space


class MemoryAwareSynapses(ByImportance):
    """Point weights held in proportion to how much they move the outputs."""

    name: ClassVar[str] = "mas"
    colour: ClassVar[str] = "#AA8800"
    marker: ClassVar[str] = "3"
    space: ClassVar[Space] = TRAINING | {"lam": Log(1e-3, 1e3)}

    lam: float = Field(1.0, ge=0, description="lambda, the strength of the penalty")
    importance_examples: int = Field(5000, ge=1, description="examples used at most")

    def regulariser(self, q: MeanField, memory: Importance, examples: Tensor) -> Terms:
        return {"penalty": self.penalty(q, memory, self.lam)}

    def end(self, lesson: Lesson, start: Start, trained: Trained) -> Importance:
        new = output_sensitivity(
            lesson.network,
            trained.q,
            start.task,
            lesson.generator("importance"),
            self.importance_examples,
        )
        return self.kept(lesson, start, trained, new)
