"""The penalties do what they are for: they change the gradient and they hold weights."""

from typing import Any

import pytest
import torch
from torch import nn

import evclplus as ec
from evclplus.core.gaussian import MeanField
from evclplus.methods.function_space import FunctionSpace
from tests.helpers import (
    begun,
    blobs,
    first_batch,
    gradients,
    learned_first_task,
    moved,
    small_network,
)

ELASTIC = {"evcl+": ec.EVCLPlus, "evcl": ec.EVCL, "ewc": ec.EWC}
HOLDING: dict[str, type[FunctionSpace]] = {
    "evcl+": ec.EVCLPlus,
    "evcl": ec.EVCL,
    "ewc": ec.EWC,
    "si": ec.SynapticIntelligence,
}
STRONG = 1e6


@pytest.mark.parametrize("name", ELASTIC)
def test_on_the_second_task_the_penalty_changes_the_gradient(name: str) -> None:
    kind = ELASTIC[name]
    learner, stream = learned_first_task(kind(lam=STRONG))
    batch = first_batch(stream[1])
    q = moved(learner.q)
    with_penalty = gradients(learner, kind(lam=STRONG), q, batch)
    without = gradients(learner, kind(lam=0.0), q, batch)
    assert batch.head == 1
    fisher = learner.memory.fisher
    protected = fisher > 0
    assert protected.float().mean() > 0.3
    change = (with_penalty[0] - without[0]).abs()
    # Every protected mean is pulled back, by lambda F (mu - mu_prev), and no other.
    expected = STRONG * fisher * (q.mean - learner.memory.prior.mean)
    torch.testing.assert_close(
        with_penalty[0] - without[0], expected.detach(), rtol=1e-3, atol=1e-3
    )
    assert (change[protected] > 0).float().mean() > 0.9
    if name != "ewc":
        assert (with_penalty[1] - without[1]).abs().max() > 1e-3


@pytest.mark.parametrize("name", ELASTIC)
def test_on_the_first_task_there_is_no_penalty(name: str) -> None:
    stream = blobs()
    learner = ec.Learner(small_network(stream.heads), ELASTIC[name](lam=STRONG))
    _, start = begun(learner, stream[0])
    terms = learner.method.regulariser(moved(start.q), start.memory, torch.tensor(40.0))
    assert terms["penalty"] == 0


@pytest.mark.parametrize("name", ELASTIC)
def test_a_huge_lambda_freezes_the_protected_weights_and_only_those(name: str) -> None:
    def drift(lam: float) -> tuple[float, float]:
        learner, stream = learned_first_task(ELASTIC[name](lam=lam), learning_rate=1e-3)
        before, fisher = learner.q.mean, learner.memory.fisher
        protected = fisher > fisher.max() / 100
        learner.learn(stream[1])
        change = (learner.q.mean - before).abs()
        head = learner.network.layout.named(change)["heads.1.weight"]
        return change[protected].max().item(), head.max().item()

    free, _ = drift(0.0)
    frozen, new_head = drift(1e9)
    assert frozen < 0.2 * free
    assert new_head > 0.005  # the new task's own head still learns


def test_a_huge_lambda_freezes_protected_variances() -> None:
    def change_of_variance(lam: float) -> float:
        learner, stream = learned_first_task(ec.EVCLPlus(lam=lam, k=0.0), learning_rate=1e-3)
        before, fisher = learner.q.variance, learner.memory.fisher
        protected = (fisher > fisher.max() / 100)[: len(before)]
        learner.learn(stream[1])
        return ((learner.q.variance - before).clamp_max(0).abs() / before)[protected].max().item()

    assert change_of_variance(1e13) < 0.5 * change_of_variance(0.0)


def learn_both(method: ec.Method) -> MeanField:
    stream = blobs()
    learner = ec.Learner(small_network(stream.heads), method, epochs=5, batch_size=20)
    for task in stream:
        learner.learn(task)
    return learner.q


def test_evcl_at_lambda_zero_equals_vcl_bit_for_bit() -> None:
    vcl, evcl = learn_both(ec.VCL()), learn_both(ec.EVCL(lam=0.0))
    assert torch.equal(vcl.mean, evcl.mean)
    assert torch.equal(vcl.variance, evcl.variance)
    assert not torch.equal(vcl.mean, learn_both(ec.EVCL(lam=1e4)).mean)


