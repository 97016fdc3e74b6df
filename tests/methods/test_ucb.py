"""UCB: its prior and KL against torch.distributions, and the size of a certain weight's step."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributions import Categorical, MixtureSameFamily, Normal

import evclplus as ec
from evclplus.core.engine import Problem, State, StepGradient, likelihood_gradient, update
from evclplus.core.gaussian import MeanField, kl
from evclplus.core.network import BayesianNetwork
from evclplus.core.noise import Noise, new_seeds
from evclplus.methods.ucb import StepSizes
from tests.helpers import begun, blobs, first_batch, moved, small_network

SMALL: dict[str, Any] = {"epochs": 6, "batch_size": 20}


def test_the_prior_is_a_mixture_of_two_normals() -> None:
    method = ec.UCB(share=0.3, sd_wide=2.0, sd_narrow=0.1)
    theta = torch.linspace(-3, 3, 31, dtype=torch.float64)
    mixture = MixtureSameFamily(
        Categorical(torch.tensor([0.3, 0.7], dtype=torch.float64)),
        Normal(torch.zeros(2, dtype=torch.float64), torch.tensor([2.0, 0.1], dtype=torch.float64)),
    )
    torch.testing.assert_close(method.log_prior(theta), mixture.log_prob(theta).sum())


def test_on_average_over_draws_it_is_the_kl() -> None:
    """With one part only, whose KL is known."""
    method = ec.UCB(share=1.0, sd_wide=0.5)
    network = BayesianNetwork(nn.Linear(3, 4).double())
    q = moved(network.initial(0.1))
    prior = MeanField(torch.zeros_like(q.mean), torch.full_like(q.variance, 0.25), q.layout)
    seeds = new_seeds(torch.Generator().manual_seed(0), 4000)
    names = network.layout.names
    drawn = [method.drawn_kl(network.weights(q, Noise(seed)), names).detach() for seed in seeds]
    error = torch.stack(drawn).std() / 4000**0.5
    assert (torch.stack(drawn).mean() - kl(q, prior)).abs() < 4 * error
    assert error < 0.1


def test_the_kl_is_in_the_gradient_of_means_and_variances() -> None:
    method, stream = ec.UCB(), blobs()
    learner = ec.Learner(small_network(), method, **SMALL)
    lesson, start = begun(learner, stream[0])
    q = moved(start.q)
    weights = lesson.network.weights(q, Noise(torch.arange(4, dtype=torch.int32)))
    terms = method.likelihood(weights, start.memory, first_batch(stream[0]), lesson.network)
    assert terms.keys() == {"nll", "kl"}
    for gradient in torch.autograd.grad(terms["kl"], (q.mean, q.variance)):
        assert (gradient != 0).all()


@pytest.mark.parametrize(("scale", "divisor"), [("examples", 44), ("weights", 4 * 8 + 8 + 18)])
def test_the_weight_of_the_kl(scale: str, divisor: int) -> None:
    learner = ec.Learner(small_network(), ec.UCB(beta=0.5, kl_scale=scale), **SMALL)
    _, start = begun(learner, blobs()[0])
    torch.testing.assert_close(start.memory.kl_weight, torch.tensor(0.5 / divisor))


def test_known_weights_take_steps_of_their_sigma_and_new_ones_full_steps() -> None:
    stream = blobs(tasks=2)
    learner = ec.Learner(small_network(), ec.UCB(), **SMALL)
    _, first = begun(learner, stream[0])
    assert torch.equal(first.memory.size, torch.ones_like(first.memory.size))
    lesson, start = begun(learner.learn(stream[0]), stream[1])
    new = lesson.new()
    expected = torch.where(new, 1.0, lesson.q.variance.sqrt())
    assert torch.equal(start.memory.size, expected)
    assert 0 < new.sum() < len(new)


def test_a_plain_step_of_a_mean_is_sigma_times_the_gradient() -> None:
    network = BayesianNetwork(ec.networks.mlp(4, [3], heads=[2]))
    q = ec.UCB().initial(network)
    size = torch.linspace(0.01, 1, len(q.mean))
    steps = []
    for one in (size, torch.ones_like(size)):
        memory = StepSizes(one, torch.tensor(0.01))
        problem = Problem(network, ec.UCB(), memory, torch.tensor(40.0), optimiser="sgd")
        state = State(q, {})
        seeds = new_seeds(torch.Generator().manual_seed(0), 1)
        StepGradient(problem, state, likelihood_gradient)([first_batch(blobs()[0])], seeds)
        update(problem, state.vectors, torch.tensor([0.1, 0.1, 1.0]), state.layout)
        steps.append((state.vectors.mean - q.mean, state.vectors.variance.log()))
    torch.testing.assert_close(steps[0][0], size * steps[1][0], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(steps[0][1], steps[1][1])
    assert (steps[1][0] != 0).any()


def test_certain_weights_move_less() -> None:
    stream = blobs(tasks=2)
    drift = []
    for variance in (1e-2, 1e-6):
        learner = ec.Learner(small_network(), ec.UCB(), **SMALL).learn(stream[0])
        learner.q.variance.fill_(variance)
        before = learner.q.mean[: 4 * 8].clone()
        drift.append((learner.learn(stream[1]).q.mean[: 4 * 8] - before).norm())
    assert drift[1] < 0.1 * drift[0]
