"""Datasets found on this machine: folder layouts, packed forms, damage, and what is missing."""

import gzip
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from evclplus.benchmarks.registry import benchmark
from evclplus.data.cache import keep_array, open_array
from evclplus.data.contents import NOT_IMAGES
from evclplus.data.datasets import CIFAR10, MNIST, NOTMNIST, PUBLISHED, DataFile, Dataset
from evclplus.data.loading import dataset
from evclplus.data.local import find, status
from evclplus.data.readers import read_content, read_idx, write_idx
from evclplus.errors import FileError
from tests.conftest import RealData


@pytest.fixture
def empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No data, no home, an empty cache. Gives a folder to put data into."""
    monkeypatch.delenv("EVCLPLUS_DATA", raising=False)
    monkeypatch.setenv("EVCLPLUS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def read_all(wanted: Dataset, folder: Path) -> dict[str, bytes]:
    found = next(find(wanted, folder))
    return {file.name: content for file, content in found.read()}


@pytest.mark.parametrize("layout", ["mnist", "MNIST/raw", "."])
@pytest.mark.parametrize("unpacked", [False, True])
def test_the_usual_folders_are_recognised(
    real_data: RealData, empty_machine: Path, layout: str, unpacked: bool
) -> None:
    source = real_data("mnist").where
    small = replace(MNIST, train=MNIST.train[1:], test=MNIST.test)
    folder = empty_machine / layout
    folder.mkdir(parents=True, exist_ok=True)
    for file in small.files:
        packed = source / f"{file.name}.gz"
        content = read_content(packed if packed.exists() else source / file.name, file.size)
        target = folder / (file.name if unpacked else f"{file.name}.gz")
        target.write_bytes(content if unpacked else gzip.compress(content, 1))
    assert set(read_all(small, empty_machine)) == {file.name for file in small.files}


def test_keras_copy_of_mnist(real_data: RealData, empty_machine: Path) -> None:
    contents = {file.name: content for file, content in real_data("mnist").read()}
    np.savez(
        empty_machine / "mnist.npz",
        x_train=read_idx(contents["train-images-idx3-ubyte"], ""),
        y_train=read_idx(contents["train-labels-idx1-ubyte"], ""),
        x_test=read_idx(contents["t10k-images-idx3-ubyte"], ""),
        y_test=read_idx(contents["t10k-labels-idx1-ubyte"], ""),
    )
    assert read_all(MNIST, empty_machine) == contents


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"nothing", b"\x93NUMPY\x01\0"])
def test_a_broken_npz_is_one_line(empty_machine: Path, content: bytes) -> None:
    (empty_machine / "mnist.npz").write_bytes(content)
    with pytest.raises(FileError, match=r"mnist\.npz is not Keras' copy"):
        dataset("mnist", data_dir=empty_machine)


def test_an_npz_that_declares_too_much_is_refused(empty_machine: Path) -> None:
    header = io.BytesIO()
    declared = {"descr": "|u1", "fortran_order": False, "shape": (10**12, 28, 28)}
    np.lib.format.write_array_header_1_0(header, declared)
    with zipfile.ZipFile(empty_machine / "mnist.npz", "w") as archive:
        archive.writestr("x_train.npy", header.getvalue())
    with pytest.raises(FileError, match="not the bytes it should"):
        dataset("mnist", data_dir=empty_machine)


def test_pickled_arrays_are_never_opened(empty_machine: Path) -> None:
    np.savez(
        empty_machine / "mnist.npz", allow_pickle=True, x_train=np.array([object()], dtype=object)
    )
    with pytest.raises(FileError, match=r"x_train in .* holds object of shape"):
        dataset("mnist", data_dir=empty_machine)


def test_pickled_cifar_is_refused_with_the_way_out(empty_machine: Path) -> None:
    (empty_machine / "cifar-10-batches-py").mkdir()
    with pytest.raises(FileError, match=r"holds pickles.*evclplus data fetch cifar10"):
        benchmark("split-cifar10", data_dir=empty_machine)


def letters() -> tuple[Dataset, dict[str, bytes], dict[str, bytes]]:
    """A small notMNIST: the dataset, its files, and the tree they come from, in no order."""
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, size=(60, 28, 28), dtype=np.uint8)
    labels = np.repeat(np.arange(10, dtype=np.uint8), 6)
    contents = {"images": write_idx(images), "labels": write_idx(labels)}
    files = tuple(
        DataFile(name, len(content), hashlib.sha256(content).hexdigest())
        for name, content in contents.items()
    )
    tree = {f"notMNIST_small/{name}": b"" for name in NOT_IMAGES}
    for number in generator.permutation(len(images)).tolist():
        stream = io.BytesIO()
        Image.fromarray(images[number]).save(stream, format="PNG")
        letter = "ABCDEFGHIJ"[labels[number]]
        tree[f"notMNIST_small/{letter}/{number:05}.png"] = stream.getvalue()
    return replace(NOTMNIST, train=files), contents, tree


def test_the_notmnist_archive_and_tree(empty_machine: Path) -> None:
    small, contents, tree = letters()
    with tarfile.open(empty_machine / "notMNIST_small.tar.gz", "w:gz") as tar:
        for name, content in tree.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    assert read_all(small, empty_machine) == contents

    folder = empty_machine / "tree"
    for name, content in tree.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    assert read_all(small, folder) == contents
    next((folder / "notMNIST_small" / "C").iterdir()).unlink()
    with pytest.raises(FileError, match="is truncated"):
        read_all(small, folder)


@pytest.mark.parametrize(
    ("injury", "message"),
    [
        (lambda content: content[:-1], "train-labels-idx1-ubyte is truncated: 60007 bytes"),
        (lambda content: content + b"\0", "train-labels-idx1-ubyte holds more than the 60008"),
        (lambda content: content[:-1] + b"\7", "train-labels-idx1-ubyte is not the published"),
    ],
)
def test_damage_is_refused_by_name(
    real_data: RealData,
    empty_machine: Path,
    injury: Callable[[bytes], bytes],
    message: str,
) -> None:
    folder = empty_machine / "mnist"
    folder.mkdir()
    for file, content in real_data("mnist").read():
        damaged = file.name == "train-labels-idx1-ubyte"
        (folder / file.name).write_bytes(injury(content) if damaged else content)
    with pytest.raises(FileError, match=message):
        dataset("mnist", data_dir=empty_machine)
    row = next(row for row in status(empty_machine) if row.name == "mnist")
    assert not row.present
    assert message.partition(":")[0].split(" holds")[0] in row.checksum
    # An intact copy elsewhere is used all the same.
    intact = empty_machine / "MNIST" / "raw"
    intact.mkdir(parents=True)
    for file, content in real_data("mnist").read():
        (intact / file.name).write_bytes(content)
    assert len(dataset("mnist", data_dir=empty_machine).train[0]) == 60_000


def test_other_datasets_with_the_same_names_are_not_mistaken(
    real_data: RealData, empty_machine: Path
) -> None:
    folder = empty_machine / "mnist"
    folder.mkdir()
    for file, content in real_data("fashion-mnist").read():
        (folder / file.name).write_bytes(content)
    with pytest.raises(FileError, match="is not the published file"):
        dataset("mnist", data_dir=empty_machine)


@pytest.mark.parametrize(
    "name",
    ["permuted-mnist", "split-mnist", "split-notmnist", "split-fashion-mnist", "split-cifar10"],
)
def test_missing_data_says_how_to_get_it(empty_machine: Path, name: str) -> None:
    with pytest.raises(FileError, match="get it with `evclplus data fetch ") as caught:
        benchmark(name, data_dir=empty_machine)
    assert "\n" not in str(caught.value)


def test_a_data_folder_that_is_not_there_is_named(
    empty_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FileError, match=r"the data folder is .* which is no folder"):
        benchmark("split-mnist", data_dir=empty_machine / "typo")
    monkeypatch.setenv("EVCLPLUS_DATA", str(empty_machine / "typo"))
    with pytest.raises(FileError, match=r"EVCLPLUS_DATA is .* which is no folder"):
        benchmark("split-mnist")


def test_status_of_an_empty_machine(empty_machine: Path) -> None:
    rows = status(empty_machine)
    assert [row.name for row in rows] == list(PUBLISHED)
    assert not any(row.present for row in rows)
    assert all(row.licence and row.size for row in rows)


def test_a_cache_that_cannot_be_written_is_no_obstacle(
    real_data: RealData, empty_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = real_data("notmnist")
    blocked = empty_machine / "blocked"
    blocked.write_text("a file where the cache folder should be")
    monkeypatch.setenv("EVCLPLUS_CACHE", str(blocked))
    assert dataset("notmnist", data_dir=found.where.parent).train[0].shape == (18_724, 1, 28, 28)


def test_writing_idx_inverts_reading() -> None:
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    assert np.array_equal(read_idx(write_idx(array), ""), array)
    assert CIFAR10.size == 184_380_000


def test_a_cached_array_that_was_changed_is_not_used(tmp_path: Path) -> None:
    array = np.arange(60, dtype=np.uint8).reshape(3, 4, 5)
    path = tmp_path / "kept.npy"
    assert np.array_equal(keep_array(path, array), array)
    found = open_array(path, array.shape)
    assert found is not None
    assert np.array_equal(found, array)
    content = path.read_bytes()
    for position in (0, 9, 30, len(content) - 60, len(content) - 1):
        damaged = bytearray(content)
        damaged[position] ^= 4
        path.write_bytes(damaged)
        assert open_array(path, array.shape) is None
    path.write_bytes(content)
    assert open_array(path, array.shape) is not None
