"""A method of your own: online EWC (Schwarz et al., 2018), with the squared gradients that training
computes anyway in the place of a Fisher.

    minimise  -log p(y|x, theta) + (lambda / 2) sum_i I_i (theta_i - theta_i_prev)^2

    after a task   I_i <- gamma I_i + the mean over steps of g_i^2,   g the likelihood's gradient
"""

from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field
from torch import Tensor

import evclplus as ec
from evclplus.core.engine import Gradient, Running, Step, Terms
from evclplus.core.tree import per_weight
from evclplus.methods.base import Lesson, Start, Trained
from evclplus.methods.space import TRAINING, Log, Space
from evclplus.testing import check_method


@dataclass(frozen=True)
class Anchor:
    """What is kept: the last weights, and how much each of them mattered."""

    weights: Tensor = per_weight()
    importance: Tensor = per_weight()


class OnlineEWC(ec.Method):
    """Point weights held to their last values in proportion to a decayed sum of importances."""

    name: ClassVar[str] = "online-ewc"
    memory_type: ClassVar[type] = Anchor
    space: ClassVar[Space] = TRAINING | {"lam": Log(1.0, 1e6), "gamma": Log(0.1, 1.0)}

    lam: float = Field(1e3, ge=0, description="lambda, the strength of the penalty")
    gamma: float = Field(0.95, ge=0, le=1, description="what is left of the old importances")

    def first_memory(self, q: ec.MeanField) -> Anchor:
        return Anchor(q.mean, q.mean.new_zeros(q.mean.shape))

    def regulariser(self, q: ec.MeanField, memory: Anchor, examples: Tensor) -> Terms:
        moved = (q.mean - memory.weights).square()
        return {"penalty": 0.5 * self.lam * (memory.importance * moved).sum()}

    def trace(self, q: ec.MeanField) -> Running:
        return {"squares": q.mean.new_zeros(q.mean.shape), "steps": q.mean.new_zeros(())}

    def follow(self, running: Running, gradient: Gradient, step: Step) -> Running:
        squares = running["squares"] + gradient.mean.square()
        return {"squares": squares, "steps": running["steps"] + 1}

    def end(self, lesson: Lesson, start: Start, trained: Trained) -> Anchor:
        new = trained.running["squares"] / trained.running["steps"]
        return Anchor(trained.q.mean, self.gamma * start.memory.importance + new)


if __name__ == "__main__":
    check_method(OnlineEWC())
    stream = ec.benchmark("split-digits")
    for method in (ec.FineTune(), OnlineEWC()):
        network = ec.networks.mlp(64, [50, 50])
        learner = ec.Learner(network, method, epochs=30, batch_size=32, learning_rate=1e-2)
        for task in stream:
            learner.learn(task)
        print(method.name, learner.evaluate(stream))
