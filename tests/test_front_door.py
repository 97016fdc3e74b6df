"""What people give by mistake is refused in one line that says what to do, or is as meant."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import evclplus as ec
from evclplus.core.examples import Examples
from evclplus.errors import ConversionError, DataError, EvclplusError, SettingsError, StateError
from tests.helpers import Convolutional, blobs, small_network

TRAINING: dict[str, Any] = {"epochs": 3, "batch_size": 20, "learning_rate": 1e-2}


def learner(method: Any = "ewc", network: nn.Module | None = None, **options: Any) -> ec.Learner:
    return ec.Learner(network or small_network(), method, **TRAINING | options)


def learned(**options: Any) -> ec.Learner:
    return learner(**options).learn(blobs()[0])


X = torch.zeros(4, 4)
Y = torch.zeros(4, dtype=torch.int64)

MISUSE: list[tuple[Callable[[], object], str]] = [
    (lambda: ec.Learner(None), "expected a torch.nn.Module"),  # type: ignore[arg-type]
    (lambda: ec.Learner(nn.Linear), "expected a torch.nn.Module"),  # type: ignore[arg-type]
    (lambda: learner(ec.EVCLPlus), "an object such as EVCLPlus()"),
    (lambda: learner(None), "an object such as EVCLPlus()"),
    (lambda: learner(point="bias"), "a function of a parameter's name"),
    (lambda: learner(seed=None), "seed = None is wrong"),
    (lambda: learner(seed=1.5), r"seed = 1\.5 is wrong"),
    (lambda: learner(seed=True), "seed = True is wrong"),
    (lambda: learner(seed=-1), "seed = -1 is wrong"),
    (lambda: learner(seed=2**70), "seed = .* is wrong"),
    (lambda: learner(samples=2**64), "at most 1000000"),
    (lambda: learner(samples=float("nan")), "samples = nan is wrong"),
    (lambda: learner(device="meta"), "device = 'meta' cannot be used"),
    (lambda: learner().learn(blobs()), "learn takes one task, not a Stream"),  # type: ignore[arg-type]
    (lambda: learner().learn((X, Y)), "learn takes one task, not a tuple"),  # type: ignore[arg-type]
    (lambda: learned(criterion=int), "the criterion fails: TypeError"),
    (lambda: learned(criterion=lambda output, y: output), "expected the mean loss"),
    (lambda: learned().evaluate([]), "no tasks to evaluate"),
    (lambda: learned().evaluate(5), "the tasks to evaluate are of type int"),  # type: ignore[arg-type]
    (lambda: learned().evaluate(["task 1"]), "is no task"),  # type: ignore[list-item]
    (lambda: learned().evaluate(blobs()[0], on="tests"), "one of test, validation, train"),  # type: ignore[arg-type]
    (lambda: learned().predict(X, task="task 9"), "task 'task 9' is not learned yet"),
    (lambda: learned().predict(X, task=1.0), r"there is no task 1\.0"),  # type: ignore[arg-type]
    (lambda: learned().predict(X, task=True), "there is no task True"),
    (lambda: learned().predict(None), "x is not an array of numbers"),
    (lambda: learned().predict("four"), "x is not an array of numbers"),
    (lambda: learned().predict([[1, 2], [3]]), "x is not an array of numbers"),
    (lambda: learned().predict({"a": 1}), "x is not an array of numbers"),
    (lambda: learned().predict(np.array([[object()] * 4])), "x is not an array of numbers"),
    (lambda: learned().predict(X.to(torch.complex64)), "x holds complex numbers"),
    (lambda: learned().predict(X.to_sparse()), "give a dense one"),
    (lambda: learned().predict(X.to("meta")), "give a dense one"),
    (lambda: ec.tasks(5), "the tasks are of type int"),  # type: ignore[arg-type]
    (lambda: ec.tasks(zip()), "at least one task"),
    (lambda: ec.task(X, Y, name=5, outputs=2), "the name of a task is 5"),  # type: ignore[arg-type]
    (lambda: ec.task(X, Y, name="\ud800", outputs=2), "cannot be written as UTF-8"),
    (lambda: ec.task(X, Y, name="a", outputs=1.5), r"outputs = 1\.5 is wrong"),  # type: ignore[arg-type]
    (lambda: ec.task(X, Y, name="a", outputs=2, head=-1), "head = -1 is wrong"),
    (lambda: ec.regression_task(X, Y, name=None), "the name of a task is None"),  # type: ignore[arg-type]
    (lambda: ec.split_tasks(*data((0, 1)), class_names=5), "class_names are of type int"),  # type: ignore[arg-type]
    (lambda: ec.Task("a", 0, X, X, X), "ec.task"),  # type: ignore[arg-type]
    (lambda: Examples(X, Y.to(torch.int32), 2), "expected int64 for classes"),
    (lambda: Examples(X, Y.numpy(), 2), "the labels of examples are of type ndarray"),  # type: ignore[arg-type]
    (lambda: Examples(torch.tensor(1.0), Y, 2), "at least 2 dimensions"),
    (lambda: ec.networks.mlp(4, [8], heads=2), "heads = 2 is wrong"),  # type: ignore[arg-type]
    (lambda: ec.networks.mlp(4, [0]), "hidden.0 = 0 is wrong"),
    (lambda: ec.networks.mlp(4, [-1]), "hidden.0 = -1 is wrong"),
    (lambda: ec.networks.mlp(4, [10**11]), "hidden.0 = 100000000000 is wrong"),
    (lambda: ec.networks.mlp(10**7, [10**7]), "cannot be made"),
    (lambda: ec.networks.mlp(4, [8], seed=-1), "seed = -1 is wrong"),
    (lambda: ec.networks.convnet((1, 8, 8), [4] * 4), "halve 8x8 pixels until none is left"),
    (lambda: ec.networks.convnet((8, 8)), "a convnet reads"),
    (lambda: ec.MultiHead(nn.Linear(4, 4), (2, 2)), "was given 2 as head"),  # type: ignore[arg-type]
    (lambda: ec.MultiHead(None), "was given None as body"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "message"), MISUSE, ids=[message for _, message in MISUSE])
def test_misuse_is_one_clear_line(call: Callable[[], object], message: str) -> None:
    with pytest.raises(EvclplusError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("seed", [np.int64(3), torch.tensor(3)])
def test_a_seed_is_its_number_whoever_made_it(seed: Any) -> None:
    assert torch.equal(learned(seed=seed).q.mean, learned(seed=3).q.mean)


def test_a_learner_can_be_copied() -> None:
    original = learned(method="vcl")
    other = copy.deepcopy(original).learn(blobs()[1])
    assert len(original.learned) == 1
    assert len(other.learned) == 2


# Arrays as people have them


def test_the_same_numbers_give_the_same_answers_however_they_lie() -> None:
    one = learned(method="evcl+")
    x = blobs()[0].test.inputs().numpy()
    expected = one.predict_proba(x)
    forms = [
        x[::-1].copy()[::-1],
        x[:, ::-1].copy()[:, ::-1],
        np.asfortranarray(x),
        np.concatenate([x, x], 1)[:, :4],
        x.astype(">f4"),
        x.tolist(),
        torch.from_numpy(x).t().contiguous().t(),
    ]
    for form in forms:
        assert torch.equal(one.predict_proba(form), expected)
    assert torch.equal(one.predict(x, task="task 1"), one.predict(x, task=0))


class Centring(nn.Module):
    """Works on its input in place."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x -= 0.5
        out: Tensor = self.layer(x)
        return out


