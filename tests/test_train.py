"""The training loop: its learning rates, its random numbers, what it reports and refuses."""

from collections.abc import Sequence
from math import cos, pi
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import evclplus as ec
from evclplus.callbacks import Callback, LazyTerms
from evclplus.core.batches import Batch, Source
from evclplus.core.engine import StepGradient, Terms
from evclplus.core.examples import Examples
from evclplus.core.gaussian import MeanField
from evclplus.core.network import BayesianNetwork, Weights
from evclplus.errors import SettingsError, TrainingError
from evclplus.methods.base import Lesson, Nothing, Start
from evclplus.methods.variational import Posterior
from evclplus.settings import Optimiser, Training
from evclplus.train import Trainer, flushed_denormals, learning_rate


@pytest.mark.parametrize("done", [0.0, 0.25, 0.5, 0.75, 1.0])
def test_schedules_fall_from_the_rate_to_zero(done: float) -> None:
    expected = {"constant": 1.0, "linear": 1 - done, "cosine": (1 + cos(pi * done)) / 2}
    for schedule, factor in expected.items():
        training = Training(learning_rate=0.2, schedule=schedule)
        assert learning_rate(training, done) == pytest.approx(0.2 * factor, abs=1e-15)


def test_the_cosine_has_half_the_rate_in_the_middle_and_none_at_the_end() -> None:
    training = Training(learning_rate=0.2, schedule="cosine")
    rates = [learning_rate(training, done) for done in (0, 1 / 3, 0.5, 2 / 3, 1)]
    assert rates == pytest.approx([0.2, 0.15, 0.1, 0.05, 0.0])


@pytest.mark.parametrize(
    ("batches", "epochs"), [(1, 1000), (3, 334), (99, 11), (100, 10), (101, 10), (5000, 10)]
)
def test_by_default_a_small_task_has_a_thousand_steps_and_a_large_one_ten_epochs(
    batches: int, epochs: int
) -> None:
    assert Training().epochs is None
    assert Training().epochs_of(batches) == epochs
    assert epochs == 10 or epochs * batches >= 1000 > (epochs - 1) * batches
    assert Training(epochs=7).epochs_of(batches) == 7


def examples(count: int = 12) -> Examples:
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(0))
    return Examples(x, torch.arange(count) % 3, 3)


def problem() -> tuple[BayesianNetwork, MeanField]:
    torch.manual_seed(0)
    network = BayesianNetwork(nn.Linear(4, 3))
    return network, network.initial(1e-2)


def trainer(**changes: Any) -> Trainer:
    given = {"seed": 0, "position": 0, "label": "a task", "callback": Callback(), **changes}
    training = Training(epochs=2, batch_size=4, compile="off")
    return Trainer(**{"training": training, **given})


Watched = list[tuple[list[float], list[int]]]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    """The examples, by their first number, and the seeds of every step."""
    seen: Watched = []
    original = StepGradient.__call__

    def call(self: StepGradient, batches: Sequence[Batch], seeds: Tensor) -> Terms:
        values = [float(value) for batch in batches for value in batch.x[:, 0]]
        seen.append((values, seeds.flatten().tolist()))
        return original(self, batches, seeds)

    monkeypatch.setattr(StepGradient, "__call__", call)
    return seen


def run(watched: Watched, purpose: str = "train", **changes: Any) -> Watched:
    network, q = problem()
    start = len(watched)
    memory = Posterior(q.clone())
    trainer(**changes)(ec.VCL(), network, q, memory, (Source((examples(),)),), purpose=purpose)
    return watched[start:]


def test_the_default_number_of_epochs_is_what_is_trained(watched: Watched) -> None:
    training = Training(batch_size=4, compile="off")
    assert len(run(watched, training=training)) == 1002  # 334 epochs of three steps


@pytest.mark.parametrize(
    "change", [{"position": 1}, {"seed": 1}, {"purpose": "recall 0"}], ids=lambda c: next(iter(c))
)
def test_batches_and_noise_follow_seed_position_and_purpose(
    change: dict[str, Any], watched: Watched
) -> None:
    first, again, other = run(watched), run(watched), run(watched, **change)
    assert first == again
    assert len(first) == len(other) == 6
    for one, another in zip(first, other, strict=True):
        assert one[0] != another[0], "the same batches"
        assert one[1] != another[1], "the same noise"


def test_epochs_and_steps_draw_numbers_of_their_own(watched: Watched) -> None:
    steps = run(watched)
    assert len({tuple(seeds) for _, seeds in steps}) == 6
    assert [value for values, _ in steps[:3] for value in values] != [
        value for values, _ in steps[3:] for value in values
    ]


