"""One writer of a folder at a time: who comes second is refused, or waits its turn.

The lock is the system's own (flock), so it ends with its process, however that ends: there are no
stale locks. What the file says is for whoever is refused.
"""

import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from evclplus.errors import FileError
from evclplus.files import make_folder

LOCK = ".lock"


class BusyError(FileError):
    """Somebody else has the lock."""


@contextmanager
def only_writer(folder: Path, name: str = LOCK) -> Iterator[None]:
    """Hold the lock of a folder, or refuse in one line that names who has it."""
    make_folder(folder)
    path = folder / name
    handle = _locked(path)
    try:
        yield
    finally:
        # Removed while it is still held: who waits at the old file sees that it is no longer there.
        with suppress(OSError):
            path.unlink()
        os.close(handle)


@contextmanager
def in_turn(folder: Path) -> Iterator[None]:
    """Whoever else saves into the folder waits meanwhile, and then sees what is there. The lock is
    on the folder itself, so nothing is left behind, whoever is killed."""
    try:
        import fcntl

        handle = os.open(folder, os.O_RDONLY)
    except (ModuleNotFoundError, OSError):  # not on this system; the last one then wins
        yield
        return
    try:
        with suppress(OSError):  # some network file systems have no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _locked(path: Path) -> int:
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise FileError(f"cannot write {path}: {error.strerror}") from None
        try:
            _lock(handle, path)
            if _is_still_there(handle, path):
                _say_who(handle)
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # its holder has just removed it; the next one is another file


def _lock(handle: int, path: Path) -> None:
    try:
        import fcntl  # no system without it has such locks
    except ModuleNotFoundError:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BusyError(
            f"{path.parent} is being written by {_holder(path)}; wait for it, stop it or choose "
            "another folder"
        ) from None
    except OSError:  # a file system without locks: nobody else has one either
        pass


def _is_still_there(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except OSError:
        return False


def _say_who(handle: int) -> None:
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    who = {"host": platform.node(), "pid": os.getpid(), "since": since}
    with suppress(OSError):  # no room for a line: the lock is held all the same
        os.ftruncate(handle, 0)
        os.write(handle, json.dumps(who).encode())


def _holder(path: Path) -> str:
    try:
        who = json.loads(path.read_text())
        return f"process {who['pid']:d} on {who['host']!s} since {who['since']!s}"
    except (OSError, ValueError, TypeError, KeyError):
        return "another process"
