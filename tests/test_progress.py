"""Checkpoints inside a task: what goes on, what is refused, what a disk can do to them."""

import json
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import evclplus as ec
from evclplus import files
from evclplus.callbacks import Callback, LazyTerms
from evclplus.core import tree
from evclplus.core.graphs import shared_graphs
from evclplus.errors import FileError, SettingsError
from evclplus.progress import DONE, PROGRESS, as_bytes, digest_of, from_bytes
from tests.helpers import CalledTwice, Convolutional, blobs, small_network


class StopError(Exception):
    pass


class After(Callback):
    """Does something after so many steps, by default stops."""

    def __init__(self, steps: int, act: Any = None) -> None:
        self.left, self.act = steps, act

    def advance(self, step: int, terms: LazyTerms) -> None:
        self.left -= 1
        if self.left == 0:
            if self.act is None:
                raise StopError
            self.act()


class At(Callback):
    """Does something at some steps."""

    def __init__(self, acts: dict[int, Callable[[], None]]) -> None:
        self.acts = acts

    def advance(self, step: int, terms: LazyTerms) -> None:
        self.acts.get(step, lambda: None)()


def learner_for(network: torch.nn.Module | None = None, **settings: Any) -> ec.Learner:
    given = {"method": "evcl+", "epochs": 3, "batch_size": 7, "compile": "off", **settings}
    return ec.Learner(network or small_network((2, 2)), **given)


def tensors(learner: ec.Learner) -> list[torch.Tensor]:
    return [one for _, one in tree.tensors((learner.q, learner.memory, learner.network.buffers))]


def same(one: ec.Learner, other: ec.Learner) -> bool:
    return all(map(torch.equal, tensors(one), tensors(other)))


@pytest.mark.parametrize("kind", [Convolutional, CalledTwice])
def test_running_statistics_dropout_and_sampled_layers_go_on(
    kind: type[torch.nn.Module], tmp_path: Path
) -> None:
    task = blobs()[0]
    torch.manual_seed(3)
    network = kind()
    undisturbed = learner_for(network, method="vcl").learn(task)
    place = ec.Checkpoints(tmp_path, every=0)
    for steps in (4, 7, 10**9):
        learner = learner_for(network, method="vcl", callback=After(steps))
        try:
            learner.learn(task, checkpoint=place)
        except StopError:
            continue
    assert same(learner, undisturbed)
    assert learner.network.local_layers.keys() == undisturbed.network.local_layers.keys()


def test_an_optimiser_that_is_kept_goes_on(tmp_path: Path) -> None:
    stream = blobs()
    undisturbed = learner_for(keep_optimiser=True)
    for task in stream:
        undisturbed.learn(task)
    for steps in (30, 10**9):
        learner = learner_for(keep_optimiser=True, callback=After(steps))
        try:
            for task in stream:
                learner.learn(task, checkpoint=ec.Checkpoints(tmp_path, every=0))
        except StopError:
            continue
    assert same(learner, undisturbed)
    assert learner.moments is not None
    assert undisturbed.moments is not None
    assert learner.moments.steps == undisturbed.moments.steps
    assert torch.equal(learner.moments.second, undisturbed.moments.second)


def test_the_same_script_again_learns_nothing_twice_and_sees_the_same(tmp_path: Path) -> None:
    stream = blobs()

    def script(steps: int) -> tuple[list[Any], int]:
        counter = After(steps)
        learner, seen = learner_for(callback=counter), []
        for task in stream:
            learner.learn(task, checkpoint=tmp_path)
            seen.append(learner.evaluate(stream.seen(task)))
        return seen, 10**9 - counter.left

    first, steps = script(10**9)
    assert steps > 0
    assert script(10**9) == (first, 0)


def test_a_task_under_way_is_taken_up_at_its_step(tmp_path: Path) -> None:
    task = blobs()[0]
    with pytest.raises(StopError):
        learner_for(callback=After(13)).learn(task, checkpoint=ec.Checkpoints(tmp_path, every=0))
    _, fits = from_bytes((tmp_path / "task-1" / PROGRESS).read_bytes())
    assert [(fit.purpose, fit.step, fit.finished) for fit in fits] == [("train", 12, False)]
    counter = After(10**9)
    learner_for(callback=counter).learn(task, checkpoint=tmp_path)
    assert 10**9 - counter.left == 3 * 7 - 12
    assert not (tmp_path / "task-1" / PROGRESS).exists()
    assert not list(tmp_path.rglob("*.part"))
    assert not (tmp_path / ".lock").exists()


