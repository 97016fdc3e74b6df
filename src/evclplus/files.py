"""Writing files so that a reader sees the old content or the new, never a part."""

import os
import stat
import tempfile
from pathlib import Path

from evclplus.errors import FileError


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write beside `path`, flush to disk, then rename over it."""
    data = content.encode() if isinstance(content, str) else content
    try:
        _write_and_rename(path, data)
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}") from None


def _write_and_rename(path: Path, data: bytes) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
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
        return Path(text).expanduser()
    except TypeError:
        raise FileError(f"{what} is {text!r:.60}; give a path") from None
    except RuntimeError:
        raise FileError(f"{what} is {text}, and there is no such user; give a full path") from None


def cache_folder() -> Path:
    """`EVCLPLUS_CACHE`, or the platform's own folder for caches."""
    chosen = os.environ.get("EVCLPLUS_CACHE")
    if chosen:
        return own_path(chosen, "EVCLPLUS_CACHE")
    import platformdirs  # here: rarely needed

    return Path(platformdirs.user_cache_dir("evclplus"))
