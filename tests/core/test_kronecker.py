"""Kronecker factors against dense Fishers, and their sums against singular values."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evclplus.core.examples import Examples
from evclplus.core.fisher import diagonal_fisher
from evclplus.core.gaussian import Layout
from evclplus.core.heads import MultiHead
from evclplus.core.kronecker import (
    Block,
    Blocks,
    kronecker_fisher,
    nearest,
    placed,
    quadratic,
    scaled,
)
from evclplus.core.likelihoods import Classification, Regression
from evclplus.core.network import BayesianNetwork

CLASSES = 3


def data(*shape: int, count: int) -> Examples:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, *shape, generator=generator, dtype=torch.float64)
    return Examples(x, torch.randint(0, CLASSES, (count,), generator=generator), CLASSES)


def factors(module: nn.Module, examples: Examples, maximum: int = 5000) -> tuple[Blocks, Layout]:
    network = BayesianNetwork(module.double())
    q, generator = network.initial(1.0), torch.Generator()
    likelihood = Classification()
    found = kronecker_fisher(network, q, examples, generator, "exact", maximum, likelihood)
    return placed(found, network.layout), network.layout


def dense(module: nn.Module, x: Tensor) -> Tensor:
    """The Fisher of all weights, summed over examples, by autograd."""
    total = torch.zeros(())
    for example in x:
        logs = F.log_softmax(module(example[None]), dim=1)[0]
        for log in logs:
            parts = torch.autograd.grad(log, list(module.parameters()), retain_graph=True)
            gradient = torch.cat([part.flatten() for part in parts])
            total = total + log.exp().detach() * gradient.outer(gradient)
    return total


def changes(layout: Layout) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(layout.total, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("bias", [True, False])
def test_of_one_linear_layer_and_one_example_they_are_the_fisher(bias: bool) -> None:
    module, examples = nn.Linear(4, CLASSES, bias=bias), data(4, count=1)
    blocks, layout = factors(module, examples)
    fisher, v = dense(module, examples.inputs()), changes(layout)
    torch.testing.assert_close(quadratic(blocks, v), v @ fisher @ v)


def test_of_a_convolution_with_one_position_too() -> None:
    module = nn.Sequential(nn.Conv2d(2, CLASSES, (3, 2)), nn.Flatten())
    examples = data(2, 3, 2, count=1)
    blocks, layout = factors(module, examples)
    fisher, v = dense(module, examples.inputs()), changes(layout)
    torch.testing.assert_close(quadratic(blocks, v), v @ fisher @ v)


def test_of_gaussian_outputs_they_are_the_fisher_of_any_number_of_examples() -> None:
    """G is the same for all examples then: x x^T (x) 1 / std^2."""
    network = BayesianNetwork(nn.Linear(4, 2).double())
    examples = data(4, count=7)
    found = kronecker_fisher(
        *(network, network.initial(1.0), examples, torch.Generator()), "exact", 99, Regression(0.5)
    )
    v = changes(network.layout)
    named = network.layout.named(v)
    moved = F.linear(examples.inputs(), named["weight"], named["bias"])
    torch.testing.assert_close(
        quadratic(placed(found, network.layout), v), moved.square().sum() / 0.5**2
    )


def test_the_factors_of_layers_are_their_definition() -> None:
    """By a loop over examples and labels, with a hidden layer and a convolution's positions."""
    convolution, linear = nn.Conv1d(2, 3, 3, stride=2), nn.Linear(9, CLASSES)
    module = nn.Sequential(convolution, nn.Tanh(), nn.Flatten(), linear).double()
    examples = data(2, 7, count=5)
    blocks = {block.path: block for block in factors(module, examples)[0]}
    expected = {path: [torch.zeros(()), torch.zeros(())] for path in ("0", "3")}
    for x in examples.inputs():
        first = convolution(x[None])
        second = linear(first.tanh().flatten(1))
        patches = torch.stack(
            [F.pad(x[:, i : i + 3].flatten(), (0, 1), value=1) for i in (0, 2, 4)]
        )
        inside = F.pad(first.tanh().flatten(), (0, 1), value=1).detach()
        expected["0"][0] = expected["0"][0] + patches.T @ patches / 5
        expected["3"][0] = expected["3"][0] + inside.outer(inside) / 5
        for log in F.log_softmax(second, dim=1)[0]:
            g = torch.autograd.grad(log, [first, second], retain_graph=True)
            weight = log.exp().detach()
            expected["0"][1] = expected["0"][1] + weight * g[0][0] @ g[0][0].T / 3
            expected["3"][1] = expected["3"][1] + weight * g[1][0].outer(g[1][0])
    for path, (inputs, outputs) in expected.items():
        torch.testing.assert_close(blocks[path].inputs, inputs)
        torch.testing.assert_close(blocks[path].outputs, outputs)


def test_the_quadratic_form_is_that_of_the_dense_kronecker_product() -> None:
    module = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, CLASSES))
    blocks, layout = factors(module, data(4, count=20))
    v = changes(layout)
    named, expected = layout.named(v), torch.zeros((), dtype=torch.float64)
    for block in blocks:
        weight, bias = named[f"{block.path}.weight"], named[f"{block.path}.bias"]
        columns = torch.cat([*weight.T, bias])  # vec stacks columns
        expected = expected + columns @ torch.kron(block.inputs, block.outputs) @ columns
    torch.testing.assert_close(quadratic(blocks, v), expected)


