"""The Fisher of a layer as a Kronecker product (Martens and Grosse, ICML 2015).

    sum over examples of E_y[vec(g a^T) vec(g a^T)^T]  ~  A (x) G

A = E[a a^T] of what the layer receives, with a 1 for the bias; G is the sum of g g^T over examples,
g the gradient of log p(y|x) in what it gives, with labels as the model expects them. The layer's
weight is a matrix W with the bias as its last column, and v^T (A (x) G) v = tr(dW A dW^T G). One
example of one linear layer has exactly this Fisher.

A convolution uses its weight at many positions: A is the sum over them and G their mean, as if the
gradients at different positions knew nothing of each other (Grosse and Martens, ICML 2016).
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor
from torch.nn import functional as F

from evclplus.core.examples import Examples
from evclplus.core.gaussian import Layout, MeanField
from evclplus.core.layer_gradients import (
    at_most,
    layer_gradients,
    layers_whose_rows_are_examples,
    layers_with_matrices,
    passes,
)
from evclplus.core.likelihoods import Labels, Likelihood
from evclplus.core.matrices import matrix_at, names_of, places_of, with_ones
from evclplus.core.network import BayesianNetwork


@dataclass(frozen=True)
class Block:
    """A (x) G of the layer at a path: A is `inputs`, G is `outputs`. `places` says where its weight
    and bias begin in flat vectors, while a task is learned."""

    path: str
    inputs: Tensor
    outputs: Tensor
    places: tuple[int, ...] = ()


Blocks = tuple[Block, ...]


# The factors of a task.


def kronecker_fisher(
    network: BayesianNetwork,
    q: MeanField,
    examples: Examples,
    generator: torch.Generator,
    labels: Labels,
    maximum: int,
    likelihood: Likelihood,
) -> Blocks:
    """The factors of every layer that has them, from up to `maximum` of the examples and scaled to
    all of them."""
    count, layout = len(examples), network.layout
    examples = at_most(examples, maximum, generator)
    paths = layers_with_matrices(network, layers_whose_rows_are_examples(network, q, examples))
    inputs: dict[str, Tensor] = {}
    outputs: dict[str, Tensor] = {}
    for x, y in passes(examples, q.mean.device):
        directions = layer_gradients(
            *(network, q.mean, x, y, examples.head, examples.outputs),
            *(labels, generator, paths, 1.0, likelihood),
        )
        for index, (_, weight, layers) in enumerate(directions):
            for path, (a, g) in layers.items():
                if index == 0:  # what a layer receives is the same for every label
                    _add(inputs, path, _outer(with_ones(a, layout, path), torch.ones_like(weight)))
                _add(outputs, path, _outer(g, weight) / g.shape[2])
    return tuple(
        Block(path, inputs[path] / len(examples), outputs[path] * (count / len(examples)))
        for path in sorted(inputs)
    )


def _outer(rows: Tensor, weight: Tensor) -> Tensor:
    """The weighted sum over examples and positions of v v^T."""
    flat = rows.flatten(1, 2)
    return ((weight[:, None, None] * flat).flatten(0, 1).T) @ flat.flatten(0, 1)


def _add(sums: dict[str, Tensor], path: str, value: Tensor) -> None:
    sums[path] = sums[path] + value if path in sums else value


# What blocks are asked for.


def quadratic(blocks: Blocks, moved: Tensor) -> Tensor:
    """The sum over blocks of tr(dW A dW^T G), for a flat vector of changes."""
    total = moved.new_zeros(())
    for block in blocks:
        change = matrix_at(moved, block.places, len(block.outputs), len(block.inputs))
        total = total + ((block.outputs @ change) * (change @ block.inputs)).sum()
    return total


def placed(blocks: Blocks, layout: Layout) -> Blocks:
    """The same where their weights are now. Nothing is known of the outputs of a layer that has
    become wider since."""
    rows = dict(zip(layout.names, layout.shapes, strict=True))

    def now(block: Block) -> Block:
        more = rows[names_of(layout, block.path)[0]][0] - len(block.outputs)
        outputs = F.pad(block.outputs, (0, more, 0, more))
        return Block(block.path, block.inputs, outputs, places_of(layout, block.path))

    return tuple(now(block) for block in blocks)


# Adding up tasks. A sum of Kronecker products is none.


def nearest(blocks: Blocks) -> Blocks:
    """For every layer the one A (x) G nearest to the sum of its blocks, by the sum of squared
    differences (Van Loan and Pitsianis, 1993)."""
    return _merged(blocks, _nearest_of)


def scaled(blocks: Blocks) -> Blocks:
    """(A + A' / pi) (x) (G + pi G') with pi = sqrt(tr G tr A' / (tr G' tr A)): what NCL does. The
    products of one task's A with another's G come on top of the sum."""
    return _merged(blocks, _scaled_of)


def _merged(blocks: Blocks, merge: Callable[[list[Block]], Block]) -> Blocks:
    by_path = groupby(sorted(blocks, key=lambda block: block.path), key=lambda block: block.path)
    layers = [list(group) for _, group in by_path]
    return tuple(group[0] if len(group) == 1 else merge(group) for group in layers)


def _nearest_of(group: list[Block]) -> Block:
    """The best pair is (sum_i c_i A_i) (x) (sum_i d_i G_i), with c the leading eigenvector of the
    product of both Gram matrices. The inner products of Fishers are never negative and so neither
    is c (Perron): the result is as positive as they are."""
    a = torch.stack([block.inputs.flatten() for block in group]).double()
    g = torch.stack([block.outputs.flatten() for block in group]).double()
    gram_a, gram_g = a @ a.T, g @ g.T
    values, vectors = torch.linalg.eigh(gram_a)
    root = vectors @ values.clamp_min(0).sqrt().diag() @ vectors.T
    leading = torch.linalg.eigh(root @ gram_g @ root)[1][:, -1]
    c = (gram_g @ root @ leading).abs()
    if not c.sum() > 0:
        return group[-1]  # all of them are zero
    c = c / c.sum()
    d = gram_a @ c / (c @ gram_a @ c)
    return _combined(group, c, d)


def _scaled_of(group: list[Block]) -> Block:
    total = group[0]
    for block in group[1:]:
        old = total.outputs.trace() * block.inputs.trace()
        new = block.outputs.trace() * total.inputs.trace()
        pi = (old / new).sqrt() if old > 0 and new > 0 else torch.ones_like(old)
        total = _combined([total, block], pi.new_tensor([1, 1 / pi]), pi.new_tensor([1, pi]))
    return total


def _combined(group: list[Block], c: Tensor, d: Tensor) -> Block:
    def weighted(factors: list[Tensor], by: Tensor) -> Tensor:
        parts = zip(by.tolist(), factors, strict=True)
        return torch.stack([weight * factor for weight, factor in parts]).sum(0)

    inputs = weighted([block.inputs for block in group], c)
    return Block(group[0].path, inputs, weighted([block.outputs for block in group], d))
