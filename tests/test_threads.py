"""One learner in several threads answers as alone, and stays what it was."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import pytest
import torch
from torch import Tensor, nn

import evclplus as ec
from evclplus.core.network import BayesianNetwork
from tests.helpers import blobs, small_network

THREADS = 4


class Normalised(nn.Module):
    """Has a parameter outside of linear layers, which a pass puts into the module."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.norm(self.first(x)).relu())
        return out


@pytest.mark.parametrize("name", ["evcl+", "ewc", "vcl-random"])
@pytest.mark.parametrize("own", [False, True])
def test_threads_get_the_answers_of_one(name: str, own: bool) -> None:
    few = {"coreset_size": 5, "coreset_epochs": 2} if name == "vcl-random" else {}
    network = Normalised() if own else small_network()
    learner = ec.Learner(network, ec.method(name, **few), epochs=3, batch_size=20)
    x = blobs()[0].test.inputs()
    learner.learn(blobs()[0])
    first = [learner.predict_proba(one[None]) for one in x]
    local = set(learner.network.local_layers)
    learner._answers = learner._new_answers()  # the first to ask trains it
    begin = Barrier(THREADS)

    def ask(_: int) -> list[Tensor]:
        begin.wait()
        return [learner.predict_proba(one[None]) for _ in range(5) for one in x]

    with ThreadPoolExecutor(THREADS) as pool:
        for answers in pool.map(ask, range(THREADS)):
            assert all(map(torch.equal, answers, first * 5))
    assert set(learner.network.local_layers) == local
    assert all(map(torch.equal, [learner.predict_proba(one[None]) for one in x], first))


GATE = Barrier(2)


class Paused(nn.Module):
    """Waits between its layers until two threads are there."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if len(x) == 2:
            GATE.wait(timeout=60)
        out: Tensor = self.last(h)
        return out


def test_two_passes_at_once_have_their_own_weights() -> None:
    network = BayesianNetwork(Paused())
    x, first = torch.randn(3, 4), network.initial(0.1)
    both = [first, replace(first, mean=first.mean + 1)]
    with torch.no_grad():
        alone = [network(q, x) for q in both]
        # A copy is made while nobody computes, and here both wait for each other.
        network._passes.spares.append(network.copy())
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(lambda q: network(q, x[:2]), both))
    for mine, expected in zip(found, alone, strict=True):
        torch.testing.assert_close(mine, expected[:2])


def dropping() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))


def test_learners_that_drop_out_in_two_threads_follow_their_seeds() -> None:
    network = dropping()  # before there are threads: it is drawn from the one global state

    def learn(seed: int) -> Tensor:
        learner = ec.Learner(network, "finetune", seed=seed, epochs=20, batch_size=10)
        return learner.learn(blobs()[0]).q.mean

    state = torch.get_rng_state()
    alone = [learn(seed) for seed in (0, 1)]
    torch.set_rng_state(state)
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(learn, (0, 1)))
    for mine, expected in zip(together, alone, strict=True):
        assert torch.equal(mine, expected)


class AlwaysDropping(nn.Module):
    """Draws numbers in a prediction too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(nn.functional.dropout(x, 0.5, training=True))
        return out


@pytest.mark.parametrize("name", ["vcl", "ewc"])
def test_a_module_that_draws_in_a_prediction_answers_the_same_again(name: str) -> None:
    learner = ec.Learner(AlwaysDropping(), name, epochs=2, batch_size=20).learn(blobs()[0])
    x = blobs()[0].test.inputs()
    state = torch.get_rng_state()
    first = learner.predict_proba(x)
    assert torch.equal(learner.predict_proba(x), first)
    assert torch.equal(torch.get_rng_state(), state)
