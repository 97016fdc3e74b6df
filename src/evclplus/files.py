"""Writing files so that a reader sees the old content or the new, never a part."""

import os
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


def make_folder(path: Path) -> Path:
    """Create `path` and check that files can be written in it, before any long work starts."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        reason = error.strerror or str(error)
        raise FileError(f"cannot write in the folder {path}: {reason}; choose another") from None
    return path


def check_target(path: Path, overwrite: bool) -> None:
    """Refuse a file that cannot be written or must not be replaced, before any long work starts."""
    if path.is_dir():
        raise FileError(f"{path} is a folder; give the name of a file in it")
    if path.exists() and not overwrite:
        raise FileError(f"{path} exists; pass --overwrite or another name")
    make_folder(path.parent)


def cache_folder() -> Path:
    """`EVCLPLUS_CACHE`, or the platform's own folder for caches."""
    chosen = os.environ.get("EVCLPLUS_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    import platformdirs  # here: rarely needed

    return Path(platformdirs.user_cache_dir("evclplus"))
