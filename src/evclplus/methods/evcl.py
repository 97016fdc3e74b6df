"""EVCL: elastic variational continual learning (Batra and Clark, arXiv 2406.15972, 2024).

    minimise  E_q[-log p(y|x, theta)] + (beta / N) KL(q || q_prev)
            + (lambda / 2) sum_i F_i (mu_i - mu_i_prev)^2
            + (lambda / 2) sum_j F_j (sigma_j^2 - sigma_j_prev^2)^2

The paper adds the penalties to a quantity to be maximised; here they are added to the negative
ELBO, the only sign under which they protect anything.

It keeps the last posterior, as prior and anchor, and the Fisher at its mean, which is zero on the
first task: there is no penalty.
"""

from typing import ClassVar

from torch import Tensor

from evclplus.core.gaussian import MeanField
from evclplus.core.penalties import elastic_mean, elastic_variance
from evclplus.methods.elastic import ElasticVariational


class EVCL(ElasticVariational):
    """VCL with elastic penalties on the means and the variances."""

    name: ClassVar[str] = "evcl"
    colour: ClassVar[str] = "#E69F00"
    marker: ClassVar[str] = "s"

    def penalty(self, q: MeanField, previous: MeanField, fisher: Tensor) -> Tensor:
        means = elastic_mean(q.mean, previous.mean, fisher, self.lam)
        # A variance has the Fisher of its mean; point values have no variance.
        fisher = q.gaussian(fisher)
        return means + elastic_variance(q.variance, previous.variance, fisher, self.lam)
