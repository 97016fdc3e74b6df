"""Natural-gradient VCL: its steps by hand, and two tasks of linear regression in closed form."""

import pytest
import torch
from torch import Tensor, nn

import evclplus as ec
from evclplus.core.engine import Here, Problem, State, Step, update
from evclplus.core.gaussian import MeanField
from evclplus.core.likelihoods import Regression
from evclplus.core.network import BayesianNetwork
from evclplus.methods.natural import NaturalVCL, natural_log_std, natural_mean
from evclplus.methods.variational import Posterior
from tests.helpers import begun

WEIGHTS, STD = torch.tensor([1.0, -2.0, 0.5, 0.0]).double(), 0.7


def data(seed: int, count: int = 30) -> tuple[Tensor, Tensor]:
    """Inputs whose columns are not orthogonal: the exact posterior does not factorise."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.eye(4) + 0.4 * torch.randn(4, 4, generator=generator)
    x = (torch.randn(count, 4, generator=generator) @ mix).double()
    return x, x @ WEIGHTS + STD * torch.randn(count, generator=generator).double()


def fixed_point(x: Tensor, y: Tensor, prior: MeanField) -> tuple[Tensor, Tensor]:
    """The factorised Gaussian that is least in KL(q || exact posterior): 1/s is the diagonal of the
    exact precision, the mean is the exact one (Bishop, 2006, section 10.1.2)."""
    precision = x.T @ x / STD**2 + (1 / prior.variance).diag()
    mean = torch.linalg.solve(precision, x.T @ y / STD**2 + prior.mean / prior.variance)
    return mean, 1 / precision.diagonal()


def expected_gradient(state: State, x: Tensor, y: Tensor) -> None:
    """d E_q[nll] / d mu and / d s of the mean over examples, without any noise."""
    residual = x @ state.vectors.mean - y
    state.vectors.gradient.mean.copy_(x.T @ residual / STD**2 / len(x))
    state.vectors.gradient.variance.copy_(x.square().mean(0) / (2 * STD**2))


def test_two_tasks_of_linear_regression_end_at_the_joint_diagonal_fixed_point() -> None:
    network = BayesianNetwork(nn.Linear(4, 1, bias=False).double())
    method = NaturalVCL(beta=1.0, kl_scale="examples", precision_rate=1.0)
    layout = network.layout
    prior = MeanField(torch.zeros(4).double(), torch.ones(4).double(), layout)
    total = torch.zeros(4).double()
    for seed in (0, 1):
        x, y = data(seed)
        examples = torch.tensor(30.0).double()
        problem = Problem(
            network, method, Posterior(prior), examples, small_steps=False, optimiser="sgd"
        )
        state = State(prior, {})
        for _ in range(2000):
            expected_gradient(state, x, y)
            update(problem, state.vectors, torch.tensor([0.05, 0.1, 0.0]).double(), layout)
        mean, variance = fixed_point(x, y, prior)
        torch.testing.assert_close(state.vectors.mean, mean, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(state.vectors.variance, variance, rtol=1e-6, atol=1e-9)
        prior = state.posterior().clone()
        total += x.square().sum(0) / STD**2
    # The variances are those of both tasks at once.
    torch.testing.assert_close(prior.variance, 1 / (1 + total), rtol=1e-6, atol=0)


def test_a_step_by_hand() -> None:
    """1/s <- (1 - r)/s + r (h/w + 1/s_prev), but for the term that keeps it positive, and
    mu <- mu - a s (g/w + (mu - mu_prev)/s_prev), with r = precision_rate times the rate of log
    sigma."""
    network = BayesianNetwork(nn.Linear(2, 1, bias=False).double())
    layout, rate, r = network.layout, 0.003, 1e-6

    def vector(*values: float) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)

    q = MeanField(vector(1.0, -1.0), vector(0.5, 0.2), layout)
    prior = MeanField(vector(0.5, 0.0), vector(2.0, 0.4), layout)
    gradient, slope = vector(0.3, -0.1), vector(0.7, -0.2)
    state = State(q, {})
    state.vectors.gradient.mean.copy_(gradient)
    state.vectors.gradient.variance.copy_(slope)
    method = NaturalVCL(beta=0.5, kl_scale="examples", precision_rate=0.2)
    problem = Problem(
        network, method, Posterior(prior), vector(10.0)[0], small_steps=False, optimiser="sgd"
    )
    update(problem, state.vectors, vector(rate, r / 0.2, 0.0), layout)
    w, h = 0.5 / 10, 2 * slope
    expected = q.mean - rate * q.variance * (gradient / w + (q.mean - prior.mean) / prior.variance)
    torch.testing.assert_close(state.vectors.mean, expected, rtol=1e-9, atol=0)
    change = r * (h / w + 1 / prior.variance - 1 / q.variance)
    found = 1 / state.vectors.variance - 1 / q.variance
    torch.testing.assert_close(found, change, rtol=1e-4, atol=0)


@pytest.mark.parametrize("plain", [-10.0, -0.1, 0.0, 0.1, 10.0])
def test_no_step_makes_a_precision_negative(plain: float) -> None:
    step, weight = torch.tensor(plain).double(), torch.tensor(0.5).double()
    ratio = (-2 * natural_log_std(step, weight)).exp()  # new precision over old
    x = -2 * plain
    assert ratio == pytest.approx(1 + x + x**2 / 2)
    assert ratio > 0


def test_point_values_keep_their_plain_steps() -> None:
    network = BayesianNetwork(nn.Linear(2, 1), point=lambda name: name == "bias")
    q = network.initial(0.5)
    here = Here(q, torch.tensor(10.0), None)  # type: ignore[arg-type]
    method = NaturalVCL(beta=1.0, kl_scale="examples")
    step = Step(torch.tensor([0.001, 0.002, 3.0]), torch.zeros(2))
    moved = method.move(step, Posterior(q), here)
    torch.testing.assert_close(moved.mean, torch.tensor([0.005, 0.01, 3.0]))


def test_no_mean_goes_farther_than_a_tenth_of_its_standard_deviation() -> None:
    plain = torch.tensor([1.0, -1.0, 0.001, -0.001])
    variance, weight = torch.tensor([0.04, 0.01, 0.04, 0.04]), torch.tensor(0.01)
    found = natural_mean(plain, variance, weight)
    torch.testing.assert_close(found, torch.tensor([0.02, -0.01, 0.004, -0.004]))


@pytest.mark.parametrize("count", [20, 2000])
def test_the_first_step_is_that_of_plain_sgd_whatever_the_number_of_examples(count: int) -> None:
    """At q = prior mean but for the data, with the rate a / 0.1, as long as w / s_prior is small
    beside 0.1."""
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(0))
    task = ec.task(x, (x[:, 0] > 0).long(), name="first", outputs=2)
    method = NaturalVCL(beta=1e-3, kl_scale="examples", prior_variance=1.0)
    learner = ec.Learner(ec.networks.mlp(4, [3]), method)
    _, start = begun(learner, task)
    weight = 1e-3 / len(task.train)
    torch.testing.assert_close(
        start.q.variance, torch.full_like(start.q.variance, 1 / (0.1 / weight + 1))
    )
    plain = torch.full_like(start.q.variance, 1e-6)
    first = natural_mean(plain, start.q.variance, torch.tensor(weight))
    torch.testing.assert_close(first, plain / 0.1, rtol=1e-2, atol=0)
    # Weights that were used before go on from where they are.
    learner.learn(task)
    second = ec.task(x, (x[:, 1] > 0).long(), name="second", outputs=2)
    _, start = begun(learner, second)
    assert torch.equal(start.q.variance, learner.q.variance)


@pytest.mark.slow
def test_training_comes_near_the_fixed_point_from_noisy_gradients() -> None:
    learner = ec.Learner(
        nn.Linear(4, 1, bias=False),
        NaturalVCL(beta=1.0, kl_scale="examples", prior_variance=1.0, precision_rate=1.0),
        criterion=Regression(STD),
        epochs=4000,
        batch_size=30,
        learning_rate=0.01,
        std_rate=1.0,
        compile="off",
    )
    layout = learner.network.layout
    prior = MeanField(torch.zeros(4).double(), torch.ones(4).double(), layout)
    for seed in (0, 1):
        x, y = data(seed)
        learner.learn(ec.regression_task(x.float(), y.float(), name=f"task {seed}"))
        prior = MeanField(*fixed_point(x, y, prior), layout)
        std = prior.variance.sqrt()
        assert ((learner.q.mean - prior.mean).abs() < 0.3 * std).all()
        torch.testing.assert_close(learner.q.variance.sqrt(), std.float(), rtol=0.15, atol=0)


def test_adam_is_refused() -> None:
    with pytest.raises(ec.EvclplusError, match="natural-vcl does not work with optimiser = 'adam'"):
        ec.Learner(nn.Linear(4, 1), NaturalVCL(), optimiser="adam")
