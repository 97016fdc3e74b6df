import torch
from torch import nn

from evclplus.core.heads import MultiHead, new_weights, shared_weights
from evclplus.core.network import BayesianNetwork


def named(network: BayesianNetwork, mask: torch.Tensor) -> dict[str, list[bool]]:
    return {name: part.flatten().tolist() for name, part in network.layout.named(mask).items()}


def test_a_head_is_the_only_one_used() -> None:
    module = MultiHead(nn.Linear(3, 2), [nn.Linear(2, 2), nn.Linear(2, 4)])
    x = torch.ones(1, 3)
    assert torch.equal(module(x, 1), module.heads[1](module.body(x)))


def test_with_a_head_per_task_the_body_comes_first_and_each_head_with_its_task() -> None:
    module = MultiHead(nn.Linear(3, 2), [nn.Linear(2, 2), nn.Linear(2, 2)])
    network = BayesianNetwork(module)
    first = named(network, new_weights(module, network.layout, 0, {}, 2))
    second = named(network, new_weights(module, network.layout, 1, {0: 2}, 2))
    for name in network.layout.names:
        assert all(first[name]) == (not name.startswith("heads.1"))
        assert all(second[name]) == name.startswith("heads.1")
        assert any(second[name]) == name.startswith("heads.1")
    shared = named(network, shared_weights(module, network.layout))
    assert all(all(shared[n]) == n.startswith("body") for n in network.layout.names)


def test_a_growing_head_brings_its_rows_with_their_classes() -> None:
    module = MultiHead(nn.Linear(3, 2), [nn.Linear(2, 4)])
    network = BayesianNetwork(module)
    second = named(network, new_weights(module, network.layout, 0, {0: 2}, 4))
    assert second["heads.0.bias"] == [False, False, True, True]
    assert second["heads.0.weight"] == [False] * 4 + [True] * 4
    assert not any(second["body.weight"])
    assert shared_weights(module, network.layout).all()


def test_a_module_of_another_kind_is_used_whole_from_the_first_task() -> None:
    module = nn.Linear(3, 4)
    network = BayesianNetwork(module)
    assert new_weights(module, network.layout, 0, {}, 2).all()
    assert not new_weights(module, network.layout, 0, {0: 2}, 4).any()
