"""The elastic term in function space against arithmetic by hand."""

from dataclasses import replace
from math import log

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import evclplus as ec
from evclplus.core.batches import Batch
from evclplus.core.engine import Terms
from evclplus.core.examples import Examples
from evclplus.core.gaussian import MeanField
from evclplus.core.heads import MultiHead
from evclplus.core.network import BayesianNetwork, Weights
from evclplus.core.noise import new_noise
from evclplus.methods import function_space
from evclplus.methods.elastic import Anchored
from evclplus.methods.function_space import LEAST_OUTPUTS, confirmed, trusted_answers

LAM = 0.6
HEADS = ["linear", "no bias", "deep"]


def head(kind: str) -> nn.Module:
    if kind == "deep":
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    return nn.Linear(3, 2, bias=kind == "linear")


def network_of(body: nn.Module, kind: str = "linear") -> BayesianNetwork:
    return BayesianNetwork(MultiHead(body, [head(kind) for _ in range(3)]).double())


def relu_body() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU())


def examples() -> Examples:
    x = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return Examples(x, torch.arange(5) % 2, outputs=2, head=2)


def held(
    network: BayesianNetwork, previous: MeanField, heads: tuple[int, ...] = (0, 1)
) -> tuple[Anchored, Batch]:
    """What a method keeps while it learns head 2, and a batch of all examples."""
    kept, task = trusted_answers(network, previous, heads, examples())
    memory = Anchored(previous, torch.zeros_like(previous.mean), kept)
    return memory, Batch(task.store, task.labels, 2, 2, answers=task.answers)


def pushed(q: MeanField) -> MeanField:
    push = torch.randn(q.mean.shape, generator=torch.Generator().manual_seed(3)).to(q.mean)
    return replace(q, mean=q.mean + 0.3 * push)


def terms(
    network: BayesianNetwork, q: MeanField | Weights, memory: Anchored, batch: Batch
) -> Terms:
    weights = network.weights(q) if isinstance(q, MeanField) else q
    return ec.EWC(lam_function=LAM).likelihood(weights, memory, batch, network)


def answer(head: dict[str, np.ndarray], hidden: np.ndarray) -> np.ndarray:
    """A head by hand; a deep one has two layers."""
    first, bias = ("0.weight", "0.bias") if "0.weight" in head else ("weight", "bias")
    out = hidden @ head[first].T + head.get(bias, 0.0)
    if "2.weight" in head:
        out = np.tanh(out) @ head["2.weight"].T + head["2.bias"]
    return np.asarray(out)


@pytest.mark.parametrize("kind", HEADS)
def test_the_term_is_the_equation(kind: str) -> None:
    network = network_of(relu_body(), kind)
    previous = network.initial(1e-2)
    q = pushed(previous)
    memory, batch = held(network, previous)
    assert (memory.held.linear is None) == (kind == "deep")
    now, before = (
        {name: value.numpy() for name, value in network.layout.named(one.mean).items()}
        for one in (q, previous)
    )

    def of_head(number: int) -> dict[str, np.ndarray]:
        # Whatever q says of them, the heads are those of before.
        prefix = f"heads.{number}."
        return {name.removeprefix(prefix): v for name, v in before.items() if prefix in name}

    total = 0.0
    for x in batch.x.numpy():
        hidden = [
            np.maximum(x @ body["body.0.weight"].T + body["body.0.bias"], 0)
            for body in (now, before)
        ]
        for number in (0, 1):
            after, earlier = (answer(of_head(number), one) for one in hidden)
            total += ((after - earlier) ** 2).sum()
    expected = LAM / 2 * total / len(batch.x)
    found = terms(network, q, memory, batch)
    assert expected > 0.01
    np.testing.assert_allclose(found["function"], expected, rtol=1e-12)
    plain = terms(network, q, memory, replace(batch, answers=None))
    assert list(plain) == ["nll"]
    torch.testing.assert_close(found["nll"], plain["nll"], rtol=1e-12, atol=0)


