"""Columns of linear layers, each of which reads what earlier ones have learned (Rusu et al., 2016).

    h_l = f( W_l h_{l-1} + U_l relu( V_l [a_j h_{l-1} of column j, for every earlier column j] ) )

The second part is an adapter: a scalar for each earlier column, a layer that makes their units as
few as the column's own, and one that brings them into the column. The outputs have one too. Earlier
columns give and never take: no gradient reaches them.
"""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from evclplus.core.film import layers_of
from evclplus.core.heads import Held, MultiHead
from evclplus.errors import ConversionError

Received = list[Tensor]
"""What the layers of a column after its first received, and last what its head does."""


class Adapter(nn.Module):
    """U relu(V [a_j h_j]) for `columns` earlier columns of `inputs` units."""

    def __init__(self, columns: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(0.1 * torch.rand(columns))  # the paper's small random numbers
        self.reduce = nn.Linear(columns * inputs, inputs)
        self.expand = nn.Linear(inputs, outputs, bias=False)

    def forward(self, earlier: Sequence[Tensor]) -> Tensor:
        scaled = [a * h for a, h in zip(self.scale, earlier, strict=True)]
        found: Tensor = self.expand(self.reduce(torch.cat(scaled, 1)).relu())
        return found


class Column(nn.Module):
    """Layers, a head's place above them, and adapters to `earlier` columns of the same widths."""

    def __init__(self, layers: Sequence[nn.Module], earlier: int, outputs: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        widths = [layer.out_features for layer in layers if isinstance(layer, nn.Linear)]
        pairs = zip(widths, (*widths[1:], outputs), strict=True)
        adapters = [Adapter(earlier, *pair) for pair in pairs] if earlier else []
        self.adapters = nn.ModuleList(adapters)

    def forward(self, x: Tensor, earlier: Sequence[Received]) -> Received:
        received: Received = []
        first = True
        for layer in self.layers:
            if isinstance(layer, nn.Linear) and not first:
                received.append(x)
                x = self.with_lateral(layer(x), len(received) - 1, earlier)
            else:
                x = layer(x)
            first = first and not isinstance(layer, nn.Linear)
        return [*received, x]

    def with_lateral(self, z: Tensor, place: int, earlier: Sequence[Received]) -> Tensor:
        """A layer's output and what earlier columns add to it; the head's place is the last."""
        if not earlier:
            return z
        lateral: Tensor = self.adapters[place]([column[place] for column in earlier])
        return z + lateral


class Columns(MultiHead):
    """A progressive network: a column and a head for each task. The first column is the body of the
    network that it is made of; each further one has the same layers, with weights of its own."""

    def __init__(self, module: MultiHead) -> None:
        super().__init__(nn.Identity(), new_head=module.new_head)
        layers = linear_layers(module, "a progressive network")
        self.columns = nn.ModuleList([Column(copy.deepcopy(layers), 0, 0)])
        self.architecture = getattr(module, "architecture", None)

    def forward(self, x: Tensor, head: int | Sequence[int] = 0, held: Held | None = None) -> Tensor:
        """The outputs of a head, or of several side by side; without any, the first features."""
        asked = (head,) if isinstance(head, int) else tuple(head)
        earlier: list[Received] = []
        outputs: dict[int, Tensor] = {}
        for number in range(max(asked, default=0) + 1):
            column = self.columns[number]
            assert isinstance(column, Column)
            received = column(x, earlier)
            if number in asked:
                output = self.heads[number](received[-1])
                outputs[number] = column.with_lateral(output, -1, earlier)
            earlier.append([one.detach() for one in received])
        return torch.cat([outputs[one] for one in asked], 1) if asked else earlier[0][-1]

    def owner(self, name: str) -> int | None:
        return int(name.split(".")[1])

    def uses(self, head: int, name: str) -> bool:
        owner = self.owner(name)
        return owner is not None and owner <= head

    def parts_of(self, head: int) -> list[nn.Module]:
        return [self.columns[head], self.heads[head]]

    def grow(self, head: int, outputs: int, features: int) -> None:
        if head < len(self.heads):
            raise ConversionError(
                f"head {head} of a progressive network cannot become wider; learn a task with all "
                "its classes at once"
            )
        if head > 0:
            layers = _anew(self.columns[0].layers)  # type: ignore[arg-type]
            self.columns.append(Column(layers, head, outputs))
        super().grow(head, outputs, features)


class OnColumn(nn.Module):
    """A column that reads one other with the same layers, `base`, whose weights stay as they are
    set."""

    def __init__(self, layers: Sequence[nn.Module], features: int, outputs: int) -> None:
        super().__init__()
        self.base = Column(_anew(layers), 0, 0).requires_grad_(False)
        self.column = Column(_anew(layers), 1, outputs)
        self.head = nn.Linear(features, outputs)

    def forward(self, x: Tensor) -> Tensor:
        earlier = [self.base(x, [])]
        features = self.column(x, earlier)[-1]
        return self.column.with_lateral(self.head(features), -1, earlier)


def linear_layers(module: nn.Module, what: str) -> list[nn.Module]:
    """The layers of a network's body, or one line on why columns cannot be made of them."""
    body = module.body if isinstance(module, MultiHead) else module
    layers = list(layers_of(body))
    known = all(isinstance(one, nn.Linear) or not list(one.parameters()) for one in layers)
    linear = any(isinstance(one, nn.Linear) for one in layers)
    told = isinstance(module, MultiHead) and module.films is not None
    if isinstance(module, MultiHead) and known and linear and not told:
        return layers
    raise ConversionError(
        f"{what} has adapters between linear layers, which {type(module).__name__} does not show; "
        "take networks.mlp, or MultiHead(body) with an nn.Sequential of linear layers and "
        "activations"
    )


def _anew(layers: Sequence[nn.Module]) -> list[nn.Module]:
    """The same layers with weights drawn again."""
    return [
        nn.Linear(one.in_features, one.out_features, bias=one._parameters["bias"] is not None)
        if isinstance(one, nn.Linear)
        else copy.deepcopy(one)
        for one in layers
    ]
