"""Fine-tuning: train on each task and protect nothing. The lower bound.

minimise  -log p(y|x, theta)
"""

from typing import ClassVar

from evclplus.methods.base import Method, Role


class FineTune(Method):
    """Plain training on one task after another: the lower bound."""

    name: ClassVar[str] = "finetune"
    colour: ClassVar[str] = "#7A7A7A"
    marker: ClassVar[str] = "d"
    role: ClassVar[Role] = "lower bound"
