"""UCL: its three terms against loops over units written from the paper."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import evclplus as ec
from evclplus.core.network import BayesianNetwork, Weights
from evclplus.errors import ConversionError
from evclplus.methods.ucl import layers_before, of_inputs, with_unit_variances
from tests.helpers import begun, blobs, moved

SMALL: dict[str, Any] = {"epochs": 6, "batch_size": 20, "learning_rate": 1e-2}
EXAMPLES = torch.tensor(40.0)


def second_task(method: ec.UCL) -> tuple[ec.Learner, Any, Any]:
    stream = blobs(tasks=2)
    learner = ec.Learner(ec.networks.mlp(4, [5, 3]), method, **SMALL).learn(stream[0])
    lesson, start = begun(learner, stream[1])
    return learner, lesson, start


def converted(module: nn.Module) -> BayesianNetwork:
    return BayesianNetwork(module, point=lambda name: not ec.UCL().has_variance(name))


def terms_by_hand(method: ec.UCL, lesson: Any, q: ec.MeanField) -> dict[str, Tensor]:
    """Unit by unit, for the body; the head of the second task is new."""
    layout, prior = q.layout, lesson.memory.prior
    mean, old = layout.named(q.mean), layout.named(prior.mean)
    s, p = layout.named(q.variance), layout.named(prior.variance)
    found = {name: torch.zeros(()) for name in ("squared", "absolute", "variance")}
    below = [0.0] * 4  # inputs are no units, and hold nothing
    for path in ("body.1", "body.3"):
        weight, above = f"{path}.weight", []
        first = 2 * method.ratio / mean[weight].shape[1]
        for unit in range(len(mean[weight])):
            certainty = first / p[weight][unit, 0]
            above.append(float(certainty))
            for source in range(len(below)):
                strength = max(float(certainty), below[source])
                distance = mean[weight][unit, source] - old[weight][unit, source]
                found["squared"] = found["squared"] + 0.5 * strength * distance**2
                pull = first * old[weight][unit, source] ** 2 / p[weight][unit, 0]
                found["absolute"] = found["absolute"] + pull * distance.abs()
            distance = mean[f"{path}.bias"][unit] - old[f"{path}.bias"][unit]
            found["squared"] = found["squared"] + 0.5 * certainty * distance**2
            pull = certainty * old[f"{path}.bias"][unit] ** 2
            found["absolute"] = found["absolute"] + pull * distance.abs()
            ratio = s[weight][unit, 0] / p[weight][unit, 0]
            free = s[weight][unit, 0] - s[weight][unit, 0].log()
            found["variance"] = found["variance"] + method.b / 2 * (ratio - ratio.log() + free)
        below = above
    for name in ("weight", "bias"):
        distance = mean[f"heads.1.{name}"] - old[f"heads.1.{name}"]
        found["squared"] = found["squared"] + 0.5 * method.alpha * distance.square().sum()
    for unit in range(2):
        own = s["heads.1.weight"][unit, 0]
        ratio = own / p["heads.1.weight"][unit, 0]
        terms = ratio - ratio.log() + own - own.log()
        found["variance"] = found["variance"] + method.b / 2 * terms
    return {name: value / method.per for name, value in found.items()}


def pushed(q: ec.MeanField) -> ec.MeanField:
    """Means moved one by one, variances unit by unit."""
    mean = moved(q).mean.detach()
    variance = q.variance.clone()
    for part in q.layout.named(variance).values():
        part *= torch.linspace(0.5, 2, len(part))[:, None]
    return ec.MeanField(mean, variance, q.layout)


def test_the_three_terms() -> None:
    method = ec.UCL(per=7)
    _, lesson, start = second_task(method)
    q = pushed(lesson.q)
    found = method.regulariser(q, start.memory, EXAMPLES)
    expected = terms_by_hand(method, lesson, q)
    assert found.keys() == expected.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-6)
        assert value.abs() > 0


def test_where_nothing_was_learned_the_strength_is_one() -> None:
    method = ec.UCL()
    network = converted(ec.networks.mlp(4, [5, 3], heads=[2]))
    q = method.initial(network)
    hold = method.hold(network, q, torch.zeros_like(q.mean, dtype=torch.bool), head=0)
    torch.testing.assert_close(hold.squared, torch.ones_like(q.mean))
    torch.testing.assert_close(hold.absolute, q.mean.square())


def test_new_weights_are_held_to_their_first_values_a_little() -> None:
    method, stream = ec.UCL(alpha=0.2), blobs()
    _, start = begun(ec.Learner(ec.networks.mlp(4, [5]), method, **SMALL), stream[0])
    hold = start.memory.hold
    assert torch.equal(hold.squared, torch.full_like(hold.squared, 0.2))
    assert not hold.absolute.any()


def test_a_unit_has_one_variance_before_and_after_training() -> None:
    stream = blobs(tasks=3)
    learner = ec.Learner(ec.networks.mlp(4, [5, 3]), ec.UCL(), **SMALL)
    first = learner.q.layout.named(learner.q.variance)
    assert set(first) == {"body.1.weight", "body.3.weight"}
    torch.testing.assert_close(first["body.1.weight"], torch.full((5, 4), 0.5 * 2 / 4))
    for task in stream:
        learner.learn(task)
    for variance in learner.q.layout.named(learner.q.variance).values():
        assert torch.equal(variance, variance[:, :1].expand_as(variance))
        assert len(variance[:, 0].unique()) == len(variance)


def test_the_gradient_of_a_unit_is_the_sum_over_its_weights() -> None:
    """Shared in the likelihood too: each weight gets its part of the unit's gradient."""
    variance = torch.rand(5, 4).requires_grad_()
    weights = with_unit_variances(Weights({}, {"weight": variance}))
    factor = torch.randn(5, 4)
    (weights.variances["weight"] * factor).sum().backward()
    assert variance.grad is not None
    torch.testing.assert_close(variance.grad, (factor.sum(1, keepdim=True) / 4).expand(5, 4))


