"""Compiled steps against the definition, what shares a graph, and what becomes none.

Most of it needs the trace only, which takes no time: there a trace is run as it is, operation by
operation. Each compilation takes seconds.
"""

import copy
import gc
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, Literal

import pytest
import torch
import torch._inductor.config
from torch import Tensor, nn
from torch.fx import GraphModule

import evclplus as ec
from evclplus.callbacks import Callback
from evclplus.core import compiled
from evclplus.core import graphs as graphs_module
from evclplus.core.batches import Batch, Source
from evclplus.core.compiled import (
    CompiledLikelihood,
    CompiledUpdate,
    can_be_compiled,
)
from evclplus.core.engine import (
    Problem,
    State,
    StepGradient,
    likelihood_gradient,
    step_rate,
    update,
)
from evclplus.core.examples import Examples, View
from evclplus.core.gaussian import MeanField
from evclplus.core.graphs import Graphs
from evclplus.core.heads import MultiHead
from evclplus.core.likelihoods import OwnCriterion, Regression
from evclplus.core.network import BayesianNetwork
from evclplus.core.noise import new_seeds
from evclplus.errors import TrainingError
from evclplus.methods.elastic import Anchored
from evclplus.methods.function_space import trusted_answers
from evclplus.settings import Training
from evclplus.train import Trainer
from tests.core.modules import (
    CLASSES,
    MODULES,
    Looking,
    batch_for,
    converted,
    memory_for,
    posterior,
    problem_for,
    pushed,
)

SEEDS = new_seeds(torch.Generator().manual_seed(2), 1)


@pytest.fixture(scope="module")
def graphs() -> Graphs:
    """Compiled once for all tests here that can share them."""
    return Graphs()


def as_it_is(trace: GraphModule, keep: object) -> Callable[..., Any]:
    return trace


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Graphs:
    """Traces instead of compiled graphs."""
    monkeypatch.setattr(graphs_module, "_compiled", as_it_is)
    return Graphs()


def made(graphs: Graphs) -> int:
    return sum(map(len, graphs.made.values()))


def assert_same_gradient(
    problem: Problem, q: MeanField, batch: Batch, graphs: Graphs, tolerance: float = 1e-9
) -> None:
    found = []
    for function in (likelihood_gradient, CompiledLikelihood(problem, graphs)):
        state = State(q, {})
        terms = StepGradient(problem, state, function)([batch], SEEDS)
        found.append((terms, state.gradient))
    (terms, expected), (others, gradient) = found
    assert list(terms) == list(others)
    for name, term in terms.items():
        torch.testing.assert_close(others[name], term, rtol=tolerance, atol=0)
    assert torch.count_nonzero(expected) > 0.3 * len(q.mean)
    scale = float(expected.abs().max())
    torch.testing.assert_close(gradient, expected, rtol=tolerance, atol=tolerance * scale)


# What may be compiled.

COMPILED = ("mlp", "in place", "no bias", "sequence", "conv", "circular conv")


@pytest.mark.parametrize("name", MODULES)
def test_only_networks_of_known_modules_are_compiled(name: str) -> None:
    assert can_be_compiled(converted(name)) == (name in COMPILED)


def test_what_python_may_decide_is_not_compiled() -> None:
    class Own(MultiHead):
        def forward(self, x: Tensor, head: object = 0, held: object = None) -> Tensor:
            return super().forward(x, 0)

    hooked, patched, shared = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(4, 4)
    hooked.register_forward_hook(lambda *_: None)
    vars(patched)["forward"] = lambda x: x
    assert can_be_compiled(BayesianNetwork(MultiHead(nn.Linear(4, 5), [nn.Linear(5, 3)])))
    for module in (
        *(nn.Sequential(hooked), nn.Sequential(patched), Own(nn.Linear(4, 5), [nn.Linear(5, 3)])),
        nn.Sequential(shared, nn.Tanh(), shared),
        *(nn.Sequential(nn.Linear(4, 3), nn.Dropout()), nn.Sequential(nn.Linear(4, 3), nn.RReLU())),
    ):
        assert not can_be_compiled(BayesianNetwork(module)), module


