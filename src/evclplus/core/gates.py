"""Gates: which units of a body a task uses (Serra et al., ICML 2018).

    a_l = sigmoid(s e_t,l)      h_l <- a_l h_l      for hidden layer l of task t

e is learned, a number for each unit and task; s, the hardness, makes the gates nearly zero or one.
"""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from evclplus.core.columns import linear_layers
from evclplus.core.film import layers_of
from evclplus.core.heads import Held, MultiHead


def gate(embedding: Tensor, hardness: Tensor, largest: float | Tensor) -> Tensor:
    """a = sigmoid(s e), with the gradient that the paper makes of its own, equation 5:

    da/de = (s_max / s) (cosh(s e) + 1) / (cosh(e) + 1) * d sigmoid(s e)/de = s_max sigmoid'(e)

    since sigmoid'(z) = 1 / (2 (cosh(z) + 1)): the same whatever s is, so that hard gates learn too.
    """
    soft = largest * embedding.sigmoid()
    return (hardness * embedding).sigmoid().detach() + soft - soft.detach()


class Gated(MultiHead):
    """A body of linear layers, and for each head gates after its layers' activations. `largest` is
    the hardness that it answers with."""

    def __init__(self, module: MultiHead, largest: float) -> None:
        super().__init__(copy.deepcopy(module.body), new_head=module.new_head)
        layers = linear_layers(module, "a network with gates")
        self.widths = [one.out_features for one in layers if isinstance(one, nn.Linear)]
        self.largest = largest
        self.gates = nn.ModuleList()
        self.register_buffer("hardness", torch.tensor(float(largest)))
        self.hardness: Tensor
        self.architecture = getattr(module, "architecture", None)

    def forward(self, x: Tensor, head: int | Sequence[int] = 0, held: Held | None = None) -> Tensor:
        """The outputs of a head, or of several side by side; without any, the features of a body
        without gates."""
        asked = (head,) if isinstance(head, int) else tuple(head)
        if not asked:
            features: Tensor = self.body(x)
            return features
        return torch.cat([self.heads[one](self.features(x, one)) for one in asked], 1)

    def features(self, x: Tensor, head: int) -> Tensor:
        gates = [gate(e, self.hardness, self.largest) for e in self.gates[head].parameters()]
        passed = -1
        for layer in layers_of(self.body):
            if isinstance(layer, nn.Linear):
                x = layer(x if passed < 0 else x * gates[passed])
                passed += 1
            else:
                x = layer(x)
        return x * gates[passed]

    def owner(self, name: str) -> int | None:
        part, _, rest = name.partition(".")
        return int(rest.partition(".")[0]) if part in ("heads", "gates") else None

    def uses(self, head: int, name: str) -> bool:
        return self.owner(name) in (None, head)

    def embedding(self, head: int, layer: int) -> str:
        """The name of a layer's e for a head."""
        return f"gates.{head}.{layer}"

    def parts_of(self, head: int) -> list[nn.Module]:
        return [self.gates[head], self.heads[head]]

    def grow(self, head: int, outputs: int, features: int) -> None:
        if head == len(self.heads):
            self.gates.append(nn.ParameterList([torch.randn(width) for width in self.widths]))
        super().grow(head, outputs, features)
