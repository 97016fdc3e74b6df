"""Strengths that set themselves, from the task at hand alone."""

from math import ceil, log, prod

import torch
from torch import Tensor

from evclplus.core.examples import Examples
from evclplus.core.gaussian import Layout, MeanField
from evclplus.core.likelihoods import Classification, Likelihood
from evclplus.core.network import BayesianNetwork

SECANT_EXAMPLES = 2000
"""Examples on which the rise of the loss is measured."""


def secant_strength(rise: Tensor, quadratic: Tensor) -> Tensor:
    """The c for which (c / 2) sum_i F_i (mu_i - mu_i_before)^2 is what undoing a task's move
    really costs: c = 2 rise / sum_i F_i (mu_i - mu_i_before)^2. Where nothing moved, one."""
    tiny = torch.finfo(quadratic.dtype).tiny
    return torch.where(quadratic > tiny, 2 * rise / quadratic.clamp_min(tiny), 1.0)


def prior_variances(layout: Layout, least: float) -> Tensor:
    """A first prior for every Gaussian weight that the network's own scale fits into: 1 / fan-in,
    the number of inputs that one output sums over, and not below `least`. A bias, which sums over
    nothing, has 1."""
    each = [max(least, 1 / prod(shape[1:])) for shape in layout.shapes[: layout.gaussian_names]]
    sizes = torch.tensor(layout.sizes[: layout.gaussian_names], dtype=torch.int64)
    return torch.tensor(each, dtype=torch.get_default_dtype()).repeat_interleave(sizes)


@torch.no_grad()
def rise_of_loss(
    network: BayesianNetwork,
    before: MeanField,
    after: MeanField,
    shared: Tensor,
    examples: Examples,
    likelihood: Likelihood,
) -> Tensor:
    """How much a task's mean loss rises when the shared weights go back to where they were before
    it and its head stays; at most log(classes), what guessing costs."""
    index = torch.arange(0, len(examples), ceil(len(examples) / SECANT_EXAMPLES))
    x = examples.inputs(index).to(network.device)
    y = examples.labels[index].to(network.device)
    network = network.copy()

    def loss(mean: Tensor) -> Tensor:
        q = MeanField(mean, after.variance, after.layout)
        return likelihood(network(q, x, examples.head)[:, : examples.outputs], y)

    rise = loss(torch.where(shared, before.mean, after.mean)) - loss(after.mean)
    if isinstance(likelihood, Classification):
        rise = rise.clamp_max(log(max(2, examples.outputs)))
    return rise.clamp_min(0)
