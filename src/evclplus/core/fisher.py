"""The diagonal Fisher information: F = E_x E_{y ~ p(y|x)} [ (d log p(y|x) / d theta)^2 ].

The gradient of every example is squared by itself and the squares are averaged. Squaring a
minibatch's mean gradient would be a different, far smaller number.
"""

import warnings
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.func import grad, vmap

from evclplus.core.examples import Examples
from evclplus.core.gaussian import MeanField
from evclplus.core.inductor import product
from evclplus.core.layer_gradients import (
    at_most,
    layer_gradients,
    layers_whose_rows_are_examples,
    passes,
)
from evclplus.core.likelihoods import Classification, Labels, Likelihood, SquaredNorm
from evclplus.core.network import BayesianNetwork, Weights

Reduction = Literal["mean", "sum"]

Size = Callable[[Tensor], Tensor]
"""What is added up of single gradients: squares, or absolute values. Both are multiplicative, which
the closed form needs."""

LARGEST_GRADIENT_BLOCK = 2**24
"""Numbers held at once when the gradients of single examples must be formed."""


def diagonal_fisher(
    network: BayesianNetwork,
    q: MeanField,
    examples: Examples,
    generator: torch.Generator,
    labels: Labels = "exact",
    reduction: Reduction = "mean",
    maximum: int = 5000,
    temperature: float = 1.0,
    likelihood: Likelihood | None = None,
) -> Tensor:
    """The Fisher of every weight at q's mean, on up to `maximum` of the examples.

    A `temperature` above 1 divides the outputs: F is that of softmax(logits / temperature), less
    sure of itself.
    """
    total, count = _summed(
        *(network, q, examples, generator, labels, maximum, temperature),
        *(likelihood or Classification(), torch.square),
    )
    return total / count if reduction == "mean" else total


def output_sensitivity(
    network: BayesianNetwork,
    q: MeanField,
    examples: Examples,
    generator: torch.Generator,
    maximum: int = 5000,
) -> Tensor:
    """mean over x of |d |f(x)|^2 / d theta|: how much each weight moves the outputs. It needs no
    labels. Every example's gradient is taken by itself, as for the Fisher."""
    total, count = _summed(
        *(network, q, examples, generator, "true", maximum, 1.0),
        *(SquaredNorm(), torch.abs),
    )
    return total / count


def _summed(
    network: BayesianNetwork,
    q: MeanField,
    examples: Examples,
    generator: torch.Generator,
    labels: Labels,
    maximum: int,
    temperature: float,
    likelihood: Likelihood,
    size: Size,
) -> tuple[Tensor, int]:
    """The sum over examples of the sizes of their gradients, and how many examples there are."""
    examples = at_most(examples, maximum, generator)
    total = torch.zeros_like(q.mean)
    closed_form = layers_whose_rows_are_examples(network, q, examples)
    for x, y in passes(examples, q.mean.device):
        total += _sizes_of_gradients(
            *(network, q.mean, x, y, examples.head, examples.outputs),
            *(labels, generator, closed_form, temperature, likelihood, size),
        )
    return total, len(examples)


def _sizes_of_gradients(
    network: BayesianNetwork,
    weights: Tensor,
    x: Tensor,
    y: Tensor,
    head: int,
    outputs: int,
    labels: Labels,
    generator: torch.Generator,
    closed_form: set[str],
    temperature: float,
    likelihood: Likelihood,
    size: Size,
) -> Tensor:
    """The sum over a batch of the size of each example's gradient, at these weights."""
    result = torch.zeros_like(weights)
    means, sums = network.named(weights, head), network.named(result, head)
    used = network.names_for(head)
    others = [name for name in used if name.rpartition(".")[0] not in closed_form]
    found = layer_gradients(
        *(network, weights, x, y, head, outputs),
        *(labels, generator, closed_form, temperature, likelihood),
    )
    for direction, weight, layers in found:
        for path, (a, g) in layers.items():
            _add_layer(sums, path, a, g, weight, size)
        if others:
            per_example = example_gradients(
                network, means, others, x, direction / temperature, head
            )
            for name, gradient in per_example.items():
                sums[name] += torch.einsum("n,n...->...", weight, size(gradient))
    return result


# Closed form: what a Linear or Conv received and the gradient of what it gave are enough.


def _add_layer(
    sums: dict[str, Tensor],
    path: str,
    a: Tensor,
    g: Tensor,
    weight: Tensor,
    size: Size,
) -> None:
    """Add the weighted sizes of the gradients of one layer's weight and bias.

    Example n's gradient is sum_p g_np a_np^T over the positions p where the weight is used.
    With one position its square is g_n^2 (a_n^2)^T, and its absolute value likewise: one matrix
    product for the whole batch.
    """
    prefix = f"{path}." if path else ""
    one_position = a.shape[2] == 1
    summed = g[:, :, 0] if one_position else g.sum(2)
    weighted = weight[:, None, None] * size(summed)
    if prefix + "bias" in sums:
        sums[prefix + "bias"] += weighted.sum(0).flatten()
    if prefix + "weight" not in sums:
        return
    target = sums[prefix + "weight"]
    if one_position:
        pairs = zip(weighted.unbind(1), size(a[:, :, 0]).unbind(1), strict=True)
        total = torch.stack([product(outputs.T, inputs) for outputs, inputs in pairs])
    else:
        block = max(1, LARGEST_GRADIENT_BLOCK // target.numel())
        parts = zip(weight.split(block), g.split(block), a.split(block), strict=True)
        total = torch.zeros_like(target).view(g.shape[1], g.shape[3], a.shape[3])
        for w, d, r in parts:
            single = torch.einsum("ngpo,ngpi->ngoi", d, r)
            total += torch.einsum("n,ngoi->goi", w, size(single))
    target += total.view(target.shape)


# The general form: any parameter at all.


def example_gradients(
    network: BayesianNetwork,
    means: dict[str, Tensor],
    names: list[str],
    x: Tensor,
    direction: Tensor,
    head: int,
) -> dict[str, Tensor]:
    """Each example's gradient of its logits along its direction, for the named parameters."""
    constants = {name: value.detach() for name, value in means.items()}

    def along(chosen: dict[str, Tensor], one: Tensor, direction: Tensor) -> Tensor:
        logits = network(Weights({**constants, **chosen}), one[None], head)[0]
        return (logits[: len(direction)] * direction).sum()

    chosen = {name: constants[name] for name in names}
    gradient = grad(along)
    try:
        with warnings.catch_warnings():  # torch says which operations it vectorises slowly
            warnings.filterwarnings("ignore", message=".*performance drop")
            together: dict[str, Tensor] = vmap(gradient, in_dims=(None, 0, 0))(chosen, x, direction)
        return together
    except Exception:
        # Some modules (recurrent ones, data-dependent branches) cannot be vectorised.
        single = [gradient(chosen, one, part) for one, part in zip(x, direction, strict=True)]
        return {name: torch.stack([part[name] for part in single]) for name in names}