class Apart(Centring):
    """The same, but for that."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x - 0.5)
        return out


def test_a_module_that_changes_its_input_changes_nobodys_array() -> None:
    x = blobs()[0].test.inputs()
    before, answers = x.clone(), []
    for kind in (Centring, Apart):
        torch.manual_seed(0)
        one = learner("ewc", kind()).learn(blobs()[0])
        answers.append(one.predict_proba(x))
        assert torch.equal(x, before)
        several = learner("vcl", kind()).learn(blobs()[0])
        assert torch.equal(several.predict_proba(x), several.predict_proba(x))
    assert torch.equal(*answers)


def test_bytes_that_nobody_scaled_are_seen() -> None:
    pixels = torch.randint(0, 256, (40, 4), dtype=torch.uint8)
    y = (pixels[:, 0] > 127).long()
    one = learner().learn(ec.task(pixels, y, name="bytes", outputs=2))
    for x in (pixels, pixels.float(), pixels.long()):
        with pytest.raises(DataError, match="scale"):
            one.predict(x)
    assert one.predict(pixels.float() / 255).shape == (40,)
    assert one.predict((pixels > 100).float()).shape == (40,)


def test_zeros_and_ones_are_no_pixels_even_as_bytes() -> None:
    numbers = torch.randint(0, 2, (60, 4), dtype=torch.uint8)
    y = (numbers[:, 0] ^ numbers[:, 1]).long()
    found = []
    for x in (numbers, numbers.float()):
        one = learner(epochs=10).learn(ec.task(x, y, name="a", outputs=2, test=(x, y)))
        found.append(one.predict_proba(x))
    assert torch.equal(*found)
    assert ec.task(numbers, y, name="a", outputs=2).train.view.scale == 1
    assert ec.task(2 * numbers, y, name="a", outputs=2).train.view.scale == 1 / 255


# Labels as people have them


def data(classes: tuple[int, ...], each: int = 30, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.tensor(classes).repeat_interleave(each)
    centres = 3 * torch.randn(100, 4, generator=torch.Generator().manual_seed(1))
    return centres[y] + 0.1 * torch.randn(len(y), 4, generator=generator), y


@pytest.mark.parametrize("scenario", ["task", "class"])
def test_predictions_are_the_callers_labels(scenario: Any) -> None:
    x, y = data((3, 7, 40, 12))
    stream = ec.split_tasks(x, y, groups=((7, 3), (40, 12)), scenario=scenario)
    assert stream.classes == (7, 3, 40, 12)
    one = learner("joint", epochs=60)
    for task in stream:
        one.learn(task)
    for position, (task, group) in enumerate(zip(stream, ((7, 3), (40, 12)), strict=True)):
        inside = torch.isin(y, torch.tensor(group))
        predicted = one.predict(x[inside], task=None if scenario == "class" else position)
        assert (predicted == y[inside]).float().mean() > 0.95
        columns = one.classes(task)
        assert columns == (stream.classes if scenario == "class" else group)
        best = one.predict_proba(x[inside], task=position).argmax(1)
        assert [columns[index] for index in best] == one.predict(x[inside], position).tolist()
    assert one.evaluate(stream).average_accuracy > 0.95


def test_labels_survive_a_save(tmp_path: Any) -> None:
    x, y = data((3, 7))
    one = learner(epochs=20).learn(ec.split_tasks(x, y)[0])
    again = ec.Learner.load(one.save(tmp_path))
    assert again.classes() == (3, 7)
    assert torch.equal(again.predict(x), one.predict(x))
    assert set(again.predict(x).tolist()) == {3, 7}


def test_a_head_of_several_domains_says_which_when_it_is_asked_for_one() -> None:
    x, y = data((3, 7, 40, 12))
    one = learner(epochs=20)
    for task in ec.split_tasks(x, y, scenario="domain"):
        one.learn(task)
    assert [one.classes(0), one.classes(1)] == [(3, 7), (12, 40)]
    assert one.classes() == (0, 1)  # nobody can know which domain it is
    assert set(one.predict(x).tolist()) <= {0, 1}
    days = learner(epochs=20)
    for day in ec.tasks([data((3, 7)), data((3, 7), seed=1)], scenario="domain"):
        days.learn(day)
    assert days.classes() == (3, 7)


# Tasks that are not what their names say


def test_a_task_of_the_same_name_is_not_the_same_task() -> None:
    x, y = data((0, 1))
    first, second = (ec.permuted_tasks(x, y, tasks=2, seed=seed) for seed in (0, 1))
    one = learner().learn(first[0])
    assert one.evaluate(first[0]).tasks == ("permutation 1",)
    with pytest.raises(StateError, match="scaled or reordered in another way"):
        one.evaluate(second[0])
    scaled = ec.permuted_tasks(x, y, tasks=2, seed=0, scaling="standard")
    with pytest.raises(StateError, match="scaled or reordered in another way"):
        one.evaluate(scaled[0])
    other_head = ec.task(x, y, name="permutation 1", outputs=2, head=1, test=(x, y))
    for ask in (one.evaluate, lambda task: one.predict(x, task=task)):
        with pytest.raises(StateError, match="was learned with head 0"):
            ask(other_head)


@pytest.mark.parametrize("scenario", ["task", "class"])
def test_a_second_stream_does_not_take_the_heads_of_the_first(scenario: Any) -> None:
    first, second = (
        ec.tasks([data(classes)], scenario=scenario, names=[name])
        for classes, name in (((0, 1), "one"), ((2, 3), "two"))
    )
    one = learner().learn(first[0])
    with pytest.raises(StateError, match=r"answers for \(0, 1\) of task 'one' already"):
        one.learn(second[0])
    assert len(one.learned) == 1


@pytest.mark.parametrize("part", ["test", "validation"])
def test_a_class_that_is_not_learned_cannot_be_tested(part: Any) -> None:
    x, y = data((0, 1))
    more = data((0, 1, 2), seed=1)
    message = f"30 of the 90 {part} examples of .* such as 2"
    with pytest.raises(DataError, match=message):
        ec.split_tasks(x, y, **{part: more})  # type: ignore[arg-type]
    with pytest.raises(DataError, match=message):
        ec.tasks([(x, y)], **{part: [more]})  # type: ignore[arg-type]


def test_few_examples_leave_every_class_one() -> None:
    x, y = data((0, 1, 2, 3))
    with pytest.raises(DataError, match=r"no training \(examples_per_task 3\) examples of class"):
        ec.split_tasks(x, y, classes_per_task=4, examples_per_task=3)
    assert len(ec.split_tasks(x, y, classes_per_task=4, examples_per_task=4)[0].train) == 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scale": 0}, "a factor of 0 makes all inputs equal"),
        ({"groups": []}, "every group needs a class"),
        ({"tasks": 10**9}, "tasks"),
    ],
)
def test_settings_of_a_stream_that_make_no_sense(settings: Any, message: str) -> None:
    with pytest.raises((SettingsError, DataError), match=message):
        ec.benchmark("split-digits", **settings)


def test_a_stream_is_not_longer_than_it_can_be() -> None:
    with pytest.raises(SettingsError, match="tasks = 1000000000 is wrong"):
        ec.permuted_tasks(*data((0, 1)), tasks=10**9)


# Modules as people have them


def spectral() -> nn.Module:
    layer = nn.utils.spectral_norm(nn.Linear(4, 8))
    return nn.Sequential(layer, nn.ReLU(), nn.Linear(8, 2))


@pytest.mark.filterwarnings("ignore:`torch.nn.utils")
@pytest.mark.parametrize("name", ["evcl+", "ewc"])
def test_weights_that_a_hook_makes_are_left_to_it(name: str) -> None:
    one = learner(name, spectral()).learn(blobs()[0])
    assert "0" not in one.network.local_layers
    assert one.predict_proba(blobs()[0].test.inputs()).shape[1] == 2


@pytest.mark.parametrize("name", ["evcl+", "ewc", "vcl-random"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_network_of_another_precision(name: str, dtype: torch.dtype) -> None:
    few = {"coreset_size": 5, "coreset_epochs": 2} if name == "vcl-random" else {}
    one = learner(ec.method(name, **few), nn.Sequential(nn.Linear(4, 2)).to(dtype))
    for task in blobs(scenario="domain"):
        one.learn(task)
    assert one.q.mean.dtype == dtype
    evaluation = one.evaluate(blobs(scenario="domain"))
    assert 0 <= evaluation.average_accuracy <= 1


@pytest.mark.parametrize("name", ["evcl+", "ewc", "vcl-random"])
def test_everything_works_in_inference_mode(name: str) -> None:
    few = {"coreset_size": 5, "coreset_epochs": 2} if name == "vcl-random" else {}
    outside = learner(ec.method(name, **few))
    x = blobs()[0].test.inputs()
    for task in blobs():
        outside.learn(task)
    with torch.inference_mode():
        inside = learner(ec.method(name, **few))
        for task in blobs():
            inside.learn(task)
        assert torch.equal(inside.q.mean, outside.q.mean)
        assert torch.equal(inside.predict_proba(x, 0), outside.predict_proba(x, 0))
        assert inside.evaluate(blobs()) == outside.evaluate(blobs())
    assert torch.equal(inside.predict_proba(x, 1), outside.predict_proba(x, 1))


class Returns(nn.Module):
    def __init__(self, make: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.make = nn.Linear(4, 2), make

    def forward(self, x: Tensor) -> Any:
        return self.make(self.layer(x))


@pytest.mark.parametrize("make", [lambda y: (y, y), lambda y: {"y": y}, lambda y: [y], lambda y: 1])
def test_a_module_must_return_a_tensor(make: Callable[[Tensor], Any]) -> None:
    with pytest.raises(DataError, match="expected \\(inputs, outputs\\)"):
        learner("ewc", Returns(make)).learn(blobs()[0])


def test_batch_normalisation_needs_more_than_one() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    with pytest.raises(DataError, match="set batch_size higher"):
        learner("ewc", module, batch_size=1).learn(blobs()[0])
    learner("ewc", Convolutional(), batch_size=1, epochs=1).learn(blobs()[0])  # three positions
    plain = nn.Sequential(nn.Linear(4, 2))
    learner("ewc", plain, batch_size=1, epochs=1).learn(blobs()[0])


def test_who_keeps_everything_keeps_it_as_it_was() -> None:
    x, y = torch.randn(30, 4), torch.arange(30) % 2
    buffer = x.clone()
    one = learner("joint").learn(ec.task(buffer, y, name="monday", outputs=2))
    buffer.zero_()
    (stored,) = one.memory.stored
    assert torch.equal(stored.inputs(), x)


def test_a_conversion_error_is_a_type_error() -> None:
    with pytest.raises(ConversionError):
        ec.Learner(5)  # type: ignore[arg-type]