def test_every_epoch_and_every_few_minutes(tmp_path: Path) -> None:
    task = blobs()[0]
    for every, step in (("epoch", 7), (5.0, None), (0.0, 12)):
        folder = tmp_path / str(every)
        with pytest.raises(StopError):
            learner_for(callback=After(13)).learn(
                task,
                checkpoint=ec.Checkpoints(folder, every=every),  # type: ignore[arg-type]
            )
        path = folder / "task-1" / PROGRESS
        assert path.exists() == (step is not None)
        if step is not None:
            assert from_bytes(path.read_bytes())[1][0].step == step
    with pytest.raises(SettingsError, match="minutes, or 'epoch'"):
        ec.Checkpoints(tmp_path, every="day")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("seed", {"seed": 1}),
        ("training", {"learning_rate": 1e-3}),
        ("method", {"method": ec.EVCLPlus(lam=7.0)}),
        ("learner", {"network": small_network((2, 2), seed=5)}),
    ],
)
def test_a_checkpoint_of_another_training_is_refused(
    what: str, change: dict[str, Any], tmp_path: Path
) -> None:
    stream = blobs()
    place = ec.Checkpoints(tmp_path, every=0)
    with pytest.raises(StopError):
        learner_for(callback=After(5)).learn(stream[0], checkpoint=place)
    with pytest.raises(FileError, match=f"another training: {what} is not the same"):
        learner_for(**change).learn(stream[0], checkpoint=place)
    learner_for().learn(stream[0], checkpoint=place)
    with pytest.raises(FileError, match=f"another training: {what} is not the same"):
        learner_for(**change).learn(stream[0], checkpoint=place)
    other = blobs(seed=4)[0]
    with pytest.raises(FileError, match="data is not the same"):
        learner_for().learn(other, checkpoint=place)


@pytest.mark.parametrize("position", [0, 10, 200, 2000, -1])
def test_a_damaged_checkpoint_is_said_and_not_used(
    position: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = blobs()[0]
    undisturbed = learner_for().learn(task)
    with pytest.raises(StopError):
        learner_for(callback=After(5)).learn(task, checkpoint=ec.Checkpoints(tmp_path, every=0))
    path = tmp_path / "task-1" / PROGRESS
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING, "evclplus"):
        learner = learner_for().learn(task, checkpoint=tmp_path)
    assert "is damaged" in caplog.text
    assert same(learner, undisturbed)


def test_bytes_and_back() -> None:
    assert from_bytes(as_bytes([], {"seed": "0"}, {"plain"}))[0]["identity"] == {"seed": "0"}
    examples = blobs()[0].train
    assert digest_of(examples) == digest_of(examples.gathered())
    assert digest_of(examples) != digest_of(examples.take(torch.arange(5)))


def test_a_folder_that_is_full_or_gone_warns_once_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = blobs()[0]
    undisturbed = learner_for().learn(task)
    folder = tmp_path / "checkpoints"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    kept: list[bytes] = []

    def fill() -> None:
        """From here on no file can be written that has more than a few bytes."""
        kept.append((folder / "task-1" / PROGRESS).read_bytes())
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))

    def free() -> None:
        assert (folder / "task-1" / PROGRESS).read_bytes() == kept[0]  # the last good one
        assert not list(folder.rglob("*.part"))
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    def vanish() -> None:
        assert from_bytes((folder / "task-1" / PROGRESS).read_bytes())[1][0].step == 11
        shutil.rmtree(folder)
        folder.write_text("in the way")

    learner = learner_for(callback=At({4: fill, 8: free, 12: vanish}))
    place = ec.Checkpoints(folder, every=0, alone=False)
    try:
        with caplog.at_level(logging.WARNING, "evclplus"):
            learner.learn(task, checkpoint=place)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, old)
    said = [record.getMessage() for record in caplog.records]
    assert [line.partition(":")[0] for line in said] == [
        "training goes on, but cannot be saved now",
        f"training can be saved again, in {folder}",
        "training goes on, but cannot be saved now",
    ]
    assert all("\n" not in line for line in said)
    assert same(learner, undisturbed)


