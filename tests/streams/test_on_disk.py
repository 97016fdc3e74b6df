"""Arrays on disk: nothing copies them into memory, and what is learned is the same."""

from pathlib import Path

import numpy as np
import pytest
import torch

import evclplus as ec
from evclplus.core import batches, examples
from evclplus.core.batches import Source
from evclplus.errors import DataError
from evclplus.progress import digest_of
from evclplus.streams.arrays import inputs_of
from tests.helpers import small_network


def on_disk(folder: Path, x: np.ndarray) -> np.memmap:
    np.save(folder / "x.npy", x)
    mapped = np.load(folder / "x.npy", mmap_mode="r")
    assert isinstance(mapped, np.memmap)
    return mapped


@pytest.mark.parametrize("kind", [np.float32, np.uint8, np.int64])
def test_an_array_on_disk_is_not_copied(kind: type, tmp_path: Path) -> None:
    mapped = on_disk(tmp_path, np.arange(40).reshape(10, 4).astype(kind))
    for part in (mapped, mapped[3:]):
        store = inputs_of(part, "a task")
        assert store.data_ptr() == part.__array_interface__["data"][0]
        assert torch.equal(store, torch.from_numpy(np.array(part)))


def test_a_type_that_would_be_converted_in_memory_is_refused(tmp_path: Path) -> None:
    mapped = on_disk(tmp_path, np.zeros((10, 4)))
    with pytest.raises(DataError, match="array on disk of type float64"):
        inputs_of(mapped, "a task")
    assert inputs_of(np.array(mapped), "a task").dtype == torch.float32


def test_a_large_task_is_not_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    task = ec.task(np.ones((10, 4), np.float32), np.arange(10) % 2, name="a", outputs=2)
    source = Source((task.train,))
    assert source.ready(torch.device("cpu")).examples[0].store is not task.train.store
    monkeypatch.setattr(batches, "MOST_GATHERED", 100)
    assert source.ready(torch.device("cpu")).examples[0].store is task.train.store


def test_what_is_learned_from_disk_part_by_part_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)

    def learned(inputs: np.ndarray) -> tuple[str, float]:
        learner = ec.Learner(small_network(), "evcl+", epochs=2, batch_size=20, compile="off")
        task = ec.task(inputs[:40], y[:40], name="a", outputs=2, test=(inputs[40:], y[40:]))
        learner.learn(task)
        (scores,) = learner.evaluate(task).scores
        return digest_of(learner.q, learner.memory), scores.negative_log_likelihood

    in_memory = learned(x)
    monkeypatch.setattr(batches, "MOST_GATHERED", 0)
    monkeypatch.setattr(examples, "NUMBERS_IN_MEMORY", 28)
    digest, score = learned(on_disk(tmp_path, x))
    assert digest == in_memory[0]
    assert score == pytest.approx(in_memory[1], rel=1e-6)
