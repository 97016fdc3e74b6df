"""VCL: variational continual learning (Nguyen, Li, Bui and Turner, ICLR 2018).

    minimise  E_q[-log p(y|x, theta)] + (beta / N) KL(q || q_prev)

It keeps the last posterior, which is the next prior.
"""

from typing import ClassVar

from torch import Tensor

from evclplus.core.gaussian import MeanField
from evclplus.methods.base import Memory
from evclplus.methods.variational import Variational


class VCL(Variational):
    """Variational continual learning: each posterior is the next task's prior."""

    name: ClassVar[str] = "vcl"

    def regulariser(self, q: MeanField, memory: Memory, examples: Tensor) -> dict[str, Tensor]:
        return {"kl": self.scaled_kl(q, memory.prior, examples)}
