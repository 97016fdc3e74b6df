"""How the settings in src/evclplus/experiments/demo.toml were chosen.

Twelve settings for each family of methods, scored on validation data with seeds that the demo
does not use; the test set is never looked at. Prints one line per setting, best last.

    python -m tools.choose_demo_settings
"""

from itertools import product
from statistics import fmean
from typing import Any

import torch

from evclplus.experiments.config import Experiment, load_grid
from evclplus.experiments.run import run

SEEDS = (10, 11, 12)

SHARED = {
    "network": {"hidden": (50, 50)},
    "training": {"epochs": 30, "batch_size": 32, "learning_rate": 1e-2},
}

ELASTIC_VARIATIONAL = [
    {"beta": beta, "initial_variance": variance, "lam": lam, "fisher_tasks": "accumulated"}
    for beta, variance, lam in product((0.1, 0.03, 0.01), (1e-3, 1e-4), (1e4, 1e5))
]
VARIATIONAL = [
    {"beta": beta, "initial_variance": variance}
    for beta, variance in product((1.0, 0.1, 0.01, 0.001), (1e-3, 1e-4, 1e-5))
]
SEARCH: dict[str, list[dict[str, Any]]] = {
    "evcl+": ELASTIC_VARIATIONAL,
    "evcl": ELASTIC_VARIATIONAL,
    "vcl": VARIATIONAL,
    "coreset-random": [{**options, "coreset_size": 10} for options in VARIATIONAL],
    "ewc": [
        {"lam": lam, "fisher_tasks": tasks}
        for lam, tasks in product((1e2, 1e3, 1e4, 1e5, 1e6, 1e7), ("last", "accumulated"))
    ],
}


def validation_accuracy(method: str, options: dict[str, Any]) -> float:
    grid = load_grid(None, {**SHARED, "evaluate_on": "validation"}, [])
    cells: list[Experiment] = [grid.experiment(method, seed) for seed in SEEDS]
    return fmean(
        run(cell.model_copy(update={"options": options})).average_accuracy for cell in cells
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    for method, settings in SEARCH.items():
        scored = [(validation_accuracy(method, options), options) for options in settings]
        for accuracy, options in sorted(scored, key=lambda pair: pair[0]):
            print(f"{method:15} {accuracy:6.1%}  {options}", flush=True)
