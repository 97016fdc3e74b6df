"""A grid on a real Ray cluster: two nodes on this machine, each with a disk of its own."""

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from evclplus.experiments.record import Record
from evclplus.experiments.tune import Search
from tests.experiments.test_cli import evclplus

installed = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray is not installed"
)
GRID = (
    *("compare", "--methods", "finetune,vcl", "--seeds", "2", "--epochs", "300"),
    *("--set=stream.tasks=2", "--set=stream.examples_per_task=60", "--checkpoint-every=0.005"),
    *("--set=training.batch_size=20", "--set=training.compile=off"),
)
TABLES = ("table.csv", "table.md", "table.tex")


@dataclass
class Cluster:
    """Nodes that are sessions of their own, in a folder with a short name: Ray makes sockets."""

    folder: Path
    port: int
    nodes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return f"ray://127.0.0.1:{self.port}"

    def start(self, name: str, *words: str) -> None:
        """Start a node and wait until it says that it is there."""
        log = self.folder / f"{name}.log"
        paths = os.pathsep.join(path for path in sys.path if path)
        with log.open("wb") as output:
            self.nodes[name] = subprocess.Popen(
                [sys.executable, "-m", "ray.scripts.scripts", "start", *words, "--num-cpus=1"]
                + ["--object-store-memory=100000000", "--disable-usage-stats", "--block"],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": paths, "EVCLPLUS_CACHE": str(self.folder / name)},
            )
        node = self.nodes[name]
        until(lambda: b"Ray runtime started" in log.read_bytes(), node, log.read_text)

    def kill(self, name: str) -> None:
        # Never `ray stop`: it ends what looks like Ray anywhere on the machine.
        with suppress(ProcessLookupError):
            os.killpg(self.nodes[name].pid, signal.SIGKILL)
        self.nodes[name].wait()

    def at_work(self, name: str) -> int | None:
        """The process that learns a first task on a node and has saved something."""
        for lock in self.folder.glob(f"{name}/cells/*/.lock"):
            first, second = (lock.parent / "checkpoints" / f"task-{n}" for n in (1, 2))
            with suppress(OSError, ValueError):
                pid = int(json.loads(lock.read_text())["pid"])
                saved = (first / "progress.safetensors").exists() and not second.exists()
                if saved and Path("/proc", str(pid)).exists():
                    return pid
        return None

    def caught(self, name: str) -> int | None:
        """The same, stopped: it cannot come to its end before it is killed."""
        pid = self.at_work(name)
        if pid is None:
            return None
        os.kill(pid, signal.SIGSTOP)
        if self.at_work(name) == pid:
            return pid
        os.kill(pid, signal.SIGCONT)
        return None


def until(
    seen: Callable[[], int | None], process: "subprocess.Popen[bytes]", said: Callable[[], str]
) -> int:
    """Wait for something that must happen while a process lives."""
    while not (found := seen()):
        assert process.poll() is None, said()
        time.sleep(0.02)
    return found


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    made = Cluster(Path(tempfile.mkdtemp(prefix="r", dir="/tmp")), port)
    try:
        temporary = f"--temp-dir={made.folder}/t"
        made.start("head", "--head", f"--port={port}", "--include-dashboard=false", temporary)
        made.start("node", f"--address=127.0.0.1:{port}")
        yield made
    finally:
        for name in made.nodes:
            made.kill(name)
        shutil.rmtree(made.folder, ignore_errors=True)


def tables(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in TABLES]


@pytest.mark.slow
@installed
def test_a_worker_a_node_and_the_driver_die_and_the_table_is_the_same(
    cluster: Cluster, tmp_path: Path
) -> None:
    here = evclplus(*GRID, "--out", "here", "--jobs", "2", folder=tmp_path)
    assert here.returncode == 0, here.stderr

    words = (*GRID, "--out", "there", "--on", cluster.address)
    log = tmp_path / "log"
    with log.open("wb") as output:
        driver = subprocess.Popen(
            [sys.executable, "-m", "evclplus", *words],
            cwd=tmp_path,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        worker = until(lambda: cluster.caught("node"), driver, log.read_text)
        os.kill(worker, signal.SIGKILL)
        until(
            lambda: "its worker died; it is begun again" in log.read_text(), driver, log.read_text
        )

        worker = until(lambda: cluster.caught("node"), driver, log.read_text)
        cluster.kill("node")
        os.kill(worker, signal.SIGKILL)
        until(lambda: log.read_text().count("it is begun again") == 2, driver, log.read_text)

        worker = until(lambda: cluster.caught("head"), driver, log.read_text)
    finally:
        driver.kill()
        driver.wait()
    os.kill(worker, signal.SIGCONT)
    while Path("/proc", str(worker)).exists():  # Ray ends the workers of a dead driver
        time.sleep(0.02)
    assert len(list(tmp_path.glob("there/**/record.json"))) < 4
    assert not list(tmp_path.glob("there/**/checkpoints"))  # the driver alone writes there

    again = evclplus(*words, folder=tmp_path)
    assert again.returncode == 0, again.stderr
    assert tables(tmp_path / "there") == tables(tmp_path / "here")
    records = [Record.read(path) for path in tmp_path.glob("there/**/record.json")]
    assert len(records) == 4
    assert any(record.environment["resumed"] for record in records)
    assert not list(cluster.folder.glob("head/cells/*"))


@pytest.mark.slow
@installed
def test_a_search_on_ray(cluster: Cluster, tmp_path: Path) -> None:
    words = ("--benchmark=split-digits", "--methods=finetune", "--trials=2", "--seeds=1")
    place = ("--epochs-limit=1", "--out=found", "--on", cluster.address)
    done = evclplus("tune", *words, *place, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    search = Search("split-digits", "finetune", tmp_path / "found", 1, runs=1)
    for trial in search.study().trials:
        assert trial.value == pytest.approx(list(trial.intermediate_values.values())[-1])
    assert sorted(path.name for path in (tmp_path / "found" / "split-digits").iterdir()) == [
        "finetune.journal",
        "finetune.json",
    ]


def test_without_a_cluster_a_line_says_what_to_do(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    free = {"RAY_ADDRESS": "", "RAY_TMPDIR": str(tmp_path)}
    done = evclplus("compare", "--on", "ray", folder=tmp_path, **free)
    assert done.returncode == 2
    assert done.stderr.startswith("evclplus: there is no Ray cluster that this machine belongs to")
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("package", "on", "extra"), [("ray", "ray", "ray"), ("submitit", "slurm", "slurm")]
)
def test_without_the_package_a_line_says_how_to_get_it(
    package: str, on: str, extra: str, tmp_path: Path
) -> None:
    blocked = (
        f"import sys; sys.modules['{package}'] = None; "
        f"sys.argv = ['evclplus', 'compare', '--on', '{on}']; "
        "from evclplus.experiments.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", blocked], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr == (
        f"evclplus: --on {on} needs {package}: install it with `pip install 'evclplus[{extra}]'`\n"
    )
    assert not list(tmp_path.iterdir())
