"""FROMP: K against a Jacobian by autograd, its gradient against the paper's, and what is stored."""

import pytest
import torch
from torch import Tensor

import evclplus as ec
from evclplus.core.batches import Batch, steps_of_epoch
from evclplus.core.engine import Problem, likelihood_gradient
from evclplus.core.fisher import diagonal_fisher
from evclplus.core.gaussian import MeanField
from evclplus.core.network import Weights
from evclplus.errors import SettingsError
from evclplus.methods.base import Lesson, Start
from evclplus.methods.fromp import EPSILON, distance, kernel, memorable, precision_factor
from tests.helpers import begun, blobs, moved, small_network

FROMP = ec.FROMP


def at_task(
    position: int, method: FROMP, scenario: str = "task"
) -> tuple[Lesson, Start, list[Batch]]:
    stream = blobs(position + 1, scenario=scenario)
    learner = ec.Learner(small_network(), method, epochs=5, batch_size=20, learning_rate=1e-2)
    for task in stream.tasks[:position]:
        learner.learn(task)
    lesson, start = begun(learner, stream[position])
    return lesson, start, next(steps_of_epoch(start.sources, 20, torch.Generator().manual_seed(0)))


def probabilities(lesson: Lesson, mean: Tensor, batch: Batch) -> Tensor:
    weights = Weights(lesson.network.layout.named(mean))
    outputs = lesson.network(weights, batch.inputs, batch.head)[:, : batch.outputs]
    return outputs.softmax(1)


def jacobian(lesson: Lesson, mean: Tensor, batch: Batch) -> Tensor:
    """(points, classes, weights), one gradient after another."""
    mean = mean.detach().requires_grad_()
    p = probabilities(lesson, mean, batch)
    rows = [torch.autograd.grad(one, mean, retain_graph=True)[0] for one in p.flatten()]
    return torch.stack(rows).view(*p.shape, -1)


def kernels(lesson: Lesson, mean: Tensor, batch: Batch, variance: Tensor) -> Tensor:
    j = jacobian(lesson, mean, batch).double()
    return torch.einsum("icp,p,jcp->cij", j, variance.double(), j)


@pytest.mark.parametrize("scenario", ["task", "domain", "class"])
def test_k_is_j_s_j(scenario: str) -> None:
    method = FROMP(points=6)
    lesson, _, batches = at_task(2, method, scenario)
    variance = 1 / (lesson.memory.fisher + method.prior_precision)
    assert len(batches) == 3
    for batch, points in zip(batches[1:], lesson.memory.points, strict=True):
        expected = kernels(lesson, lesson.q.mean, batch, variance)
        p = probabilities(lesson, lesson.q.mean, batch).detach()
        found = kernel(lesson.network, lesson.q, points, p, variance)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_the_factor_makes_the_quadratic_form() -> None:
    generator = torch.Generator().manual_seed(0)
    half = torch.randn(3, 5, 5, generator=generator)
    k = (half @ half.transpose(1, 2)).double()
    d = torch.randn(5, 3, generator=generator)
    factor = precision_factor(k).transpose(0, 1)
    found = distance(d.double(), torch.zeros(5, 3), factor)
    whole = k + EPSILON * torch.eye(5)
    expected = sum(
        d[:, c].double() @ torch.linalg.solve(whole[c], d[:, c].double()) for c in range(3)
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=0)


def test_with_k_the_identity_it_is_a_squared_distance() -> None:
    now, before = torch.rand(4, 3), torch.rand(4, 3)
    identity = torch.eye(4)[:, None].expand(4, 3, 4)
    torch.testing.assert_close(distance(now, before, identity), (now - before).square().sum())


@pytest.mark.parametrize("scenario", ["task", "domain"])
def test_it_is_zero_at_the_last_weights_and_its_gradient_is_the_papers(scenario: str) -> None:
    """J^T K^-1 (m - m_prev), summed over classes, times tau."""
    method = FROMP(points=6, tau=3.0)
    lesson, start, batches = at_task(2, method, scenario)
    variance = 1 / (lesson.memory.fisher + method.prior_precision)
    q = moved(start.q, 0.05)
    for batch in batches[1:]:
        assert _terms(method, lesson, start.q, batch)["function"].item() == pytest.approx(
            0, abs=1e-6
        )
        found = torch.autograd.grad(_terms(method, lesson, q, batch)["function"], q.mean)[0]
        k = kernels(lesson, start.q.mean, batch, variance) + EPSILON * torch.eye(6)
        change = probabilities(lesson, q.mean, batch) - probabilities(lesson, start.q.mean, batch)
        solved = torch.linalg.solve(k, change.detach().double().T[:, :, None])[:, :, 0]
        expected = 3.0 * torch.einsum("ncp,cn->p", jacobian(lesson, q.mean, batch).double(), solved)
        torch.testing.assert_close(found.double(), expected, rtol=1e-2, atol=1e-3)
        assert found.any()


