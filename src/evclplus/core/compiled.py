"""The two functions of `core/engine.py` compiled; `core/graphs.py` has how. The only form of speed.

What Python decides while a function is traced is decided once and for all, so only networks made of
modules known to decide nothing are taken. A compiled gradient is checked against the definition
before it is used.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from evclplus.core import tree
from evclplus.core.batches import Batch
from evclplus.core.engine import Problem, Terms, Vectors, likelihood_gradient, update
from evclplus.core.film import FiLM
from evclplus.core.gaussian import Layout
from evclplus.core.graphs import Argument, Graph, Graphs
from evclplus.core.heads import MultiHead
from evclplus.core.layers import LOCAL_LAYERS
from evclplus.core.network import BayesianNetwork
from evclplus.core.noise import new_seeds
from evclplus.errors import TrainingError
from evclplus.settings import Settings

KNOWN_MODULES: tuple[type[nn.Module], ...] = (
    *LOCAL_LAYERS.values(),
    *(FiLM, nn.Sequential, nn.ModuleList, nn.Identity, nn.Flatten, nn.Unflatten),
    *(nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.Softplus),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
)
"""They keep no state, draw no numbers and compute the same way whatever the numbers are."""

USUAL_BATCH = 256
"""Graphs are made for at least so many examples, and serve fewer."""

TRIES = 3
"""Draws of noise that a new graph may be tried with."""


def can_be_compiled(network: BayesianNetwork) -> bool:
    """Whether the network is on the processor, made of known modules and learns all its weights."""
    return network.device.type == "cpu" and network.learns_all and draws_nothing(network)


def draws_nothing(network: BayesianNetwork) -> bool:
    """Whether the network is made of known modules alone, which draw no numbers of their own."""
    return all(_is_known(module) for module in network.modules)


def _is_known(module: nn.Module) -> bool:
    hooked = module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module)
    has_heads = isinstance(module, MultiHead) and type(module).forward is MultiHead.forward
    return not hooked and (type(module) in KNOWN_MODULES or has_heads)


# The likelihood's gradient.


class CompiledLikelihood:
    """`likelihood_gradient`, compiled; for one problem."""

    def __init__(self, problem: Problem, graphs: Graphs) -> None:
        self.problem, self.graphs = problem, graphs
        self.dtype = _exact_enough(problem)
        self.kept = [*_numbers(problem.objective, self.dtype), *_tensors(problem.memory)]
        self.found: dict[object, tuple[Graph, tuple[str, ...]]] = {}
        self.shares: dict[float, Tensor] = {}

    def __call__(
        self,
        problem: Problem,
        batch: Batch,
        names: Sequence[str],
        tensors: Sequence[Tensor],
        seed: Tensor,
    ) -> tuple[Terms, Sequence[Tensor]]:
        graph, terms = self.prepare(batch, names, tensors)
        values = graph(self._values(batch, tensors, seed))
        return dict(zip(terms, values, strict=False)), values[len(terms) :]

    def prepare(
        self, batch: Batch, names: Sequence[str], tensors: Sequence[Tensor]
    ) -> tuple[Graph, tuple[str, ...]]:
        """Find the graph for batches of this kind, and try it the first time."""
        kind = (batch.head, *_kind(batch))
        if kind not in self.found:
            self.found[kind] = self._graph(batch, names, tensors)
        return self.found[kind]

    def _values(self, batch: Batch, tensors: Sequence[Tensor], seed: Tensor) -> list[Tensor]:
        """All that a graph may read; those with a row for each example come first."""
        answers = () if batch.answers is None else (batch.answers,)
        if batch.share not in self.shares:
            self.shares[batch.share] = torch.tensor(batch.share, dtype=self.dtype)
        share = self.shares[batch.share]
        return [batch.x.contiguous(), batch.y, *answers, share, seed, *self.kept, *tensors]

    def _graph(
        self, batch: Batch, names: Sequence[str], tensors: Sequence[Tensor]
    ) -> tuple[Graph, tuple[str, ...]]:
        """Compiled, and tried against the definition."""
        problem, generator = self.problem, torch.Generator().manual_seed(0)
        large, small = _trials(batch, [*self.kept, *tensors])
        seed = new_seeds(generator, 1)[0]
        terms = tuple(likelihood_gradient(problem, small, names, tensors, seed)[0])

        def function(*values: Tensor) -> tuple[Tensor, ...]:
            given = iter(values)
            x, y = next(given), next(given)
            answers = None if batch.answers is None else next(given)
            share, seed = next(given), next(given)
            same = replace(batch, x=x, y=y, answers=answers, share=share, done=None)  # type: ignore[arg-type]
            changed = _with(problem, given)
            terms, gradients = likelihood_gradient(changed, same, names, list(given), seed)
            return (*terms.values(), *gradients)

        key = ("likelihood", _description(problem, batch, names), _kind(batch))
        rows = 2 if batch.answers is None else 3
        values = enumerate(self._values(large, tensors, seed))
        arguments = [Argument(value, any_size=index < rows) for index, value in values]
        graph = self.graphs.find(key, function, arguments)
        for one in (large, small):
            # Where a ReLU or a maximum has its kink, a rounding error flips a gradient. That is
            # rare; a wrong graph is wrong whatever is drawn.
            draws = new_seeds(generator, TRIES)
            if not any(self._agree(graph, one, names, tensors, draw) for draw in draws):
                raise TrainingError("the compiled gradient is not that of the definition")
        return graph, terms

    def _agree(
        self,
        graph: Graph,
        batch: Batch,
        names: Sequence[str],
        tensors: Sequence[Tensor],
        seed: Tensor,
    ) -> bool:
        """Whether both find the same terms, and the same gradients but for a few flipped ones."""
        terms, gradients = likelihood_gradient(self.problem, batch, names, tensors, seed)
        found = graph(self._values(batch, tensors, seed))
        low = self.problem.low_precision
        return _close(found[: len(terms)], list(terms.values()), 3e-2 if low else 1e-3) and _close(
            found[len(terms) :], gradients, 3e-2
        )


def _kind(batch: Batch) -> tuple[object, ...]:
    """All that operations on a batch depend on, but for its numbers and its size."""
    answers = None if batch.answers is None else batch.answers.shape[1:]
    view = (batch.view.scale, batch.view.shift)
    return batch.outputs, view, batch.x.shape[1:], batch.x.dtype, answers, batch.likelihood


def _trials(batch: Batch, others: Sequence[Tensor]) -> tuple[Batch, Batch]:
    """The batch made long and short. A trace takes sizes that are equal for one and the same, so
    the long one's must be no other's; loops are shared out as it suits it.

    Inputs come with the labels and answers of others: at the start of a task a term that holds
    answers has no gradient, and rounding errors would be compared with one another."""
    taken = {size for one in (batch.x[0], *others) for size in one.shape}
    long = next(size for size in count(max(USUAL_BATCH, len(batch.x))) if size not in taken)
    chosen = torch.arange(long) % len(batch.x)

    def of(rows: Tensor) -> Batch:
        others = rows.roll(1)
        answers = None if batch.answers is None else batch.answers[others]
        return replace(batch, x=batch.x[rows], y=batch.y[others], answers=answers)

    return of(chosen), of(chosen[:2])


def _description(problem: Problem, batch: Batch, names: Sequence[str]) -> tuple[object, ...]:
    """All that Python may look at while the gradient is traced, but for tensors."""
    network = problem.network
    module, owner = network.skeleton, network.owner
    parts = [module]
    if isinstance(module, MultiHead):
        parts = [module.body, *module.parts_of(batch.head)]
    gaussian = network.layout.gaussian
    return (
        *map(_module, parts),
        *((name if owner(name) is None else f"head {name.rpartition('.')[2]}") for name in names),
        *(name in gaussian for name in names),
        *(problem.at_mean, problem.low_precision),
        *(_settings(problem.objective), _structure(problem.memory)),
    )


def _module(module: nn.Module) -> tuple[object, ...]:
    """All that a known module's way to compute depends on, but for its weights."""
    options = {name: value for name, value in vars(module).items() if name[0] != "_"}
    options = {name: value for name, value in options.items() if name not in ("training", "loaded")}
    children = ((name, _module(child)) for name, child in module.named_children())
    return type(module), repr(sorted(options.items())), *children