def test_evcl_plus_equals_evcl_while_no_variance_has_grown() -> None:
    learner, _ = learned_first_task(ec.EVCLPlus(lam=STRONG))
    fisher = learner.memory.fisher
    previous = learner.memory.prior
    shrunk = MeanField(previous.mean + 0.1, 0.7 * previous.variance, previous.layout)
    same = MeanField(previous.mean + 0.1, previous.variance, previous.layout)
    grown = MeanField(previous.mean + 0.1, 1.5 * previous.variance, previous.layout)
    plus, plain = ec.EVCLPlus(lam=STRONG), ec.EVCL(lam=STRONG)
    for q in (shrunk, same):
        assert torch.equal(plus.penalty(q, previous, fisher), plain.penalty(q, previous, fisher))
    assert plus.penalty(grown, previous, fisher) > plain.penalty(grown, previous, fisher)


def test_evcl_plus_may_charge_every_variance() -> None:
    learner, _ = learned_first_task(ec.EVCLPlus())
    previous, fisher = learner.memory.prior, learner.memory.fisher
    always = ec.EVCLPlus(lam=2.0, k=3.0, variance_penalty="always")
    grown = ec.EVCLPlus(lam=2.0, k=3.0)
    assert grown.variance_penalty == "grown"
    for scale in (0.5, 1.0, 2.0):
        q = MeanField(previous.mean + 0.1, scale * previous.variance, previous.layout)
        expected = (fisher * (0.01 + 3.0 * q.variance)).sum()  # lambda / 2 is one
        torch.testing.assert_close(always.penalty(q, previous, fisher), expected)
    # Where all have grown, the two are the same.
    torch.testing.assert_close(
        always.penalty(q, previous, fisher), grown.penalty(q, previous, fisher)
    )
    unmoved = always.penalty(previous, previous, fisher)
    assert unmoved > 0 == grown.penalty(previous, previous, fisher)


def test_the_fisher_is_of_the_last_task_or_a_decayed_sum() -> None:
    def fishers(**options: object) -> tuple[torch.Tensor, torch.Tensor]:
        method = ec.EWC(lam=1.0, calibration="none", **options)
        learner, stream = learned_first_task(method)
        first = learner.memory.fisher
        second = learner.learn(stream[1]).memory.fisher
        return first, second

    first, last = fishers(fisher_tasks="last")
    _, total = fishers()
    _, decayed = fishers(fisher_decay=0.25)
    torch.testing.assert_close(total, first + last)
    torch.testing.assert_close(decayed, 0.25 * first + last)


def test_a_fisher_covers_the_heads_that_have_come_and_no_others() -> None:
    stream = blobs()
    learner = ec.Learner(small_network(), ec.EWC(), epochs=2, batch_size=20).learn(stream[0])
    first = learner.network.layout.named(learner.memory.fisher)
    assert first["heads.0.weight"].any()
    assert first["body.1.weight"].any()
    lesson, _ = begun(learner, stream[1])
    grown = lesson.network.layout.named(lesson.memory.fisher)
    assert not grown["heads.1.weight"].any()
    assert all(torch.equal(grown[name], value) for name, value in first.items())


@pytest.mark.parametrize("name", HOLDING)
def test_lam_function_holds_the_earlier_head_and_its_answers(name: str) -> None:
    # Small variances: what is left of a change is then not sampling noise.
    options: dict[str, dict[str, Any]] = {"ewc": {"lam": 0.0}, "si": {"c": 0.0}}
    certain = {"lam": 0.0, "beta": 1e-6, "initial_variance": 1e-6}
    kind, given = HOLDING[name], options.get(name, certain)

    def change(lam_function: float) -> tuple[float, float]:
        learner, stream = learned_first_task(kind(lam_function=lam_function, **given))
        x, q = stream[1].train.inputs(), learner.q
        before = learner.network(q, x, 0)
        learner.learn(stream[1])
        assert learner.evaluate(stream[1]).average_accuracy > 0.9  # the new task is learned
        head = learner.network.layout.named(learner.q.mean - q.mean)["heads.0.weight"]
        answers = learner.network(learner.q, x, 0) - before
        return answers.square().mean().sqrt().item(), head.abs().max().item()

    free, _ = change(0.0)
    held, moved_head = change(100.0)
    assert held < 0.3 * free
    assert moved_head == 0


