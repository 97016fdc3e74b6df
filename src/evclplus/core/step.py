"""One training step over flat vectors: the likelihood's gradient, then regulariser and Adam.

The readable loss is `Method.loss`. This file computes the same gradients with fewer passes:
Linear and Conv write their gradients straight into two flat vectors, and the closed-form terms,
their gradients and the optimiser share one pass that a compiler can fuse.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import reduce
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from evclplus.core.batches import Batch
from evclplus.core.gaussian import MeanField
from evclplus.core.layers import SMALLEST_VARIANCE, Loaded, LocalLayer
from evclplus.core.network import BayesianNetwork
from evclplus.core.noise import fill_with_noise, noise_like
from evclplus.errors import ConversionError

FIRST_DECAY, SECOND_DECAY, EPSILON = 0.9, 0.999, 1e-8
"""Adam's constants, as everywhere."""


class Vectors:
    """What one training run moves: weights, gradients and Adam's moments, all flat.

    Means and variances are the rows of `weights`, so that one batched product serves both, and
    `gradients` holds d nll / d mu and d nll / d sigma^2. `spread_moments` are Adam's of log sigma.

    With `low_precision`, `products` is a bfloat16 copy of `weights` that the layers' products
    are made with, and `gradients`, which are such products, are kept in bfloat16; otherwise
    `products` is `weights` itself.
    """

    def __init__(self, q: MeanField, low_precision: bool = False) -> None:
        self.layout = q.layout
        self.weights = torch.stack([q.mean.detach(), torch.zeros_like(q.mean)])
        self.mean, self.variance = self.weights[0], self.weights[1, : len(q.variance)]
        self.variance.copy_(q.variance.detach())
        self.low_precision = low_precision
        self.products = self.weights.bfloat16() if low_precision else self.weights
        self.product_mean = self.products[0]
        self.product_variance = self.products[1, : len(q.variance)]
        self.gradients = torch.zeros_like(self.products)
        self.mean_gradient = self.gradients[0]
        self.spread_gradient = self.gradients[1, : len(q.variance)]
        self.moments = (torch.zeros_like(self.mean), torch.zeros_like(self.mean))
        self.spread_moments = (torch.zeros_like(self.variance), torch.zeros_like(self.variance))

    def posterior(self) -> MeanField:
        """What was learned, in the same memory: nobody may train with this object any more. Point
        values leave it, because a second row would stay with them that they have no use for."""
        found = MeanField(self.mean, self.variance, self.layout)
        return found if len(self.variance) == len(self.mean) else found.clone()


