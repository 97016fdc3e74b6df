"""EWC: elastic weight consolidation (Kirkpatrick et al., PNAS 2017), with point weights.

    minimise  -log p(y|x, theta) + (lambda / 2) sum_i F_i (theta_i - theta_i_prev)^2

It keeps the last weights, the anchor, and the Fisher there, which is zero on the first task: there
is no penalty.
"""

from typing import ClassVar

from torch import Tensor

from evclplus.core.engine import Terms
from evclplus.core.gaussian import MeanField
from evclplus.core.penalties import elastic_mean
from evclplus.methods.elastic import Anchored, Elastic


class EWC(Elastic):
    """Point weights held to their last values in proportion to their Fisher."""

    name: ClassVar[str] = "ewc"
    colour: ClassVar[str] = "#009E73"
    marker: ClassVar[str] = "D"

    def regulariser(self, q: MeanField, memory: Anchored, examples: Tensor) -> Terms:
        return {"penalty": elastic_mean(q.mean, memory.prior.mean, memory.fisher, self.lam)}
