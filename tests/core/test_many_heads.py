"""There may be a thousand heads. What is done for one of them does not look at the others."""

import copy
import gc
import sys
from collections.abc import Callable
from dataclasses import replace
from types import FrameType

import pytest
import torch
from torch import Tensor, nn

import evclplus as ec
from evclplus import networks
from evclplus.core.batches import Batch
from evclplus.core.engine import Problem, State, StepGradient, likelihood_gradient, update
from evclplus.core.gaussian import Layout
from evclplus.core.heads import MultiHead
from evclplus.core.layers import LOCAL_LAYERS, LocalLayer
from evclplus.core.network import BayesianNetwork, Predicate
from evclplus.core.noise import Noise
from tests.helpers import blobs, first_batch, small_network

FEW, MANY = 5, 50


def calls(function: Callable[[], object]) -> int:
    """How many functions of Python and of C are called meanwhile, steps of generators too."""
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    gc.collect()
    gc.disable()  # it calls what it removes
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(before)
        gc.enable()
    return count


def with_heads(count: int, point: Predicate = lambda name: False) -> BayesianNetwork:
    """Heads that came one after the other."""
    network = BayesianNetwork(networks.mlp(4, [8]), point)
    for head in range(count):
        network = network.grown(head, 2, 8, seed=head)
    return network


def batch_of(head: int) -> Batch:
    return replace(first_batch(blobs()[0]), head=head)


def passes(network: BayesianNetwork) -> None:
    q, x, seed = network.initial(0.1), torch.ones(3, 4), torch.zeros(4, dtype=torch.int32)
    network(q, x, 2)
    network(network.weights(q, Noise(seed), 3), x, 3)
    network(q, x, ())
    list(network.samples(q, x, 1, seed[None]))
    network.copy()(q, x, 2, training=True)


def steps(network: BayesianNetwork, name: str) -> None:
    method = ec.method(name)
    q = method.initial(network)
    problem = Problem(network, method, method.first_memory(q), torch.tensor(60.0))
    state = State(q, method.trace(q))
    gradient = StepGradient(problem, state, likelihood_gradient)
    for _ in range(2):
        gradient([batch_of(2)], torch.zeros(1, 4, dtype=torch.int32))
        update(problem, state.vectors, torch.full((3,), 0.01), q.layout)


def test_a_pass_calls_as_much_with_many_heads_as_with_few() -> None:
    few, many = with_heads(FEW), with_heads(MANY)
    passes(few)  # the first time there is more to find out
    passes(many)
    assert calls(lambda: passes(few)) == calls(lambda: passes(many)) > 0


@pytest.mark.parametrize("name", ["ewc", "vcl", "evcl+", "si"])
def test_a_step_calls_as_much_with_many_heads_as_with_few(name: str) -> None:
    few, many = with_heads(FEW), with_heads(MANY)
    steps(few, name)
    steps(many, name)
    assert calls(lambda: steps(few, name)) == calls(lambda: steps(many, name)) > 0


def test_growing_and_copying_call_as_much_with_many_heads_as_with_few() -> None:
    few, many = with_heads(FEW), with_heads(MANY)

    def more(network: BayesianNetwork, head: int) -> None:
        larger = network.grown(head, 2, 8, seed=0).copy()
        larger.shared()
        larger.weights_of_head(larger.initial(1.0), (head, 0))

    for network in (few, many):
        network.initial(1.0)  # as a learner asks with every task: first values are kept
    assert calls(lambda: more(few, FEW)) == calls(lambda: more(many, MANY)) > 0


@pytest.mark.parametrize("name", ["ewc", "vcl", "si"])
def test_a_task_calls_little_more_for_each_head_that_there_is(name: str) -> None:
    """What is left is to compare the task with what is remembered of each, a few calls."""
    learner = ec.Learner(small_network(), name, epochs=2, batch_size=30)
    counts = []
    for task in blobs(MANY + 1):
        counts.append(calls(lambda task=task: learner.learn(task)))  # type: ignore[misc]
    assert counts[MANY] - counts[FEW] <= 10 * (MANY - FEW)
    assert counts[MANY] < 1.1 * counts[FEW]


# Nothing else has become different.


@pytest.mark.parametrize(
    "point",
    [
        lambda name: False,
        lambda name: True,
        lambda name: name.startswith("body."),
        lambda name: name.startswith("heads."),
        lambda name: name.endswith("bias"),
    ],
)
def test_a_network_that_grew_is_as_one_that_was_laid_out_at_once(point: Predicate) -> None:
    grown = with_heads(4, point)
    at_once = BayesianNetwork(_plain(grown.skeleton), point)
    assert grown.layout == at_once.layout
    assert grown.layout.sizes == at_once.layout.sizes
    assert grown.layout.places == at_once.layout.places
    assert grown.local_layers.keys() == at_once.local_layers.keys()
    assert list(grown.parameters) == list(at_once.parameters)
    assert torch.equal(grown.initial(1.0).mean, at_once.initial(1.0).mean)
    assert torch.equal(grown.shared(), at_once.shared())
    assert grown.learns_all == at_once.learns_all
    q, x = grown.initial(0.1), torch.randn(5, 4)
    seed = torch.arange(4, dtype=torch.int32)
    for head in range(4):
        assert grown.names_for(head) == at_once.names_for(head)
        noisy = (one(one.weights(q, Noise(seed)), x, head) for one in (grown, at_once))
        own = grown(grown.weights(q, Noise(seed), head), x, head)
        assert all(torch.equal(own, other) for other in noisy)


