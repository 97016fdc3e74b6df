"""Five tasks from process start to the last evaluation, ours and in plain PyTorch."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from evclplus.errors import StateError
from tools.bench.plain import EXAMPLES
from tools.bench.stream import SYNTHETIC
from tools.bench.timing import seconds_of

ROOT = Path(__file__).parents[2]
"""`tools` is no part of the package, so the processes must start where it lies."""


@dataclass(frozen=True)
class WholeRun:
    """Seconds of ours with an empty and with a filled compiler cache, and of plain PyTorch."""

    cold: float
    warm: float
    plain: float
    stream: str


def whole_run(epochs: int = 10, examples: int = EXAMPLES, turns: int = 2) -> WholeRun:
    """By turns: the cold run once, the least of the others. Real MNIST if EVCLPLUS_DATA is set,
    random pictures on both sides if it is not."""
    stream = "split-mnist" if os.environ.get("EVCLPLUS_DATA") else SYNTHETIC
    with TemporaryDirectory() as folder:
        ours = our_command(stream, epochs, examples, Path(folder, "run"))
        rival = plain_command(stream, epochs, examples)
        caches = Path(folder, "caches")
        plain = [_process(rival, caches)]  # first, as it warms the file cache for both
        cold = _process(ours, caches)
        warm = []
        for _ in range(turns):
            plain.append(_process(rival, caches))
            warm.append(_process(ours, caches))
    return WholeRun(cold, min(warm), min(plain[1:]), stream)


def our_command(stream: str, epochs: int, examples: int, out: Path) -> list[str]:
    """`evclplus run` as a user calls it; it has no synthetic tasks, so a script learns those."""
    if stream == SYNTHETIC:
        return [
            *("-m", "tools.bench.our_run"),
            *("--epochs", str(epochs), "--examples", str(examples)),
        ]
    return [
        *("-m", "evclplus", "run", "--method", "evcl+", "--benchmark", stream),
        *("--epochs", str(epochs), "--out", str(out), "--overwrite"),
    ]


def plain_command(stream: str, epochs: int, examples: int) -> list[str]:
    return [
        *("-m", "tools.bench.plain_run", "--stream", stream),
        *("--epochs", str(epochs), "--examples", str(examples)),
    ]


def _process(words: Sequence[str], caches: Path) -> float:
    """Seconds of a new Python process."""
    # Decoded data are kept with compiled steps, and plain, which goes first, decodes for both.
    environment = os.environ | {
        "EVCLPLUS_CACHE": str(caches),
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
    }

    def work() -> None:
        done = subprocess.run(
            [sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True
        )
        if done.returncode:
            last = (done.stderr.strip() or "it said nothing").splitlines()[-1]
            raise StateError(f"a whole run failed, `python {' '.join(words)}`: {last}")

    return seconds_of(work)
