from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import evclplus as ec
from evclplus.callbacks import Callback, LazyTerms
from evclplus.checks import as_input
from evclplus.core import examples
from evclplus.core.examples import Examples
from evclplus.core.likelihoods import Regression
from evclplus.core.noise import new_seeds
from evclplus.errors import DataError, SettingsError, StateError, TrainingError
from evclplus.methods.base import Lesson, Start
from evclplus.methods.finetune import FineTune
from evclplus.seeding import generator
from tests.helpers import Convolutional, blobs, small_network

TRAINING: dict[str, Any] = {"epochs": 20, "batch_size": 20, "learning_rate": 1e-2}


def learned(method: ec.Method | str = "vcl", tasks: int = 2, **options: Any) -> ec.Learner:
    stream = blobs()
    learner = ec.Learner(small_network(), method, **{**TRAINING, **options})
    for task in stream.tasks[:tasks]:
        learner.learn(task)
    return learner


def test_it_learns_and_predicts() -> None:
    stream, learner = blobs(), learned()
    evaluation = learner.evaluate(stream)
    assert evaluation.average_accuracy > 0.9
    assert str(evaluation).startswith("task 1 ")
    x = stream[1].test.inputs()
    probabilities = learner.predict_proba(x, task=1, samples=50)
    assert probabilities.shape == (len(x), 2)
    torch.testing.assert_close(probabilities.sum(1), torch.ones(len(x)))
    assert torch.equal(learner.predict(x, task=stream[1]), learner.predict(x.numpy(), task=1))


def test_more_samples_converge() -> None:
    learner = learned(ec.VCL(initial_variance=0.05))
    x = blobs()[0].test.inputs()
    many, few = (learner.predict_proba(x, 0, samples=n) for n in (4000, 2000))
    one = learner.predict_proba(x, 0, samples=1)
    assert (many - few).abs().max() < 0.05
    assert (many - one).abs().max() > (many - few).abs().max()


