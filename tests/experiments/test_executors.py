"""What is the same for every executor: the loop, retries, hosts that differ, works elsewhere."""

import json
import platform
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import TracebackType

import pytest
import torch

from evclplus.callbacks import Callback
from evclplus.errors import SettingsError
from evclplus.experiments.compare import Cell, cells
from evclplus.experiments.config import Experiment
from evclplus.experiments.environment import environment, flushes_denormal
from evclplus.experiments.executors import worker
from evclplus.experiments.executors.base import Host, News, Outcome, Work
from evclplus.experiments.executors.choose import executor_for
from evclplus.experiments.executors.local import Processes
from evclplus.experiments.executors.loop import difference, work_through
from evclplus.experiments.executors.worker import elsewhere
from evclplus.experiments.record import Record
from evclplus.experiments.run import run
from evclplus.locks import only_writer
from evclplus.settings import Training
from tests.experiments.test_processes import Act, Heard
from tests.experiments.test_stops import figures, small


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A worker sets up its process, which is that of the tests here."""
    threads, flushes = torch.get_num_threads(), flushes_denormal()
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    yield
    torch.set_num_threads(threads)
    torch.set_flush_denormal(flushes)


class Fragile:
    """An executor that does works here, on a machine like no other, and loses the first ones."""

    retries = 2

    def __init__(self, losses: int) -> None:
        self.losses = losses
        self.waiting: list[tuple[int, Work]] = []
        self.left: type[BaseException] | None = None

    def room(self) -> int:
        return 1

    def start(self, number: int, work: Work, command: str) -> None:
        self.waiting.append((number, work))

    def news(self) -> Iterator[tuple[int, News]]:
        for number, work in self.waiting[:]:
            self.waiting.remove((number, work))
            yield number, Host("strange", {**environment(), "torch": "1.0"})
            self.losses -= 1
            if self.losses >= 0:
                yield number, Outcome(error="its worker died", lost=True)
            else:
                yield number, worker.tried(partial(work, work.home, Callback(), ""))

    def save(self) -> None: ...

    def __enter__(self) -> "Fragile":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.left = kind


def test_a_lost_work_is_begun_again_and_a_refused_one_is_not(tmp_path: Path) -> None:
    heard = Heard()
    jobs = [Act(title, tmp_path) for title in ("one", "is refused", "two")]
    failed = work_through(jobs, Fragile(2), heard)
    assert failed == ["is refused: the loss is not finite"]
    assert heard.started_titles == ["one", "is refused", "two"]
    assert heard.lines.count("one: its worker died; it is begun again") == 2
    assert len(heard.lines) == 3  # and what is other on the strange machine, once


def test_a_work_that_is_always_lost_fails_at_last(tmp_path: Path) -> None:
    heard = Heard()
    failed = work_through([Act("one", tmp_path), Act("two", tmp_path)], Fragile(3), heard)
    assert failed == ["one: its worker died"]
    assert heard.errors["two"] is None


def test_what_is_other_on_a_host_is_one_line() -> None:
    here = environment()
    assert difference(Host("node7", here), here) is None
    there = {**here, "torch": "2.13.9", "commit": "abc", "threads": 64}
    line = difference(Host("node7", there), here)
    assert line == (
        "node7 is not as this machine, results may differ: "
        f"commit abc there, {here['commit']} here; torch 2.13.9 there, {here['torch']} here"
    )


def test_a_cell_elsewhere_gives_the_record_and_only_the_driver_writes_it(tmp_path: Path) -> None:
    (cell,) = cells([small("finetune")], tmp_path / "out")
    outcome = elsewhere(cell.work(), tmp_path / "scratch", None, Callback(), "a command")
    assert not (tmp_path / "out").exists()
    cell.receive(outcome)
    record = Record.read(cell.folder / "record.json")
    assert (cell.folder / "record.json").read_bytes() == outcome.answer
    assert figures(record) == figures(run(small("finetune")))
    assert [path.name for path in cell.folder.iterdir()] == ["record.json"]


def test_a_node_without_the_data_says_its_name_and_how_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVCLPLUS_DATA", str(tmp_path))
    monkeypatch.setenv("EVCLPLUS_CACHE", str(tmp_path))
    cell = Cell(Experiment(method="finetune", benchmark="split-mnist"), tmp_path / "out")
    outcome = elsewhere(cell.work(), tmp_path / "scratch", "/elsewhere", Callback(), "")
    assert outcome.error is not None
    assert outcome.error.startswith(f"on {platform.node()}: ")
    assert "evclplus data fetch mnist" in outcome.error
    assert not outcome.lost


def test_training_that_diverges_is_an_answer(tmp_path: Path) -> None:
    training = Training(epochs=2, batch_size=20, compile="off", learning_rate=1e30)
    (cell,) = cells([small("finetune").model_copy(update={"training": training})], tmp_path)
    outcome = elsewhere(cell.work(), tmp_path / "scratch", None, Callback(), "")
    assert "not finite" in (outcome.error or "")
    assert not outcome.lost


def test_a_folder_that_stays_taken_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "PATIENCE", 0.0)
    (cell,) = cells([small("finetune")], tmp_path)
    scratch = tmp_path / "scratch"
    with only_writer(scratch):
        outcome = elsewhere(cell.work(), scratch, None, Callback(), "")
        assert [path.name for path in scratch.iterdir()] == [".lock"]
    assert json.loads(outcome.answer)["method"] == "finetune"


def test_what_is_replaced_does_not_go_on_elsewhere(tmp_path: Path) -> None:
    first, again = (Cell(small(), tmp_path / "out") for _ in range(2))
    assert first.work().name == again.work().name
    others = {
        Cell(small(), tmp_path / "other").work().name,
        Cell(small(lam=2.0), tmp_path / "out").work().name,
        Cell(small(), tmp_path / "out", overwrite=True).work().name,
        Cell(small(), tmp_path / "out", overwrite=True).work().name,
    }
    assert len(others - {first.work().name}) == 4


@pytest.mark.parametrize(
    ("on", "scratch", "slurm", "message"),
    [
        ("cloud", None, [], "--on 'cloud' is wrong: expected ray, ray://HOST:PORT, slurm"),
        ("slurm://cluster", None, [], "--on 'slurm://cluster' is wrong"),
        (None, Path("scratch"), [], "--scratch is for --on ray and --on slurm"),
        (None, None, ["mem_gb=4"], "--slurm says what a job of --on slurm asks for"),
        ("slurm://local", None, ["mem_gb"], "--slurm 'mem_gb' is wrong: expected KEY=VALUE"),
    ],
)
def test_bad_places_are_one_line(
    on: str | None, scratch: Path | None, slurm: list[str], message: str, tmp_path: Path
) -> None:
    if on == "slurm://local":
        pytest.importorskip("submitit")
    with pytest.raises(SettingsError) as refused:
        executor_for(on, None, tmp_path / "out", scratch, slurm)
    assert str(refused.value).startswith(message)
    assert not (tmp_path / "out").exists()


def test_processes_are_the_default(tmp_path: Path) -> None:
    executor = executor_for(None, 3, tmp_path, None, [])
    assert isinstance(executor, Processes)
    assert executor.room() == 3
