"""Progressive networks: the equation of a column, and that old answers never change."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import evclplus as ec
from evclplus.core.columns import Columns
from evclplus.core.network import BayesianNetwork
from evclplus.errors import ConversionError, DataError
from tests.helpers import blobs

SMALL: dict[str, Any] = {"epochs": 6, "batch_size": 20, "learning_rate": 1e-2}


def three_columns() -> Columns:
    torch.manual_seed(0)
    module = Columns(ec.networks.mlp(4, [5, 3]))
    for head in range(3):
        module.grow(head, 2, 3)
    return module


def by_hand(module: Columns, x: Tensor, head: int) -> Tensor:
    """Two hidden layers, written out."""
    weights = dict(module.named_parameters())

    def linear(h: Tensor, path: str) -> Tensor:
        return h @ weights[f"{path}.weight"].T + weights.get(f"{path}.bias", torch.zeros(()))

    def adapter(earlier: list[Tensor], path: str) -> Tensor:
        if not earlier:
            return torch.zeros(())
        scaled = [weights[f"{path}.scale"][j] * h for j, h in enumerate(earlier)]
        return linear(linear(torch.cat(scaled, 1), f"{path}.reduce").relu(), f"{path}.expand")

    first: list[Tensor] = []
    second: list[Tensor] = []
    for t in range(head + 1):
        h = linear(x, f"columns.{t}.layers.1").relu()
        lateral = adapter(first, f"columns.{t}.adapters.0")
        features = (linear(h, f"columns.{t}.layers.3") + lateral).relu()
        output = linear(features, f"heads.{t}") + adapter(second, f"columns.{t}.adapters.1")
        first.append(h)
        second.append(features)
    return output


def test_the_equation() -> None:
    module, x = three_columns(), torch.randn(7, 4)
    for head in range(3):
        torch.testing.assert_close(module(x, head), by_hand(module, x, head))
    torch.testing.assert_close(module(x, (2, 0)), torch.cat([module(x, 2), module(x, 0)], 1))


def test_the_first_column_is_the_given_body_and_each_further_one_is_new() -> None:
    given = ec.networks.mlp(4, [5, 3])
    module = Columns(given)
    module.grow(0, 2, 3)
    module.grow(1, 2, 3)
    weights = dict(module.named_parameters())
    assert torch.equal(weights["columns.0.layers.1.weight"], given.body[1].weight)  # type: ignore[index]
    assert weights["columns.0.layers.1.weight"] is not given.body[1].weight  # type: ignore[index]
    assert not torch.equal(weights["columns.1.layers.1.weight"], given.body[1].weight)  # type: ignore[index]


def test_earlier_columns_are_read_and_get_no_gradient() -> None:
    module, x = three_columns(), torch.randn(7, 4)
    module(x, 2).square().sum().backward()
    for name, value in module.named_parameters():
        moved = value.grad is not None and bool(value.grad.any())
        assert moved == (module.owner(name) == 2), name
    before = module(x, 2)
    with torch.no_grad():
        module.columns[0].layers[1].weight.add_(0.1)  # type: ignore[union-attr, index]
    assert not torch.equal(module(x, 2), before)


def test_who_owns_and_who_uses_a_weight() -> None:
    network = BayesianNetwork(three_columns())
    assert network.owner("columns.2.adapters.0.scale") == 2
    assert network.owner("heads.1.bias") == 1
    for head in range(3):
        owners = {network.owner(name) for name in network.names_for(head)}
        assert owners == set(range(head + 1))


@pytest.mark.parametrize(
    "training",
    [
        {},
        {"keep_optimiser": True},
        {"optimiser": "sgd", "momentum": 0.9, "learning_rate": 0.1, "keep_optimiser": True},
    ],
    ids=["adam", "moments kept", "momentum kept"],
)
def test_old_answers_are_the_same_to_the_bit(training: dict[str, Any]) -> None:
    stream = blobs(tasks=3)
    learner = ec.Learner(ec.networks.mlp(4, [5, 3]), "progressive", **(SMALL | training))
    learner.learn(stream[0])
    x = stream[0].test.inputs()
    first, weights = learner.predict_proba(x, task=0), learner.q.mean.clone()
    learner.learn(stream[1])
    second = learner.predict_proba(x, task=1)
    learner.learn(stream[2])
    assert torch.equal(learner.predict_proba(x, task=0), first)
    assert torch.equal(learner.predict_proba(x, task=1), second)
    now = learner.q.layout.named(learner.q.mean)
    owners = {learner.network.owner(name) for name in now}
    assert owners == {0, 1, 2}
    own = [value.flatten() for name, value in now.items() if learner.network.owner(name) == 0]
    assert torch.equal(torch.cat(own), weights)
    assert learner.evaluate(stream[2]).average_accuracy > 0.6


def test_a_network_of_ones_own_is_saved_and_learns_on(tmp_path: Path) -> None:
    def make() -> ec.MultiHead:
        torch.manual_seed(1)
        return ec.MultiHead(nn.Sequential(nn.Linear(4, 6), nn.Tanh()))

    stream = blobs(tasks=3)
    learner = ec.Learner(make(), "progressive", **SMALL).learn(stream[0]).learn(stream[1])
    again = ec.Learner.load(learner.save(tmp_path / "model"), network=make())
    for one in (learner, again):
        one.learn(stream[2])
    assert torch.equal(learner.q.mean, again.q.mean)


@pytest.mark.parametrize(
    "network",
    [
        nn.Linear(4, 2),
        ec.networks.mlp(4, [5], heads=[2]),
        ec.networks.mlp(4, [5], film=True),
        ec.networks.convnet((1, 8, 8)),
        ec.MultiHead(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))),
    ],
)
def test_a_network_that_does_not_fit_is_refused_in_one_line(network: nn.Module) -> None:
    with pytest.raises(ConversionError, match=r"networks\.mlp") as caught:
        ec.Learner(network, "progressive")
    assert "\n" not in str(caught.value)


def test_tasks_that_share_a_head_are_refused_in_one_line() -> None:
    stream = blobs(tasks=2, scenario="domain")
    learner = ec.Learner(ec.networks.mlp(4, [5]), "progressive", **SMALL).learn(stream[0])
    with pytest.raises(DataError, match="needs a head for every task"):
        learner.learn(stream[1])
