"""The cache: fetched files, and decoded arrays that all processes map instead of copying."""

import os
import secrets
from contextlib import suppress
from pathlib import Path

import numpy as np

from evclplus.data.readers import Bytes


def open_array(path: Path, shape: tuple[int, ...]) -> Bytes | None:
    """A cached array, mapped; None if it is not there or not whole.

    Copy-on-write: pages are shared between processes and a stray write never reaches the file.
    """
    try:
        array: Bytes = np.load(path, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return array if array.shape == shape and array.dtype == np.uint8 else None


def keep_array(path: Path, array: Bytes) -> Bytes:
    """Write the array to `path` and map it from there; where that fails, a copy in memory."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as stream:
            np.save(stream, array, allow_pickle=False)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
    kept = open_array(path, array.shape)
    return array.copy() if kept is None else kept