def _close(found: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float) -> bool:
    """Whether the difference of each pair is small against what is expected."""
    return all(
        bool((one - other).norm() <= tolerance * other.norm() + 1e-6)
        for one, other in zip(found, expected, strict=True)
    )


# The update.


class LayoutAskedError(Exception):
    """A regulariser looks at single parameters, so that its graph serves one layout only."""


class _AnyLayout:
    def __getattr__(self, name: str) -> Any:
        raise LayoutAskedError


class CompiledUpdate:
    """`update`, compiled; for one problem. A regulariser that looks at all weights alike has one
    graph for any number of them, so that a head more needs no other."""

    def __init__(self, problem: Problem, graphs: Graphs) -> None:
        self.problem, self.graphs = problem, graphs
        numbers = _numbers(problem.objective, _exact_enough(problem))
        self.kept = [*numbers, *_tensors(problem.memory), problem.examples]
        self.graph: Graph | None = None

    def __call__(self, problem: Problem, vectors: Vectors, rates: Tensor, layout: Any) -> None:
        graph = self.graph or self.prepare(vectors, rates, layout)
        graph([rates, *self.kept, *_tensors(vectors)])

    def prepare(self, vectors: Vectors, rates: Tensor, layout: Any) -> Graph:
        """Find the graph; its kernels may be compiled while something else is done."""
        tensors = [rates, *self.kept, *_tensors(vectors)]
        try:
            self.graph = self._find(vectors, tensors, None)
        except LayoutAskedError:
            self.graph = self._find(vectors, tensors, layout)
        return self.graph

    def _find(self, vectors: Vectors, tensors: Sequence[Tensor], layout: Any) -> Graph:
        problem = self.problem

        def function(*values: Tensor) -> tuple[Tensor, ...]:
            given = iter(values)
            rates = next(given)
            changed = replace(_with(problem, given), examples=next(given))
            same = tree.replaced(vectors, lambda _: next(given))
            update(changed, same, rates, _AnyLayout() if layout is None else layout)
            return ()

        lengths = {len(vectors.mean), len(vectors.variance)} - {0} if layout is None else set()
        settings = (problem.at_mean, problem.clip_norm, problem.small_steps, problem.optimiser)
        all_gaussian = len(vectors.mean) == len(vectors.variance)
        key = (
            *("update", settings, all_gaussian, layout, tuple(vectors.running)),
            vectors.reference is not None,
            *(_settings(problem.objective), _structure(problem.memory)),
        )
        every = [Argument(one, one.dim() == 1 and len(one) in lengths) for one in tensors]
        return self.graphs.find(key, function, every)


