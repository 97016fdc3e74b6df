"""The compiled graph against the definition, and what may become one."""

import copy
import gc
import weakref
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import torch
import torch._inductor
from torch import Tensor, nn

import evclplus as ec
from evclplus.callbacks import Progress
from evclplus.core import traced
from evclplus.core.batches import Batch, minibatches
from evclplus.core.examples import Examples, View
from evclplus.core.gaussian import MeanField
from evclplus.core.graphs import Operations
from evclplus.core.heads import MultiHead
from evclplus.core.hold import Hold
from evclplus.core.network import BayesianNetwork
from evclplus.core.noise import CountedNoise, new_seed
from evclplus.core.step import LikelihoodGradient, Vectors
from evclplus.core.traced import TracedLikelihood, can_be_traced
from evclplus.methods.base import Memory
from evclplus.settings import Training
from evclplus.train import Compiler, fit
from tests.core.test_step import (
    CLASSES,
    MODULES,
    assert_same_gradients,
    batch_for,
    by_definition,
    converted,
    gaussian_of,
    posterior,
)

TRACED = ("mlp", "in place", "no bias", "sequence", "conv", "circular conv")


@pytest.mark.parametrize("name", MODULES)
def test_only_networks_of_known_modules_are_traced(name: str) -> None:
    network = BayesianNetwork(copy.deepcopy(MODULES[name][0]))
    assert can_be_traced(network) == (name in TRACED)


def test_what_python_may_decide_is_not_traced() -> None:
    class Own(MultiHead):
        def forward(self, x: Tensor, head: object = 0) -> Tensor:
            return super().forward(x, 0)

    hooked, patched, shared = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(4, 4)
    hooked.register_forward_hook(lambda *_: None)
    vars(patched)["forward"] = lambda x: x
    assert can_be_traced(BayesianNetwork(MultiHead(nn.Linear(4, 5), [nn.Linear(5, 3)])))
    for module in (
        *(nn.Sequential(hooked), nn.Sequential(patched), Own(nn.Linear(4, 5), [nn.Linear(5, 3)])),
        nn.Sequential(shared, nn.Tanh(), shared),
        *(nn.Sequential(nn.Linear(4, 3), nn.Dropout()), nn.Sequential(nn.Linear(4, 3), nn.RReLU())),
    ):
        assert not can_be_traced(BayesianNetwork(module)), module


def same_noise(batch: Batch) -> Batch:
    """The batch with the numbers that a graph draws for it."""
    assert isinstance(batch.generator, torch.Generator)
    return replace(batch, generator=CountedNoise(new_seed(batch.generator)))


@pytest.mark.parametrize("at_mean", [False, True])
@pytest.mark.parametrize("point", ["", "bias"])
@pytest.mark.parametrize("name", ["mlp", "conv"])
def test_the_graphs_gradient_equals_autograd(name: str, point: str, at_mean: bool) -> None:
    network, shape = converted(name, point), MODULES[name][1]
    q = posterior(network)
    vectors = Vectors(q)
    terms = TracedLikelihood(network, vectors, at_mean)(batch_for(network, shape))
    expected = by_definition(q, same_noise(batch_for(network, shape)), at_mean)
    assert torch.count_nonzero(expected[1]) > 0.5 * len(q.mean)
    torch.testing.assert_close(terms["nll"], expected[0], rtol=1e-9, atol=0)
    assert_same_gradients(vectors, expected)


@pytest.mark.parametrize("at_mean", [False, True])
@pytest.mark.parametrize("name", ["mlp", "no bias", "sequence", "conv"])
def test_in_low_precision_the_graphs_gradient_is_nearly_the_same(name: str, at_mean: bool) -> None:
    network, shape = converted(name, ""), MODULES[name][1]
    q = posterior(network)
    vectors = Vectors(q, low_precision=True)
    terms = TracedLikelihood(network, vectors, at_mean)(batch_for(network, shape))
    nll, *slopes = by_definition(q, same_noise(batch_for(network, shape)), at_mean)
    expected = torch.cat(slopes)
    found = torch.cat([vectors.mean_gradient, vectors.spread_gradient]).to(expected.dtype)
    assert 0 < (found - expected).norm() / expected.norm() < 0.03  # bfloat16 has 8 bits
    torch.testing.assert_close(terms["nll"], nll, rtol=0.03, atol=0)
    assert terms["nll"].dtype == q.mean.dtype


