"""What every registered method and benchmark must do. A new one is tested by being registered."""

from pathlib import Path
from typing import Any, ClassVar, get_args

import pytest
import torch
from torch import Tensor

import evclplus as ec
from evclplus.benchmarks.registry import BENCHMARKS
from evclplus.core.engine import Gradient, Here, Running, Step, Terms
from evclplus.core.gaussian import MeanField
from evclplus.errors import FileError
from evclplus.experiments.config import Experiment
from evclplus.experiments.run import resolve, run
from evclplus.methods import KINDS, METHODS, _plain, described, from_description, options_of
from evclplus.methods.base import Nothing, Role
from evclplus.methods.space import Log
from evclplus.settings import Optimiser, Settings, Training
from evclplus.testing import (
    check_compiled,
    check_goes_on_after_a_stop,
    check_method,
    example_learner,
    example_stream,
)

FEW = {"coreset_size": 10, "coreset_epochs": 30}


def build(name: str) -> ec.Method:
    return ec.method(name, **(FEW if "coreset_size" in METHODS[name].options else {}))


# Methods


@pytest.mark.parametrize("name", METHODS)
def test_method(name: str) -> None:
    check_method(build(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["evcl+", "ewc", "si", "er"])
def test_method_compiled(name: str) -> None:
    check_compiled(build(name))


# Every method does so uncompiled, in check_method; these have every kind of memory and of step.
# At the start of a task S-FSVI's term that holds answers has no gradient at all.
@pytest.mark.slow
@pytest.mark.parametrize("name", ["evcl+", "ewc", "er", "vcl-random", "s-fsvi"])
def test_method_compiled_goes_on_after_a_stop(name: str) -> None:
    check_goes_on_after_a_stop(build(name), compile="on", epochs=4)


@pytest.mark.parametrize("name", METHODS)
def test_options_build_the_same_method_again(name: str) -> None:
    made = build(name)
    assert ec.method(name, **options_of(made)) == made
    assert set(options_of(made)) == set(METHODS[name].options)
    assert from_description(described(made)) == made


@pytest.mark.parametrize("name", METHODS)
def test_an_entry_says_what_reports_and_searches_need(name: str) -> None:
    entry = METHODS[name]
    assert entry.description.endswith(".")
    assert entry.role in get_args(Role)
    assert len(entry.colour) == 7
    assert entry.colour.startswith("#")
    assert len(entry.marker) == 1
    assert entry.space
    training = {f"training.{option}" for option in Training.model_fields}
    assert set(entry.space) <= set(entry.options) | training
    for dimension, values in entry.space.items():
        tried = (values.low, values.high) if isinstance(values, Log) else values.values
        for value in tried:  # all of them are allowed
            if dimension.startswith("training."):
                Training(**{dimension.removeprefix("training."): value})
            else:
                ec.method(name, **{dimension: value})


def test_no_two_methods_look_the_same_in_a_figure() -> None:
    """By colour; there are fewer markers than methods."""
    assert len({entry.colour for entry in METHODS.values()}) == len(METHODS)


def test_every_kind_of_method_can_be_loaded_by_its_name() -> None:
    for name, entry in METHODS.items():
        assert KINDS[entry.kind.name] is entry.kind
        assert type(build(name)) in KINDS.values()


# One file and one line


class Halved(ec.Method):
    name: ClassVar[str] = "halved"

    def move(self, step: Step, memory: Nothing, here: Here) -> Step:
        return Step(step.mean / 2, step.log_std)


def test_a_method_works_without_being_registered() -> None:
    check_method(Halved())
    stream = example_stream()
    half = example_learner(Halved(), learning_rate=1e-2).learn(stream[0])
    slow = example_learner(ec.FineTune(), learning_rate=5e-3).learn(stream[0])
    torch.testing.assert_close(half.q.mean, slow.q.mean)


def test_a_method_may_do_without_a_docstring() -> None:
    assert Halved.__doc__ is None
    assert _plain(Halved).description == "Halved"
    assert _plain(Halved).build() == Halved()


# A wrapper forwards every verb

CALLED: list[str] = []


class Recording(ec.FineTune):
    """Notes which of its functions were called, and that they saw the memory that is its own."""

    @property
    def is_point(self) -> bool:
        CALLED.append("is_point")
        return super().is_point

    @property
    def averages_samples(self) -> bool:
        CALLED.append("averages_samples")
        return super().averages_samples

    @property
    def optimisers(self) -> tuple[Optimiser, ...]:
        CALLED.append("optimisers")
        return super().optimisers

    @property
    def learning_rates(self) -> dict[Optimiser, float]:
        CALLED.append("learning_rates")
        return super().learning_rates

    @property
    def needs_head_per_task(self) -> bool:
        CALLED.append("needs_head_per_task")
        return super().needs_head_per_task

    def keeps(self, memory: Any) -> bool:
        CALLED.append("keeps")
        return super().keeps(memory)

    def has_variance(self, name: str) -> bool:
        CALLED.append("has_variance")
        return super().has_variance(name)

    def network_of(self, module: Any) -> Any:
        CALLED.append("network_of")
        return super().network_of(module)

    @property
    def memory_types(self) -> tuple[type, ...]:
        CALLED.append("memory_types")
        return super().memory_types

    def initial(self, network: Any) -> MeanField:
        CALLED.append("initial")
        return super().initial(network)

    def first_memory(self, q: MeanField) -> Any:
        CALLED.append("first_memory")
        return super().first_memory(q)

    def begin(self, lesson: Any) -> Any:
        CALLED.append("begin")
        assert lesson.memory == Nothing()
        return super().begin(lesson)

    def end(self, lesson: Any, start: Any, trained: Any) -> Any:
        CALLED.append("end")
        assert (lesson.memory, start.memory) == (Nothing(), Nothing())
        return super().end(lesson, start, trained)

    def predictor(self, network: Any, q: MeanField, memory: Any, head: int, fit: Any) -> Any:
        CALLED.append("predictor")
        assert memory == Nothing()
        return super().predictor(network, q, memory, head, fit)

    def likelihood(self, weights: Any, memory: Any, batch: Any, network: Any) -> Terms:
        CALLED.append("likelihood")
        assert memory == Nothing()
        return super().likelihood(weights, memory, batch, network)

    def regulariser(self, q: MeanField, memory: Any, examples: Tensor) -> Terms:
        CALLED.append("regulariser")
        assert memory == Nothing()
        return super().regulariser(q, memory, examples)

    def move(self, step: Step, memory: Any, here: Here) -> Step:
        CALLED.append("move")
        assert memory == Nothing()
        return super().move(step, memory, here)

    def trace(self, q: MeanField) -> Running:
        CALLED.append("trace")
        return {"steps": q.mean.new_zeros(())}

    def follow(self, running: Running, gradient: Gradient, step: Step) -> Running:
        CALLED.append("follow")
        return {"steps": running["steps"] + 1}


def public_functions(kind: type) -> set[str]:
    """The functions and properties that a class itself has for others."""
    own = vars(kind).items()
    return {
        name
        for name, value in own
        if (callable(value) or isinstance(value, property))
        and not isinstance(value, type)
        and not name.startswith(("_", "model_"))
        and name not in vars(Settings)
    }


def test_a_coreset_forwards_every_verb(tmp_path: Path) -> None:
    verbs = public_functions(ec.Method)
    assert {"begin", "end", "predictor", "likelihood", "move", "follow", "is_point"} <= verbs
    assert verbs <= public_functions(ec.Coreset)
    assert verbs <= public_functions(Recording)  # a new verb is recorded too

    def called(act: Any) -> set[str]:
        CALLED.clear()
        act()
        return set(CALLED)

    stream = example_stream()
    method = ec.Coreset(method=Recording(), **FEW)
    learner = example_learner(method)
    made = called(lambda: example_learner(method))
    # Learning calls nothing but the coreset; only a prediction trains with the method itself.
    trained = called(lambda: learner.learn(stream[0]).learn(stream[1]))
    asked = called(lambda: learner.predict(stream[0].test.inputs(), task=0))
    path = learner.save(tmp_path)
    loaded = called(lambda: ec.Learner.load(path, method=method))
    assert {"is_point", "optimisers", "initial", "first_memory"} <= made
    steps = {"likelihood", "regulariser", "move", "trace", "follow"}
    assert steps | {"begin", "end"} <= trained
    assert {"predictor", "averages_samples"} <= asked
    assert "memory_types" in loaded
    assert verbs <= made | trained | asked | loaded


# Benchmarks


@pytest.mark.parametrize("name", BENCHMARKS)
def test_benchmark(name: str) -> None:
    settings: dict[str, Any] = {"examples_per_task": 30}
    try:
        stream = ec.benchmark(name, seed=1, **settings)
    except FileError as error:
        pytest.skip(f"data not here: {error}")
    assert 1 < len(stream) <= 13
    assert len({task.name for task in stream}) == len(stream)
    for task in stream:
        for side in (task.train, task.validation, task.test):
            assert len(side) > 0
            if side.labels.is_floating_point():
                assert side.labels.shape == (len(side), side.outputs)
            else:
                assert 0 <= side.labels.min() <= side.labels.max() < side.outputs
            assert side.outputs <= stream.heads[side.head]
        x = task.train.inputs(torch.arange(4))
        assert x.dtype == torch.float32
        assert x.shape == (4, *stream.input_shape)
    # The same seed gives the same stream.
    again = ec.benchmark(name, seed=1, **settings)
    for one, other in zip(stream, again, strict=True):
        assert torch.equal(one.train.inputs(), other.train.inputs())
        assert torch.equal(one.test.labels, other.test.labels)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_the_settings_in_a_record_run_it_again(name: str) -> None:
    experiment = Experiment(
        method="finetune",
        benchmark=name,
        stream={"examples_per_task": 30, "tasks": 2},
        training=Training(epochs=1),
    )
    try:
        first = run(experiment)
    except FileError as error:
        pytest.skip(f"data not here: {error}")
    assert resolve(first.config)[0] == first.config
    assert run(first.config).matrix == first.matrix


@pytest.mark.parametrize("kind", ["mlp", "convnet"])
def test_ready_networks(kind: str) -> None:
    stream = ec.benchmark("split-digits", tasks=2)
    if kind == "mlp":
        network = ec.networks.mlp(64, [8, 8])
    else:
        network = ec.networks.convnet(stream.input_shape, [4, 8])
    learner = ec.Learner(network, "evcl+", epochs=15, batch_size=20, learning_rate=5e-3)
    for task in stream:
        learner.learn(task)
        assert learner.evaluate(task).average_accuracy > 0.8
    make = ec.networks.mlp
    first, second = (make(64, [8], seed=seed).state_dict()["body.1.weight"] for seed in (0, 1))
    assert not torch.equal(first, second)
