"""Bringing data: torch datasets, folders of pictures, Hugging Face, each in a few lines."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from evclplus.data.adapters import from_dataset, from_folder, from_huggingface
from evclplus.errors import DataError, FileError, SettingsError
from evclplus.streams.contact_sheet import contact_sheet
from evclplus.streams.permuted import permuted_tasks
from evclplus.streams.split import split_tasks


def test_a_torch_dataset_in_two_lines() -> None:
    data = from_dataset(TensorDataset(torch.rand(40, 3, 4, 4), torch.arange(40) % 4))
    stream = split_tasks(data.x, data.y)
    assert stream.heads == (2, 2)
    assert stream.input_shape == (3, 4, 4)


class PictureDataset(Dataset[Any]):
    """Like torchvision's datasets without a transform: PIL pictures and `classes`."""

    def __init__(self) -> None:
        self.classes = ["cat", "dog"]

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return Image.new("L", (5, 4), color=index), index % 2


def test_pictures_become_bytes_with_names() -> None:
    data = from_dataset(PictureDataset())
    assert data.x.shape == (30, 1, 4, 5)
    assert data.x.dtype == torch.uint8
    assert data.x[7].unique().tolist() == [7]
    (task,) = split_tasks(data.x, data.y, class_names=data.class_names)
    assert task.name == "cat/dog"


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(())


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Numbers(), "no length"),
        ([], "is empty"),
        ([(torch.zeros(2), 0), (torch.zeros(3), 0)], r"example 1 is float32 of shape \(3,\)"),
        ([(torch.zeros(2), 0.5)], "expected an integer"),
        ([(torch.zeros(2), "cat")], "expected an integer"),
        ([torch.zeros(2)], "not a pair"),
        ([("text", 0)], "is of type str"),
    ],
)
def test_datasets_that_do_not_fit(dataset: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_dataset(dataset)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for label, name in enumerate(("ant", "bee", "cow", "dog")):
        (tmp_path / name).mkdir()
        for number in range(10):
            picture = Image.new("RGB", (6, 5), color=(50 * label, 20 * number, 9))
            picture.save(tmp_path / name / f"{number}.png")
    (tmp_path / "readme.txt").write_text("not a picture")
    return tmp_path


def test_a_folder_of_pictures_in_two_lines(folder: Path, tmp_path: Path) -> None:
    data = from_folder(folder)
    stream = split_tasks(data.x, data.y, class_names=data.class_names, scaling="raw")
    assert [task.name for task in stream] == ["ant/bee", "cow/dog"]
    assert stream.input_shape == (3, 5, 6)
    train = stream[1].train
    assert torch.equal(train.inputs()[:, 0, 0, 0].long() // 50 - 2, train.labels)
    contact_sheet(stream, tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.size[0] > 200


def test_pictures_can_be_made_one_size_and_grey(folder: Path) -> None:
    Image.new("RGB", (60, 50)).save(folder / "ant" / "large.jpg")
    with pytest.raises(DataError, match="make all of one size"):
        from_folder(folder)
    data = from_folder(folder, size=(8, 7), colour="grey")
    assert data.x.shape == (41, 1, 8, 7)
    assert permuted_tasks(data.x, data.y, tasks=2).heads == (4,)


def test_folders_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="there is no folder"):
        from_folder(tmp_path / "missing")
    with pytest.raises(FileError, match="no folder with images"):
        from_folder(tmp_path)
    (tmp_path / "ant").mkdir()
    (tmp_path / "ant" / "broken.png").write_bytes(b"no picture")
    with pytest.raises(FileError, match=r"broken\.png is not a readable image"):
        from_folder(tmp_path)


def test_a_hugging_face_dataset_in_two_lines() -> None:
    datasets = pytest.importorskip("datasets", reason="the extra huggingface is not installed")
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["ant", "bee"])}
    )
    rows = {
        "image": [Image.fromarray(np.full((4, 4), n, np.uint8)) for n in range(20)],
        "label": [n % 2 for n in range(20)],
    }
    data = from_huggingface(datasets.Dataset.from_dict(rows, features=features))
    (task,) = split_tasks(data.x, data.y, class_names=data.class_names, scaling="raw")
    assert task.name == "ant/bee"
    assert torch.equal(task.train.inputs()[:, 0, 0, 0].long() % 2, task.train.labels)
    with pytest.raises(DataError, match="no column 'picture'"):
        from_huggingface(datasets.Dataset.from_dict(rows, features=features), image="picture")


def test_what_is_not_from_hugging_face_is_refused() -> None:
    with pytest.raises(DataError, match="not one split of a Hugging Face dataset"):
        from_huggingface({"train": []})
    with pytest.raises(DataError, match="are no images"):
        contact_sheet(
            split_tasks(np.zeros((20, 4)) + np.arange(20)[:, None], np.arange(20) % 2), "x"
        )


def folder_of(root: Path, classes: dict[str, int], mode: str = "L") -> Path:
    for name, grey in classes.items():
        (root / name).mkdir(parents=True)
        for index in range(12):
            picture = Image.new(mode, (4, 4), color=grey)
            picture.putpixel((index % 4, index // 4), 1)
            picture.save(root / name / f"{index}.{'tiff' if mode in 'IF' else 'png'}")
    return root


def test_a_test_folder_is_numbered_as_the_training_folder(tmp_path: Path) -> None:
    train = from_folder(folder_of(tmp_path / "train", {"cat": 50, "dog": 200}))
    fewer = folder_of(tmp_path / "fewer", {"dog": 199})
    alike = from_folder(fewer, classes=train.class_names)
    assert set(alike.y.tolist()) == {1}
    assert alike.class_names == train.class_names
    more = folder_of(tmp_path / "more", {"bird": 9, "cat": 51, "dog": 199})
    with pytest.raises(DataError, match="has a folder 'bird', which is none of the classes cat, d"):
        from_folder(more, classes=train.class_names)
    other = from_folder(more)
    with pytest.raises(DataError, match=r"12 of the 36 test examples .* such as 2"):
        split_tasks(train.x, train.y, test=(other.x, other.y))


@pytest.mark.parametrize("mode", ["I;16", "I", "F"])
def test_pictures_of_more_than_eight_bits_are_refused(mode: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"cat": 30_000}, mode)
    with pytest.raises(DataError, match="has more than 8 bits a pixel"):
        from_folder(folder, colour="grey")
    with pytest.raises(DataError, match="example 0 has more than 8 bits a pixel"):
        from_dataset([(Image.new(mode, (4, 4), color=30_000), 0)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 8}, "size = 8 is wrong"),
        ({"size": (0, 0)}, "size = 0 is wrong"),
        ({"size": (8, 10**9)}, "size = 1000000000 is wrong"),
        ({"colour": "cmyk"}, "colour = 'cmyk' is wrong: grey or rgb"),
    ],
)
def test_options_of_a_folder_that_make_no_sense(options: Any, message: str, tmp_path: Path) -> None:
    folder_of(tmp_path, {"cat": 5})
    with pytest.raises(SettingsError, match=message):
        from_folder(tmp_path, **options)


def test_a_picture_that_unpacks_to_gigabytes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    Image.new("1", (20_000, 20_000)).save(tmp_path / "cat" / "bomb.png")
    with pytest.raises(FileError, match=r"bomb.png is not a readable image"):
        from_folder(tmp_path)
