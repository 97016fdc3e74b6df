"""MAS: memory aware synapses (Aljundi et al., ECCV 2018), with point weights.

    minimise  -log p(y|x, theta) + lambda sum_i O_i (theta_i - theta_i_prev)^2

    after a task   O_i <- O_i + mean over x of |d |f(x; theta)|^2 / d theta_i|

How much a weight moves the outputs says how important it is; no labels are needed. It keeps the
last weights and O.
"""

from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from evclplus.core.engine import Terms
from evclplus.core.fisher import output_sensitivity
from evclplus.core.gaussian import MeanField
from evclplus.methods.base import Lesson, Start, Trained
from evclplus.methods.calibrated import Calibrated, Importance
from evclplus.methods.function_space import FunctionSpace
from evclplus.methods.space import TRAINING, Log, Space


class MemoryAwareSynapses(Calibrated, FunctionSpace):
    """Point weights held in proportion to how much they move the outputs."""

    name: ClassVar[str] = "mas"
    colour: ClassVar[str] = "#AA8800"
    marker: ClassVar[str] = "3"
    memory_type: ClassVar[type] = Importance
    space: ClassVar[Space] = TRAINING | {"lam": Log(1e-3, 1e3)}

    lam: float = Field(1.0, ge=0, description="lambda, the strength of the penalty")
    calibration: Literal["secant", "none"] = Field(
        "none", description="secant: scale a task's importances so that one lam suits every dataset"
    )
    importance_examples: int = Field(5000, ge=1, description="examples used at most")

    def first_memory(self, q: MeanField) -> Importance:
        return Importance(q, q.mean.new_zeros(q.mean.shape))

    def regulariser(self, q: MeanField, memory: Importance, examples: Tensor) -> Terms:
        return {"penalty": self.lam * (memory.omega * (q.mean - memory.prior.mean).square()).sum()}

    def end(self, lesson: Lesson, start: Start, trained: Trained) -> Importance:
        new = output_sensitivity(
            lesson.network,
            trained.q,
            start.task,
            lesson.generator("importance"),
            self.importance_examples,
        )
        new = self.calibrated(lesson, trained.q, new)
        return Importance(trained.q, start.memory.omega + new)
