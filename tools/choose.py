"""Chooses a default: one number of a method, tried on a few small streams, on validation data.

    python -m tools.choose gpm energy 0.9 0.95 0.97 0.99
    python -m tools.choose natural-vcl training.learning_rate 0.02 0.05 0.1
    python -m tools.choose --table                        # only write table.md again

Test data is not looked at. A value is the better the nearer it comes to the best value on each
stream: its score is the mean over streams of its accuracy minus the best one's. A finished run is a
line of results/choose/runs.jsonl and is not run again.
"""

import argparse
import json
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import evclplus as ec
from evclplus.files import write_atomically
from tools.journal import Run, commit, finished, write

FOLDER = Path("results/choose")

STREAMS: dict[str, Callable[[], ec.Stream]] = {
    "digits": lambda: ec.benchmark("split-digits", validation_fraction=0.3),
    "digits-class": lambda: ec.benchmark("split-digits", scenario="class", validation_fraction=0.3),
    "mnist": lambda: ec.benchmark("split-mnist", examples_per_task=3000),
    "fashion": lambda: ec.benchmark("split-fashion-mnist", examples_per_task=1000),
    "permuted": lambda: ec.benchmark("permuted-mnist", tasks=5, examples_per_task=5000),
}
"""Few and many examples, a head per task and one head, related and unrelated tasks."""


def run(method: str, name: str, value: float, stream: str, seed: int) -> float:
    """Average accuracy on validation data after the last task."""
    part, _, option = name.rpartition(".")
    training: dict[str, Any] = {option: value} if part else {}
    options = {} if part else {option: value}
    data = STREAMS[stream]()
    network = ec.networks.mlp(data.input_size, [100, 100], seed=seed)
    learner = ec.Learner(network, ec.method(method, **options), seed=seed, **training)
    for task in data:
        learner.learn(task)
    return learner.evaluate(data, on="validation").average_accuracy


def work(
    path: Path,
    method: str,
    name: str,
    values: Iterable[float],
    streams: Iterable[str],
    seeds: Iterable[int],
) -> list[Run]:
    """All runs, those that were not finished before among them; each is written when it is done."""
    runs, made_by = finished(path), commit()
    done = {_key(one) for one in runs}
    for seed, stream, value in product(seeds, streams, values):
        one: Run = {"method": method, "option": name, "value": value, "stream": stream}
        one |= {"seed": seed}
        if _key(one) not in done:
            one |= {"accuracy": run(method, name, value, stream, seed), "commit": made_by}
            print(json.dumps(one), flush=True)
            runs.append(one)
            write(path, runs)
    return runs


def _key(one: Run) -> tuple[Any, ...]:
    return tuple(one[part] for part in ("method", "option", "value", "stream", "seed"))


def table(runs: list[Run]) -> str:
    """For each choice a row per value: per cent on each stream, and its score."""
    lines = ["# Choices", "", "Per cent on validation data; `python -m tools.choose`.", ""]
    for method, option in dict.fromkeys((one["method"], one["option"]) for one in runs):
        own = [one for one in runs if (one["method"], one["option"]) == (method, option)]
        streams = [name for name in STREAMS if any(one["stream"] == name for one in own)]
        values = sorted({one["value"] for one in own})
        seeds = sorted({one["seed"] for one in own})
        means = {
            (value, stream): 100 * fmean(each)
            for value, stream in product(values, streams)
            if (
                each := [x["accuracy"] for x in own if (x["value"], x["stream"]) == (value, stream)]
            )
        }
        commits = ", ".join(sorted({one["commit"] for one in own}))
        lines += [
            f"## {method}: {option}",
            "",
            f"Seeds {', '.join(map(str, seeds))}; commit {commits}.",
            "",
            f"| {option} | {' | '.join(streams)} | score |",
            "|--:|" + "--:|" * (len(streams) + 1),
        ]
        complete = [v for v in values if all((v, stream) in means for stream in streams)]
        best = {stream: max(means[v, stream] for v in complete) for stream in streams}
        for value in complete:
            score = fmean(means[value, stream] - best[stream] for stream in streams)
            cells = " | ".join(f"{means[value, stream]:.2f}" for stream in streams)
            lines.append(f"| {value:g} | {cells} | {score:+.2f} |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("method", nargs="?")
    parser.add_argument("option", nargs="?", help="a method's, or training. and a setting's name")
    parser.add_argument("values", nargs="*", type=float)
    parser.add_argument("--streams", nargs="*", default=list(STREAMS), choices=list(STREAMS))
    parser.add_argument("--seeds", type=int, default=1, help="how many, from 100")
    parser.add_argument("--table", action="store_true", help="run nothing")
    given = parser.parse_args()
    path = FOLDER / "runs.jsonl"
    seeds = range(100, 100 + given.seeds)  # those of a search, which no report has
    if given.method and not given.table:
        work(path, given.method, given.option, given.values, given.streams, seeds)
    write_atomically(FOLDER / "table.md", table(finished(path)))


if __name__ == "__main__":
    main()
