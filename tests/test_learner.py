import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

import evclplus as ec
from evclplus.checks import as_input
from evclplus.core.examples import Examples
from evclplus.errors import DataError, FileError, SettingsError, StateError, TrainingError
from tests.helpers import Convolutional, blobs, small_network

TRAINING: dict[str, Any] = {"epochs": 20, "batch_size": 20, "learning_rate": 1e-2}


def learned(method: ec.Method | str = "vcl", tasks: int = 2, **options: Any) -> ec.Learner:
    stream = blobs()
    learner = ec.Learner(small_network(stream.heads), method, **{**TRAINING, **options})
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


def test_learning_works_where_gradients_are_switched_off() -> None:
    stream = blobs()
    with torch.no_grad():
        inside = ec.Learner(small_network(stream.heads), "vcl", **TRAINING).learn(stream[0])
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


# Saving


@pytest.mark.parametrize("name", ["evcl+", "vcl-kcenter", "ewc", "joint", "coreset-random"])
def test_save_load_go_on_equals_never_having_stopped(name: str, tmp_path: Path) -> None:
    options = {"coreset_size": 10} if "coreset_size" in ec.METHODS[name].options else {}
    stream = blobs(tasks=3)
    straight = ec.Learner(small_network(stream.heads), ec.method(name, **options), **TRAINING)
    for task in stream:
        straight.learn(task)
    stopped = ec.Learner(small_network(stream.heads), ec.method(name, **options), **TRAINING)
    stopped.learn(stream[0])
    stopped.save(tmp_path / "model")
    again = ec.Learner.load(tmp_path / "model")
    x = stream[0].test.inputs()
    assert torch.equal(again.predict_proba(x, 0), stopped.predict_proba(x, 0))
    for task in stream.tasks[1:]:
        again.learn(task)
    assert torch.equal(again.q.mean, straight.q.mean)
    assert torch.equal(again.q.variance, straight.q.variance)
    assert again.evaluate(stream) == straight.evaluate(stream)


def test_a_module_of_your_own_is_passed_again(tmp_path: Path) -> None:
    stream = blobs(scenario="domain")
    straight = ec.Learner(Convolutional(), "evcl+", **TRAINING).learn(stream[0])
    straight.save(tmp_path)
    with pytest.raises(FileError, match="network=Convolutional"):
        ec.Learner.load(tmp_path)
    again = ec.Learner.load(tmp_path, network=Convolutional())
    statistics = [learner.network.buffers["norm.running_var"] for learner in (again, straight)]
    assert torch.equal(*statistics)
    for learner in (straight, again):
        learner.learn(stream[1])
    assert torch.equal(again.q.mean, straight.q.mean)
    with pytest.raises(FileError, match=r"does not match .* parameter"):
        ec.Learner.load(tmp_path, network=small_network((2,)))


def test_point_parameters_survive_a_save(tmp_path: Path) -> None:
    stream = blobs()
    learner = ec.Learner(
        small_network(stream.heads), "vcl", point=lambda name: name.endswith("bias"), **TRAINING
    )
    learner.learn(stream[0]).save(tmp_path)
    again = ec.Learner.load(tmp_path)
    assert again.network.layout == learner.network.layout
    assert torch.equal(again.q.variance, learner.q.variance)


def changed_on_disk(
    folder: Path, schema: int, change: Callable[[dict[str, torch.Tensor]], object]
) -> None:
    """A saved learner with other tensors and a checksum that fits them."""
    header, state = folder / "learner.json", next(folder.glob("*.safetensors"))
    tensors = safetensors.torch.load(state.read_bytes())
    change(tensors)
    state.write_bytes(safetensors.torch.save(tensors))
    digest = hashlib.sha256(state.read_bytes()).hexdigest()
    header.write_text(
        json.dumps(json.loads(header.read_text()) | {"schema": schema, "sha256": digest})
    )