@pytest.mark.parametrize("least", [1, 2, 4, 16])
def test_rows_that_fill_a_block_up_change_nothing(
    least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = network_of(relu_body())
    previous = network.initial(1e-2)
    expected = terms(network, pushed(previous), *held(network, previous))
    monkeypatch.setattr(function_space, "LEAST_OUTPUTS", least)
    memory, batch = held(network, previous)
    assert memory.held.linear is not None
    assert batch.answers is not None
    assert len(memory.held.linear[0]) == batch.answers.shape[2] - batch.outputs == max(4, least)
    found = terms(network, pushed(previous), memory, batch)
    assert found.keys() == expected.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-12, atol=0)


def test_a_first_task_holds_nothing_and_costs_nothing() -> None:
    network = network_of(relu_body())
    previous = network.initial(1e-2)
    memory, batch = held(network, previous, ())
    assert batch.answers is not None
    # The same graph serves the next tasks.
    assert batch.answers.shape == (5, 2, batch.outputs + LEAST_OUTPUTS)
    assert terms(network, pushed(previous), memory, batch)["function"] == 0
    for module in (network_of(relu_body(), "deep"), BayesianNetwork(nn.Linear(4, 2).double())):
        memory, batch = held(module, module.initial(1e-2), ())
        assert batch.answers is None
        assert list(terms(module, module.initial(1e-2), memory, batch)) == ["nll"]


@pytest.mark.parametrize("kind", HEADS)
def test_answers_that_stay_cost_nothing_and_samples_cost_their_variance(kind: str) -> None:
    network = network_of(relu_body(), kind)
    previous = network.initial(1e-2)
    memory, batch = held(network, previous)
    assert terms(network, previous, memory, batch)["function"].item() == pytest.approx(0, abs=1e-28)

    def drawn(q: MeanField) -> Tensor:
        noise = new_noise(torch.Generator().manual_seed(0))
        return terms(network, network.weights(q, noise), memory, batch)["function"]

    certain = replace(previous, variance=previous.variance / 400)
    assert drawn(previous) > 100 * drawn(certain) > 0


@pytest.mark.parametrize("kind", HEADS)
def test_only_the_body_answers_for_a_change(kind: str) -> None:
    network = network_of(relu_body(), kind)
    previous = network.initial(1e-2)
    memory, batch = held(network, previous)
    q = pushed(previous)
    mean, variance = (one.clone().requires_grad_() for one in (q.mean, q.variance))
    leaves = MeanField(mean, variance, q.layout)
    noise = new_noise(torch.Generator().manual_seed(0))
    term = terms(network, network.weights(leaves, noise), memory, batch)["function"]
    for gradient in torch.autograd.grad(term, (mean, variance)):
        for name, part in network.layout.named(gradient).items():
            assert bool(part.any()) == name.startswith("body"), name


@pytest.mark.parametrize("kind", HEADS)
def test_what_was_answered_before_does_not_move_with_running_statistics(kind: str) -> None:
    network = network_of(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), kind)
    previous = network.initial(1e-2)
    before = {name: buffer.clone() for name, buffer in network.buffers.items()}
    memory, batch = held(network, previous)
    # Asking for the answers moves nothing, a training pass does.
    assert all(torch.equal(before[name], buffer) for name, buffer in network.buffers.items())
    assert batch.answers is not None
    answers = batch.answers.clone()
    terms(network, previous, memory, batch)
    assert not torch.equal(network.buffers["body.1.running_mean"], torch.zeros(3).double())
    assert torch.equal(batch.answers, answers)
    # They are those of the network as it predicts, before it learned.
    body = previous.layout.named(previous.mean)
    hidden = batch.x @ body["body.0.weight"].T + body["body.0.bias"]
    hidden = hidden / (1 + 1e-5) ** 0.5
    own = [
        answer(
            {
                name.removeprefix(f"heads.{number}."): value.numpy()
                for name, value in body.items()
                if name.startswith(f"heads.{number}.")
            },
            hidden.numpy(),
        )
        for number in (0, 1)
    ]
    before_, trust = answers[:, 0, 2:], answers[:, 1]
    np.testing.assert_allclose(before_[:, :4], np.concatenate(own, 1), rtol=1e-9)
    assert not before_[:, 4:].any()
    # The head that learns is not held, the others are.
    assert not trust[:, :2].any()
    assert bool((trust[:, 2:] == 1).all())