def test_two_tasks_with_the_same_data_have_batches_and_noise_of_their_own(
    watched: Watched,
) -> None:
    data = examples(20)
    pairs = [(data.store, data.labels)] * 2
    stream = ec.tasks(pairs, scenario="domain", test_fraction=0.2)
    learner = ec.Learner(
        ec.networks.mlp(4, [6]),
        ec.VCL(start="random"),
        epochs=2,
        batch_size=4,
        compile="off",
    )
    for task in stream:
        learner.learn(task)
    half = len(watched) // 2
    for one, another in zip(watched[:half], watched[half:], strict=True):
        assert one[0] != another[0], "the same batches"
        assert one[1] != another[1], "the same noise"


def test_a_module_draws_from_the_seed_and_leaves_the_global_state() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    alike = Examples(torch.ones(12, 4), torch.zeros(12, dtype=torch.long), 3)  # in any order
    found: list[Tensor] = []
    for position in (0, 0, 1):
        torch.manual_seed(len(found))
        state = torch.get_rng_state()
        network = BayesianNetwork(module, point=lambda _: True)
        q = network.initial(1.0)
        training = Training(epochs=1, batch_size=12, compile="off")
        trained = trainer(training=training, position=position)(
            ec.FineTune(), network, q, Nothing(), (Source((alike,)),), purpose="train"
        )
        found.append(trained.q.mean)
        assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


class Recording(Callback):
    def __init__(self) -> None:
        self.events: list[Any] = []

    def start(self, label: str, steps: int) -> None:
        self.events.append((label, steps))

    def advance(self, step: int, terms: LazyTerms) -> None:
        self.events.append((step, sorted(terms())))

    def finish(self) -> None:
        self.events.append("finish")


def test_a_callback_hears_of_every_step() -> None:
    callback = Recording()
    network, q = problem()
    trainer(callback=callback)(
        ec.VCL(), network, q, Posterior(q.clone()), (Source((examples(),)),), purpose="train"
    )
    steps = [(step, ["kl", "nll"]) for step in range(1, 7)]
    assert callback.events == [("a task, train", 6), *steps, "finish"]


def test_a_number_that_is_not_finite_stops_training_with_one_line() -> None:
    network, q = problem()
    broken = Examples(torch.full((12, 4), torch.nan), torch.arange(12) % 3, 3)
    with pytest.raises(TrainingError, match=r"a task, train, epoch 1 of 2: .*nll nan") as caught:
        trainer()(ec.VCL(), network, q, Posterior(q.clone()), (Source((broken,)),), purpose="train")
    assert "\n" not in str(caught.value)


def test_without_examples_nothing_is_trained() -> None:
    network, q = problem()
    nothing = Source((examples().take(torch.arange(0)),))
    for sources in ((), (nothing,)):
        found = trainer()(ec.FineTune(), network, q, Nothing(), sources, purpose="train")
        assert found.q is q


def test_denormal_numbers_count_as_before_afterwards() -> None:
    small = torch.tensor([1e-39])
    before = bool(small * 1 == 0)
    with flushed_denormals():
        assert bool(small * 1 == 0)
    assert bool(small * 1 == 0) == before


# Optimisers


class PlainSteps(ec.FineTune):
    @property
    def optimisers(self) -> tuple[Optimiser, ...]:
        return ("sgd",)


def learner(method: ec.Method, **settings: Any) -> ec.Learner:
    return ec.Learner(nn.Linear(4, 3), method, epochs=2, batch_size=4, **settings)