class LikelihoodGradient:
    """The gradient of a minibatch's negative log-likelihood, left in `vectors`."""

    def __init__(self, network: BayesianNetwork, vectors: Vectors, at_mean: bool) -> None:
        self.network = network
        self.vectors = vectors
        self.at_mean = at_mean
        self.settled: set[int] = set()
        self._lay_out()

    def _lay_out(self) -> None:
        """Which layers write their gradients themselves; all other parameters are leaves."""
        layout, vectors = self.network.layout, self.vectors
        vectors.mean_gradient.zero_()
        vectors.spread_gradient.zero_()
        self.means = layout.named(vectors.mean)
        self.variances = {} if self.at_mean else layout.named(vectors.variance)
        self.mean_gradients = layout.named(vectors.mean_gradient)
        self.spread_gradients = {} if self.at_mean else layout.named(vectors.spread_gradient)
        self.weight_pairs = layout.named(vectors.products)
        self.gradient_pairs = layout.named(vectors.gradients)
        # A gradient must reach the first layer's function though its input is data.
        self.anchor = torch.zeros((), device=vectors.mean.device, requires_grad=True)
        products = (
            layout.named(vectors.product_mean),
            {} if self.at_mean else layout.named(vectors.product_variance),
        )
        self.layers: dict[str, Loaded] = {}
        self.sinks: dict[str, LayerSink] = {}
        for path, layer in self.network.local_layers.items():
            if _has_closed_form(path, layer, self.means, self.variances):
                self.layers[path] = self.network.weights_of(path, *products, None)
                self.layers[path].sink = self.sinks[path] = LayerSink(path, self)
        self.others = [name for name in self.means if name.rpartition(".")[0] not in self.sinks]

    @torch.enable_grad()
    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        if batch.head not in self.settled:
            self._settle(batch)
        assert isinstance(batch.generator, torch.Generator)
        generator = None if self.at_mean else batch.generator
        means, variances = self._leaves()
        output = self._forward(self.network, batch, means, variances, generator)
        if output is None:
            raise ConversionError("the module uses a layer in one way now and in another later")
        terms = batch.terms_of(output)
        reduce(torch.add, terms.values()).backward()
        for path, sink in self.sinks.items():
            sink.clear_if_unused(self.layers[path].calls)
        for name, leaf in means.items():
            _copy_gradient(self.mean_gradients[name], leaf)
        for name, leaf in variances.items():
            _copy_gradient(self.spread_gradients[name], leaf)
        return {name: term.detach() for name, term in terms.items()}

    def _settle(self, batch: Batch) -> None:
        """A first pass through a head shows which layers cannot stay local. It is made with a
        copy and random numbers of its own, so that it leaves no trace."""
        trial = self.network.copy()
        with torch.no_grad():
            noise = torch.Generator(self.vectors.mean.device).manual_seed(0)
            self._forward(trial, batch, *self._leaves(), noise)
        self.settled.add(batch.head)
        unfit = set(self.network.local_layers) - set(trial.local_layers)
        for path in unfit:
            self.network.sample_weights_of(path)
        if unfit:
            self._lay_out()

    def _leaves(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        means = {name: self.means[name].detach().requires_grad_() for name in self.others}
        variances = {
            name: self.variances[name].detach().requires_grad_()
            for name in self.others
            if name in self.variances
        }
        return means, variances

    def _forward(
        self,
        network: BayesianNetwork,
        batch: Batch,
        means: dict[str, Tensor],
        variances: dict[str, Tensor],
        generator: torch.Generator | None,
    ) -> Tensor | None:
        held = {} if batch.hold is None else batch.hold.weights
        if held:
            means = {name: held.get(name, value) for name, value in means.items()}
            variances = {name: value for name, value in variances.items() if name not in held}
        layers = {}
        for path in network.local_layers:
            if f"{path}.weight" in held:
                layers[path] = network.weights_of(path, held, {}, None)
                continue
            layers[path] = self.layers.get(path) or network.weights_of(
                path, means, variances, generator
            )
            layers[path].generator, layers[path].calls = generator, 0
            layers[path].read, layers[path].drawn = False, {}
        values = network.drawn_values(means, variances, generator) if means else {}
        low = self.vectors.low_precision
        with torch.autocast(batch.x.device.type, torch.bfloat16) if low else nullcontext():
            return network.run(layers, values, batch.inputs, batch.heads, training=True)


def _copy_gradient(target: Tensor, leaf: Tensor) -> None:
    if leaf.grad is None:  # a head that this batch did not use
        target.zero_()
    else:
        target.copy_(leaf.grad)


def _has_closed_form(
    path: str, layer: LocalLayer, means: dict[str, Tensor], variances: dict[str, Tensor]
) -> bool:
    """Whether all of a layer's weights are learned, all Gaussian or all points, and it is a
    Linear or a Conv with plain zero padding."""
    prefix = f"{path}." if path else ""
    names = [prefix + name for name, value in layer._parameters.items() if value is not None]
    learned = all(name in means for name in names)
    alike = len({name in variances for name in names}) == 1
    if isinstance(layer, _ConvNd):
        plain = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
        return learned and alike and plain
    return learned and alike and isinstance(layer, nn.Linear)


class LayerSink:
    """Where one layer's gradients go: views of the flat vectors."""

    def __init__(self, path: str, owner: LikelihoodGradient) -> None:
        prefix = f"{path}." if path else ""
        self.anchor = owner.anchor
        self.full_precision = owner.vectors.mean.dtype
        self.weight = owner.mean_gradients[prefix + "weight"]
        self.bias = owner.mean_gradients.get(prefix + "bias")
        self.spread_weight = owner.spread_gradients.get(prefix + "weight")
        self.spread_bias = owner.spread_gradients.get(prefix + "bias")
        self.pair = _Pair(prefix, owner) if self.spread_weight is not None else None
        self.clean = True

    def forward(self, layer: LocalLayer, x: Tensor) -> Tensor:
        self.clean = False
        generator = layer.loaded.generator
        sampled = isinstance(generator, torch.Generator) and isinstance(layer, nn.Linear)
        if self.pair is not None and sampled:
            output: Tensor = _SampledLinear.apply(x, self.anchor, self.pair, generator)
        else:
            output = _Local.apply(x, self.anchor, layer, self)
        return output

    def clear_if_unused(self, calls: int) -> None:
        """No gradient of an earlier batch may stay behind for a head this one did not use."""
        if calls == 0 and not self.clean:
            parts = (self.weight, self.bias, self.spread_weight, self.spread_bias)
            for part in parts:
                if part is not None:
                    part.zero_()
            self.clean = True


class _Pair:
    """A linear layer's means and variances as one tensor, so their gradients, and the rooms in
    which a step computes with them."""

    def __init__(self, prefix: str, owner: LikelihoodGradient) -> None:
        weights, gradients = owner.weight_pairs, owner.gradient_pairs
        self.weight, self.weight_gradient = weights[prefix + "weight"], gradients[prefix + "weight"]
        bias, self.bias_gradient = weights.get(prefix + "bias"), gradients.get(prefix + "bias")
        self.bias = None if bias is None else bias.unsqueeze(1)
        self.full_precision = owner.vectors.mean.dtype
        self.rooms: dict[int, _Room] = {}

    def room(self, rows: int) -> "_Room":
        """Batches of one task differ by at most one row, so there are few rooms."""
        if rows not in self.rooms:
            self.rooms[rows] = _Room(self.weight, self.full_precision, rows)
        return self.rooms[rows]


class _Room:
    """Memory for one step of a layer with a given number of rows. A layer is called once per step,
    and asking for fresh memory would cost as much as filling it.

    `inputs` are x and x^2. `outputs` are the two moments of the pre-activations on the way forward
    and their gradients on the way back; with products in low precision, `moments` is a copy in
    full precision. `noise` stays for the way back.
    """

    def __init__(self, weight: Tensor, full: torch.dtype, rows: int) -> None:
        _, out, into = weight.shape
        self.inputs = weight.new_empty(2, rows, into)
        self.outputs = weight.new_empty(2, rows, out)
        self.moments = self.outputs if full == weight.dtype else self.outputs.to(full)
        self.noise = torch.empty_like(self.moments[0])
        self.transposed_weight = weight.transpose(1, 2)
        self.transposed_outputs = self.outputs.transpose(1, 2)
        self.x, self.square = self.inputs
        self.gradient, self.spread_gradient = self.outputs
        self.mean, self.std = self.moments


class _SampledLinear(torch.autograd.Function):
    """z = m + sqrt(v) * noise with m = W_mean x + b_mean and v = W_var x^2 + b_var.

    Backward, for g = d nll / d z and d = d nll / d v = g noise / (2 sqrt(v)):
    the gradients are those of the layer for (x, g) and for (x^2, d), and
    d nll / d x = W_mean' g + 2 x * (W_var' d).

    The two products of each line are one batched product over the pairs (x, x^2) and (g, d).
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, anchor: Tensor, pair: _Pair, generator: torch.Generator
    ) -> Tensor:
        rows = x.reshape(-1, x.shape[-1]) if x.dim() != 2 else x
        room = pair.room(len(rows))
        room.x.copy_(rows)
        torch.mul(rows, rows, out=room.square)
        if pair.bias is None:
            torch.bmm(room.inputs, room.transposed_weight, out=room.outputs)
            room.outputs[1].clamp_min_(SMALLEST_VARIANCE)
        else:
            torch.baddbmm(pair.bias, room.inputs, room.transposed_weight, out=room.outputs)
        if room.moments is not room.outputs:
            # Only the products are made in low precision; activations stay as they are.
            room.moments.copy_(room.outputs)
        room.std.sqrt_()
        fill_with_noise(room.noise, generator)
        output = torch.addcmul(room.mean, room.std, room.noise)
        room.noise.div_(room.std.mul_(2))
        ctx.pair, ctx.room, ctx.shape = pair, room, x.shape
        return output.view(*x.shape[:-1], output.shape[-1]) if x.dim() != 2 else output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        pair, room, gradient = ctx.pair, ctx.room, gradients[0]
        room.gradient.copy_(gradient.reshape(room.gradient.shape))
        torch.mul(room.gradient, room.noise, out=room.spread_gradient)
        # Not with `out`: into memory that is not contiguous torch makes one product after another.
        pair.weight_gradient.copy_(torch.bmm(room.transposed_outputs, room.inputs))
        if pair.bias_gradient is not None:
            torch.sum(room.outputs, 1, out=pair.bias_gradient)
        if not ctx.needs_input_grad[0]:
            return None, None, None, None
        back = torch.bmm(room.outputs, pair.weight)
        to_x = back[0].addcmul_(room.x, back[1], value=2)
        return to_x.view(ctx.shape).to(gradient.dtype), None, None, None


class _Local(torch.autograd.Function):
    """The same for any kind of layer, one product at a time; without noise at the mean."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, layer: LocalLayer, sink: LayerSink) -> Tensor:
        loaded = layer.loaded
        weight, bias = loaded.means["weight"], loaded.means.get("bias")
        x = x.to(weight.dtype)
        output = layer.operation(x, weight, bias).to(sink.full_precision)
        ctx.layer, ctx.sink, ctx.x, ctx.weight = layer, sink, x, weight
        ctx.variance_weight = None
        if loaded.variances and loaded.generator is not None:
            ctx.variance_weight = loaded.variances["weight"]
            ctx.squared = x.square()
            bias_variance = loaded.variances.get("bias")
            std = layer.operation(ctx.squared, ctx.variance_weight, bias_variance)
            std = std.to(output.dtype)
            if bias_variance is None:
                std.clamp_min_(SMALLEST_VARIANCE)
            std.sqrt_()
            noise = noise_like(output, loaded.generator)
            output.addcmul_(std, noise)
            ctx.ratio = noise.div_(std.mul_(2))
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        gradient = gradients[0].to(ctx.weight.dtype)
        sink, needs_x = ctx.sink, ctx.needs_input_grad[0]
        backward = _backward_linear if isinstance(ctx.layer, nn.Linear) else _backward_conv
        to_x = backward(ctx.layer, ctx.x, gradient, ctx.weight, sink.weight, sink.bias, needs_x)
        if ctx.variance_weight is not None:
            spread = (gradients[0] * ctx.ratio).to(gradient.dtype)
            to_square = backward(
                ctx.layer,
                ctx.squared,
                spread,
                ctx.variance_weight,
                sink.spread_weight,
                sink.spread_bias,
                needs_x,
            )
            if to_x is not None and to_square is not None:
                to_x = torch.addcmul(to_x, ctx.x, to_square, value=2)
        return None if to_x is None else to_x.to(gradients[0].dtype), None, None, None


def _backward_linear(
    layer: LocalLayer,
    x: Tensor,
    gradient: Tensor,
    weight: Tensor,
    to_weight: Tensor,
    to_bias: Tensor | None,
    needs_x: bool,
) -> Tensor | None:
    rows, columns = gradient.reshape(-1, gradient.shape[-1]), x.reshape(-1, x.shape[-1])
    torch.mm(rows.t(), columns, out=to_weight)
    if to_bias is not None:
        torch.sum(rows, 0, out=to_bias)
    return (rows @ weight).view(x.shape) if needs_x else None


def _backward_conv(
    layer: LocalLayer,
    x: Tensor,
    gradient: Tensor,
    weight: Tensor,
    to_weight: Tensor,
    to_bias: Tensor | None,
    needs_x: bool,
) -> Tensor | None:
    assert isinstance(layer, _ConvNd)
    to_x, found_weight, found_bias = torch.ops.aten.convolution_backward(
        gradient,
        x,
        weight,
        None if to_bias is None else list(to_bias.shape),
        layer.stride,
        layer.padding,
        layer.dilation,
        False,
        [0] * len(layer.kernel_size),
        layer.groups,
        [needs_x, True, to_bias is not None],
    )
    to_weight.copy_(found_weight)
    if to_bias is not None:
        to_bias.copy_(found_bias)
    return to_x if needs_x else None


class Regularised(Protocol):
    """Names the terms of a loss that depend on the weights alone, from q, what a method keeps, and
    the number of training examples."""

    def regulariser(self, q: MeanField, memory: Any, examples: Tensor) -> dict[str, Tensor]: ...


@dataclass(frozen=True)
class Update:
    """Adds the regulariser's gradient to the likelihood's and makes Adam's step in the means and in
    log sigma, which is any number where sigma^2 must stay positive: a step of -d there multiplies
    sigma^2 by exp(-2 d). All of it is elementwise and in place; the regulariser's value is never
    computed.
    """

    vectors: Vectors
    method: Regularised | None
    memory: Any
    examples: Tensor
    clip_norm: float | None
    at_mean: bool

    def __call__(self, rates: Tensor) -> None:
        """`rates` are the learning rate and what makes Adam's second moment unbiased, a row of
        `step_rates`, as a tensor so that a compiled update serves every step."""
        vectors = self.vectors
        mean, variance = vectors.mean, vectors.variance
        slopes = [vectors.mean_gradient.to(mean.dtype)]
        if not self.at_mean:
            slopes.append(vectors.spread_gradient.to(mean.dtype))
        if self.method is not None:
            more = torch.func.grad(self._regulariser, argnums=(0, 1))(mean, variance)
            slopes = [a + b for a, b in zip(slopes, more, strict=False)]
        if not self.at_mean:
            slopes[1] = slopes[1] * 2 * variance  # d sigma^2 / d log sigma = 2 sigma^2
        if self.clip_norm is not None:
            norm = torch.stack([slope.square().sum() for slope in slopes]).sum().sqrt()
            factor = (self.clip_norm / (norm + 1e-6)).clamp_max(1.0)
            slopes = [slope * factor for slope in slopes]
        mean.sub_(_adam(slopes[0], *vectors.moments, rates))
        if not self.at_mean:
            variance.mul_(_exponential(-2 * _adam(slopes[1], *vectors.spread_moments, rates)))
        if vectors.low_precision:
            vectors.product_mean.copy_(mean)
            vectors.product_variance.copy_(variance)

    def _regulariser(self, mean: Tensor, variance: Tensor) -> Tensor:
        return torch.stack(list(self.terms(mean, variance).values())).sum()

    def terms(self, mean: Tensor, variance: Tensor) -> dict[str, Tensor]:
        """The regulariser by its parts."""
        if self.method is None:
            return {}
        q = MeanField(mean, variance, self.vectors.layout)
        return self.method.regulariser(q, self.memory, self.examples)


def _adam(slope: Tensor, first: Tensor, second: Tensor, rates: Tensor) -> Tensor:
    """How far to go down. Kingma and Ba, 2015, algorithm 1, in the order of their section 2: the
    corrections of both moments are in `rates`."""
    first.mul_(FIRST_DECAY).add_(slope * (1 - FIRST_DECAY))
    second.mul_(SECOND_DECAY).add_(slope.square() * (1 - SECOND_DECAY))
    return rates[0] * first / (rates[1] * second.sqrt() + EPSILON)


def _exponential(x: Tensor) -> Tensor:
    """exp(x) by Pade's quotient of two polynomials, for the x of one step. It is positive for every
    x and off by a part of x^5 / 720: a part in 10^16 for a step of 0.001 in log sigma, a part in
    10^5 for one of 0.2. A processor has no exp, and torch's took half the time of the update."""
    even, odd = 12 + x * x, 6 * x
    return (even + odd) / (even - odd)


def step_rates(learning_rates: Sequence[float], like: Tensor) -> Tensor:
    """A row of `rates` for each step of a run, made once so that no step waits for a copy."""
    rows = [
        (rate / (1 - FIRST_DECAY**step), (1 - SECOND_DECAY**step) ** -0.5)
        for step, rate in enumerate(learning_rates, start=1)
    ]
    return torch.tensor(rows, dtype=like.dtype).to(like.device)
