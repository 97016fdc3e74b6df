"""GVCL: generalised variational continual learning (Loo, Swaroop and Turner, ICLR 2021).

    minimise  E_q[-log p(y|x, theta)]
            + (beta / N) 1/2 sum_i [ s_i / p_i - log(s_i / p_i) - 1 + P_i (mu_i - mu_i_prev)^2 ]

    P_i = lambda max(1 / p_i - 1 / v_i, 0) + min(1 / p_i, 1 / v_i)

s are variances, p those of the last posterior, v those of the first prior. beta tempers the
likelihood; lambda makes old tasks count more, in the means alone and only with the precision that
data have added to the first prior. lambda = 1 is VCL. As beta goes to zero, 1 / p - 1 / v becomes
the sum of N_t H_t / beta over old tasks, H_t the curvature of the mean loss, and what is left is
online EWC with strength lambda N_t / N.

It keeps the last posterior and the first prior's precision. The paper has 1 / v_i alone as the
second part of P: the same wherever data have made a weight more certain, and with the minimum
lambda = 1 is VCL for all others too. The authors' code draws all shared means anew for every
task; here a task starts where the last one ended. With `film`, each task has the paper's FiLM
layers, a scale and a shift for every unit.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from evclplus.core.engine import Terms
from evclplus.core.gaussian import MeanField
from evclplus.core.heads import MultiHead
from evclplus.core.tree import per_weight
from evclplus.errors import ConversionError
from evclplus.methods.base import Lesson, Start
from evclplus.methods.space import Log, Space
from evclplus.methods.variational import Posterior, Variational


@dataclass(frozen=True)
class PosteriorAndFirst(Posterior):
    """The last posterior, and the precision of each weight's first prior."""

    first_precision: Tensor = per_weight()


class GVCL(Variational):
    """VCL with a tempered likelihood, and means held in proportion to what data have taught."""

    name: ClassVar[str] = "gvcl"
    colour: ClassVar[str] = "#4477AA"
    marker: ClassVar[str] = "4"
    memory_type: ClassVar[type] = PosteriorAndFirst
    space: ClassVar[Space] = Variational.space | {"lam": Log(1.0, 1e4)}

    beta: float = Field(0.1, ge=0, description="weight of the KL; below 1 tempers the likelihood")
    kl_scale: Literal["weights", "examples", "none"] = Field(
        "examples",
        description="divide the KL by the task's number of examples (the ELBO), by that of weights "
        "where there are more of them, or not at all",
    )
    lam: float = Field(
        100.0, ge=0, description="lambda: how often the data of old tasks count for the means"
    )

    film: bool = Field(False, description="each task has a scale and a shift for every unit")

    def network_of(self, module: nn.Module) -> nn.Module:
        if not self.film:
            return module
        if not isinstance(module, MultiHead):
            raise ConversionError(
                f"film needs a network whose heads come with tasks, not a {type(module).__name__}; "
                "wrap its body: MultiHead(body)"
            )
        return module.with_film()

    def first_memory(self, q: MeanField) -> PosteriorAndFirst:
        return PosteriorAndFirst(q, q.mean.new_zeros(q.mean.shape))

    def regulariser(self, q: MeanField, memory: PosteriorAndFirst, examples: Tensor) -> Terms:
        first = q.gaussian(memory.first_precision)
        scale = self.kl_weight(examples, q.variance.shape[0])
        return {"kl": scale * generalised_kl(q, memory.prior, first, self.lam)}

    def begin(self, lesson: Lesson) -> Start:
        start = super().begin(lesson)
        new, prior = lesson.new(), start.memory.prior
        first = start.memory.first_precision.clone()
        gaussian = first[: len(prior.variance)]
        gaussian.copy_(torch.where(prior.gaussian(new), 1 / prior.variance, gaussian))
        return replace(start, memory=replace(start.memory, first_precision=first))


def generalised_kl(
    q: MeanField, p: MeanField, first_precision: Tensor, lam: float | Tensor
) -> Tensor:
    """1/2 sum_i r_i - log r_i - 1 + P_i (m_q - m_p)^2 with r = s_q^2 / s_p^2, and P the precision
    of p of which the part that data have added counts lambda times."""
    precision = 1 / p.variance
    added = (precision - first_precision).clamp_min(0)
    distance = (q.gaussian_mean - p.gaussian_mean).square()
    ratio = q.variance / p.variance
    # Two logarithms, as in `kl`: the gradient in s_q^2 is exactly zero where q is p.
    log_ratio = q.variance.log() - p.variance.log()
    weighted = (precision + (lam - 1) * added) * distance
    return 0.5 * (ratio + weighted - 1 - log_ratio).sum()
