"""Epochs are timed by a callback; here a clock that only the test moves."""

import time

import pytest

from evclplus import EWC
from tools.bench.callback import Turns, epochs_by_turns
from tools.bench.ours import mlp_and_stream


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def wait(self, seconds: float) -> None:
        self.now += seconds


def train(turns: Turns, clock: Clock, step: float, epochs: int, batches: int) -> None:
    turns.start("task 1 (any), start", batches)
    for number in range(batches):
        turns.advance(number + 1, None)
    turns.finish()
    turns.start("task 1 (any), train", epochs * batches)
    for number in range(epochs * batches):
        # The first two epochs are slow: they must not count.
        clock.wait(step if number >= 2 * batches else 1000.0)
        turns.advance(number + 1, None)
    turns.finish()


def test_steady_epochs_count_without_the_rivals_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    turns = Turns(epochs=6, tasks=(2,), rivals={"rival": lambda: clock.wait(50.0)})
    train(turns, clock, step=7.0, epochs=6, batches=3)
    train(turns, clock, step=2.0, epochs=6, batches=3)
    assert turns.taken == {2: {"ours": [6.0] * 3, "rival": [50.0] * 4}}


def test_a_new_learner_adds_to_the_same_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    turns = Turns(epochs=4, tasks=(1,), rivals={})
    for _ in range(2):
        train(turns.new_learner(), clock, step=1.0, epochs=4, batches=5)
    assert turns.taken == {1: {"ours": [5.0] * 2}}


def test_a_learner_gives_the_turns_that_were_asked_for() -> None:
    turns: list[str] = []
    network, stream = mlp_and_stream([4], count=3, examples=40)
    found = epochs_by_turns(
        *(EWC(), network, stream, {"rival": lambda: turns.append("one")}),
        tasks=(2, 3),
        rounds=3,
        epochs=5,
        batch_size=20,
    )
    assert set(found) == {2, 3}
    assert all(seconds > 0 for taken in found.values() for seconds in taken.values())
    # Once before all, then in two learners, in two tasks of each, in three epochs of each.
    assert len(turns) == 1 + 2 * 2 * 3