@pytest.mark.parametrize(
    ("steps", "settings", "is_compiled"),
    [
        (1, {"compile": "on"}, True),
        (100, {}, False),
        (10**7, {}, True),
        (10**7, {"precision": "bf16"}, True),
        (10**7, {"compile": "off"}, False),
    ],
)
def test_which_runs_are_compiled(steps: int, settings: dict[str, Any], is_compiled: bool) -> None:
    trainer = Trainer(Training(**settings), 0, 0, "", Callback())
    for name, can in (("mlp", True), ("norms", False)):
        network = converted(name)
        expected = is_compiled and can
        assert forms(trainer, network, MODULES[name][1], steps) == (expected, expected)


def forms(
    trainer: Trainer,
    network: BayesianNetwork,
    shape: tuple[int, ...],
    steps: int,
    at_mean: bool = False,
) -> tuple[bool, bool]:
    """Whether the gradient and the update of such a run are compiled."""
    state = State(posterior(network), {})
    x = torch.zeros(300, *shape, dtype=network.dtype)
    source = Source((Examples(x, torch.zeros(300, dtype=torch.int64), CLASSES),))
    problem = problem_for(network, at_mean=at_mean)
    found = trainer._forms(problem, state, source, steps)
    return found.gradient.function is not likelihood_gradient, found.move is not update


def test_without_noise_only_the_update_is_compiled_unless_a_run_is_long() -> None:
    trainer = Trainer(Training(), 0, 0, "", Callback())
    network = BayesianNetwork(nn.Linear(100_000, CLASSES))
    assert forms(trainer, network, (100_000,), 600) == (True, True)
    assert forms(trainer, network, (100_000,), 600, at_mean=True) == (False, True)
    assert forms(trainer, network, (100_000,), 6000, at_mean=True) == (True, True)
    assert forms(trainer, network, (100_000,), 10, at_mean=True) == (False, False)


def test_the_noise_of_convolutions_counts_as_work() -> None:
    """Few weights, many activations."""
    trainer = Trainer(Training(), 0, 0, "", Callback())
    network = BayesianNetwork(ec.networks.convnet((3, 32, 32), heads=[CLASSES]))
    assert forms(trainer, network, (3, 32, 32), 80) == (True, True)


# The trace is the definition.


@pytest.mark.parametrize(("point", "at_mean"), [("", False), ("bias", False), ("", True)])
@pytest.mark.parametrize("name", COMPILED)
def test_a_trace_equals_the_definition(
    name: str, point: str, at_mean: bool, traced: Graphs
) -> None:
    network = converted(name, point)
    problem = problem_for(network, at_mean=at_mean)
    assert_same_gradient(problem, posterior(network), batch_for(MODULES[name][1]), traced)


ANY_SIZE: list[nn.Module] = [
    nn.Sequential(nn.Conv1d(2, 3, 3), nn.MaxPool1d(2), nn.AvgPool1d(2), nn.AdaptiveAvgPool1d(1)),
    nn.Sequential(nn.Unflatten(2, (5, 3)), nn.Conv2d(2, 3, 2), nn.MaxPool2d(2), nn.ELU()),
    nn.Sequential(nn.Unflatten(2, (5, 3)), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(2), nn.SiLU()),
    nn.Sequential(
        *(nn.Unflatten(2, (5, 3, 1)), nn.Conv3d(2, 3, 1), nn.MaxPool3d((2, 2, 1)), nn.GELU()),
        *(nn.AvgPool3d(1), nn.AdaptiveAvgPool3d(1), nn.Softplus(), nn.Sigmoid(), nn.LeakyReLU()),
    ),
    nn.Sequential(nn.Identity(), nn.Linear(15, 4), nn.ReLU(), nn.Linear(4, 7), nn.Tanh()),
    # More noise than is made at once where nothing is compiled.
    nn.Sequential(nn.Linear(15, 600), nn.ReLU()),
]
"""With their sizes, 2, 3, 4 and 7 among them, as batch sizes below."""


def serves_any_size(body: nn.Module, graphs: Graphs) -> None:
    features = body(torch.zeros(1, 2, 15)).flatten(1).shape[1]
    head = nn.Linear(features, CLASSES)
    network = BayesianNetwork(nn.Sequential(copy.deepcopy(body), nn.Flatten(), head).double())
    assert can_be_compiled(network)
    problem, q, before = problem_for(network), posterior(network), made(graphs)
    for size in (6, 1, 2, 3, 4, 7, 15, 40, 300):
        assert_same_gradient(problem, q, batch_for((2, 15), count=size), graphs)
    assert made(graphs) == before + 1


