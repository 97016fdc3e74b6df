"""Long streams: accuracy and memory against the number of tasks, for methods that claim to last.

    permuted   PermutedMNIST, 20 tasks of 5,000 examples, one head, 2x100
    pairs      50 tasks, each two random digits and 400 of their examples, a head each, 2x100

    python -m tools.long_streams                        # all that is not there yet, and the figure
    python -m tools.long_streams --only pairs kfac ewc  # a stream, and some of the methods

Methods as they come, nothing tuned; training is the same for all: 5 epochs of batches of 128 for
permuted, 10 of 64 for pairs. A finished run is a line of results/long/runs.jsonl and is not run
again. Bytes are those of all tensors that a learner keeps between tasks, each counted once.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch

import evclplus as ec
from evclplus.data.loading import dataset
from evclplus.files import write_atomically
from tools.journal import Run, commit, finished, write
from tools.systems import kept_bytes

RESULTS = Path("results/long/runs.jsonl")
FIGURE = Path("docs/images/long-streams.png")

METHODS = ("evcl+", "ewc", "kfac", "mas", "si", "ucl", "rwalk", "finetune")

SCALES = {"accuracy": 100, "bytes": 1e-6}
"""What is drawn, in per cent and megabytes."""


@dataclass(frozen=True)
class Long:
    """A stream, how a task is trained, and after which tasks all of them so far are tested."""

    title: str
    stream: Callable[[int], ec.Stream]
    training: dict[str, Any]
    tested: Sequence[int]


def pairs(seed: int, tasks: int = 50, train: int = 400, test: int = 200) -> ec.Stream:
    """Two random digits a task, and examples of them that may come again with other partners."""
    draws = torch.Generator().manual_seed(seed)
    arrays = dataset("mnist")
    assert arrays.test is not None
    splits = []
    for (x, y), count in ((arrays.train, train), (arrays.test, test)):
        splits.append((torch.as_tensor(x), torch.as_tensor(y), count // 2))
    parts: tuple[list[Any], list[Any]] = ([], [])
    for _ in range(tasks):
        chosen = torch.randperm(10, generator=draws)[:2].tolist()
        for part, (x, y, count) in zip(parts, splits, strict=True):
            rows = [(y == digit).nonzero()[:, 0] for digit in chosen]
            rows = [one[torch.randperm(len(one), generator=draws)[:count]] for one in rows]
            part.append((x[torch.cat(rows)], y[torch.cat(rows)]))
    names = [f"pair {position}" for position in range(1, tasks + 1)]
    return ec.tasks(parts[0], test=parts[1], names=names, name="pairs")


def permuted(seed: int) -> ec.Stream:
    return ec.benchmark("permuted-mnist", seed=seed, tasks=20, examples_per_task=5000)


STREAMS = {
    "permuted": Long(
        "PermutedMNIST, one head",
        permuted,
        {"epochs": 5, "batch_size": 128},
        (1, 2, 3, 5, 7, 10, 13, 16, 20),
    ),
    "pairs": Long(
        "pairs of digits, a head each",
        pairs,
        {"epochs": 10, "batch_size": 64},
        (1, 2, 5, 10, 15, 20, 30, 40, 50),
    ),
}


def run(name: str, long: Long, method: str, seed: int) -> Run:
    stream = long.stream(seed)
    network = ec.networks.mlp(stream.input_size, [100, 100], seed=seed)
    # These tasks are too short to earn a compilation.
    learner = ec.Learner(network, method, seed=seed, compile="off", **long.training)
    points = []
    for position, task in enumerate(stream, start=1):
        learner.learn(task)
        if position in long.tested:
            seen = learner.evaluate(stream.tasks[:position]).average_accuracy
            newest = learner.evaluate(task).average_accuracy
            point = {"tasks": position, "accuracy": seen, "newest": newest}
            points.append(point | {"bytes": kept_bytes(learner)})
            print(name, method, seed, json.dumps(point), flush=True)
    made = {"stream": name, "method": method, "seed": seed, "commit": commit()}
    return made | {"points": points}


def work(
    path: Path, streams: Mapping[str, Long], methods: Sequence[str], seeds: Sequence[int]
) -> list[Run]:
    """All runs, those that were not finished before among them; each is written when it is done."""
    runs = finished(path)
    done = {(one["stream"], one["method"], one["seed"]) for one in runs}
    for seed, (name, long), method in product(seeds, streams.items(), methods):
        if (name, method, seed) not in done:
            runs.append(run(name, long, method, seed))
            write(path, runs)
    return runs


def long_figure(runs: Sequence[Run]) -> bytes:
    """Accuracy above, memory below, a column for each stream; the mean over seeds. A PNG."""
    from matplotlib.figure import Figure  # slow to import
    from matplotlib.ticker import MaxNLocator

    from evclplus.experiments.report.figures import render
    from evclplus.methods import METHODS as ENTRIES

    def figure() -> Figure:
        made = Figure(figsize=(8.6, 6.4), layout="constrained")
        panels = made.subplots(2, len(STREAMS), sharex="col")
        lines = {}
        for method, (column, (name, long)) in product(METHODS, enumerate(STREAMS.items())):
            panels[0, column].set_title(long.title)
            panels[1, column].set_xlabel("tasks learned")
            panels[1, column].xaxis.set_major_locator(MaxNLocator(integer=True))
            own = [one for one in runs if (one["stream"], one["method"]) == (name, method)]
            style = {"color": ENTRIES[method].colour, "marker": ENTRIES[method].marker}
            for row, what in enumerate(SCALES) if own else ():
                values = torch.tensor([[p[what] for p in one["points"]] for one in own])
                tasks = [point["tasks"] for point in own[0]["points"]]
                mean = SCALES[what] * values.double().mean(0)
                (lines[method],) = panels[row, column].plot(tasks, mean, markersize=5, **style)
        for axes in panels[1]:
            axes.set_ylim(bottom=0)
        panels[0, 0].set_ylabel("average accuracy on tasks seen (%)")
        panels[1, 0].set_ylabel("kept between tasks (MB)")
        made.legend(
            lines.values(), lines.keys(), loc="outside lower center", ncols=8, frameon=False
        )
        return made

    return render(figure).png


def main() -> None:
    parser = argparse.ArgumentParser(description="Long streams: accuracy and memory against tasks.")
    parser.add_argument("--only", nargs="+", default=[], help="streams and methods to run")
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    given = parser.parse_args()
    streams = {name: one for name, one in STREAMS.items() if name in given.only} or STREAMS
    methods = [name for name in METHODS if name in given.only] or METHODS
    runs = work(RESULTS, streams, methods, range(given.seeds))
    write_atomically(FIGURE, long_figure(runs))


if __name__ == "__main__":
    main()
