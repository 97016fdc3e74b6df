"""One model on several processes, started by torchrun: the same bits for any number of them."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import evclplus as ec
from evclplus.progress import digest_of
from evclplus.ranks import ALONE, joined
from evclplus.signals import SAVING, Signals, Stopped
from tests.helpers import Convolutional, blobs, small_network

LEARN = """
import json, sys
import torch
from evclplus.ranks import joined
from tests.test_ranks import digests

if __name__ == "__main__":
    with joined() as ranks:
        torch.set_num_threads(1)
        found = digests()
        if ranks.writes:
            print("found", json.dumps(found), flush=True)
"""


def digests() -> dict[str, str]:
    """What some methods have learned of three small tasks, in shards."""
    import torch

    found = {}
    for name, options, compiled in (
        ("evcl+", {}, "off"),
        ("evcl+", {}, "on"),
        ("ewc", {}, "off"),
        ("er", {}, "off"),
        ("a-gem", {}, "off"),
        ("vcl-random", {"coreset_size": 8, "coreset_epochs": 3}, "off"),
    ):
        stream, method = blobs(3), ec.method(name, **options)
        settings: dict[str, Any] = {"epochs": 2, "batch_size": 14, "compile": compiled, "shards": 4}
        learner = ec.Learner(small_network(), method, **settings)
        for task in stream:
            learner.learn(task)
        scores = [one.negative_log_likelihood for one in learner.evaluate(stream).scores]
        what = digest_of(learner.q, learner.memory, learner.network.buffers)
        found[f"{name}, compile {compiled}"] = f"{what} {scores}"
    torch.manual_seed(3)
    learner = ec.Learner(Convolutional(), "vcl", epochs=2, batch_size=14, shards=4)
    learner.learn(blobs()[0])
    found["dropout and batch statistics"] = digest_of(learner.q, learner.network.buffers)
    return found


def torchrun(count: int, *arguments: str, restarts: int = 0) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={count}", f"--max-restarts={restarts}", *arguments]
    return subprocess.Popen(
        command,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])},
        start_new_session=True,
    )


def output_of(process: "subprocess.Popen[str]") -> str:
    output, _ = process.communicate(timeout=300)
    return output


@pytest.mark.slow
def test_one_two_and_four_processes_learn_the_same_bits(tmp_path: Path) -> None:
    script = tmp_path / "learn.py"
    script.write_text(LEARN)
    here = digests()
    for count in (1, 2, 4):
        output = output_of(torchrun(count, str(script)))
        found = re.search("found (.*)", output)
        assert found is not None, output
        assert json.loads(found[1]) == here


RUN = ("-m", "evclplus", "run", "--set", "stream.tasks=2", "--set", "training.compile=off")


def record_in(folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / "record.json").read_text())
    assert [path.name for path in folder.iterdir()] == ["record.json"]
    return record


def scores(record: dict[str, Any]) -> list[Any]:
    return [record["negative_log_likelihood"], record["brier_score"], record["config"]]


def wait_for(path: Path, process: "subprocess.Popen[str]") -> None:
    while not path.exists():
        assert process.poll() is None, output_of(process)
        time.sleep(0.05)


def ranks_of(process: "subprocess.Popen[str]") -> dict[str, int]:
    """The processes of torchrun by their rank."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    found: dict[str, int] = {}
    for child in children:
        variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        found |= {one[5:].decode(): int(child) for one in variables if one.startswith(b"RANK=")}
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="it looks for processes")
@pytest.mark.parametrize("what", ["kill -9", "SIGTERM"])
def test_processes_that_are_stopped_go_on_from_the_checkpoint(what: str, tmp_path: Path) -> None:
    arguments = (*RUN, "--epochs", "40", "--checkpoint-every", "0")
    undisturbed, stopped = tmp_path / "undisturbed", tmp_path / "stopped"
    first = torchrun(1, *arguments, "--out", str(undisturbed))
    second = torchrun(2, *arguments, "--out", str(stopped), restarts=1)
    wait_for(stopped / "checkpoints" / "task-1" / "progress.safetensors", second)
    if what == "kill -9":
        os.kill(ranks_of(second)["1"], signal.SIGKILL)
        assert "record:" in output_of(second)
    else:
        second.send_signal(signal.SIGTERM)
        said = output_of(second)
        assert said.count("what was learned is saved") == 1, said
        assert not (stopped / "record.json").exists()
        assert "record:" in output_of(torchrun(4, *arguments, "--out", str(stopped)))
    assert "record:" in output_of(first)
    before, after = record_in(undisturbed), record_in(stopped)
    assert scores(before) == scores(after)
    assert before["config"]["training"]["shards"] == 4
    assert (before["environment"]["ranks"], after["environment"]["resumed"]) == (1, 1)
    assert after["environment"]["ranks"] == (2 if what == "kill -9" else 4)


@pytest.mark.slow
def test_only_run_is_for_torchrun() -> None:
    output = output_of(torchrun(1, "-m", "evclplus", "compare"))
    assert "torchrun is for `evclplus run`; compare has processes of its own" in output


def test_without_torchrun_a_process_is_alone() -> None:
    with joined() as ranks:
        assert ranks is ALONE
    assert ranks.writes
    assert ranks.gather(1, 2) == [(1, 2)]
    ranks.agree("something", 3)


def test_a_process_of_several_stops_when_all_have_agreed() -> None:
    signals = Signals()
    obeyed = []

    def train() -> None:
        with signals.held(alone=False):
            signals.receive(signal.SIGTERM)
            signals.obey()  # not yet: the others do not know
            obeyed.append("first step")
            signals.heed(tuple(signals.heard))
            signals.obey()
            obeyed.append("second step")

    with pytest.raises(Stopped):
        train()
    assert obeyed == ["first step"]


def test_what_was_not_agreed_upon_is_obeyed_afterwards() -> None:
    signals = Signals()
    with pytest.raises(Stopped), signals.held(alone=False):
        signals.receive(signal.SIGINT)
    assert signals.stop == signal.SIGINT
    assert SAVING is not None
    signals = Signals()
    with signals.held(alone=False):
        signals.receive(SAVING)
        before = signals.save
    assert (before, signals.save) == (False, True)
    signals.saved()
    assert not signals.heard
