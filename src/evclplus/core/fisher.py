"""The diagonal Fisher information: F = E_x E_{y ~ p(y|x)} [ (d log p(y|x) / d theta)^2 ].

The gradient of every example is squared by itself and the squares are averaged. Squaring a
minibatch's mean gradient would be a different, far smaller number.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd
from torch.utils.hooks import RemovableHandle

from evclplus.core.examples import Examples, rows_at_once
from evclplus.core.gaussian import MeanField
from evclplus.core.layers import LocalLayer
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
    if len(examples) > maximum:
        chosen = torch.randperm(len(examples), generator=generator)[:maximum]
        examples = examples.take(chosen)
    total = torch.zeros_like(q.mean)
    closed_form = _layers_whose_rows_are_examples(network, q, examples)
    # Half as many as for a prediction: their gradients take as much room as they do.
    rows = max(1, rows_at_once(examples.store) // 2)
    for index in torch.arange(len(examples)).split(rows):
        x = examples.inputs(index).to(q.mean.device)
        y = examples.labels[index].to(q.mean.device)
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
    layout = network.layout
    # Gradients are asked of the layers' outputs, so the weights must be in the graph.
    means = layout.named(weights.detach().requires_grad_())
    result = torch.zeros_like(weights)
    sums = layout.named(result)
    with torch.enable_grad(), _recorded(network, closed_form) as record:
        logits = network(Weights(means), x, head)[:, :outputs] / temperature
    used = network.names_for(head)
    others = [name for name in used if name.rpartition(".")[0] not in closed_form]
    for direction, weight in likelihood.directions(logits.detach(), y, labels, generator):
        for path, gradient in _output_gradients(logits, direction, record).items():
            received = record[path][0].detach().to(weights.dtype)  # whole numbers, too
            _add_layer(sums, path, network.local_layers[path], received, gradient, weight, size)
        if others:
            per_example = _gradients_of(network, means, others, x, direction / temperature, head)
            for name, gradient in per_example.items():
                sums[name] += torch.einsum("n,n...->...", weight, size(gradient))
    return result


# Closed form: what a Linear or Conv received and the gradient of what it gave are enough.


def _layers_whose_rows_are_examples(
    network: BayesianNetwork, q: MeanField, examples: Examples
) -> set[str]:
    """The layers that see one example per row.

    A module may fold time or space into the batch, or put the batch second. Two batches of
    different sizes tell: the rows of a layer that qualifies follow both.
    """
    follows: dict[str, bool] = {}
    with torch.no_grad():
        # torch's fused layers read their parts' weights only where there are no hooks; parts that
        # are read leave local_layers here, and not later between two gradients.
        network(q, examples.inputs(torch.arange(1)).to(q.mean.device), examples.head)
    for size in (1, 2) if len(examples) > 1 else (1,):
        x = examples.inputs(torch.arange(size)).to(q.mean.device)
        with torch.no_grad(), _recorded(network, set(network.local_layers)) as record:
            network(q, x, examples.head)
        for path, (received, _) in record.items():
            follows[path] = follows.get(path, True) and len(received) == size
    # A layer that turned out to be called twice has left local_layers during the passes.
    return {path for path, right in follows.items() if right and path in network.local_layers}


Passed = dict[str, tuple[Tensor, Tensor]]
"""What each layer received and gave, by its path."""


@contextmanager
def _recorded(network: BayesianNetwork, paths: set[str]) -> Iterator[Passed]:
    record: Passed = {}

    def remember(path: str) -> RemovableHandle:
        def hook(layer: nn.Module, received: tuple[Tensor, ...], given: Tensor) -> None:
            record[path] = (received[0], given)

        return network.local_layers[path].register_forward_hook(hook)

    handles = [remember(path) for path in sorted(paths)]
    try:
        yield record
    finally:
        for handle in handles:
            handle.remove()


def _output_gradients(logits: Tensor, direction: Tensor, record: Passed) -> dict[str, Tensor]:
    """The gradient of the logits along a direction at each layer's output, a row per example."""
    if not record:
        return {}
    outputs = [output for _, output in record.values()]
    # Of a sum: given a vector of directions, torch imports half a second of what it does not need.
    gradients = torch.autograd.grad(
        (logits * direction).sum(), outputs, retain_graph=True, allow_unused=True
    )
    pairs = zip(record, gradients, strict=True)
    return {path: gradient for path, gradient in pairs if gradient is not None}


def _add_layer(
    sums: dict[str, Tensor],
    path: str,
    layer: LocalLayer,
    received: Tensor,
    gradient: Tensor,
    weight: Tensor,
    size: Size,
) -> None:
    """Add the weighted sizes of the gradients of one layer's weight and bias.

    Example n's gradient is sum_p g_np a_np^T over the positions p where the weight is used.
    With one position its square is g_n^2 (a_n^2)^T, and its absolute value likewise: one matrix
    product for the whole batch.
    """
    prefix = f"{path}." if path else ""
    a, g = _positions(layer, received, gradient)
    one_position = a.shape[2] == 1
    summed = g[:, :, 0] if one_position else g.sum(2)
    weighted = weight[:, None, None] * size(summed)
    if prefix + "bias" in sums:
        sums[prefix + "bias"] += weighted.sum(0).flatten()
    if prefix + "weight" not in sums:
        return
    target = sums[prefix + "weight"]
    if one_position:
        total = torch.einsum("ngo,ngi->goi", weighted, size(a[:, :, 0]))
    else:
        block = max(1, LARGEST_GRADIENT_BLOCK // target.numel())
        parts = zip(weight.split(block), g.split(block), a.split(block), strict=True)
        total = torch.zeros_like(target).view(g.shape[1], g.shape[3], a.shape[3])
        for w, d, r in parts:
            single = torch.einsum("ngpo,ngpi->ngoi", d, r)
            total += torch.einsum("n,ngoi->goi", w, size(single))
    target += total.view(target.shape)


def _positions(layer: LocalLayer, received: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs and output gradients as (example, group, position, channel)."""
    if isinstance(layer, nn.Linear):
        a = received.reshape(len(received), 1, -1, received.shape[-1])
        return a, gradient.reshape(len(gradient), 1, -1, gradient.shape[-1])
    assert isinstance(layer, _ConvNd)
    patches = _patches(layer, received)
    g = gradient.flatten(2).unflatten(1, (layer.groups, -1)).transpose(2, 3)
    return patches, g


def _patches(layer: _ConvNd, received: Tensor) -> Tensor:
    """The input of every position of a convolution, as (example, group, position, values)."""
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    padded = F.pad(received, layer._reversed_padding_repeated_twice, mode=mode)
    sizes = layer.kernel_size
    dimensions = zip(sizes, layer.stride, layer.dilation, strict=True)
    for axis, (size, step, gap) in enumerate(dimensions, start=2):
        padded = padded.unfold(axis, (size - 1) * gap + 1, step)[..., ::gap]
    # Now (example, channel, position..., kernel...); the channels of a group come together.
    count = padded.shape[2 : 2 + len(sizes)].numel()
    flat = padded.reshape(len(received), layer.groups, -1, count, prod(sizes))
    return flat.transpose(2, 3).flatten(3)


# The general form: any parameter at all.


def _gradients_of(
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