ANY_SIZE: list[nn.Module] = [
    nn.Sequential(nn.Conv1d(2, 3, 3), nn.MaxPool1d(2), nn.AvgPool1d(2), nn.AdaptiveAvgPool1d(1)),
    nn.Sequential(nn.Unflatten(2, (5, 3)), nn.Conv2d(2, 3, 2), nn.MaxPool2d(2), nn.ELU()),
    nn.Sequential(nn.Unflatten(2, (5, 3)), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(2), nn.SiLU()),
    nn.Sequential(
        *(nn.Unflatten(2, (5, 3, 1)), nn.Conv3d(2, 3, 1), nn.MaxPool3d((2, 2, 1)), nn.GELU()),
        *(nn.AvgPool3d(1), nn.AdaptiveAvgPool3d(1), nn.Softplus(), nn.Sigmoid(), nn.LeakyReLU()),
    ),
    nn.Sequential(nn.Identity(), nn.Linear(15, 4), nn.ReLU(), nn.Linear(4, 7), nn.Tanh()),
]
"""With their sizes, 2, 3, 4 and 7 among them, as batch sizes below."""


@pytest.mark.parametrize("body", ANY_SIZE)
def test_one_graph_serves_batches_of_any_size(body: nn.Module) -> None:
    features = body(torch.zeros(1, 2, 15)).flatten(1).shape[1]
    head = nn.Linear(features, CLASSES)
    module = nn.Sequential(copy.deepcopy(body), nn.Flatten(), head).double()
    network = BayesianNetwork(module)
    assert can_be_traced(network)
    q = posterior(network)
    vectors = Vectors(q)
    likelihood = TracedLikelihood(network, vectors, at_mean=False)
    for size in (6, 1, 2, 3, 4, 7, 15, 40):
        x, y = torch.randn(size, 2, 15).double(), torch.arange(size) % CLASSES
        batch = replace(batch_for(network, (2, 15)), x=x, y=y)
        expected = by_definition(q, same_noise(batch), at_mean=False)
        likelihood(replace(batch, generator=batch_for(network, (2, 15)).generator))
        assert_same_gradients(vectors, expected)