class Counting(nn.Module):
    """Counts in a buffer how often it was asked, also outside training."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.asked: torch.Tensor
        self.register_buffer("asked", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.asked += 1
        out: torch.Tensor = self.layer(x) * (1 + self.asked)
        return out


def test_asking_what_earlier_heads_answered_leaves_the_network_as_it_was() -> None:
    stream = blobs()
    network = ec.MultiHead(Counting())
    learner = ec.Learner(network, ec.EWC(lam_function=1.0), epochs=1, batch_size=20)
    learner.learn(stream[0])
    network_, q, memory = learner._with_head(stream[1].train)
    lesson = learner._lesson(network_, q, memory, stream[1], learner._trainer("test"))
    before = lesson.network.buffers["body.asked"].clone()
    start = learner.method.begin(lesson)
    assert torch.equal(lesson.network.buffers["body.asked"], before)
    # And what they answered is kept, not asked for again: it does not move while training does.
    assert start.task.answers is not None
    answers = start.task.answers.clone()
    learner.learn(stream[1])
    assert torch.equal(start.task.answers, answers)
    assert start.sources[0].examples[0].answers is start.task.answers


@pytest.mark.parametrize("scenario", ["class", "domain"])
def test_a_shared_head_keeps_answers_unless_it_is_free(scenario: str) -> None:
    def change(lam_function: float, **options: Any) -> tuple[float, ec.Learner]:
        stream = blobs(scenario=scenario)
        method = ec.EVCLPlus(
            lam=0.0, beta=1e-6, initial_variance=1e-6, lam_function=lam_function, **options
        )
        learner = ec.Learner(
            small_network(stream.heads), method, epochs=15, batch_size=20, learning_rate=1e-2
        )
        learner.learn(stream[0])
        x = stream[1].train.inputs()
        before = learner.network(learner.q, x)[:, :2]
        learner.learn(stream[1])
        after = learner.network(learner.q, x)[:, :2]
        return (after - before).square().mean().item(), learner

    nothing, plain = change(0.0)
    free, loose = change(1.0, shared_head="free")
    held, learner = change(1.0)
    everything, _ = change(1.0, shared_head="all")
    assert torch.equal(plain.q.mean, loose.q.mean)
    assert held < 0.7 * nothing == 0.7 * free
    assert everything <= held
    # What was found on a task is noted: the first task of a head has nothing to confirm.
    noted = [task.calibrated.get("confirmed") for task in learner.learned]
    assert noted[0] is None
    assert noted[1] is not None
    assert 0 < noted[1] <= 1
    assert (noted[1] == 1) == (scenario == "class")  # classes that the head did not know
    assert all("confirmed" not in task.calibrated for task in loose.learned)


def test_values_confirm_nothing() -> None:
    """How probable a value was is no number between 0 and 1."""
    x, y, network = torch.randn(30, 3), torch.randn(30, 1), nn.Linear(3, 1)

    def learned(**options: Any) -> MeanField:
        method = ec.EWC(lam=0.0, lam_function=10.0, **options)
        learner = ec.Learner(network, method, epochs=3, criterion="regression")
        for number, values in enumerate((y, -y)):
            learner.learn(ec.regression_task(x, values, name=str(number)))
        return learner.q

    assert torch.equal(learned().mean, learned(shared_head="free").mean)
    assert not torch.equal(learned().mean, learned(shared_head="all").mean)


def test_held_answers_belong_to_every_earlier_head() -> None:
    def changes(lam_function: float) -> list[float]:
        stream = blobs(tasks=3)
        method = ec.EVCLPlus(lam=0.0, beta=1e-6, initial_variance=1e-6, lam_function=lam_function)
        learner = ec.Learner(
            small_network(stream.heads), method, epochs=15, batch_size=20, learning_rate=1e-2
        )
        learner.learn(stream[0]).learn(stream[1])
        x = stream[2].train.inputs()
        before = [learner.network(learner.q, x, head) for head in (0, 1)]
        learner.learn(stream[2])
        after = [learner.network(learner.q, x, head) for head in (0, 1)]
        return [(a - b).square().mean().item() for a, b in zip(after, before, strict=True)]

    for free, held in zip(changes(0.0), changes(100.0), strict=True):
        assert held < 0.1 * free
