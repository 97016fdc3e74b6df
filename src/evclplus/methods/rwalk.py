"""RWalk: Riemannian walk (Chaudhry, Dokania, Ajanthan and Torr, ECCV 2018), with point weights.

    minimise  -log p(y|x, theta) + lambda sum_i O_i (theta_i - theta_i_prev)^2

    O = norm(F) + norm(s),   norm(v) = (v - min v) / (max v - min v) over all weights, in [0, 1]

    during a task   F_i <- a F_i + (1 - a) g_i^2                     g the likelihood's gradient
                    every n steps  s_i <- s_i + max(0, l_i / (F_i d_i^2 / 2 + xi))
    after it        s_i <- (s_i of before + s_i of the task) / 2

l_i = - sum g_i (step)_i is the fall of the loss that weight i brought about in the last n steps, as
in SI, d_i how far it went in them, and F_i d_i^2 / 2 how far that is in terms of the answers (the
KL of the answers before and after): s says how much each weight learned for what it changed. Since
both parts are normalised, lambda = 1 means the same for any network.

It keeps the last weights, F and s. F is a running average over the stream; an average over the last
1 / (1 - a) steps is that of the last task when a task ends. Departures: within a task F starts
from nothing and is divided by 1 - a^steps, as Adam does it, since the first scores would
otherwise be divided by too little; steps are those really made, penalty included, the gradient
is the likelihood's alone.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from evclplus.core.engine import Gradient, Running, Step, Terms
from evclplus.core.gaussian import MeanField
from evclplus.core.tree import per_weight
from evclplus.methods.base import Lesson, Method, Start, Trained
from evclplus.methods.space import TRAINING, Log, Space


@dataclass(frozen=True)
class Walked:
    """The last weights, the Fisher and the scores; while a task is learned, what they add up to."""

    prior: MeanField
    fisher: Tensor = per_weight()
    score: Tensor = per_weight()
    omega: Tensor | None = None


class RiemannianWalk(Method):
    """Point weights held in proportion to their Fisher and to what each learned for its way."""

    name: ClassVar[str] = "rwalk"
    colour: ClassVar[str] = "#5F9EA0"
    marker: ClassVar[str] = "s"
    memory_type: ClassVar[type] = Walked
    space: ClassVar[Space] = TRAINING | {"lam": Log(1e-2, 1e4)}

    lam: float = Field(1.0, ge=0, description="lambda, the strength of the penalty")
    fisher_average: float = Field(
        0.9, ge=0, lt=1, description="a: what is left of the running Fisher after a step"
    )
    score_steps: int = Field(10, ge=1, description="n: steps after which scores are added up")
    xi: float = Field(1e-3, gt=0, description="bounds the score of a weight that stood still")

    def first_memory(self, q: MeanField) -> Walked:
        return Walked(q, torch.zeros_like(q.mean), torch.zeros_like(q.mean))

    def regulariser(self, q: MeanField, memory: Walked, examples: Tensor) -> Terms:
        assert memory.omega is not None
        moved = (q.mean - memory.prior.mean).square()
        return {"penalty": self.lam * (memory.omega * moved).sum()}

    def trace(self, q: MeanField) -> Running:
        names = ("fisher", "fall", "way", "score")
        return {name: torch.zeros_like(q.mean) for name in names} | {"steps": q.mean.new_zeros(())}

    def follow(self, running: Running, gradient: Gradient, step: Step) -> Running:
        a, steps = self.fisher_average, running["steps"] + 1
        fisher = a * running["fisher"] + (1 - a) * gradient.mean.square()
        fall = running["fall"] - gradient.mean * step.mean
        way = running["way"] + step.mean
        new = score(fall, fisher / (1 - a**steps), way, self.xi)
        is_last = steps.remainder(self.score_steps) == 0
        return {
            "fisher": fisher,
            "fall": torch.where(is_last, 0.0, fall),
            "way": torch.where(is_last, 0.0, way),
            "score": torch.where(is_last, running["score"] + new, running["score"]),
            "steps": steps,
        }

    def begin(self, lesson: Lesson) -> Start:
        start, memory = super().begin(lesson), lesson.memory
        omega = normalised(memory.fisher) + normalised(memory.score)
        return Start(
            start.q,
            Walked(memory.prior, memory.fisher, memory.score, omega),
            start.task,
            start.sources,
        )

    def end(self, lesson: Lesson, start: Start, trained: Trained) -> Walked:
        found, memory = trained.running, start.memory
        fisher = self.fisher_average ** found["steps"] * memory.fisher + found["fisher"]
        # The first task has no scores of before to be averaged with.
        mean = (memory.score + found["score"]) / 2 if lesson.position else found["score"]
        return Walked(trained.q, fisher, mean)


def score(fall: Tensor, fisher: Tensor, way: Tensor, xi: float | Tensor) -> Tensor:
    """max(0, l / (F d^2 / 2 + xi)): the fall of the loss over the change of the answers."""
    return (fall / (0.5 * fisher * way.square() + xi)).clamp_min(0)


def normalised(vector: Tensor) -> Tensor:
    """From 0 for the least to 1 for the largest; zero where all are the same."""
    if not vector.numel():
        return vector
    least, largest = vector.aminmax()
    return (vector - least) / (largest - least).clamp_min(torch.finfo(vector.dtype).tiny)
