"""Command lines of every wrong kind, in this process. None of them may start a long run."""

import io
import random
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout

from evclplus.experiments.cli import main
from tools.fuzz.outcome import WrongError

QUICK = ["--epochs=1", "--set=stream.tasks=1", "--set=stream.examples_per_task=20"]
VALUES = ["", "0", "-1", "1.5", "nan", "1" * 30, "x", "[]", "{}", "[[", "null", "true", "é", "[/x]"]
VALUES += ["\x1b[31m", "a" * 300, "..", "nowhere/x", "~nosuchuser/x", "[1, 2]", '"']
KEYS = ["training.epochs", "training.batch_size", "training.learning_rate", "training.schedule"]
KEYS += ["training.device", "training.precision", "network.kind", "network.hidden", "samples"]
KEYS += ["stream.tasks", "stream.groups", "stream.scale", "stream.scenario", "stream.class_order"]
KEYS += ["stream.classes_per_task", "stream.holdout_seed", "finetune.lam", "evcl+.lam", "x.y", "."]
OPTIONS = ["--method", "--benchmark", "--seed", "--epochs", "--config", "--overwrite", "--data-dir"]
WRONG = ["--seeds=0", "--jobs=0", "--methods=nothing", "--benchmark=nothing", "--seeds=x", "--no"]


def words(random: random.Random) -> list[str]:
    command = random.choice(
        ["run"] * 6 + ["compare", "tune", "reproduce", "report", "pack", "data"]
    )
    if command == "run":
        chosen = ["run", "--method=finetune", "--out=made", "--overwrite", *QUICK]
        for _ in range(random.choice((1, 1, 2))):
            value = random.choice(VALUES)
            if random.random() < 0.7:
                chosen.append(f"--set={random.choice(KEYS)}={value}")
            else:
                chosen.append(f"{random.choice(OPTIONS)}={value}")
        return chosen
    if command in ("compare", "tune", "reproduce"):
        # One thing is wrong for sure: these would start processes.
        chosen = [command, "--out=made", random.choice(WRONG), f"--epochs={random.choice(VALUES)}"]
        return [*chosen, "--preset=nothing"] if command == "reproduce" else chosen
    if command == "data":
        return ["data", random.choice(("fetch", "show", "x")), random.choice(VALUES)]
    return [command, random.choice(VALUES), *random.choice(([], ["--out", "x"], ["--overwrite"]))]


def case(random: random.Random) -> tuple[str, Callable[[], object]]:
    chosen = words(random)
    return f"evclplus {chosen}", lambda: _call(chosen)


def _call(chosen: list[str]) -> None:
    """Exit code 0, or 2 and one printable line."""
    said, complained = io.StringIO(), io.StringIO()
    before, code = sys.argv, None
    sys.argv = ["evclplus", *chosen]
    try:
        with redirect_stdout(said), redirect_stderr(complained):
            main()
    except SystemExit as stop:
        code = stop.code
    finally:
        sys.argv = before
    text = complained.getvalue()
    if code in (None, 0):
        return
    if code != 2 or text.count("\n") != 1 or not text.strip().isprintable():
        raise WrongError(f"exit code {code}, {text!r}")
    raise RefusedError(text.strip())


class RefusedError(Exception):
    """As it should be."""