@pytest.mark.parametrize("body", ANY_SIZE)
def test_one_trace_serves_batches_of_any_size(body: nn.Module, traced: Graphs) -> None:
    serves_any_size(body, traced)


@pytest.mark.slow
@pytest.mark.parametrize("body", ANY_SIZE)
def test_one_graph_serves_batches_of_any_size(body: nn.Module) -> None:
    serves_any_size(body, Graphs())


def test_bytes_are_read_in_any_order_of_memory(traced: Graphs) -> None:
    network = BayesianNetwork(ec.networks.mlp(6, [20], heads=[CLASSES]))
    stored = torch.randint(0, 256, (6, 40), dtype=torch.uint8).t()
    assert not stored.is_contiguous()
    batch = Batch(stored, torch.arange(40) % CLASSES, 0, CLASSES, View(1 / 255, -0.5))
    assert_same_gradient(problem_for(network), posterior(network), batch, traced, 1e-4)
    converted_before = replace(batch, x=stored.float() / 255 - 0.5, view=View())
    found = []
    for one in (batch, converted_before):
        state = State(posterior(network), {})
        likelihood = CompiledLikelihood(problem_for(network), traced)
        StepGradient(problem_for(network), state, likelihood)([one], SEEDS)
        found.append(state.gradient)
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)


