"""Where Gaussian weights start and which prior they meet."""

import pytest
import torch

import evclplus as ec
from tests.helpers import blobs, learned_first_task, small_network


def test_weights_of_later_tasks_do_not_move_before_their_time() -> None:
    stream = blobs()
    learner = ec.Learner(small_network(stream.heads), ec.VCL(), epochs=5, batch_size=20)
    before = learner.network.layout.named(learner.q.mean.clone())
    variance = learner.network.layout.named(learner.q.variance.clone())
    learner.learn(stream[0])
    after = learner.network.layout.named(learner.q.mean)
    assert torch.equal(before["heads.1.weight"], after["heads.1.weight"])
    assert torch.equal(
        variance["heads.1.weight"],
        learner.network.layout.named(learner.q.variance)["heads.1.weight"],
    )
    assert not torch.equal(before["heads.0.weight"], after["heads.0.weight"])
    learner.learn(stream[1])
    last = learner.network.layout.named(learner.q.mean)
    # And the first task's head stays as its task left it.
    assert torch.equal(after["heads.0.weight"], last["heads.0.weight"])
    assert not torch.equal(after["heads.1.weight"], last["heads.1.weight"])


def test_the_rows_of_a_growing_head_wait_for_their_classes() -> None:
    stream = blobs(tasks=2, scenario="class")
    assert stream.heads == (4,)
    learner = ec.Learner(small_network(stream.heads), ec.VCL(), epochs=5, batch_size=20)
    before = learner.network.layout.named(learner.q.mean.clone())["heads.0.weight"]
    learner.learn(stream[0])
    after = learner.network.layout.named(learner.q.mean)["heads.0.weight"]
    assert torch.equal(before[2:], after[2:])
    assert not torch.equal(before[:2], after[:2])
    assert learner.predict_proba(torch.zeros(1, 4)).shape == (1, 2)
    learner.learn(stream[1])
    assert learner.predict_proba(torch.zeros(1, 4)).shape == (1, 4)


def test_the_prior_is_the_last_posterior_and_the_first_prior_for_new_weights() -> None:
    learner, stream = learned_first_task(ec.VCL(prior_variance=0.5))
    seen = {}

    class Watching(ec.VCL):
        def regulariser(self, q, memory, examples):  # type: ignore[no-untyped-def]
            seen["prior"] = memory.prior
            return super().regulariser(q, memory, examples)

    posterior = learner.network.layout.named(learner.q.mean.clone())
    learner.method = Watching(prior_variance=0.5)
    learner.learn(stream[1])
    mean = learner.network.layout.named(seen["prior"].mean)
    variance = learner.network.layout.named(seen["prior"].variance)
    assert torch.equal(mean["body.1.weight"], posterior["body.1.weight"])
    assert torch.count_nonzero(mean["heads.1.weight"]) == 0
    torch.testing.assert_close(variance["heads.1.weight"], torch.full((2, 8), 0.5))


@pytest.mark.parametrize("start", ["mle", "random"])
def test_the_start(start: str) -> None:
    stream = blobs()
    method = ec.VCL(start=start, start_epochs=20, beta=0.0)
    learner = ec.Learner(
        small_network(stream.heads), method, epochs=1, batch_size=1000, learning_rate=1e-2
    )
    first = learner.q.mean.clone()
    learner.learn(stream[0])
    drift = (learner.q.mean - first).abs().max().item()
    # One Adam step moves a weight by the learning rate at most; the start makes twenty more.
    assert (drift > 0.05) == (start == "mle")


def test_prior_around_the_start() -> None:
    learner, _ = learned_first_task(ec.VCL(prior_mean="mle", beta=1e4))
    # An overwhelming prior pulls the posterior to the start's means, far from zero.
    assert learner.q.mean.abs().mean() > 0.1
    to_zero, _ = learned_first_task(ec.VCL(prior_mean="zero", beta=1e4))
    assert to_zero.q.mean.abs().mean() < learner.q.mean.abs().mean()
