"""Deep generative replay: what a step minimises, who names the dreams, and the generator's ELBO."""

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence

import evclplus as ec
from evclplus.core.batches import Source, steps_of_epoch
from evclplus.core.engine import Problem, State, StepGradient, likelihood_gradient
from evclplus.errors import SettingsError
from evclplus.methods.base import Lesson, Method, Start
from evclplus.methods.dgr import gaussian_nll, standard_kl, with_replay
from tests.helpers import begun, blobs, moved, small_network

DGR = ec.GenerativeReplay
SMALL = {"hidden": 20, "latent": 3, "replayed": 50}


def third_task(scenario: str, **options: float) -> tuple[ec.Learner, Lesson, Start]:
    stream = blobs(3, scenario=scenario)
    method = DGR(**(SMALL | options))
    learner = ec.Learner(small_network(), method, epochs=5, batch_size=20, learning_rate=1e-2)
    learner.learn(stream[0]).learn(stream[1])
    return learner, *begun(learner, stream[2])


def gradient(method: Method, lesson: Lesson, start: Start, sources: tuple[Source, ...]) -> Tensor:
    batches = next(steps_of_epoch(sources, 20, torch.Generator().manual_seed(0)))
    state = State(moved(start.q).clone(), {})
    problem = Problem(lesson.network, method, start.memory, torch.tensor(1.0), at_mean=True)
    seeds = torch.zeros(len(batches), 4, dtype=torch.int32)
    StepGradient(problem, state, likelihood_gradient)(batches, seeds)
    return state.vectors.gradient.mean.clone()


@pytest.mark.parametrize("scenario", ["task", "domain", "class"])
def test_with_the_true_data_as_generator_it_is_er(scenario: str) -> None:
    stream = blobs(3, scenario=scenario)
    er = ec.ExperienceReplay(buffer_size=1000)
    learner = ec.Learner(small_network(), er, epochs=5, batch_size=20, learning_rate=1e-2)
    learner.learn(stream[0]).learn(stream[1])
    lesson, start = begun(learner, stream[2])
    stored = start.sources[1].examples
    assert sum(map(len, stored)) == len(stream[0].train) + len(stream[1].train)
    sources = with_replay(lesson.task, stored, share=0.5)  # ER's step has as many of both
    found = gradient(DGR(), lesson, start, sources)
    torch.testing.assert_close(found, gradient(er, lesson, start, start.sources))


@pytest.mark.parametrize(("scenario", "heads"), [("task", {0, 1}), ("domain", {0}), ("class", {0})])
def test_dreams_are_named_by_the_network_as_it_was(scenario: str, heads: set[int]) -> None:
    learner, _, start = third_task(scenario)
    replayed = start.sources[1].examples
    assert {one.head for one in replayed} == heads
    for one in replayed:
        seen = 4 if scenario == "class" else 2
        said = learner.predict_proba(one.inputs(), task=one.head)
        assert said.shape == (50, seen)
        assert torch.equal(one.labels, said.argmax(1))
        assert one.outputs == (6 if scenario == "class" else 2)
        assert one.store is replayed[0].store  # the same inputs for all heads


def test_every_task_counts_the_same() -> None:
    _, _, start = third_task("domain")
    assert [source.weight for source in start.sources] == pytest.approx([1 / 3, 2 / 3])
    _, _, start = third_task("domain", share=0.3)
    assert [source.weight for source in start.sources] == pytest.approx([0.3, 0.7])
    (own, old) = next(steps_of_epoch(start.sources, 20, torch.Generator().manual_seed(0)))
    assert len(own.y) == len(old.y)
    assert (own.share, old.share) == pytest.approx((0.3, 0.7))


def test_the_elbo_is_that_of_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    mean, log_variance = torch.randn(2, 7, 3, generator=generator)
    expected = kl_divergence(Normal(mean, (0.5 * log_variance).exp()), Normal(0.0, 1.0))
    torch.testing.assert_close(standard_kl(mean, log_variance), expected.sum(1).mean())
    x, again = torch.randn(2, 7, 5, generator=generator)
    nlls = [-Normal(again, s).log_prob(x).sum(1).mean() for s in torch.linspace(0.05, 5, 2000)]
    # But for a constant: that of a Gaussian, and half a number's nll for each.
    constant = 2.5 * (1 + torch.log(torch.tensor(2 * torch.pi)))
    torch.testing.assert_close(
        gaussian_nll(again, x) + constant, torch.stack(nlls).min(), rtol=1e-4, atol=1e-4
    )


def test_dreams_look_like_the_data_of_all_tasks() -> None:
    """Two clouds far apart, one a task: the generator dreams of both."""
    generator = torch.Generator().manual_seed(0)
    pairs = []
    for centre in (-5.0, 5.0):
        y = torch.arange(200) % 2
        x = centre + 0.5 * torch.randn(200, 20, generator=generator)
        x[:, 0] += y
        pairs.append((x, y))
    stream = ec.tasks([*pairs, pairs[0]], scenario="domain", scaling="raw")
    method = DGR(hidden=40, latent=4, replayed=500)
    learner = ec.Learner(
        ec.networks.mlp(20, [8]), method, epochs=60, batch_size=40, learning_rate=3e-3
    )
    learner.learn(stream[0])
    _, start = begun(learner, stream[1])
    first = start.sources[1].examples[0].inputs()
    assert (first[:, 1:].mean() + 5).abs() < 1.5
    learner.learn(stream[1])
    _, start = begun(learner, stream[2])
    both = start.sources[1].examples[0].inputs()[:, 1:].mean(1)
    share = (both < 0).float().mean().item()
    assert 0.1 < share < 0.9


def test_only_the_generator_is_kept() -> None:
    learner, _, _ = third_task("task")
    memory = learner.memory
    assert memory.generator.shape == (4 * 20 + 20 + 420 + 20 * 6 + 6 + 3 * 20 + 20 + 420 + 84,)
    assert memory.generator.isfinite().all()


def test_on_the_first_task_it_is_fine_tuning() -> None:
    found = [
        ec.Learner(small_network(), method, epochs=3, batch_size=20).learn(blobs()[0]).q.mean
        for method in (DGR(**SMALL), ec.FineTune())
    ]
    assert torch.equal(*found)


@pytest.mark.slow
def test_it_remembers_digits_that_come_class_by_class() -> None:
    stream = ec.benchmark("split-digits", scenario="class", tasks=3)

    def accuracy(method: ec.Method) -> float:
        learner = ec.Learner(
            ec.networks.mlp(64, [32]), method, epochs=40, batch_size=32, learning_rate=3e-3
        )
        for task in stream:
            learner.learn(task)
        return learner.evaluate(stream).average_accuracy

    assert accuracy(DGR(hidden=100, latent=10, replayed=500)) > accuracy(ec.FineTune()) + 0.3


def test_it_says_what_it_is_for() -> None:
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    learner = ec.Learner(small_network([1]), DGR(), criterion="regression")
    with pytest.raises(SettingsError, match="method dgr is for classes"):
        learner.learn(ec.regression_task(x, x[:, :1], name="line"))
