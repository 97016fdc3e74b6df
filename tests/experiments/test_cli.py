"""The commands as a user runs them: real processes, real folders, real interrupts."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

import evclplus as evclplus_package
from evclplus.benchmarks.registry import BENCHMARKS
from evclplus.data.datasets import PUBLISHED
from evclplus.experiments.cli import main
from evclplus.experiments.cli.terminal import printable
from evclplus.experiments.store import find_records
from evclplus.methods import METHODS

QUICK = (
    "--set=stream.tasks=2",
    "--set=stream.examples_per_task=40",
    "--set=training.batch_size=20",
)


def evclplus(*words: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "evclplus", *words]
    return subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=600,
    )


@pytest.mark.slow
def test_workers_that_compile_leave_nothing_behind(tmp_path: Path) -> None:
    words = ("compare", "--methods", "vcl,ewc", "--seeds", "1", "--epochs", "1", "--out", "made")
    # An empty cache: a worker that finds its step compiled already has nothing to leave behind.
    fresh = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    done = evclplus(*words, "--set=training.compile=on", *QUICK, folder=tmp_path, **fresh)
    assert done.returncode == 0, done.stderr
    assert "leaked" not in done.stderr
    assert "without compiling" not in done.stderr


def test_run_writes_a_record_and_says_where(tmp_path: Path) -> None:
    done = evclplus("run", "--method", "ewc", "--epochs", "2", *QUICK, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "runs/split-digits/ewc/seed-0/record.json" in done.stdout
    (record,) = find_records(tmp_path)
    assert record.method == "ewc"
    assert record.config.training.epochs == 2
    assert record.environment["command"].startswith("evclplus run --method ewc")


def test_compare_resumes_and_reports(tmp_path: Path) -> None:
    words = ("compare", "--methods", "finetune,ewc", "--epochs", "2", "--out", "out", *QUICK)
    first = evclplus(*words, "--seeds", "1", folder=tmp_path)
    assert first.returncode == 0, first.stderr
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("record.json")}
    assert len(times) == 2
    second = evclplus(*words, "--seeds", "2", folder=tmp_path)
    assert "2 of 4 runs are finished already and kept" in second.stdout
    assert len(find_records(tmp_path)) == 4
    assert all(path.stat().st_mtime_ns == before for path, before in times.items())
    assert {record.environment["threads"] for record in find_records(tmp_path)} == {1}
    other = evclplus(*words, "--set", "training.epochs=3", folder=tmp_path)
    assert other.returncode == 2
    assert "other settings (training.epochs is 2, not 3)" in other.stderr


@pytest.mark.slow
def test_an_interrupt_keeps_what_is_finished_and_the_next_call_goes_on(tmp_path: Path) -> None:
    words = [
        *("compare", "--methods", "finetune,vcl", "--seeds", "1", "--out", "out", "--jobs", "1"),
        *QUICK,
        "--epochs=2",
    ]
    slow = [*words, "--set=vcl.start=mle", "--set=vcl.start_epochs=1000000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "evclplus", *slow],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell that runs the tests in the background has them ignore interrupts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    running = tmp_path / "out" / "split-digits" / "vcl" / "seed-0" / "unfinished.json"
    deadline = time.monotonic() + 120
    while not running.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # what Ctrl-C sends: to the whole group
    _, stderr = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "interrupted: 1 of 2 runs are finished; call again to go on" in stderr
    assert [record.method for record in find_records(tmp_path)] == ["finetune"]
    again = evclplus(*words, "--overwrite", folder=tmp_path)
    assert again.returncode == 0, again.stderr
    assert len(find_records(tmp_path)) == 2
    assert not running.exists()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds the worker through /proc")
def test_a_killed_worker_is_reported_and_the_others_go_on(tmp_path: Path) -> None:
    words = [
        *("compare", "--methods", "vcl,finetune", "--seeds", "1", "--out", "out", "--jobs", "1"),
        *QUICK,
        "--epochs=2",
        "--set=vcl.start=mle",
        "--set=vcl.start_epochs=1000000",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "evclplus", *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    running = tmp_path / "out" / "split-digits" / "vcl" / "seed-0" / "unfinished.json"
    deadline = time.monotonic() + 120
    while not running.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for child in children:
        if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text():
            os.kill(int(child), signal.SIGKILL)
    stdout, stderr = process.communicate(timeout=600)
    assert process.returncode == 2
    assert "its process died" in stdout
    assert "1 of 2 runs failed" in stderr
    assert [record.method for record in find_records(tmp_path)] == ["finetune"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--method", "evclp"], "there is no method 'evclp'; did you mean evcl"),
        (["run", "--benchmark", "split-digit"], "did you mean split-digits?"),
        (["run", "--set", "evcl+.lam=-1"], "lam = -1 is wrong"),
        (["run", "--set", "evcl+.lamm=1"], "did you mean lam?"),
        (["run", "--set", "stream.task=1"], "did you mean tasks?"),
        (["run", "--set", "evcll.lam=1"], "there is no method 'evcll'"),
        (["run", "--out", "file/inside"], "cannot write in the folder"),
        (["run", "--epochs", "many"], "valid integer"),
        (["run", "--config", "nowhere.toml"], "cannot read nowhere.toml"),
        (["compare", "--methods", "evcl+,nothing"], "there is no method 'nothing'"),
        (["check", "ewcc"], "there is no check of 'ewcc'; did you mean ewc?"),
        (["report", "nowhere"], "there is no folder nowhere"),
        (["report", "."], "no record.json below"),
        (["data", "fetch", "mnits"], "did you mean mnist?"),
        (["data", "show", "split-digits", "--out", "file/x.png"], "cannot write"),
        (["data", "--data-dir", "nowhere"], "which is no folder"),
        (["run", "--seed", "1" + 26 * "0"], "--seed"),
        (["run", "--set", "network.hidden=[0]"], "hidden.0 = 0 is wrong"),
        (["run", "--set", "network.hidden=[100000000000]"], "is wrong"),
        (["run", "--set", "stream.groups=[]"], "every group needs a class"),
        (["run", "--set", "stream.scale=0"], "a factor of 0"),
        (["run", "--set", "evcl+.initial_variance=1e39"], "initial_variance"),
        (["run", "--set", "evcl+.prior_variance=1e39"], "prior_variance"),
        (["run", "--set", "training.device=meta"], "device = 'meta' cannot be used"),
        (["run", "--set", "evcl+.lam=" + "[" * 5000], "nested too deeply"),
        (["run", "--benchmark", "permuted-digits", "--set", "stream.tasks=1000000000"], "tasks = "),
        (["run", "--out", "a" * 5000], "File name too long"),
        (["run", "--config", "pipe"], "it is no plain file"),
        (["run", "--config", "deep.toml"], "nested too deeply"),
        (["compare", "--seeds", "1000000000000"], "--seeds"),
        (["compare", "--config", "seeds.toml"], "from 1 to 10000 seeds"),
        (["compare", "--config", "less.toml"], "from 1 to 10000 seeds"),
        (["compare", "--config", "empty.toml"], "at least 1 item"),
        (["compare", "--config", "twice.toml"], "name each of them once"),
        (["compare", "--config", "five.toml", "--epochs", "1"], "training = 5 is wrong"),
        (["compare", "--config", "escape.toml"], "has no setting"),
        (["tune", "--benchmark", "split-digits", "--trials", "1000000000000"], "--trials"),
        (["tune", "--benchmark", "split-digits", "--seeds", "1000000000000"], "--seeds"),
        (["data", "--data-dir", "~nosuchuser/x"], "there is no such user"),
        (["runn"], "runn"),
        (["run", "--colour"], "--colour"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").write_text("")
    files = {
        "deep": "x = " + "[" * 5000,
        "seeds": "seeds = 100000000",
        "less": "seeds = -3",
        "empty": "methods = []",
        "twice": 'methods = ["ewc", "ewc"]',
        "five": "training = 5",
        "escape": '"\\u001b]0;title\\u0007" = 1',
    }
    for name, content in files.items():
        (tmp_path / f"{name}.toml").write_text(content)
    os.mkfifo(tmp_path / "pipe")
    there = sorted(path.name for path in tmp_path.iterdir())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVCLPLUS_DATA", "")  # and put back what --data-dir sets
    monkeypatch.setattr(sys, "argv", ["evclplus", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    complaint = capsys.readouterr().err
    assert message in complaint
    assert complaint.startswith("evclplus: ")
    assert complaint.count("\n") == 1
    assert complaint.strip().isprintable()
    assert sorted(path.name for path in tmp_path.iterdir()) == there  # nothing was written


def test_bad_input_in_a_process_of_its_own(tmp_path: Path) -> None:
    done = evclplus("run", "--method", "evclp", folder=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "evclplus: there is no method 'evclp'; did you mean evcl?\n"


@pytest.mark.parametrize(
    "command",
    [
        None,
        "run",
        "compare",
        "demo",
        "reproduce",
        "check",
        "tune",
        "report",
        "pack",
        "list",
        "data",
    ],
)
def test_every_command_has_help(
    command: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [] if command is None else [command]
    monkeypatch.setattr(sys, "argv", ["evclplus", *words, "--help"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    assert "Usage: evclplus" in capsys.readouterr().out


def test_list_names_every_method_and_benchmark(tmp_path: Path) -> None:
    shown = evclplus("list", folder=tmp_path, COLUMNS="200").stdout
    assert all(name in shown for name in (*METHODS, *BENCHMARKS))


SLOW = ("torch", "sklearn", "scipy", "matplotlib", "jinja2", "pooch", "optuna")


def imported(code: str, folder: Path) -> list[str]:
    """Which of the packages that are slow to import some code has imported."""
    code += f"\nimport sys\nprint(*(name for name in {SLOW} if name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()[-1].split()


def test_the_command_line_imports_what_a_command_needs(tmp_path: Path) -> None:
    listed = "from evclplus.experiments.cli import app\napp(['list'], standalone_mode=False)"
    assert set(imported(listed, tmp_path)) <= {"torch"}
    # Without what `import evclplus` offers to users.
    bare = (
        "import sys, types\n"
        "package = sys.modules['evclplus'] = types.ModuleType('evclplus')\n"
        f"package.__path__ = [{str(Path(evclplus_package.__file__).parent)!r}]\n"
        "from evclplus.experiments.cli import app\napp(['--help'], standalone_mode=False)"
    )
    assert imported(bare, tmp_path) == []


def test_data_lists_every_dataset(tmp_path: Path) -> None:
    empty = {"EVCLPLUS_CACHE": str(tmp_path), "EVCLPLUS_DATA": "", "HOME": str(tmp_path)}
    shown = evclplus("data", folder=tmp_path, COLUMNS="200", **empty)
    assert shown.returncode == 0, shown.stderr
    assert all(name in shown.stdout for name in PUBLISHED)
    assert "evclplus data fetch cifar10" in shown.stdout
    missing = evclplus("run", "--benchmark", "split-mnist", folder=tmp_path, **empty)
    assert missing.returncode == 2
    assert "get it with `evclplus data fetch mnist`" in missing.stderr


def test_what_a_benchmark_needs_is_prepared(tmp_path: Path) -> None:
    done = evclplus("data", "prepare", "split-digits", folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "split-digits can be run\n")
    done = evclplus("data", "prepare", "split-digit", folder=tmp_path)
    assert done.returncode == 2
    assert "did you mean split-digits" in done.stderr


def test_data_show_draws_a_contact_sheet(tmp_path: Path) -> None:
    done = evclplus("data", "show", "split-digits", "--out", "sheet.png", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width > 400


@pytest.mark.parametrize("out", ["a[/red]b", "[red]x[/red]", "\x1b[31mred", "a\udcff"])
def test_a_path_is_shown_as_it_is(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["run", "--method", "finetune", "--epochs", "1", "--out", out, *QUICK]
    monkeypatch.setattr(sys, "argv", ["evclplus", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    shown = capsys.readouterr().out
    assert f"record: {printable(out)}/record.json" in shown
    assert "\x1b" not in shown
    assert (tmp_path / out / "record.json").exists()


@pytest.mark.slow
def test_any_encoding_of_the_terminal_will_do(tmp_path: Path) -> None:
    words = ("run", "--method", "finetune", "--epochs", "1", "--out", "öut", *QUICK)
    done = evclplus(*words, folder=tmp_path, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0, done.stderr
    assert "record: ?ut/record.json" in done.stdout


@pytest.mark.slow
def test_without_docstrings_everything_is_there(tmp_path: Path) -> None:
    words = [sys.executable, "-OO", "-m", "evclplus", "list"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "evcl+" in done.stdout
