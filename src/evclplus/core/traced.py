"""The likelihood's gradient as one compiled graph.

`core/step.py` works for every network, but between two matrix products it runs Python and passes
over the activations. Here the readable form, `Batch.terms` under autograd, is run once while its
operations are written down; the list is compiled for batches of any size and from then on run
without any Python. What Python decides on the way would be decided once and for all, so only
networks that are made of modules known to decide nothing are taken.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import torch
from torch import Tensor, nn
from torch.func import grad_and_value

from evclplus.core.batches import Batch
from evclplus.core.graphs import Operations, compiled, written_down
from evclplus.core.heads import MultiHead
from evclplus.core.layers import LOCAL_LAYERS, SMALLEST_VARIANCE, LocalLayer
from evclplus.core.network import BayesianNetwork
from evclplus.core.noise import CountedNoise, new_seed
from evclplus.core.step import Vectors
from evclplus.errors import TrainingError

KNOWN_MODULES: tuple[type[nn.Module], ...] = (
    *LOCAL_LAYERS.values(),
    *(nn.Sequential, nn.ModuleList, nn.Identity, nn.Flatten, nn.Unflatten),
    *(nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.Softplus),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
)
"""They keep no state, draw no numbers and compute the same way whatever the numbers are."""

USUAL_BATCH = 256
"""Graphs are made for at least so many examples, and serve fewer."""

TRIES = 3
"""Draws of noise that a new graph may be tried with."""

_graphs: dict[tuple[object, ...], Operations] = {}
"""By all that a graph depends on. It takes its tensors as arguments, so that heads, tasks and
networks of one kind share it."""


def can_be_traced(network: BayesianNetwork) -> bool:
    """Whether the network is made of known modules and learns all its weights."""
    learned = {name for name, _ in network.skeleton.named_parameters()} == set(network.layout.names)
    return learned and all(_is_known(module) for module in network.skeleton.modules())


def _is_known(module: nn.Module) -> bool:
    hooked = module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module)
    has_heads = isinstance(module, MultiHead) and type(module).forward is MultiHead.forward
    return not hooked and (type(module) in KNOWN_MODULES or has_heads)


def _description(module: nn.Module) -> tuple[object, ...]:
    """All that a known module's way to compute depends on, but for its weights."""
    options = {name: value for name, value in vars(module).items() if name[0] != "_"}
    options = {name: value for name, value in options.items() if name not in ("training", "loaded")}
    children = ((name, _description(child)) for name, child in module.named_children())
    return type(module), repr(sorted(options.items())), *children


