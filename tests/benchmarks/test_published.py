"""The five benchmarks on real data: published figures, no leaks, the same stream everywhere."""

import hashlib
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from evclplus.benchmarks.registry import BENCHMARKS, benchmark
from evclplus.core.examples import Examples
from evclplus.data.loading import dataset
from evclplus.errors import FileError, SettingsError
from evclplus.streams.arrays import labelled
from evclplus.streams.contact_sheet import contact_sheet
from evclplus.streams.scaling import mean_and_deviation
from evclplus.streams.task import Stream, Task
from tests.conftest import RealData

# Pinned: the rows of every split of every task, and the pixel permutations where there are any.
# A change here means that results can no longer be compared with earlier ones.
STREAMS = {
    "permuted-mnist": "4ff02b002c60f726",
    "split-mnist": "7bf6bc4b9fcb45d5",
    "split-mnist-class": "d8cad0dd26e8df37",
    "split-notmnist": "e98a2ca8a54bf46e",
    "split-fashion-mnist": "ca2052c4f84af0be",
    "split-cifar10": "53b1fc2a71de001d",
    "rotated-mnist": "85e39a22862d62e2",
    "split-digits": "83d4cd8f6b0eee94",
    "permuted-digits": "458797da6d1cd742",
}


def built(name: str, real_data: RealData, **settings: Any) -> Stream:
    needed = BENCHMARKS[name].dataset
    folder = None if needed is None else real_data(needed).where.parent
    return benchmark(name, data_dir=folder, **settings)


def splits(task: Task) -> tuple[Examples, Examples, Examples]:
    return task.train, task.validation, task.test


def digest(*tensors: torch.Tensor | None) -> str:
    content = b"".join(t.contiguous().numpy().tobytes() for t in tensors if t is not None)
    return hashlib.sha256(content).hexdigest()[:16]


def pictures(*parts: Examples) -> set[bytes]:
    """The content of every example. Tasks often share their rows; those are looked at once."""
    assert all(part.rows is not None for part in parts)
    different = {rows.data_ptr(): part for part in parts if (rows := part.rows) is not None}
    return {
        hashlib.blake2b(content.tobytes()).digest()
        for part in different.values()
        for content in part.store[part.rows].numpy()
    }


@pytest.mark.parametrize(
    ("name", "mean", "deviation"),
    [("mnist", 0.1307, 0.3081), ("fashion-mnist", 0.2860, 0.3530), ("notmnist", 0.4254, 0.4586)],
)
def test_pixel_statistics_are_the_published_ones(
    real_data: RealData, name: str, mean: float, deviation: float
) -> None:
    found = real_data(name)
    data = dataset(name, data_dir=found.where.parent)
    measured = mean_and_deviation(labelled(data.train, name))
    assert measured[0] / 255 == pytest.approx(mean, abs=5e-5)
    assert measured[1] / 255 == pytest.approx(deviation, abs=5e-5)


