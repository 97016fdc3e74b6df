"""Published figures and the protocols that made them: what `evclplus check` runs, as data.

A check is a method with the network, data, training and settings of a public repository, and the
figure that the repository reports. Nothing is tuned. The marks say where a figure comes from:

    V   seen in the named source        F   read off a figure, about a point exact
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import sqrt
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
    "lwf": "GT-RIPL's code has no LwF: whether its steps or van de Ven's made it is not said",
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
            "lwf": (71.02, 1.26),
            "er": (95.2, 0.5),
            "joint": (98.6, None),
        },
        "class": {
            "finetune": (19.7, None),
            "ewc-each": (19.8, None),
            "ewc-online": (19.8, None),
            "si": (19.7, None),
            "mas": (19.5, None),
            "lwf": (24.17, 0.33),
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


# GMvandeVen/continual-learning: train.py, encoder.py, ICLRblogpost. 2,000 steps a task. The table
# of GT-RIPL's README has LwF and DGR too, which its code has not; this code has them, and its
# figures (domain 71.5 and 95.7, class 22 and 91) are the same but for what a picture shows.

VAN_DE_VEN = "GMvandeVen/continual-learning; LwF and DGR as in GT-RIPL's README"


def _van_de_ven(scenario: Scenario) -> Protocol:
    return Protocol(
        f"van-de-ven-{scenario}",
        VAN_DE_VEN,
        "split-mnist",
        (400, 400),
        {"scenario": scenario, "validation_fraction": 0.0},
        {
            "epochs": 21,  # of about 94 steps
            "batch_size": 128,
            "optimiser": "adam",
            "learning_rate": 1e-3,
            "keep_optimiser": True,
            "schedule": "constant",
        },
    )


def _van_de_ven_checks() -> Iterator[Check]:
    heads = "theirs trains old heads along; ours keeps them"
    autoencoder = (
        "theirs: a VAE with binary cross-entropy that goes on from task to task; ours: Gaussian "
        "outputs, from first weights with every task"
    )
    figures: dict[Scenario, tuple[tuple[float, float], tuple[float, float]]] = {
        "task": ((99.60, 0.03), (99.47, 0.03)),
        "domain": ((71.02, 1.26), (95.74, 0.23)),
        "class": ((24.17, 0.33), (91.24, 0.33)),
    }
    for scenario, (lwf, dgr) in figures.items():
        protocol = _van_de_ven(scenario)
        yield Check(protocol, "lwf", *lwf, 10, differs=heads if scenario == "task" else "")
        yield Check(protocol, "dgr", *dgr, 10, differs=autoencoder)
    # The blog post has standard errors of 30 runs.
    protocol, runs = _van_de_ven("task"), 30
    fisher = PUBLISHED | {"fisher_labels": "exact", "fisher_examples": 60_000}
    yield Check(protocol, "finetune", 85.41, 0.88 * sqrt(runs), runs)
    yield Check(protocol, "ewc", 99.12, 0.16 * sqrt(runs), runs, options=fisher | {"lam": 1e5})


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
    # Theirs stores the first batch that it draws when a task has ended, ten examples, whatever the
    # size of its buffer; the reference is then all that is stored.
    ten = {"per_class": 5, "reference_batch": 128}
    batch = f"{XAVIER}; theirs stores one batch of ten a task, ours five of each class"
    yield check(split, "a-gem", 45.72, 0.1, ten, batch, "200")
    yield check(split, "a-gem", 46.66, 0.1, ten, batch, "500")
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


# csm9493/UCL: approaches/, arguments.py, dataloaders/. Figures 2 and 3 of the paper.

UCL_REPOSITORY = "csm9493/UCL, code; figures of the paper"


def _ucl_checks() -> Iterator[Check]:
    split = Protocol(
        "ucl-split",
        UCL_REPOSITORY,
        "split-mnist",
        (256, 256),
        {"scale": 1 / (255 * 0.3081), "shift": -0.1307 / 0.3081, "validation_fraction": 0.0},
        {
            "epochs": 100,
            "batch_size": 256,
            "optimiser": "adam",
            "learning_rate": 1e-3,
            "std_rate": 1.0,
            "schedule": "constant",
        },
    )
    plateau = "theirs divides the rate by 3 where the training loss stands still, and goes back to "
    plateau += "the best epoch"
    weights = f"{plateau}; first weights of the variance (1 - ratio) 2 / fan-in; ours: PyTorch's"
    dropped = f"{plateau}; drops out units"
    plain = {"optimiser": "sgd", "learning_rate": 0.05}
    hat = {"c": 0.75, "s_max": 400.0}
    yield Check(split, "ucl", 99.7, None, 5, mark="F", differs=weights)
    yield Check(split, "hat", 99.8, None, 5, "", hat, plain, "F", dropped)


# timrudner/S-FSVI: README.md, the command lines of its runs.

S_FSVI = "timrudner/S-FSVI, README and runs"


def _s_fsvi_checks() -> Iterator[Check]:
    for name, benchmark, epochs, accuracy, deviation in (
        ("s-fsvi-mnist", "split-mnist", 20, 99.62, 0.01),
        ("s-fsvi-fashion", "split-fashion-mnist", 60, 99.17, 0.06),
    ):
        protocol = Protocol(
            name,
            S_FSVI,
            benchmark,
            (256, 256),
            {"validation_fraction": 0.0},
            {
                "epochs": epochs,
                "batch_size": 128,
                "optimiser": "adam",
                "learning_rate": 5e-4,
                "std_rate": 1.0,
                "schedule": "constant",
            },
        )
        options = {"stored_points": 0, "context_size": 40, "function_variance": 100.0}
        yield Check(protocol, "s-fsvi", accuracy, deviation, 10, options=options)


# team-approx-bayes/fromp: README.md, main_splitmnist.py, main_permutedmnist.py. One run each.

FROMP_REPOSITORY = "team-approx-bayes/fromp, README and scripts"


def _fromp_checks() -> Iterator[Check]:
    def protocol(
        name: str, hidden: tuple[int, int], stream: dict[str, Any], **training: Any
    ) -> Protocol:
        same = {"batch_size": 128, "optimiser": "adam", "schedule": "constant"}
        stream = stream | {"validation_fraction": 0.0}
        return Protocol(
            f"fromp-{name}", FROMP_REPOSITORY, f"{name}-mnist", hidden, stream, same | training
        )

    # Theirs divides the likelihood by tau, ours multiplies the rest: norms are tau times theirs.
    split = protocol("split", (256, 256), {}, epochs=15, learning_rate=1e-4, clip_norm=1.0)
    permuted = protocol(
        "permuted", (100, 100), {"tasks": 10}, epochs=10, learning_rate=1e-3, clip_norm=5e-3
    )
    whole: dict[str, Any] = {"fisher_examples": 60_000}
    few = whole | {"tau": 10.0, "points": 40, "prior_precision": 1e-3}
    many = whole | {"tau": 0.5, "points": 200, "prior_precision": 1e-5}
    yield Check(split, "fromp", 99.3, options=few)
    yield Check(permuted, "fromp", 94.8, options=many)


# The runs in BAdam's repository, averaged.

BADAM = "runs in the repository of BAdam, averaged"


def _badam_checks() -> Iterator[Check]:
    protocol = Protocol(
        "badam-permuted",
        BADAM,
        "permuted-mnist",
        (100, 100),
        {"tasks": 10, "validation_fraction": 0.0},
        {
            "epochs": 30,
            "batch_size": 256,
            "optimiser": "sgd",
            "learning_rate": 0.01,
            "schedule": "constant",
        },
    )
    mas = PUBLISHED | {"lam": 0.1, "importance_examples": 60_000}
    yield Check(protocol, "mas", 84.48, 0.91, 9, options=mas, differs=MAS_DIFFERS)


CHECKS: dict[str, Check] = {
    one.name: one
    for one in (
        *_gt_ripl_checks(),
        *_van_de_ven_checks(),
        *_mammoth_checks(),
        *_agem_checks(),
        *_ucl_checks(),
        *_s_fsvi_checks(),
        *_fromp_checks(),
        *_badam_checks(),
    )
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
