"""FiLM, feature-wise linear modulation (Perez et al., AAAI 2018): a scale and a shift per unit.

    h -> g_t h + b_t    after a linear or convolutional layer, before its activation

A body is told its task this way: every task has a g and a b of its own, which start at (1, 0) and
are point values.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from evclplus.errors import ConversionError


class FiLM(nn.Module):
    """A scale and a shift for each unit of a layer, which in a convolution is a channel."""

    def __init__(self, units: int, positions: int) -> None:
        super().__init__()
        self.positions = positions
        """How many dimensions a unit's values have beside the batch's."""
        self.scale = nn.Parameter(torch.ones(units))
        self.shift = nn.Parameter(torch.zeros(units))

    def forward(self, h: Tensor) -> Tensor:
        shape = (-1,) + (1,) * self.positions
        return h * self.scale.view(shape) + self.shift.view(shape)


def new_films(body: nn.Module) -> nn.ModuleList:
    """What one task needs: a FiLM for each layer of a body that `modulated` stops at."""
    films = nn.ModuleList()
    for layer in layers_of(body):
        if isinstance(layer, nn.Linear):
            films.append(FiLM(layer.out_features, 0))
        elif isinstance(layer, _ConvNd):
            films.append(FiLM(layer.out_channels, len(layer.kernel_size)))
    if not films:
        raise ConversionError(
            f"FiLM stands between the layers of a body, and {type(body).__name__} shows none; make "
            "the body an nn.Sequential of linear or convolutional layers and activations"
        )
    return films


def layers_of(body: nn.Module) -> Iterator[nn.Module]:
    """The layers of an nn.Sequential one after the other, also of those inside it."""
    if not isinstance(body, nn.Sequential):
        yield body
        return
    for part in body:
        yield from layers_of(part)


def modulated(body: nn.Module, films: nn.Module, x: Tensor) -> Tensor:
    """What the body makes of x with a task's FiLM after each linear or convolutional layer."""
    following = films.children()
    for layer in layers_of(body):
        x = layer(x)
        if isinstance(layer, nn.Linear | _ConvNd):
            x = next(following)(x)
    return x
