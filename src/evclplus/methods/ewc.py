"""EWC: elastic weight consolidation (Kirkpatrick et al., PNAS 2017), with point weights.

    minimise  -log p(y|x, theta) + (lambda / 2) sum_i O_i (theta_i - a_i)^2

O is what is kept of the Fishers of all tasks, O <- gamma O + F, and a the anchor:

    anchor = "last"       a is where the last task ended: online EWC, and with gamma = 1 Huszar's
                          correction (PNAS 2018). Bayes' rule adds up the Fishers around one point,
                          since the last solution has felt all earlier penalties already
    anchor = "weighted"   Kirkpatrick's own penalty for every task s around its own solution,
                          sum_s F_s (theta - theta_s)^2 = O (theta - a)^2 + constant with
                          a <- (gamma O a + F theta) / (gamma O + F): two vectors for any number of
                          tasks. It counts early tasks twice, which Huszar objects to

It keeps the last weights, O, which is zero on the first task, and where it differs from them the
anchor.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from evclplus.core.engine import Terms
from evclplus.core.gaussian import MeanField
from evclplus.core.penalties import elastic_mean
from evclplus.core.tree import per_weight
from evclplus.methods.base import Lesson, Start, Trained
from evclplus.methods.elastic import Anchored, Elastic


@dataclass(frozen=True, kw_only=True)
class Weighted(Anchored):
    """An anchor of its own: the mean of all solutions, weighted by their Fishers."""

    anchor: Tensor = per_weight()


class EWC(Elastic):
    """Point weights held to their last values in proportion to their Fisher."""

    name: ClassVar[str] = "ewc"
    colour: ClassVar[str] = "#009E73"
    marker: ClassVar[str] = "D"
    before: ClassVar[dict[str, Any]] = Elastic.before | {"anchor": "last"}

    anchor: Literal["last", "weighted"] = Field(
        "last", description="where weights are held: the last solution, or each task's own"
    )

    @property
    def memory_types(self) -> tuple[type, ...]:
        return (Anchored, Weighted)

    def first_memory(self, q: MeanField) -> Anchored:
        first = super().first_memory(q)
        if self.anchor == "last":
            return first
        return Weighted(prior=first.prior, fisher=first.fisher, anchor=first.prior.mean)

    def regulariser(self, q: MeanField, memory: Anchored, examples: Tensor) -> Terms:
        anchor = memory.anchor if isinstance(memory, Weighted) else memory.prior.mean
        return {"penalty": elastic_mean(q.mean, anchor, memory.fisher, self.lam)}

    def end(self, lesson: Lesson, start: Start, trained: Trained) -> Anchored:
        if not isinstance(start.memory, Weighted):
            return super().end(lesson, start, trained)
        old, new = self.old_fisher(start.memory), self.task_fisher(lesson, start, trained)
        anchor = weighted_anchor(old, start.memory.anchor, new, trained.q.mean)
        return Weighted(prior=trained.q, fisher=old + new, anchor=anchor)


def weighted_anchor(old: Tensor, anchor: Tensor, new: Tensor, mean: Tensor) -> Tensor:
    """The a of (old + new)(theta - a)^2 = old (theta - anchor)^2 + new (theta - mean)^2 + constant;
    the mean where both are zero, for which any will do."""
    total = old + new
    return torch.where(total > 0, (old * anchor + new * mean) / total.clamp_min(1e-38), mean)
