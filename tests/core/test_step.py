"""The fast step against the definition: plain autograd of the readable loss, in float64."""

import copy
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import evclplus as ec
from evclplus.callbacks import Progress
from evclplus.core import traced, traced_update
from evclplus.core.batches import Batch, minibatches
from evclplus.core.examples import Examples
from evclplus.core.gaussian import Layout, MeanField
from evclplus.core.graphs import Operations
from evclplus.core.heads import MultiHead
from evclplus.core.hold import Hold
from evclplus.core.network import BayesianNetwork
from evclplus.core.step import (
    LikelihoodGradient,
    Update,
    Vectors,
    _exponential,
    step_rates,
)
from evclplus.core.traced_update import TracedUpdate
from evclplus.methods.base import Memory, Method
from evclplus.settings import Training
from evclplus.train import fit
from tests.helpers import CalledTwice

CLASSES = 3


class Read(nn.Module):
    """Reads a layer's weights instead of calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 5)
        self.output = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = nn.functional.linear(x, self.layer.weight, self.layer.bias)
        out: Tensor = self.output(h.tanh())
        return out


def frozen() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, CLASSES))
    module[0].weight.requires_grad_(False)
    return module


torch.manual_seed(0)  # the networks below are the same in every run
MODULES: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "mlp": (nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, CLASSES)), (4,)),
    "in place": (
        nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, CLASSES)),
        (4,),
    ),
    "no bias": (nn.Sequential(nn.Linear(4, 6, bias=False), nn.Tanh(), nn.Linear(6, 3)), (4,)),
    "sequence": (nn.Sequential(nn.Linear(4, 2), nn.Tanh(), nn.Flatten(), nn.Linear(10, 3)), (5, 4)),
    "conv": (
        nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2),
            nn.ReLU(),
            nn.Conv2d(4, 4, 2, dilation=2, bias=False),
            nn.Flatten(),
            nn.Linear(4, CLASSES),
        ),
        (2, 6, 6),
    ),
    "circular conv": (
        nn.Sequential(
            nn.Conv1d(2, 3, 3, padding=1, padding_mode="circular"), nn.Flatten(), nn.Linear(15, 3)
        ),
        (2, 5),
    ),
    "norms": (
        nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.BatchNorm1d(4), nn.Linear(4, 3)),
        (4,),
    ),
    "attention": (
        nn.Sequential(
            nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
            nn.Flatten(),
            nn.Linear(12, 3),
        ),
        (3, 4),
    ),
    "frozen": (frozen(), (4,)),
    "read": (Read(), (4,)),
    "twice": (CalledTwice(), (4,)),
}


def converted(name: str, point: str = "") -> BayesianNetwork:
    """One of the modules in float64; parameters with `point` in their names are point values."""
    module = copy.deepcopy(MODULES[name][0]).double()
    return BayesianNetwork(module, point=lambda n: bool(point) and point in n)


def posterior(network: BayesianNetwork) -> MeanField:
    q = network.initial(1.0)
    log_std = torch.rand(q.variance.shape, generator=torch.Generator().manual_seed(3)) - 2.0
    return MeanField(q.mean, (2 * log_std).exp().to(q.mean.dtype), q.layout)


def gaussian_of(mean: Tensor, log_std: Tensor, layout: Layout) -> MeanField:
    """In what Adam moves."""
    return MeanField(mean, (2 * log_std).exp(), layout)


def batch_for(network: BayesianNetwork, shape: tuple[int, ...], head: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(6, *shape, generator=generator, dtype=torch.float64)
    y = torch.randint(0, CLASSES, (6,), generator=generator)
    noise = torch.Generator().manual_seed(2)
    return next(minibatches(network, [Examples(x, y, CLASSES, head)], 6, noise))


def by_definition(q: MeanField, batch: Batch, at_mean: bool) -> tuple[Tensor, Tensor, Tensor]:
    leaves = q.clone()
    for vector in (leaves.mean, leaves.variance):
        vector.requires_grad_()
    loss = torch.stack(list(batch.terms(leaves, at_mean).values())).sum()
    found = torch.autograd.grad(loss, [leaves.mean, leaves.variance], allow_unused=True)
    mean, variance = (
        torch.zeros_like(v) if g is None else g
        for g, v in zip(found, (q.mean, q.variance), strict=True)
    )
    return loss.detach(), mean, variance


def assert_same_gradients(vectors: Vectors, expected: tuple[Tensor, Tensor, Tensor]) -> None:
    torch.testing.assert_close(vectors.mean_gradient, expected[1], rtol=1e-9, atol=1e-13)
    torch.testing.assert_close(vectors.spread_gradient, expected[2], rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("at_mean", [False, True])
@pytest.mark.parametrize("point", ["", "bias", "0."])
@pytest.mark.parametrize("name", MODULES)
def test_likelihood_gradient_equals_autograd(name: str, point: str, at_mean: bool) -> None:
    network, shape = converted(name, point), MODULES[name][1]
    q = posterior(network)
    vectors = Vectors(q)
    terms = LikelihoodGradient(network, vectors, at_mean)(batch_for(network, shape))
    expected = by_definition(q, batch_for(network, shape), at_mean)
    assert torch.count_nonzero(expected[1]) > 0.5 * len(q.mean)
    torch.testing.assert_close(terms["nll"], expected[0], rtol=1e-12, atol=0)
    assert_same_gradients(vectors, expected)


@pytest.mark.parametrize("at_mean", [False, True])
@pytest.mark.parametrize("point", ["", "bias", "heads"])
def test_the_gradient_with_held_heads_equals_autograd(point: str, at_mean: bool) -> None:
    body = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.BatchNorm1d(5))
    heads = [nn.Linear(5, 2), nn.Sequential(nn.LayerNorm(5), nn.Linear(5, 2)), nn.Linear(5, 3)]
    network = BayesianNetwork(
        MultiHead(body, heads).double(), point=lambda n: bool(point) and point in n
    )
    q = posterior(network)
    previous = MeanField(q.mean + 0.3 * torch.sin(torch.arange(len(q.mean))), q.variance, q.layout)
    hold = Hold(network.copy(), previous, (0, 1), 0.7)
    vectors = Vectors(q)
    likelihood = LikelihoodGradient(network, vectors, at_mean)
    terms = likelihood(replace(batch_for(network, (4,), head=2), hold=hold))
    expected = by_definition(q, replace(batch_for(network, (4,), head=2), hold=hold), at_mean)
    assert terms["function"] > 0.01
    torch.testing.assert_close(sum(terms.values()), expected[0], rtol=1e-12, atol=0)
    assert_same_gradients(vectors, expected)
    for name, gradient in network.layout.named(vectors.mean_gradient).items():
        assert bool(gradient.any()) != name.startswith(("heads.0.", "heads.1.")), name


def test_no_gradient_stays_behind_for_a_head_that_is_not_used() -> None:
    heads = [nn.Linear(5, CLASSES), nn.Sequential(nn.LayerNorm(5), nn.Linear(5, CLASSES))]
    network = BayesianNetwork(MultiHead(nn.Linear(4, 5), heads).double())
    q = posterior(network)
    vectors = Vectors(q)
    likelihood = LikelihoodGradient(network, vectors, at_mean=False)
    for head in (0, 1, 0):
        likelihood(batch_for(network, (4,), head))
        expected = by_definition(q, batch_for(network, (4,), head), at_mean=False)
        torch.testing.assert_close(vectors.mean_gradient, expected[1], rtol=1e-9, atol=1e-13)


METHODS: dict[str, ec.Method] = {
    "evcl+": ec.EVCLPlus(lam=3.0, k=2.0),
    "evcl+ by tensor": ec.EVCLPlus(lam=3.0, k=2.0, norm="tensor"),
    "evcl": ec.EVCL(lam=3.0),
    "vcl": ec.VCL(beta=0.3),
    "ewc": ec.EWC(lam=3.0),
    "finetune": ec.FineTune(),
    "coreset": ec.Coreset(method=ec.EVCLPlus(lam=2.0)),
}


@pytest.mark.parametrize("clip_norm", [None, 0.01])
@pytest.mark.parametrize("name", METHODS)
def test_the_training_loop_equals_autograd_and_torch_adam(
    name: str, clip_norm: float | None
) -> None:
    """Several steps on a second task: values, gradients and moments all have to be right."""
    method = METHODS[name]
    module, shape = MODULES["mlp"]
    network = BayesianNetwork(copy.deepcopy(module).double(), point=lambda _: method.is_point)
    q = posterior(network)
    generator = torch.Generator().manual_seed(4)
    fisher = torch.rand(len(q.mean), generator=generator, dtype=torch.float64)
    prior = MeanField(q.mean + 0.1, 0.9 * q.variance, q.layout)
    memory = Memory(prior, fisher, tasks=1)
    data = [Examples(batch_for(network, shape).x, batch_for(network, shape).y, CLASSES)]
    training = Training(epochs=5, batch_size=3, clip_norm=clip_norm, schedule="linear")
    found = fit(
        *(network, q, method, memory, data, training),
        *(torch.Generator().manual_seed(5), "", Progress()),
    )

    leaves = q.mean.clone(), q.variance.log() / 2
    moved = [v.requires_grad_() for v in leaves if len(v)]
    optimiser = torch.optim.Adam(moved)
    generator, step = torch.Generator().manual_seed(5), 0
    for _ in range(5):
        for batch in minibatches(network, data, 3, generator):
            optimiser.param_groups[0]["lr"] = 1e-3 * (1 - step / 10)
            optimiser.zero_grad()
            method.loss(gaussian_of(*leaves, q.layout), memory, batch).total.backward()
            if clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(moved, clip_norm)
            optimiser.step()
            step += 1
    mean, log_std = (leaf.detach() for leaf in leaves)
    torch.testing.assert_close(found.mean, mean, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.variance.log() / 2, log_std, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["evcl+", "ewc", "vcl"])
def test_the_compiled_update_equals_the_plain_one(name: str) -> None:
    method = METHODS[name]
    module, _ = MODULES["mlp"]
    network = BayesianNetwork(copy.deepcopy(module).double(), point=lambda _: method.is_point)
    q = posterior(network)
    memory = Memory(MeanField(q.mean + 0.1, 0.9 * q.variance, q.layout), torch.rand_like(q.mean))
    results = []
    for form in (lambda update: update, TracedUpdate):
        vectors = Vectors(q)
        vectors.mean_gradient.fill_(0.3)
        vectors.spread_gradient.fill_(-0.2)
        examples = torch.tensor(50.0).double()
        move = form(Update(vectors, method, memory, examples, None, method.is_point))
        for rates in step_rates([1e-2, 1e-2], q.mean):
            move(rates)
        results.append((vectors.weights, *vectors.moments, *vectors.spread_moments))
    for plain, compiled in zip(*results, strict=True):
        torch.testing.assert_close(plain, compiled, rtol=1e-9, atol=1e-12)


def test_a_step_in_log_sigma_multiplies_the_variance_by_an_exponential() -> None:
    steps = torch.linspace(-0.01, 0.01, 101, dtype=torch.float64)
    torch.testing.assert_close(_exponential(steps), steps.exp(), rtol=2e-13, atol=0)
    in_floats = torch.linspace(-0.1, 0.1, 1001)
    torch.testing.assert_close(_exponential(in_floats), in_floats.exp(), rtol=3e-7, atol=0)
    wild = torch.tensor([-1e15, -50.0, -0.4, 0.4, 50.0, 1e15])
    assert (_exponential(wild) > 0).all()
    torch.testing.assert_close(_exponential(wild[2:4]), wild[2:4].exp(), rtol=2e-5, atol=0)


def test_without_a_compiler_training_goes_on_and_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real failing compiler: inductor is pointed at a program that does not exist."""
    monkeypatch.setattr(traced, "_graphs", {})
    monkeypatch.setattr(traced_update, "_written", {})
    monkeypatch.setattr(traced_update, "_graphs", {})
    no_compiler = {"cpp.cxx": ("no-such-compiler",), "fx_graph_cache": False}
    module, shape = MODULES["mlp"]
    network = BayesianNetwork(copy.deepcopy(module).double())
    q, batch = posterior(network), batch_for(network, shape)
    data = [Examples(batch.x, batch.y, CLASSES)]

    def trained(compile: str) -> MeanField:
        training = Training(epochs=2, batch_size=3, compile=compile)
        return fit(
            *(network, q, ec.VCL(), Memory(q.clone()), data, training),
            *(torch.Generator().manual_seed(5), "", Progress()),
        )

    with (
        torch._inductor.config.patch(no_compiler),
        caplog.at_level("WARNING", logger="evclplus"),
    ):
        found = trained("on")
    assert torch.equal(found.mean, trained("off").mean)
    (line,) = [record.getMessage() for record in caplog.records if record.name == "evclplus"]
    assert line.startswith("training goes on without compiling: ")
    assert "no-such-compiler" in line
    assert "\n" not in line