def _terms(method: FROMP, lesson: Lesson, q: MeanField, batch: Batch) -> dict[str, Tensor]:
    weights = Weights(lesson.network.layout.named(q.mean))
    return method.likelihood(weights, lesson.memory, batch, lesson.network)


def test_the_points_are_those_near_the_border_as_many_of_each_class() -> None:
    p = torch.tensor([0.5, 0.9, 0.6, 0.99, 0.7, 0.8])
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    chosen = memorable(torch.stack([p, 1 - p], 1), labels, 4)
    assert chosen.tolist() == [0, 2, 4, 5]
    assert len(memorable(torch.stack([p, 1 - p], 1), labels, 1)) == 2  # one of each at least


def test_it_keeps_points_and_the_fisher_summed_over_all_data() -> None:
    stream = blobs(2, scenario="domain")
    learner = ec.Learner(small_network(), FROMP(points=6), epochs=2, batch_size=20)
    total = torch.zeros(0)
    for task in stream:
        learner.learn(task)
        one = diagonal_fisher(learner.network, learner.q, task.train, torch.Generator())
        total = total + len(task.train) * one if len(total) else len(task.train) * one
    torch.testing.assert_close(learner.memory.fisher, total)
    assert [len(points) for points in learner.memory.points] == [6, 6]
    assert all(points.answers is None for points in learner.memory.points)


def test_every_earlier_task_is_in_every_step_with_all_its_points() -> None:
    _, start, batches = at_task(3, FROMP(points=6))
    assert [batch.head for batch in batches] == [3, 0, 1, 2]
    assert [len(batch.y) for batch in batches[1:]] == [6, 6, 6]
    assert [batch.share for batch in batches] == [1.0] * 4
    assert all(source.whole for source in start.sources[1:])


def test_in_a_head_that_grows_new_classes_had_no_probability() -> None:
    lesson, _, batches = at_task(2, FROMP(points=6), "class")
    for batch in batches[1:]:
        assert batch.outputs == 6
        assert batch.answers is not None
        before = batch.answers[:, :, 0]
        assert not before[:, 4:].any()
        torch.testing.assert_close(before.sum(1), torch.ones(6))
        old = lesson.network(lesson.q, batch.inputs, 0)[:, :4].softmax(1)
        torch.testing.assert_close(before[:, :4], old)


def test_answers_at_the_points_stay() -> None:
    method = FROMP(points=6)
    lesson, start, batches = at_task(2, method)

    def change(sources: int) -> float:
        some = start.sources[:sources]
        q = lesson.fit(method, lesson.network, start.q, start.memory, some, purpose="train").q
        moved = [
            probabilities(lesson, q.mean, one) - probabilities(lesson, start.q.mean, one)
            for one in batches[1:]
        ]
        return sum(one.square().sum().item() for one in moved)

    assert change(3) < 0.3 * change(1)


def test_the_gradient_of_a_step_reaches_the_old_head_too() -> None:
    method = FROMP(points=6)
    lesson, start, batches = at_task(1, method)
    network = lesson.network
    problem = Problem(network, method, start.memory, torch.tensor(60.0))
    names = network.names_for(0)
    means = network.layout.named(moved(start.q).mean.detach())
    _, found = likelihood_gradient(
        problem, batches[1], names, [means[name] for name in names], torch.zeros(4).int()
    )
    assert all(gradient.any() for gradient in found)


def test_it_is_for_classes() -> None:
    learner = ec.Learner(small_network([1]), FROMP(), criterion="regression")
    with pytest.raises(SettingsError, match="fromp is for classes"):
        learner.learn(ec.regression_task(torch.randn(20, 4), torch.randn(20), name="one"))
