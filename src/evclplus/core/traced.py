"""The likelihood's gradient as one compiled graph.

`core/step.py` works for every network, but between two matrix products it runs Python and passes
over the activations. Here the readable form, `Batch.terms` under autograd, is run once while its
operations are written down; the list is compiled for batches of any size and from then on run
without any Python. What Python decides on the way would be decided once and for all, so only
networks that are made of modules known to decide nothing are taken.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad_and_value
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from evclplus.core.batches import Batch
from evclplus.core.heads import MultiHead
from evclplus.core.layers import LOCAL_LAYERS
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

Gradient = Callable[..., tuple[Tensor, ...]]
"""The terms of a batch and the slopes of their sum, from `TracedLikelihood._arguments`."""


class Graph:
    """A traced gradient, compiled. The last product of a linear layer's slope is left out of it
    and made straight into the flat vectors."""

    def __init__(self, traced: GraphModule, terms: int) -> None:
        self.terms = terms
        self.is_product = _leave_out_products(traced, terms)
        self.compiled: Gradient = torch.compile(traced, fullgraph=True)

    def __call__(
        self, arguments: Sequence[Tensor], targets: Sequence[Tensor], factors: Sequence[float]
    ) -> tuple[Tensor, ...]:
        """The terms; the slopes times `factors` are put into `targets`."""
        found = self.compiled(*arguments)
        rest = iter(found[self.terms :])
        for target, factor, is_product in zip(targets, factors, self.is_product, strict=True):
            if is_product:
                left, right = next(rest), next(rest)
                torch.addmm(target, left.t(), right, beta=0, alpha=factor, out=target)
            else:
                torch.mul(next(rest), factor, out=target)
        return found[: self.terms]


_graphs: dict[tuple[object, ...], Graph] = {}
"""By all that a graph depends on. It takes its tensors as arguments, so that heads, tasks and
networks of one kind share it."""


def _leave_out_products(traced: GraphModule, terms: int) -> list[bool]:
    """Let the graph return g and x instead of a slope g'x. Which slopes these are."""
    transposed, product = torch.ops.aten.t.default, torch.ops.aten.mm.default
    output = traced.graph.output_node()
    every: Any = output.args[0]
    results, found = list(every[:terms]), []
    for slope in every[terms:]:
        node = slope
        while node.target is transposed and node.args[0].target is transposed:
            node = node.args[0].args[0]
        left = node.args[0] if node.target is product else node
        found.append(left is not node and left.target is transposed)
        results += [left.args[0], node.args[1]] if found[-1] else [slope]
    output.args = (tuple(results),)
    traced.graph.eliminate_dead_code()
    traced.recompile()
    return found


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
        self.graphs: dict[int, Graph] = {}

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        if batch.head != self.head:
            self._turn_to(batch.head)
        if batch.head not in self.graphs:
            self.graphs[batch.head] = self._graph(batch)
        assert isinstance(batch.generator, torch.Generator)
        arguments = self._arguments(batch, batch.generator)
        terms = self.graphs[batch.head](arguments, self.targets, self.factors)
        return dict(zip(("nll", "function"), terms, strict=False))

    def _arguments(self, batch: Batch, generator: torch.Generator) -> tuple[Tensor, ...]:
        """All tensors that a graph reads; without a hold there is nothing to hold to."""
        previous = batch.x[:0] if batch.hold is None else batch.hold.previous.mean
        return batch.x, batch.y, new_seed(generator), previous, *self.weights

    def _turn_to(self, head: int) -> None:
        """Take up the weights that a batch of this head depends on; the others have no slope."""
        layout, vectors = self.network.layout, self.vectors
        self.head = head
        vectors.gradients.zero_()
        own = f"heads.{head}." if self.network.has_heads else ""

        def used(vector: Tensor) -> dict[str, Tensor]:
            named = layout.named(vector).items()
            return {n: v for n, v in named if n.startswith(own) or not n.startswith("heads.")}

        means, targets = used(vectors.mean), used(vectors.mean_gradient)
        variances = {} if self.at_mean else used(vectors.variance)
        spread_targets = {} if self.at_mean else used(vectors.spread_gradient)
        self.mean_names, self.variance_names = list(means), list(variances)
        self.weights = [*means.values(), *variances.values()]
        self.targets = [*targets.values(), *spread_targets.values()]
        # `Vectors` wants twice the slope of a variance.
        self.factors = [1.0] * len(targets) + [2.0] * len(spread_targets)

    def _graph(self, batch: Batch) -> Graph:
        skeleton, hold = self.network.skeleton, batch.hold
        parts = [skeleton]
        if isinstance(skeleton, MultiHead):
            heads = (batch.head, *(hold.heads if hold else ()))
            parts = [skeleton.body, *(skeleton.heads[head] for head in heads)]
        key = (
            *map(_description, parts),
            *(name.replace(f"heads.{batch.head}.", "head.") for name in self.mean_names),
            *(len(self.variance_names), batch.outputs, batch.criterion),
            *((hold.heads, hold.lam_function, hold.previous.layout) if hold else ()),
            *((examples.shape[1:], examples.dtype) for examples in (batch.x, batch.y)),
            *((weight.shape, weight.dtype) for weight in self.weights),
        )
        if key not in _graphs:
            _graphs[key] = self._compiled(batch)
        return _graphs[key]

    def _compiled(self, batch: Batch) -> Graph:
        """Compiled and tried with copies of the batch and seeds of its own, so that a failure
        leaves no trace."""
        generator = torch.Generator()
        x, y, *others = self._arguments(batch, generator)
        # Tracing takes sizes that are equal for the same size, so the batch needs one of its own.
        taken = {size for part in (x[0], y[0], *others) for size in part.shape}
        chosen = torch.arange(next(size for size in count(2) if size not in taken)) % len(x)
        few = replace(batch, x=x[chosen], y=y[chosen])
        readable, arguments = self._readable(few), self._arguments(few, generator)
        traced = make_fx(readable, tracing_mode="symbolic")(*arguments)
        graph = Graph(traced, terms=1 if batch.hold is None else 2)
        # A tensor that is not an argument would be another network's for whoever comes next.
        assert not [node for node in traced.graph.nodes if node.op == "get_attr"]
        as_it_is = replace(batch, x=x.clone(), y=y.clone())
        for examples in (as_it_is.x, as_it_is.y):
            torch._dynamo.mark_dynamic(examples, 0)
        targets, ones = [torch.empty_like(t) for t in self.targets], [1.0] * len(self.targets)
        graph(self._arguments(as_it_is, generator), targets, ones)
        terms = graph(arguments, targets, ones)
        for found, expected in zip((*terms, *targets), readable(*arguments), strict=True):
            if (found - expected).abs().max() > 1e-3 * expected.abs().max() + 1e-6:
                raise TrainingError("the compiled gradient is not that of the definition")
        return graph

    def _readable(self, batch: Batch) -> Gradient:
        """The terms of the batch and the gradient of their sum, as autograd gives it."""

        def gradient(
            x: Tensor, y: Tensor, seed: Tensor, previous: Tensor, *weights: Tensor
        ) -> tuple[Tensor, ...]:
            hold = batch.hold
            if hold is not None:
                hold = replace(hold, previous=replace(hold.previous, mean=previous))
            same = replace(batch, x=x, y=y, hold=hold)

            def total(*weights: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
                means = dict(zip(self.mean_names, weights, strict=False))
                variances = dict(zip(self.variance_names, weights[len(means) :], strict=True))
                if hold is not None:
                    means |= hold.weights
                noise = None if self.at_mean else CountedNoise(seed)
                output = self.network.call(means, variances, x, same.heads, noise, training=True)
                terms = tuple(same.terms_of(output).values())
                return torch.stack(terms).sum(), terms

            every = tuple(range(len(weights)))
            slopes, (_, terms) = grad_and_value(total, argnums=every, has_aux=True)(*weights)
            return *terms, *slopes

        return gradient
