"""What each part of tuned EVCL+ is worth: one part taken away or exchanged at a time.

Runs on validation data, so that a part may be dropped by what is seen here. Finished runs are
kept: call it again to go on. Writes results/ablation/table.md.

    python -m tools.ablate                    # every benchmark that is tuned
    python -m tools.ablate permuted-mnist     # some of them
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from evclplus.experiments.config import Experiment
from evclplus.experiments.presets import load_preset
from evclplus.methods.evcl_plus import EVCLPlus
from tools.variations import Variation, vary

PRESET = load_preset("tuned")
SEEDS = range(3)

PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "tuned": ("-", {}),
    "no-function-term": ("lam_function = 0", {"lam_function": 0.0}),
    "no-elastic-penalty": ("lam = 0", {"lam": 0.0}),
    "neither": ("lam_function = 0, lam = 0: VCL", {"lam_function": 0.0, "lam": 0.0}),
    "no-kl": ("beta = 0", {"beta": 0.0}),
    "wide-prior": ("prior_variance = 1", {"prior_variance": 1.0}),
    "saturated-fisher": ("fisher_temperature = 1", {"fisher_temperature": 1.0}),
    "softened-fisher": ("fisher_temperature = 10", {"fisher_temperature": 10.0}),
}
"""What is changed in words and as options of EVCL+."""


def benchmarks() -> list[str]:
    tuned = PRESET.tuned or {}
    return [
        name for name in PRESET.benchmarks if {"evcl+", "evcl", "ewc"} <= set(tuned.get(name, ()))
    ]


def changed(method: str, benchmark: str, seed: int, options: dict[str, Any]) -> Experiment:
    """A method with the settings tuned for it, but for some options."""
    tuned = PRESET.experiment(benchmark, method, seed)
    settings = {**tuned.model_dump(), "evaluate_on": "validation"}
    return Experiment(**{**settings, "options": {**tuned.options, **options}})


def without_a_part(name: str) -> Variation:
    words, options = PARTS[name]
    runs = [
        changed("evcl+", one, seed, options)
        for seed in SEEDS
        for one in benchmarks()
        if not options or _has_an_effect(options, one)
    ]
    return Variation(name, words, runs)


def _has_an_effect(options: dict[str, Any], benchmark: str) -> bool:
    """Whether the settings tuned for a benchmark are not the changed ones already."""
    tuned = PRESET.experiment(benchmark, "evcl+", 0).options
    return EVCLPlus(**tuned) != EVCLPlus(**{**tuned, **options})


def with_a_symmetric_penalty() -> Variation:
    """EVCL with EVCL+'s settings: nothing but the variance term differs."""
    runs = []
    for seed in SEEDS:
        for one in benchmarks():
            ours = changed("evcl+", one, seed, {}).model_dump()
            options = {name: value for name, value in ours["options"].items() if name != "k"}
            runs.append(Experiment(**{**ours, "method": "evcl", "options": options}))
    return Variation("symmetric-penalty", "EVCL with EVCL+'s settings", runs)


def with_the_function_term(method: str) -> Variation:
    """A rival with EVCL+'s strength of the function term."""
    runs = []
    for seed in SEEDS:
        for one in benchmarks():
            strength = PRESET.experiment(one, "evcl+", seed).options["lam_function"]
            if strength == 0:
                continue
            runs.append(changed(method, one, seed, {"lam_function": strength}))
    return Variation(f"{method}-with-function-term", f"tuned {method} with it", runs)


def asked() -> list[str]:
    """The benchmarks named on the command line."""
    parser = argparse.ArgumentParser(description="what each part of tuned EVCL+ is worth")
    parser.add_argument("benchmarks", nargs="*", help="all that are tuned, if none is named")
    names: list[str] = parser.parse_args().benchmarks
    if unknown := set(names) - set(benchmarks()):
        parser.error(f"not tuned: {', '.join(unknown)}; choose from {', '.join(benchmarks())}")
    return names


if __name__ == "__main__":
    vary(
        Path("results", "ablation"),
        "Average accuracy on validation data after five tasks, %; EVCL+ with its tuned settings, "
        f"mean ± deviation over {len(SEEDS)} seeds, and the change with its 95 % interval.",
        [
            *(without_a_part(name) for name in PARTS),
            with_a_symmetric_penalty(),
            *(with_the_function_term(name) for name in ("evcl", "ewc")),
        ],
        ["python", "-m", "tools.ablate", *sys.argv[1:]],
        asked(),
    )
