"""What was tried on the development set, by name.

`chosen` is what the library does as it comes. Every other idea is that with something changed, or
a method of the grid that it is compared with: fine-tuning, EWC with five strengths, and holding
answers alone, all trained in the same way.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Idea:
    """A method with options, and settings of training, where they are not the defaults."""

    about: str
    method: str = "evcl+"
    options: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)


def _changed(about: str, **options: Any) -> Idea:
    return Idea(about, options=options)


PAPER: dict[str, Any] = {
    "lam": 100.0,
    "calibration": "none",
    "fisher_tasks": "last",
    "lam_function": 0.0,
    "shared_head": "free",
    "beta": 1.0,
    "kl_scale": "examples",
    "start": "mle",
    "prior_variance": 1.0,
}

STRENGTHS = (1.0, 10.0, 100.0, 1e3, 1e4)

GRID: dict[str, Idea] = {
    "finetune": Idea("fine-tuning", "finetune"),
    "hold": Idea(
        "answers held, point weights",
        "ewc",
        {"lam": 0.0, "lam_function": 0.03, "shared_head": "free"},
    ),
    **{
        f"ewc-{lam:g}": Idea(f"EWC, lambda {lam:g}", "ewc", {"lam": lam, "calibration": "none"})
        for lam in STRENGTHS
    },
}
"""Methods without stored data; the best of them on a stream is what an idea is compared with."""

IDEAS: dict[str, Idea] = {
    "chosen": Idea("EVCL+ as it comes"),
    **GRID,
    "slow-sigma": Idea("log sigma steps like the means", training={"std_rate": 1.0}),
    "elbo": _changed("KL over the examples, beta 0.1", kl_scale="examples", beta=0.1),
    "no-function-term": _changed("no function-space term", lam_function=0.0),
    "free-head": _changed("a shared head is free", shared_head="free"),
    "all-answers": _changed(
        "all answers of a shared head held, 0.003", shared_head="all", lam_function=0.003
    ),
    "no-elastic": _changed("no elastic penalty", lam=0.0),
    "lambda-1": _changed("calibrated strength, lambda 1", lam=1.0),
    "lambda-0.1": _changed("calibrated strength, lambda 0.1", lam=0.1),
    "uncalibrated": _changed("no calibration, lambda 1,000", calibration="none", lam=1e3),
    "always-on": _changed("expected penalty always on, k 1", variance_penalty="always", k=1.0),
    "mle-start": _changed("maximum-likelihood start", start="mle"),
    "wide-prior": _changed("prior variance 1", prior_variance=1.0),
    "beta-1": _changed("beta 1", beta=1.0),
    "beta-0.1": _changed("beta 0.1", beta=0.1),
    "small-rate": Idea("learning rate 1e-3", training={"learning_rate": 1e-3}),
    "paper": Idea(
        "the paper's settings, 100 epochs",
        options=PAPER,
        training={
            "epochs": 100,
            "learning_rate": 1e-3,
            "std_rate": 1.0,
            "schedule": "constant",
        },
    ),
    "ewc": Idea("EWC as it comes", "ewc"),
    "ewc-function": Idea("EWC with the function-space term", "ewc", {"lam_function": 0.03}),
    "evcl-function": Idea("EVCL with the function-space term", "evcl", {"lam_function": 0.03}),
    "vcl": Idea("VCL as it comes", "vcl"),
}