@pytest.mark.parametrize(
    ("name", "train", "test"),
    [
        (
            "mnist",
            [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
            [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
        ),
        ("fashion-mnist", [6000] * 10, [1000] * 10),
        ("notmnist", [1872, 1873, 1873, 1873, 1873, 1872, 1872, 1872, 1872, 1872], None),
        ("cifar10", [5000] * 10, [1000] * 10),
    ],
)
def test_label_histograms_are_the_published_ones(
    real_data: RealData, name: str, train: list[int], test: list[int] | None
) -> None:
    found = real_data(name)
    data = dataset(name, data_dir=found.where.parent)
    assert torch.bincount(data.train[1]).tolist() == train
    assert len(data.train[0]) == sum(train)
    if test is None:
        assert data.test is None
    else:
        assert data.test is not None
        assert torch.bincount(data.test[1]).tolist() == test
        assert len(data.test[0]) == sum(test)


def test_cifar_colours_are_the_published_ones(real_data: RealData) -> None:
    pixels = dataset("cifar10", data_dir=real_data("cifar10").where.parent).train[0].numpy()
    means = [pixels[:, channel].mean() / 255 for channel in range(3)]
    deviations = [pixels[:, channel].std() / 255 for channel in range(3)]
    assert means == pytest.approx([0.4914, 0.4822, 0.4465], abs=5e-5)
    assert deviations == pytest.approx([0.2470, 0.2435, 0.2616], abs=5e-5)


def test_grey_cifar_is_luma_shrunk_without_aliasing(real_data: RealData) -> None:
    folder = real_data("cifar10").where.parent
    colour = dataset("cifar10", data_dir=folder).train[0][:50].double()
    grey = dataset("cifar10", data_dir=folder, input="gray28").train[0][:50].double()
    assert grey.shape == (50, 1, 28, 28)
    luma = (colour * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(1, keepdim=True)
    shrunk = torch.nn.functional.interpolate(
        luma, size=(28, 28), mode="bilinear", antialias=True, align_corners=False
    )
    assert (shrunk - grey).abs().max() < 1.6  # rounding three times


@pytest.mark.parametrize("name", STREAMS)
def test_no_picture_is_in_two_splits(real_data: RealData, name: str) -> None:
    stream = built(name, real_data)
    train, validation, test = (
        pictures(*(splits(task)[index] for task in stream)) for index in range(3)
    )
    assert not train & test
    assert not validation & test
    assert not train & validation
    assert stream.notes == ()


@pytest.mark.parametrize("name", STREAMS)
def test_streams_are_the_same_on_every_machine(real_data: RealData, name: str) -> None:
    stream = built(name, real_data, seed=0)
    parts = [part for task in stream for part in splits(task)]
    content = [x for part in parts for x in (part.rows, part.labels, part.view.permutation)]
    assert digest(*content) == STREAMS[name]


@pytest.mark.parametrize("name", STREAMS)
def test_settings_rebuild_the_stream(real_data: RealData, name: str) -> None:
    first = built(name, real_data, seed=3, examples_per_task=64)
    assert all(len(task.train) == 64 for task in first)
    again = built(name, real_data, **json.loads(json.dumps(first.settings)))
    assert again.settings == first.settings
    assert first.settings["scaling"] == ("symmetric" if "cifar" in name else "unit")
    lowest = min(float(task.train.inputs().min()) for task in first)
    assert lowest == (-1.0 if "cifar" in name else 0.0)
    for one, two in zip(first, again, strict=True):
        assert torch.equal(one.train.inputs(), two.train.inputs())
        assert torch.equal(one.test.labels, two.test.labels)


@pytest.mark.parametrize("name", STREAMS)
def test_the_registry_describes_what_is_built(real_data: RealData, name: str) -> None:
    entry, stream = BENCHMARKS[name], built(name, real_data)
    assert (entry.settings().scenario, entry.tasks) == (stream.scenario, len(stream))
    assert entry.classes_per_task == stream[0].outputs
    assert entry.shape == stream.input_shape
    parts = [part for task in stream.tasks for part in splits(task)]
    if stream.scenario == "task":
        assert sum(len(part) for part in parts) == sum(entry.examples)
    assert stream[0].train.inputs(torch.arange(3)).shape == (3, *entry.shape)


def test_published_pairs(real_data: RealData) -> None:
    names = [task.name for task in built("split-notmnist", real_data)]
    assert names == ["A/F", "B/G", "C/H", "D/I", "E/J"]
    names = [task.name for task in built("split-mnist", real_data)]
    assert names == ["0/1", "2/3", "4/5", "6/7", "8/9"]


def test_the_published_notmnist_protocol_leaks_and_says_so(real_data: RealData) -> None:
    stream = built("split-notmnist", real_data, protocol="published")
    for task in stream:
        assert pictures(task.test) == pictures(task.train)
    (note,) = stream.notes
    assert "tests on the very images it trains on" in note


def test_no_held_out_letter_is_ambiguous_or_common(real_data: RealData) -> None:
    stream = built("split-notmnist", real_data)
    for task in stream:
        for part in (task.validation, task.test):
            assert part.rows is not None
            counts = Counter(part.store[row].numpy().tobytes() for row in part.rows.tolist())
            assert max(counts.values()) <= len(part) // 10


def test_colour_and_scaling_are_options(real_data: RealData) -> None:
    stream = built("split-cifar10", real_data, input="rgb32", scaling="standard", tasks=1)
    assert stream.input_shape == (3, 32, 32)
    values = stream[0].train.inputs()
    assert float(values.mean()) == pytest.approx(0, abs=0.2)
    assert float(values.std()) == pytest.approx(1, abs=0.2)
    with pytest.raises(SettingsError, match="one form of input"):
        dataset("mnist", input="rgb32")


def test_processes_share_the_decoded_pixels(real_data: RealData) -> None:
    found = real_data("mnist")
    first = dataset("mnist", data_dir=found.where.parent)
    second = dataset("mnist", data_dir=found.where.parent)
    mapped = Path("/proc/self/maps")
    if mapped.exists():
        assert "mnist-gray28-train-images" in mapped.read_text()
    # Copy-on-write: a stray write stays in its own mapping.
    first.train[0][0] = 255
    assert not torch.equal(first.train[0][0], second.train[0][0])


def test_a_damaged_decoded_array_is_made_again(real_data: RealData) -> None:
    folder = real_data("notmnist").where.parent
    whole = dataset("notmnist", data_dir=folder).train[0].clone()
    (cached,) = Path(os.environ["EVCLPLUS_CACHE"]).rglob("notmnist-*-train-images-*.npy")
    cached.write_bytes(cached.read_bytes()[:1000])
    assert torch.equal(dataset("notmnist", data_dir=folder).train[0], whole)


@pytest.mark.parametrize("name", STREAMS)
def test_contact_sheets(real_data: RealData, tmp_path: Path, name: str) -> None:
    path = contact_sheet(built(name, real_data), tmp_path / "sheet.png")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_contact_sheet_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="cannot write"):
        contact_sheet(benchmark("split-digits"), tmp_path / "missing" / "sheet.png")
