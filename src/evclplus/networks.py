"""Ready-made networks. Any other nn.Module works as well."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
from pydantic import Field
from torch import nn

from evclplus.core.heads import MultiHead
from evclplus.settings import Settings

__all__ = ["MultiHead", "ReadyNetwork", "build", "convnet", "mlp"]


class Architecture(Settings):
    """What a ready-made network is made of, enough to build it again."""

    kind: Literal["mlp", "convnet"]
    input_shape: tuple[int, ...] = Field(min_length=1)
    hidden: tuple[int, ...] = Field(description="widths, or channels for a convnet")
    heads: tuple[int, ...] = Field((), description="outputs of each head; more come with tasks")
    film: bool = Field(False, description="each task has a scale and a shift for every unit")


class ReadyNetwork(MultiHead):
    """A network that knows its own architecture, so that a saved learner can rebuild it."""

    def __init__(self, architecture: Architecture, body: nn.Module, features: int) -> None:
        heads = [nn.Linear(features, width) for width in architecture.heads]
        super().__init__(body, heads, film=architecture.film)
        self.architecture = architecture

    def grow(self, head: int, outputs: int, features: int) -> None:
        super().grow(head, outputs, features)
        widths = list(self.architecture.heads)
        widths[head : head + 1] = [outputs]
        self.architecture = self.architecture.model_copy(update={"heads": tuple(widths)})


def mlp(
    inputs: int,
    hidden: Sequence[int],
    heads: Sequence[int] = (),
    seed: int = 0,
    film: bool = False,
) -> ReadyNetwork:
    """ReLU layers of the given widths, then linear heads. A learner adds heads as tasks arrive;
    `heads` has the outputs of those that are there from the beginning. With `film`, each task has a
    scale and a shift of its own for every unit, see `MultiHead`."""
    return build(
        Architecture(
            kind="mlp", input_shape=(inputs,), hidden=tuple(hidden), heads=tuple(heads), film=film
        ),
        seed,
    )


def convnet(
    input_shape: Sequence[int],
    channels: Sequence[int] = (32, 64),
    heads: Sequence[int] = (),
    seed: int = 0,
    film: bool = False,
) -> ReadyNetwork:
    """For each entry of `channels` a 3x3 convolution, ReLU and 2x2 max-pooling, then the heads,
    as for `mlp`. `input_shape` is (channels, height, width).
    """
    return build(
        Architecture(
            kind="convnet",
            input_shape=tuple(input_shape),
            hidden=tuple(channels),
            heads=tuple(heads),
            film=film,
        ),
        seed,
    )


def build(architecture: Architecture, seed: int) -> ReadyNetwork:
    """The network with weights drawn from `seed`, whatever the global random state is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        body = _BODIES[architecture.kind](architecture)
        features = body(torch.zeros(1, *architecture.input_shape)).shape[1]
        return ReadyNetwork(architecture, body, features)


def _mlp_body(architecture: Architecture) -> nn.Module:
    inputs = torch.Size(architecture.input_shape).numel()
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise((inputs, *architecture.hidden)):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers)


def _convnet_body(architecture: Architecture) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in pairwise((architecture.input_shape[0], *architecture.hidden)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten())


_BODIES: dict[str, Any] = {"mlp": _mlp_body, "convnet": _convnet_body}
