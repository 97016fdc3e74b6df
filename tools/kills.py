"""Kill -9 a learner again and again, at random moments and at named ones: what it learns must not
depend on it.

    python -m tools.kills --kills 200 --page docs/reliability.md

A child process learns three tasks of digits with `learn(task, checkpoint=FOLDER)` and tests all
seen tasks after each. It is killed, a new one makes the same calls, it is killed, until one comes
to the end. Posterior, memory and scores must then have the bytes of a run that was never killed.
What the child was at when it was killed is noted in memory that outlives it.
"""

import argparse
import ctypes
import json
import mmap
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from itertools import cycle
from pathlib import Path
from typing import Any

import torch

import evclplus as ec
from evclplus import files
from evclplus.benchmarks.registry import benchmark
from evclplus.core import fisher, graphs
from evclplus.progress import digest_of
from evclplus.train import Trainer

WINDOWS = {
    "between": "elsewhere: preparing a task, reading a checkpoint",
    "start": "maximum-likelihood start",
    "training": "training loop",
    "fisher": "Fisher",
    "evaluation": "evaluation",
    "recall": "fine-tuning on a coreset before a test",
    "save": "inside a save, before the rename",
    "renamed": "between a rename and the fsync of its folder",
    "compile": "first compilation of a step",
}
NAMES = list(WINDOWS)

METHODS = ("evcl+", "evcl+-random", "vcl", "ewc", "si", "er", "vcl-kcenter", "joint")
SAVE_EVERY = 0.02 / 60
"""Minutes: often, so that a second has many saves."""


@dataclass(frozen=True)
class Setting:
    """What is learned."""

    method: str
    compile: str = "off"

    def learner(self) -> ec.Learner:
        known = ec.METHODS[self.method].options
        given = {"coreset_size": 10, "coreset_epochs": 8, "start": "mle", "start_epochs": 8}
        options = {name: value for name, value in given.items() if name in known}
        network = ec.networks.mlp(64, [24], seed=0)
        method = ec.method(self.method, **options)
        return ec.Learner(network, method, epochs=12, batch_size=10, compile=self.compile)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Kill:
    """When a child is killed: `delay` seconds after it has entered a window for the n-th time, or
    without a window, after it has begun."""

    window: str | None
    entry: int
    delay: float


