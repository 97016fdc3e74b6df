"""What EWC, EVCL, EVCL+ and P&C share: a Fisher that says which weights the old tasks need."""

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from evclplus.core.engine import Terms
from evclplus.core.fisher import Reduction, diagonal_fisher
from evclplus.core.gaussian import MeanField
from evclplus.core.likelihoods import Labels
from evclplus.core.tree import per_weight
from evclplus.methods.base import Lesson, Start, Trained
from evclplus.methods.calibrated import Calibrated
from evclplus.methods.function_space import FunctionSpace, HeldHeads
from evclplus.methods.space import TRAINING, Log, OneOf, Space
from evclplus.methods.variational import Variational


@dataclass(frozen=True)
class Anchored:
    """The last posterior, which is prior and anchor; how much each weight matters to what was
    learned, zero before the first task; and while a task is learned, the heads that are held."""

    prior: MeanField
    fisher: Tensor = per_weight()
    held: HeldHeads = field(default_factory=HeldHeads)


class ByFisher(Calibrated):
    """A method that penalises moving weights in proportion to their Fisher information."""

    memory_type: ClassVar[type] = Anchored
    space: ClassVar[Space] = TRAINING | {
        # A sum over examples instead of their mean would only rescale lambda.
        "lam": Log(1e-3, 1e2),
        "fisher_temperature": Log(1.0, 100.0),
    }

    lam: float = Field(0.3, ge=0, description="lambda, the strength of the elastic penalties")
    fisher_labels: Labels = Field(
        "exact",
        description="labels in the Fisher: the model's expectation, draw or guess, or the data's",
    )
    fisher_reduction: Reduction = Field("mean", description="mean or sum over the examples")
    fisher_examples: int = Field(5000, ge=1, description="examples used at most")
    fisher_temperature: float = Field(
        1.0, gt=0, description="divides the logits in the Fisher; above 1: less saturated"
    )
    fisher_tasks: Literal["last", "accumulated"] = Field(
        "accumulated", description="the last task's Fisher, or a decayed sum over all tasks"
    )
    fisher_decay: float = Field(
        1.0, ge=0, le=1, description="gamma: what is left of the old sum when a task is added"
    )

    def first_memory(self, q: MeanField) -> Anchored:
        return Anchored(q, q.mean.new_zeros(q.mean.shape))

    def end(self, lesson: Lesson, start: Start, trained: Trained) -> Anchored:
        fisher = self.old_fisher(start.memory) + self.task_fisher(lesson, start, trained)
        return Anchored(trained.q, fisher)

    def old_fisher(self, memory: Anchored) -> Tensor:
        """What is kept of earlier tasks: gamma times their sum, or nothing."""
        decay = self.fisher_decay if self.fisher_tasks == "accumulated" else 0.0
        return decay * memory.fisher

    def task_fisher(self, lesson: Lesson, start: Start, trained: Trained) -> Tensor:
        """The Fisher of the task that was just learned, calibrated if that is asked for."""
        fisher = diagonal_fisher(
            lesson.network,
            trained.q,
            start.task,
            lesson.generator("fisher"),
            self.fisher_labels,
            self.fisher_reduction,
            self.fisher_examples,
            self.fisher_temperature,
            lesson.likelihood,
        )
        return self.calibrated(lesson, trained.q, fisher)


class Elastic(ByFisher, FunctionSpace):
    """The same, with earlier heads that can be held to their answers."""

    before: ClassVar[dict[str, Any]] = ByFisher.before | FunctionSpace.before
    space: ClassVar[Space] = ByFisher.space | {
        "lam_function": OneOf((0.0, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0))
    }


class ElasticVariational(Elastic, Variational):
    """Gaussian weights with a penalty: EVCL and EVCL+ differ in nothing but its equation."""

    memory_type: ClassVar[type] = Anchored
    space: ClassVar[Space] = Variational.space | Elastic.space

    def regulariser(self, q: MeanField, memory: Anchored, examples: Tensor) -> Terms:
        return {
            "kl": self.scaled_kl(q, memory.prior, examples),
            "penalty": self.penalty(q, memory.prior, memory.fisher),
        }

    @abstractmethod
    def penalty(self, q: MeanField, previous: MeanField, fisher: Tensor) -> Tensor:
        """What moving away from the previous posterior costs."""