def _plain(module: nn.Module) -> nn.Module:
    """As its owner would hand it over."""
    plain = {local: one for one, local in LOCAL_LAYERS.items()}
    made = copy.deepcopy(module)
    for part in made.modules():
        if isinstance(part, LocalLayer):
            vars(part).pop("loaded")
            part.__class__ = plain[type(part)]  # type: ignore[assignment]
    return made


class Tied(MultiHead):
    """Each head has the first one's bias."""

    def grow(self, head: int, outputs: int, features: int) -> None:
        super().grow(head, outputs, features)
        self.heads[head]._parameters["bias"] = self.heads[0]._parameters["bias"]


class Counting(MultiHead):
    """Learns one number more with every head."""

    def grow(self, head: int, outputs: int, features: int) -> None:
        super().grow(head, outputs, features)
        self.body.register_parameter(f"extra{head}", nn.Parameter(torch.ones(1)))


@pytest.mark.parametrize("kind", [Tied, Counting])
def test_a_module_with_its_own_way_to_grow_is_laid_out_anew(kind: type[MultiHead]) -> None:
    network = BayesianNetwork(kind(nn.Sequential(nn.Linear(4, 8))))
    for head in range(3):
        network = network.grown(head, 2, 8, seed=head)
    parameters = dict(network.skeleton.named_parameters())
    assert set(network.layout.names) == set(parameters)
    assert network.layout.total == sum(one.numel() for one in parameters.values())
    assert network(network.initial(1.0), torch.ones(2, 4), 2).shape == (2, 2)
    assert len(parameters) == {Tied: 2 + 1 + 3, Counting: 2 + 6 + 3}[kind]


def test_a_copy_has_heads_of_its_own_as_soon_as_it_uses_them() -> None:
    network = with_heads(3)
    other = network.copy()
    q, x = network.initial(0.1), torch.randn(5, 4)
    before = network(q, x, 1)
    assert torch.equal(other(q, x, 1), before)
    for mine, path in ((True, "body.1"), (True, "heads.1"), (False, "heads.2")):
        assert (other.local_layers[path] is not network.local_layers[path]) == mine
        for one in (network, other):
            assert one.skeleton.get_submodule(path) is one.local_layers[path]
    weights = other.local_layers["heads.1"]._parameters["weight"]
    assert weights is network.local_layers["heads.1"]._parameters["weight"]


@pytest.mark.parametrize("first", [True, False])
def test_a_head_that_is_sampled_as_weights_is_so_in_one_network_only(first: bool) -> None:
    network = with_heads(3)
    other = network.copy()
    changed, kept = (network, other) if first else (other, network)
    changed.keep_local(["body.1"])
    assert changed.local_layers.keys() == {"body.1"}
    assert kept.local_layers.keys() == {"body.1", "heads.0", "heads.1", "heads.2"}
    q, x = network.initial(0.1), torch.randn(5, 4)
    assert torch.equal(kept(q, x, 1), changed(q, x, 1))
    seed = torch.zeros(4, dtype=torch.int32)
    twice = [kept(kept.weights(q, Noise(seed), 1), x, 1) for _ in range(2)]
    assert torch.equal(*twice)
    again = changed.copy()
    assert torch.equal(again(q, x, 2), kept(q, x, 2))


def test_some_names_are_views_of_the_same_and_have_the_same_gradient() -> None:
    layout = Layout(("a", "b", "c", "d"), ((2, 3), (4,), (), (5,)), gaussian_names=3)
    vector = torch.randn(2, layout.total, requires_grad=True)
    for names in (("b",), ("d", "a"), ("a", "b", "c", "d"), ("c", "d"), ()):
        found, every = layout.named(vector, names), layout.named(vector)
        assert list(found) == layout.ordered(names)
        assert all(torch.equal(part, every[name]) for name, part in found.items())
        assert all(part.data_ptr() == every[name].data_ptr() for name, part in found.items())
        if names:
            gradients = [_gradient(vector, parts, names) for parts in (found, every)]
            assert torch.equal(*gradients)
    variances = torch.rand(layout.gaussian_total)
    assert list(layout.named(variances, ("d", "c", "a"))) == ["a", "c"]


def _gradient(vector: Tensor, parts: dict[str, Tensor], names: tuple[str, ...]) -> Tensor:
    total = torch.stack([parts[name].square().sum() for name in names]).sum()
    (gradient,) = torch.autograd.grad(total, vector)
    return gradient
