"""GVCL between its two ends: VCL with lambda = 1, online EWC as beta goes to zero."""

from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.linalg import hadamard
from torch import Tensor, nn

import evclplus as ec
from evclplus.core.gaussian import MeanField, kl
from evclplus.core.network import BayesianNetwork
from evclplus.errors import ConversionError
from evclplus.methods.gvcl import generalised_kl
from tests.helpers import begun, blobs, moved, small_network

SMALL: dict[str, Any] = {"epochs": 8, "batch_size": 20, "learning_rate": 1e-2, "std_rate": 1.0}


def pair() -> tuple[MeanField, MeanField, Tensor]:
    """Two Gaussians, and a first precision that the second one's is above for some weights."""
    network = BayesianNetwork(nn.Linear(3, 4).double())
    p = moved(network.initial(0.1), by=0.5, seed=1)
    first = torch.linspace(1, 30, len(p.variance), dtype=torch.float64)
    assert 0 < (1 / p.variance > first).sum() < len(first)
    return moved(network.initial(0.2)), p, first


def test_lambda_one_is_the_kl() -> None:
    q, p, first = pair()
    torch.testing.assert_close(generalised_kl(q, p, first, 1.0), kl(q, p))


def test_lambda_counts_what_data_have_added_and_only_for_the_means() -> None:
    q, p, first = pair()
    one, many = (
        torch.autograd.grad(generalised_kl(q, p, first, lam), (q.mean, q.variance))
        for lam in (1.0, 7.0)
    )
    torch.testing.assert_close(one[1], many[1])
    added = (1 / p.variance - first).clamp_min(0)
    torch.testing.assert_close(many[0] - one[0], 6 * added * (q.mean - p.mean))
    assert (many[0] == one[0]).sum() == (added == 0).sum()


def test_with_lambda_one_a_learner_is_that_of_tempered_vcl() -> None:
    stream = blobs(tasks=3)
    methods = (ec.GVCL(lam=1.0), ec.method("vcl-tempered"))
    found = []
    for method in methods:
        learner = ec.Learner(small_network(), method, **SMALL)
        for task in stream:
            learner.learn(task)
        found.append(learner.q)
    torch.testing.assert_close(found[0].mean, found[1].mean, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(found[0].variance, found[1].variance, rtol=1e-3, atol=0)


def linear_task(rows: int, scales: list[float], weights: list[float], name: str) -> ec.Task:
    """Inputs with orthogonal columns, so that the exact posterior factorises over weights."""
    x = torch.tensor(hadamard(rows)[:, 1:4], dtype=torch.float32) * torch.tensor(scales)
    return ec.regression_task(x, x @ torch.tensor(weights), name=name)


@pytest.mark.slow
def test_as_beta_goes_to_zero_it_is_online_ewc() -> None:
    lam = 2.0
    first = linear_task(64, [0.5, 1.0, 1.5], [1.0, -2.0, 0.5], "first")
    second = linear_task(16, [1.0, 1.0, 1.0], [-1.0, 1.0, 1.5], "second")
    ratio = len(first.train) / len(second.train)
    ewc = ec.EWC(lam=lam * ratio, calibration="none")
    gvcl = ec.GVCL(beta=1e-3, lam=lam, prior_variance=1.0, initial_variance=1e-4)
    means = []
    for method in (gvcl, ewc):
        learner = ec.Learner(
            nn.Linear(3, 1, bias=False),
            method,
            criterion="regression",
            epochs=1500,
            batch_size=64,
            learning_rate=0.02,
            std_rate=3.0,
        )
        learner.learn(first).learn(second)
        means.append(learner.q.mean)
    torch.testing.assert_close(means[0], means[1], rtol=0, atol=0.02)
    # The test means something: neither task alone has these weights.
    for alone in ([1.0, -2.0, 0.5], [-1.0, 1.0, 1.5]):
        assert ((means[0] - torch.tensor(alone)).abs() > 0.03).all()


def test_the_first_prior_is_kept_for_each_weight_and_comes_with_new_heads() -> None:
    stream = blobs(tasks=2)
    learner = ec.Learner(small_network(), ec.GVCL(prior_variance=0.25), **SMALL).learn(stream[0])
    assert torch.equal(learner.memory.first_precision, torch.full_like(learner.q.mean, 4.0))
    lesson, start = begun(learner, stream[1])
    new = lesson.new()
    assert torch.equal(start.memory.prior.variance[new], torch.full((int(new.sum()),), 0.25))
    assert (start.memory.prior.variance[~new] < 0.25).all()
    assert torch.equal(start.memory.first_precision, torch.full_like(lesson.q.mean, 4.0))


def test_lambda_holds_the_first_task() -> None:
    stream = blobs(tasks=2)
    drift = []
    for lam in (0.0, 1.0, 100.0):
        learner = ec.Learner(small_network(), ec.GVCL(lam=lam), **SMALL).learn(stream[0])
        before = learner.q.mean[: 4 * 8 + 8]
        drift.append((learner.learn(stream[1]).q.mean[: 4 * 8 + 8] - before).norm())
    assert drift[0] > drift[1] > drift[2]


def test_with_film_it_is_gvcl_on_a_network_that_is_told_its_task(tmp_path: Path) -> None:
    stream = blobs(tasks=3)
    told = ec.Learner(ec.networks.mlp(4, [8], film=True), "gvcl", **SMALL)
    asked = ec.Learner(small_network(), "gvcl-film", **SMALL)
    for task in (stream[0], stream[1]):
        told.learn(task)
        asked.learn(task)
    again = ec.Learner.load(asked.save(tmp_path / "model"))
    for one in (told, asked, again):
        one.learn(stream[2])
        assert torch.equal(one.q.mean, told.q.mean)
        assert torch.equal(one.q.variance, told.q.variance)
    assert "films.2.0.scale" in asked.q.layout.names


def test_film_needs_heads() -> None:
    with pytest.raises(ConversionError, match="wrap its body") as caught:
        ec.Learner(nn.Linear(4, 2), "gvcl-film")
    assert "\n" not in str(caught.value)
