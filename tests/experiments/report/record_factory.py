"""Records that look like real ones, made without training."""

from pathlib import Path
from typing import Any

import numpy as np

from evclplus.core import metrics
from evclplus.experiments.config import Experiment
from evclplus.experiments.record import Record
from evclplus.experiments.uncertainty import Figures

TASKS = ["0/1", "2/3", "4/5", "6/7", "8/9"]

# For each method: accuracy when a task is learned, and what each later task takes from it.
METHODS = {
    "joint": (0.995, 0.000),
    "evcl+": (0.993, 0.002),
    "evcl": (0.991, 0.004),
    "ewc": (0.990, 0.006),
    "vcl-kcenter": (0.988, 0.010),
    "vcl-random": (0.987, 0.011),
    "vcl": (0.988, 0.016),
    "coreset-random": (0.930, 0.012),
    "coreset-kcenter": (0.880, 0.018),
    "finetune": (0.992, 0.085),
}


def make_record(method: str = "evcl+", seed: int = 0, **changes: Any) -> Record:
    """A record of five tasks; `changes` replace fields, `settings` those of the experiment."""
    benchmark = changes.pop("benchmark", "split-mnist")
    tasks = changes.pop("tasks", TASKS)
    settings = changes.pop("settings", {})
    learned, lost = METHODS.get(method, (0.95, 0.01))
    name = np.frombuffer(method.encode().ljust(4, b"."), dtype=np.uint8)
    random = np.random.default_rng([seed, *name.tolist()])
    accuracy = [
        [_accuracy(learned, lost * (after - task), random) for task in range(after + 1)]
        for after in range(len(tasks))
    ]
    error = [[1 - value for value in row] for row in accuracy]
    values: dict[str, Any] = {
        "method": method,
        "benchmark": benchmark,
        "seed": seed,
        "config": Experiment(method=method, benchmark=benchmark, seed=seed, **settings),
        "tasks": tasks,
        "notes": [],
        "accuracy": accuracy,
        "negative_log_likelihood": [[3 * value for value in row] for row in error],
        "brier_score": [[1.6 * value for value in row] for row in error],
        "calibration_error": [[0.4 * value for value in row] for row in error],
        "accuracy_before": [0.5] * len(tasks),
        "accuracy_untrained": [0.5] * len(tasks),
        "average_accuracy": metrics.average(accuracy),
        "forgetting": metrics.forgetting(accuracy),
        "backward_transfer": metrics.backward_transfer(accuracy),
        "forward_transfer": 0.0,
        "learning_accuracy": metrics.learning_accuracy(accuracy),
        "average_negative_log_likelihood": 3 * metrics.average(error),
        "average_brier_score": 1.6 * metrics.average(error),
        "average_calibration_error": 0.4 * metrics.average(error),
        "environment": {
            "command": f"evclplus compare --benchmark {benchmark} --seeds 3",
            "commit": "0123456789abcdef",
            "evclplus": "0.1.0",
            "torch": "2.9.0",
            "python": "3.11.7",
            "threads": 2,
        },
        "seconds": {"training": 41.2 + seed, "evaluation": 3.1},
    }
    return Record(**{**values, **changes})


def _accuracy(learned: float, lost: float, random: np.random.Generator) -> float:
    return float(np.clip(learned - lost + random.normal(0.0, 0.003 + lost / 6), 0.0, 1.0))


def make_figures(seed: int = 0, **changes: Any) -> Figures:
    """What a record says of uncertainty."""
    random = np.random.default_rng(seed)
    values: dict[str, Any] = {
        "inputs": 100,
        "selective_accuracy": 0.98,
        "area_under_risk": 0.012,
        "risk": sorted(random.uniform(0, 0.1, 20).tolist()),
        "bin_counts": [0] * 7 + [10, 5, 5, 10, 10, 10, 20, 30],
        "bin_confidence": [(index + 0.5) / 15 for index in range(15)],
        "bin_accuracy": random.uniform(0.5, 1, 15).tolist(),
        "noise_auroc": 0.9 + 0.01 * seed,
        "noise_fpr95": 0.3,
        "foreign_auroc": 0.8,
        "foreign_fpr95": 0.5,
        "heads_right": 0.68,
        "accuracy_untold": 0.679,
        "conformal_coverage": 0.91,
        "conformal_size": 0.92,
    }
    return Figures(**(values | changes))


def write_records(folder: Path, records: list[Record]) -> Path:
    """Each record in a folder of its own, as `compare` leaves them."""
    for index, record in enumerate(records):
        place = folder / f"run-{index:03d}"
        place.mkdir(parents=True)
        record.write(place)
    return folder


def full_comparison(benchmark: str = "split-mnist") -> list[Record]:
    """Ten methods, three seeds, five tasks."""
    return [
        make_record(method, seed, benchmark=benchmark, uncertainty=make_figures(seed))
        for method in METHODS
        for seed in range(3)
    ]
