"""KFAC Laplace against exact Bayes where it is exact, and its penalty against its equation."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import evclplus as ec
from evclplus.core.compiled import _AnyLayout
from evclplus.core.engine import Gradient, Here, Step
from evclplus.core.gaussian import MeanField
from evclplus.core.kronecker import Block, placed
from evclplus.methods.laplace import Curvature
from tests.helpers import begun, blobs, learned_first_task, moved, small_network

KFAC = ec.KroneckerLaplace


def lines(tasks: int = 3, count: int = 30) -> list[tuple[Tensor, Tensor]]:
    """Noisy linear regressions with two outputs, each on inputs of its own scale."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(2, 3, generator=generator)
    found = []
    for task in range(tasks):
        x = torch.randn(count, 3, generator=generator) * torch.tensor([1.0, 0.5 + task, 1.0])
        noise = 0.3 * torch.randn(count, 2, generator=generator)
        found.append((x, x @ truth.T + 0.1 * task + noise))
    return found


def ridge(pairs: list[tuple[Tensor, Tensor]], tau: float) -> Tensor:
    """The posterior mean of all data at once under N(0, 1 / tau), noise of variance one."""
    x = torch.cat([torch.cat([x, torch.ones(len(x), 1)], dim=1) for x, _ in pairs]).double()
    y = torch.cat([y for _, y in pairs]).double()
    solution: Tensor = torch.linalg.solve(x.T @ x + tau * torch.eye(4).double(), x.T @ y)
    return solution.T


@pytest.mark.parametrize("tasks", ["nearest", "separate"])
def test_of_a_linear_gaussian_model_it_is_bayes(tasks: str) -> None:
    """Task by task with lambda = 1, against all data at once."""
    method = KFAC(prior_precision=5.0, tasks=tasks)
    module = nn.Linear(3, 2)
    learner = ec.Learner(
        module, method, criterion="regression", epochs=600, batch_size=30, learning_rate=3e-2
    )
    for position, (x, y) in enumerate(lines()):
        learner.learn(ec.regression_task(x, y, name=f"task {position}"))
        expected = ridge(lines()[: position + 1], 5.0)
        named = learner.network.layout.named(learner.q.mean)
        found = torch.cat([named["weight"], named["bias"][:, None]], dim=1)
        torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-4)


def test_lambda_is_the_weight_of_what_was_learned() -> None:
    """Half of the first task's precision, against ridge regression with it."""
    (x, y), (x2, y2) = lines(2)
    learner = ec.Learner(
        nn.Linear(3, 2),
        KFAC(lam=0.5, prior_precision=5.0),
        criterion="regression",
        epochs=600,
        batch_size=30,
        learning_rate=3e-2,
    )
    for name, pair in (("one", (x, y)), ("two", (x2, y2))):
        learner.learn(ec.regression_task(*pair, name=name))
    first = ridge([(x, y)], 5.0)
    ones = torch.ones(len(x), 1)
    a, b = (torch.cat([part, ones], dim=1).double() for part in (x, x2))
    precision = 0.5 * a.T @ a + 5.0 * torch.eye(4)
    expected = torch.linalg.solve(b.T @ b + precision, b.T @ y2.double() + precision @ first.T).T
    named = learner.network.layout.named(learner.q.mean)
    found = torch.cat([named["weight"], named["bias"][:, None]], dim=1)
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-4)


def test_the_penalty_is_the_equation_and_moves_the_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    network = ec.core.network.BayesianNetwork(nn.Linear(3, 2), lambda name: True)
    q = network.initial(1.0)
    roots = torch.rand(4, 4, generator=generator), torch.rand(2, 2, generator=generator)
    block = Block("", roots[0] @ roots[0].T, roots[1] @ roots[1].T, (0, 6))
    diagonal = torch.rand(8, generator=generator)
    memory = Curvature(MeanField(0.5 * q.mean, q.variance, q.layout), (block,), diagonal)
    mean = q.mean.clone().requires_grad_()
    method = KFAC(lam=3.0, prior_precision=0.7)
    terms = method.regulariser(MeanField(mean, q.variance, q.layout), memory, torch.tensor(9.0))
    weight, bias = 0.5 * q.mean[:6].view(2, 3), 0.5 * q.mean[6:, None]
    change = torch.cat([weight, bias], dim=1)
    trace = (change @ block.inputs @ change.T @ block.outputs).trace()
    held = trace + (diagonal * (0.5 * q.mean).square()).sum()
    torch.testing.assert_close(terms["penalty"], 3.0 / 9 / 2 * held)
    torch.testing.assert_close(terms["prior"], 0.7 / 9 / 2 * (0.5 * q.mean).square().sum())
    (gradient,) = torch.autograd.grad(terms["penalty"], mean)
    by_layer = block.outputs @ change @ block.inputs
    flat = torch.cat([by_layer[:, :3].flatten(), by_layer[:, 3]])
    torch.testing.assert_close(gradient, 3.0 / 9 * (flat + diagonal * 0.5 * q.mean))


