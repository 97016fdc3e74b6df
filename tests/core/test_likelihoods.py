"""Likelihoods against torch's distributions, their Fishers against closed forms and loops."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal
from torch.nn import functional as F

from evclplus.core.examples import Examples
from evclplus.core.fisher import diagonal_fisher
from evclplus.core.likelihoods import Classification, Labels, Likelihood, OwnCriterion, Regression
from evclplus.core.network import BayesianNetwork

COUNT, STD = 12, 0.7


def data(outputs: int = 2, count: int = COUNT) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 4, generator=generator, dtype=torch.float64)
    return x, torch.randn(count, outputs, generator=generator, dtype=torch.float64)


def fisher(
    module: nn.Module,
    x: Tensor,
    y: Tensor,
    likelihood: Likelihood,
    labels: Labels = "exact",
    outputs: int = 2,
) -> dict[str, Tensor]:
    network = BayesianNetwork(module.double())
    found = diagonal_fisher(
        *(network, network.initial(1.0), Examples(x, y, outputs)),
        torch.Generator().manual_seed(0),
        labels,
        maximum=len(x),
        likelihood=likelihood,
    )
    return network.layout.named(found)


def loop(
    module: nn.Module, x: Tensor, y: Tensor, criterion: Callable[[Tensor, Tensor], Tensor]
) -> dict[str, Tensor]:
    """The mean over examples of each one's squared gradient, one at a time."""
    total = {name: torch.zeros_like(value) for name, value in module.named_parameters()}
    for index in range(len(x)):
        one = slice(index, index + 1)
        found = torch.autograd.grad(criterion(module(x[one]), y[one]), list(module.parameters()))
        for name, gradient in zip(total, found, strict=True):
            total[name] += gradient.square() / len(x)
    return total


def network_of(*layers: nn.Module) -> nn.Module:
    """With a layer that has a closed form and one that has not."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 5), nn.Tanh(), nn.LayerNorm(5), *layers, nn.Linear(5, 2)
    ).double()


def test_classification_is_torchs_categorical() -> None:
    output, _ = data()
    y = torch.arange(COUNT) % 4
    expected = -Categorical(logits=output).log_prob(y).mean()
    torch.testing.assert_close(Classification()(output, y), expected)


@pytest.mark.parametrize("std", [1.0, STD, 3.0])
@pytest.mark.parametrize("outputs", [1, 3])
def test_regression_is_torchs_normal(outputs: int, std: float) -> None:
    output, y = data(outputs)
    output = output[:, :outputs]
    expected = -Normal(output[:, :outputs], std).log_prob(output + y).sum(1).mean()
    torch.testing.assert_close(Regression(std)(output, output + y), expected)
    if outputs == 1:  # a row of numbers is a column of them
        torch.testing.assert_close(Regression(std)(output, (output + y)[:, 0]), expected)


def test_the_exact_fisher_of_linear_regression_in_closed_form() -> None:
    """F_w = E[x^2] / std^2 and F_b = 1 / std^2, whatever the weights and labels are."""
    x, y = data()
    found = fisher(nn.Linear(4, 2), x, y, Regression(STD))
    for row in range(2):
        torch.testing.assert_close(found["weight"][row], x.square().mean(0) / STD**2)
        assert found["bias"][row].item() == pytest.approx(1 / STD**2)


def test_the_exact_fisher_of_regression_is_the_sum_over_outputs() -> None:
    x, y = data()
    module = network_of()
    found = fisher(module, x, y, Regression(STD))
    parts = [loop(module, x, y, lambda out, _, i=i: out[0, i] / STD) for i in range(2)]  # type: ignore[misc]
    for name, value in found.items():
        torch.testing.assert_close(value, parts[0][name] + parts[1][name], rtol=1e-9, atol=1e-14)


def test_the_empirical_fisher_of_regression_equals_a_loop() -> None:
    x, y = data()
    module = network_of()
    found = fisher(module, x, y, Regression(STD), "true")
    expected = loop(module, x, y, Regression(STD))
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-9, atol=1e-14)


def test_sampled_labels_of_regression_average_to_the_exact_fisher() -> None:
    x, y = data(count=3)
    module = network_of()
    exact = fisher(module, x, y, Regression(STD))
    many = fisher(module, x.repeat(6000, 1), y.repeat(6000, 1), Regression(STD), "sampled")
    for name, value in many.items():
        scale = exact[name].max().item()
        torch.testing.assert_close(value, exact[name], rtol=0.15, atol=0.02 * scale)


@pytest.mark.parametrize("labels", ["exact", "sampled", "true"])
def test_the_fisher_of_ones_own_criterion_is_the_empirical_one(labels: Labels) -> None:
    """Nothing is known of its labels but those of the data."""
    x, y = data()

    def huber(output: Tensor, y: Tensor) -> Tensor:
        return F.huber_loss(output, y, delta=0.3) * 2

    module = network_of()
    found = fisher(module, x, y, OwnCriterion(huber), labels)
    expected = loop(module, x, y, huber)
    for name, value in found.items():
        assert torch.count_nonzero(value) > 0, name
        torch.testing.assert_close(value, expected[name], rtol=1e-9, atol=1e-14)


def test_ones_own_criterion_equal_to_a_known_one_has_its_empirical_fisher() -> None:
    x, _ = data()
    y = torch.arange(COUNT) % 2
    module = network_of()
    known = fisher(module, x, y, Classification(), "true")
    own = fisher(module, x, y, OwnCriterion(F.cross_entropy))
    for name, value in own.items():
        torch.testing.assert_close(value, known[name], rtol=1e-9, atol=1e-14)