def three_heads(
    held: tuple[int, ...], lam_function: float = 0.7, seen: int = 0
) -> tuple[Problem, Batch]:
    """The third of three heads learns, the others may be held and its own outputs too."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.Tanh())
    module = MultiHead(body, [nn.Linear(5, CLASSES) for _ in range(3)]).double()
    network, batch = BayesianNetwork(module), batch_for((4,), head=2)
    previous = pushed(posterior(network))
    task = Examples(batch.x, batch.y, CLASSES, 2)
    heads, examples = trusted_answers(network, previous, held, task, seen)
    memory = Anchored(previous, torch.zeros_like(previous.mean), heads)
    problem = problem_for(network, ec.EVCLPlus(lam_function=lam_function), memory)
    return problem, replace(batch, answers=examples.answers)


def sharpened(output: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(3 * output, labels)


def test_batches_that_are_computed_differently_do_not_share_a_trace(traced: Graphs) -> None:
    problem, batch = three_heads(())
    batch = replace(batch, answers=None)
    one_hot = nn.functional.one_hot(batch.y, CLASSES).double()
    changes: list[dict[str, Any]] = [
        *({}, {"outputs": 2, "y": batch.y % 2}, {"likelihood": OwnCriterion(sharpened)}),
        *({"likelihood": Regression(s), "y": one_hot} for s in (1.0, 2.0)),
        *({"view": View(scale=2.0)}, {"view": View(shift=1.0)}, {"x": batch.x.view(-1, 2, 2)}),
    ]
    for number, change in enumerate(changes, start=1):
        changed = replace(batch, **change)
        assert_same_gradient(problem, posterior(problem.network), changed, traced)
        assert made(traced) == number


def test_held_heads_and_the_strength_of_holding_them_share_a_trace(traced: Graphs) -> None:
    cases = (((0,), 0.7, 0), ((1,), 0.7, 2), ((0, 1), 2.0, 0), ((), 0.1, 0), ((), 0.1, CLASSES))
    for held, lam_function, seen in cases:
        problem, batch = three_heads(held, lam_function, seen)
        for size in (6, 1, 3):
            assert batch.answers is not None
            part = replace(batch, x=batch.x[:size], y=batch.y[:size], answers=batch.answers[:size])
            assert_same_gradient(problem, posterior(problem.network), part, traced)
    assert made(traced) == 1


def test_heads_that_are_not_linear_are_held_in_a_trace_of_their_own(traced: Graphs) -> None:
    torch.manual_seed(0)
    heads = [nn.Sequential(nn.Tanh(), nn.Linear(5, CLASSES)) for _ in range(3)]
    network = BayesianNetwork(MultiHead(nn.Linear(4, 5), heads).double())
    previous, batch = pushed(posterior(network)), batch_for((4,), head=2)
    for held in ((0,), (0, 1)):
        kept, examples = trusted_answers(
            network, previous, held, Examples(batch.x, batch.y, CLASSES, 2)
        )
        memory = Anchored(previous, torch.zeros_like(previous.mean), kept)
        problem = problem_for(network, ec.EVCLPlus(lam_function=0.7), memory)
        answered = replace(batch, answers=examples.answers)
        assert_same_gradient(problem, posterior(network), answered, traced)
    assert made(traced) == 2


def test_heads_share_a_trace_and_no_gradient_stays_behind(traced: Graphs) -> None:
    problem, _ = three_heads(())
    q, state = posterior(problem.network), State(posterior(problem.network), {})
    gradient = StepGradient(problem, state, CompiledLikelihood(problem, traced))
    for head in (0, 1, 0, 2):
        gradient([batch_for((4,), head)], SEEDS)
        fresh = State(q, {})
        StepGradient(problem, fresh, likelihood_gradient)([batch_for((4,), head)], SEEDS)
        torch.testing.assert_close(state.gradient, fresh.gradient, rtol=1e-9, atol=1e-12)
    assert made(traced) == 1


def test_modules_that_compute_differently_do_not_share_a_graph() -> None:
    def description(module: nn.Module) -> tuple[object, ...]:
        network = BayesianNetwork(nn.Sequential(nn.Linear(2, 2), module))
        return compiled._module(network.skeleton)

    modules = [
        *(nn.ReLU(), nn.Tanh(), nn.LeakyReLU(0.1), nn.LeakyReLU(0.2), nn.GELU(), nn.GELU("tanh")),
        *(nn.AvgPool2d(2), nn.AvgPool2d(2, ceil_mode=True), nn.Flatten(), nn.Flatten(2)),
        *(nn.Linear(2, 2), nn.Conv1d(2, 2, 1), nn.Conv2d(2, 2, 1), nn.Conv1d(2, 2, 3)),
        *(nn.Conv1d(2, 2, 3, padding=1), nn.Conv1d(2, 2, 3, padding=1, padding_mode="circular")),
    ]
    found = [description(module) for module in modules]
    assert len(set(found)) == len(modules)
    assert description(nn.ReLU()) == found[0]


def test_a_graph_keeps_no_network_alive(traced: Graphs) -> None:
    problem, batch = three_heads((0,))
    state = State(posterior(problem.network), {})
    StepGradient(problem, state, CompiledLikelihood(problem, traced))([batch], SEEDS)
    CompiledUpdate(problem, traced)(problem, state.vectors, torch.ones(3).double(), state.layout)
    assert made(traced) == 2
    seen = weakref.ref(problem.network), weakref.ref(state)
    del problem, state
    gc.collect()
    assert [one() for one in seen] == [None, None]


# The update.


def moved(
    method: ec.Method, network: BayesianNetwork, graphs: Graphs | None, **options: Any
) -> State:
    """The state after three steps along a gradient that is given, compiled or not."""
    q = posterior(network)
    problem = problem_for(
        network, method, memory_for(method, q), at_mean=method.is_point, **options
    )
    state = State(q, method.trace(q), apart=isinstance(method, Looking))
    move = update if graphs is None else CompiledUpdate(problem, graphs)
    for step in range(1, 4):
        state.gradient.copy_(0.3 * torch.sin(step * torch.arange(state.gradient.shape[1])))
        if state.reference is not None:
            state.reference.copy_(0.2 * torch.cos(step * torch.arange(state.gradient.shape[1])))
        rates = torch.tensor(step_rate(1e-2, 1.0, step), dtype=network.dtype)
        move(problem, state.vectors, rates, q.layout)
    return state


def assert_same_update(
    method: ec.Method, network: BayesianNetwork, graphs: Graphs, **options: Any
) -> None:
    plain = moved(method, network, None, **options).vectors
    found = moved(method, network, graphs, **options).vectors
    assert not torch.equal(plain.mean, posterior(network).mean)
    for one, other in zip(
        (plain.mean, plain.variance, *plain.mean_moments, *plain.variance_moments),
        (found.mean, found.variance, *found.mean_moments, *found.variance_moments),
        strict=True,
    ):
        torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-12)
    assert plain.running.keys() == found.running.keys()
    for name, value in plain.running.items():
        torch.testing.assert_close(found.running[name], value, rtol=1e-9, atol=1e-12)


STRENGTHS: dict[str, tuple[ec.Method, ec.Method]] = {
    "evcl+": (ec.EVCLPlus(lam=3.0, k=2.0), ec.EVCLPlus(lam=9.0, k=0.5, beta=0.3)),
    "evcl": (ec.EVCL(lam=3.0), ec.EVCL(lam=0.0, beta=0.1)),
    "vcl": (ec.VCL(), ec.VCL(beta=0.3)),
    "ewc": (ec.EWC(lam=3.0), ec.EWC(lam=7.0)),
    "si": (ec.SynapticIntelligence(c=2.0), ec.SynapticIntelligence(c=0.5)),
    "finetune": (ec.FineTune(), ec.FineTune()),
    "with a reference": (Looking(), Looking()),
    "coreset": (
        ec.Coreset(method=ec.EVCLPlus(lam=2.0)),
        ec.Coreset(method=ec.EVCLPlus(lam=4.0, beta=0.3)),
    ),
}


def network_for(method: ec.Method, hidden: int) -> BayesianNetwork:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES))
    return BayesianNetwork(module.double(), point=lambda _: method.is_point)


@pytest.mark.parametrize("name", STRENGTHS)
def test_one_update_serves_every_strength_and_any_number_of_weights(
    name: str, traced: Graphs
) -> None:
    """A search changes the settings in one process, over and over."""
    for method in STRENGTHS[name]:
        for hidden in (6, 9):
            assert_same_update(method, network_for(method, hidden), traced)
    assert made(traced) == 1


def test_updates_that_are_computed_differently_do_not_share_a_trace(traced: Graphs) -> None:
    method = ec.EVCLPlus(lam=3.0)
    network = network_for(method, 6)
    partly = converted("mlp", point="bias")
    changes: list[tuple[ec.Method, BayesianNetwork, dict[str, Any]]] = [
        (method, network, {}),
        (method, network, {"clip_norm": 0.01}),
        (method, network, {"small_steps": False}),
        (method, network, {"optimiser": "sgd"}),
        (ec.EVCLPlus(lam=3.0, kl_scale="none"), network, {}),
        (ec.EVCL(lam=3.0), network, {}),
        (method, partly, {}),
    ]
    for number, (one, where, options) in enumerate(changes, start=1):
        assert_same_update(one, where, traced, **options)
        assert made(traced) == number


def test_one_update_of_sgd_serves_every_rate_and_momentum(traced: Graphs) -> None:
    for method in STRENGTHS["evcl+"]:
        for rates in ((0.1, 0.2, 0.0), (0.03, 0.3, 0.9)):
            found = []
            for graphs in (None, traced):
                q = posterior(network_for(method, 6))
                problem = problem_for(
                    network_for(method, 6), method, memory_for(method, q), optimiser="sgd"
                )
                state = State(q, {})
                move = update if graphs is None else CompiledUpdate(problem, graphs)
                for step in range(1, 4):
                    state.gradient.copy_(torch.sin(step * torch.arange(state.gradient.shape[1])))
                    move(problem, state.vectors, torch.tensor(rates).double(), q.layout)
                found.append(state.weights)
            torch.testing.assert_close(*found, rtol=1e-9, atol=1e-12)
    assert made(traced) == 1


def test_a_regulariser_that_asks_for_the_layout_has_a_trace_for_each(traced: Graphs) -> None:
    for lam in (3.0, 5.0):
        method = ec.EVCLPlus(lam=lam, k=2.0, norm="tensor")
        for hidden in (6, 9):
            assert_same_update(method, network_for(method, hidden), traced)
    assert made(traced) == 2


# Compiled for good.


def learner_for(lam: float, compile: Literal["on", "off"] = "on", beta: float = 1.0) -> ec.Learner:
    method = ec.EVCLPlus(lam=lam, beta=beta, lam_function=0.5, start="random")
    network = ec.networks.mlp(100, [200])  # small ones are laid out without gaps for new heads
    return ec.Learner(network, method, epochs=2, batch_size=20, compile=compile)


def tasks(sizes: Sequence[int] = (40, 50, 45)) -> ec.Stream:
    """Three tasks of two classes, each with a head of its own."""
    pairs = []
    for number, size in enumerate(sizes):
        x = torch.randn(size, 100, generator=torch.Generator().manual_seed(number))
        pairs.append((x, (x[:, number] > 0).long()))
    return ec.tasks(pairs, scenario="task")


def learned(learner: ec.Learner, stream: ec.Stream, graphs: Graphs) -> list[int]:
    """How many graphs there are after each task."""
    found = []
    for task in stream:
        learner.learn(task)
        found.append(made(graphs))
    return found


@pytest.mark.slow
def test_two_graphs_serve_heads_that_arrive_strengths_and_sizes(
    graphs: Graphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The likelihood's with the term in function space, and the update's, although the number of
    weights grows."""
    use(graphs, monkeypatch)
    two = [made(graphs) + 2] * 3
    first = learner_for(lam=10.0)
    assert learned(first, tasks(), graphs) == two
    other = learner_for(lam=70.0, beta=0.3)
    assert learned(other, tasks((33, 21, 64)), graphs) == two
    for learner, sizes in ((first, (40, 50, 45)), (other, (33, 21, 64))):
        assert learner.forms == {"compiled"}
        assert isinstance(learner.method, ec.EVCLPlus)
        plain = learner_for(learner.method.lam, "off", learner.method.beta)
        learned(plain, tasks(sizes), graphs)
        assert plain.forms == {"plain"}
        torch.testing.assert_close(learner.q.mean, plain.q.mean, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(learner.q.variance, plain.q.variance, rtol=1e-3, atol=1e-7)


def use(graphs: Graphs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainers take these graphs."""
    make = ec.Learner._trainer
    monkeypatch.setattr(
        ec.Learner, "_trainer", lambda self, label: replace(make(self, label), graphs=graphs)
    )


@pytest.mark.slow
def test_a_compiled_convolution_equals_the_definition(graphs: Graphs) -> None:
    network = converted("conv")
    batch = batch_for(MODULES["conv"][1])
    assert_same_gradient(problem_for(network), posterior(network), batch, graphs)


@pytest.mark.slow
@pytest.mark.parametrize("at_mean", [False, True])
@pytest.mark.parametrize(
    ("name", "point"), [("mlp", ""), ("mlp", "bias"), ("no bias", ""), ("conv", "")]
)
def test_a_compiled_gradient_equals_the_definition(
    name: str, point: str, at_mean: bool, graphs: Graphs
) -> None:
    network = converted(name, point)
    problem = problem_for(network, at_mean=at_mean)
    assert_same_gradient(problem, posterior(network), batch_for(MODULES[name][1]), graphs)


@pytest.mark.slow
@pytest.mark.parametrize("at_mean", [False, True])
def test_a_compiled_gradient_with_held_heads_equals_the_definition(
    at_mean: bool, graphs: Graphs
) -> None:
    for held in ((0,), (0, 1)):
        problem, batch = three_heads(held)
        problem = replace(problem, at_mean=at_mean)
        assert_same_gradient(problem, posterior(problem.network), batch, graphs)


@pytest.mark.slow
@pytest.mark.parametrize("name", STRENGTHS)
def test_a_compiled_update_equals_the_definition(name: str, graphs: Graphs) -> None:
    for method in STRENGTHS[name]:
        assert_same_update(method, network_for(method, 6), graphs)


@pytest.mark.slow
def test_a_compiled_regulariser_may_ask_for_the_layout(graphs: Graphs) -> None:
    method = ec.EVCLPlus(lam=3.0, k=2.0, norm="tensor")
    before = made(graphs)
    for hidden in (6, 9):
        assert_same_update(method, network_for(method, hidden), graphs)
    assert made(graphs) == before + 2


@pytest.mark.slow
@pytest.mark.parametrize("at_mean", [False, True])
@pytest.mark.parametrize("name", ["mlp", "conv"])
def test_compiled_low_precision_gives_nearly_the_same_gradient(
    name: str, at_mean: bool, graphs: Graphs
) -> None:
    module, shape = MODULES[name]
    network = BayesianNetwork(copy.deepcopy(module).float())
    q, batch = posterior(network), batch_for(shape, dtype=torch.float32)
    full = problem_for(network, at_mean=at_mean)
    low = replace(full, low_precision=True)
    found = []
    for problem, function in ((full, likelihood_gradient), (low, CompiledLikelihood(low, graphs))):
        state = State(q, {})
        terms = StepGradient(problem, state, function)([batch], SEEDS)
        assert terms["nll"].dtype == q.mean.dtype
        found.append(state.gradient)
    error = (found[1] - found[0]).norm() / found[0].norm()
    assert 0 < error < 0.03  # bfloat16 has 8 bits


# What goes wrong.


def trained(compile: Literal["on", "off"], graphs: Graphs) -> tuple[MeanField, set[str]]:
    """What a short training finds, and the forms that its steps had."""
    problem, _ = three_heads(())
    q, batch = posterior(problem.network), batch_for((4,))
    trainer = Trainer(
        Training(epochs=2, batch_size=3, compile=compile), 0, 0, "", Callback(), graphs=graphs
    )
    sources = (Source((Examples(batch.x, batch.y, CLASSES),)),)
    method = ec.VCL()
    memory = memory_for(method, q)
    found = trainer(method, problem.network, q, memory, sources, purpose="train")
    return found.q, trainer.forms


def assert_falls_back(caplog: pytest.LogCaptureFixture, reason: str) -> None:
    """Training goes on as if nothing had been compiled, one line says so, and so do the forms."""
    graphs = Graphs()
    with caplog.at_level("WARNING", logger="evclplus"):
        found, forms = trained("on", graphs)
    plain, plain_forms = trained("off", graphs)
    assert plain_forms == {"plain"}
    assert torch.equal(found.mean, plain.mean)
    assert torch.equal(found.variance, plain.variance)
    (line,) = [record.getMessage() for record in caplog.records if record.name == "evclplus"]
    assert line.startswith("training goes on without compiling: ")
    assert reason in line
    assert "\n" not in line
    (form,) = forms
    assert form.startswith("plain, because compiling failed: ")
    assert reason in form


def test_without_a_compiler_training_goes_on_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """A real failing compiler: inductor is pointed at a program that does not exist."""
    no_compiler = {"cpp.cxx": ("no-such-compiler",), "fx_graph_cache": False}
    with torch._inductor.config.patch(no_compiler):
        assert_falls_back(caplog, "no-such-compiler")


@pytest.mark.parametrize(("is_traced", "graphs_made"), [(False, 0), (True, 2)])
def test_an_update_that_fails_leaves_nothing_half_done(
    is_traced: bool,
    graphs_made: int,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before the first step, or in the middle of it, when the update is called: its kernels are
    compiled while the gradient is traced, and could not be."""

    def fail(*tensors: Tensor) -> tuple[Tensor, ...]:
        raise RuntimeError("no room left")

    def only_the_gradient(trace: GraphModule, keep: object) -> Callable[..., Any]:
        if trace.graph.find_nodes(op="call_function", target=torch.ops.aten.bmm.default):
            return trace
        if not is_traced:
            fail()
        return fail

    monkeypatch.setattr(graphs_module, "_compiled", only_the_gradient)
    graphs = Graphs()
    with caplog.at_level("WARNING", logger="evclplus"):
        found, forms = trained("on", graphs)
    assert made(graphs) == graphs_made
    assert forms == {"plain, because compiling failed: no room left"}
    assert len(caplog.records) == 1
    torch.testing.assert_close(found.mean, trained("off", graphs)[0].mean)


def test_a_graph_that_is_not_the_definition_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A compiler that computes something else: it divides by noise instead of multiplying."""

    def wrongly(trace: GraphModule, keep: object) -> Callable[..., Any]:
        for node in trace.graph.nodes:
            if node.target is torch.ops.aten.addcmul.default:
                node.target = torch.ops.aten.addcdiv.default
        trace.recompile()
        return trace

    monkeypatch.setattr(graphs_module, "_compiled", wrongly)
    assert_falls_back(caplog, "the compiled gradient is not that of the definition")


@pytest.mark.parametrize(("wrong_calls", "is_kept"), [(1, True), (100, False)])
def test_a_gradient_that_flips_at_a_kink_is_no_reason_to_give_a_graph_up(
    wrong_calls: int, is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph whose gradients are off in one draw of the noise and right in the others."""

    def off_at_first(trace: GraphModule, keep: object) -> Callable[..., Any]:
        calls = count()

        def run(*tensors: Tensor) -> tuple[Tensor, ...]:
            values: tuple[Tensor, ...] = trace(*tensors)
            return values if next(calls) >= wrong_calls else (*values[:-1], 2 * values[-1])

        return run

    monkeypatch.setattr(graphs_module, "_compiled", off_at_first)
    problem, _ = three_heads(())
    q, batch = posterior(problem.network), batch_for((4,))
    if is_kept:
        assert_same_gradient(problem, q, batch, Graphs())
    else:
        with pytest.raises(TrainingError, match="not that of the definition"):
            assert_same_gradient(problem, q, batch, Graphs())
