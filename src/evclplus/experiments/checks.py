"""Published figures and the protocols that made them: what `evclplus check` runs, as data.

A check is a method with the network, data, training and settings of a public repository, and the
figure that the repository reports. Nothing is tuned. The marks say where a figure comes from:

    V   seen in the named source        F   read off a figure, about a point exact
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from evclplus.errors import SettingsError
from evclplus.experiments.config import Experiment, Network
from evclplus.settings import Training, nearest

Scenario = Literal["task", "domain", "class"]


@dataclass(frozen=True)
class Protocol:
    """What the checks of one table share."""

    name: str
    source: str
    benchmark: str
    hidden: tuple[int, ...]
    stream: dict[str, Any]
    training: dict[str, Any]


@dataclass(frozen=True)
class Check:
    """One figure: average accuracy after the last task in per cent, its standard deviation over
    `runs` runs where that is reported. `differs` says what the protocol has and we have not."""

    protocol: Protocol
    method: str
    accuracy: float
    deviation: float | None = None
    runs: int | None = None
    variant: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    mark: Literal["V", "F"] = "V"
    differs: str = ""

    @property
    def name(self) -> str:
        parts = (self.protocol.name, self.method, self.variant)
        return "-".join(part for part in parts if part)

    def experiment(self, seed: int) -> Experiment:
        protocol = self.protocol
        return Experiment(
            method=self.method,
            benchmark=protocol.benchmark,
            seed=seed,
            options=self.options,
            stream=protocol.stream,
            network=Network(hidden=protocol.hidden),
            training=Training(**{**protocol.training, **self.training}),
        )


PUBLISHED: dict[str, Any] = {"calibration": "none", "lam_function": 0.0, "shared_head": "free"}
"""EWC, SI and MAS as their papers have them, without what we add."""

# GT-RIPL/Continual-Learning-Benchmark: README.md and scripts/split_MNIST_incremental_*.sh. The
# pictures are 32x32, normalised by (x - 0.1) / 0.2752; penalties have no 1/2.

GT_RIPL = "GT-RIPL/Continual-Learning-Benchmark, README and scripts"


def _gt_ripl(scenario: Scenario) -> Protocol:
    return Protocol(
        f"gt-ripl-{scenario}",
        GT_RIPL,
        "split-mnist",
        (400, 400),
        {
            "scenario": scenario,
            "padding": 2,
            "all_outputs": scenario == "class",
            "scale": 1 / (255 * 0.2752),
            "shift": -0.1 / 0.2752,
            "validation_fraction": 0.0,
        },
        {
            "epochs": 4,
            "batch_size": 128,
            "optimiser": "adam",
            "learning_rate": 1e-3,
            "keep_optimiser": True,
            "schedule": "constant",
        },
    )


MAS_DIFFERS = (
    "theirs: |gradient| of a batch's mean over outputs and examples; ours: the mean over examples "
    "of each one's, which is larger"
)


GT_RIPL_DIFFERS = {
    "mas": MAS_DIFFERS,
    "lwf": "the figures of LwF were not made by the repository's code, which does not have it",
}


def _gt_ripl_checks() -> Iterator[Check]:
    fisher = PUBLISHED | {"fisher_labels": "predicted", "fisher_examples": 60_000}
    figures: dict[Scenario, dict[str, tuple[float, float | None]]] = {
        "task": {
            "finetune": (93.46, 2.01),
            "ewc-each": (97.70, 0.81),
            "ewc-online": (98.04, 1.10),
            "si": (98.56, 0.49),
            "mas": (99.22, 0.21),
            "lwf": (99.60, 0.03),
            "er": (99.40, 0.08),
            "joint": (99.52, 0.16),
        },
        "domain": {
            "finetune": (55.2, None),
            "ewc-each": (58.9, None),
            "ewc-online": (57.3, None),
            "si": (64.8, 3.1),
            "mas": (68.6, 6.9),
            "lwf": (71.0, 1.3),
            "er": (95.2, 0.5),
            "joint": (98.6, None),
        },
        "class": {
            "finetune": (19.7, None),
            "ewc-each": (19.8, None),
            "ewc-online": (19.8, None),
            "si": (19.7, None),
            "mas": (19.5, None),
            "lwf": (24.2, 0.3),
            "er": (90.8, 0.9),
            "joint": (97.5, None),
        },
    }
    coefficients: dict[Scenario, dict[str, float]] = {
        "task": {"ewc-each": 100, "ewc-online": 400, "si": 300, "mas": 1},
        "domain": {"ewc-each": 100, "ewc-online": 700, "si": 3000, "mas": 10_000},
        "class": {"ewc-each": 600, "ewc-online": 100, "si": 600, "mas": 1},
    }
    for scenario, rows in figures.items():
        protocol, strength = _gt_ripl(scenario), coefficients[scenario]

        def options(row: str, strength: dict[str, float] = strength) -> dict[str, Any]:
            if row.startswith("ewc"):
                anchor = "weighted" if row == "ewc-each" else "last"
                return fisher | {"lam": 2 * strength[row], "anchor": anchor}
            if row == "si":
                return PUBLISHED | {"c": strength[row], "xi": 0.1}
            if row == "mas":
                return PUBLISHED | {"lam": strength[row], "importance_examples": 60_000}
            return {"buffer_size": 1100} if row == "er" else {}

        for row, (accuracy, deviation) in rows.items():
            method, _, variant = row.partition("-")
            yield Check(
                protocol,
                method,
                accuracy,
                deviation,
                10,
                variant,
                options(row),
                # All data from scratch: nothing to go on from.
                {"keep_optimiser": False} if row == "joint" else {},
                differs=GT_RIPL_DIFFERS.get(row, ""),
            )


# aimagelab/mammoth: README.md of the first commit, utils/best_args.py.

MAMMOTH = "aimagelab/mammoth, first README and best_args.py"
XAVIER = "theirs: Xavier's first weights; ours: PyTorch's"


def _mammoth(name: str, benchmark: str, stream: dict[str, Any], batch_size: int) -> Protocol:
    return Protocol(
        f"mammoth-{name}",
        MAMMOTH,
        benchmark,
        (100, 100),
        stream | {"validation_fraction": 0.0},
        {"epochs": 1, "batch_size": batch_size, "optimiser": "sgd", "schedule": "constant"},
    )


def _mammoth_checks() -> Iterator[Check]:
    permuted = _mammoth("permuted", "permuted-mnist", {"tasks": 20}, 128)
    split = _mammoth("class", "split-mnist", {"scenario": "class", "all_outputs": True}, 10)
    fisher = PUBLISHED | {"fisher_labels": "true", "fisher_examples": 60_000}
    weighted = f"{XAVIER}; their squares are weighted by p(y|x)"
    stores = f"{XAVIER}; theirs stores while a task is learned, ours after it"

    def check(
        protocol: Protocol,
        method: str,
        accuracy: float,
        rate: float,
        options: dict[str, Any] | None = None,
        differs: str = XAVIER,
        variant: str = "",
    ) -> Check:
        rates = {"learning_rate": rate}
        return Check(
            protocol, method, accuracy, None, None, variant, options or {}, rates, differs=differs
        )

    def buffer(size: int, batch: int) -> dict[str, Any]:
        return {"buffer_size": size, "replay_batch": batch}

    def logits(size: int, batch: int, alpha: float, beta: float | None = None) -> dict[str, Any]:
        labels = {} if beta is None else {"beta": beta}
        return buffer(size, batch) | {"alpha": alpha} | labels

    def reference(size: int) -> dict[str, Any]:
        return {"buffer_size": size, "reference_batch": 128}

    yield check(permuted, "finetune", 40.70, 0.2)
    yield check(permuted, "ewc", 75.79, 0.1, fisher | {"lam": 1.4}, weighted)
    yield check(permuted, "si", 65.86, 0.1, PUBLISHED | {"c": 0.5, "xi": 1.0})
    yield check(permuted, "er", 72.37, 0.2, buffer(200, 128), stores, "200")
    yield check(permuted, "er", 80.60, 0.2, buffer(500, 128), stores, "500")
    yield check(permuted, "a-gem", 66.42, 0.1, reference(200), stores, "200")
    yield check(permuted, "a-gem", 67.56, 0.1, reference(500), stores, "500")
    yield check(permuted, "der", 81.74, 0.2, logits(200, 128, 1.0), stores, "200")
    yield check(permuted, "der", 87.29, 0.2, logits(500, 128, 1.0), stores, "500")
    yield check(permuted, "der++", 83.58, 0.1, logits(200, 128, 1.0, 1.0), stores, "200")
    yield check(permuted, "der++", 88.21, 0.2, logits(500, 128, 1.0, 0.5), stores, "500")
    yield check(split, "finetune", 19.60, 0.03)
    yield check(split, "ewc", 20.46, 0.03, fisher | {"lam": 180.0}, weighted)
    yield check(split, "si", 19.27, 0.1, PUBLISHED | {"c": 1.0, "xi": 0.9})
    yield check(split, "er", 80.43, 0.01, buffer(200, 10), stores, "200")
    yield check(split, "er", 86.12, 0.1, buffer(500, 10), stores, "500")
    yield check(split, "a-gem", 45.72, 0.1, reference(200), stores, "200")
    yield check(split, "a-gem", 46.66, 0.1, reference(500), stores, "500")
    yield check(split, "der", 84.55, 0.03, logits(200, 10, 0.2), stores, "200")
    yield check(split, "der", 90.54, 0.03, logits(500, 128, 1.0), stores, "500")
    yield check(split, "der++", 85.61, 0.03, logits(200, 128, 0.2, 1.0), stores, "200")
    yield check(split, "der++", 91.00, 0.03, logits(500, 10, 1.0, 0.5), stores, "500")


# facebookresearch/agem: plotting_code/agem_plots.ipynb, replicate_results_iclr19.sh.

AGEM_REPOSITORY = "facebookresearch/agem, notebook and scripts"


def _agem_checks() -> Iterator[Check]:
    protocol = Protocol(
        "agem-permuted",
        AGEM_REPOSITORY,
        "permuted-mnist",
        (256, 256),
        {"tasks": 17, "validation_fraction": 0.0},
        {"epochs": 1, "batch_size": 10, "optimiser": "sgd", "schedule": "constant"},
    )
    mas = PUBLISHED | {"lam": 0.1, "importance_examples": 60_000}
    stored = {"per_class": 25, "reference_batch": 256}
    slow, fast = {"learning_rate": 0.03}, {"learning_rate": 0.1}
    yield Check(protocol, "finetune", 47.95, 1.3, 5, training=slow)
    yield Check(protocol, "mas", 69.85, 0.93, 5, options=mas, training=fast, differs=MAS_DIFFERS)
    walk = {"lam": 1.0, "fisher_average": 0.9, "score_steps": 10, "xi": 1e-3}
    walked = "theirs: scores become 1.5 times the old and half the new; ours: their average"
    yield Check(protocol, "rwalk", 85.80, 0.57, 5, options=walk, training=fast, differs=walked)
    columns = replace(protocol, name="agem-task", stream=protocol.stream | {"scenario": "task"})
    yield Check(columns, "progressive", 93.55, 0.07, 5, training=fast)
    yield Check(protocol, "a-gem", 89.12, 0.15, 5, options=stored, training=fast)


CHECKS: dict[str, Check] = {
    one.name: one for one in (*_gt_ripl_checks(), *_mammoth_checks(), *_agem_checks())
}


def chosen(names: Sequence[str]) -> list[Check]:
    """The checks that are named: one by one, by method, or by protocol; without names, all."""
    found: dict[str, Check] = {}
    for name in names or CHECKS:
        fitting = {
            key: one
            for key, one in CHECKS.items()
            if name == key or name == one.method or key.startswith(f"{name}-")
        }
        if not fitting:
            known = {*CHECKS, *(one.method for one in CHECKS.values())}
            raise SettingsError(f"there is no check of {name!r}; {nearest(name, known)}")
        found |= fitting
    return list(found.values())
