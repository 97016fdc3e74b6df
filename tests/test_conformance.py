"""What every registered method and benchmark must do. A new one is tested by being registered."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import evclplus as ec
from evclplus.benchmarks.registry import BENCHMARKS
from evclplus.errors import FileError
from evclplus.experiments.config import Experiment
from evclplus.experiments.run import resolve, run
from evclplus.methods import METHODS
from evclplus.settings import Training

SCENARIOS = ("task", "domain", "class")


def small_stream(scenario: str) -> ec.Stream:
    return ec.benchmark("split-digits", tasks=2, examples_per_task=60, scenario=scenario)


def build(name: str) -> ec.Method:
    options = {"coreset_size": 20} if "coreset_size" in METHODS[name].options else {}
    return ec.method(name, **options)


def learner_for(name: str, stream: ec.Stream, network: nn.Module, **changes: Any) -> ec.Learner:
    training = {"epochs": 8, "batch_size": 20, "learning_rate": 5e-3, **changes}
    return ec.Learner(network, build(name), **training)


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("name", METHODS)
def test_method(name: str, scenario: str, tmp_path: Path) -> None:
    stream = small_stream(scenario)
    network = ec.networks.mlp(64, [16], heads=stream.heads)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    learner = learner_for(name, stream, network)
    # Learns: better than the two classes' chance right after the task.
    learner.learn(stream[0])
    assert learner.evaluate(stream[0]).average_accuracy > 0.7
    learner.save(tmp_path / "model")
    learner.learn(stream[1])
    # Remembers shapes: a distribution over the outputs of the head.
    x = stream[1].test.inputs()[:5]
    probabilities = learner.predict_proba(x, task=1)
    assert probabilities.shape == (5, 4 if scenario == "class" else 2)
    torch.testing.assert_close(probabilities.sum(1), torch.ones(5))
    # Is deterministic.
    again = learner_for(name, stream, network)
    for task in stream:
        again.learn(task)
    assert torch.equal(again.predict_proba(x, task=1), probabilities)
    # Saves and loads, and goes on the same.
    loaded = ec.Learner.load(tmp_path / "model").learn(stream[1])
    assert torch.equal(loaded.predict_proba(x, task=1), probabilities)
    # Never touches the user's module.
    after = network.state_dict()
    assert all(torch.equal(value, after[key]) for key, value in before.items())
    assert all(parameter.grad is None for parameter in network.parameters())


@pytest.mark.parametrize("name", METHODS)
def test_options_build_the_same_method_again(name: str) -> None:
    made = build(name)
    assert made.title == name
    assert ec.method(name, **made.options()) == made
    assert set(made.options()) == set(METHODS[name].options)
    assert METHODS[name].description


@pytest.mark.parametrize("name", BENCHMARKS)
def test_benchmark(name: str) -> None:
    settings: dict[str, Any] = {"examples_per_task": 30}
    try:
        stream = ec.benchmark(name, seed=1, **settings)
    except FileError as error:
        pytest.skip(f"data not here: {error}")
    assert 1 < len(stream) <= 10
    assert len({task.name for task in stream}) == len(stream)
    for task in stream:
        for side in (task.train, task.validation, task.test):
            assert len(side) > 0
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
    assert run(first.config).accuracy == first.accuracy


@pytest.mark.parametrize("kind", ["mlp", "convnet"])
def test_ready_networks(kind: str) -> None:
    stream = ec.benchmark("split-digits", tasks=1)
    if kind == "mlp":
        network = ec.networks.mlp(64, [8, 8], heads=stream.heads)
    else:
        network = ec.networks.convnet(stream.input_shape, [4, 8], heads=stream.heads)
    learner = learner_for("evcl+", stream, network, epochs=15).learn(stream[0])
    assert learner.evaluate(stream[0]).average_accuracy > 0.8
    make = ec.networks.mlp
    first, second = (make(64, [8], seed=seed).state_dict()["body.1.weight"] for seed in (0, 1))
    assert not torch.equal(first, second)
