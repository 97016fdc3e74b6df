"""Progressive networks (Rusu et al., 2016), with point weights.

    minimise  -log p(y|x, theta_1 ... theta_t)    in theta_t, the weights of task t, alone

Every task gets a column, a network of its own that also reads the hidden units of all earlier
columns through adapters; see `core/columns.py` for the equation. Earlier columns are frozen, so
nothing is ever forgotten.

It keeps every column and all adapters between them: what it keeps grows with the square of the
number of tasks. It needs a head per task.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from evclplus.core.columns import Columns
from evclplus.core.engine import Here, Step
from evclplus.core.gaussian import MeanField
from evclplus.core.heads import MultiHead
from evclplus.core.tree import per_weight
from evclplus.errors import ConversionError
from evclplus.methods.base import Lesson, Method, Start


@dataclass(frozen=True)
class Own:
    """Marks the weights of the last task by ones, all others by zeros."""

    own: Tensor = per_weight()


class Progressive(Method):
    """A network for every task that also reads all earlier ones, which are frozen."""

    name: ClassVar[str] = "progressive"
    colour: ClassVar[str] = "#999933"
    marker: ClassVar[str] = "_"
    memory_type: ClassVar[type] = Own

    @property
    def needs_head_per_task(self) -> bool:
        return True

    def network_of(self, module: nn.Module) -> nn.Module:
        if isinstance(module, Columns):
            return module
        if isinstance(module, MultiHead) and not len(module.heads):
            return Columns(module)
        raise ConversionError(
            "a progressive network gets its heads with its tasks; take networks.mlp without heads, "
            "or MultiHead(body)"
        )

    def first_memory(self, q: MeanField) -> Own:
        return Own(torch.zeros_like(q.mean))

    def move(self, step: Step, memory: Own, here: Here) -> Step:
        """No gradient reaches an earlier column, but what an optimiser keeps of earlier steps may
        still move it."""
        return replace(step, mean=step.mean * memory.own)

    def begin(self, lesson: Lesson) -> Start:
        owner, layout = lesson.network.owner, lesson.network.layout
        pairs = zip(layout.names, layout.sizes, strict=True)
        own = [torch.full((size,), float(owner(name) == lesson.task.head)) for name, size in pairs]
        return replace(super().begin(lesson), memory=Own(torch.cat(own).to(lesson.q.mean)))
