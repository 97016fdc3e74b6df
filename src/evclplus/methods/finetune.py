"""Fine-tuning: train on each task and protect nothing. The lower bound.

minimise  -log p(y|x, theta)
"""

from typing import ClassVar

from torch import Tensor

from evclplus.core.gaussian import MeanField
from evclplus.methods.base import Memory, Method


class FineTune(Method):
    """Plain training on one task after another: the lower bound."""

    name: ClassVar[str] = "finetune"

    def regulariser(self, q: MeanField, memory: Memory, examples: Tensor) -> dict[str, Tensor]:
        return {}
