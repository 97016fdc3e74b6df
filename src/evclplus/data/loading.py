"""A dataset as arrays: decoded once, kept in the cache, mapped by every process that needs it."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from evclplus.data.cache import keep_array, open_array
from evclplus.data.datasets import DataFile, Dataset, find_dataset
from evclplus.data.local import Folder, contents_of
from evclplus.data.readers import Bytes, read_cifar, read_idx, read_letters
from evclplus.errors import SettingsError
from evclplus.files import cache_folder

Input = Literal["gray28", "rgb32"]
"""gray28: luma 0.299 R + 0.587 G + 0.114 B, rounded, then 32x32 to 28x28 by Pillow's bilinear
filter (a triangle as wide as the shrinking asks for, so that nothing aliases). rgb32: as stored."""


@dataclass(frozen=True)
class Arrays:
    """A dataset in memory. Pixels are bytes of shape (examples, channels, height, width), letters
    of shape (examples, 16)."""

    name: str
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor] | None
    class_names: Mapping[int, str]


def dataset(name: str, *, data_dir: Folder = None, input: Input | None = None) -> Arrays:
    """The dataset `name` as tensors, for builders of your own:

    `data = dataset("fashion-mnist"); permuted_tasks(*data.train, test=data.test)`
    """
    wanted = find_dataset(name)
    if input is not None and wanted.kind != "cifar":
        raise SettingsError(f"the dataset {name} has one form of input; leave input out")
    if wanted.kind == "texts":
        raise SettingsError(f"the dataset {name} holds texts; evclplus.data.texts reads them")
    form = {"cifar": input or "rgb32", "idx": "gray28"}.get(wanted.kind, "bytes")
    shapes = _shapes(wanted, form)
    folder = cache_folder() / "decoded"
    paths = {part: folder / f"{name}-{form}-{part}-{_digest(wanted)}.npy" for part in shapes}
    arrays = {part: open_array(paths[part], shape) for part, shape in shapes.items()}
    if any(array is None for array in arrays.values()):
        arrays = _decode_into(wanted, form, shapes, paths, data_dir)
    made = {part: array for part, array in arrays.items() if array is not None}
    return Arrays(
        name,
        _pair(made, "train"),
        _pair(made, "test") if wanted.test else None,
        dict(enumerate(wanted.class_names)),
    )


def _pair(arrays: Mapping[str, Bytes], split: str) -> tuple[Tensor, Tensor]:
    images, labels = arrays[f"{split}-images"], arrays[f"{split}-labels"]
    return torch.from_numpy(images), torch.from_numpy(labels).to(torch.int64)


def _shapes(wanted: Dataset, form: str) -> dict[str, tuple[int, ...]]:
    shape = (1, 28, 28) if form == "gray28" else wanted.shape
    shapes: dict[str, tuple[int, ...]] = {}
    for split, count in zip(("train", "test"), wanted.examples, strict=True):
        if count:
            shapes[f"{split}-images"] = (count, *shape)
            shapes[f"{split}-labels"] = (count,)
    return shapes


def _digest(wanted: Dataset) -> str:
    """Names the decoded arrays by the content they come from."""
    content = "".join(file.sha256 for file in wanted.files)
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def _decode_into(
    wanted: Dataset,
    form: str,
    shapes: Mapping[str, tuple[int, ...]],
    paths: Mapping[str, Path],
    data_dir: Folder,
) -> dict[str, Bytes | None]:
    parts = _decode(wanted, form, contents_of(wanted, data_dir))
    return {part: keep_array(paths[part], parts[part].reshape(shapes[part])) for part in shapes}


def _decode(wanted: Dataset, form: str, contents: Mapping[DataFile, bytes]) -> dict[str, Bytes]:
    parts: dict[str, Bytes] = {}
    for split, files in (("train", wanted.train), ("test", wanted.test)):
        if not files:
            continue
        if wanted.kind == "idx":
            images, labels = (read_idx(contents[file], file.name) for file in files)
        elif wanted.kind == "letter":
            images, labels = read_letters(contents[files[0]], files[0].name)
        else:
            pairs = [read_cifar(contents[file], file.name) for file in files]
            images = np.concatenate([pair[0] for pair in pairs])
            labels = np.concatenate([pair[1] for pair in pairs])
            if form == "gray28":
                images = np.stack(list(_grey(images)))
        parts[f"{split}-images"], parts[f"{split}-labels"] = images, labels
    return parts


def _grey(images: Bytes) -> Iterator[Bytes]:
    from PIL import Image

    for image in images:
        grey = Image.fromarray(image.transpose(1, 2, 0)).convert("L")
        yield np.asarray(grey.resize((28, 28), Image.Resampling.BILINEAR))
