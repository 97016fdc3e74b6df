"""What each reading of the paper's text does to EVCL+, and that of coresets to VCL with one: every
reading varied alone.

The paper leaves several things open or says them twice differently; each is a setting with a
default. This runs EVCL+ with the paper's settings, fewer epochs, and one reading changed at a
time, on the test data, because nothing is chosen by it. Finished runs are kept: call it again to
go on. Writes results/readings/table.md and results/readings/coresets/table.md.

    python -m tools.vary_readings
"""

from pathlib import Path
from typing import Any

from evclplus.experiments.config import Experiment
from evclplus.experiments.presets import load_preset
from tools.variations import Variation, vary

BENCHMARKS = ("split-mnist", "split-fashion-mnist")
PRESET = load_preset("paper").changed(seeds=None, epochs=10)
SEEDS = range(3)

READINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "kl-unscaled": {"kl_scale": "none"},
    "indicator-per-tensor": {"norm": "tensor"},
    "fisher-sampled-labels": {"fisher_labels": "sampled"},
    "fisher-true-labels": {"fisher_labels": "true"},
    "fisher-sum": {"fisher_reduction": "sum"},
    "fisher-accumulated": {"fisher_tasks": "accumulated"},
    "fisher-sum-accumulated": {"fisher_reduction": "sum", "fisher_tasks": "accumulated"},
    "random-start": {"start": "random"},
    "small-first-variance": {"initial_variance": 1e-6},
    "prior-at-start": {"prior_mean": "mle"},
    "predict-at-mean": {"prediction": "mean"},
}
"""Changed options by the reading's name. Only `fisher-sum-accumulated` changes two at once."""

CORESET_READINGS: dict[str, dict[str, Any]] = {
    "per-task": {},
    "in-total": {"coreset_budget": "total"},
}


def _changed(paper: Experiment, options: dict[str, Any]) -> Experiment:
    return paper.model_copy(update={"options": paper.options | options})


def variation(method: str, reading: str, options: dict[str, Any]) -> Variation:
    experiments = [
        _changed(PRESET.experiment(benchmark, method, seed), options)
        for seed in SEEDS
        for benchmark in BENCHMARKS
    ]
    changed = ", ".join(f"{name} = {value}" for name, value in options.items())
    return Variation(reading, changed or "-", experiments)


def vary_all(method: str, readings: dict[str, dict[str, Any]], out: Path) -> None:
    vary(
        out,
        f"Average test accuracy after five tasks, %; {method}, {PRESET.training.epochs} epochs, "
        f"mean ± deviation over {len(SEEDS)} seeds, and the change against the first with its "
        "95 % interval.",
        [variation(method, *reading) for reading in readings.items()],
        ["python", "-m", "tools.vary_readings"],
    )


if __name__ == "__main__":
    vary_all("evcl+", READINGS, Path("results", "readings"))
    vary_all("vcl-random", CORESET_READINGS, Path("results", "readings", "coresets"))
