"""Arrays for the builders from what people already have: datasets of torch, folders, Hugging Face.

Each function returns `LabelledData`, whose first two parts are what a builder takes:

    data = from_folder("flowers/", size=(32, 32))
    stream = split_tasks(data.x, data.y, class_names=data.class_names)
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from evclplus.errors import DataError, EvclplusError, FileError, SettingsError
from evclplus.files import own_path
from evclplus.settings import whole
from evclplus.streams.arrays import listed as listed_values

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")


LARGEST_SIDE = 2**14


class LabelledData(NamedTuple):
    """Inputs, integer labels and what the classes are called."""

    x: Tensor
    y: Tensor
    class_names: Mapping[int, str]


def from_dataset(dataset: Any) -> LabelledData:
    """A map-style torch Dataset of `(input, label)`: tensors, arrays or PIL images.

    Give it without random augmentation: every example is read once and kept.
    """
    try:
        size = len(dataset)
    except TypeError:
        raise DataError(
            "the dataset has no length; give a map-style one, not an iterable"
        ) from None

    def examples() -> Iterable[tuple[Tensor, int]]:
        for index in range(size):
            try:
                found = dataset[index]
            except (KeyError, IndexError, TypeError):
                raise DataError(
                    f"the dataset has no example {index}; give one with the indices 0 to {size - 1}"
                ) from None
            yield _example(found, index)

    return _stacked(examples(), size, _names(dataset))


def from_folder(
    folder: Path | str,
    *,
    size: tuple[int, int] | None = None,
    colour: Literal["grey", "rgb"] = "rgb",
    classes: Mapping[int, str] | Sequence[str] | None = None,
) -> LabelledData:
    """A folder with one folder of images per class, as torchvision's ImageFolder expects it.

    `size` is (height, width); without it all images must be of one size. Classes are numbered in
    the order of their folders' names; a test folder, which may lack some, is numbered as the
    training folder by `classes=train.class_names`.
    """
    from PIL import Image

    root = own_path(folder, "the folder")
    if not isinstance(colour, str) or colour not in _MODES:
        raise SettingsError(f"colour = {colour!r:.60} is wrong: grey or rgb")
    if size is not None:
        size = _size(size)
    if not root.is_dir():
        raise FileError(f"there is no folder {root}; give one with a folder of images per class")
    found = sorted(entry.name for entry in root.iterdir() if entry.is_dir())
    names = dict(enumerate(found)) if classes is None else _numbered(classes)
    unknown = set(found) - set(names.values())
    if unknown:
        raise DataError(
            f"{root} has a folder {sorted(unknown)[0]!r}, which is none of the classes "
            f"{', '.join(names.values())}"
        )
    listed = [
        (path, label)
        for label, name in names.items()
        for path in sorted((root / name).rglob("*"))
        if path.suffix.lower() in IMAGE_SUFFIXES
    ]
    if not listed:
        raise FileError(f"{root} has no folder with images; expected one folder per class")

    def images() -> Iterable[tuple[Tensor, int]]:
        for path, label in listed:
            try:
                with Image.open(path) as opened:
                    image = _eight_bits(opened, str(path)).convert(_MODES[colour])
            except EvclplusError:
                raise
            except Exception as error:  # decoders have many ways to say that a file is damaged
                reason = (str(error) or type(error).__name__).splitlines()[0]
                raise FileError(f"{path} is not a readable image: {reason}") from None
            if size is not None:
                image = image.resize(size[::-1], Image.Resampling.BILINEAR)
            yield _image_bytes(image), label

    return _stacked(images(), len(listed), names)


_MODES = {"grey": "L", "rgb": "RGB"}


def _size(size: Any) -> tuple[int, int]:
    if not isinstance(size, tuple | list) or len(size) != 2:
        raise SettingsError(f"size = {size!r:.60} is wrong: (height, width)")
    height, width = (whole("size", side, 1, LARGEST_SIDE) for side in size)
    return height, width


def _numbered(classes: Any) -> dict[int, str]:
    named = isinstance(classes, Mapping)
    found = dict(classes) if named else dict(enumerate(listed_values(classes, "classes")))
    if not all(isinstance(name, str) for name in found.values()):
        raise SettingsError("classes are not names; give the class_names of the training folder")
    return found


def _eight_bits(image: Any, what: str) -> Any:
    """Pillow cuts off what does not fit into a byte; nobody knows how much of it is meant."""
    if image.mode[0] in "IF":
        raise DataError(
            f"{what} has more than 8 bits a pixel (mode {image.mode}); make it 8 bits, or give "
            "arrays of floating-point numbers"
        )
    return image


def from_huggingface(dataset: Any, image: str = "image", label: str = "label") -> LabelledData:
    """One split of a Hugging Face dataset with an image column and an integer label column."""
    columns: Sequence[str] | None = getattr(dataset, "column_names", None)
    if not isinstance(columns, list):
        raise DataError(
            "this is not one split of a Hugging Face dataset; give one, such as data['train']"
        )
    for column in (image, label):
        if column not in columns:
            raise DataError(
                f"the dataset has no column {column!r}; it has {', '.join(columns)}: say which"
                " with image= and label="
            )
    feature = dataset.features[label]
    names = dict(enumerate(getattr(feature, "names", None) or ()))
    examples = (_example((row[image], row[label]), index) for index, row in enumerate(dataset))
    return _stacked(examples, len(dataset), names)


def _names(dataset: Any) -> dict[int, str]:
    """torchvision keeps the classes' names in `classes`."""
    names = getattr(dataset, "classes", None)
    return {i: str(name) for i, name in enumerate(names)} if isinstance(names, list) else {}


def _example(pair: Any, index: int) -> tuple[Tensor, int]:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise DataError(f"example {index} is not a pair (input, label)")
    value, label = pair
    try:
        number = int(label)
        if number != label:
            raise ValueError
    except (TypeError, ValueError):
        raise DataError(f"example {index} has the label {label!r}; expected an integer") from None
    if isinstance(value, Tensor | np.ndarray):
        return torch.as_tensor(value), number
    if hasattr(value, "convert") and hasattr(value, "mode"):
        image = _eight_bits(value, f"example {index}")
        return _image_bytes(image if image.mode in ("L", "RGB") else image.convert("RGB")), number
    raise DataError(
        f"example {index} is of type {type(value).__name__}; expected a tensor, an array or a"
        " PIL image"
    )


def _image_bytes(image: Any) -> Tensor:
    """A PIL image as bytes (channels, height, width)."""
    array = np.array(image, dtype=np.uint8)
    return torch.from_numpy(array[None] if array.ndim == 2 else array.transpose(2, 0, 1).copy())


def _stacked(
    examples: Iterable[tuple[Tensor, int]], size: int, class_names: Mapping[int, str]
) -> LabelledData:
    """All examples in one tensor, allocated once."""
    inputs: Tensor | None = None
    labels = torch.empty(size, dtype=torch.int64)
    for index, (value, label) in enumerate(examples):
        if inputs is None:
            inputs = torch.empty((size, *value.shape), dtype=value.dtype)
        if value.shape != inputs.shape[1:] or value.dtype != inputs.dtype:
            raise DataError(
                f"example {index} is {_form(value)} but the first is {_form(inputs[0])}; make all"
                " of one size and type"
            )
        inputs[index], labels[index] = value, label
    if inputs is None:
        raise DataError("the dataset is empty; give examples")
    return LabelledData(inputs, labels, class_names)


def _form(value: Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