def test_a_graph_reads_bytes_in_any_order_of_memory() -> None:
    network = BayesianNetwork(ec.networks.mlp(6, [20], heads=[CLASSES]))
    q, vectors = posterior(network), Vectors(posterior(network))
    likelihood = TracedLikelihood(network, vectors, at_mean=False)
    stored = torch.randint(0, 256, (6, 40), dtype=torch.uint8).t()
    assert not stored.is_contiguous()
    change: dict[str, Any] = {
        "x": stored,
        "y": torch.arange(40) % CLASSES,
        "view": View(1 / 255, -0.5),
    }
    likelihood(replace(batch_for(network, (6,)), **change))
    inputs = change | {"x": stored.float() / 255 - 0.5, "view": View()}
    expected = by_definition(q, same_noise(replace(batch_for(network, (6,)), **inputs)), False)
    torch.testing.assert_close(vectors.mean_gradient, expected[1], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(vectors.spread_gradient, expected[2], rtol=1e-4, atol=1e-6)


def two_heads() -> BayesianNetwork:
    body = nn.Sequential(nn.Linear(4, 5), nn.Tanh())
    return BayesianNetwork(MultiHead(body, [nn.Linear(5, CLASSES), nn.Linear(5, CLASSES)]).double())


@pytest.mark.parametrize("at_mean", [False, True])
def test_the_graphs_gradient_with_held_heads_equals_autograd(at_mean: bool) -> None:
    body = nn.Sequential(nn.Linear(4, 5), nn.Tanh())
    heads = [nn.Linear(5, 2), nn.Linear(5, 2), nn.Linear(5, 3)]
    network = BayesianNetwork(MultiHead(body, heads).double())
    q = posterior(network)
    vectors = Vectors(q)
    likelihood = TracedLikelihood(network, vectors, at_mean)
    for shift in (0.3, 0.4):  # the second time the graph is there already
        previous = MeanField(q.mean + shift * torch.sin(q.mean * 99), q.variance, q.layout)
        hold = Hold(network.copy(), previous, (0, 1), 0.7)
        for size in (6, 3, 1):
            first, again = (replace(batch_for(network, (4,), head=2), hold=hold) for _ in range(2))
            terms = likelihood(replace(first, x=first.x[:size], y=first.y[:size]))
            batch = same_noise(replace(again, x=again.x[:size], y=again.y[:size]))
            expected = by_definition(q, batch, at_mean)
            assert list(terms) == ["nll", "function"]
            assert terms["function"] > 0.01
            torch.testing.assert_close(sum(terms.values()), expected[0], rtol=1e-9, atol=0)
            assert_same_gradients(vectors, expected)


def test_heads_share_a_graph_and_no_gradient_stays_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graphs: dict[tuple[object, ...], Operations] = {}
    monkeypatch.setattr(traced, "_graphs", graphs)
    network = two_heads()
    q = posterior(network)
    vectors = Vectors(q)
    likelihood = TracedLikelihood(network, vectors, at_mean=False)
    for head in (0, 1, 0):
        likelihood(batch_for(network, (4,), head))
        expected = by_definition(q, same_noise(batch_for(network, (4,), head)), at_mean=False)
        assert_same_gradients(vectors, expected)
    assert len(graphs) == 1


def test_batches_that_are_computed_differently_do_not_share_a_graph() -> None:
    body = nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.Tanh())
    module = MultiHead(body, [nn.Linear(5, CLASSES) for _ in range(3)]).double()
    network = BayesianNetwork(module)
    q = posterior(network)
    previous = MeanField(q.mean + 0.3 * torch.sin(q.mean * 99), q.variance, q.layout)
    batch = batch_for(network, (4,), head=2)

    def hold(head: int, lam_function: float) -> Hold:
        return Hold(network.copy(), previous, (head,), lam_function)

    def sharpened(output: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(3 * output, labels)

    changes: list[dict[str, Any]] = [
        *({}, {"outputs": 2, "y": batch.y % 2}, {"criterion": sharpened}),
        *({"hold": hold(0, 0.7)}, {"hold": hold(0, 2.0)}, {"hold": hold(1, 0.7)}),
        *({"view": View(scale=2.0)}, {"view": View(shift=1.0)}, {"x": batch.x.view(-1, 2, 2)}),
    ]
    for change in changes:
        vectors = Vectors(q)
        likelihood = TracedLikelihood(network, vectors, at_mean=False)
        likelihood(replace(batch_for(network, (4,), head=2), **change))
        same = same_noise(replace(batch_for(network, (4,), head=2), **change))
        assert_same_gradients(vectors, by_definition(q, same, at_mean=False))


def test_modules_that_compute_differently_do_not_share_a_graph() -> None:
    def description(module: nn.Module) -> tuple[object, ...]:
        return traced._description(BayesianNetwork(nn.Sequential(nn.Linear(2, 2), module)).skeleton)

    modules = [
        *(nn.ReLU(), nn.Tanh(), nn.LeakyReLU(0.1), nn.LeakyReLU(0.2), nn.GELU(), nn.GELU("tanh")),
        *(nn.AvgPool2d(2), nn.AvgPool2d(2, ceil_mode=True), nn.Flatten(), nn.Flatten(2)),
        *(nn.Linear(2, 2), nn.Conv1d(2, 2, 1), nn.Conv2d(2, 2, 1), nn.Conv1d(2, 2, 3)),
        *(nn.Conv1d(2, 2, 3, padding=1), nn.Conv1d(2, 2, 3, padding=1, padding_mode="circular")),
    ]
    found = [description(module) for module in modules]
    assert len(set(found)) == len(modules)
    assert description(nn.ReLU()) == found[0]


@pytest.mark.parametrize("method", [ec.EVCLPlus(lam=3.0, k=2.0), ec.EWC(lam=3.0)])
def test_training_with_a_graph_equals_autograd_and_torch_adam(method: ec.Method) -> None:
    module, shape = MODULES["mlp"]
    network = BayesianNetwork(copy.deepcopy(module).double(), point=lambda _: method.is_point)
    q, batch = posterior(network), batch_for(network, shape)
    prior = MeanField(q.mean + 0.1, 0.9 * q.variance, q.layout)
    memory = Memory(prior, torch.rand_like(q.mean), tasks=1)
    data = [Examples(batch.x, batch.y, CLASSES)]
    found = fit(
        *(network, q, method, memory, data, Training(epochs=5, batch_size=3, compile="on")),
        *(torch.Generator().manual_seed(5), "", Progress()),
    )

    leaves = q.mean.clone(), q.variance.log() / 2
    moved = [v.requires_grad_() for v in leaves if len(v)]
    optimiser = torch.optim.Adam(moved)
    generator = torch.Generator().manual_seed(5)
    for _ in range(5):
        for batch in minibatches(network, data, 3, generator):
            optimiser.zero_grad()
            method.loss(gaussian_of(*leaves, q.layout), memory, same_noise(batch)).total.backward()
            optimiser.step()
    mean, log_std = (leaf.detach() for leaf in leaves)
    torch.testing.assert_close(found.mean, mean, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.variance.log() / 2, log_std, rtol=1e-9, atol=1e-12)


def test_a_graph_that_is_not_the_definition_is_found_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A compiler that computes something else: it divides by noise instead of multiplying."""

    def wrongly(traced: torch.fx.GraphModule, arguments: object) -> torch.fx.GraphModule:
        for node in traced.graph.nodes:
            if node.target is torch.ops.aten.addcmul.default:
                node.target = torch.ops.aten.addcdiv.default
        traced.recompile()
        return traced

    network = two_heads()
    q, batch = posterior(network), batch_for(network, (4,))

    def trained(compile: str) -> MeanField:
        return fit(
            *(network, q, None, Memory(q.clone()), [Examples(batch.x, batch.y, CLASSES)]),
            Training(epochs=2, batch_size=3, compile=compile),
            *(torch.Generator().manual_seed(5), "", Progress()),
        )

    monkeypatch.setattr(traced, "_graphs", {})
    monkeypatch.setattr(torch._inductor, "standalone_compile", wrongly)
    with caplog.at_level("WARNING", logger="evclplus"):
        found = trained("on")
    monkeypatch.undo()
    (line,) = [record.getMessage() for record in caplog.records if record.name == "evclplus"]
    assert line.endswith("the compiled gradient is not that of the definition")
    assert torch.equal(found.mean, trained("off").mean)


def test_a_slope_that_flips_at_a_kink_is_no_reason_to_give_a_graph_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A graph whose slopes are off in one draw of the noise and right in the others."""

    def once_off(traced: torch.fx.GraphModule, arguments: object) -> Operations:
        calls = count()

        def run(*tensors: Tensor) -> tuple[Tensor, ...]:
            terms: tuple[Tensor, ...] = traced(*tensors)
            if next(calls) == 0:
                tensors[-1].mul_(2)
            return terms

        return run

    network = two_heads()
    q, batch = posterior(network), batch_for(network, (4,))
    monkeypatch.setattr(traced, "_graphs", {})
    monkeypatch.setattr(torch._inductor, "standalone_compile", once_off)
    vectors = Vectors(q)
    TracedLikelihood(network, vectors, at_mean=False)(batch)
    expected = by_definition(q, same_noise(batch_for(network, (4,))), at_mean=False)
    assert_same_gradients(vectors, expected)


def test_which_runs_get_a_graph() -> None:
    network = two_heads()
    q = network.initial(1.0)

    def has_graph(steps: int, hold: Hold | None = None, **settings: object) -> bool:
        training = Training(**settings)
        vectors = Vectors(q, low_precision=training.precision == "bf16")
        chosen = Compiler().likelihood(training, steps, network, vectors, False, hold)
        return not isinstance(chosen, LikelihoodGradient)

    hold = Hold(network.copy(), q, (0,), 1.0)
    assert has_graph(1, compile="on")
    assert has_graph(1, compile="on", hold=hold)
    assert has_graph(10_000)
    assert not has_graph(100)
    assert not has_graph(10_000, compile="off")
    assert has_graph(10_000, precision="bf16")
    assert not has_graph(10_000, hold=hold)


def test_a_graph_keeps_no_network_alive() -> None:
    network = two_heads()
    vectors = Vectors(posterior(network))
    TracedLikelihood(network, vectors, at_mean=False)(batch_for(network, (4,)))
    seen = weakref.ref(network), weakref.ref(vectors)
    del network, vectors
    gc.collect()
    assert [one() for one in seen] == [None, None]
