"""Linear and convolution in their local form: they sample pre-activations, not weights."""

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evclplus.core.noise import Noise, PredictionNoise

SMALLEST_VARIANCE = 1e-16
"""Below this the square root of a pre-activation's variance has no usable gradient."""


@dataclass(slots=True)
class Loaded:
    """The weights of one layer for one forward pass, by name: weight, bias.

    Without noise the pass is the mean's. `pairs` are means and variances side by side, where they
    lie so in memory.
    """

    means: dict[str, Tensor]
    variances: dict[str, Tensor]
    pairs: dict[str, Tensor] = field(default_factory=dict)
    noise: Noise | None = None
    calls: int = 0
    read: bool = False
    drawn: dict[str, Tensor] = field(default_factory=dict)
    data: Tensor | None = None
    """With many samples, the network's input: the moments of a layer that reads it are the same
    for all of them."""
    moments: tuple[Tensor, Tensor] | None = None


NOTHING = Loaded({}, {})


class LocalLayer(nn.Module, ABC):
    """A layer that samples its pre-activations instead of its weights.

    For z = W x + b with independent Gaussian W and b, z is Gaussian with mean
    E[W] x + E[b] and variance Var[W] x^2 + Var[b], independent across examples.
    """

    loaded: Loaded
    keeps_moments: ClassVar[bool] = True
    """Whether many samples share the moments of what it makes of the data. Else weights are drawn
    for each sample, as in later layers."""

    @abstractmethod
    def operation(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The layer as a function of its input and weights."""

    def __deepcopy__(self, memo: dict[int, object]) -> "LocalLayer":
        """As everybody's, but quick: a network may have a thousand heads. All that can change in
        such a layer are dicts."""
        made: LocalLayer = self.__new__(type(self))
        memo[id(self)] = made
        for name, value in vars(self).items():
            is_filled = isinstance(value, dict) and len(value) > 0
            empty = type(value)() if isinstance(value, dict) else value
            vars(made)[name] = copy.deepcopy(value, memo) if is_filled else empty
        return made

    def load(self, weights: Loaded) -> None:
        self.__dict__["loaded"] = weights  # nn.Module's own assignment is slow

    def forward(self, x: Tensor) -> Tensor:
        loaded = self.loaded
        loaded.calls += 1
        local = loaded.data is None or (self.keeps_moments and _has_rows_of(x, loaded.data))
        if not x.is_floating_point():  # whole numbers are numbers too
            x = x.to(loaded.means["weight"].dtype)
        if loaded.noise is None or not loaded.variances:
            return self.operation(x, loaded.means["weight"], loaded.means.get("bias")).to(x.dtype)
        if not local:
            # One of many samples: a draw of the weights serves all examples with one product.
            weight = self.draw("weight")
            assert weight is not None
            return self.operation(x, weight, self.draw("bias"))
        if loaded.moments is None:
            # Products may be made in a lower precision; all else keeps that of the input.
            mean, variance = (moment.to(x.dtype) for moment in self.moments(x))
            if "bias" not in loaded.variances:
                # An input of zeros has no variance; the square root's gradient there is infinite.
                variance = variance.clamp_min(SMALLEST_VARIANCE)
            loaded.moments = mean, variance.sqrt()
        mean, std = loaded.moments
        if isinstance(loaded.noise, PredictionNoise):
            return torch.addcmul(mean, std, loaded.noise.of_rows(mean))
        return torch.addcmul(mean, std, self.noise_like(mean, loaded.noise))

    def noise_like(self, mean: Tensor, noise: Noise) -> Tensor:
        return noise.like(mean)

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the pre-activations."""
        means, variances = self.loaded.means, self.loaded.variances
        weight = variances.get("weight")
        if weight is None:
            weight = torch.zeros_like(means["weight"])
        return (
            self.operation(x, means["weight"], means.get("bias")),
            self.operation(x.square(), weight, variances.get("bias")),
        )

    def draw(self, name: str) -> Tensor | None:
        """A sampled weight."""
        loaded = self.loaded
        if name not in loaded.means:
            return None
        if name not in loaded.drawn:
            variance = loaded.variances.get(name)
            loaded.drawn[name] = draw_weight(loaded.means[name], variance, loaded.noise)
        return loaded.drawn[name]

    def _read(self, name: str) -> Tensor | None:
        self.loaded.read = True
        return self.draw(name)

    # Data descriptors on the class come before the parameters an nn.Module keeps by name.
    weight = property(lambda self: self._read("weight"))
    bias = property(lambda self: self._read("bias"))


class LocalLinear(LocalLayer, nn.Linear):
    def noise_like(self, mean: Tensor, noise: Noise) -> Tensor:
        # Counted output by output, as `moments` lays them out in training.
        return noise.like(mean.movedim(-1, 0)).movedim(0, -1)

    def operation(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if x.dim() == 2:
            return F.linear(x, weight, bias)
        # F.linear makes rows of them too, but with sizes that a trace would take for constants.
        rows = F.linear(x.reshape(-1, x.shape[-1]), weight, bias)
        return rows.view(*x.shape[:-1], -1)

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Where means and variances lie side by side, one batched product of both with (x, x^2).

        The outputs then lie in memory output by output, all examples of one after the other, and
        stay so through activations. The products of few outputs, and those of their gradients, are
        up to a half faster this way: their inner loops run over examples.
        """
        pairs = self.loaded.pairs
        if pairs.keys() != self.loaded.means.keys():
            return super().moments(x)
        rows = x.reshape(-1, x.shape[-1])
        if rows.is_contiguous():
            inputs = torch.stack([rows, rows.square()]).mT
        else:
            inputs = torch.stack([rows.t(), rows.t().square()])
        both = torch.bmm(pairs["weight"], inputs)
        if "bias" in pairs:
            both = both + pairs["bias"].unsqueeze(2)
        mean, variance = (one.t().reshape(*x.shape[:-1], -1) for one in both)
        return mean, variance


class LocalConvolution(LocalLayer):
    # A number drawn for every position takes longer than the product.
    keeps_moments = False

    def operation(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self._conv_forward(x, weight, bias)  # type: ignore[no-any-return, operator]


class LocalConv1d(LocalConvolution, nn.Conv1d):
    pass


class LocalConv2d(LocalConvolution, nn.Conv2d):
    pass


class LocalConv3d(LocalConvolution, nn.Conv3d):
    pass


LOCAL_LAYERS: dict[type[nn.Module], type[LocalLayer]] = {
    nn.Linear: LocalLinear,
    nn.Conv1d: LocalConv1d,
    nn.Conv2d: LocalConv2d,
    nn.Conv3d: LocalConv3d,
}


def _has_rows_of(x: Tensor, data: Tensor) -> bool:
    """Whether x is the data, row by row, in another shape. The data is alive, so its memory is
    nobody else's."""
    same_memory = x.data_ptr() == data.data_ptr() and x.numel() == data.numel()
    return same_memory and x.is_contiguous() and len(x) % max(1, len(data)) == 0


def draw_weight(mean: Tensor, variance: Tensor | None, noise: Noise | None) -> Tensor:
    if variance is None or noise is None:
        return mean
    return noise.draw(mean, variance)