@pytest.mark.parametrize("body", ["mlp", "convnet", "attention"])
def test_an_answer_does_not_depend_on_its_neighbours(
    body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor on its place, nor on how the rows lie in memory or are cut to be looked at."""
    torch.manual_seed(0)
    network, shape = {
        "mlp": (ec.networks.mlp(16, [12]), (16,)),
        "convnet": (ec.networks.convnet((1, 8, 8)), (1, 8, 8)),
        "attention": (
            ec.MultiHead(
                nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), nn.Flatten())
            ),
            (4, 4),
        ),
    }[body]
    x = torch.randn(30, *shape)
    stream = ec.tasks([(x, torch.arange(30) % 3)], test=[(x, torch.arange(30) % 3)])
    learner = ec.Learner(network, ec.VCL(initial_variance=0.1), epochs=1).learn(stream[0])
    together = learner.predict_proba(x)
    assert (together - learner.predict_proba(x, samples=9)).abs().max() > 1e-3
    order = torch.randperm(30)
    turned = learner.predict_proba(x[order])
    torch.testing.assert_close(turned, together[order], rtol=1e-4, atol=1e-6)
    alone = torch.cat([learner.predict_proba(x[row : row + 1]) for row in range(30)])
    torch.testing.assert_close(alone, together, rtol=1e-4, atol=1e-6)
    transposed = x.movedim(0, -1).contiguous().movedim(-1, 0)
    torch.testing.assert_close(learner.predict_proba(transposed), together, rtol=1e-4, atol=1e-6)
    monkeypatch.setattr(examples, "MOST_ROWS", 7)
    torch.testing.assert_close(learner.predict_proba(x), together, rtol=1e-4, atol=1e-6)


def test_probabilities_are_averaged_and_not_logits() -> None:
    learner = learned(ec.VCL(initial_variance=0.5), tasks=1, samples=2, epochs=2)
    x = 3 * blobs()[0].test.inputs()
    seeds = new_seeds(generator(learner.seed, 1, "predict", 0), 2)
    with torch.no_grad():
        logits = torch.stack(list(learner.network.samples(learner.q, x, 0, seeds)))
    each = logits.softmax(2)
    assert (each[0] - each[1]).abs().max() > 0.2  # two samples that say different things
    found = learner.predict_proba(x)
    torch.testing.assert_close(found, (each[0] + each[1]) / 2)
    assert (found - logits.mean(0).softmax(1)).abs().max() > 0.01
    data = -(each * each.log()).sum(2).mean(0)
    torch.testing.assert_close(learner.uncertainty(x).data, data, rtol=1e-4, atol=1e-5)


def test_uncertainty_splits_into_data_and_weights() -> None:
    learner = learned(ec.VCL(initial_variance=0.05))
    x = torch.cat([blobs()[0].test.inputs(), torch.zeros(1, 4), 100 * torch.ones(1, 4)])
    found = learner.uncertainty(x, task=0, samples=200)
    torch.testing.assert_close(found.total, found.data + found.weights, atol=1e-4, rtol=1e-4)
    assert (found.weights >= 0).all()
    probabilities = learner.predict_proba(x, 0, samples=200)
    expected = -(probabilities * probabilities.log()).nan_to_num().sum(1)
    torch.testing.assert_close(found.total, expected, atol=1e-5, rtol=1e-4)
    assert found.total[-2] > found.total[:-2].mean()  # between the classes


def test_point_weights_leave_nothing_open() -> None:
    found = learned("finetune").uncertainty(blobs()[0].test.inputs(), task=0)
    assert found.weights.max() < 1e-5


def test_same_seed_same_bits_whatever_the_global_state() -> None:
    torch.manual_seed(1)
    first = learned("evcl+")
    torch.manual_seed(2)
    torch.rand(5)
    state = torch.get_rng_state()
    second = learned("evcl+")
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(first.q.mean, second.q.mean)
    assert torch.equal(first.q.variance, second.q.variance)
    assert not torch.equal(first.q.mean, learned("evcl+", seed=1).q.mean)


def test_heads_come_as_tasks_arrive() -> None:
    stream = blobs(tasks=3)
    learner = ec.Learner(small_network(), "evcl+", **TRAINING)
    assert learner.network.heads == 0
    for count, task in enumerate(stream, start=1):
        before = {} if count == 1 else dict(learner.network.layout.named(learner.q.mean))
        learner.learn(task)
        assert learner.network.heads == count
        after = learner.network.layout.named(learner.q.mean)
        for head in range(count - 1):  # the heads of earlier tasks are as they were left
            assert torch.equal(before[f"heads.{head}.weight"], after[f"heads.{head}.weight"])
    assert learner.evaluate(stream).average_accuracy > 0.9
    assert [learner.predict_proba(torch.zeros(1, 4), task).shape[1] for task in range(3)] == [2] * 3


def test_a_method_is_told_how_many_earlier_tasks_share_the_head() -> None:
    told = []

    class Listening(FineTune):
        def begin(self, lesson: Lesson) -> Start:
            told.append(lesson.sharers)
            return super().begin(lesson)

    learner = ec.Learner(small_network(heads=()), Listening(), epochs=1)
    rng = np.random.default_rng(0)
    for number, head in enumerate((0, 1, 1, 0, 1)):
        x, y = rng.normal(size=(20, 4)).astype(np.float32), np.arange(20) % 2
        learner.learn(ec.task(x, y, name=str(number), outputs=2, head=head))
    assert told == [0, 0, 1, 1, 2]


def test_a_new_head_follows_the_seed_and_not_the_global_state() -> None:
    def head(global_seed: int, seed: int) -> Tensor:
        torch.manual_seed(global_seed)
        learner = learned("finetune", tasks=1, seed=seed, epochs=1, learning_rate=1e-9)
        return learner.network.layout.named(learner.q.mean)["heads.0.weight"]

    assert torch.equal(head(0, 0), head(1, 0))
    assert (head(0, 0) - head(0, 1)).abs().max() > 0.01


@pytest.mark.parametrize("name", ["finetune", "ewc", "evcl+", "si", "er"])
def test_a_class_incremental_head_becomes_wider(name: str) -> None:
    stream = blobs(tasks=3, scenario="class")
    options = {"replay_batch": 20} if name == "er" else {}
    # Old and new classes overlap: telling them apart takes a while.
    learner = ec.Learner(small_network(), ec.method(name, **options), **TRAINING | {"epochs": 60})
    for task in stream:
        learner.learn(task)
        outputs = 2 * (1 + task.index)
        assert learner.network.heads == 1
        assert learner.network.layout.named(learner.q.mean)["heads.0.weight"].shape == (outputs, 8)
        probabilities = learner.predict_proba(task.test.inputs())
        assert probabilities.shape == (len(task.test), outputs)
        assert learner.evaluate(task).average_accuracy > 0.6


def test_the_rows_of_old_classes_stay_when_a_head_becomes_wider() -> None:
    stream = blobs(tasks=2, scenario="class")
    learner = ec.Learner(small_network(), "evcl+", **TRAINING).learn(stream[0])
    before = learner.network.layout.named(learner.q.mean)["heads.0.weight"]
    learner.training = ec.Training(epochs=1, batch_size=1000, learning_rate=1e-9)
    learner.learn(stream[1])
    after = learner.network.layout.named(learner.q.mean)["heads.0.weight"]
    torch.testing.assert_close(after[:2], before, rtol=0, atol=1e-7)
    assert after[2:].abs().min() > 0


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool])
@pytest.mark.parametrize("name", ["finetune", "ewc", "evcl+"])
def test_whole_numbers_are_numbers_too(name: str, dtype: torch.dtype) -> None:
    numbers = torch.randint(0, 2 if dtype == torch.bool else 5, (60, 4))
    y = (numbers.sum(1) % 2).long()
    found = []
    for x in (numbers.to(dtype), numbers.float()):
        learner = ec.Learner(small_network(), name, **TRAINING)
        learner.learn(ec.task(x, y, name="numbers", outputs=2, test=(x, y)))
        found.append((learner.q.mean, learner.predict_proba(x)))
    for whole, real in zip(*found, strict=True):
        assert torch.equal(whole, real)


def test_regression_predicts_numbers() -> None:
    x = torch.linspace(-1, 1, 80)[:, None]
    y = torch.cat([2 * x + 1, -x], 1)
    task = ec.regression_task(x, y, name="lines", test=(x, y))
    module = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 2))
    settings = {**TRAINING, "epochs": 150}
    for method in ("ewc", ec.EVCLPlus(beta=0.01)):
        learner = ec.Learner(module, method, criterion=Regression(0.1), **settings).learn(task)
        torch.testing.assert_close(learner.predict(x), y, rtol=0, atol=0.25)
        for asked in (learner.predict_proba, learner.uncertainty):
            with pytest.raises(StateError, match=r"another criterion; predict\(x\) gives"):
                asked(x)
        with pytest.raises(StateError, match="scores are for classes"):
            learner.evaluate(task)


def test_a_criterion_of_your_own_is_what_is_minimised() -> None:
    x = torch.linspace(-1, 1, 81)[:, None]
    y = torch.where(x == 1, 100.0, 1.0)  # one wild label

    def absolute(output: Tensor, y: Tensor) -> Tensor:
        return (output - y).abs().mean()

    module = nn.Linear(1, 1)
    settings = {**TRAINING, "epochs": 150, "batch_size": 81}
    found = ec.Learner(module, "ewc", criterion=absolute, **settings)
    found.learn(ec.regression_task(x, y, name="median"))
    torch.testing.assert_close(found.predict(x), torch.ones(81, 1), rtol=0, atol=0.2)


def test_a_callback_hears_of_every_step() -> None:
    class Listening(Callback):
        def __init__(self) -> None:
            self.heard: list[Any] = []
            self.terms: Mapping[str, Tensor] = {}

        def start(self, label: str, steps: int) -> None:
            self.heard.append((label, steps))

        def advance(self, step: int, terms: LazyTerms) -> None:
            self.heard.append(step)
            self.terms = terms()

        def finish(self) -> None:
            self.heard.append("finish")

    listening = Listening()
    method = ec.VCL(start="mle", start_epochs=1)
    learned(method, tasks=1, callback=listening, epochs=2, batch_size=1000)
    assert listening.heard == [
        ("task 1 (task 1), start", 1),
        *(1, "finish"),
        ("task 1 (task 1), train", 2),
        *(1, 2, "finish"),
    ]
    assert {name: value.shape for name, value in listening.terms.items()} == {
        "nll": (),
        "kl": (),
    }


class Scaled(nn.Module):
    """A module with a parameter that is a single number."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.scale * self.layer(x)
        return out


@pytest.mark.parametrize("name", ["evcl+", "ewc", "si", "er"])
def test_a_parameter_may_be_a_single_number(name: str, tmp_path: Path) -> None:
    stream = blobs(scenario="domain")
    # So few examples cannot hold out against a narrow prior.
    method = ec.method(name, **({"prior_variance": 1.0} if name == "evcl+" else {}))
    learner = ec.Learner(Scaled(), method, **TRAINING)
    for task in stream:
        learner.learn(task)
    named = learner.network.layout.named(learner.q.mean)
    assert named["scale"].shape == ()
    assert named["scale"] != 1
    again = ec.Learner.load(learner.save(tmp_path), network=Scaled())
    x = stream[0].test.inputs()
    assert torch.equal(again.predict_proba(x), learner.predict_proba(x))
    heads = ec.Learner(ec.MultiHead(Scaled()), method, **{**TRAINING, "epochs": 60})
    for task in blobs():
        heads.learn(task)
    assert heads.evaluate(blobs()).average_accuracy > 0.9


def test_learning_works_where_gradients_are_switched_off() -> None:
    stream = blobs()
    with torch.no_grad():
        inside = ec.Learner(small_network(), "vcl", **TRAINING).learn(stream[0])
    assert torch.equal(inside.q.mean, learned("vcl", tasks=1).q.mean)


def test_dropout_follows_the_seed_too() -> None:
    torch.manual_seed(0)
    network = Convolutional()

    def run(global_seed: int, seed: int = 0) -> torch.Tensor:
        torch.manual_seed(global_seed)
        learner = ec.Learner(network, "vcl", seed=seed, **TRAINING)
        return learner.learn(blobs()[0]).q.mean

    assert torch.equal(run(1), run(2))
    assert not torch.equal(run(1), run(1, seed=1))


def test_data_that_arrives_batch_by_batch_and_is_not_kept() -> None:
    """The engineer's case: no stream known in advance, one head, the same classes."""
    generator = torch.Generator().manual_seed(0)
    learner = ec.Learner(small_network((2,)), ec.EVCLPlus(lam=10.0, beta=0.1), **TRAINING)

    def arrival(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(count, 4, generator=generator)
        return x, (x.sum(1) > 0).long()

    for day in range(3):
        x, y = arrival(100)
        task = ec.task(x, y, name=f"day {day}", outputs=2, test=arrival(100))
        learner.learn(task)
    assert learner.evaluate(task).average_accuracy > 0.9
    assert learner.predict(arrival(5)[0]).shape == (5,)
    unseen = ec.task(*arrival(50), name="day 3", outputs=2)
    with pytest.raises(DataError, match="no examples to be tested on"):
        learner.learn(unseen).evaluate(unseen)
    with pytest.raises(DataError, match="label 5, outside its head"):
        learner.learn(ec.task(x, y + 5, name="day 4", outputs=2))


# Bad input


def replaced(task: ec.Task, **changes: Any) -> ec.Task:
    train = {
        "store": task.train.inputs(),
        "labels": task.train.labels,
        "outputs": task.outputs,
        "head": task.head,
        **changes,
    }
    return ec.Task(task.name, task.index, Examples(**train), task.validation, task.test)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"store": torch.zeros(40, 5), "labels": torch.zeros(40).long()}, "cannot take the inputs"),
        ({"labels": torch.full((44,), 2)}, "label 2, outside its head, which takes 0 to 1"),
        ({"labels": torch.full((44,), -1)}, "label -1, outside its head"),
        ({"store": torch.zeros(0, 4), "labels": torch.zeros(0).long()}, "no training examples"),
        ({"store": torch.full((44, 4), torch.nan)}, "NaN or infinite inputs, first in example 0"),
        ({"store": torch.zeros(43, 4)}, "43 inputs but 44 labels"),
        ({"head": 7}, "wants head 7 but the network has 2, and heads come one after the other"),
    ],
)
def test_a_bad_task_is_refused_and_nothing_changes(changes: dict[str, Any], message: str) -> None:
    stream = blobs()
    learner = ec.Learner(small_network(stream.heads), "vcl", **TRAINING)
    before = learner.q.mean.clone()
    with pytest.raises(DataError, match=message) as caught:
        learner.learn(replaced(stream[0], **changes))
    assert "\n" not in str(caught.value)
    assert torch.equal(learner.q.mean, before)
    assert not learner.learned


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"outputs": 5}, "uses 5 outputs but head 0 of the network has 2"),
        ({"head": 1}, r"wants head 1 but the network has one; wrap it: MultiHead\(body\)"),
    ],
)
def test_a_module_without_heads_cannot_grow(changes: dict[str, Any], message: str) -> None:
    learner = ec.Learner(nn.Linear(4, 2), "vcl", **TRAINING)
    with pytest.raises(DataError, match=message):
        learner.learn(replaced(blobs()[0], **changes))
    assert not learner.learned


