"""The strength that a task's own loss asks for, against arithmetic by hand."""

from collections.abc import Sequence
from math import log
from statistics import median
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import evclplus as ec
from evclplus.core import calibration
from evclplus.core.calibration import prior_variances, rise_of_loss, secant_strength
from evclplus.core.examples import Examples
from evclplus.core.gaussian import Layout, MeanField
from evclplus.core.heads import MultiHead
from evclplus.core.likelihoods import Classification, Regression
from evclplus.core.network import BayesianNetwork
from tests.helpers import blobs

HEAD = 1


def two_heads() -> BayesianNetwork:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(4, 5), nn.Tanh())
    return BayesianNetwork(MultiHead(body, [nn.Linear(5, 2), nn.Linear(5, 3)]).double())


def at(q: MeanField, scale: float, seed: int) -> MeanField:
    """Other means than q's."""
    push = torch.randn(q.mean.shape, generator=torch.Generator().manual_seed(seed)).to(q.mean)
    return MeanField(q.mean + scale * push, q.variance, q.layout)


def solved(count: int = 12) -> tuple[BayesianNetwork, MeanField, MeanField, Examples]:
    """A network, its weights before and after a task, and the task, which they get right after:
    there is something to lose."""
    network = two_heads()
    first = network.initial(1e-2)
    after = MeanField(3 * first.mean, first.variance, first.layout)
    x = task(count).inputs()
    y = network(after, x, HEAD).argmax(1)
    return network, at(first, 0.3, seed=2), after, Examples(x, y, outputs=3, head=HEAD)


def task(count: int = 12) -> Examples:
    x = torch.randn(count, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return Examples(x, torch.arange(count) % 3, outputs=3, head=HEAD)


def rise(
    network: BayesianNetwork, before: MeanField, after: MeanField, examples: Examples
) -> Tensor:
    return rise_of_loss(network, before, after, network.shared(), examples, Classification())


def outputs(named: dict[str, Tensor], head: dict[str, Tensor], x: Tensor) -> Tensor:
    """The network by hand."""
    hidden = (x @ named["body.0.weight"].T + named["body.0.bias"]).tanh()
    return hidden @ head[f"heads.{HEAD}.weight"].T + head[f"heads.{HEAD}.bias"]


# The strength


@pytest.mark.parametrize(("rise", "quadratic"), [(0.7, 3.0), (2.0, 1e-12), (1e-9, 50.0)])
def test_the_quadratic_then_costs_what_the_move_does(rise: float, quadratic: float) -> None:
    strength = secant_strength(*torch.tensor([rise, quadratic], dtype=torch.float64))
    assert (strength * quadratic / 2).item() == pytest.approx(rise, rel=1e-12)


@pytest.mark.parametrize("rise", [0.0, 1.0])
def test_where_nothing_moved_the_strength_is_one(rise: float) -> None:
    assert secant_strength(torch.tensor(rise), torch.tensor(0.0)) == 1


def test_what_costs_nothing_has_no_strength() -> None:
    assert secant_strength(torch.tensor(0.0), torch.tensor(2.0)) == 0


@pytest.mark.parametrize("std", [1.0, 0.3])
def test_an_exactly_quadratic_loss_needs_no_strength(std: float) -> None:
    """At the least squares of orthogonal inputs, the loss is its own second-order expansion and
    the diagonal Fisher is all of it: any scale of it is set right, and the right one left."""
    x = torch.linalg.qr(torch.randn(20, 3, dtype=torch.float64)).Q * torch.tensor([1.0, 2.0, 5.0])
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64)
    y = y + torch.randn(20, 1, dtype=torch.float64)
    network = BayesianNetwork(nn.Linear(3, 1, bias=False).double())
    before = network.initial(1e-3)
    best = torch.linalg.lstsq(x, y).solution[:, 0]
    after = MeanField(best, before.variance, before.layout)
    examples, everything = Examples(x, y, outputs=1), network.shared()
    found = rise_of_loss(network, before, after, everything, examples, Regression(std))
    fisher = x.square().mean(0) / std**2
    quadratic = (fisher * (after.mean - before.mean).square()).sum()
    assert found > 0.01
    torch.testing.assert_close(
        secant_strength(found, quadratic), torch.ones_like(found), rtol=1e-9, atol=0
    )
    for scale in (1e-4, 1e4):
        strength = secant_strength(found, scale * quadratic)
        torch.testing.assert_close(strength * scale * fisher, fisher, rtol=1e-9, atol=0)


# The rise


def test_the_rise_is_of_a_body_set_back_under_the_new_head() -> None:
    network, before, after, examples = solved()
    old, new = (network.layout.named(one.mean) for one in (before, after))
    x, y = examples.inputs(), examples.labels
    expected = cross_entropy(outputs(old, new, x), y) - cross_entropy(outputs(new, new, x), y)
    found = rise(network, before, after, examples)
    assert 1e-3 < expected < log(3)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=0)
    # The old head would say something else.
    other = cross_entropy(outputs(old, old, x), y) - cross_entropy(outputs(new, new, x), y)
    assert (other - found).abs() > 1e-3
    # A loss that falls on the way back is no rise.
    assert rise(network, after, before, examples) >= 0
    wrong = Examples(examples.store, (examples.labels + 1) % 3, 3, head=HEAD)
    assert rise(network, before, after, wrong) == 0


