"""The generative classifier: densities against torch.distributions and scikit-learn."""

import pytest
import torch
from sklearn.decomposition import PCA
from torch import Tensor
from torch.distributions import MultivariateNormal

import evclplus as ec
from evclplus.errors import SettingsError
from evclplus.methods.generative import NEVER_SEEN, fitted, log_density
from tests.helpers import blobs, small_network

Generative = ec.GenerativeClassifier


def rows(count: int, size: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    spread = torch.rand(size, size, generator=generator, dtype=torch.float64)
    return torch.randn(count, size, generator=generator, dtype=torch.float64) @ spread + 3


def covariance(axes: Tensor, variances: Tensor, rest: Tensor) -> Tensor:
    size = axes.shape[1]
    return axes.T @ (variances - rest).diag() @ axes + rest * torch.eye(size).double()


@pytest.mark.parametrize("count", [50, 6])
def test_a_density_is_probabilistic_pca(count: int) -> None:
    """More examples than values, and fewer: both ways to find the axes."""
    x, rank = rows(count, 8), 3
    mean, *parts = fitted(x, rank, shrinkage=0.0)
    # scikit-learn divides by n - 1, and takes the rest's mean over what n leaves of it.
    model = PCA(rank, svd_solver="full").fit(x.numpy())
    scale = (count - 1) / count
    torch.testing.assert_close(mean, torch.from_numpy(model.mean_))
    expected = scale * torch.from_numpy(model.explained_variance_).flip(0)
    torch.testing.assert_close(parts[1], expected, rtol=1e-4, atol=1e-5)
    rest = scale * x.var(0).sum() - expected.sum()
    assert parts[2].item() == pytest.approx(rest.item() / (8 - rank), rel=1e-4)
    if count > 8:
        found = covariance(*parts)
        torch.testing.assert_close(
            found, scale * torch.from_numpy(model.get_covariance()), rtol=1e-4, atol=1e-4
        )


def test_with_all_axes_it_is_the_gaussian_of_the_data() -> None:
    x = rows(40, 5)
    parts = fitted(x, rank=10, shrinkage=0.0)
    centred = x - x.mean(0)
    expected = MultivariateNormal(x.mean(0), centred.T @ centred / 40).log_prob(x)
    torch.testing.assert_close(log_density(x, *parts), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("rank", [0, 2, 5])
def test_a_log_density_is_that_of_torch(rank: int) -> None:
    mean, axes, variances, rest = fitted(rows(30, 6), rank, shrinkage=0.1)
    assert axes.shape == (rank, 6)
    torch.testing.assert_close(axes @ axes.T, torch.eye(rank).double())
    x = rows(7, 6, seed=1)
    expected = MultivariateNormal(mean, covariance(axes, variances, rest)).log_prob(x)
    torch.testing.assert_close(log_density(x, mean, axes, variances, rest), expected)


def test_one_example_and_constant_inputs_have_a_density() -> None:
    for x in (torch.ones(1, 4).double(), torch.ones(9, 4).double()):
        found = fitted(x, 3, 0.01)
        assert all(part.isfinite().all() for part in found)
        assert log_density(x, *found).isfinite().all()


def test_the_order_of_tasks_makes_no_difference() -> None:
    stream = blobs(3, scenario="class")
    x = torch.cat([task.test.inputs() for task in stream])
    answers = []
    for order in ((0, 1, 2), (2, 0, 1)):
        learner = ec.Learner(small_network([6]), Generative(rank=2))
        for number in order:
            data = stream[number].train
            learner.learn(ec.task(data.inputs(), data.labels, name=str(number), outputs=6))
        answers.append(learner.predict_proba(x))
    assert torch.equal(*answers)


def test_a_class_that_comes_again_is_a_mixture() -> None:
    stream = blobs(2, scenario="domain")
    learner = ec.Learner(small_network(), Generative(rank=2))
    learner.learn(stream[0]).learn(stream[1])
    x = stream[0].test.inputs()
    counts = torch.tensor([float((task.train.labels == 1).sum()) for task in stream])
    each = [one for one in learner.memory.known if one.label == 1]
    logs = torch.stack(
        [log_density(x, one.mean, one.axes, one.variances, one.rest) for one in each]
    )
    expected = ((counts / counts.sum()).log()[:, None] + logs).logsumexp(0)
    network, q = learner.method.predictor(learner.network, learner.q, learner.memory, 0, None)  # type: ignore[arg-type]
    torch.testing.assert_close(network(q, x)[:, 1].detach(), expected)


def test_heads_answer_from_their_own_classes_and_weights_stay() -> None:
    stream = blobs(2)
    learner = ec.Learner(small_network(), Generative(rank=2))
    learner.learn(stream[0])
    before = learner.q.layout.named(learner.q.mean)
    first = learner.predict_proba(stream[0].test.inputs(), task=0)
    learner.learn(stream[1])
    assert torch.equal(first, learner.predict_proba(stream[0].test.inputs(), task=0))
    after = learner.q.layout.named(learner.q.mean)
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_a_class_without_examples_is_never_chosen() -> None:
    x = rows(30, 4).float()
    learner = ec.Learner(small_network([5]), Generative(rank=2))
    learner.learn(ec.task(x, 2 * (torch.arange(30) % 2) + 1, name="odd", outputs=5))
    network, q = learner.method.predictor(learner.network, learner.q, learner.memory, 0, None)  # type: ignore[arg-type]
    assert (network(q, x)[:, [0, 2]] == NEVER_SEEN).all()
    assert set(learner.predict(x).tolist()) <= {1, 3}


def test_classes_one_after_another_are_all_known() -> None:
    stream = ec.benchmark("split-digits", scenario="class")
    learner = ec.Learner(ec.networks.mlp(64, [8]), Generative())
    for task in stream:
        learner.learn(task)
    assert learner.evaluate(stream).average_accuracy > 0.93


def test_it_says_that_it_is_for_classes() -> None:
    x = rows(20, 4).float()
    learner = ec.Learner(small_network([1]), Generative(), criterion="regression")
    with pytest.raises(SettingsError, match="method generative is for classes"):
        learner.learn(ec.regression_task(x, x[:, :1], name="line"))