class TracedLikelihood:
    """The gradient of a minibatch's negative log-likelihood, left in `vectors`."""

    def __init__(self, network: BayesianNetwork, vectors: Vectors, at_mean: bool) -> None:
        self.network = network
        self.vectors = vectors
        self.at_mean = at_mean
        self.head: int | None = None
        self.graphs: dict[int, Operations] = {}
        self.nothing = vectors.mean.new_empty(0)

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        if batch.head != self.head:
            self._turn_to(batch.head)
        if batch.head not in self.graphs:
            self.graphs[batch.head] = self._graph(batch)
        assert isinstance(batch.generator, torch.Generator)
        arguments = self._arguments(batch, batch.generator)
        terms = self.graphs[batch.head](*arguments, *self.targets)
        return dict(zip(("nll", "function"), terms, strict=False))

    def _arguments(self, batch: Batch, generator: torch.Generator) -> tuple[Tensor, ...]:
        """All tensors that a graph reads; without a hold there is nothing to hold to."""
        previous = self.nothing if batch.hold is None else batch.hold.previous.mean
        return batch.x.contiguous(), batch.y, new_seed(generator), previous, *self.weights

    def _turn_to(self, head: int) -> None:
        """Take up the weights that a batch of this head depends on; the others have no slope."""
        layout, vectors = self.network.layout, self.vectors
        self.head = head
        vectors.gradients.zero_()
        self.names = self.network.names_for(head)
        pairs = layout.named(vectors.products)
        gaussian = () if self.at_mean else layout.names[: layout.gaussian_names]
        self.has_pair = [name in gaussian for name in self.names]
        both = list(zip(self.names, self.has_pair, strict=True))
        self.weights = [pairs[n] if pair else pairs[n][0] for n, pair in both]
        # One target for means and one for variances: pairs would lie between each other in memory,
        # and torch could not know that to write to one is not to write to the other.
        rows = [layout.named(row) for row in vectors.gradients]
        self.targets = [rows[row][n] for n, pair in both for row in range(1 + pair)]

    def _graph(self, batch: Batch) -> Operations:
        skeleton, hold = self.network.skeleton, batch.hold
        parts = [skeleton]
        if isinstance(skeleton, MultiHead):
            heads = (batch.head, *(hold.heads if hold else ()))
            parts = [skeleton.body, *(skeleton.heads[head] for head in heads)]
        key = (
            *map(_description, parts),
            *(name.replace(f"heads.{batch.head}.", "head.") for name in self.names),
            *(batch.outputs, batch.criterion, batch.view.scale, batch.view.shift),
            *((hold.heads, hold.lam_function, hold.previous.layout) if hold else ()),
            *((examples.shape[1:], examples.dtype) for examples in (batch.x, batch.y)),
            *((weight.shape, weight.stride(), weight.dtype) for weight in self.weights),
        )
        if key not in _graphs:
            _graphs[key] = self._compiled(batch)
        return _graphs[key]

    def _compiled(self, batch: Batch) -> Operations:
        """Compiled and tried with copies of the batch and seeds of its own, so that a failure
        leaves no trace."""
        generator = torch.Generator()
        x, y, *others = self._arguments(batch, generator)
        # Loops are shared out as it suits the size seen here, and torch's cache on disk does not
        # ask which that was; but a comparison with another size must come out unequal, as it does
        # for most batches.
        taken = {size for part in (x[0], y[0], *others) for size in part.shape}
        many = next(size for size in count(max(USUAL_BATCH, len(x))) if size not in taken)
        chosen = torch.arange(many) % len(x)
        large, small = (replace(batch, x=x[i], y=y[i]) for i in (chosen, chosen[:2]))
        readable = self._readable(large)
        arguments = (*self._arguments(large, generator), *self.targets)
        graph = compiled(written_down(readable, arguments, any_length=2))  # x and y
        for one in (large, small):
            # Where a ReLU or a maximum has its kink, a rounding error flips a slope. That is rare;
            # a wrong graph is wrong whatever is drawn.
            draws = (self._arguments(one, generator) for _ in range(TRIES))
            if not any(self._agree(graph, readable, draw) for draw in draws):
                raise TrainingError("the compiled gradient is not that of the definition")
        return graph

    def _agree(self, graph: Operations, readable: Operations, arguments: Sequence[Tensor]) -> bool:
        """Whether both find the same terms, and the same slopes but for a few flipped ones."""
        low = self.vectors.low_precision
        found, expected = ([torch.empty_like(t) for t in self.targets] for _ in range(2))
        terms = graph(*arguments, *found), readable(*arguments, *expected)
        return _close(*terms, 3e-2 if low else 1e-3) and _close(found, expected, 3e-2)

    def _readable(self, batch: Batch) -> Operations:
        """Gives the terms of the batch and puts the gradient of their sum, as autograd has it,
        into the targets; from `_arguments` and targets."""

        def gradient(
            x: Tensor, y: Tensor, seed: Tensor, previous: Tensor, *tensors: Tensor
        ) -> tuple[Tensor, ...]:
            weights, targets = tensors[: len(self.names)], tensors[len(self.names) :]
            hold = batch.hold
            if hold is not None:
                hold = replace(hold, previous=replace(hold.previous, mean=previous))
            same = replace(batch, x=x, y=y, hold=hold)

            def total(*weights: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
                named = dict(zip(self.names, weights, strict=True))
                noise = None if self.at_mean else CountedNoise(seed)
                output = self._output(named, same, noise)
                terms = tuple(same.terms_of(output).values())
                return torch.stack(terms).sum(), terms

            every = tuple(range(len(weights)))
            terms: tuple[Tensor, ...]
            slopes, (_, terms) = grad_and_value(total, argnums=every, has_aux=True)(*weights)
            pairs = zip(slopes, self.has_pair, strict=True)
            rows = [row for slope, pair in pairs for row in (slope if pair else [slope])]
            for target, slope in zip(targets, rows, strict=True):
                target.copy_(slope)
            return terms

        return gradient

    def _output(
        self, weights: dict[str, Tensor], batch: Batch, noise: CountedNoise | None
    ) -> Tensor:
        """What the network answers, with one product for both moments of a linear layer."""
        pairs = {n: weights[n] for n, pair in zip(self.names, self.has_pair, strict=True) if pair}
        variances = {name: pair[1] for name, pair in pairs.items()}
        means = weights | {name: pair[0] for name, pair in pairs.items()}
        if batch.hold is not None:
            means |= batch.hold.weights
        layers = {}
        for path, layer in self.network.local_layers.items():
            layers[path] = self.network.weights_of(path, means, variances, noise)
            own = {name: f"{path}.{name}" if path else name for name in layers[path].means}
            if isinstance(layer, nn.Linear) and pairs.keys() >= set(own.values()):
                layers[path].sink = BothMoments({n: pairs[full] for n, full in own.items()})
        output = self.network.run(layers, {}, batch.inputs, batch.heads, training=True)
        assert output is not None, "known modules call each layer once"
        return output


def _close(found: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float) -> bool:
    """Whether the difference of each pair is small against what is expected."""
    return all(
        bool((one - other).norm() <= tolerance * other.norm() + 1e-6)
        for one, other in zip(found, expected, strict=True)
    )


class BothMoments:
    """A linear layer whose means and variances lie side by side: one batched product with (x, x^2)
    serves both.

    The outputs lie in memory output by output, all examples of one after the other, and stay so
    through activations. The products of few outputs, and those of their slopes, are up to a half
    faster this way: their inner loops run over examples.
    """

    def __init__(self, pairs: dict[str, Tensor]) -> None:
        self.weight, self.bias = pairs["weight"], pairs.get("bias")

    def forward(self, layer: LocalLayer, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        if rows.is_contiguous():
            inputs = torch.stack([rows, rows.square()]).mT
        else:
            inputs = torch.stack([rows.t(), rows.t().square()])
        moments = torch.bmm(self.weight, inputs.to(self.weight.dtype)).to(x.dtype)
        if self.bias is None:
            mean, variance = moments[0], moments[1].clamp_min(SMALLEST_VARIANCE)
        else:
            mean, variance = moments + self.bias.unsqueeze(2)
        assert isinstance(layer.loaded.generator, CountedNoise)
        output = torch.addcmul(mean, variance.sqrt(), layer.loaded.generator.like(mean))
        return output.t().reshape(*x.shape[:-1], -1)
