"""How a network's outputs belong to tasks: a head per task, or one head that grows."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from evclplus.core.gaussian import Layout
from evclplus.errors import ConversionError


class MultiHead(nn.Module):
    """A shared body and one small output module, a head, for each task (or one for all)."""

    def __init__(self, body: nn.Module, heads: Sequence[nn.Module]) -> None:
        super().__init__()
        if not heads:
            raise ConversionError("MultiHead needs at least one head, for example nn.Linear(64, 2)")
        self.body = body
        self.heads = nn.ModuleList(heads)

    def forward(self, x: Tensor, head: int | Sequence[int] = 0) -> Tensor:
        """The outputs of a head, or of several heads side by side."""
        features = self.body(x)
        if isinstance(head, int):
            output: Tensor = self.heads[head](features)
            return output
        return torch.cat([self.heads[one](features) for one in head], 1)


def shared_weights(module: nn.Module, layout: Layout) -> Tensor:
    """Marks the weights that more than one task uses: all of them when there is one head."""
    separate = isinstance(module, MultiHead) and len(module.heads) > 1
    marks = [
        torch.full((size,), not (separate and name.startswith("heads.")))
        for name, size in zip(layout.names, layout.sizes, strict=True)
    ]
    return torch.cat(marks)


def new_weights(
    module: nn.Module, layout: Layout, head: int, seen: dict[int, int], outputs: int
) -> Tensor:
    """Marks the weights that come into use with a task.

    `seen` says how many outputs of each head earlier tasks used; the task uses `outputs` of
    `head`. The body comes with the first task, a head with its first task, and the rows of a
    growing linear head with the classes they stand for.
    """
    before = seen.get(head, 0)
    marks = []
    for name, shape in zip(layout.names, layout.shapes, strict=True):
        mark = torch.zeros(shape, dtype=torch.bool)
        if not isinstance(module, MultiHead) or name.startswith("body."):
            mark[...] = not seen
        elif name.startswith(f"heads.{head}."):
            grows = isinstance(module.heads[head], nn.Linear)
            mark[slice(before, outputs) if grows else ...] = grows or before == 0
        marks.append(mark.flatten())
    return torch.cat(marks)