def test_the_head_of_another_task_is_left_alone() -> None:
    learner, lesson, start = second_task(ec.UCL())
    for one in (start.memory.hold.squared, start.memory.hold.absolute, start.memory.hold.part):
        named = lesson.network.layout.named(one)
        assert not named["heads.0.weight"].any()
        assert not named["heads.0.bias"].any()
    before = learner.q.layout.named(learner.q.variance)["heads.0.weight"].clone()
    learner.learn(blobs(tasks=2)[1])
    assert torch.equal(learner.q.layout.named(learner.q.variance)["heads.0.weight"], before)
    assert learner.memory.hold is None


def test_the_layer_that_a_layer_reads() -> None:
    network = converted(ec.networks.convnet((1, 8, 8), [2, 3], heads=[2, 2]))
    assert layers_before(network) == {
        "body.3.weight": "body.0.weight",
        "heads.0.weight": "body.3.weight",
        "heads.1.weight": "body.3.weight",
    }
    # Three channels of two by two positions, flattened channel by channel.
    found = of_inputs(torch.tensor([1.0, 2.0, 3.0]), torch.zeros(2, 12))
    assert found[1].tolist() == [1.0] * 4 + [2.0] * 4 + [3.0] * 4
    assert of_inputs(torch.tensor([1.0, 2.0]), torch.zeros(3, 2, 3, 3))[2, 1].unique() == 2.0


def test_certain_units_are_held() -> None:
    drift = []
    for per in (256, 1):
        learner, lesson, _ = second_task(ec.UCL(per=per))
        before = lesson.q.mean[: 4 * 5]
        drift.append((learner.learn(blobs(tasks=2)[1]).q.mean[: 4 * 5] - before).norm())
    assert drift[0] > drift[1]


def test_a_network_with_weights_that_are_no_layers_is_refused_in_one_line() -> None:
    with pytest.raises(ConversionError, match=r"1\.weight is no layer's") as caught:
        ec.Learner(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), "ucl")
    assert "\n" not in str(caught.value)
