"""The cache: fetched files, and decoded arrays that all processes map instead of copying."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from evclplus.benchmarks.readers import Bytes

Fill = Callable[[Bytes], None]


def cache_folder() -> Path:
    """`EVCLPLUS_CACHE`, or the platform's own folder for caches."""
    chosen = os.environ.get("EVCLPLUS_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    # Imported here: it is slow to import and rarely needed.
    import pooch

    return Path(pooch.os_cache("evclplus"))


def open_array(path: Path, shape: tuple[int, ...]) -> Bytes | None:
    """A cached array, mapped; None if it is not there or not whole.

    Copy-on-write: pages are shared between processes and a stray write never reaches the file.
    """
    try:
        array: Bytes = np.load(path, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return array if array.shape == shape and array.dtype == np.uint8 else None


def make_array(path: Path, shape: tuple[int, ...], fill: Fill) -> Bytes:
    """Make the array with `fill` and keep it at `path`; in memory if that cannot be written."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        mapped = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.uint8, shape=shape)
    except OSError:
        array = np.empty(shape, dtype=np.uint8)
        fill(array)
        return array
    try:
        fill(mapped)
        mapped.flush()
        del mapped
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    made = open_array(path, shape)
    assert made is not None
    return made
