"""One model on two processes, one thread each: what a step takes whole, in shards on one process,
and shared out; and what adding up the gradients takes of it. By turns, in one run.

Started by torchrun, which `python -m tools.scale ranks` does.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

import evclplus as ec
from evclplus.callbacks import Callback
from evclplus.ranks import ALONE, Ranks, joined

BATCH, STEPS, SHARDS = 256, 8, 4


class Times(Callback):
    """When each step ended."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def advance(self, step: int, terms: object) -> None:
        self.at.append(time.perf_counter())

    def step(self) -> float:
        """The median step; the first ones may compile."""
        gaps = [after - before for before, after in zip(self.at, self.at[1:], strict=False)]
        return median(gaps[1:])


def networks() -> dict[str, tuple[Any, tuple[int, ...]]]:
    return {
        "mlp, 10^7 weights": (ec.networks.mlp(784, [2760, 2760]), (784,)),
        "convnet 32, 64": (ec.networks.convnet((3, 32, 32), [32, 64]), (3, 32, 32)),
    }


def seconds_a_step(network: Any, shape: tuple[int, ...], ranks: Ranks, shards: int) -> float:
    x = torch.randn(BATCH * STEPS, *shape, generator=torch.Generator().manual_seed(0))
    task = ec.task(x, torch.arange(len(x)) % 10, name="one", outputs=10)
    times = Times()
    settings: dict[str, Any] = {"epochs": 1, "batch_size": BATCH, "compile": "on"}
    learner = ec.Learner(network, "vcl", callback=times, shards=shards, **settings)
    learner.ranks = ranks
    learner.learn(task)
    return times.step()


def seconds_to_add_up(ranks: Ranks, numbers: int) -> float:
    flat = torch.ones(numbers)
    taken = []
    for _ in range(6):
        ranks.gather()
        start = time.perf_counter()
        ranks.add_up(flat)
        taken.append(time.perf_counter() - start)
    return median(taken[1:])


def work(rounds: int) -> dict[str, Any]:
    """What each of the two processes does; the first one computes alone while the other waits."""
    found: dict[str, Any] = {}
    with joined() as ranks:
        for name, (network, shape) in networks().items():
            weights = sum(one.numel() for one in network.parameters())
            turns: list[list[float]] = []
            for _ in range(rounds + 1):
                alone = [0.0, 0.0]
                if ranks.writes:
                    alone = [seconds_a_step(network, shape, ALONE, one) for one in (1, SHARDS)]
                ranks.gather()
                both = seconds_a_step(network, shape, ranks, SHARDS)
                turns.append([*alone, both, seconds_to_add_up(ranks, 2 * weights)])
            if not ranks.writes:  # it has no times of its own
                continue
            whole, cut, both, added = (min(some) for some in zip(*turns[1:], strict=True))
            found[name] = {
                "weights": weights,
                "whole_ms": round(1e3 * whole, 1),
                "shards_on_one_ms": round(1e3 * cut, 1),
                "shards_on_two_ms": round(1e3 * both, 1),
                "adding_up_ms": round(1e3 * added, 1),
                "examples_a_second_whole": round(BATCH / whole),
                "examples_a_second_on_one": round(BATCH / cut),
                "examples_a_second_on_two": round(BATCH / both),
                "one_over_two": round(cut / both, 2),
                "whole_over_two": round(whole / both, 2),
            }
        if not ranks.writes:
            return {}
    return {"batch": BATCH, "shards": SHARDS, "threads_each": 1, "rounds": rounds, "rows": found}


def measure(rounds: int = 3) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "found.json"
        command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        command += ["-m", "tools.scale.ranks", str(rounds), str(file)]
        subprocess.run([sys.executable, *command], check=True)
        found: dict[str, Any] = json.loads(file.read_text())
    return found


if __name__ == "__main__":
    made = work(int(sys.argv[1]))
    if made:
        Path(sys.argv[2]).write_text(json.dumps(made))
