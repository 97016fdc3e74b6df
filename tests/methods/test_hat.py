"""HAT: its gates and their gradient, what is held, and that a full mask freezes the body."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import evclplus as ec
from evclplus.core.batches import Source, steps_of_epoch
from evclplus.core.gates import Gated, gate
from evclplus.errors import ConversionError, DataError
from evclplus.methods.hat import Masks, annealed, freedom, share_of_new
from tests.helpers import begun, blobs

SMALL: dict[str, Any] = {"epochs": 10, "batch_size": 10}


def after_first(method: ec.Method, **settings: Any) -> tuple[ec.Learner, ec.Stream]:
    stream = blobs(tasks=2)
    learner = ec.Learner(ec.networks.mlp(4, [8, 6]), method, **(SMALL | settings))
    return learner.learn(stream[0]), stream


def body(learner: ec.Learner) -> Tensor:
    named = learner.network.layout.named(learner.q.mean)
    return torch.cat([value.flatten() for name, value in named.items() if name[:5] == "body."])


@pytest.mark.parametrize("s", [0.01, 1.0, 7.0])
def test_the_gradient_of_a_gate_is_the_papers(s: float) -> None:
    """Equation 5: that of sigmoid(s e), times (s_max / s) (cosh(s e) + 1) / (cosh(e) + 1)."""
    e = torch.linspace(-2, 2, 21, dtype=torch.float64).requires_grad_()
    found = gate(e, torch.tensor(s), 50.0)
    plain = (s * e).sigmoid()
    torch.testing.assert_close(found, plain)
    (expected,) = torch.autograd.grad(plain.sum(), e)
    factor = 50.0 / s * ((s * e).cosh() + 1) / (e.cosh() + 1)
    torch.testing.assert_close(torch.autograd.grad(found.sum(), e)[0], factor * expected)


def test_gates_become_hard_within_each_epoch() -> None:
    assert annealed(0.0, 400.0) == 1 / 400
    assert annealed(1.0, 400.0) == 400.0
    assert annealed(0.5, 2.0) == pytest.approx((0.5 + 2.0) / 2)
    source = Source((blobs()[0].train,))
    for _ in range(2):
        steps = steps_of_epoch((source,), 10, torch.Generator().manual_seed(0))
        done = [batch.done for (batch,) in steps]
        assert done == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_the_equation() -> None:
    torch.manual_seed(0)
    module = Gated(ec.networks.mlp(4, [5, 3]), 3.0)
    module.grow(0, 2, 3)
    module.grow(1, 2, 3)
    weights, x = dict(module.named_parameters()), torch.randn(7, 4)
    for head in (0, 1):
        h = (x @ weights["body.1.weight"].T + weights["body.1.bias"]).relu()
        h = h * (3.0 * weights[f"gates.{head}.0"]).sigmoid()
        h = (h @ weights["body.3.weight"].T + weights["body.3.bias"]).relu()
        h = h * (3.0 * weights[f"gates.{head}.1"]).sigmoid()
        expected = h @ weights[f"heads.{head}.weight"].T + weights[f"heads.{head}.bias"]
        torch.testing.assert_close(module(x, head), expected)


def test_what_units_cost() -> None:
    gates = [torch.tensor([1.0, 0.5]), torch.tensor([0.0, 1.0, 1.0])]
    torch.testing.assert_close(share_of_new(gates, ()), torch.tensor(3.5 / 5))
    largest = (torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5, 1.0]))
    torch.testing.assert_close(share_of_new(gates, largest), torch.tensor((0.5 + 0.5) / 2))


def test_how_much_of_a_step_each_weight_makes() -> None:
    learner, stream = after_first(ec.HAT())
    lesson, _ = begun(learner, stream[1])
    largest = (torch.linspace(0, 1, 8), torch.linspace(1, 0.2, 6))
    found = lesson.network.layout.named(freedom(lesson.network, largest, head=1).part)
    for i in range(8):
        assert found["body.1.bias"][i] == 1 - largest[0][i]
        assert (found["body.1.weight"][i] == 1 - largest[0][i]).all()
    for i in range(6):
        assert found["body.3.bias"][i] == 1 - largest[1][i]
        for j in range(8):
            assert found["body.3.weight"][i, j] == 1 - min(largest[1][i], largest[0][j])
    for name, value in found.items():
        if lesson.network.owner(name) is not None:
            assert (value == float(lesson.network.owner(name) == 1)).all()


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_a_full_mask_freezes_the_body(optimiser: str) -> None:
    learner, stream = after_first(ec.HAT(), optimiser=optimiser, keep_optimiser=True)
    learner.memory = Masks((torch.ones(8), torch.ones(6)))
    before, first = body(learner).clone(), learner.predict_proba(stream[0].test.inputs(), task=0)
    learner.learn(stream[1])
    assert torch.equal(body(learner), before)
    assert torch.equal(learner.predict_proba(stream[0].test.inputs(), task=0), first)
    # The new task's own weights did learn, and an empty mask holds nothing.
    free, _ = after_first(ec.HAT(), optimiser=optimiser)
    free.memory = Masks((torch.zeros(8), torch.zeros(6)))
    assert not torch.equal(body(free.learn(stream[1])), before)


def test_the_masks_are_the_largest_gates_of_all_tasks() -> None:
    learner, stream = after_first(ec.HAT(s_max=5.0))
    named = learner.network.layout.named(learner.q.mean)
    for layer, mask in enumerate(learner.memory.largest):
        torch.testing.assert_close(mask, (5.0 * named[f"gates.0.{layer}"]).sigmoid())
    learner.learn(stream[1])
    named = learner.network.layout.named(learner.q.mean)
    for layer, mask in enumerate(learner.memory.largest):
        both = [(5.0 * named[f"gates.{head}.{layer}"]).sigmoid() for head in (0, 1)]
        torch.testing.assert_close(mask, torch.maximum(*both))
    assert learner.memory.free is None


def test_embeddings_stay_within_bounds() -> None:
    learner, _ = after_first(ec.HAT(c=0.0), learning_rate=20.0, epochs=3)
    named = learner.network.layout.named(learner.q.mean)
    gates = torch.cat([value for name, value in named.items() if name[:6] == "gates."])
    assert gates.abs().max() <= 6.0
    assert (gates.abs() > 5.9).any()


def test_old_tasks_are_hardly_forgotten_and_units_are_shared_out() -> None:
    learner, stream = after_first(ec.HAT(c=0.05, s_max=50.0), epochs=60)
    before = learner.evaluate(stream[0]).average_accuracy
    x = stream[0].test.inputs()
    first = learner.predict_proba(x, task=0)
    learner.learn(stream[1])
    assert before > 0.9
    assert learner.evaluate(stream[1]).average_accuracy > 0.9
    torch.testing.assert_close(learner.predict_proba(x, task=0), first, rtol=0, atol=0.01)


def test_a_price_closes_gates() -> None:
    open_gates = []
    for c in (0.0, 10.0):
        learner, _ = after_first(ec.HAT(c=c), epochs=40)
        open_gates.append(sum(float(mask.sum()) for mask in learner.memory.largest))
    assert open_gates[1] < open_gates[0]


def test_what_does_not_fit_is_refused_in_one_line() -> None:
    for network in (nn.Linear(4, 2), ec.networks.convnet((1, 8, 8)), ec.networks.mlp(4, [3], [2])):
        with pytest.raises(ConversionError, match=r"networks\.mlp") as caught:
            ec.Learner(network, "hat")
        assert "\n" not in str(caught.value)
    stream = blobs(tasks=2, scenario="domain")
    learner = ec.Learner(ec.networks.mlp(4, [5]), "hat", **SMALL).learn(stream[0])
    with pytest.raises(DataError, match="needs a head for every task"):
        learner.learn(stream[1])


def test_a_compiled_step_that_asks_where_it_is_fails_instead_of_guessing() -> None:
    learner, stream = after_first(ec.HAT())
    lesson, start = begun(learner, stream[1])
    ((batch,), *_) = steps_of_epoch(start.sources, 10, torch.Generator().manual_seed(0))
    weights = lesson.network.weights(start.q)
    with pytest.raises(TypeError):
        learner.method.likelihood(
            weights,
            start.memory,
            replace(batch, done=None),  # type: ignore[arg-type]
            lesson.network,
        )
