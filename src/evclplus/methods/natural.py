"""Natural-gradient VCL: VCL by the steps of VOGN (Khan et al., 2018; Osawa et al., 2019).

    minimise  E_q[-log p(y|x, theta)] + w KL(q || q_prev),   w = beta / N

    1/s <- (1 - r) / s + r (h / w + 1/s_prev),              h = 2 d nll / d s
    mu  <- mu - a s (d nll / d mu / w + (mu - mu_prev) / s_prev)

s is the variance, a the learning rate, r = precision_rate std_rate a. h is what VOGN estimates by
squared gradients: for a Gaussian, E_q of the Hessian's diagonal is twice the derivative of E_q[nll]
in s (Price's theorem), and the engine has that for every step. So a weight's step is as long as the
weight is uncertain, and what earlier tasks need moves little without any strength to be set.

h of one batch may be negative. With x the relative change of 1/s, 1 + x becomes 1 + x + x^2 / 2,
which is positive for every x and the same to first order (Lin, Schmidt and Khan, 2020).

Weights that a task is the first to use start as if h were 0.1: 1/s = 0.1 / w + 1/s_prior. Then a
first step is that of plain SGD with the rate a / 0.1, for few examples and for many; from any fixed
variance it would be too long for many or nothing for few.

It keeps the last posterior, which is the next prior.
"""

from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from evclplus.core.engine import Here, Step, Terms
from evclplus.core.gaussian import MeanField
from evclplus.core.network import BayesianNetwork
from evclplus.methods.base import Lesson, Start
from evclplus.methods.space import Log, Space
from evclplus.methods.variational import Posterior, Variational
from evclplus.settings import Optimiser

FIRST_CURVATURE = 0.1
"""h before any data: about the curvature of an open answer in a logit, p (1 - p) at most 1/4."""

FARTHEST = 0.1
"""The longest step of a mean, in standard deviations. On data that are fitted the curvature is
nearly zero, variances grow to the prior's, and one odd batch would throw the weights far away."""


class NaturalVCL(Variational):
    """VCL by natural-gradient steps: an uncertain weight moves far, a certain one hardly."""

    name: ClassVar[str] = "natural-vcl"
    colour: ClassVar[str] = "#1A85FF"
    marker: ClassVar[str] = "4"
    space: ClassVar[Space] = {
        name: one for name, one in Variational.space.items() if name != "initial_variance"
    } | {"training.learning_rate": Log(1e-3, 1e-1), "precision_rate": Log(1e-2, 1.0)}

    initial_variance: float | None = Field(  # type: ignore[assignment]
        None, gt=0, description="variance of every weight at first; none: from the prior and N"
    )
    precision_rate: float = Field(
        0.1, gt=0, description="how fast precisions follow the curvature, in steps of log sigma"
    )

    @property
    def optimisers(self) -> tuple[Optimiser, ...]:
        return ("sgd",)  # Adam would undo the metric

    @property
    def learning_rates(self) -> dict[Optimiser, float]:
        return {"sgd": 0.02}  # 1 / a steps settle a weight: a task has a thousand or more

    def initial(self, network: BayesianNetwork) -> MeanField:
        return network.initial(self.initial_variance or 1.0)

    def begin(self, lesson: Lesson) -> Start:
        start = super().begin(lesson)
        if self.initial_variance is not None:
            return start
        q, prior = start.q, start.memory.prior
        examples = q.mean.new_tensor(float(len(lesson.task)))
        weight = self.kl_weight(examples, len(q.variance))
        first = 1 / (FIRST_CURVATURE / weight + 1 / prior.variance)
        new = q.gaussian(lesson.new())
        return replace(start, q=replace(q, variance=torch.where(new, first, q.variance)))

    def regulariser(self, q: MeanField, memory: Posterior, examples: Tensor) -> Terms:
        return {"kl": self.scaled_kl(q, memory.prior, examples)}

    def move(self, step: Step, memory: Posterior, here: Here) -> Step:
        """A plain step is -a times the gradient of the objective, in log sigma -a std_rate."""
        gaussian = here.q.variance.shape[0]
        weight = self.kl_weight(here.examples, gaussian)
        mean = natural_mean(step.mean[:gaussian], here.q.variance, weight)
        # Point values have no metric: their steps stay plain.
        return Step(
            torch.cat([mean, step.mean[gaussian:]]),
            natural_log_std(self.precision_rate * step.log_std, weight),
        )


def natural_mean(plain: Tensor, variance: Tensor, weight: Tensor) -> Tensor:
    """The plain step, -a dT/dmu, times s / w; within a tenth of a standard deviation."""
    limit = FARTHEST * variance.sqrt()
    return torch.minimum(torch.maximum(plain * variance / weight, -limit), limit)


def natural_log_std(plain: Tensor, weight: Tensor) -> Tensor:
    """The step of log sigma in which 1/s changes by r (h / w + 1/s_prev - 1/s), from the plain one:
    d log sigma = -r (2 s dT/ds) with T = nll + w KL, and 2 s dT/ds = s (h + w (1/s_prev - 1/s))."""
    x = -plain / weight
    return -0.5 * (1 + x + 0.5 * x.square()).log()