def test_one_compiled_update_serves_every_strength(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table or a search changes the settings in one process, over and over."""
    graphs: dict[object, Operations] = {}
    monkeypatch.setattr(traced_update, "_written", {})
    monkeypatch.setattr(traced_update, "_graphs", graphs)
    module, shape = MODULES["frozen"]  # with the same numbers compiled and not
    network = BayesianNetwork(copy.deepcopy(module).double())
    q, batch = posterior(network), batch_for(network, shape)
    memory = Memory(MeanField(q.mean + 0.1, q.variance, q.layout), torch.rand_like(q.mean))
    data = [Examples(batch.x, batch.y, CLASSES)]

    def trained(method: Method, compile: str) -> MeanField:
        return fit(
            *(network, q, method, memory, data),
            Training(epochs=2, batch_size=3, compile=compile),
            *(torch.Generator().manual_seed(5), "", Progress()),
        )

    strengths = (ec.EWC(lam=7.0), ec.EVCLPlus(lam=7.0), ec.EVCLPlus(lam=9.0, k=2.0, beta=0.3))
    with caplog.at_level("WARNING", logger="evclplus"):
        for method in strengths:
            found = trained(method, "on")
            torch.testing.assert_close(found.mean, trained(method, "off").mean)
    assert len(graphs) == 2, "other numbers, but the same form"
    assert not caplog.records


@pytest.mark.parametrize("at_mean", [False, True])
@pytest.mark.parametrize("name", ["mlp", "no bias", "sequence", "conv", "norms", "attention"])
def test_low_precision_products_give_nearly_the_same_gradient(name: str, at_mean: bool) -> None:
    module, shape = MODULES[name]
    network = BayesianNetwork(copy.deepcopy(module).float())
    q, batch = posterior(network), batch_for(network, shape)
    found = {}
    for low in (False, True):
        vectors = Vectors(q, low_precision=low)
        likelihood = LikelihoodGradient(network, vectors, at_mean)
        noise = torch.Generator().manual_seed(2)
        likelihood(replace(batch, x=batch.x.float(), generator=noise))
        found[low] = vectors.gradients.float()
    error = (found[True] - found[False]).norm() / found[False].norm()
    assert 0 < error < 0.03  # bfloat16 has 8 bits


def test_low_precision_weights_follow_every_update() -> None:
    network = BayesianNetwork(copy.deepcopy(MODULES["mlp"][0]).float())
    q = posterior(network)
    vectors = Vectors(q, low_precision=True)
    vectors.gradients.fill_(0.3)
    update = Update(vectors, None, Memory(q), torch.tensor(50.0), None, at_mean=False)
    update(step_rates([1e-1], q.mean)[0])
    assert not torch.equal(vectors.mean, q.mean)
    assert torch.equal(vectors.products, vectors.weights.bfloat16())


def test_a_step_on_another_device_reads_nothing_back() -> None:
    """In a process of its own, because a device once registered stays."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.core.step_elsewhere"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["evcl+", "joint", "ewc", "evcl+-random"]
