"""A body that is told its task: its equation, whose the numbers are, and what they change."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import evclplus as ec
from evclplus.core.compiled import _description
from evclplus.core.engine import Problem, State, StepGradient, likelihood_gradient
from evclplus.core.film import FiLM
from evclplus.core.network import BayesianNetwork
from evclplus.core.noise import new_seeds
from evclplus.errors import ConversionError
from evclplus.methods.base import Nothing
from tests.helpers import begun, blobs, first_batch

TRAINING: dict[str, Any] = {"epochs": 8, "batch_size": 20, "learning_rate": 1e-2}


def modulated_by_hand(module: ec.MultiHead, x: Tensor, head: int) -> Tensor:
    """A network of two layers written out."""
    assert module.films is not None
    films: Any = module.films[head]
    first, second = films
    body: Any = module.body
    one, two, last = body[1], body[3], module.heads[head]
    h = (first.scale * (x @ one.weight.T + one.bias) + first.shift).relu()
    h = (second.scale * (h @ two.weight.T + two.bias) + second.shift).relu()
    return F.linear(h, last.weight, last.bias)  # type: ignore[arg-type]


def set_films(module: ec.MultiHead, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for name, value in module.named_parameters():
        if name.startswith("films."):
            value.data += torch.randn(value.shape, generator=generator)


def test_the_equation() -> None:
    module, x = ec.networks.mlp(4, [5, 6], heads=[2, 3], film=True), torch.randn(7, 4)
    set_films(module)
    for head in (0, 1):
        torch.testing.assert_close(module(x, head), modulated_by_hand(module, x, head))
    both = torch.cat([module(x, 1), module(x, 0)], 1)
    torch.testing.assert_close(module(x, (1, 0)), both)


def test_at_the_start_nothing_is_changed() -> None:
    x = torch.randn(7, 4)
    told, plain = (ec.networks.mlp(4, [5, 6], heads=[2], film=film) for film in (True, False))
    assert torch.equal(told(x), plain(x))
    assert torch.equal(plain.with_film()(x), plain(x))
    assert plain.films is None


def test_a_channel_has_one_scale_and_one_shift() -> None:
    film, h = FiLM(3, 2), torch.randn(2, 3, 4, 5)
    film.scale.data = torch.tensor([2.0, 1.0, -1.0])
    film.shift.data = torch.tensor([0.0, 5.0, 1.0])
    torch.testing.assert_close(film(h)[:, 0], 2 * h[:, 0])
    torch.testing.assert_close(film(h)[:, 1], h[:, 1] + 5)
    torch.testing.assert_close(film(h)[:, 2], 1 - h[:, 2])
    network = ec.networks.convnet((1, 8, 8), [2, 3], heads=[2], film=True)
    assert network(torch.randn(2, 1, 8, 8)).shape == (2, 2)


def test_they_belong_to_their_task_are_point_values_and_come_with_it() -> None:
    network = BayesianNetwork(ec.networks.mlp(4, [5], heads=[2], film=True))
    network = network.grown(1, 2, 5, seed=0)
    own = [name for name in network.layout.names if network.owner(name) == 1]
    assert own == ["heads.1.weight", "heads.1.bias", "films.1.0.scale", "films.1.0.shift"]
    assert network.layout.names[network.layout.gaussian_names :] == (
        *("films.0.0.scale", "films.0.0.shift"),
        *("films.1.0.scale", "films.1.0.shift"),
    )
    assert not set(own) & set(network.names_for(0))


def test_all_units_are_new_with_their_task_however_few_outputs_it_has() -> None:
    stream = blobs(tasks=2)
    learner = ec.Learner(ec.networks.mlp(4, [8], film=True), "vcl", **TRAINING)
    lesson, _ = begun(learner.learn(stream[0]), stream[1])
    marks = lesson.network.layout.named(lesson.new())
    for name, mark in marks.items():
        assert bool(mark.all()) == bool(mark.any()) == (lesson.network.owner(name) == 1)


@pytest.mark.parametrize("method", ["gvcl", "evcl+", "ewc", "si", "er", "mas"])
def test_any_method_learns_with_it_and_old_scales_stay(method: str) -> None:
    stream = blobs(tasks=3)
    learner = ec.Learner(ec.networks.mlp(4, [8], film=True), method, **TRAINING)
    learner.learn(stream[0])
    before = {name: value.clone() for name, value in films(learner).items()}
    assert len(before) == 2
    assert not torch.equal(before["films.0.0.scale"], torch.ones(8))
    learner.learn(stream[1]).learn(stream[2])
    now = films(learner)
    assert len(now) == 6
    if method != "er":  # replays the first task
        assert all(torch.equal(now[name], value) for name, value in before.items())
    assert learner.evaluate(stream[2]).average_accuracy > 0.9


def films(learner: ec.Learner) -> dict[str, Tensor]:
    named = learner.network.layout.named(learner.q.mean)
    return {name: value for name, value in named.items() if name.startswith("films.")}


def test_a_scale_moves_only_what_its_own_task_answers() -> None:
    stream = blobs(tasks=2)
    learner = ec.Learner(ec.networks.mlp(4, [8], film=True), "finetune", **TRAINING)
    learner.learn(stream[0]).learn(stream[1])
    x = stream[0].test.inputs()
    before = [learner.predict_proba(x, task=task) for task in (0, 1)]
    films(learner)["films.1.0.scale"][3] += 1
    learner._answers = learner._new_answers()
    assert torch.equal(learner.predict_proba(x, task=0), before[0])
    assert not torch.equal(learner.predict_proba(x, task=1), before[1])


@pytest.mark.parametrize("network", ["ready", "own"])
def test_a_saved_learner_learns_a_further_task(tmp_path: Path, network: str) -> None:
    def make() -> ec.MultiHead:
        if network == "ready":
            return ec.networks.mlp(4, [8], film=True)
        torch.manual_seed(0)
        return ec.MultiHead(nn.Sequential(nn.Linear(4, 8), nn.Tanh()), film=True)

    stream = blobs(tasks=3)
    learner = ec.Learner(make(), "vcl", **TRAINING)
    learner.learn(stream[0]).learn(stream[1])
    path = learner.save(tmp_path / "model")
    again = ec.Learner.load(path, network=None if network == "ready" else make())
    for one in (learner, again):
        one.learn(stream[2])
    assert torch.equal(learner.q.mean, again.q.mean)
    assert torch.equal(learner.q.variance, again.q.variance)


def test_the_gradient_in_a_scale_is_that_of_a_difference() -> None:
    module = ec.networks.mlp(4, [5, 6], heads=[2, 2], film=True).double()
    set_films(module)
    network = BayesianNetwork(module, point=lambda name: True)
    batch = first_batch(blobs(tasks=2)[1])
    batch = replace(batch, x=batch.x.double())
    q = network.initial(1.0)
    problem = Problem(network, ec.FineTune(), Nothing(), torch.tensor(40.0), at_mean=True)
    state = State(q, {})
    seeds = new_seeds(torch.Generator().manual_seed(0), 1)
    StepGradient(problem, state, likelihood_gradient)([batch], seeds)
    found = q.layout.named(state.vectors.gradient.mean)
    for name in ("films.1.0.scale", "films.1.1.shift"):
        place = q.layout.named(torch.arange(len(q.mean)))[name][2]
        losses = []
        for push in (1e-5, -1e-5):
            mean = q.mean.clone()
            mean[place] += push
            weights = network.weights(ec.MeanField(mean, q.variance, q.layout))
            losses.append(ec.FineTune().likelihood(weights, Nothing(), batch, network)["nll"])
        torch.testing.assert_close(found[name][2], (losses[0] - losses[1]) / 2e-5)
    assert not found["films.0.0.scale"].any()


@pytest.mark.slow
def test_compiled_it_is_the_same_and_one_graph_serves_every_task() -> None:
    stream = blobs(tasks=3)
    found = []
    for form in ("off", "on"):
        learner = ec.Learner(
            ec.networks.mlp(4, [8], film=True),
            "vcl",
            epochs=2,
            batch_size=20,
            compile=form,
        )
        for task in stream:
            learner.learn(task)
        found.append(learner.q)
    assert learner.forms == {"compiled"}
    torch.testing.assert_close(found[0].mean, found[1].mean, rtol=1e-3, atol=1e-4)
    network, batch = learner.network, first_batch(stream[1])
    keys = [
        _description(
            Problem(network, learner.method, learner.memory, torch.tensor(40.0)),
            replace(batch, head=head),
            network.names_for(head),
        )
        for head in (0, 2)
    ]
    assert keys[0] == keys[1]


def test_a_body_that_shows_no_layers_is_refused_in_one_line() -> None:
    with pytest.raises(ConversionError, match=r"nn\.Sequential") as caught:
        ec.MultiHead(nn.LSTM(3, 4), film=True).grow(0, 2, 4)
    assert "\n" not in str(caught.value)
