"""How a network's outputs belong to tasks: a head per task, or one head that grows."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evclplus.core.gaussian import Layout

Owner = Callable[[str], int | None]
"""Which head a parameter belongs to; None: all tasks use it."""

Held = tuple[Tensor, Tensor]
"""Weight and bias of several linear heads, row by row, kept at values of their own."""


class MultiHead(nn.Module):
    """A shared body and one small output module, a head, for each task (or one for all).

    Heads may be given, or made as tasks arrive: `new_head(features, outputs)` makes one, by default
    a linear layer.
    """

    def __init__(
        self,
        body: nn.Module,
        heads: Sequence[nn.Module] = (),
        new_head: Callable[[int, int], nn.Module] = nn.Linear,
    ) -> None:
        super().__init__()
        self.body = body
        self.heads = nn.ModuleList(heads)
        self.new_head = new_head

    def forward(self, x: Tensor, head: int | Sequence[int] = 0, held: Held | None = None) -> Tensor:
        """The outputs of a head, or of several side by side; those of `held` come last. Without any
        head, the features."""
        features = self.body(x)
        asked = (head,) if isinstance(head, int) else head
        outputs = [self.heads[one](features) for one in asked]
        if held is not None:
            outputs.append(F.linear(features, *held))
        if not outputs:
            outputs = [features]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)

    def owner(self, name: str) -> int | None:
        """The head that a parameter belongs to; None for the body's."""
        part, _, rest = name.partition(".")
        return int(rest.partition(".")[0]) if part == "heads" else None

    def grow(self, head: int, outputs: int, features: int) -> None:
        """Add the head that a task needs, or outputs to a linear one that has fewer."""
        if head == len(self.heads):
            self.heads.append(self.new_head(features, outputs))
            return
        old, new = self.heads[head], self.new_head(features, outputs)
        assert isinstance(old, nn.Linear), "only a linear head can become wider"
        assert isinstance(new, nn.Linear)
        first = dict(old.named_parameters())
        with torch.no_grad():
            for name, value in new.named_parameters():
                value[: old.out_features] = first[name]
        self.heads[head] = new


def new_weights(
    owner: Owner, layout: Layout, head: int, seen: dict[int, int], outputs: int, grows: bool
) -> Tensor:
    """Marks the weights that come into use with a task.

    `seen` says how many outputs of each head earlier tasks used; the task uses `outputs` of
    `head`. Shared weights come with the first task, a head with its first task, and the rows of a
    head that `grows` with the classes they stand for.
    """
    before = seen.get(head, 0)
    marks = []
    for name, shape in zip(layout.names, layout.shapes, strict=True):
        mark = torch.zeros(shape, dtype=torch.bool)
        owned_by = owner(name)
        if owned_by is None:
            mark[...] = not seen
        elif owned_by == head:
            mark[slice(before, outputs) if grows else ...] = grows or before == 0
        marks.append(mark.flatten())
    return torch.cat(marks)
