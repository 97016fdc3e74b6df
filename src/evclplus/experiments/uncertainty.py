"""How sure a learner's answers are, and how rightly, after the last task of a run."""

from statistics import fmean

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from evclplus.core import uncertainty as measures
from evclplus.core.examples import Examples
from evclplus.core.metrics import entropy
from evclplus.learner import Learner
from evclplus.recognition import surest
from evclplus.seeding import generator
from evclplus.streams.task import Stream

MOST_OWN = 1000
"""Inputs of a task that its own head is asked about."""

MOST_FOREIGN, MOST_ASKED = 250, 6_250
"""Inputs of a task that every head is asked about, and inputs in all: tasks times tasks times
inputs grows fast. At least 20 of a task are asked about."""

COVERAGE = 0.9
ANSWERED = 0.8
POINTS = 20


class Figures(BaseModel):
    """Means over tasks. What needs a head per task, or validation data that nothing else was
    measured on, is None where there is none."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    inputs: int = Field(description="of all tasks together, for what concerns a task's own head")
    selective_accuracy: float = Field(description="on the surest 80 % of the inputs")
    area_under_risk: float = Field(description="the mean risk over all coverages, AURC")
    risk: list[float] = Field(description="errors among the surest 5 %, 10 %, ... 100 %")
    bin_counts: list[int] = Field(description="of a calibration plot")
    bin_confidence: list[float]
    bin_accuracy: list[float]
    noise_auroc: float
    noise_fpr95: float
    foreign_auroc: float | None = Field(description="against the other tasks' inputs")
    foreign_fpr95: float | None
    heads_right: float | None = Field(description="how often the surest head is the right one")
    accuracy_untold: float | None = Field(description="where the surest head answers")
    conformal_coverage: float | None = Field(description="of sets that promise 90 %")
    conformal_size: float | None = Field(description="their mean number of classes")


def figures(learner: Learner, stream: Stream, side: str) -> Figures:
    """Of a learner that has learned the whole stream, on one side of the data. What marks an input
    as foreign is the entropy of its prediction; all methods have that."""
    count = len(stream)
    few = max(20, min(MOST_FOREIGN, MOST_ASKED // count**2))
    parts = [_some(getattr(task, side), learner.seed, task.index) for task in stream]
    own = [learner.predict_proba(one.inputs(), task) for task, one in enumerate(parts)]
    confidence = torch.cat([one.max(1).values for one in own])
    right = [one.argmax(1) == part.labels for one, part in zip(own, parts, strict=True)]
    correct = torch.cat(right)
    risk = measures.selective_risk(confidence, correct)
    bins = measures.reliability(confidence, correct)
    scores = [entropy(one) for one in own]
    noise = [
        entropy(learner.predict_proba(shuffled(part.inputs()[:few], learner.seed), task))
        for task, part in enumerate(parts)
    ]
    return Figures(
        inputs=len(correct),
        selective_accuracy=1 - measures.risk_at(risk, ANSWERED),
        area_under_risk=risk.mean().item(),
        risk=[measures.risk_at(risk, (point + 1) / POINTS) for point in range(POINTS)],
        bin_counts=bins.counts.tolist(),
        bin_confidence=bins.confidence.tolist(),
        bin_accuracy=bins.accuracy.tolist(),
        noise_auroc=fmean(map(measures.auroc, scores, noise)),
        noise_fpr95=fmean(map(measures.false_accepts, scores, noise)),
        **_untold(learner, parts, few),
        **_conformal(learner, stream, side, own, parts),
    )


def shuffled(x: Tensor, seed: int) -> Tensor:
    """Noise that has nothing but the structure lost: every value is that of some other input at the
    same place."""
    flat = x.flatten(1)
    order = torch.rand(flat.shape, generator=generator(seed, "noise")).argsort(0)
    return flat.gather(0, order).view(x.shape)


def _some(examples: Examples, seed: int, task: int, most: int = MOST_OWN) -> Examples:
    if len(examples) <= most:
        return examples
    order = torch.randperm(len(examples), generator=generator(seed, "uncertainty", task))
    return examples.take(order[:most])


def _untold(learner: Learner, parts: list[Examples], few: int) -> dict[str, float | None]:
    """Every head asked about every task's inputs."""
    heads = [one.head for one in parts]
    if len(set(heads)) < len(heads) or len(heads) == 1:
        names = ("foreign_auroc", "foreign_fpr95", "heads_right", "accuracy_untold")
        return dict.fromkeys(names)
    scores, chosen, accurate = [], [], []
    for task, part in enumerate(parts):
        found = [learner.predict_proba(part.inputs()[:few], head) for head in range(len(parts))]
        entropies = torch.stack([entropy(one) for one in found], 1)
        best = surest(entropies, [one.shape[1] for one in found])
        answers = torch.stack(
            [torch.tensor(learner.classes(at))[one.argmax(1)] for at, one in enumerate(found)], 1
        )
        truth = torch.tensor(learner.classes(task))[part.labels[:few]]
        scores.append(entropies)
        chosen.append((best == task).double().mean().item())
        accurate.append((answers.gather(1, best[:, None])[:, 0] == truth).double().mean().item())
    pairs = [
        (
            scores[head][:, head],
            torch.cat([s[:, head] for at, s in enumerate(scores) if at != head]),
        )
        for head in range(len(parts))
    ]
    return {
        "foreign_auroc": fmean(measures.auroc(*pair) for pair in pairs),
        "foreign_fpr95": fmean(measures.false_accepts(*pair) for pair in pairs),
        "heads_right": fmean(chosen),
        "accuracy_untold": fmean(accurate),
    }


def _conformal(
    learner: Learner, stream: Stream, side: str, own: list[Tensor], parts: list[Examples]
) -> dict[str, float | None]:
    """Sets calibrated on each task's validation data, with the learner as it is in the end."""
    if side == "validation" or not all(len(task.validation) for task in stream):
        return {"conformal_coverage": None, "conformal_size": None}
    shares, sizes = [], []
    for task, probabilities, part in zip(stream, own, parts, strict=True):
        known = _some(task.validation, learner.seed, task.index)
        calibration = learner.predict_proba(known.inputs(), task)
        threshold = measures.conformal_threshold(calibration, known.labels, COVERAGE)
        sets = measures.conformal_sets(probabilities, threshold)
        shares.append(measures.covered(sets, part.labels))
        sizes.append(sets.sum(1).double().mean().item())
    return {"conformal_coverage": fmean(shares), "conformal_size": fmean(sizes)}
