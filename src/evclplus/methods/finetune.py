"""Fine-tuning: train on each task and protect nothing. The lower bound.

minimise  -log p(y|x, theta)
"""

from typing import ClassVar

from evclplus.core.batches import Batch
from evclplus.core.gaussian import MeanField
from evclplus.methods.base import Memory, Method, Terms


class FineTune(Method):
    """Plain training on one task after another: the lower bound."""

    name: ClassVar[str] = "finetune"

    def loss(self, q: MeanField, memory: Memory, batch: Batch) -> Terms:
        return Terms(nll=batch.nll(q))
