"""A file that answers as the learner does, read by other runtimes."""

from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import evclplus as ec
from evclplus.core.metrics import entropy
from evclplus.errors import FileError, SettingsError, StateError
from tests.helpers import Convolutional, blobs, small_network

QUICK: dict[str, Any] = {"epochs": 2, "batch_size": 20}


def learned(method: str = "evcl+", **settings: Any) -> tuple[ec.Learner, ec.Stream]:
    stream = blobs()
    learner = ec.Learner(small_network(), method, **(QUICK | settings))
    for task in stream:
        learner.learn(task)
    return learner, stream


def answers(path: Path, x: Tensor) -> dict[str, Tensor]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]
    found = session.run(None, {"x": x.numpy()})
    return {name: torch.from_numpy(one) for name, one in zip(names, found, strict=True)}


def test_the_mean_network_answers_in_onnxruntime_as_in_the_learner(tmp_path: Path) -> None:
    learner, stream = learned("ewc")
    path = learner.export(tmp_path / "model.onnx", task=1)
    for count in (1, 5):
        x = stream[1].test.inputs()[:count]
        found = answers(path, x)
        assert list(found) == ["probability"]
        torch.testing.assert_close(
            found["probability"], learner.predict_proba(x, 1), atol=1e-6, rtol=1e-5
        )


def test_an_ensemble_has_the_entropies_of_its_draws(tmp_path: Path) -> None:
    learner, stream = learned()
    x = stream[0].test.inputs()
    found = answers(learner.export(tmp_path / "many.onnx", task=0, samples=300), x)
    assert list(found) == ["probability", "total", "data"]
    torch.testing.assert_close(found["total"], entropy(found["probability"]), atol=1e-5, rtol=1e-4)
    assert (found["data"] <= found["total"] + 1e-5).all()
    # Other draws than the learner's own: equal up to what 300 of them leave open.
    own = learner.uncertainty(x, 0, samples=300)
    expected = learner.predict_proba(x, 0, samples=300)
    torch.testing.assert_close(found["probability"], expected, atol=0.05, rtol=0)
    torch.testing.assert_close(found["data"], own.data, atol=0.05, rtol=0)
    # The learner is as it was.
    assert torch.equal(learner.predict_proba(x, 0, samples=300), expected)


def test_pt2_is_read_by_torch(tmp_path: Path) -> None:
    learner, stream = learned("ewc")
    x = stream[0].test.inputs()[:7]
    program = torch.export.load(learner.export(tmp_path / "model.pt2", task=0, format="pt2"))
    (found,) = program.module()(x)
    torch.testing.assert_close(found, learner.predict_proba(x, 0))


@pytest.mark.slow
def test_a_network_and_a_criterion_of_one_s_own(tmp_path: Path) -> None:
    stream = blobs(scenario="domain")
    learner = ec.Learner(Convolutional(), "ewc", **QUICK).learn(stream[0])
    x = stream[0].test.inputs()
    with pytest.raises(SettingsError, match="give some: export"):
        learner.export(tmp_path / "own.onnx")
    for given in ({"task": stream[0]}, {"example": x[:1]}):
        path = learner.export(tmp_path / "own.onnx", overwrite=True, **given)
        found = answers(path, x)["probability"]
        torch.testing.assert_close(found, learner.predict_proba(x), atol=1e-6, rtol=1e-5)
    task = ec.regression_task(x, x[:, :2], name="numbers")
    regression = ec.Learner(small_network(), criterion="regression", **QUICK).learn(task)
    found_ = answers(regression.export(tmp_path / "numbers.onnx", samples=50), x)
    assert list(found_) == ["mean", "variance"]
    assert found_["mean"].shape == found_["variance"].shape == (len(x), 2)
    assert (found_["variance"] > 0).all()


def test_what_cannot_be_exported_is_one_clear_line(tmp_path: Path) -> None:
    learner, _ = learned("ewc")
    path = tmp_path / "model.onnx"
    with pytest.raises(StateError, match="say for which"):
        learner.export(path)
    with pytest.raises(SettingsError, match="format = 'tflite' is wrong: one of onnx, pt2"):
        learner.export(path, task=0, format="tflite")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="ewc has point weights"):
        learner.export(path, task=0, samples=5)
    path.write_text("mine")
    with pytest.raises(FileError, match="exists already"):
        learner.export(path, task=0)
    assert path.read_text() == "mine"


class Branching(nn.Module):
    """Does what no file can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x if float(x.sum()) > 0 else -x)
        return out


def test_a_network_that_cannot_be_traced_leaves_no_file(tmp_path: Path) -> None:
    stream = blobs(scenario="domain")
    learner = ec.Learner(Branching(), "ewc", compile="off", **QUICK).learn(stream[0])
    with pytest.raises(FileError, match="cannot be written as onnx") as caught:
        learner.export(tmp_path / "model.onnx", task=stream[0])
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


class Forgetful(nn.Module):
    """It answers otherwise while it is written than afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x)
        return found + 1 if torch.compiler.is_exporting() else found.flip(1)


def test_a_file_that_would_answer_otherwise_is_not_written(tmp_path: Path) -> None:
    learner = ec.Learner(Forgetful(), "ewc", epochs=1).learn(blobs()[0])
    with pytest.raises(FileError, match="the file would give other answers than the learner") as e:
        learner.export(tmp_path / "new" / "model.pt2", format="pt2", example=torch.ones(2, 4))
    assert str(e.value).count("cannot be written") == 1
    assert not (tmp_path / "new").exists()
