"""What each Linear or convolution receives in a pass, and the gradient of what it gives.

The gradient of one example in a layer's weight is sum_p g_np a_np^T over the positions p where the
weight is used: a is what the layer received there, g the gradient of what it gave. The diagonal
Fisher, Kronecker factors and projections are all made of the two.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd
from torch.utils.hooks import RemovableHandle

from evclplus.core.examples import MOST_NUMBERS, Examples, rows_at_once
from evclplus.core.gaussian import MeanField
from evclplus.core.layers import LocalLayer
from evclplus.core.likelihoods import Labels, Likelihood
from evclplus.core.network import BayesianNetwork, Weights


def at_most(examples: Examples, maximum: int, generator: torch.Generator) -> Examples:
    """Up to `maximum` of the examples, drawn if there are more."""
    if len(examples) <= maximum:
        return examples
    return examples.take(torch.randperm(len(examples), generator=generator)[:maximum])


def passes(examples: Examples, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and labels, as many at once as there is room for."""
    # Half as many numbers as for a prediction: their gradients take as much room as they do.
    together = rows_at_once(examples.store, MOST_NUMBERS // 2)
    rows = max(1, min(together, MOST_NUMBERS // examples.outputs))
    for index in torch.arange(len(examples)).split(rows):
        yield examples.inputs(index).to(device), examples.labels[index].to(device)


def layers_whose_rows_are_examples(
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
        used = network.local_layers.keys() & network.layers_for(examples.head)
        with torch.no_grad(), recorded(network, used) as record:
            network(q, x, examples.head)
        for path, (received, _) in record.items():
            follows[path] = follows.get(path, True) and len(received) == size
    # A layer that turned out to be called twice has left local_layers during the passes.
    return {path for path, right in follows.items() if right and path in network.local_layers}


def layers_with_matrices(network: BayesianNetwork, paths: Iterable[str]) -> set[str]:
    """Those of the layers that learn a weight which is one matrix, not one for each group."""

    def has_one(path: str) -> bool:
        weight = f"{path}.weight" if path else "weight"
        return (
            weight in network.layout.places
            and getattr(network.local_layers[path], "groups", 1) == 1
        )

    return {path for path in paths if has_one(path)}


@torch.no_grad()
def received(network: BayesianNetwork, q: MeanField, x: Tensor, head: int) -> dict[str, Tensor]:
    """What every layer that has a matrix receives, as (example, group, position, channel)."""
    network(q, x[:1], head)  # layers that cannot be recorded leave local_layers here
    with recorded(network, layers_with_matrices(network, network.layers_for(head))) as record:
        network(q, x, head)
    return {
        path: inputs_by_position(network.local_layers[path], a.to(q.mean.dtype))
        for path, (a, _) in record.items()
    }


Passed = dict[str, tuple[Tensor, Tensor]]
"""What each layer received and gave, by its path."""


@contextmanager
def recorded(network: BayesianNetwork, paths: set[str]) -> Iterator[Passed]:
    record: Passed = {}

    def remember(path: str) -> RemovableHandle:
        def hook(layer: nn.Module, received: tuple[Tensor, ...], given: Tensor) -> None:
            record[path] = (received[0], given)

        return network.layer(path).register_forward_hook(hook)

    handles = [remember(path) for path in sorted(paths)]
    try:
        yield record
    finally:
        for handle in handles:
            handle.remove()


LayerGradients = tuple[Tensor, Tensor, dict[str, tuple[Tensor, Tensor]]]
"""A direction at the outputs, its weight for every example, and by layer a and g of its gradient,
both as (example, group, position, channel)."""


def layer_gradients(
    network: BayesianNetwork,
    weights: Tensor,
    x: Tensor,
    y: Tensor,
    head: int,
    outputs: int,
    labels: Labels,
    generator: torch.Generator,
    paths: set[str],
    temperature: float,
    likelihood: Likelihood,
) -> Iterator[LayerGradients]:
    """For each direction that the likelihood's Fisher asks for, the gradients of these layers."""
    # Gradients are asked of the layers' outputs, so the weights must be in the graph.
    means = network.named(weights.detach().requires_grad_(), head)
    with torch.enable_grad(), recorded(network, paths) as record:
        logits = network(Weights(means), x, head)[:, :outputs] / temperature
    for direction, weight in likelihood.directions(logits.detach(), y, labels, generator):
        layers = {}
        for path, gradient in _output_gradients(logits, direction, record).items():
            layer = network.local_layers[path]
            received = record[path][0].detach().to(weights.dtype)  # whole numbers, too
            a, g = inputs_by_position(layer, received), _gradients_by_position(layer, gradient)
            layers[path] = (a, g)
        yield direction, weight, layers


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


def inputs_by_position(layer: LocalLayer, received: Tensor) -> Tensor:
    """What a layer received, as (example, group, position, channel)."""
    if isinstance(layer, nn.Linear):
        return received.reshape(len(received), 1, -1, received.shape[-1])
    assert isinstance(layer, _ConvNd)
    return _patches(layer, received)


def _gradients_by_position(layer: LocalLayer, gradient: Tensor) -> Tensor:
    """The gradient of what a layer gave, as (example, group, position, channel)."""
    if isinstance(layer, nn.Linear):
        return gradient.reshape(len(gradient), 1, -1, gradient.shape[-1])
    assert isinstance(layer, _ConvNd)
    groups: Tensor = gradient.flatten(2).unflatten(1, (layer.groups, -1))
    return groups.transpose(2, 3)


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
