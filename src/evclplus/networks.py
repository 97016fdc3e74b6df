"""Ready-made networks. Any other nn.Module works as well."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, model_validator
from torch import nn

from evclplus.core.heads import MultiHead
from evclplus.core.inputs import SeveralInputs, TextEncoder
from evclplus.errors import SettingsError
from evclplus.settings import Settings, whole

__all__ = [
    "MultiHead",
    "ReadyNetwork",
    "SeveralInputs",
    "TextEncoder",
    "build",
    "convnet",
    "mlp",
]


Size = Annotated[int, Field(ge=1, le=10**7)]


class Architecture(Settings):
    """What a ready-made network is made of, enough to build it again."""

    kind: Literal["mlp", "convnet"]
    input_shape: tuple[Size, ...] = Field(min_length=1, max_length=3)
    hidden: tuple[Size, ...] = Field(description="widths, or channels for a convnet")
    heads: tuple[Size, ...] = Field((), description="outputs of each head; more come with tasks")
    film: bool = Field(False, description="each task has a scale and a shift for every unit")

    @model_validator(mode="after")
    def _pooling_leaves_a_pixel(self) -> "Architecture":
        if self.kind == "mlp":
            return self
        if len(self.input_shape) != 3:
            raise ValueError(f"a convnet reads (channels, height, width), not {self.input_shape}")
        if min(self.input_shape[1:]) < 2 ** len(self.hidden):
            raise ValueError(
                f"{len(self.hidden)} layers halve {self.input_shape[1]}x{self.input_shape[2]} "
                "pixels until none is left; give fewer channels"
            )
        return self


class ReadyNetwork(MultiHead):
    """A network that knows its own architecture, so that a saved learner can rebuild it."""

    def __init__(self, architecture: Architecture, body: nn.Module, features: int) -> None:
        heads = [nn.Linear(features, width) for width in architecture.heads]
        super().__init__(body, heads, film=architecture.film)
        self.architecture = architecture

    def with_film(self) -> "ReadyNetwork":
        told = super().with_film()
        assert isinstance(told, ReadyNetwork)
        told.architecture = self.architecture.model_copy(update={"film": True})
        return told

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
        Architecture(kind="mlp", input_shape=(inputs,), hidden=hidden, heads=heads, film=film), seed
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
            input_shape=input_shape,
            hidden=channels,
            heads=heads,
            film=film,
        ),
        seed,
    )


def build(architecture: Architecture, seed: int) -> ReadyNetwork:
    """The network with weights drawn from `seed`, whatever the global random state is."""
    seed = whole("seed", seed, 0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            body = _BODIES[architecture.kind](architecture)
            features = body(torch.zeros(1, *architecture.input_shape)).shape[1]
            return ReadyNetwork(architecture, body, features)
        except (RuntimeError, MemoryError) as error:  # torch's word for too little memory
            reason = (str(error).strip() or "out of memory").splitlines()[0]
            raise SettingsError(
                f"a network of widths {architecture.hidden} cannot be made: {reason}"
            ) from None


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
