"""Natural-gradient VCL: VCL by the steps of VOGN (Khan et al., 2018; Osawa et al., 2019).

    minimise  E_q[-log p(y|x, theta)] + w KL(q || q_prev),   w = beta / N

    1/s <- (1 - r) / s + r (h / w + 1/s_prev),              h = 2 d nll / d s
    mu  <- mu - a s (d nll / d mu / w + (mu - mu_prev) / s_prev)

a is the learning rate, r = a std_rate. s is the variance; h is what VOGN estimates by squared
gradients: for a Gaussian, E_q of the Hessian's diagonal is twice the derivative of E_q[nll] in s
(Price's theorem), and the engine has that for every step. So a weight's step is as long as the
weight is uncertain, and what earlier tasks need moves little without any strength to be set.

h of one batch may be negative. With x the relative change of 1/s, 1 + x becomes 1 + x + x^2 / 2,
which is positive for every x and the same to first order (Lin, Schmidt and Khan, 2020).

It keeps the last posterior, which is the next prior.
"""

from typing import ClassVar

import torch
from torch import Tensor

from evclplus.core.engine import Here, Step, Terms
from evclplus.core.gaussian import MeanField
from evclplus.methods.space import Log, Space
from evclplus.methods.variational import Posterior, Variational
from evclplus.settings import Optimiser


class NaturalVCL(Variational):
    """VCL by natural-gradient steps: an uncertain weight moves far, a certain one hardly."""

    name: ClassVar[str] = "natural-vcl"
    colour: ClassVar[str] = "#1A85FF"
    marker: ClassVar[str] = "4"
    space: ClassVar[Space] = Variational.space | {"training.learning_rate": Log(1e-4, 1e-1)}

    @property
    def optimisers(self) -> tuple[Optimiser, ...]:
        return ("sgd",)  # Adam would undo the metric

    @property
    def learning_rates(self) -> dict[Optimiser, float]:
        return {"sgd": 1e-3}

    def regulariser(self, q: MeanField, memory: Posterior, examples: Tensor) -> Terms:
        return {"kl": self.scaled_kl(q, memory.prior, examples)}

    def move(self, step: Step, memory: Posterior, here: Here) -> Step:
        """A plain step is -a times the gradient of the objective, in log sigma -r times it."""
        gaussian = here.q.variance.shape[0]
        weight = self.kl_weight(here.examples, gaussian)
        # Point values have no metric: their steps stay plain.
        mean = torch.cat([step.mean[:gaussian] * here.q.variance / weight, step.mean[gaussian:]])
        return Step(mean, natural_log_std(step.log_std, weight))


def natural_log_std(plain: Tensor, weight: Tensor) -> Tensor:
    """The step of log sigma in which 1/s changes by r (h / w + 1/s_prev - 1/s), from the plain one:
    d log sigma = -r (2 s dT/ds) with T = nll + w KL, and 2 s dT/ds = s (h + w (1/s_prev - 1/s))."""
    x = -plain / weight
    return -0.5 * (1 + x + 0.5 * x.square()).log()
