"""VCL where the exact answer is known: a linear model with Gaussian noise."""

import pytest
import torch
from scipy.linalg import hadamard
from torch import Tensor, nn

import evclplus as ec
from evclplus.core.gaussian import kl
from evclplus.core.likelihoods import Regression
from evclplus.core.network import BayesianNetwork

WEIGHTS = torch.tensor([1.0, -2.0, 0.5, 0.0])


def data(scales: list[float], std: float, seed: int) -> tuple[Tensor, Tensor]:
    """Inputs with orthogonal columns, so that the exact posterior factorises over weights."""
    x = torch.tensor(hadamard(64)[:, 1:5], dtype=torch.float32) * torch.tensor(scales)
    noise = torch.randn(64, generator=torch.Generator().manual_seed(seed))
    return x, x @ WEIGHTS + std * noise


def exact_posterior(
    x: Tensor, y: Tensor, std: float, mean: Tensor, variance: Tensor
) -> tuple[Tensor, Tensor]:
    """Bayes' rule for each weight by itself."""
    precision = 1 / variance + x.square().sum(0) / std**2
    return (mean / variance + x.T @ y / std**2) / precision, 1 / precision


@pytest.mark.parametrize(
    ("criterion", "std"), [(Regression(0.5**0.5), 0.5**0.5), ("regression", 1)]
)
def test_two_tasks_equal_exact_bayes(criterion: Regression, std: float) -> None:
    learner = ec.Learner(
        nn.Linear(4, 1, bias=False),
        ec.VCL(beta=1.0, kl_scale="examples", prior_variance=1.0),
        criterion=criterion,
        epochs=1500,
        batch_size=64,
        learning_rate=0.02,
        std_rate=1.0,
    )
    mean, variance = torch.zeros(4), torch.ones(4)
    for index, scales in enumerate([[0.1, 0.2, 0.3, 0.1], [0.3, 0.1, 0.1, 0.2]]):
        x, y = data(scales, std, seed=index)
        learner.learn(ec.regression_task(x, y, name=f"task {index}"))
        mean, variance = exact_posterior(x, y, std, mean, variance)
        assert ((learner.q.mean - mean).abs() < 0.1 * variance.sqrt()).all()
        torch.testing.assert_close(learner.q.variance.sqrt(), variance.sqrt(), rtol=0.1, atol=0)
    # The test means something: the data moved the posterior far from the first prior.
    assert variance.max() < 0.4
    predicted = learner.predict(x, samples=2000)
    torch.testing.assert_close(predicted[:, 0], x @ mean, rtol=0, atol=0.05)


@pytest.mark.parametrize(
    ("scale", "examples", "divisor"),
    [
        ("examples", 40, 40),
        ("examples", 2, 2),
        ("weights", 40, 40),
        ("weights", 2, 5),  # fewer examples than Gaussian weights
        ("none", 40, 1),
    ],
)
def test_the_weight_of_the_kl(scale: str, examples: int, divisor: int) -> None:
    method = ec.VCL(beta=0.5, kl_scale=scale)
    network = BayesianNetwork(nn.Linear(4, 1))
    q, p = network.initial(0.1), network.initial(1.0)
    assert len(q.variance) == 5
    found = method.scaled_kl(q, p, torch.tensor(float(examples)))
    torch.testing.assert_close(found, 0.5 / divisor * kl(q, p))


def test_the_default_weight_of_the_kl_does_not_count_point_values() -> None:
    network = BayesianNetwork(nn.Linear(4, 1), point=lambda name: name == "bias")
    q, p = network.initial(0.1), network.initial(1.0)
    method = ec.VCL()
    found = method.scaled_kl(q, p, torch.tensor(2.0))
    torch.testing.assert_close(found, method.beta / 4 * kl(q, p))