def in_a_child(code: str, *words: str) -> "subprocess.Popen[str]":
    script = "import os, signal, sys\nimport evclplus as ec\n" + textwrap.dedent(code)
    return subprocess.Popen(
        [sys.executable, "-c", script, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that runs the tests in the background has them ignore interrupts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


LEARN = """
from tests.test_progress import After, learner_for
from tests.helpers import blobs
signal.signal(signal.SIGINT, signal.default_int_handler)
number = getattr(signal, sys.argv[2])
callback = After(13, lambda: os.kill(os.getpid(), number))
learner = learner_for(callback=callback).learn(blobs()[0], checkpoint=sys.argv[1])
print("learned")
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGUSR1"])
def test_signals_save_between_two_steps(name: str, tmp_path: Path) -> None:
    child = in_a_child(LEARN, str(tmp_path), name)
    out, error = child.communicate(timeout=600)
    if name == "SIGUSR1":
        assert (child.returncode, out) == (0, "learned\n"), error
        assert (tmp_path / "task-1" / DONE).exists()
        return
    # As without a checkpoint: a Python program ends in KeyboardInterrupt, or dies of the signal.
    assert child.returncode == (-signal.SIGTERM if name == "SIGTERM" else -signal.SIGINT), error
    assert ("KeyboardInterrupt" in error) == (name == "SIGINT")
    assert from_bytes((tmp_path / "task-1" / PROGRESS).read_bytes())[1][0].step == 13
    task = blobs()[0]
    assert same(learner_for().learn(task, checkpoint=tmp_path), learner_for().learn(task))


def test_a_second_learner_is_refused_and_told_who_writes(tmp_path: Path) -> None:
    task = blobs()[0]
    said: list[str] = []

    def another() -> None:
        with pytest.raises(FileError) as refused:
            learner_for().learn(task, checkpoint=tmp_path)
        said.append(str(refused.value))

    learner_for(callback=After(5, another)).learn(task, checkpoint=tmp_path)
    (line,) = said
    assert f"is being written by process {os.getpid()} on " in line
    assert "since 20" in line
    assert "\n" not in line


def test_what_a_killed_process_has_left_is_swept_and_locks_nobody_out(tmp_path: Path) -> None:
    code = """
    from pathlib import Path
    from evclplus.locks import only_writer
    real = os.replace
    os.replace = lambda *names: os.kill(os.getpid(), signal.SIGKILL)
    from evclplus.files import write_atomically
    with only_writer(Path(sys.argv[1])):
        write_atomically(Path(sys.argv[1], "file"), "content")
    """
    child = in_a_child(code, str(tmp_path))
    child.communicate(timeout=600)
    assert child.returncode == -signal.SIGKILL
    (part,) = tmp_path.glob("*.part") or tmp_path.glob(".*.part")
    assert json.loads((tmp_path / ".lock").read_text())["pid"] == child.pid
    foreign = tmp_path / f".file.00000000-{child.pid}-1.abc.part"
    foreign.touch()  # of another machine that shares the folder: it may be alive
    learner_for().learn(blobs()[0], checkpoint=tmp_path)
    files.write_atomically(tmp_path / "file", "content")
    assert not part.exists()
    assert foreign.exists()
    os.utime(foreign, (0, 0))
    files.write_atomically(tmp_path / "file", "content")
    assert not foreign.exists()
    assert (tmp_path / "file").read_text() == "content"


def test_temporary_folders_of_killed_processes_are_removed_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
    from evclplus.files import temporary_folder
    with temporary_folder() as folder:
        (folder / "file").write_text("content")
        os.kill(os.getpid(), signal.SIGKILL)
    """
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    child = in_a_child(code)
    child.communicate(timeout=600)
    (left,) = tmp_path.iterdir()
    for name in ("evclplus-mine", f"evclplus-00000000-{child.pid}-1-abc", "evclplus-1-2-3"):
        (tmp_path / name).mkdir()  # a user's own, and of a machine that may be alive
    with files.temporary_folder() as one, files.temporary_folder() as other:
        assert one.exists()
        assert other.exists()
        assert not left.exists()
    assert len(list(tmp_path.iterdir())) == 3


@pytest.fixture
def no_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing has been compiled here, and what is goes nowhere else."""
    monkeypatch.setenv("EVCLPLUS_CACHE", str(tmp_path / "cache"))
    shared_graphs.cache_clear()
    yield
    shared_graphs.cache_clear()


@pytest.mark.usefixtures("no_graphs")
def test_what_has_failed_to_compile_stays_uncompiled_after_a_stop(tmp_path: Path) -> None:
    """The compiler is back when the second process begins; the bits are those of the first."""
    task = blobs()[0]
    place = ec.Checkpoints(tmp_path, every=0)
    no_compiler = {"cpp.cxx": ("no-such-compiler",), "fx_graph_cache": False}
    with torch._inductor.config.patch(no_compiler), pytest.raises(StopError):
        learner_for(compile="on", callback=After(9)).learn(task, checkpoint=place)
    (fit,) = from_bytes((tmp_path / "task-1" / PROGRESS).read_bytes())[1]
    assert not fit.compiles
    learner = learner_for(compile="on").learn(task, checkpoint=place)
    assert same(learner, learner_for().learn(task))
    (form,) = learner.forms
    assert form.startswith("plain, because compiling failed: ")


def test_a_rename_is_flushed_with_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    real, rename = os.fsync, os.replace

    def fsync(handle: int) -> None:
        flushed.append(os.readlink(f"/proc/self/fd/{handle}"))
        real(handle)

    def replace(one: str, other: Path) -> None:
        flushed.append("rename")
        rename(one, other)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    files.write_atomically(tmp_path / "file", "content")
    assert flushed[0].endswith(".part")
    assert flushed[1:] == ["rename", str(tmp_path)]
