"""The table of all systems: what each keeps between tasks, what an epoch costs, what it reaches.

    evclplus reproduce --preset systems        # the accuracies, into results/systems
    python -m tools.systems                    # what is kept and what it costs, if not there yet
    python -m tools.systems --page docs/systems.md --report      # measure nothing, write the table

An epoch of a second task is timed beside one of fine-tuning, turn by turn in one process (2x256,
12,000 examples, batch 256; ten epochs a task, the first two of them left out); the ratio is that of
the medians. What is kept are all tensors of weights and memory after five such tasks of 2,000
examples, each counted once. A finished measurement is a line of results/systems/costs.jsonl.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

import evclplus as ec
from evclplus.core import tree
from evclplus.experiments.check import write_page
from evclplus.experiments.presets import Preset, load_preset
from evclplus.experiments.reproduce import records_of
from evclplus.files import write_atomically
from tools.bench.callback import epochs_in_turn
from tools.bench.ours import stream_of
from tools.bench.plain import EXAMPLES, INPUTS, pictures
from tools.journal import Run, commit, finished, write

FOLDER = Path("results/systems")
COSTS = "costs.jsonl"
BEGIN, END = "<!-- systems: python -m tools.systems -->", "<!-- end of systems -->"

KEEPS = {
    "evcl+": "last posterior, Fisher",
    "evcl": "last posterior, Fisher",
    "vcl": "last posterior",
    "vcl-random": "last posterior, 200 examples a task",
    "vcl-tempered": "last posterior",
    "td-vcl": "last 5 posteriors, 200 examples of each of 4 tasks",
    "gvcl": "last posterior, first prior",
    "gvcl-film": "last posterior, first prior, a scale and a shift per unit and task",
    "ucl": "last means, a variance per unit (stored once a weight)",
    "ucb": "last posterior, a step size per weight",
    "natural-vcl": "last posterior",
    "ewc": "last weights, Fisher",
    "si": "last weights, path integral",
    "mas": "last weights, sensitivity",
    "rwalk": "last weights, Fisher, scores",
    "kfac": "last weights, two Kronecker factors per layer",
    "ncl": "last weights, two Kronecker factors per layer",
    "lwf": "nothing",
    "s-fsvi": "weights with variances, 40 inputs a task",
    "fromp": "Fisher, 40 inputs a task",
    "ogd": "100 gradients a task",
    "gpm": "a projection per layer",
    "er": "200 examples",
    "a-gem": "200 examples",
    "der": "200 examples with logits",
    "der++": "200 examples with logits",
    "dgr": "a generator",
    "generative": "a Gaussian per class",
    "hat": "a mask per task, the largest of them",
    "progressive": "a column per task with adapters",
    "progress-compress": "last weights, Fisher",
    "finetune": "nothing",
    "joint": "all examples",
}
"""Beside the weights that predict."""


def kept_bytes(learner: ec.Learner) -> int:
    """Of all tensors that a learner keeps between tasks: weights and memory, each counted once."""
    found = {
        (tensor.data_ptr(), tensor.numel()): tensor.numel() * tensor.element_size()
        for _, tensor in tree.tensors((learner.q, learner.memory))
    }
    return sum(found.values())


def kept(name: str, hidden: Sequence[int], examples: int, tasks: int = 5) -> int:
    """Bytes after the last of the tasks."""
    stream = stream_of(pictures(count=examples), tasks)
    learner = ec.Learner(ec.networks.mlp(INPUTS, hidden), ec.method(name), epochs=1, compile="off")
    for task in stream:
        learner.learn(task)
    return kept_bytes(learner)


def cost(
    name: str, rounds: int, hidden: Sequence[int] = (256, 256), examples: int = EXAMPLES
) -> Run:
    """What a method keeps, and its epoch against one of fine-tuning."""
    network, stream = ec.networks.mlp(INPUTS, hidden), stream_of(pictures(count=examples))
    methods = (ec.method(name), ec.FineTune())
    ours, plain = epochs_in_turn(methods, network, stream, rounds)
    return {
        "method": name,
        "epoch": ours,
        "finetune": plain,
        "rounds": rounds,
        "bytes": kept(name, hidden, max(20, examples // 6)),
        "threads": torch.get_num_threads(),
        "commit": commit(),
    }


def measure(path: Path, names: Sequence[str], rounds: int, **size: Any) -> list[Run]:
    """All costs; those that were not measured before are, and written when they are done."""
    costs = finished(path)
    done = {one["method"] for one in costs}
    for name in names:
        if name not in done:
            costs.append(cost(name, rounds, **size))
            print(json.dumps(costs[-1]), flush=True)
            write(path, costs)
    return costs


def accuracies(preset: Preset, folder: Path) -> dict[tuple[str, str], list[float]]:
    """Per cent of every seed that was run with the preset's settings, by benchmark and method."""
    found: dict[tuple[str, str], list[float]] = {}
    for record in records_of(preset, folder)[0]:
        key = record.benchmark, record.method
        found.setdefault(key, []).append(100 * record.average)
    return found


def table(
    preset: Preset, costs: Sequence[Run], found: Mapping[tuple[str, str], Sequence[float]]
) -> str:
    """A row per system, in Markdown; what was not measured is empty, what cannot be is a dash."""
    weights = _weights((256, 256))
    lines = [
        "| system | keeps beside the weights | kept, MB | weights' worth | epoch | "
        + " | ".join(preset.benchmarks)
        + " |",
        "|---|---|--:|--:|--:|" + "--:|" * len(preset.benchmarks),
    ]
    by_name = {one["method"]: one for one in costs}
    for name in preset.methods:
        one = by_name.get(name)
        cells = [name, KEEPS[name], *_costs(one, weights)]
        for benchmark in preset.benchmarks:
            cells.append(_accuracy(preset, found, benchmark, name))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _weights(hidden: Sequence[int]) -> int:
    """Those of the network with its five heads."""
    network = ec.networks.mlp(INPUTS, hidden, heads=[2] * 5)
    return sum(one.numel() for one in network.parameters())


def _costs(one: Run | None, weights: int) -> tuple[str, str, str]:
    if one is None:
        return "", "", ""
    size = one["bytes"]
    return (
        f"{size / 1e6:.2f}",
        f"{size / (4 * weights):.1f}",
        f"{one['epoch'] / one['finetune']:.2f}",
    )


def _accuracy(
    preset: Preset, found: Mapping[tuple[str, str], Sequence[float]], benchmark: str, name: str
) -> str:
    if not preset.fits(benchmark, name):
        return "-"
    values = found.get((benchmark, name), ())
    if len(values) < 2:
        return "".join(f"{value:.1f} (1)" for value in values)
    count = "" if len(values) == preset.seeds else f" ({len(values)})"
    return f"{fmean(values):.1f} ± {stdev(values):.1f}{count}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("methods", nargs="*", help="those to measure; default: all of the preset")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each method")
    parser.add_argument("--page", type=Path, help="Markdown file to put the table into")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    given = parser.parse_args()
    preset = load_preset("systems")
    path = FOLDER / COSTS
    names = () if given.report else given.methods or preset.methods
    costs = measure(path, names, given.rounds)
    text = table(preset, costs, accuracies(preset, FOLDER))
    write_atomically(FOLDER / "systems.md", text)
    if given.page is not None:
        write_page(given.page, text, BEGIN, END)


if __name__ == "__main__":
    main()
