"""Trackers as callbacks, read back from what they have written."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import evclplus as ec
from evclplus.trackers import TensorBoard, Tracker, WandB


class Kept(Tracker):
    """Writes into a list."""

    def __init__(self, every: float) -> None:
        super().__init__(every)
        self.values: list[tuple[int, dict[str, float]]] = []

    def write(self, values: Any, step: int) -> None:
        self.values.append((step, dict(values)))

    def close(self) -> None:
        pass


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard itself reads in a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder)).Reload()
    return {
        tag: [(event.step, event.value) for event in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }


def written(file: Path, *words: bytes) -> bool:
    """Whether a file has these words. W&B writes in a process of its own, which may come later."""
    deadline = time.monotonic() + 60
    while not (found := all(word in file.read_bytes() for word in words)):
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    return found


def learned(tracker: Tracker, tasks: int = 2) -> None:
    torch.manual_seed(0)
    learner = ec.Learner(
        ec.networks.mlp(3, hidden=(4,)),
        method=ec.VCL(),
        epochs=3,
        batch_size=10,
        compile="off",
        callback=tracker,
    )
    for index in range(tasks):
        x = torch.randn(20, 3)
        learner.learn(ec.task(x, (x[:, 0] > 0).long(), name=f"{index}", outputs=2))


def test_steps_count_through_tasks_and_phases() -> None:
    kept = Kept(every=0.0)
    learned(kept)
    steps = [step for step, _ in kept.values]
    assert steps == list(range(1, 13))  # 2 tasks, 3 epochs, 2 batches
    assert all({"loss/nll", "loss/kl"} <= set(values) for _, values in kept.values)
    kept.log({"accuracy": 0.5})
    assert kept.values[-1] == (12, {"accuracy": 0.5})


def test_terms_are_asked_for_rarely() -> None:
    kept = Kept(every=1e9)
    kept.start("task 1", 100)
    for step in range(1, 101):
        kept.advance(step, lambda: {"nll": torch.tensor(1.0)})
    assert kept.values == [(1, {"loss/nll": 1.0})]
    assert kept.step == 100


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    kept = Kept(every=0.0)
    with TensorBoard(tmp_path / "events", every=0.0) as tracker:
        learned(tracker)
        tracker.log({"accuracy": 0.25})
    learned(kept)
    read = scalars(tmp_path / "events")
    assert read["accuracy"] == [(12, 0.25)]
    wanted = [(step, values["loss/nll"]) for step, values in kept.values]
    assert [step for step, _ in read["loss/nll"]] == [step for step, _ in wanted]
    assert [value for _, value in read["loss/nll"]] == pytest.approx([value for _, value in wanted])


@pytest.mark.slow
def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with WandB(mode="offline", every=0.0, dir=str(tmp_path)) as tracker:
        learned(tracker, tasks=1)
        tracker.log({"accuracy": 0.25})
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert written(file, b"loss/nll", b"accuracy")


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_package_that_is_missing_is_one_line(name: str) -> None:
    code = (
        f"import sys; sys.modules[{name!r}] = None\n"
        f"from evclplus import trackers\ntrackers.{name}()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    last = done.stderr.splitlines()[-1]
    assert last.endswith(f"this needs {name}: install it with `pip install 'evclplus[{name}]'`")
