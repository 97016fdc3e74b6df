"""Walking over memories of any type."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from evclplus.core import tree
from evclplus.core.examples import Examples
from evclplus.core.gaussian import Layout, MeanField
from evclplus.core.tree import per_weight

OLD = Layout(("body", "head", "tail"), ((2,), (2, 3), (1,)), gaussian_names=2)
NEW = Layout(("body", "head", "more", "tail"), ((2,), (4, 3), (5,), (1,)), gaussian_names=3)


@dataclass(frozen=True)
class Inner:
    weight: Tensor
    name: str = "inner"
    nothing: Tensor | None = None


@dataclass(frozen=True)
class Kept:
    """Everything that a memory may be made of."""

    prior: MeanField
    importance: Tensor = per_weight()
    parts: tuple[Inner, ...] = ()
    running: dict[str, Tensor] = field(default_factory=dict)
    count: int = 0
    kind: type = Inner


def kept() -> Kept:
    prior = MeanField(torch.arange(9.0), torch.arange(8.0) + 100, OLD)
    parts = (Inner(torch.ones(2)), Inner(torch.zeros(3), "second"))
    return Kept(prior, torch.arange(9.0) + 1, parts, {"path": torch.ones(1)}, 7)


def test_every_tensor_has_a_path() -> None:
    value = kept()
    found = dict(tree.tensors(value))
    assert list(found) == [
        *("prior.mean", "prior.variance", "importance"),
        *("parts.0.weight", "parts.1.weight", "running.path"),
    ]
    assert found["prior.variance"] is value.prior.variance
    assert found["parts.1.weight"] is value.parts[1].weight
    assert dict(tree.tensors(value.importance, "alone")) == {"alone": value.importance}
    assert not list(tree.tensors(Inner))  # a type has fields but no values
    assert not list(tree.tensors("text"))


def test_replaced_walks_in_the_same_order_and_leaves_the_rest() -> None:
    value = kept()
    others = [
        torch.full_like(tensor, number) for number, (_, tensor) in enumerate(tree.tensors(value))
    ]
    given = iter(others)
    found = tree.replaced(value, lambda _: next(given))
    assert [id(tensor) for _, tensor in tree.tensors(found)] == [id(other) for other in others]
    assert isinstance(found, Kept)
    assert isinstance(found.prior, MeanField)
    assert (found.count, found.kind, found.parts[1].name) == (7, Inner, "second")
    assert found.parts[0].nothing is None
    assert found.prior.layout is value.prior.layout
    assert torch.equal(value.parts[0].weight, torch.ones(2))


def test_grown_begins_gaussians_at_the_start_and_other_numbers_at_zero() -> None:
    value = kept()
    start = MeanField(torch.full((20,), -1.0), torch.full((19,), -2.0), NEW)
    found = tree.grown(value, OLD, start)
    assert found.prior.layout is NEW
    mean, variance = NEW.named(found.prior.mean), NEW.named(found.prior.variance)
    importance = NEW.named(found.importance)
    old = OLD.named(value.prior.mean)
    for now, before, fresh in (
        (mean, old, -1.0),
        (variance, OLD.named(value.prior.variance), -2.0),
        (importance, OLD.named(value.importance), 0.0),
    ):
        assert torch.equal(now["body"], before["body"])
        assert torch.equal(now["head"][:2], before["head"])
        assert torch.equal(now["head"][2:], torch.full((2, 3), fresh))
        assert torch.equal(now["more"], torch.full((5,), fresh))
    assert torch.equal(mean["tail"], old["tail"])
    # What has no place in a layout stays as it is, also if it happens to be as long.
    assert found.parts[0].weight is value.parts[0].weight
    assert found.running is value.running
    assert found.count == 7


def test_grown_reaches_memories_inside_memories() -> None:
    @dataclass(frozen=True)
    class Wrapped:
        inner: Any
        stored: tuple[Examples, ...] = ()

    stored = (Examples(torch.zeros(9, 1), torch.zeros(9, dtype=torch.long), 2),)
    start = MeanField(torch.zeros(20), torch.ones(19), NEW)
    found = tree.grown(Wrapped(kept(), stored), OLD, start)
    assert len(found.inner.importance) == 20
    assert found.stored[0].store is stored[0].store
    assert found.stored[0].outputs == 2
