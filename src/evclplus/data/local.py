"""Finding datasets on this machine: data folders in their usual layouts, then the cache."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from evclplus.data.contents import Contents, from_archive, from_paths, paths_in_folder
from evclplus.data.datasets import CIFAR10, PUBLISHED, DataFile, Model, Published
from evclplus.errors import FileError
from evclplus.files import cache_folder, own_path

Folder = Path | str | None
"""Where data is looked for first."""


@dataclass(frozen=True)
class Found:
    """A place on this machine that seems to have a dataset; reading it verifies every byte."""

    where: Path
    read: Callable[[], Contents]


@dataclass(frozen=True)
class Status:
    """What `evclplus data` says of one dataset."""

    name: str
    title: str
    present: bool
    where: str
    size: int
    licence: str
    checksum: str


def data_folders(data_dir: Folder) -> list[Path]:
    """Where to look, in order: what was asked for, EVCLPLUS_DATA, the cache, Keras' own folder."""
    named = {"the data folder": data_dir, "EVCLPLUS_DATA": os.environ.get("EVCLPLUS_DATA")}
    folders = []
    for source, folder in named.items():
        if folder:
            folders.append(own_path(folder, source))
            if not folders[-1].is_dir():
                raise FileError(f"{source} is {folder}, which is no folder; give one that exists")
    return [*folders, cache_folder(), Path("~/.keras/datasets").expanduser()]


def find(dataset: Published, data_dir: Folder = None) -> Iterator[Found]:
    """Every place that seems to have the dataset, best first."""
    for root in data_folders(data_dir):
        for layout in dataset.folders:
            paths = paths_in_folder(root / layout, dataset.files)
            if paths is not None:
                yield _in_folder(dataset, root / layout, paths)
        for packed in dataset.archives:
            if (root / packed).exists():
                yield _in_archive(dataset, root / packed)


def _in_folder(dataset: Published, folder: Path, paths: list[Path]) -> Found:
    return Found(folder, lambda: from_paths(dataset.files, paths))


def _in_archive(dataset: Published, path: Path) -> Found:
    return Found(path, lambda: from_archive(dataset, path))


def contents_of(dataset: Published, data_dir: Folder = None) -> dict[DataFile, bytes]:
    """The files, from the first place on this machine where they are right."""
    problem: FileError | None = None
    for found in find(dataset, data_dir):
        try:
            return dict(found.read())
        except FileError as error:
            problem = problem or error
    raise problem or missing(dataset, data_dir)


def missing(dataset: Published, data_dir: Folder = None) -> FileError:
    """The one line for a dataset that is nowhere."""
    advice = (
        f"get it with `evclplus data fetch {dataset.name}`, or point EVCLPLUS_DATA or --data-dir"
        " at a folder that has it"
    )
    for root in data_folders(data_dir):
        if dataset is CIFAR10 and (root / "cifar-10-batches-py").exists():
            return FileError(
                f"{root / 'cifar-10-batches-py'} holds pickles, which can run code and are never"
                f" opened; the binary version is needed: {advice}"
            )
    kind = "model" if isinstance(dataset, Model) else "dataset"
    return FileError(f"the {kind} {dataset.name} is not on this machine; {advice}")


def status(data_dir: Folder = None) -> list[Status]:
    """Every dataset: is it here, where, and is it the published one."""
    return [_status(dataset, data_dir) for dataset in PUBLISHED.values()]


def _status(dataset: Published, data_dir: Folder) -> Status:
    problem, where = "", ""
    for found in find(dataset, data_dir):
        try:
            for _ in found.read():
                pass
        except FileError as error:
            problem = problem or str(error)
            where = where or str(found.where)
        else:
            return _row(dataset, True, str(found.where), "right")
    return _row(dataset, False, where, problem or "-")


def _row(dataset: Published, present: bool, where: str, checksum: str) -> Status:
    return Status(
        dataset.name, dataset.title, present, where, dataset.size, dataset.licence, checksum
    )
