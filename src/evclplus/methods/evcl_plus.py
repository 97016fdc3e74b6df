"""EVCL+: EVCL (Batra and Clark, 2024) with an asymmetric variance penalty.

    minimise  E_q[-log p(y|x, theta)] + (beta / N) KL(q || q_prev)
            + (lambda / 2) sum_i F_i (mu_i - mu_i_prev)^2
            + (lambda / 2) sum_j F_j v(sigma_j^2, sigma_j_prev^2)

    v(s, p) = (s - p)^2 where s <= p,   k s where s > p

A weight may become more certain at EVCL's small price; becoming less certain costs k times its
variance.

It keeps the last posterior, as prior and anchor, and the Fisher at its mean, which is zero on the
first task: there is no penalty.
"""

from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from evclplus.core.gaussian import MeanField
from evclplus.core.penalties import (
    Norm,
    asymmetric_variance,
    elastic_mean,
    expected_variance,
    has_grown,
)
from evclplus.methods.base import Role
from evclplus.methods.elastic import ElasticVariational
from evclplus.methods.space import Log, Space


class EVCLPlus(ElasticVariational):
    """VCL with elastic penalties that resist growing variances k times more."""

    name: ClassVar[str] = "evcl+"
    colour: ClassVar[str] = "#D55E00"
    marker: ClassVar[str] = "o"
    role: ClassVar[Role] = "ours"
    space: ClassVar[Space] = ElasticVariational.space | {"k": Log(0.1, 1000.0)}

    before: ClassVar[dict[str, Any]] = ElasticVariational.before | {
        "variance_penalty": "grown",
        "lam_function": 0.0,
    }

    k: float = Field(5.0, ge=0, description="price of a variance that exceeds its previous value")
    variance_penalty: Literal["grown", "always"] = Field(
        "grown",
        description="when k s is charged: where a variance has grown, or always (the variance's "
        "part of the expected elastic penalty)",
    )
    lam_function: float = Field(
        0.03,
        ge=0,
        description="strength of holding earlier heads to their answers on the new inputs",
    )
    norm: Norm = Field(
        "weight", description="compare variances weight by weight, or by each tensor's L2 norm"
    )

    def penalty(self, q: MeanField, previous: MeanField, fisher: Tensor) -> Tensor:
        means = elastic_mean(q.mean, previous.mean, fisher, self.lam)
        # A variance has the Fisher of its mean; point values have no variance.
        fisher = q.gaussian(fisher)
        new, old = q.variance, previous.variance
        if self.variance_penalty == "always":
            return means + expected_variance(new, fisher, self.lam, self.k)
        grown = has_grown(new, old, q.layout, self.norm)
        return means + asymmetric_variance(new, old, fisher, self.lam, self.k, grown)
