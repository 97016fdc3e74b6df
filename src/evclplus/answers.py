"""What answers for a learner: for every head a network and weights, and the draws they answer with.

Nothing here is fed back into learning.
"""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from evclplus.core.compiled import draws_nothing
from evclplus.core.examples import rows_at_once
from evclplus.core.gaussian import MeanField
from evclplus.core.metrics import Scores, entropy
from evclplus.core.network import BayesianNetwork, Lock
from evclplus.core.noise import new_seeds
from evclplus.methods.base import Method
from evclplus.seeding import generator, own_random_state
from evclplus.train import Trainer

Predictor = tuple[BayesianNetwork, MeanField]


@dataclass(frozen=True)
class Evaluation:
    """Scores for several tasks, in the order they were asked for."""

    tasks: tuple[str, ...]
    scores: tuple[Scores, ...]
    recognised: tuple[float, ...] = ()
    """Where tasks were not told: the share of each task's inputs for which its head was chosen."""

    @property
    def average_accuracy(self) -> float:
        return fmean(score.accuracy for score in self.scores)

    @property
    def average_recognised(self) -> float:
        return fmean(self.recognised)

    def __str__(self) -> str:
        pairs = zip(self.tasks, self.scores, strict=True)
        parts = [f"{name} {score.accuracy:.1%}" for name, score in pairs]
        found = f"{', '.join(parts)}; average {self.average_accuracy:.1%}"
        if self.recognised:
            found += f"; the right head chosen for {self.average_recognised:.1%}"
        return found


@dataclass(frozen=True)
class Uncertainty:
    """The predictive entropy of each input, in nats, and its two parts: total = data + weights.

    data      what would stay open if the weights were known: E_q[H(p(y|x, theta))]
    weights   what the weights leave open, the mutual information of label and weights
    """

    total: Tensor
    data: Tensor
    weights: Tensor


class Answers:
    """What predicts for each head after the last task; some methods train for it, so it is kept.

    `trainer` trains in those, and has the seed and the number of tasks that all draws follow from.
    """

    def __init__(
        self, method: Method, network: BayesianNetwork, q: MeanField, memory: Any, trainer: Trainer
    ) -> None:
        self.method, self.network, self.q, self.memory = method, network, q, memory
        self.trainer = trainer
        self._predictors: dict[int, Predictor] = {}
        self._one_at_a_time = Lock()

    def predictor(self, head: int) -> Predictor:
        with self._one_at_a_time:
            if head not in self._predictors:
                trainer = replace(self.trainer, label=f"head {head}")
                with torch.inference_mode(False), torch.enable_grad():
                    self._predictors[head] = self.method.predictor(
                        self.network, self.q, self.memory, head, trainer
                    )
            return self._predictors[head]

    @torch.no_grad()
    def outputs(
        self, x: Tensor, head: int, samples: int, by: Predictor | None = None
    ) -> list[Tensor]:
        """Outputs under each sample, (samples, inputs, outputs), for some of the inputs at a time;
        by what answers for the head, or by another network."""
        network, q = by or self.predictor(head)
        seed, position = self.trainer.seed, self.trainer.position
        seeds = new_seeds(generator(seed, position, "predict", head), samples)
        # A module that draws numbers in a prediction too draws the same ones every time.
        own = own_random_state(seed, position, "predict", head, "module", device=network.device)
        found = []
        with nullcontext() if draws_nothing(network) else own:
            for rows in x.split(rows_at_once(x)):
                part = rows.to(network.device)
                if self.method.averages_samples:
                    logits = torch.stack(list(network.samples(q, part, head, seeds)))
                else:
                    logits = network(q, part, head)[None]
                found.append(logits.to(x.device))
        return found

    def probabilities(
        self, x: Tensor, head: int, outputs: int, samples: int, by: Predictor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The mean over samples of the class probabilities and of their entropy."""
        probabilities, entropies = [], []
        for logits in self.outputs(x, head, samples, by):
            outcomes = logits[:, :, :outputs].softmax(2)
            probabilities.append(outcomes.mean(0))
            entropies.append(entropy(outcomes).mean(0))
        return torch.cat(probabilities), torch.cat(entropies)