def test_a_method_gets_an_optimiser_that_it_works_with_and_a_rate_for_it() -> None:
    usual, plain = learner(ec.FineTune()).training, learner(PlainSteps()).training
    assert (usual.optimiser, usual.learning_rate) == ("adam", 3e-3)
    assert (plain.optimiser, plain.learning_rate) == ("sgd", 0.1)
    asked = learner(ec.FineTune(), optimiser="sgd", momentum=0.5).training
    assert (asked.optimiser, asked.learning_rate, asked.momentum) == ("sgd", 0.1, 0.5)
    assert learner(PlainSteps(), learning_rate=0.3).training.learning_rate == 0.3
    coreset = learner(ec.Coreset(method=PlainSteps(), coreset_size=1)).training
    assert coreset.optimiser == "sgd"


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        (
            PlainSteps(),
            {"optimiser": "adam"},
            "does not work with optimiser = 'adam'",
        ),
        (ec.FineTune(), {"momentum": 0.9}, "momentum = 0.9 is for optimiser = 'sgd'"),
        (ec.FineTune(), {"optimiser": "sdg"}, "optimiser = 'sdg' is wrong: .*'adam' or 'sgd'"),
    ],
)
def test_an_optimiser_that_does_not_fit_is_refused(
    method: ec.Method, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        learner(method, **settings)


def test_a_method_inside_another_gets_an_optimiser_that_it_works_with() -> None:
    network, q = problem()
    sources = (Source((examples(),)),)
    inner = trainer(training=Training(epochs=2, batch_size=4, optimiser="adam", compile="off"))
    alone = trainer(training=Training(epochs=2, batch_size=4, optimiser="sgd", compile="off"))
    found, expected = (
        one(PlainSteps(), network, q, Nothing(), sources, purpose="test", at_mean=True).q.mean
        for one in (inner, alone)
    )
    assert torch.equal(found, expected)
    assert not torch.equal(found, q.mean)


def two_tasks() -> ec.Stream:
    data = [torch.randn(12, 4, generator=torch.Generator().manual_seed(i)) for i in (0, 1)]
    return ec.tasks([(x, torch.arange(12) % 3) for x in data], scenario="domain")


def by_torch(stream: ec.Stream, module: nn.Module, optimiser: torch.optim.Optimizer) -> Tensor:
    """Five steps on all examples of each task, with one optimiser for both."""
    for task in stream:
        for _ in range(5):
            optimiser.zero_grad()
            nn.functional.cross_entropy(module(task.train.inputs()), task.train.labels).backward()
            optimiser.step()
    return torch.cat([p.detach().flatten() for p in module.parameters()])


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_an_optimiser_that_is_kept_goes_on_as_torchs_does(optimiser: Optimiser) -> None:
    torch.manual_seed(0)
    stream, module = two_tasks(), nn.Linear(4, 3)
    settings: dict[str, Any] = {
        "epochs": 5,
        "batch_size": 100,
        "optimiser": optimiser,
        "learning_rate": 0.05,
        "momentum": 0.9 if optimiser == "sgd" else 0.0,
        "schedule": "constant",
    }
    found = {}
    for keep in (True, False):
        one = ec.Learner(module, ec.FineTune(), keep_optimiser=keep, **settings)
        for task in stream:
            one.learn(task)
        found[keep] = one.q.mean
        assert (one.moments is not None) == keep
    torchs = (
        torch.optim.Adam(module.parameters(), 0.05)
        if optimiser == "adam"
        else torch.optim.SGD(module.parameters(), 0.05, momentum=0.9)
    )
    expected = by_torch(stream, module, torchs)
    torch.testing.assert_close(found[True], expected, rtol=1e-5, atol=1e-6)
    assert (found[False] - expected).abs().max() > 1e-3


# A second model


class Reconstruction(ec.FineTune):
    """Trains a network to give back its inputs: a loss of its own, for labels that are none."""

    def likelihood(
        self, weights: Weights, memory: Any, batch: Batch, network: BayesianNetwork
    ) -> Terms:
        output = network(weights, batch.inputs, batch.head, training=True)
        return {"error": (output - batch.inputs).square().sum(1).mean()}


class WithAutoencoder(ec.FineTune):
    """Trains a second network beside the learner's own and notes how well it does."""

    def begin(self, lesson: Lesson) -> Start:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            network = BayesianNetwork(
                nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 4)), point=lambda name: True
            )
        q, x = network.initial(1.0), lesson.task.inputs()
        sources = (Source((lesson.task,)),)
        found = lesson.fit(
            Reconstruction(), network, q, Nothing(), sources, purpose="second model", epochs=1500
        ).q
        for name, weights in (("before", q), ("after", found)):
            error = (network(weights, x) - x).square().sum(1).mean()
            lesson.calibrated[name] = float(error.detach())
        return super().begin(lesson)


def test_a_second_model_learns_by_a_loss_of_its_own() -> None:
    """Two hidden units can do no better than the first two principal components."""
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)) * torch.tensor([3, 2, 1, 1])
    stream = ec.tasks([(x, torch.arange(60) % 2)], scenario="domain")
    one = ec.Learner(
        nn.Linear(4, 2), WithAutoencoder(), epochs=2, learning_rate=1e-2, compile="off"
    ).learn(stream[0])
    data = stream[0].train.inputs()
    singular = torch.linalg.svdvals(data - data.mean(0))
    least = float(singular[2:].square().sum() / len(data))
    noted = one.learned[0].calibrated
    assert noted["before"] > 2 * least
    assert least <= noted["after"] + 1e-4 <= 1.05 * least