# What a function reads beside its arguments: a method's numbers and what it keeps.


def _tensors(value: Any) -> list[Tensor]:
    return [tensor for _, tensor in tree.tensors(value)]


def _with(problem: Problem, given: Iterator[Tensor]) -> Problem:
    """The problem with other tensors in the place of its numbers and of what is kept. A number in a
    graph would be part of its code, and another number another graph."""
    objective = _with_numbers(problem.objective, given)
    memory = tree.replaced(problem.memory, lambda _: next(given))
    return replace(problem, objective=objective, memory=memory)


def _exact_enough(problem: Problem) -> torch.dtype:
    """A type for numbers that Python has in 64 bits: float32, or what a network needs."""
    return torch.promote_types(problem.network.dtype, torch.float32)


def _numbers(objective: Any, dtype: torch.dtype) -> list[Tensor]:
    found: list[Tensor] = []
    for _, value in objective:
        if isinstance(value, Settings):
            found += _numbers(value, dtype)
        elif isinstance(value, float):
            found.append(torch.tensor(value, dtype=dtype))
    return found


def _with_numbers(objective: Any, given: Iterator[Tensor]) -> Any:
    changed: dict[str, Any] = {}
    for name, value in objective:
        if isinstance(value, Settings):
            changed[name] = _with_numbers(value, given)
        elif isinstance(value, float):
            changed[name] = next(given)
    return objective.model_copy(update=changed)


def _settings(objective: Any) -> object:
    """A method's kind and its settings but for their numbers."""
    return type(objective), tuple(
        (name, _settings(value) if isinstance(value, Settings) else repr(value))
        for name, value in objective
        if not isinstance(value, float)
    )


def _structure(value: Any) -> object:
    """What a memory is made of, but for its tensors."""
    if isinstance(value, Tensor | Layout):
        return None
    found = tuple((name, _structure(part)) for name, part in tree.parts(value))
    return type(value), found or repr(value)
