"""The live page: what it shows, and to whom."""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from evclplus.errors import FileError, SettingsError
from evclplus.experiments.live import PROGRESS, Ended, Live, Progress, Running, read_progress
from evclplus.experiments.watch.server import Server, open_server
from evclplus.experiments.watch.state import Folder
from tests.browser import browser, needs_browser
from tests.experiments.report.record_factory import make_record, write_records
from tests.experiments.test_cli import QUICK, evclplus


@contextmanager
def served(folder: Path) -> Iterator[Server]:
    with open_server(folder, 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def asked(
    server: Server, path: str = "/", method: str = "GET", host: str | None = None
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.putrequest(method, path, skip_host=True)
    if host != "":
        connection.putheader("Host", host or f"localhost:{server.server_port}")
    connection.endheaders()
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content


def under_way(folder: Path) -> Live:
    """A grid of four runs: one has ended, one failed, one runs."""
    live = Live(folder, "evclplus compare", total=4, workers=2)
    for title in ("a", "b", "c"):
        live.started(title)
    live.ended("a", None)
    live.ended("b", "it <b>diverged</b>")
    live.moved("c", 30, 120, "task 2")
    live._write()
    return live


def test_the_file_says_what_runs_and_is_gone_when_all_went_well(tmp_path: Path) -> None:
    live = under_way(tmp_path)
    found = read_progress(tmp_path)
    assert found == live.progress
    assert found.condition == "running"
    assert found.running["c"].step == 30
    live.close(stopped=False)
    assert found.ended["b"].error  # so it stays
    left = read_progress(tmp_path)
    assert left is not None
    assert left.condition == "finished"
    fine = Live(tmp_path, "evclplus compare", total=1, workers=1)
    fine.started("a")
    fine.ended("a", None)
    fine.close(stopped=False)
    assert not (tmp_path / PROGRESS).exists()


def test_who_never_began_leaves_the_file_of_another(tmp_path: Path) -> None:
    first = under_way(tmp_path)
    Live(tmp_path, "another", total=1, workers=1).close(stopped=True)
    assert read_progress(tmp_path) == first.progress


def test_time_left_is_what_ended_runs_took() -> None:
    values = {"command": "", "process": "", "since": 0.0, "updated": 100.0, "workers": 2}
    ended = {"a": Ended(seconds=40.0), "b": Ended(seconds=60.0), "c": Ended(seconds=1, error="x")}
    progress = Progress(**values, total=10, ended=ended, running={"d": Running(since=80.0)})
    # 10 - 2 finished - 1 failed = 7 runs of 50 seconds, 20 of them spent, by two workers.
    assert progress.seconds_left(finished=2) == (7 * 50 - 20) / 2
    assert progress.model_copy(update={"ended": {}}).seconds_left(0) is None
    assert progress.model_copy(update={"total": None}).seconds_left(0) is None


def test_a_process_that_is_gone_is_seen(tmp_path: Path) -> None:
    progress = under_way(tmp_path).progress
    machine, pid, born = progress.process.split("-")
    again = progress.model_copy(update={"process": f"{machine}-{pid}-{int(born) + 1}"})
    assert again.condition == "lost"
    elsewhere = progress.model_copy(update={"process": f"0000000x-{pid}-1"})
    assert elsewhere.condition == "running"


def test_the_state_of_a_folder(tmp_path: Path) -> None:
    folder = Folder(
        write_records(tmp_path, [make_record(m, s) for m in ("ewc", "vcl") for s in (0, 1)])
    )
    state = folder.state()
    assert (state["condition"], state["finished"], state["report"]) == ("idle", 4, False)
    assert [(one["method"], one["runs"]) for one in state["results"]] == [("ewc", 2), ("vcl", 2)]
    under_way(tmp_path)
    (tmp_path / "run-000" / "record.json").write_text("{")
    state = folder.state()
    assert (state["condition"], state["finished"], state["total"]) == ("running", 3, 4)
    assert [(one["title"], one["part"]) for one in state["running"]] == [("c", 0.25)]
    assert state["failed"] == [{"title": "b", "error": "it <b>diverged</b>"}]


def test_three_addresses_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    folder = tmp_path / "runs"
    folder.mkdir()
    with served(folder) as server:
        assert asked(server)[0] == 200
        assert json.loads(asked(server, "/state.json")[1])["finished"] == 0
        assert asked(server, "/report.html")[0] == 503
        for path in (
            *("/secret", "/../secret", "/%2e%2e/secret", "//etc/passwd", "/.", "/?x"),
            *("/report.html/../../secret", "/state.json?path=../secret", "http://x/", "*"),
        ):
            assert asked(server, path)[0] == 404, path
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
            assert asked(server, method=method)[0] == 501
        assert asked(server, method="HEAD") == (200, b"")


def test_other_hosts_are_refused(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        port = server.server_port
        for name in (f"127.0.0.1:{port}", f"localhost:{port}"):
            assert asked(server, host=name)[0] == 200
        for name in (
            *("", "example.org", f"example.org:{port}", "127.0.0.1", f"localhost:{port + 1}"),
            *(f"localhost:{port}.example.org", f"localhost:{port}, example.org"),
        ):
            assert asked(server, "/state.json", host=name)[0] == 403, name
        assert server.server_address[0] == "127.0.0.1"


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="there is no folder"):
        open_server(tmp_path / "nothing", 0)
    with open_server(tmp_path, 0) as server, pytest.raises(SettingsError, match="give --port"):
        open_server(tmp_path, server.server_port)


@pytest.mark.slow
def test_a_grid_leaves_no_file_and_a_failing_one_does(tmp_path: Path) -> None:
    words = ("compare", "--methods", "finetune", "--seeds", "1", "--epochs", "1", "--jobs", "1")
    done = evclplus(*words, *QUICK, "--out", "out", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "out" / PROGRESS).exists()
    options = ("--set=training.learning_rate=1e30", "--set=training.optimiser=sgd")
    failed = evclplus(*words, *QUICK, *options, "--out", "bad", folder=tmp_path)
    assert failed.returncode == 2
    progress = read_progress(tmp_path / "bad")
    assert progress is not None
    assert (progress.condition, progress.total, len(progress.ended)) == ("finished", 1, 1)


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_follows(width: int, dark: bool, tmp_path: Path) -> None:
    folder = write_records(tmp_path / "grid", [make_record("ewc")])
    live = under_way(folder)
    with served(folder) as server, browser(tmp_path / "profile") as window:
        window.open(f"http://localhost:{server.server_port}/", width, 800, dark)
        text = "return document.getElementById('words').textContent"
        window.wait(f"{text}.includes('finished')")
        assert window.run(text).startswith("1 of 4 finished · 1 running · 1 failed · about ")
        assert window.run("return document.documentElement.scrollWidth") <= width
        body = window.run("return document.body.innerText")
        assert "it <b>diverged</b>" in body
        assert "task 2" in body
        live.ended("c", None)
        write_records(folder / "more", [make_record("vcl")])
        window.wait(f"{text}.startsWith('2 of 4 finished · 0 running')")
        assert window.messages() == []
