"""What EWC, EVCL and EVCL+ share: a Fisher that says which weights the old tasks need."""

from abc import abstractmethod
from dataclasses import replace
from typing import Literal

from pydantic import Field
from torch import Tensor

from evclplus.core.fisher import Labels, Reduction, diagonal_fisher
from evclplus.core.gaussian import MeanField
from evclplus.core.hold import Hold
from evclplus.methods.base import Lesson, Memory, Method
from evclplus.methods.variational import Variational


class Elastic(Method):
    """A method that penalises moving weights in proportion to their Fisher information."""

    lam: float = Field(100.0, ge=0, description="lambda, the strength of the elastic penalties")
    fisher_labels: Labels = Field(
        "exact", description="labels in the Fisher: the model's expectation, a draw, or the data's"
    )
    fisher_reduction: Reduction = Field("mean", description="mean or sum over the examples")
    fisher_examples: int = Field(5000, ge=1, description="examples used at most")
    fisher_temperature: float = Field(
        1.0, gt=0, description="divides the logits in the Fisher; above 1: less saturated"
    )
    fisher_tasks: Literal["last", "accumulated"] = Field(
        "last", description="the last task's Fisher, or a decayed sum over all tasks"
    )
    fisher_decay: float = Field(
        1.0, ge=0, le=1, description="gamma: what is left of the old sum when a task is added"
    )
    protect: Literal["shared", "all"] = Field(
        "shared", description="penalise weights that several tasks use, or all (old heads too)"
    )

    lam_function: float = Field(
        0.0,
        ge=0,
        description="strength of holding earlier heads to their answers on the new inputs",
    )

    def hold(self, memory: Memory, lesson: Lesson) -> Hold | None:
        if self.lam_function == 0 or not lesson.earlier:
            return None
        # The network as it is before training: what it computes with then must not move with it.
        return Hold(lesson.network.copy(), memory.prior, lesson.earlier, self.lam_function)

    def consolidate(self, q: MeanField, memory: Memory, lesson: Lesson) -> Memory:
        fisher = diagonal_fisher(
            lesson.network,
            q,
            lesson.data[-1],
            lesson.generator,
            self.fisher_labels,
            self.fisher_reduction,
            self.fisher_examples,
            self.fisher_temperature,
        )
        if self.protect == "shared":
            fisher = fisher * lesson.shared()
        if self.fisher_tasks == "accumulated" and memory.fisher is not None:
            fisher = self.fisher_decay * memory.fisher + fisher
        kept = super().consolidate(q, memory, lesson)
        return replace(kept, fisher=fisher)


class ElasticVariational(Elastic, Variational):
    """Gaussian weights with a penalty: EVCL and EVCL+ differ in nothing but its equation."""

    def regulariser(self, q: MeanField, memory: Memory, examples: Tensor) -> dict[str, Tensor]:
        terms = {"kl": self.scaled_kl(q, memory.prior, examples)}
        if memory.fisher is not None:
            terms["penalty"] = self.penalty(q, memory.prior, memory.fisher)
        return terms

    @abstractmethod
    def penalty(self, q: MeanField, previous: MeanField, fisher: Tensor) -> Tensor:
        """What moving away from the previous posterior costs."""
