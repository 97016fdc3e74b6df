"""Variances of outputs against a whole Jacobian."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from evclplus.core.heads import MultiHead
from evclplus.core.linearised import linearised
from evclplus.core.network import BayesianNetwork, Weights
from evclplus.errors import SettingsError


def network_of(bias: bool = True) -> tuple[nn.Module, BayesianNetwork]:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Flatten(), nn.Linear(4, 5, bias=bias), nn.Tanh(), nn.Linear(5, 3))
    module = MultiHead(nn.Sequential(body, nn.ReLU()), [nn.Linear(3, 2), nn.Linear(3, 4)]).double()
    return module, BayesianNetwork(module)


def weights_of(network: BayesianNetwork, mean: Tensor, variance: Tensor) -> Weights:
    return Weights(network.layout.named(mean), network.layout.named(variance))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("head", "outputs"), [(0, 2), (1, 4), (1, 3)])
def test_they_are_the_diagonal_of_j_s_j_transposed(bias: bool, head: int, outputs: int) -> None:
    module, network = network_of(bias)
    generator = torch.Generator().manual_seed(1)
    q = network.initial(1.0)
    variance = torch.rand(q.variance.shape, generator=generator, dtype=torch.float64)
    x = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    mean, found = linearised(network, weights_of(network, q.mean, variance), x, head, outputs)
    torch.testing.assert_close(mean.detach(), module(x, head)[:, :outputs].detach())

    def function(parameters: dict[str, Tensor], one: Tensor) -> Tensor:
        output: Tensor = functional_call(module, parameters, (one[None], head))
        return output[0, :outputs]

    for row, one in enumerate(x):
        jacobian = jacrev(function)(dict(module.named_parameters()), one)
        flat = torch.cat([jacobian[name].flatten(1) for name in network.layout.names], 1)
        expected = (flat.square() * variance).sum(1)
        torch.testing.assert_close(found[row].detach(), expected.detach())


def test_their_gradients_are_those_of_finite_differences() -> None:
    _, network = network_of()
    q = network.initial(0.3)
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def total(mean: Tensor, variance: Tensor) -> Tensor:
        weights = weights_of(network, mean, variance)
        return linearised(network, weights, x, 0, 2)[1].log().sum()

    leaves = (q.mean.requires_grad_(), q.variance.requires_grad_())
    assert torch.autograd.gradcheck(total, leaves, eps=1e-6, atol=1e-5)


def test_point_values_have_no_part_in_it() -> None:
    module, _ = network_of()
    network = BayesianNetwork(module, lambda name: "body" in name)
    q = network.initial(0.5)
    x = torch.ones(1, 4, dtype=torch.float64)
    features = network(q, x, ())
    _, found = linearised(network, weights_of(network, q.mean, q.variance), x, 0, 2)
    torch.testing.assert_close(found[0, 0].detach(), 0.5 * (features.square().sum() + 1))


def test_a_parameter_that_is_drawn_itself_is_refused_in_one_line() -> None:
    network = BayesianNetwork(nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)))
    q = network.initial(1.0)
    with pytest.raises(SettingsError, match="keep all other parameters as point values"):
        linearised(network, weights_of(network, q.mean, q.variance), torch.ones(1, 4), 0, 3)
