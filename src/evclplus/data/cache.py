"""The cache: fetched files, and decoded arrays that all processes map instead of copying."""

import os
import secrets
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from evclplus.errors import FileError
from evclplus.files import this_process, write_atomically

Array = np.ndarray[Any, np.dtype[Any]]


def open_array(
    path: Path, shape: tuple[int, ...], dtype: type[np.generic] = np.uint8
) -> Array | None:
    """A cached array, mapped; None if it is not there, not whole or not what was written.

    Copy-on-write: pages are shared between processes and a stray write never reaches the file.
    """
    try:
        array: Array = np.load(path, mmap_mode="c", allow_pickle=False)
        checksum = _beside(path).read_text(encoding="ascii")
    except Exception:  # numpy's reader of headers has many ways to fail
        return None
    whole = array.shape == shape and array.dtype == dtype
    return array if whole and checksum == _checksum(array) else None


def _beside(path: Path) -> Path:
    return path.with_suffix(".crc32")


def _checksum(array: Array) -> str:
    return f"{zlib.crc32(array.reshape(-1).view(np.uint8).data):08x}"


def keep_array(path: Path, array: Array) -> Array:
    """Write the array to `path` and map it from there; where that fails, a copy in memory."""
    temporary = path.with_name(f".{path.name}.{this_process()}.{secrets.token_hex(4)}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as stream:
            np.save(stream, array, allow_pickle=False)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
        write_atomically(_beside(path), _checksum(array))
    except (OSError, FileError):
        with suppress(OSError):
            temporary.unlink()
    kept = open_array(path, array.shape, array.dtype.type)
    return array.copy() if kept is None else kept
