"""Any nn.Module becomes a network whose weights are a `MeanField`.

Parameters become Gaussian, not layers. Linear and convolution sample their pre-activations (the
local reparameterisation trick); every other floating parameter is sampled as a weight.
"""

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from evclplus.core.gaussian import Layout, MeanField
from evclplus.core.heads import MultiHead
from evclplus.core.layers import LOCAL_LAYERS, NOTHING, Loaded, LocalLayer, draw_weight
from evclplus.core.noise import Random
from evclplus.errors import ConversionError

Predicate = Callable[[str], bool]


class BayesianNetwork:
    """A copy of a module that computes with the weights it is handed.

    The module itself is never touched. `point` names the parameters to keep as point values.
    Parameters with requires_grad=False stay constants. The copy keeps its own buffers, so
    running statistics and dropout mean what they always mean. `device` is where it computes,
    by default where the module's weights are.
    """

    def __init__(
        self,
        module: nn.Module,
        point: Predicate = lambda name: False,
        device: torch.device | None = None,
    ) -> None:
        self.skeleton = _copy(module)
        if device is not None:
            self.skeleton.to(device)
        parameters = {
            name: parameter
            for name, parameter in self.skeleton.named_parameters()
            if parameter.requires_grad
        }
        _check(module, parameters)
        names = sorted(parameters, key=point)  # stable: Gaussian ones first, in module order
        self.layout = Layout(
            names=tuple(names),
            shapes=tuple(tuple(parameters[name].shape) for name in names),
            gaussian_names=sum(not point(name) for name in names),
        )
        self.local_layers = _make_layers_local(self.skeleton)
        self.has_heads = isinstance(module, MultiHead)

    def copy(self) -> "BayesianNetwork":
        """A network with its own running statistics; the first weights are shared."""
        first_weights = {id(p): p for p in self.skeleton.parameters()}
        return copy.deepcopy(self, memo=first_weights)

    @property
    def device(self) -> torch.device:
        return next(self.skeleton.parameters()).device

    @property
    def buffers(self) -> dict[str, Tensor]:
        """Running statistics and other buffers, by name."""
        return dict(self.skeleton.named_buffers())

    def initial(self, variance: float) -> MeanField:
        """The module's own weights as means, with one variance for all Gaussian ones."""
        parameters = dict(self.skeleton.named_parameters())
        mean = torch.cat([parameters[name].detach().flatten() for name in self.layout.names])
        return MeanField(mean, mean.new_full((self.layout.gaussian_total,), variance), self.layout)

    @torch.no_grad()
    def restore(self, initial_mean: Tensor, buffers: dict[str, Tensor]) -> None:
        """Take over the first weights and the running statistics of another network."""
        parameters = dict(self.skeleton.named_parameters())
        for name, value in self.layout.named(initial_mean).items():
            parameters[name].copy_(value)
        for name, buffer in self.buffers.items():
            buffer.copy_(buffers[name])

    def __call__(
        self,
        q: MeanField,
        x: Tensor,
        head: int | Sequence[int] = 0,
        *,
        generator: Random | None = None,
        training: bool = False,
    ) -> Tensor:
        """The output under weights drawn from q; without a generator, under q's mean."""
        means = self.layout.named(q.mean)
        variances = {} if generator is None else self.layout.named(q.variance)
        return self.call(means, variances, x, head, generator, training)

    def call(
        self,
        means: dict[str, Tensor],
        variances: dict[str, Tensor],
        x: Tensor,
        head: int | Sequence[int] = 0,
        generator: Random | None = None,
        training: bool = False,
    ) -> Tensor:
        """The output under weights given by name, drawn if there is a generator."""
        layers = {
            path: self.weights_of(path, means, variances, generator) for path in self.local_layers
        }
        values = self.drawn_values(means, variances, generator)
        output = self.run(layers, values, x, head, training)
        if output is not None:
            return output
        return self.call(means, variances, x, head, generator, training)

    def samples(
        self, q: MeanField, x: Tensor, head: int, generator: torch.Generator, count: int
    ) -> Iterator[Tensor]:
        """Outputs under `count` draws from q.

        A layer that reads the data computes its output's moments once and draws from them. Later
        layers draw weights, one draw for all examples: half the products, less noise to make.
        """
        means, variances = self.layout.named(q.mean), self.layout.named(q.variance)
        layers: dict[str, Loaded] = {}
        while count:
            for path in self.local_layers:
                if path not in layers:
                    layers[path] = self.weights_of(path, means, variances, generator)
                    layers[path].data = x
                layers[path].calls, layers[path].drawn = 0, {}
            values = self.drawn_values(means, variances, generator)
            output = self.run(layers, values, x, head, training=False)
            if output is None:
                layers = {}
            else:
                count -= 1
                yield output

    def names_for(self, head: int) -> list[str]:
        """The weights that an answer of this head may depend on: all but those of other heads,
        unless the module has its own way to ask them."""
        if not self.has_heads or type(self.skeleton).forward is not MultiHead.forward:
            return list(self.layout.names)
        own = f"heads.{head}."
        return [n for n in self.layout.names if n.startswith(own) or not n.startswith("heads.")]

    def weights_of(
        self,
        path: str,
        means: dict[str, Tensor],
        variances: dict[str, Tensor],
        generator: Random | None,
    ) -> Loaded:
        """What a layer needs of the named weights; frozen parameters keep their value."""
        prefix = f"{path}." if path else ""
        parameters = self.local_layers[path]._parameters
        own = {name: value for name, value in parameters.items() if value is not None}
        return Loaded(
            means={name: means.get(prefix + name, value) for name, value in own.items()},
            variances={n: variances[prefix + n] for n in own if prefix + n in variances},
            generator=generator,
        )

    def drawn_values(
        self,
        means: dict[str, Tensor],
        variances: dict[str, Tensor],
        generator: Random | None,
    ) -> dict[str, Tensor]:
        """Sampled weights for all parameters outside local layers."""
        return {
            name: draw_weight(mean, variances.get(name), generator)
            for name, mean in means.items()
            if name.rpartition(".")[0] not in self.local_layers
        }

    def run(
        self,
        layers: Mapping[str, Loaded],
        values: dict[str, Tensor],
        x: Tensor,
        head: int | Sequence[int],
        training: bool,
    ) -> Tensor | None:
        """One forward pass, or None if it showed a layer that cannot stay local.

        A layer called more than once must use the same weights each time, which sampled
        pre-activations cannot promise. A layer whose weights are read instead of called would
        keep its gradients from its sink. From then on such a layer's weights are sampled.
        """
        if self.skeleton.training != training:
            self.skeleton.train(training)
        for path, layer in self.local_layers.items():
            layer.load(layers[path])
        inputs = (x, head) if self.has_heads else (x,)
        try:
            output: Tensor = (
                functional_call(self.skeleton, values, inputs) if values else self.skeleton(*inputs)
            )
        finally:
            for layer in self.local_layers.values():
                layer.load(NOTHING)
        unfit = [
            path
            for path, weights in layers.items()
            if weights.calls > 1 or (weights.read and weights.sink is not None)
        ]
        for path in unfit:
            self.sample_weights_of(path)
        return None if unfit else output

    def sample_weights_of(self, path: str) -> None:
        """Make a local layer a plain one again, whose weights are sampled."""
        layer = self.local_layers.pop(path)
        plain = {local: plain for plain, local in LOCAL_LAYERS.items()}[type(layer)]
        layer.__class__ = plain  # type: ignore[assignment]


