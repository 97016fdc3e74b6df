"""Reading tar archives member by member. Nothing is ever extracted to a path an archive names."""

import gzip
import io
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import IO

from evclplus.errors import FileError


class _Limited(io.RawIOBase):
    """A stream that refuses to give more than `limit` bytes in all, however well packed."""

    def __init__(self, stream: IO[bytes] | gzip.GzipFile, archive: str, limit: int) -> None:
        self._stream, self._archive, self._limit, self._left = stream, archive, limit, limit

    def read(self, size: int = -1) -> bytes:
        content = self._stream.read(min(size, self._left + 1))
        self._left -= len(content)
        if self._left < 0:
            raise FileError(
                f"{self._archive} unpacks to more than the {self._limit} bytes it may;"
                " it is not used"
            )
        return content


def read_members(
    stream: IO[bytes], name: str, limit: int, packed: bool
) -> Iterator[tuple[PurePosixPath, bytes]]:
    """The regular files of a tar stream, gzipped if `packed`, in the order they are stored.

    An archive is refused when a member could escape its folder (absolute, `..`, a link, a device)
    or when it unpacks to more than `limit` bytes.
    """
    limited = _Limited(gzip.GzipFile(fileobj=stream) if packed else stream, name, limit)
    try:
        with tarfile.open(fileobj=limited, mode="r|") as archive:
            for member in archive:
                _check(member, name)
                content = archive.extractfile(member) if member.isreg() else None
                if content is not None:
                    yield PurePosixPath(member.name), content.read()
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError) as error:
        raise FileError(f"{name} is a damaged archive: {error}; get it again") from None


def _check(member: tarfile.TarInfo, name: str) -> None:
    path = PurePosixPath(member.name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or ":" in (path.parts or ("",))[0]:
        raise FileError(
            f"{name} has a member that would escape its folder, {member.name!r}; it is not used"
        )
    if not (member.isreg() or member.isdir()) or member.issparse():
        raise FileError(
            f"{name} has a member that is no plain file, {member.name!r}; it is not used"
        )