def test_a_learner_saved_with_log_stds_is_read(tmp_path: Path) -> None:
    def as_schema_1(tensors: dict[str, torch.Tensor]) -> None:
        for owner in ("q", "prior"):
            tensors[f"{owner}.log_std"] = tensors.pop(f"{owner}.variance").log() / 2

    learner = learned(tasks=1)
    changed_on_disk(learner.save(tmp_path), 1, as_schema_1)
    again = ec.Learner.load(tmp_path)
    torch.testing.assert_close(again.q.variance, learner.q.variance)
    torch.testing.assert_close(again.memory.prior.variance, learner.memory.prior.variance)


def test_variances_that_are_none_are_refused(tmp_path: Path) -> None:
    changed_on_disk(learned(tasks=1).save(tmp_path), 2, lambda state: state["q.variance"].neg_())
    with pytest.raises(FileError, match=r"q\.variance"):
        ec.Learner.load(tmp_path)


def test_a_saved_learner_is_replaced_only_when_asked(tmp_path: Path) -> None:
    learned(tasks=1).save(tmp_path)
    second = learned(tasks=2)
    with pytest.raises(FileError, match="overwrite=True"):
        second.save(tmp_path)
    assert len(ec.Learner.load(tmp_path).learned) == 1
    second.save(tmp_path, overwrite=True)
    assert len(ec.Learner.load(tmp_path).learned) == 2
    assert len(list(tmp_path.iterdir())) == 2  # no leftovers


def corrupt(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0xFF
    path.write_bytes(content)


def test_damaged_and_foreign_files_are_refused(tmp_path: Path) -> None:
    def fresh(name: str) -> Path:
        return learned(tasks=1).save(tmp_path / name)

    folder = fresh("bit flip")
    corrupt(next(folder.glob("*.safetensors")), -1)
    with pytest.raises(FileError, match="checksum"):
        ec.Learner.load(folder)
    folder = fresh("truncated")
    state = next(folder.glob("*.safetensors"))
    state.write_bytes(state.read_bytes()[:100])
    with pytest.raises(FileError, match="checksum"):
        ec.Learner.load(folder)
    folder = fresh("no state")
    next(folder.glob("*.safetensors")).unlink()
    with pytest.raises(FileError, match="cannot read"):
        ec.Learner.load(folder)
    with pytest.raises(FileError, match="no saved learner"):
        ec.Learner.load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "not json",
        "[]",
        "{}",
        '{"schema": 99}',
        '{"schema": 1}',
        '{"schema": 1, "state": "../../secret.safetensors"}',
        "[" * 100_000,
    ],
)
def test_hostile_headers_are_refused_in_one_line(content: str, tmp_path: Path) -> None:
    (tmp_path / "learner.json").write_text(content)
    with pytest.raises(FileError) as caught:
        ec.Learner.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_header_cannot_name_a_file_elsewhere(tmp_path: Path) -> None:
    folder = learned(tasks=1).save(tmp_path / "model")
    header = folder / "learner.json"
    state = next(folder.glob("*.safetensors"))
    state.rename(tmp_path / state.name)
    header.write_text(header.read_text().replace(state.name, f"../{state.name}"))
    with pytest.raises(FileError, match="state"):
        ec.Learner.load(folder)


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
        ({"head": 7}, "wants head 7 but the network has 2"),
        ({"outputs": 5}, "uses 5 outputs but head 0 of the network has 2"),
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
    with pytest.raises(StateError, match="say which"):
        learner.predict(torch.zeros(1, 4))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(2, 5), "cannot take x"),
        (np.full((2, 4), np.inf), "NaN or infinite"),
        (np.array([[np.inf, -np.inf, 0, 0]]), "NaN or infinite"),
        (np.zeros((2, 4), dtype=np.uint8), "raw bytes"),
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
        (lambda: ec.Learner(nn.Linear(1, 2), epoch=1), "did you mean epochs"),
        (lambda: ec.Learner(nn.Linear(1, 2), samples=0), "samples = 0 is wrong"),
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