def _copy(module: nn.Module) -> nn.Module:
    if isinstance(module, torch.jit.ScriptModule):
        raise ConversionError(
            f"{type(module).__name__} is a scripted module, whose layers cannot be replaced; "
            "pass the plain nn.Module it was made from"
        )
    try:
        return copy.deepcopy(module)
    except Exception as error:
        raise ConversionError(f"{type(module).__name__} cannot be copied: {error}") from error


def _check(module: nn.Module, parameters: dict[str, nn.Parameter]) -> None:
    """Flat vectors need parameters that exist, are real numbers and are all of one kind."""
    if not parameters:
        raise ConversionError(
            f"{type(module).__name__} has no parameter to learn (requires_grad=True)"
        )
    first_name, first = next(iter(parameters.items()))
    for name, parameter in parameters.items():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            reason = "is not initialised yet; run the module once on an example input first"
        elif not parameter.is_floating_point():
            reason = f"is {parameter.dtype}; only real floating-point parameters have a Gaussian"
        elif parameter.layout is not torch.strided:
            reason = f"is stored as {parameter.layout}; only dense parameters can be converted"
        elif parameter.dtype != first.dtype or parameter.device != first.device:
            reason = (
                f"is {parameter.dtype} on {parameter.device} but {first_name} is {first.dtype} "
                f"on {first.device}; convert the module to one type and device"
            )
        else:
            continue
        raise ConversionError(f"parameter {name} {reason}")


def _make_layers_local(skeleton: nn.Module) -> dict[str, LocalLayer]:
    """Give each Linear and Conv its local form, in place, unless it shares its parameters.

    Only the exact types are taken: a subclass may read its weights itself.
    """
    uses = Counter(id(p) for _, p in skeleton.named_parameters(remove_duplicate=False))
    local_layers = {}
    for path, layer in skeleton.named_modules():
        parameters = list(layer.parameters(recurse=False))
        shared = any(uses[id(parameter)] > 1 for parameter in parameters)
        learns = any(parameter.requires_grad for parameter in parameters)
        if type(layer) in LOCAL_LAYERS and learns and not shared:
            layer.__class__ = LOCAL_LAYERS[type(layer)]
            assert isinstance(layer, LocalLayer)
            layer.load(NOTHING)
            local_layers[path] = layer
    return local_layers
