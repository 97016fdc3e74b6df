"""Linear and convolution in their local form: they sample pre-activations, not weights."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evclplus.core.noise import CountedNoise, Random, noise_like

SMALLEST_VARIANCE = 1e-16
"""Below this the square root of a pre-activation's variance has no usable gradient."""


@dataclass(slots=True)
class Loaded:
    """The weights of one layer for one forward pass, by name: weight, bias.

    Without a generator the pass is the mean's. With a sink, gradients go there instead of
    through the weights.
    """

    means: dict[str, Tensor]
    variances: dict[str, Tensor]
    generator: Random | None = None
    sink: "Sink | None" = None
    calls: int = 0
    read: bool = False
    drawn: dict[str, Tensor] = field(default_factory=dict)
    data: Tensor | None = None
    """With many samples, the network's input: the moments of a layer that reads it are the same
    for all of them."""
    moments: tuple[Tensor, Tensor] | None = None


NOTHING = Loaded({}, {})


class Sink(Protocol):
    """Computes a layer's output and takes its gradients, see core/step.py."""

    def forward(self, layer: "LocalLayer", x: Tensor) -> Tensor: ...


class LocalLayer(nn.Module, ABC):
    """A layer that samples its pre-activations instead of its weights.

    For z = W x + b with independent Gaussian W and b, z is Gaussian with mean
    E[W] x + E[b] and variance Var[W] x^2 + Var[b], independent across examples.
    """

    loaded: Loaded

    @abstractmethod
    def operation(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The layer as a function of its input and weights."""

    def load(self, weights: Loaded) -> None:
        self.__dict__["loaded"] = weights  # nn.Module's own assignment is slow

    def forward(self, x: Tensor) -> Tensor:
        loaded = self.loaded
        loaded.calls += 1
        if loaded.sink is not None:
            return loaded.sink.forward(self, x)
        if loaded.generator is None or not loaded.variances:
            return self.output_mean(x)
        if loaded.data is not None and not _is_view_of(x, loaded.data):
            # One of many samples: a draw of the weights serves all examples with one product.
            weight = self.draw("weight")
            assert weight is not None
            return self.operation(x, weight, self.draw("bias"))
        if loaded.moments is None:
            loaded.moments = self.output_mean(x), self.output_variance(x).sqrt()
        mean, std = loaded.moments
        return torch.addcmul(mean, std, self.noise(mean, loaded.generator))

    def noise(self, mean: Tensor, generator: Random) -> Tensor:
        return noise_like(mean, generator)

    def output_mean(self, x: Tensor) -> Tensor:
        return self._product(x, self.loaded.means["weight"], self.loaded.means.get("bias"))

    def output_variance(self, x: Tensor) -> Tensor:
        means, variances = self.loaded.means, self.loaded.variances
        weight = variances.get("weight")
        if weight is None:
            weight = torch.zeros_like(means["weight"])
        variance = self._product(x.square(), weight, variances.get("bias"))
        if "bias" in variances:
            return variance
        # An input of zeros has no variance; the square root's slope there is infinite.
        return variance.clamp_min(SMALLEST_VARIANCE)

    def _product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The operation in the precision of the weights; all else keeps that of the input."""
        return self.operation(x.to(weight.dtype), weight, bias).to(x.dtype)

    def draw(self, name: str) -> Tensor | None:
        """A sampled weight, for modules that read a layer's weight instead of calling it."""
        loaded = self.loaded
        if name not in loaded.means:
            return None
        if name not in loaded.drawn:
            variance = loaded.variances.get(name)
            loaded.drawn[name] = draw_weight(loaded.means[name], variance, loaded.generator)
        return loaded.drawn[name]

    def _read(self, name: str) -> Tensor | None:
        self.loaded.read = True
        return self.draw(name)

    # Data descriptors on the class come before the parameters an nn.Module keeps by name.
    weight = property(lambda self: self._read("weight"))
    bias = property(lambda self: self._read("bias"))


class LocalLinear(LocalLayer, nn.Linear):
    def noise(self, mean: Tensor, generator: Random) -> Tensor:
        if not isinstance(generator, CountedNoise):
            return noise_like(mean, generator)
        # Counted output by output, as compiled graphs keep them in memory.
        return generator.like(mean.movedim(-1, 0)).movedim(0, -1)

    def operation(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if x.dim() == 2:
            return F.linear(x, weight, bias)
        # F.linear makes rows of them too, but with sizes that a trace would take for constants.
        rows = F.linear(x.reshape(-1, x.shape[-1]), weight, bias)
        return rows.view(*x.shape[:-1], -1)


class LocalConvolution(LocalLayer):
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


def _is_view_of(x: Tensor, data: Tensor) -> bool:
    """Whether x is the data in another shape. The data is alive, so its memory is nobody else's."""
    same_memory = x.data_ptr() == data.data_ptr() and x.numel() == data.numel()
    return same_memory and x.is_contiguous() and data.is_contiguous()


def draw_weight(mean: Tensor, variance: Tensor | None, generator: Random | None) -> Tensor:
    if variance is None or generator is None:
        return mean
    return mean + variance.sqrt() * noise_like(mean, generator)