class Watch:
    """What a process is at, for another one to read after its death."""

    def __init__(self) -> None:
        self.byte = mmap.mmap(-1, 1)
        self.kill: Kill | None = None
        self.entries: Counter[str] = Counter()

    @property
    def window(self) -> str:
        return NAMES[self.byte[0]]

    @contextmanager
    def inside(self, window: str) -> Iterator[None]:
        before, self.byte[0] = self.byte[0], NAMES.index(window)
        self.entries[window] += 1
        kill = self.kill
        if kill is not None and (kill.window, kill.entry) == (window, self.entries[window]):
            if kill.delay:
                threading.Timer(kill.delay, die).start()
            else:
                die()
        try:
            yield
        finally:
            self.byte[0] = before

    def around(self, function: Callable[..., Any], window: Callable[..., str | None]) -> Any:
        @wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            name = window(*arguments, **options)
            if name is None:
                return function(*arguments, **options)
            with self.inside(name):
                return function(*arguments, **options)

        return call


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def end_with_parent() -> None:
    """The system kills this process when the one that has forked it is gone."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def watch_everything(watch: Watch) -> None:
    """Each window is one function of the package."""

    def loop(*arguments: Any, purpose: str, **options: Any) -> str:
        kinds = {"start": "start", "train": "training"}
        return kinds.get(purpose, "recall")

    places: list[tuple[Any, str, Callable[..., str | None]]] = [
        (Trainer, "__call__", loop),
        (fisher, "_summed", lambda *_: "fisher"),
        (ec.Learner, "score", lambda *_: "evaluation"),
        (files, "_write_and_rename", lambda *_: "save"),
        (files, "flush_folder", lambda *_: "renamed"),
        (graphs, "_made", lambda *_: "compile"),
        (graphs._Opened, "__call__", lambda one, *_: None if one.function else "compile"),
    ]
    for owner, name, window in places:
        setattr(owner, name, watch.around(getattr(owner, name), window))


def learn(setting: Setting, stream: ec.Stream, folder: Path) -> str:
    """Learn and test everything; returns a digest of all that came of it."""
    learner, scores = setting.learner(), []
    for task in stream:
        learner.learn(task, checkpoint=ec.Checkpoints(folder, every=SAVE_EVERY))
        scores.append(learner.evaluate(stream.seen(task)).scores)
    state = digest_of(learner.q, learner.memory, learner.network.buffers)
    return f"{state} {scores}"


def child(
    setting: Setting, stream: ec.Stream, folder: Path, kill: Kill | None
) -> tuple[Watch, int]:
    """Learn in another process, which is killed; returns where, and how it ended."""
    watch = Watch()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            end_with_parent()
            watch.kill = kill
            watch_everything(watch)
            if kill is not None and kill.window is None:
                timer = threading.Timer(kill.delay, die)
                timer.daemon = True
                timer.start()
            result = learn(setting, stream, folder)
            watch.kill = None
            files.write_atomically(folder / "result", result)
            code = 0
        finally:
            os._exit(code)
    return watch, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def random_kill(seconds: float, draw: random.Random, windows: Iterator[str]) -> Kill:
    """Half of them at a random moment of a whole run, half in the next of the windows."""
    if draw.random() < 0.5:
        return Kill(None, 0, draw.uniform(0.0, seconds))
    window = next(windows)
    entry = draw.randint(1, 6 if window in ("save", "renamed", "evaluation") else 2)
    return Kill(window, entry, draw.choice((0.0, draw.expovariate(30.0))))


@dataclass
class Count:
    """Kills of one setting by window, and how many runs ended as the undisturbed one."""

    setting: Setting
    kills: Counter[str]
    runs: int = 0
    equal: int = 0

    @property
    def title(self) -> str:
        form = "compiled" if self.setting.compile == "on" else "uncompiled"
        return f"{self.setting.method}, {form}"


def kill_often(
    setting: Setting, stream: ec.Stream, kills: int, each: int, draw: random.Random
) -> Count:
    """Runs that are killed `each` time in every window, then runs that are killed one to four times
    at random, until there were enough kills."""
    count = Count(setting, Counter())
    with tempfile.TemporaryDirectory() as place:
        os.environ["EVCLPLUS_CACHE"] = str(Path(place, "cache"))
        began = time.monotonic()
        expected = finished(setting, stream, Path(place, "undisturbed"))
        seconds = time.monotonic() - began
        own = [name for name in NAMES[1:] if has(setting, name)]
        for window in own * each:
            folder = Path(place, f"window-{window}")
            killed(setting, stream, folder, Kill(window, 1, 0.0), count)
            count.equal += finished(setting, stream, folder) == expected
            count.runs += 1
            shutil.rmtree(folder)
        windows = cycle(own)
        while count.kills.total() < kills:
            folder = Path(place, f"run-{count.runs}")
            if setting.compile == "on" and count.runs % 5 == 0:
                shutil.rmtree(Path(place, "cache"))  # so that there is a compilation to kill
                killed(setting, stream, folder, Kill("compile", 1, draw.uniform(0, 2)), count)
            for _ in range(draw.randint(1, 4)):
                killed(setting, stream, folder, random_kill(seconds, draw, windows), count)
            count.equal += finished(setting, stream, folder) == expected
            count.runs += 1
            shutil.rmtree(folder)
    return count


def has(setting: Setting, window: str) -> bool:
    """Whether a method does this at all; compilations are killed on purpose only."""
    options = ec.METHODS[setting.method].options
    asked = {"start": "start", "fisher": "fisher_labels", "recall": "coreset_size"}
    return window != "compile" and (window not in asked or asked[window] in options)


def killed(setting: Setting, stream: ec.Stream, folder: Path, kill: Kill, count: Count) -> None:
    watch, code = child(setting, stream, folder, kill)
    if code == -signal.SIGKILL:
        count.kills[watch.window] += 1
    elif code != 0:
        raise SystemExit(f"{count.title}: a child ended with exit code {code}")


def finished(setting: Setting, stream: ec.Stream, folder: Path) -> str:
    """What comes of a run that is left alone, from where it is."""
    _, code = child(setting, stream, folder, None)
    if code != 0:
        raise SystemExit(f"{setting}: a child ended with exit code {code}")
    left = [str(path) for path in folder.rglob("*") if path.suffix == ".part"]
    if left:
        raise SystemExit(f"parts are left: {left}")
    return (folder / "result").read_text()


def table(counts: Sequence[Count]) -> str:
    """Kills by window and setting, as Markdown."""
    used = [name for name in NAMES if any(count.kills[name] for count in counts)]
    lines = ["| | kills | " + " | ".join(used) + " | runs | equal bytes |"]
    lines.append("|---|" + "--:|" * (len(used) + 3))
    for count in counts:
        cells = [str(count.kills[name] or "") for name in used]
        whole = (count.title, str(count.kills.total()), *cells, str(count.runs), str(count.equal))
        lines.append("| " + " | ".join(whole) + " |")
    total = sum((count.kills for count in counts), Counter[str]())
    cells = [str(total[name]) for name in used]
    runs, equal = (sum(getattr(one, name) for one in counts) for name in ("runs", "equal"))
    lines.append(
        "| " + " | ".join(("all", str(total.total()), *cells, str(runs), str(equal))) + " |"
    )
    lines.append("")
    lines += [f"- {name}: {WINDOWS[name]}" for name in used]
    return "\n".join(lines) + "\n"


def commit() -> str:
    words = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(words, capture_output=True, text=True, cwd=Path(__file__).parent).stdout


BEGIN, END = "<!-- kills -->", "<!-- end of kills -->"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=0, help="in all, at random")
    parser.add_argument("--each", type=int, default=0, help="in each window of each method")
    parser.add_argument("--methods", default=",".join(METHODS), help="separated by commas")
    parser.add_argument("--compiled", default="evcl+,ewc", help="those that are compiled too")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="file for the counts")
    parser.add_argument("--page", type=Path, help=f"page with {BEGIN} and {END} for the table")
    given = parser.parse_args(words)
    torch.set_num_threads(1)
    stream = benchmark("split-digits", tasks=3, examples_per_task=60)
    settings = [Setting(name) for name in given.methods.split(",") if name]
    settings += [Setting(name, "on") for name in given.compiled.split(",") if name]
    if any(setting.compile == "on" for setting in settings):
        import_module("torch._inductor.compile_fx")  # here: every child needs it
    counts: list[Count] = []
    for index, setting in enumerate(settings):
        left = given.kills - sum(count.kills.total() for count in counts)
        share = -(-left // (len(settings) - index))
        draw = random.Random(f"{given.seed} {index}")
        counts.append(kill_often(setting, stream, share, given.each, draw))
        print(
            f"{counts[-1].title}: {dict(counts[-1].kills)}, {counts[-1].equal} of "
            f"{counts[-1].runs} runs equal",
            flush=True,
        )
    print(table(counts))
    if given.json:
        found = {one.title: {**one.kills, "runs": one.runs, "equal": one.equal} for one in counts}
        given.json.write_text(json.dumps(found, indent=1))
    if given.page:
        before, _, rest = given.page.read_text().partition(BEGIN)
        asked = [f"--kills {given.kills}", f"--methods {given.methods}"]
        asked.append(f"--compiled {given.compiled}")
        command = f"`python -m tools.kills {' '.join(asked)}`, commit {commit().strip()}"
        text = f"{BEGIN}\n{command}\n\n{table(counts)}{END}{rest.partition(END)[2]}"
        given.page.write_text(before + text)
    if any(count.equal != count.runs for count in counts):
        sys.exit(1)


if __name__ == "__main__":
    main()
