"""VCL: variational continual learning (Nguyen, Li, Bui and Turner, ICLR 2018).

    minimise  E_q[-log p(y|x, theta)] + (beta / N) KL(q || q_prev)

It keeps the last posterior, which is the next prior.
"""

from typing import ClassVar

from torch import Tensor

from evclplus.core.engine import Terms
from evclplus.core.gaussian import MeanField
from evclplus.methods.variational import Posterior, Variational


class VCL(Variational):
    """Variational continual learning: each posterior is the next task's prior."""

    name: ClassVar[str] = "vcl"
    colour: ClassVar[str] = "#0072B2"
    marker: ClassVar[str] = "^"

    def regulariser(self, q: MeanField, memory: Posterior, examples: Tensor) -> Terms:
        return {"kl": self.scaled_kl(q, memory.prior, examples)}