def test_a_head_alone_has_nothing_to_set_back() -> None:
    network = two_heads()
    after = network.initial(1e-2)
    named = network.layout.named(after.mean.clone())
    mean = torch.cat(
        [(v + (1.0 if "heads" in name else 0.0)).flatten() for name, v in named.items()]
    )
    before = MeanField(mean, after.variance, after.layout)
    assert not torch.equal(before.mean, after.mean)
    assert rise(network, before, after, task()) == 0


@pytest.mark.parametrize(("classes", "most"), [(3, log(3)), (2, log(2)), (1, log(2))])
def test_there_is_no_more_to_lose_than_guessing_costs(classes: int, most: float) -> None:
    network = BayesianNetwork(nn.Linear(4, 3).double())
    after = network.initial(1e-2)
    x = task().inputs()
    y = network(after, x, 0)[:, :classes].argmax(1)
    before = MeanField(-1e3 * after.mean, after.variance, after.layout)
    examples = Examples(x, y, outputs=classes)
    found = rise(network, before, after, examples)
    assert found.item() == pytest.approx(most if classes > 1 else 0.0)


def test_a_regression_may_lose_any_amount() -> None:
    network = BayesianNetwork(nn.Linear(4, 1).double())
    after = network.initial(1e-2)
    x = task().inputs()
    examples = Examples(x, network(after, x, 0), outputs=1)
    before = MeanField(-1e3 * after.mean, after.variance, after.layout)
    found = rise_of_loss(network, before, after, network.shared(), examples, Regression(1.0))
    expected = (network(before, x, 0) - network(after, x, 0)).square().mean() / 2
    assert found > 100
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("count", [6, 12, 24])
def test_a_large_task_is_measured_on_examples_from_all_of_it(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "SECANT_EXAMPLES", 6)
    network, before, after, examples = solved(count)
    chosen = torch.arange(0, count, count // 6)
    few = Examples(examples.store[chosen], examples.labels[chosen], 3, head=HEAD)
    assert len(few) == 6
    found = rise(network, before, after, examples)
    assert found > 0
    torch.testing.assert_close(found, rise(network, before, after, few))


def test_measuring_leaves_the_network_as_it_was() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double()
    network = BayesianNetwork(module)
    after = network.initial(1e-2)
    kept = {name: buffer.clone() for name, buffer in network.buffers.items()}
    examples = Examples(task().inputs(), task().labels, 3)
    assert not rise(network, at(after, 0.5, seed=2), after, examples).requires_grad
    assert kept
    assert all(torch.equal(kept[name], buffer) for name, buffer in network.buffers.items())


# What is shared


def marked(network: BayesianNetwork) -> Sequence[str]:
    """The names of the parameters that are marked, each in all of its elements."""
    marks = network.layout.named(network.shared())
    assert all(one.all() or not one.any() for one in marks.values())
    return [name for name, one in marks.items() if one.all()]


def test_the_body_is_shared_and_heads_are_not() -> None:
    network = two_heads()
    assert network.shared().dtype == torch.bool
    assert len(network.shared()) == len(network.initial(1.0).mean)
    assert set(marked(network)) == {"body.0.weight", "body.0.bias"}


@pytest.mark.parametrize("point", ["", "bias", "."])
def test_a_network_without_heads_of_tasks_is_shared_as_a_whole(point: str) -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    network = BayesianNetwork(module, lambda name: bool(point) and point in name)
    assert network.shared().all()
    heads = BayesianNetwork(
        MultiHead(nn.Linear(4, 3), [nn.Linear(3, 2)]), lambda name: bool(point) and point in name
    )
    assert set(marked(heads)) == {"body.weight", "body.bias"}


def test_the_first_prior_follows_the_fan_in() -> None:
    layout = Layout(
        names=("wide.weight", "conv.weight", "narrow.weight", "narrow.bias", "point"),
        shapes=((3, 200), (2, 4, 3, 3), (2, 4), (2,), (5,)),
        gaussian_names=4,
    )
    each = prior_variances(layout, 0.01)
    assert each.shape == (layout.gaussian_total,)
    named = layout.named(each)
    expected = {"wide.weight": 0.01, "conv.weight": 1 / 36, "narrow.weight": 0.25}
    for name, variance in (expected | {"narrow.bias": 1.0}).items():
        torch.testing.assert_close(named[name], torch.full_like(named[name], variance))


def test_a_tiny_network_learns_with_the_defaults() -> None:
    """With a prior of 0.01 for all it stayed at chance: four inputs need weights of about one. Two
    units may both fall silent, so that one seed in some does not learn a second task."""
    stream = blobs()
    found = []
    for seed in range(4):
        training: dict[str, Any] = {"learning_rate": 1e-2, "epochs": 40, "batch_size": 20}
        learner = ec.Learner(ec.networks.mlp(4, [2]), seed=seed, **training)
        for task in stream:
            learner.learn(task)
        found.append(learner.evaluate(stream).average_accuracy)
    assert median(found) > 0.9