# A head that tasks share


def shared(kind: str) -> BayesianNetwork:
    """One head for all tasks, or a module that knows of no heads."""
    if kind == "no heads":
        return BayesianNetwork(nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)).double())
    last = nn.Sequential(nn.Tanh(), nn.Linear(3, 3)) if kind == "deep" else nn.Linear(3, 3)
    return BayesianNetwork(MultiHead(nn.Linear(4, 3), [last]).double())


@pytest.mark.parametrize("kind", ["linear", "deep", "no heads"])
@pytest.mark.parametrize("seen", [2, 3])
@pytest.mark.parametrize("confirm", [True, False])
@pytest.mark.parametrize("sharers", [1, 4])
def test_a_shared_head_is_held_as_far_as_labels_confirm_it_once_for_each_task(
    kind: str, seen: int, confirm: bool, sharers: int
) -> None:
    network = shared(kind)
    previous = network.initial(1e-2)
    q = pushed(previous)
    y = torch.tensor([0, 1, 2, 1, 0])
    kept, task = trusted_answers(
        network,
        previous,
        (),
        replace(examples(), labels=y, outputs=3, head=0),
        seen,
        sharers,
        confirm,
    )
    memory = Anchored(previous, torch.zeros_like(previous.mean), kept)
    batch = Batch(task.store, y, 0, 3, answers=task.answers)
    now, before = (network(one, batch.x)[:, :seen].numpy() for one in (q, previous))
    total = 0.0
    for x in range(5):
        odds, label = np.exp(before[x]), int(y[x])
        # With two outputs seen, the third class is one that the head did not know.
        r = odds[label] / odds.sum() if confirm and label < seen else 1.0
        total += sharers * r * ((now[x] - before[x]) ** 2).sum()
    found = terms(network, q, memory, batch)
    np.testing.assert_allclose(found["function"], LAM / 2 * total / 5, rtol=1e-12)
    plain = terms(network, q, memory, replace(batch, answers=None))
    torch.testing.assert_close(found["nll"], plain["nll"], rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", ["linear", "deep", "no heads"])
def test_all_weights_answer_for_a_shared_head(kind: str) -> None:
    network = shared(kind)
    previous = network.initial(1e-2)
    q = pushed(previous)
    kept, task = trusted_answers(network, previous, (), replace(examples(), outputs=3, head=0), 3)
    memory = Anchored(previous, torch.zeros_like(previous.mean), kept)
    batch = Batch(task.store, task.labels, 0, 3, answers=task.answers)
    mean = q.mean.clone().requires_grad_()
    term = terms(network, MeanField(mean, q.variance, q.layout), memory, batch)["function"]
    (gradient,) = torch.autograd.grad(term, mean)
    assert all(bool(part.any()) for part in network.layout.named(gradient).values())


def test_a_label_confirms_an_answer_by_the_probability_it_was_given() -> None:
    answers = torch.tensor([[0.0, log(3.0)], [0.0, log(3.0)], [50.0, -50.0], [0.0, 0.0]])
    found = confirmed(answers, torch.tensor([0, 1, 1, 2]))
    torch.testing.assert_close(found, torch.tensor([0.25, 0.75, 0.0, 1.0]))


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("layer", [nn.BatchNorm1d(3), nn.Dropout(0.5)])
def test_nothing_pulls_before_anything_has_changed(layer: nn.Module, kind: str) -> None:
    """Also where a network computes otherwise while it learns."""
    network = network_of(nn.Sequential(nn.Linear(4, 3), layer), kind)
    previous = network.initial(1e-2)
    memory, batch = held(network, previous)
    assert terms(network.copy(), previous, memory, batch)["function"] < 1e-20
    moved = terms(network.copy(), pushed(previous), memory, batch)
    assert moved["function"] > 1e-3
    plain = network.copy()(pushed(previous), batch.x, 2, training=True)
    if isinstance(layer, nn.BatchNorm1d):  # the likelihood is still that of a training pass
        torch.testing.assert_close(moved["nll"], batch.nll(plain))
