"""How a network's outputs belong to tasks: a head per task, or one head that grows."""

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evclplus.core.film import modulated, new_films
from evclplus.core.gaussian import Layout
from evclplus.errors import ConversionError

Owner = Callable[[str], int | None]
"""Which head a parameter belongs to; None: all tasks use it."""

Held = tuple[Tensor, Tensor]
"""Weight and bias of several linear heads, row by row, kept at values of their own."""


class MultiHead(nn.Module):
    """A shared body and one small output module, a head, for each task (or one for all).

    Heads may be given, or made as tasks arrive: `new_head(features, outputs)` makes one, by default
    a linear layer. With `film` the body is told its task: each head has a scale and a shift for
    every unit of the body, which has to be an nn.Sequential.
    """

    def __init__(
        self,
        body: nn.Module,
        heads: Sequence[nn.Module] = (),
        new_head: Callable[[int, int], nn.Module] = nn.Linear,
        film: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(heads, Sequence | nn.ModuleList):
            raise ConversionError(f"heads = {heads!r:.60} is wrong: a list of modules, or nothing")
        heads = list(heads)
        for what, module in (("body", body), *(("head", head) for head in heads)):
            if not isinstance(module, nn.Module):
                raise ConversionError(
                    f"a MultiHead was given {module!r:.60} as {what}; expected a module (heads "
                    "need not be given: they come as tasks arrive)"
                )
        self.body = body
        self.heads = nn.ModuleList(heads)
        self.new_head = new_head
        self.films: nn.ModuleList | None = None
        if film:
            self.films = nn.ModuleList([new_films(body) for _ in heads])

    def forward(self, x: Tensor, head: int | Sequence[int] = 0, held: Held | None = None) -> Tensor:
        """The outputs of a head, or of several side by side; those of `held` come last. Without any
        head, the features."""
        asked = (head,) if isinstance(head, int) else head
        if self.films is not None and asked:
            outputs = [self.heads[one](modulated(self.body, self.films[one], x)) for one in asked]
        else:
            features = self.body(x)
            outputs = [self.heads[one](features) for one in asked]
            if held is not None:
                outputs.append(F.linear(features, *held))
            outputs = outputs or [features]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)

    def owner(self, name: str) -> int | None:
        """The head that a parameter belongs to; None for the body's."""
        part, _, rest = name.partition(".")
        return int(rest.partition(".")[0]) if part in ("heads", "films") else None

    def uses(self, head: int, name: str) -> bool:
        """Whether an answer of a head may depend on a parameter: not on those of other heads, but
        for a subclass that has its own way to ask them."""
        return type(self).forward is not MultiHead.forward or self.owner(name) in (None, head)

    def is_point(self, name: str) -> bool:
        """Whether a parameter stays a point value, whatever the method."""
        return name.startswith("films.")

    def rows_are_outputs(self, name: str) -> bool:
        """Whether a parameter belongs to a head that can become wider, a row for each output."""
        part, _, rest = name.partition(".")
        return part == "heads" and isinstance(self.heads[int(rest.partition(".")[0])], nn.Linear)

    def parts_of(self, head: int) -> list[nn.Module]:
        """What came with a head: its FiLM, if there is one, and itself."""
        films = [] if self.films is None else [self.films[head]]
        return [*films, self.heads[head]]

    def with_film(self) -> "MultiHead":
        """A copy whose body is told its task."""
        told = copy.deepcopy(self)
        if told.films is None:
            told.films = nn.ModuleList([new_films(told.body) for _ in told.heads])
        return told

    def grow(self, head: int, outputs: int, features: int) -> None:
        """Add the head that a task needs, or outputs to a linear one that has fewer."""
        if head == len(self.heads):
            self.heads.append(self.new_head(features, outputs))
            if self.films is not None:
                self.films.append(new_films(self.body))
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
    owner: Owner,
    layout: Layout,
    names: Sequence[str],
    head: int,
    seen: dict[int, int],
    outputs: int,
    grows: Callable[[str], bool],
) -> Tensor:
    """Marks the weights that come into use with a task; `names` are those that may.

    `seen` says how many outputs of each head earlier tasks used; the task uses `outputs` of
    `head`. Shared weights come with the first task, what a head owns with its first task, and the
    rows of a parameter that `grows` with the classes they stand for.
    """
    before = seen.get(head, 0)
    marks = torch.zeros(layout.total, dtype=torch.bool)
    for name, mark in layout.named(marks, names).items():
        owned_by = owner(name)
        if owned_by is None:
            mark[...] = not seen
        elif owned_by == head:
            rows = grows(name)
            mark[slice(before, outputs) if rows else ...] = rows or before == 0
    return marks
