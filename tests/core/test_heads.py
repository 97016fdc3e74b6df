import pytest
import torch
from torch import nn

from evclplus import networks
from evclplus.core.heads import MultiHead, new_weights
from evclplus.core.network import BayesianNetwork


def named(network: BayesianNetwork, mask: torch.Tensor) -> dict[str, list[bool]]:
    return {name: part.flatten().tolist() for name, part in network.layout.named(mask).items()}


def new(
    network: BayesianNetwork, head: int, seen: dict[int, int], outputs: int, grows: bool
) -> dict[str, list[bool]]:
    weights = (network.owner, network.layout, network.names_for(head))
    marks = new_weights(*weights, head, seen, outputs, lambda name: grows)
    return named(network, marks)


def two_heads() -> MultiHead:
    return MultiHead(nn.Linear(3, 2), [nn.Linear(2, 2), nn.Linear(2, 4)])


def test_a_head_is_the_only_one_used() -> None:
    module, x = two_heads(), torch.ones(1, 3)
    assert torch.equal(module(x, 1), module.heads[1](module.body(x)))


def test_several_heads_answer_side_by_side_and_held_ones_last() -> None:
    module, x = two_heads(), torch.randn(5, 3)
    features = module.body(x)
    first, second = module.heads[0](features), module.heads[1](features)
    assert torch.equal(module(x, (1, 0)), torch.cat([second, first], 1))
    assert torch.equal(module(x, ()), features)
    held = torch.randn(3, 2), torch.randn(3)
    answers = features @ held[0].T + held[1]
    torch.testing.assert_close(module(x, 0, held), torch.cat([first, answers], 1))
    torch.testing.assert_close(module(x, (), held), answers)


def test_the_owner_of_a_weight_is_its_head_or_nobody() -> None:
    module = MultiHead(nn.Linear(3, 2), [nn.Sequential(nn.Linear(2, 2)) for _ in range(12)])
    assert module.owner("heads.0.0.weight") == 0
    assert module.owner("heads.11.0.bias") == 11
    assert module.owner("body.weight") is None
    network = BayesianNetwork(module)
    assert network.owner("heads.11.0.bias") == 11
    assert BayesianNetwork(nn.Linear(3, 2)).owner("weight") is None
    names = network.names_for(1)
    assert names == ["body.weight", "body.bias", "heads.1.0.weight", "heads.1.0.bias"]


def test_a_module_of_ones_own_may_say_who_owns_a_weight() -> None:
    class Own(nn.Linear):
        def owner(self, name: str) -> int | None:
            return 0 if name == "bias" else None

    network = BayesianNetwork(Own(3, 2))
    assert [network.owner(name) for name in network.layout.names] == [None, 0]


def test_a_head_comes_when_a_task_needs_it() -> None:
    module = MultiHead(nn.Linear(3, 2))
    for head, outputs in enumerate((2, 5)):
        module.grow(head, outputs, features=2)
        assert module(torch.ones(1, 3), head).shape == (1, outputs)

    def own(features: int, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Linear(features, 7), nn.Tanh(), nn.Linear(7, outputs))

    module = MultiHead(nn.Linear(3, 2), new_head=own)
    module.grow(0, 4, features=2)
    assert len(module.heads[0]) == 3  # type: ignore[arg-type]


def test_a_linear_head_becomes_wider_and_keeps_its_rows() -> None:
    module, x = two_heads(), torch.randn(4, 3)
    before = module(x, 0)
    module.grow(0, 5, features=2)
    assert torch.equal(module(x, 0)[:, :2], before)
    assert module(x, 0).shape == (4, 5)
    assert module(x, 0)[:, 2:].abs().min() > 0
    with pytest.raises(AssertionError, match="only a linear head"):
        MultiHead(nn.Linear(3, 2), [nn.Sequential(nn.Linear(2, 2))]).grow(0, 3, features=2)


@pytest.mark.parametrize(("head", "outputs"), [(1, 3), (0, 5)])
def test_a_network_grows_into_a_copy_that_follows_the_seed(head: int, outputs: int) -> None:
    network = BayesianNetwork(networks.mlp(3, [4], heads=[2]))
    first, again, other = (network.grown(head, outputs, 4, seed) for seed in (1, 1, 2))
    assert network.heads == 1
    assert network.layout.total == 4 * 4 + 5 * 2
    mean = first.initial(1.0).mean
    assert torch.equal(mean, again.initial(1.0).mean)
    assert not torch.equal(mean, other.initial(1.0).mean)
    old, now = network.layout.named(network.initial(1.0).mean), first.layout.named(mean)
    for name, value in old.items():
        assert torch.equal(now[name][: len(value)], value)
    assert now[f"heads.{head}.weight"].shape == (outputs, 4)
    assert first.growth == ((head, outputs, 4),)
    x = torch.randn(2, 3)
    assert torch.equal(first(first.initial(1.0), x, 0)[:, :2], network(network.initial(1.0), x, 0))
    assert f"heads.{head}" in first.local_layers


def test_growing_draws_nothing_from_the_global_state() -> None:
    network = BayesianNetwork(networks.mlp(3, [4]))
    state = torch.get_rng_state()
    network.grown(0, 2, network.features(torch.ones(2, 3)), seed=1)
    assert torch.equal(torch.get_rng_state(), state)


def test_with_a_head_per_task_the_body_comes_first_and_each_head_with_its_task() -> None:
    network = BayesianNetwork(MultiHead(nn.Linear(3, 2), [nn.Linear(2, 2), nn.Linear(2, 2)]))
    first = new(network, 0, {}, 2, grows=True)
    second = new(network, 1, {0: 2}, 2, grows=True)
    for name in network.layout.names:
        assert all(first[name]) == (not name.startswith("heads.1"))
        assert all(second[name]) == name.startswith("heads.1")
        assert any(second[name]) == name.startswith("heads.1")


def test_a_growing_head_brings_its_rows_with_their_classes() -> None:
    network = BayesianNetwork(MultiHead(nn.Linear(3, 2), [nn.Linear(2, 6)]))
    first = new(network, 0, {}, 2, grows=True)
    assert first["heads.0.bias"] == [True] * 2 + [False] * 4
    assert all(first["body.weight"])
    second = new(network, 0, {0: 2}, 4, grows=True)
    assert second["heads.0.bias"] == [False, False, True, True, False, False]
    assert second["heads.0.weight"] == [False] * 4 + [True] * 4 + [False] * 4
    assert not any(second["body.weight"])


@pytest.mark.parametrize("grows", [False, True])
def test_outputs_that_were_seen_before_are_not_new(grows: bool) -> None:
    """A second task of the same head and the same classes brings no weight."""
    network = BayesianNetwork(two_heads())
    again = new(network, 1, {0: 2, 1: 4}, 4, grows)
    assert not any(any(marks) for marks in again.values())


def test_a_head_that_does_not_grow_comes_as_a_whole() -> None:
    heads = [nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 4))]
    network = BayesianNetwork(MultiHead(nn.Linear(3, 2), heads))
    assert all(all(marks) for marks in new(network, 0, {}, 2, grows=False).values())
    assert not any(any(marks) for marks in new(network, 0, {0: 2}, 4, grows=False).values())


def test_a_module_of_another_kind_is_used_whole_from_the_first_task() -> None:
    network = BayesianNetwork(nn.Linear(3, 4))
    assert all(all(marks) for marks in new(network, 0, {}, 2, grows=False).values())
    assert not any(any(marks) for marks in new(network, 0, {0: 2}, 4, grows=False).values())
