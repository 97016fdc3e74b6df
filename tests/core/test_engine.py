"""A training step against plain autograd of the flat loss and torch's own Adam, in float64."""

import copy
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import evclplus as ec
from evclplus.callbacks import Callback
from evclplus.core.batches import Batch, Source, steps_of_epoch
from evclplus.core.engine import (
    GRAIN,
    SMALL_RATE,
    Gradient,
    Here,
    Problem,
    Running,
    State,
    Step,
    StepGradient,
    likelihood_gradient,
    loss,
    step_rate,
    update,
)
from evclplus.core.examples import Examples
from evclplus.core.gaussian import MeanField
from evclplus.core.heads import MultiHead
from evclplus.core.network import BayesianNetwork
from evclplus.core.noise import Noise, new_seeds
from evclplus.methods.elastic import Anchored
from evclplus.methods.function_space import trusted_answers
from evclplus.seeding import generator
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

SEEDS = new_seeds(torch.Generator().manual_seed(2), 3)


def by_definition(
    problem: Problem, q: MeanField, batch: Batch, seed: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The likelihood's value and its gradients in the flat vectors."""
    leaves = MeanField(
        q.mean.clone().requires_grad_(), q.variance.clone().requires_grad_(), q.layout
    )
    noise = None if problem.at_mean else Noise(seed)
    terms = loss(
        *(problem.objective, leaves, problem.memory, batch, problem.network, problem.examples),
        noise,
    )
    total = torch.stack([value for name, value in terms.items() if name != "penalty"]).sum()
    mean, variance = torch.autograd.grad(
        total, (leaves.mean, leaves.variance), allow_unused=True, materialize_grads=True
    )
    return total.detach(), mean, variance


def assert_same(found: Gradient, expected: tuple[Tensor, Tensor]) -> None:
    torch.testing.assert_close(found.mean, expected[0], rtol=1e-9, atol=1e-13)
    torch.testing.assert_close(found.variance, expected[1], rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("at_mean", [False, True])
@pytest.mark.parametrize("point", ["", "bias", "0."])
@pytest.mark.parametrize("name", MODULES)
def test_the_gradient_equals_autograd(name: str, point: str, at_mean: bool) -> None:
    network, batch = converted(name, point), batch_for(MODULES[name][1])
    problem = problem_for(network, at_mean=at_mean)
    q = posterior(network)
    state = State(q, {})
    terms = StepGradient(problem, state, likelihood_gradient)([batch], SEEDS[:1])
    nll, *expected = by_definition(problem, q, batch, SEEDS[0])
    assert torch.count_nonzero(expected[0]) > 0.5 * len(q.mean)
    assert bool(expected[1].any()) == (not at_mean and len(q.variance) > 0)
    torch.testing.assert_close(terms["nll"], nll, rtol=1e-12, atol=0)
    assert_same(state.vectors.gradient, (expected[0], expected[1]))


def held_heads(kind: str, point: str) -> tuple[Problem, MeanField, Batch]:
    """A third task with two earlier heads held, after the weights have moved."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.BatchNorm1d(5))
    heads: list[nn.Module] = [nn.Linear(5, 2), nn.Linear(5, 2), nn.Linear(5, 3)]
    if kind == "mixed":
        heads[1] = nn.Sequential(nn.LayerNorm(5), nn.Linear(5, 2))
    network = BayesianNetwork(
        MultiHead(body, heads).double(), point=lambda n: bool(point) and point in n
    )
    previous, batch = posterior(network), batch_for((4,), head=2)
    held, examples = trusted_answers(
        network, previous, (0, 1), Examples(batch.x, batch.y, CLASSES, 2)
    )
    memory = Anchored(previous, torch.zeros_like(previous.mean), held)
    problem = problem_for(network, ec.EWC(lam_function=0.7), memory)
    return problem, pushed(previous), replace(batch, answers=examples.answers)


@pytest.mark.parametrize("at_mean", [False, True])
@pytest.mark.parametrize("point", ["", "bias", "heads"])
@pytest.mark.parametrize("kind", ["linear", "mixed"])
def test_the_gradient_with_held_heads_equals_autograd(kind: str, point: str, at_mean: bool) -> None:
    problem, q, batch = held_heads(kind, point)
    problem = replace(problem, at_mean=at_mean)
    assert (problem.memory.held.linear is not None) == (kind == "linear")
    state = State(q, {})
    # Held answers are compared as predictions, with running statistics, which a pass moves.
    same = replace(problem, network=problem.network.copy())
    terms = StepGradient(problem, state, likelihood_gradient)([batch], SEEDS[:1])
    total, *expected = by_definition(same, q, batch, SEEDS[0])
    assert list(terms) == ["nll", "function"]
    assert terms["function"] > 0.01
    torch.testing.assert_close(terms["nll"] + terms["function"], total, rtol=1e-12, atol=0)
    assert_same(state.vectors.gradient, (expected[0], expected[1]))


def two_heads(at_mean: bool) -> Problem:
    """The flat loss draws the weights of other heads' norms too, and so other numbers after
    them: there are norms where nothing is drawn."""
    torch.manual_seed(0)
    second = nn.Sequential(nn.LayerNorm(5) if at_mean else nn.Tanh(), nn.Linear(5, CLASSES))
    module = MultiHead(nn.Linear(4, 5), [nn.Linear(5, CLASSES), second])
    return problem_for(BayesianNetwork(module.double()), at_mean=at_mean)


@pytest.mark.parametrize("at_mean", [False, True])
def test_no_gradient_stays_behind_for_a_head_that_is_not_used(at_mean: bool) -> None:
    problem = two_heads(at_mean)
    q = posterior(problem.network)
    state = State(q, {})
    gradient = StepGradient(problem, state, likelihood_gradient)
    for head in (0, 0, 1, 0):
        batch = batch_for((4,), head)
        gradient([batch], SEEDS[:1])
        _, *expected = by_definition(problem, q, batch, SEEDS[0])
        assert_same(state.vectors.gradient, (expected[0], expected[1]))


@pytest.mark.parametrize("at_mean", [False, True])
def test_the_batches_of_a_step_add_up_with_their_shares(at_mean: bool) -> None:
    problem = two_heads(at_mean)
    q = posterior(problem.network)
    shares = (0.5, 0.3, 0.2)
    batches = [
        replace(batch_for((4,), head, count), share=share)
        for head, count, share in zip((0, 1, 0), (5, 3, 2), shares, strict=True)
    ]
    state = State(q, {})
    gradient = StepGradient(problem, state, likelihood_gradient)
    for _ in range(2):  # the second step starts from nothing again
        terms = gradient(batches, SEEDS)
    singly = [
        by_definition(problem, q, one, seed) for one, seed in zip(batches, SEEDS, strict=True)
    ]
    torch.testing.assert_close(terms["nll"], singly[0][0], rtol=1e-12, atol=0)
    mean, variance = (
        torch.stack([share * found[part] for share, found in zip(shares, singly, strict=True)])
        for part in (1, 2)
    )
    assert_same(state.vectors.gradient, (mean.sum(0), variance.sum(0)))


METHODS: dict[str, ec.Method] = {
    "evcl+": ec.EVCLPlus(lam=3.0, k=2.0),
    "evcl+ by tensor": ec.EVCLPlus(lam=3.0, k=2.0, norm="tensor"),
    "evcl": ec.EVCL(lam=3.0),
    "vcl": ec.VCL(beta=0.3),
    "ewc": ec.EWC(lam=3.0),
    "si": ec.SynapticIntelligence(c=2.0),
    "finetune": ec.FineTune(),
    "coreset": ec.Coreset(method=ec.EVCLPlus(lam=2.0)),
}
EPOCHS, STEPS = 5, 10


def trained_by_torch(
    problem: Problem, q: MeanField, data: Examples, training: Training
) -> tuple[Tensor, Tensor]:
    """Means and log sigma after autograd of the whole loss and torch's own optimiser, in what that
    moves: sigma^2 = exp(2 log sigma)."""
    mean, log_std = q.mean.clone().requires_grad_(), (q.variance.log() / 2).requires_grad_()
    moved = [one for one in (mean, log_std) if len(one)]
    assert training.learning_rate is not None
    rates = (training.learning_rate, training.learning_rate * training.std_rate)
    groups = [{"params": [one], "lr": rate} for one, rate in zip(moved, rates, strict=False)]
    optimiser: torch.optim.Optimizer = torch.optim.Adam(groups)
    if training.optimiser == "sgd":
        optimiser = torch.optim.SGD(groups, momentum=training.momentum)
    step = 0
    for epoch in range(1, EPOCHS + 1):
        draws = generator(7, 1, "train", epoch)
        seeds = new_seeds(draws, STEPS // EPOCHS)
        steps = steps_of_epoch([Source((data,))], training.batch_size, draws)
        for (batch,), seed in zip(steps, seeds, strict=True):
            noise = None if problem.at_mean else Noise(seed)
            if training.schedule == "linear":
                for group, rate in zip(optimiser.param_groups, rates, strict=False):
                    group["lr"] = rate * (1 - step / STEPS)
            optimiser.zero_grad()
            gaussian = MeanField(mean, (2 * log_std).exp(), q.layout)
            terms = loss(
                *(problem.objective, gaussian, problem.memory, batch, problem.network),
                *(problem.examples, noise),
            )
            torch.stack(list(terms.values())).sum().backward()
            if training.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(moved, training.clip_norm)
            optimiser.step()
            step += 1
    assert step == STEPS
    return mean.detach(), log_std.detach()


def compare_with_torch(method: ec.Method, training: Training) -> None:
    """Several steps on a second task: values, gradients and moments all have to be right."""
    module, shape = MODULES["mlp"]
    network = BayesianNetwork(copy.deepcopy(module).double(), point=lambda _: method.is_point)
    q, batch = posterior(network), batch_for(shape)
    before = q.clone()
    data, memory = Examples(batch.x, batch.y, CLASSES), memory_for(method, q)
    trainer = Trainer(training, 7, 1, "", Callback())
    found = trainer(method, network, q, memory, (Source((data,)),), purpose="train").q
    assert torch.equal(q.mean, before.mean), "training changed what it started from"
    assert torch.equal(q.variance, before.variance), "training changed what it started from"
    problem = problem_for(network, method, memory, at_mean=method.is_point)
    problem = replace(problem, examples=torch.tensor(6.0, dtype=torch.float64))
    mean, log_std = trained_by_torch(problem, q, data, training)
    assert (found.mean - q.mean).abs().min() > 0 or method.is_point
    torch.testing.assert_close(found.mean, mean, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.variance.log() / 2, log_std, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("clip_norm", [None, 0.01])
@pytest.mark.parametrize("name", METHODS)
def test_the_training_loop_equals_autograd_and_torch_adam(
    name: str, clip_norm: float | None
) -> None:
    training = Training(
        epochs=EPOCHS,
        batch_size=3,
        learning_rate=1e-3,
        std_rate=1.0,
        clip_norm=clip_norm,
        schedule="linear",
        compile="off",
    )
    compare_with_torch(METHODS[name], training)


@pytest.mark.parametrize(("momentum", "clip_norm"), [(0.0, None), (0.9, None), (0.9, 0.01)])
@pytest.mark.parametrize("name", METHODS)
def test_the_training_loop_equals_autograd_and_torch_sgd(
    name: str, momentum: float, clip_norm: float | None
) -> None:
    training = Training(
        epochs=EPOCHS,
        batch_size=3,
        optimiser="sgd",
        learning_rate=0.05,
        momentum=momentum,
        std_rate=2.0,
        clip_norm=clip_norm,
        schedule="linear",
        compile="off",
    )
    compare_with_torch(METHODS[name], training)


@pytest.mark.parametrize("name", ["evcl+", "vcl", "ewc"])
@pytest.mark.parametrize("std_rate", [0.3, 4.0])
def test_log_sigma_has_a_step_size_of_its_own(name: str, std_rate: float) -> None:
    """As torch's Adam with two groups of parameters."""
    training = Training(
        epochs=EPOCHS,
        batch_size=3,
        learning_rate=1e-3,
        std_rate=std_rate,
        schedule="linear",
        compile="off",
    )
    compare_with_torch(METHODS[name], training)


def test_a_large_learning_rate_equals_torch_adam_too() -> None:
    """Steps in log sigma that are no small ones."""
    training = Training(
        epochs=EPOCHS,
        batch_size=3,
        learning_rate=0.5,
        std_rate=1.0,
        schedule="constant",
        compile="off",
    )
    compare_with_torch(METHODS["vcl"], training)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize(
    ("rate", "small_steps", "tolerance"),
    [
        (1e-4, True, 1e-12),
        (1e-2, True, 1e-8),
        (SMALL_RATE, True, 1e-6),
        (1e-3, False, 1e-12),
        (2.0, False, 1e-12),
    ],
)
def test_a_step_in_log_sigma_multiplies_the_variance_by_an_exponential(
    rate: float, small_steps: bool, tolerance: float, sign: float
) -> None:
    """At Adam's largest step: a gradient after many that were zero."""
    network = converted("mlp")
    q = posterior(network)
    state = State(q, {})
    state.vectors.gradient.variance.copy_(sign * 1e9 / q.variance)  # beside it, epsilon is nothing
    rates = torch.tensor(step_rate(rate, 1.0, 100_000), dtype=torch.float64)
    update(problem_for(network, small_steps=small_steps), state.vectors, rates, q.layout)
    largest = rate * (1 - 0.9) / (1 - 0.999) ** 0.5
    assert largest == pytest.approx(3.17 * rate, rel=0.01)
    expected = q.variance * torch.tensor(-sign * 2 * largest, dtype=torch.float64).exp()
    torch.testing.assert_close(state.vectors.variance, expected, rtol=tolerance, atol=0)


@dataclass(frozen=True)
class Marked:
    """Weights that may move."""

    free: Tensor


class Masking(ec.FineTune):
    """Holds some weights whatever their gradient, and follows what it is shown."""

    memory_type = Marked

    @property
    def is_point(self) -> bool:
        return False

    def move(self, step: Step, memory: Marked, here: Here) -> Step:
        return Step(step.mean * memory.free, step.log_std * memory.free)

    def trace(self, q: MeanField) -> Running:
        return {name: torch.zeros_like(q.mean) for name in ("moved", "log_std", "slope", "slope2")}

    def follow(self, running: Running, gradient: Gradient, step: Step) -> Running:
        return {
            "moved": running["moved"] + step.mean,
            "log_std": running["log_std"] + step.log_std,
            "slope": running["slope"] + gradient.mean,
            "slope2": gradient.variance,
        }


def run(problem: Problem, state: State, batch: Batch, steps: int) -> list[tuple[Tensor, Tensor]]:
    """Some steps, and the likelihood's gradients by autograd on their way."""
    gradient, found = StepGradient(problem, state, likelihood_gradient), []
    for step in range(1, steps + 1):
        seeds = new_seeds(torch.Generator().manual_seed(step), 1)
        _, mean, variance = by_definition(problem, state.posterior(), batch, seeds[0])
        found.append((mean, variance))
        gradient([batch], seeds)
        rates = torch.tensor(step_rate(1e-2, 1.0, step), dtype=torch.float64)
        update(problem, state.vectors, rates, state.layout)
    return found


def test_a_method_changes_the_step_and_follows_what_is_really_done() -> None:
    network, batch = converted("mlp"), batch_for((4,))
    q = posterior(network)
    free = (torch.arange(len(q.mean)) % 3 > 0).double()
    method = Masking()
    state = State(q, method.trace(q))
    slopes = run(problem_for(network, method, Marked(free)), state, batch, 3)
    held = free == 0
    for before, after in ((q.mean, state.vectors.mean), (q.variance, state.vectors.variance)):
        assert torch.equal(before[held], after[held])
        assert (before[~held] != after[~held]).all()
    running = state.vectors.running
    torch.testing.assert_close(running["moved"], state.vectors.mean - q.mean)
    changes = (state.vectors.variance / q.variance).log() / 2
    torch.testing.assert_close(running["log_std"], changes, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(running["slope"], sum(mean for mean, _ in slopes))
    torch.testing.assert_close(running["slope2"], slopes[-1][1])
    # Held or not, a weight's neighbours go the same way for a step.
    first, freely = State(q, method.trace(q)), State(q, method.trace(q))
    run(problem_for(network, method, Marked(free)), first, batch, 1)
    run(problem_for(network, method, Marked(torch.ones_like(free))), freely, batch, 1)
    assert torch.equal(first.vectors.mean[~held], freely.vectors.mean[~held])


@pytest.mark.parametrize("at_mean", [False, True])
def test_a_source_that_is_kept_apart_has_a_gradient_of_its_own(at_mean: bool) -> None:
    problem = two_heads(at_mean)
    q = posterior(problem.network)
    batches = [
        batch_for((4,), 0, 5),
        replace(batch_for((4,), 1, 3), share=0.6, apart=True),
        replace(batch_for((4,), 0, 2), share=0.4, apart=True),
    ]
    state = State(q, {}, apart=True)
    gradient = StepGradient(problem, state, likelihood_gradient)
    for _ in range(2):  # the second step starts from nothing again
        gradient(batches, SEEDS)
    _, *own = by_definition(problem, q, batches[0], SEEDS[0])
    assert_same(state.vectors.gradient, (own[0], own[1]))
    singly = [by_definition(problem, q, batches[i], SEEDS[i]) for i in (1, 2)]
    apart = [0.6 * singly[0][part] + 0.4 * singly[1][part] for part in (1, 2)]
    assert state.vectors.reference is not None
    assert_same(state.vectors.reference, (apart[0], apart[1]))
    assert apart[0].any()


def test_a_move_sees_where_it_is_and_both_gradients() -> None:
    network = converted("mlp")
    problem = problem_for(network, Looking(), small_steps=False)
    q, batch = posterior(network), batch_for((4,))
    other = replace(batch_for((4,), count=4), apart=True)
    state = State(q, {}, apart=True)
    StepGradient(problem, state, likelihood_gradient)([batch, other], SEEDS[:2])
    update(problem, state.vectors, torch.ones(3).double(), q.layout)
    _, *own = by_definition(problem, q, batch, SEEDS[0])
    _, *apart = by_definition(problem, q, other, SEEDS[1])
    expected = 101 * q.mean + own[0] + 10 * apart[0]
    torch.testing.assert_close(state.vectors.mean, expected, rtol=1e-9, atol=1e-12)
    log_ratio = (state.vectors.variance / q.variance).log()
    torch.testing.assert_close(log_ratio, 2 * 50 * own[1] * apart[1], rtol=1e-7, atol=1e-9)


def test_the_path_of_synaptic_intelligence_is_of_the_likelihood_alone() -> None:
    network, batch = converted("mlp", point="."), batch_for((4,))
    q, method = posterior(network), ec.SynapticIntelligence(c=5.0)
    memory = memory_for(method, q)
    problem = problem_for(network, method, memory, at_mean=True)
    state = State(q, method.trace(q))
    path, before = torch.zeros_like(q.mean), q.mean.clone()
    gradient = StepGradient(problem, state, likelihood_gradient)
    for step in range(1, 5):
        _, slope, _ = by_definition(problem, state.posterior(), batch, SEEDS[0])
        gradient([batch], SEEDS[:1])
        rates = torch.tensor(step_rate(1e-2, 1.0, step), dtype=torch.float64)
        update(problem, state.vectors, rates, q.layout)
        path -= slope * (state.vectors.mean - before)
        before = state.vectors.mean.clone()
    assert path.abs().max() > 1e-4
    torch.testing.assert_close(state.vectors.running["path"], path, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("at_mean", [False, True])
@pytest.mark.parametrize("name", ["mlp", "no bias", "sequence", "conv", "norms", "attention"])
def test_low_precision_products_give_nearly_the_same_gradient(name: str, at_mean: bool) -> None:
    module, shape = MODULES[name]
    network = BayesianNetwork(copy.deepcopy(module).float())
    q, batch = posterior(network), batch_for(shape, dtype=torch.float32)
    found = {}
    for low in (False, True):
        problem, state = problem_for(network, at_mean=at_mean, low_precision=low), State(q, {})
        terms = StepGradient(problem, state, likelihood_gradient)([batch], SEEDS[:1])
        assert terms["nll"].dtype == state.gradient.dtype == torch.float32
        found[low] = state.gradient.clone()
    error = (found[True] - found[False]).norm() / found[False].norm()
    assert 0 < error < 0.03  # bfloat16 has 8 bits


@pytest.mark.parametrize("total", [10, GRAIN + 1, 2 * GRAIN])
@pytest.mark.parametrize("point", [False, True])
def test_a_state_has_room_of_its_own_for_any_number_of_weights(total: int, point: bool) -> None:
    network = BayesianNetwork(nn.Linear(total, 1, bias=False), point=lambda _: point)
    q = posterior(network)
    state = State(q, {})
    found = state.posterior()
    assert torch.equal(found.mean, q.mean)
    assert torch.equal(found.variance, q.variance)
    assert state.weights.stride(0) in (total, 2 * GRAIN)
    state.vectors.mean.add_(1)
    assert torch.equal(found.mean, q.mean + 1)
    assert not torch.equal(q.mean, found.mean)


def test_a_step_on_another_device_reads_nothing_back() -> None:
    """In a process of its own, because a device once registered stays."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.core.step_elsewhere"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["evcl+", "joint", "ewc", "si"]


def test_terms_of_a_step_carry_no_gradient() -> None:
    network = converted("mlp")
    state = State(posterior(network), {})
    terms: dict[str, Any] = StepGradient(problem_for(network), state, likelihood_gradient)(
        [batch_for((4,))], SEEDS[:1]
    )
    assert not terms["nll"].requires_grad
