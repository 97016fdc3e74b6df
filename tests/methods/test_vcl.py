"""VCL where the exact answer is known: a linear model with Gaussian noise."""

import pytest
import torch
from scipy.linalg import hadamard
from torch import Tensor, nn

from evclplus.callbacks import Progress
from evclplus.core.examples import Examples
from evclplus.core.gaussian import MeanField, kl
from evclplus.core.network import BayesianNetwork
from evclplus.methods.base import Memory
from evclplus.methods.vcl import VCL
from evclplus.settings import Training
from evclplus.train import fit

NOISE_VARIANCE = 0.5
WEIGHTS = torch.tensor([1.0, -2.0, 0.5, 0.0])


def gaussian_nll(output: Tensor, y: Tensor) -> Tensor:
    return ((output[:, 0] - y).square() / (2 * NOISE_VARIANCE)).mean()


def task(scales: list[float], seed: int) -> tuple[Tensor, Tensor]:
    """Inputs with orthogonal columns, so that the exact posterior factorises over weights."""
    x = torch.tensor(hadamard(64)[:, 1:5], dtype=torch.float32) * torch.tensor(scales)
    noise = torch.randn(64, generator=torch.Generator().manual_seed(seed))
    return x, x @ WEIGHTS + NOISE_VARIANCE**0.5 * noise


def exact_posterior(x: Tensor, y: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Bayes' rule for each weight by itself."""
    precision = 1 / variance + x.square().sum(0) / NOISE_VARIANCE
    return (mean / variance + x.T @ y / NOISE_VARIANCE) / precision, 1 / precision


def test_two_tasks_equal_exact_bayes() -> None:
    method = VCL(start="random")
    network = BayesianNetwork(nn.Linear(4, 1, bias=False))
    q = method.initial(network)
    prior = MeanField(torch.zeros(4), torch.ones(4), q.layout)
    exact_mean, exact_variance = torch.zeros(4), torch.ones(4)
    training = Training(epochs=1500, batch_size=64, learning_rate=0.02, schedule="cosine")
    for index, scales in enumerate([[0.1, 0.2, 0.3, 0.1], [0.3, 0.1, 0.1, 0.2]]):
        x, y = task(scales, seed=index)
        memory = Memory(prior=prior)

        generator = torch.Generator().manual_seed(index)
        data = [Examples(x, y, outputs=1)]
        q = fit(
            *(network, q, method, memory, data, training, generator, "", Progress()),
            criterion=gaussian_nll,
        )
        exact_mean, exact_variance = exact_posterior(x, y, exact_mean, exact_variance)
        std = exact_variance.sqrt()
        assert ((q.mean - exact_mean).abs() < 0.1 * std).all()
        torch.testing.assert_close(q.variance.sqrt(), std, rtol=0.1, atol=0)
        prior = q.clone()  # the step from one task to the next
    # The test means something: the data moved the posterior far from the first prior.
    assert exact_variance.max() < 0.2


@pytest.mark.parametrize(("scale", "expected"), [("examples", 0.5 / 40), ("none", 0.5)])
def test_the_weight_of_the_kl(scale: str, expected: float) -> None:
    method = VCL(beta=0.5, kl_scale=scale)
    network = BayesianNetwork(nn.Linear(4, 1))
    q, p = network.initial(0.1), network.initial(1.0)
    found = method.scaled_kl(q, p, torch.tensor(40.0))
    torch.testing.assert_close(found, expected * kl(q, p))
