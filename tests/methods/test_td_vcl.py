"""TD-VCL: its weights by hand, one KL for many, and exact Bayes where the model is conjugate."""

from dataclasses import replace
from math import prod

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

import evclplus as ec
from evclplus.core.gaussian import MeanField, kl
from evclplus.methods.base import Lesson, Start
from evclplus.methods.td_vcl import kl_weights, likelihood_weights, product
from tests.helpers import begun, blobs, moved, small_network
from tests.methods.test_vcl import data, exact_posterior

TDVCL = ec.TDVCL
SMALL = {"epochs": 3, "batch_size": 20, "learning_rate": 1e-2}


def at_task(position: int, method: TDVCL, scenario: str = "task") -> tuple[Lesson, Start]:
    stream = blobs(position + 1, scenario=scenario)
    learner = ec.Learner(small_network(), method, **SMALL)  # type: ignore[arg-type]
    for task in stream.tasks[:position]:
        learner.learn(task)
    return begun(learner, stream[position])


@pytest.mark.parametrize("lam", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_the_weights_are_those_of_the_paper(n: int, lam: float) -> None:
    whole = 1 - lam**n
    assert kl_weights(n, lam) == pytest.approx([lam**i * (1 - lam) / whole for i in range(n)])
    found = likelihood_weights(n, lam)
    assert found == pytest.approx([lam**i * (1 - lam ** (n - i)) / whole for i in range(n)])
    assert sum(kl_weights(n, lam)) == pytest.approx(1)
    assert found[0] == pytest.approx(1)


def test_with_lambda_one_they_are_those_of_the_n_step_form() -> None:
    assert kl_weights(4, 1.0) == [0.25] * 4
    assert likelihood_weights(4, 1.0) == [1.0, 0.75, 0.5, 0.25]


def pairs_of_gradients(q: MeanField, *terms: Tensor) -> list[tuple[Tensor, ...]]:
    each = [torch.autograd.grad(one, (q.mean, q.variance)) for one in terms]
    return list(zip(*each, strict=True))


def some_gaussians(count: int) -> tuple[MeanField, ...]:
    q = ec.Learner(small_network([2]), TDVCL()).q
    return tuple(
        MeanField(one.mean.detach(), one.variance.detach(), one.layout)
        for one in (moved(q, 0.5, seed) for seed in range(count))
    )


def test_one_kl_stands_for_the_weighted_sum_of_all() -> None:
    gaussians, weights = some_gaussians(3), kl_weights(3, 0.6)
    together = product(gaussians, weights)
    differences, gradients = [], []
    for seed in (7, 8):
        q = moved(gaussians[0], 0.3, seed)
        each = [w * kl(q, one) for w, one in zip(weights, gaussians, strict=True)]
        one, many = kl(q, together), torch.stack(each).sum()
        differences.append((many - one).item())
        gradients += pairs_of_gradients(q, one, many)
    assert differences[0] == pytest.approx(differences[1], rel=1e-3)
    for one, many in gradients:
        torch.testing.assert_close(one, many, rtol=1e-3, atol=1e-3)


def test_the_product_of_densities_is_proportional_to_it() -> None:
    gaussians, weights = some_gaussians(2), kl_weights(2, 0.5)
    together = product(gaussians, weights)

    def log_density(one: MeanField, at: Tensor) -> Tensor:
        found: Tensor = Normal(one.mean, one.variance.sqrt()).log_prob(at)
        return found

    def ratio(at: Tensor) -> Tensor:
        each = [w * log_density(one, at) for w, one in zip(weights, gaussians, strict=True)]
        return torch.stack(each).sum(0) - log_density(together, at)

    torch.testing.assert_close(
        ratio(gaussians[0].mean), ratio(gaussians[1].mean), rtol=1e-3, atol=1e-3
    )


def test_the_objective_is_the_mean_of_those_from_each_posterior() -> None:
    """E-log-likelihoods and KLs of the k-step objectives, weighted by w_k, in every term."""
    method = TDVCL(steps=3, lam=0.5, beta=1.0, kl_scale="examples")
    _, start = at_task(2, method)
    priors = start.memory.older
    assert len(priors) == 3
    w = kl_weights(3, 0.5)
    counted = [0.0, 0.0, 0.0]
    for k, weight in enumerate(w, start=1):  # from q_{t-k}: the data of the last k tasks
        for j in range(k):
            counted[j] += weight
    assert [one.weight for one in start.sources] == pytest.approx(counted)
    q = moved(start.q)
    expected = torch.stack([a * kl(q, one) for a, one in zip(w, priors, strict=True)]).sum() / 60
    found = method.regulariser(q, start.memory, torch.tensor(60.0))["kl"]
    for a, b in pairs_of_gradients(q, found, expected):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def test_larger_tasks_count_more() -> None:
    stream = ec.tasks([(x := torch.randn(n, 4), (x[:, 0] > 0).long()) for n in (90, 30)])
    learner = ec.Learner(small_network(), TDVCL(lam=1.0, stored=10), **SMALL)  # type: ignore[arg-type]
    learner.learn(stream[0])
    _, start = begun(learner, stream[1])
    sizes = [len(task.train) for task in stream]
    assert sizes[0] > 2 * sizes[1]
    assert [one.weight for one in start.sources] == [1.0, 0.5 * sizes[0] / sizes[1]]
    assert [len(one) for one in start.sources] == [sizes[1], 10]


@pytest.mark.parametrize("scenario", ["task", "domain", "class"])
def test_with_one_posterior_it_is_vcl(scenario: str) -> None:
    stream = blobs(3, scenario=scenario)
    learners = [
        ec.Learner(small_network(), method, **SMALL)  # type: ignore[arg-type]
        for method in (TDVCL(steps=1), ec.VCL())
    ]
    for learner in learners:
        for task in stream:
            learner.learn(task)
    ours, theirs = learners
    assert ours.memory.stored == ours.memory.older == ()
    torch.testing.assert_close(ours.q.mean, theirs.q.mean)
    torch.testing.assert_close(ours.q.variance, theirs.q.variance)


def test_it_keeps_the_last_posteriors_and_examples_of_the_tasks_between() -> None:
    stream = blobs(5)
    learner = ec.Learner(small_network(), TDVCL(steps=3, stored=7), **SMALL)  # type: ignore[arg-type]
    posteriors = []
    for task in stream:
        learner.learn(task)
        posteriors.append(learner.q.mean)
    memory = learner.memory
    assert [one.head for one in memory.stored] == [4, 3]
    assert [len(one) for one in memory.stored] == [7, 7]
    assert memory.sizes == (len(stream[4].train), len(stream[3].train))
    body = slice(0, prod((8, 4)))  # the first layer's weights, which every posterior has
    for kept, was in zip((memory.prior, *memory.older), posteriors[::-1], strict=False):
        torch.testing.assert_close(kept.mean[body], was[body])
    assert len(memory.older) == 2


def test_a_new_head_has_the_first_prior_in_every_posterior() -> None:
    lesson, start = at_task(2, TDVCL())
    new = lesson.new()
    first = start.memory.older[0]
    assert new.any()
    for one in start.memory.older[1:]:
        torch.testing.assert_close(one.mean[new], first.mean[new])
        torch.testing.assert_close(one.variance[new], first.variance[new])
    assert not first.mean[new].any()
    torch.testing.assert_close(start.memory.prior.variance[new], first.variance[new])


def test_with_all_data_stored_it_is_exact_bayes() -> None:
    """From exact posteriors every k-step objective has its minimum at the exact next one."""
    method = TDVCL(
        steps=3, stored=64, beta=1.0, kl_scale="examples", prior_variance=1.0, prediction="mean"
    )
    learner = ec.Learner(
        nn.Linear(4, 1, bias=False),
        method,
        criterion=ec.Regression(1.0),
        epochs=300,
        batch_size=64,
        learning_rate=0.05,
        std_rate=1.0,
    )
    mean, variance = torch.zeros(4), torch.ones(4)
    for index, scales in enumerate([[0.1, 0.2, 0.3, 0.1], [0.3, 0.1, 0.1, 0.2], [0.2] * 4]):
        x, y = data(scales, 1.0, seed=index)
        learner.learn(ec.regression_task(x, y, name=f"task {index}"))
        mean, variance = exact_posterior(x, y, 1.0, mean, variance)
        assert ((learner.q.mean - mean).abs() < 0.15 * variance.sqrt()).all()
        torch.testing.assert_close(learner.q.variance.sqrt(), variance.sqrt(), rtol=0.1, atol=0)


def test_kl_of_torch_agrees_with_the_product_of_two() -> None:
    """At q equal to the product, the weighted sum of KLs is least."""
    gaussians, weights = some_gaussians(2), kl_weights(2, 1.0)
    best = product(gaussians, weights)

    def total(q: MeanField) -> float:
        normal = Normal(q.mean, q.variance.sqrt())
        each = (kl_divergence(normal, Normal(one.mean, one.variance.sqrt())) for one in gaussians)
        return float(sum(w * one.sum() for w, one in zip(weights, each, strict=True)))

    least = total(best)
    for seed in range(3):
        q = moved(best, 0.2, seed)
        assert total(replace(q, mean=q.mean.detach(), variance=q.variance.detach())) > least
