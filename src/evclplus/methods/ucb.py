"""UCB: uncertainty-guided continual learning with Bayesian networks (Ebrahimi et al., ICLR 2020).

    minimise  E_q[-log p(y|x, theta)] + (beta / N) E_q[log q(theta) - log p(theta)]

    p(theta) = prod_i pi N(theta_i; 0, sd_wide^2) + (1 - pi) N(theta_i; 0, sd_narrow^2)
    a step of mu_i    times sigma_i as the last task left it

The prior is the same for every task; what holds a weight is that a certain one takes small steps.
Its log p(theta) is that of a draw, one in each step. Variances take full steps, and so do the means
of weights that no task has used yet.

It keeps nothing but the last posterior: how certain weights were is asked when a task begins. The
published code takes no gradient of the KL and learns no head after the first task's; this is the
paper's equation. The KL is divided by the number of weights where there are more of them than
examples, as for VCL; `kl_scale = "examples"` is the paper's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log, pi
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from evclplus.core.batches import Batch
from evclplus.core.engine import Here, Step, Terms
from evclplus.core.gaussian import MeanField
from evclplus.core.layers import draw_weight
from evclplus.core.network import BayesianNetwork, Weights
from evclplus.core.tree import per_weight
from evclplus.methods.base import Lesson, Method, Start
from evclplus.methods.space import PLAIN_STEPS, Log, Space
from evclplus.settings import Optimiser


@dataclass(frozen=True)
class StepSizes:
    """How much of a step each mean makes, and the weight of the KL in the task at hand."""

    size: Tensor = per_weight()
    kl_weight: Tensor | None = None


class UCB(Method):
    """Gaussian weights whose means take smaller steps the more certain they are."""

    name: ClassVar[str] = "ucb"
    colour: ClassVar[str] = "#BBBBBB"
    marker: ClassVar[str] = "s"
    memory_type: ClassVar[type] = StepSizes
    space: ClassVar[Space] = PLAIN_STEPS | {
        "beta": Log(1e-4, 1.0),
        "initial_variance": Log(1e-5, 1e-2),
    }

    beta: float = Field(1.0, ge=0, description="weight of the KL")
    kl_scale: Literal["weights", "examples"] = Field(
        "weights",
        description="divide the KL by the number of examples, or of weights where that is larger",
    )
    initial_variance: float = Field(2.4e-3, gt=0, description="variance of every weight at first")
    share: float = Field(0.25, ge=0, le=1, description="pi, the wide part of the prior")
    sd_wide: float = Field(1.0, gt=0, description="standard deviation of the prior's wide part")
    sd_narrow: float = Field(2.5e-3, gt=0, description="and of its narrow part: e^-6")

    @property
    def is_point(self) -> bool:
        return False

    @property
    def averages_samples(self) -> bool:
        return True

    @property
    def optimisers(self) -> tuple[Optimiser, ...]:
        return ("sgd", "adam")

    def initial(self, network: BayesianNetwork) -> MeanField:
        return network.initial(self.initial_variance)

    def first_memory(self, q: MeanField) -> StepSizes:
        return StepSizes(torch.ones_like(q.mean))

    def likelihood(
        self, weights: Weights, memory: StepSizes, batch: Batch, network: BayesianNetwork
    ) -> Terms:
        terms = super().likelihood(weights, memory, batch, network)
        if memory.kl_weight is None:  # no task is being learned
            return terms
        drawn_kl = self.drawn_kl(weights, network.names_for(batch.head))
        return terms | {"kl": memory.kl_weight * drawn_kl}

    def drawn_kl(self, weights: Weights, names: Sequence[str]) -> Tensor:
        """E_q[log q] - log p of a draw, summed over the Gaussian ones of these weights."""
        parts = [
            negative_entropy(weights.variances[name])
            - self.log_prior(
                draw_weight(weights.means[name], weights.variances[name], weights.noise)
            )
            for name in names
            if name in weights.variances
        ]
        return torch.stack(parts).sum()

    def log_prior(self, theta: Tensor) -> Tensor:
        """log p(theta), summed."""
        share = torch.as_tensor(self.share).to(theta)
        wide = share.log() + log_normal(theta, self.sd_wide)
        narrow = (1 - share).log() + log_normal(theta, self.sd_narrow)
        return torch.logaddexp(wide, narrow).sum()

    def move(self, step: Step, memory: StepSizes, here: Here) -> Step:
        return replace(step, mean=step.mean * memory.size)

    def begin(self, lesson: Lesson) -> Start:
        q, examples = lesson.q, len(lesson.task)
        terms = max(examples, len(q.variance)) if self.kl_scale == "weights" else examples
        size = torch.ones_like(q.mean)
        size[: len(q.variance)] = q.variance.sqrt()
        size = torch.where(lesson.new(), 1.0, size)
        memory = StepSizes(size, size.new_tensor(self.beta / terms))
        return replace(super().begin(lesson), memory=memory)


def negative_entropy(variance: Tensor) -> Tensor:
    """E_q[log q] = -1/2 sum log(2 pi e s)."""
    return -0.5 * (variance.log() + (log(2 * pi) + 1)).sum()


def log_normal(theta: Tensor, sd: float | Tensor) -> Tensor:
    """log N(theta; 0, sd^2)."""
    sd = torch.as_tensor(sd).to(theta)
    return -0.5 * (theta / sd).square() - sd.log() - 0.5 * log(2 * pi)
