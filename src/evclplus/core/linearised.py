"""The outputs as Gaussians: a network that is linearised in its weights around their means.

    f(x; theta) ~ f(x; mu) + J(x) (theta - mu)   has the mean f(x; mu) and the variance J s J^T

A layer gives mean + std * noise. At noise zero an output's derivative in a layer's noise is that in
its pre-activation, d, times std = sqrt(s a^2), and d^2 s a^2 summed over units is what the layer's
weights add to the diagonal of J s J^T: one backward pass an output, no Jacobian.
"""

from dataclasses import replace

import torch
from torch import Tensor

from evclplus.core.network import BayesianNetwork, Weights
from evclplus.core.noise import PredictionNoise
from evclplus.errors import SettingsError


class _Probe(PredictionNoise):
    """Noise that is zero, and that can be asked what it would have done."""

    def __init__(self) -> None:
        self.used, self.kept, self.leaves = 0, None, list[Tensor]()

    def of_rows(self, tensor: Tensor) -> Tensor:
        self.leaves.append(torch.zeros_like(tensor).requires_grad_())
        return self.leaves[-1]

    def like(self, tensor: Tensor) -> Tensor:
        raise SettingsError(
            "variances of outputs are known for layers that are linear or convolutions and are "
            "called once; keep all other parameters as point values: Learner(..., point=...)"
        )


def linearised(
    network: BayesianNetwork,
    weights: Weights,
    x: Tensor,
    head: int,
    outputs: int,
    training: bool = False,
) -> tuple[Tensor, Tensor]:
    """Mean and variance of each of the first outputs, both differentiable in the weights' means and
    variances. Exact for linear layers of one input vector; the positions of a convolution are
    taken for independent, as the local reparameterisation does."""
    probe = _Probe()
    with torch.enable_grad():
        probed = replace(weights, noise=probe)
        mean = network(probed, x, head, training=training)[:, :outputs]
        variances = [_squared_gradients(mean[:, one].sum(), probe.leaves) for one in range(outputs)]
    return mean, torch.stack(variances, 1)


def _squared_gradients(output: Tensor, leaves: list[Tensor]) -> Tensor:
    """Each example's sum of squares; every leaf has a row for each of them."""
    found = torch.autograd.grad(
        output, leaves, create_graph=True, allow_unused=True, materialize_grads=True
    )
    each = [one.square().flatten(1).sum(1) for one in found]
    return torch.stack(each).sum(0)