def test_the_order_of_calls_matters() -> None:
    stream = blobs()
    learner = ec.Learner(small_network(stream.heads), "vcl", **TRAINING)
    with pytest.raises(StateError, match="nothing is learned yet"):
        learner.predict(torch.zeros(1, 4))
    learner.learn(stream[0])
    with pytest.raises(StateError, match="was learned already"):
        learner.learn(stream[0])
    with pytest.raises(StateError, match="not learned yet"):
        learner.evaluate(stream)
    with pytest.raises(StateError, match="there is no task 1"):
        learner.predict(torch.zeros(1, 4), task=1)
    learner.learn(stream[1])
    assert learner.predict(torch.zeros(1, 4)).shape == (1,)  # a head is chosen


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(2, 5), "cannot take x"),
        (np.full((2, 4), np.inf), "NaN or infinite"),
        (np.array([[np.inf, -np.inf, 0, 0]]), "NaN or infinite"),
        (np.full((2, 4), 7, dtype=np.uint8), "raw bytes"),
        (np.zeros((0, 4)), "not empty"),
        (np.zeros(4), "expected"),
    ],
)
def test_bad_inputs_to_predict(x: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        learned().predict(x, task=0)


def test_large_inputs_are_finite_though_their_sum_is_not() -> None:
    x = torch.full((2, 4), 3e38)
    assert torch.equal(as_input(x, torch.float32), x)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ec.EVCLPlus(lam=-1.0), "lam = -1.0 is wrong"),
        (lambda: ec.EVCLPlus(lam=float("nan")), "lam"),
        (lambda: ec.EVCLPlus(lamb=1.0), "did you mean lam"),  # type: ignore[call-arg]
        (lambda: ec.VCL(beta="much"), "beta"),
        (lambda: ec.method("evcl++"), "did you mean evcl"),
        (lambda: ec.method("vcl-random", coreset_sise=1), "did you mean coreset_size"),
        (lambda: ec.Learner(nn.Linear(1, 2), epochs=0), "epochs = 0 is wrong"),
        (lambda: ec.Learner(nn.Linear(1, 2), samples=0), "samples = 0 is wrong"),
        (lambda: ec.Learner(nn.Linear(1, 2), samples=2.5), r"samples = 2\.5 is wrong"),  # type: ignore[arg-type]
        (lambda: ec.Learner(nn.Linear(1, 2), criterion="mse"), "criterion = 'mse' is wrong"),  # type: ignore[arg-type]
        (lambda: learned(tasks=1).predict(torch.zeros(1, 4), samples=0), "samples = 0"),
        (
            lambda: learned(tasks=1).predict_proba(torch.zeros(1, 4), samples=2.5),  # type: ignore[arg-type]
            r"samples = 2\.5 is wrong",
        ),
        (lambda: ec.benchmark("split-digit"), "did you mean split-digits"),
    ],
)
def test_bad_settings_are_one_clear_line(make: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_good_state() -> None:
    stream = blobs()
    learner = ec.Learner(small_network(stream.heads), ec.EWC(lam=1.0), **TRAINING)
    learner.learn(stream[0])
    before = learner.q.mean.clone()
    learner.method = ec.EWC(lam=1e38)
    learner.training = ec.Training(epochs=20, batch_size=20, learning_rate=1e3)
    with pytest.raises(
        TrainingError, match=r"task 2 \(task 2\).*epoch 1 of 20: a number is not finite \(nll nan"
    ):
        learner.learn(stream[1])
    assert torch.equal(learner.q.mean, before)
    assert len(learner.learned) == 1
    assert learner.evaluate(stream[0]).average_accuracy > 0.9


def test_a_device_that_is_not_there_is_one_clear_line() -> None:
    with pytest.raises(SettingsError, match=r"device = 'cuda:99' cannot be used: .*; leave it out"):
        ec.Learner(small_network(blobs().heads), device="cuda:99")
    with pytest.raises(SettingsError, match="device = 'gpu' cannot be used"):
        ec.Learner(small_network(blobs().heads), device="gpu")


def test_low_precision_learns_as_well(tmp_path: Path) -> None:
    stream = blobs()
    learner = ec.Learner(small_network(stream.heads), "evcl+", precision="bf16", **TRAINING)
    for task in stream:
        learner.learn(task)
    assert learner.evaluate(stream).average_accuracy > 0.9
    assert learner.q.mean.dtype == torch.float32
    saved = ec.Learner.load(learner.save(tmp_path / "model"), device="cpu")
    assert saved.training.precision == "bf16"
    assert saved.training.device == "cpu"


def test_a_head_of_ten_thousand_classes_learns_and_predicts() -> None:
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    y = torch.arange(40) * 249
    learner = ec.Learner(small_network(), epochs=2, batch_size=20, compile="off")
    for day in range(2):
        learner.learn(ec.task(x + day, y, name=f"day {day}", outputs=10_000))
    found = learner.predict_proba(torch.cat([x] * 5))
    assert found.shape == (200, 10_000)
    # The rows were answered in parts, each as if it had been asked alone.
    torch.testing.assert_close(found[160:], learner.predict_proba(x))
