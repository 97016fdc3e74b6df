"""Fine-tuning: train on each task and protect nothing (McCloskey and Cohen, 1989, saw first what
becomes of that). The lower bound.

    minimise  -log p(y|x, theta)

It keeps the last weights and nothing else.
"""

from typing import ClassVar

from evclplus.methods.base import Method, Role


class FineTune(Method):
    """Plain training on one task after another: the lower bound."""

    name: ClassVar[str] = "finetune"
    colour: ClassVar[str] = "#7A7A7A"
    marker: ClassVar[str] = "d"
    role: ClassVar[Role] = "lower bound"