def test_few_examples_stand_for_all() -> None:
    module, examples = nn.Linear(4, CLASSES), data(4, count=6)
    often = Examples(examples.store.repeat(50, 1), examples.labels.repeat(50), CLASSES)
    (once,), (some,) = factors(module, examples)[0], factors(module, often, maximum=200)[0]
    assert some.inputs.trace() < 2 * once.inputs.trace()
    torch.testing.assert_close(some.outputs.trace(), 50 * once.outputs.trace(), rtol=0.1, atol=0)


def test_a_layer_without_factors_has_none() -> None:
    """Two groups have two blocks; a normalisation is no matrix; a frozen weight does not move."""
    frozen = nn.Linear(4, CLASSES)
    frozen.weight.requires_grad_(False)
    module = nn.Sequential(nn.Conv1d(2, 4, 2, groups=2), nn.LayerNorm(1), nn.Flatten(), frozen)
    assert factors(module, data(2, 2, count=4))[0] == ()


def test_the_diagonal_of_a_block_of_one_example_is_the_diagonal_fisher() -> None:
    module, examples = nn.Linear(4, CLASSES), data(4, count=1)
    (block,), layout = factors(module, examples)
    network = BayesianNetwork(module)
    diagonal = diagonal_fisher(network, network.initial(1.0), examples, torch.Generator())
    named = layout.named(diagonal)
    both = torch.cat([named["weight"], named["bias"][:, None]], dim=1)
    torch.testing.assert_close(block.outputs.diagonal().outer(block.inputs.diagonal()), both)


# Sums over tasks


def positive(size: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(size, size, generator=generator, dtype=torch.float64)
    return root @ root.T


def product(block: Block) -> Tensor:
    return torch.kron(block.inputs, block.outputs)


@pytest.mark.parametrize("terms", [2, 4])
def test_the_nearest_product_is_the_leading_singular_pair(terms: int) -> None:
    blocks = tuple(Block("a", positive(4, 2 * i), positive(3, 2 * i + 1)) for i in range(terms))
    total = torch.stack([product(block) for block in blocks]).sum(0)
    rearranged = total.view(4, 3, 4, 3).transpose(1, 2).reshape(16, 9)
    u, s, v = torch.linalg.svd(rearranged)
    expected = s[0] * u[:, 0].outer(v[0])
    (found,) = nearest(blocks)
    torch.testing.assert_close(found.inputs.flatten().outer(found.outputs.flatten()), expected)
    assert torch.linalg.eigvalsh(product(found)).min() > -1e-9


def test_equal_tasks_count_as_often_as_there_are_and_scaled_ones_squared() -> None:
    block = Block("a", positive(4, 0), positive(3, 1))
    (found,), (cross,) = nearest((block, block, block)), scaled((block, block, block))
    torch.testing.assert_close(product(found), 3 * product(block))
    torch.testing.assert_close(product(cross), 9 * product(block))


def test_the_scaled_sum_is_its_equation() -> None:
    one, other = (Block("a", positive(4, i), positive(3, i + 2)) for i in range(2))
    pi = (one.outputs.trace() * other.inputs.trace()) / (other.outputs.trace() * one.inputs.trace())
    expected = Block(
        "a", one.inputs + other.inputs / pi.sqrt(), one.outputs + pi.sqrt() * other.outputs
    )
    (found,) = scaled((one, other))
    torch.testing.assert_close(product(found), product(expected))


@pytest.mark.parametrize("merge", [nearest, scaled])
def test_a_task_that_says_nothing_changes_nothing(merge: "type") -> None:
    block = Block("a", positive(4, 0), positive(3, 1))
    silent = Block("a", positive(4, 2), torch.zeros(3, 3, dtype=torch.float64))
    (found,) = merge((silent, silent))
    assert product(found).abs().max() == 0
    (found,) = nearest((block, silent))
    torch.testing.assert_close(product(found), product(block))


def test_layers_are_added_up_each_by_itself() -> None:
    blocks = [Block(path, positive(2, 0), positive(2, 1)) for path in ("b", "a", "b")]
    found = {block.path: block for block in nearest(tuple(blocks))}
    assert list(found) == ["a", "b"]
    torch.testing.assert_close(product(found["b"]), 2 * product(found["a"]))


def test_a_wider_head_is_free_in_its_new_outputs() -> None:
    narrow, wide = (
        BayesianNetwork(MultiHead(nn.Linear(4, 4), [nn.Linear(4, outputs)])) for outputs in (2, 3)
    )
    block = Block("heads.0", positive(5, 0), positive(2, 1))
    v = changes(narrow.layout)
    after = narrow.layout.carry(v, wide.layout, changes(wide.layout))
    torch.testing.assert_close(
        quadratic(placed((block,), wide.layout), after),
        quadratic(placed((block,), narrow.layout), v),
    )