def test_other_weights_have_a_diagonal_and_layers_have_none() -> None:
    body = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.ReLU())
    stream = blobs()
    learner = ec.Learner(ec.MultiHead(body), KFAC(), epochs=3, batch_size=20)
    for task in stream:
        learner.learn(task)
    diagonal = learner.network.layout.named(learner.memory.diagonal)
    assert {name for name, part in diagonal.items() if part.any()} == {
        "body.1.weight",
        "body.1.bias",
    }
    assert [block.path for block in learner.memory.blocks] == ["body.0", "heads.0", "heads.1"]


def test_separate_tasks_add_up_to_the_penalties_of_each() -> None:
    learner, stream = learned_first_task(KFAC(tasks="separate"))
    first = learner.memory.blocks
    learner.learn(stream[1])
    assert len(learner.memory.blocks) == len(first) + 2  # the body's again, and a head
    q, method = moved(learner.q), learner.method
    every = learner.memory.blocks

    def penalty(blocks: tuple[Block, ...]) -> Tensor:
        here = placed(blocks, learner.network.layout)
        memory = Curvature(learner.memory.prior, here, learner.memory.diagonal)
        return method.regulariser(q, memory, torch.tensor(60.0))["penalty"]

    torch.testing.assert_close(penalty(every), penalty(first) + penalty(every[len(first) :]))


def test_a_large_lambda_holds_what_was_learned_and_not_the_new_head() -> None:
    def drift(lam: float) -> tuple[float, float]:
        learner, stream = learned_first_task(KFAC(lam=lam))
        x = stream[0].test.inputs()
        before = learner.predict_proba(x, task=0)
        learner.learn(stream[1])
        head = learner.network.layout.named(learner.q.mean)["heads.1.weight"]
        return (learner.predict_proba(x, task=0) - before).abs().max().item(), head.norm().item()

    free, _ = drift(0.0)
    held, head = drift(1e5)
    assert held < 0.2 * free
    assert head > 0.1


def test_new_weights_have_the_first_prior_and_others_their_last_values() -> None:
    learner, stream = learned_first_task(KFAC())
    _, start = begun(learner, stream[1])
    centre = learner.network.layout.named(start.memory.prior.mean)
    assert torch.equal(centre["heads.1.weight"], torch.zeros_like(centre["heads.1.weight"]))
    now = learner.network.layout.named(learner.q.mean)
    assert torch.equal(centre["body.1.weight"], now["body.1.weight"])


def test_factors_are_saved_and_come_with_their_heads(tmp_path: Path) -> None:
    stream = blobs(tasks=3)
    learner = ec.Learner(small_network(), KFAC(), epochs=2, batch_size=20)
    learner.learn(stream[0]).learn(stream[1])
    again = ec.Learner.load(learner.save(tmp_path))
    for one in (learner, again):
        one.learn(stream[2])
    for one, other in zip(learner.memory.blocks, again.memory.blocks, strict=True):
        assert one.path == other.path
        assert torch.equal(one.inputs, other.inputs)
        assert torch.equal(one.outputs, other.outputs)


def test_memory_stays_the_same_over_tasks_with_one_head() -> None:
    stream = blobs(tasks=3, scenario="domain")
    learner = ec.Learner(small_network(), KFAC(), epochs=2, batch_size=20)
    sizes = []
    for task in stream:
        learner.learn(task)
        sizes.append(sum(block.inputs.numel() for block in learner.memory.blocks))
    assert sizes == [5 * 5 + 9 * 9] * 3


def test_heads_of_other_tasks_rest_and_are_kept() -> None:
    learner, stream = learned_first_task(KFAC())
    _, start = begun(learner, stream[1])
    assert [block.path for block in start.memory.blocks] == ["body.1"]
    assert [block.path for block in start.memory.resting] == ["heads.0"]
    learner.learn(stream[1])
    assert [block.path for block in learner.memory.blocks] == ["body.1", "heads.0", "heads.1"]
    assert learner.memory.resting == ()


@pytest.mark.parametrize("name", ["kfac", "ncl", "gpm"])
def test_a_step_asks_for_no_layout_so_that_a_new_head_needs_no_new_graph(name: str) -> None:
    learner, stream = learned_first_task(ec.method(name))
    _, start = begun(learner, stream[1])
    q = MeanField(start.q.mean + 0.1, start.q.variance, _AnyLayout())  # type: ignore[arg-type]
    learner.method.regulariser(q, start.memory, torch.tensor(40.0))
    step = Step(torch.ones_like(q.mean), q.variance)
    here = Here(q, torch.tensor(40.0), Gradient(q.mean, q.variance))
    moved = learner.method.move(step, start.memory, here)
    assert moved.mean.shape == q.mean.shape
