"""EWC's three forms: online, with Huszar's correction, and one penalty for every task."""

from pathlib import Path

import pytest
import torch

import evclplus as ec
from evclplus.methods.ewc import Weighted, weighted_anchor
from tests.helpers import blobs, moved, small_network

EXAMPLES = torch.tensor(40.0)


def test_one_anchor_has_the_curvature_and_minimum_of_a_penalty_for_every_task() -> None:
    torch.manual_seed(0)
    fishers, solutions = torch.rand(3, 7).double(), torch.randn(3, 7).double()
    fishers[:, 2] = 0.0
    total, anchor = torch.zeros(7).double(), torch.zeros(7).double()
    for fisher, solution in zip(fishers, solutions, strict=True):
        anchor = weighted_anchor(total, anchor, fisher, solution)
        total = total + fisher

    def separate(theta: torch.Tensor) -> torch.Tensor:
        return (fishers * (theta - solutions).square()).sum()

    def collapsed(theta: torch.Tensor) -> torch.Tensor:
        return (total * (theta - anchor).square()).sum()

    one, other = torch.randn(2, 7).double()
    torch.testing.assert_close(
        separate(one) - separate(other), collapsed(one) - collapsed(other), rtol=1e-12, atol=1e-12
    )
    assert anchor[2] == solutions[-1, 2]


@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_the_penalty_of_a_learner_is_the_sum_over_its_tasks(decay: float) -> None:
    """Each task's Fisher and solution, collected along the way, against the two vectors kept."""
    method = ec.EWC(lam=2.0, anchor="weighted", fisher_decay=decay, calibration="none")
    stream = blobs(tasks=3)
    learner = ec.Learner(small_network(stream.heads), method, epochs=3, batch_size=20)
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []
    for task in stream:
        before = learner.memory.fisher
        learner.learn(task)
        kept = [(decay * fisher, solution) for fisher, solution in kept]
        kept.append((learner.memory.fisher - decay * before, learner.q.mean.clone()))

    def separate(q: ec.MeanField) -> torch.Tensor:
        parts = [fisher * (q.mean - solution).square() for fisher, solution in kept]
        return torch.stack(parts).sum()

    one, other = moved(learner.q), learner.q
    found = [method.regulariser(q, learner.memory, EXAMPLES)["penalty"] for q in (one, other)]
    expected = separate(one) - separate(other)  # lambda / 2 is one
    torch.testing.assert_close(found[0] - found[1], expected, rtol=1e-3, atol=1e-5)


def test_the_last_anchor_costs_nothing_where_the_last_task_ended() -> None:
    stream = blobs()
    for anchor, is_zero in (("last", True), ("weighted", False)):
        learner = ec.Learner(
            small_network(stream.heads), ec.EWC(anchor=anchor), epochs=5, batch_size=20
        )
        for task in stream:
            learner.learn(task)
        penalty = learner.method.regulariser(learner.q, learner.memory, EXAMPLES)["penalty"]
        assert (penalty == 0) == is_zero


def test_a_weighted_anchor_is_saved_and_grows_with_a_new_head(tmp_path: Path) -> None:
    stream = blobs(tasks=3)
    learner = ec.Learner(small_network(), ec.EWC(anchor="weighted"), epochs=2, batch_size=20)
    learner.learn(stream[0]).learn(stream[1])
    again = ec.Learner.load(learner.save(tmp_path))
    assert isinstance(again.memory, Weighted)
    for one in (learner, again):
        one.learn(stream[2])
    assert torch.equal(learner.memory.anchor, again.memory.anchor)
    assert torch.equal(learner.q.mean, again.q.mean)
