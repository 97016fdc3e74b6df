"""EWC: elastic weight consolidation (Kirkpatrick et al., PNAS 2017), with point weights.

    minimise  -log p(y|x, theta) + (lambda / 2) sum_i F_i (theta_i - theta_i_prev)^2

It keeps the last weights, the anchor, and the Fisher there. On the first task there is no
Fisher and no penalty.
"""

from typing import ClassVar

from torch import Tensor

from evclplus.core.gaussian import MeanField
from evclplus.core.penalties import elastic_mean
from evclplus.methods.base import Memory
from evclplus.methods.elastic import Elastic


class EWC(Elastic):
    """Point weights held to their last values in proportion to their Fisher."""

    name: ClassVar[str] = "ewc"

    def regulariser(self, q: MeanField, memory: Memory, examples: Tensor) -> dict[str, Tensor]:
        if memory.fisher is None:
            return {}
        return {"penalty": elastic_mean(q.mean, memory.prior.mean, memory.fisher, self.lam)}
