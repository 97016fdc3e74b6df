"""Writing files so that a reader sees the old content or the new, never a part."""

import errno
import hashlib
import os
import platform
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from evclplus.errors import FileError

OLDEST_PART = 24 * 3600
"""Seconds after which a part must be a leftover, when one cannot ask whether its writer lives."""


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write beside `path`, flush to disk, rename over it, flush the folder. When this returns, the
    new content survives a power cut; until then the old one does."""
    data = content.encode() if isinstance(content, str) else content
    try:
        _write_and_rename(path, data)
        flush_folder(path.parent)
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}") from None


def _write_and_rename(path: Path, data: bytes) -> None:
    remove_leftovers(path.parent)
    prefix = f".{path.name[:100]}.{_writer(os.getpid())}."
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=prefix, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def flush_folder(folder: Path) -> None:
    """A rename is atomic but is on disk only when its folder is. Some file systems cannot flush a
    folder; the rename is then theirs to keep."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:  # a folder may be written and not read
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


# What a killed process has left.

PART = re.compile(r"\.(?P<machine>[0-9a-f]{8})-(?P<pid>\d+)-(?P<born>\d+)\.[^.]*\.part$")

FOLDER = re.compile(r"evclplus-(?P<process>[0-9a-f]{8}-\d+-\d+)-[^-]*$")


def remove_leftovers(folder: Path) -> None:
    """Remove the parts in a folder whose writers are dead."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".part") and entry.name.startswith(".") and _is_left(entry):
                with suppress(OSError):
                    os.unlink(entry.path)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder for half-done work, where the system has such folders. Those that killed processes
    have left there are removed."""
    place = Path(tempfile.gettempdir())
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            found = FOLDER.match(entry.name)
            if found and is_dead(found["process"]) and entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"evclplus-{this_process()}-", dir=place) as name:
        yield Path(name)


def _is_left(entry: "os.DirEntry[str]") -> bool:
    found = PART.search(entry.name)
    if found is None or found["machine"] != _machine():
        return time.time() - entry.stat().st_mtime > OLDEST_PART
    return _born(int(found["pid"])) != found["born"]


def _writer(pid: int) -> str:
    """A process for others to ask about: numbers of processes come again, so with its birth."""
    return f"{_machine()}-{pid}-{_born(pid)}"


def this_process() -> str:
    """A name of this process, for whoever asks later whether it lives."""
    return _writer(os.getpid())


def is_dead(process: str) -> bool:
    """Whether a process of this name has ended; of other machines one cannot know."""
    machine, _, rest = process.partition("-")
    pid, _, born = rest.partition("-")
    return machine == _machine() and (not pid.isdigit() or _born(int(pid)) != born)


@cache
def _machine() -> str:
    """This boot of this machine, or of a container: where numbers of processes mean the same."""
    parts = [platform.node()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:8]


def _born(pid: int) -> str | None:
    """When a process began, by its machine's clock; 0 where one cannot ask, None: it is dead."""
    try:
        # The name in parentheses may have any character; the 20th field after it is the time.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        pass
    if Path("/proc/self/stat").exists():
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        pass
    return "0"


def read_file(path: Path) -> bytes:
    """The content of a plain file: a pipe would be waited for for ever, a device may not end."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(handle, "rb") as stream:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise FileError(f"cannot read {path}: it is no plain file")
            return stream.read()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise FileError(f"cannot read {path}: {reason or error}") from None


def make_folder(path: Path) -> Path:
    """Create `path` and check that files can be written in it, before any long work starts."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except (OSError, ValueError) as error:  # a name with a zero byte is a wrong value
        reason = getattr(error, "strerror", None) or str(error)
        raise FileError(f"cannot write in the folder {path}: {reason}; choose another") from None
    return path


def check_target(path: Path, overwrite: bool) -> None:
    """Refuse a file that cannot be written or must not be replaced, before any long work starts."""
    if path.is_dir():
        raise FileError(f"{path} is a folder; give the name of a file in it")
    if path.exists() and not overwrite:
        raise FileError(f"{path} exists; pass --overwrite or another name")
    make_folder(path.parent)


def own_path(text: Path | str, what: str) -> Path:
    """A path as a user writes it, `~` for a home."""
    try:
        path = Path(text).expanduser()
        path.exists()  # a name may be too long, or have a zero byte
        return path
    except TypeError:
        raise FileError(f"{what} is {text!r:.60}; give a path") from None
    except RuntimeError:
        raise FileError(f"{what} is {text}, and there is no such user; give a full path") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FileError(f"{what} is {str(text)[:60]!r}: {reason}; give another path") from None


def cache_folder() -> Path:
    """`EVCLPLUS_CACHE`, or the platform's own folder for caches."""
    chosen = os.environ.get("EVCLPLUS_CACHE")
    if chosen:
        return own_path(chosen, "EVCLPLUS_CACHE")
    import platformdirs  # here: rarely needed

    return Path(platformdirs.user_cache_dir("evclplus"))
