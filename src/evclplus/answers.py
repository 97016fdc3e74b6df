"""What answers for a learner: for every head a network and weights, and the draws they answer with.

Nothing here is fed back into learning.
"""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from evclplus.core.compiled import draws_nothing
from evclplus.core.examples import rows_at_once
from evclplus.core.gaussian import MeanField
from evclplus.core.likelihoods import Classification
from evclplus.core.metrics import RegressionScores, Scores, entropy
from evclplus.core.network import BayesianNetwork, Lock
from evclplus.core.noise import new_seeds
from evclplus.core.typicality import Typical
from evclplus.errors import StateError
from evclplus.learned import Tasks, classes_of, classes_of_head, outputs_seen
from evclplus.methods.base import Method
from evclplus.recognition import most_typical, surest
from evclplus.seeding import generator, own_random_state
from evclplus.train import Trainer

MOST_OUTPUTS = 2**24
"""Outputs of all samples together that are held at once."""

MOST_DRAWN_KEPT = 2**24
"""Weights of all samples together, kept while a prediction goes through its inputs."""

Predictor = tuple[BayesianNetwork, MeanField]
Probabilities = tuple[Tensor, Tensor]
"""Of each class, averaged over samples; and the mean over samples of their entropy."""


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
class RegressionEvaluation:
    """Errors for several tasks, in the order they were asked for."""

    tasks: tuple[str, ...]
    scores: tuple[RegressionScores, ...]

    @property
    def average_error(self) -> float:
        return fmean(score.root_mean_squared_error for score in self.scores)

    def __str__(self) -> str:
        pairs = zip(self.tasks, self.scores, strict=True)
        parts = [f"{name} {score.root_mean_squared_error:.3g}" for name, score in pairs]
        return f"RMSE {', '.join(parts)}; average {self.average_error:.3g}"


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
        self,
        method: Method,
        network: BayesianNetwork,
        q: MeanField,
        memory: Any,
        trainer: Trainer,
        learned: Tasks,
        typical: tuple[Typical, ...],
    ) -> None:
        self.method, self.network, self.q, self.memory = method, network, q, memory
        self.trainer, self.learned, self.typical = trainer, learned, typical
        self._predictors: dict[int, Predictor] = {}
        self._one_at_a_time = Lock()

    @cached_property
    def seen(self) -> dict[int, int]:
        """How many outputs of each head were learned; a learner that only learns never asks."""
        return outputs_seen(self.learned)

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
        wide = network.outputs_of(head) * (samples if self.method.averages_samples else 1)
        parts = x.split(max(1, min(rows_at_once(x), MOST_OUTPUTS // wide)))
        found = []
        # Drawn weights are the same for all parts, and to draw them takes a third of the time.
        again = len(parts) > 1 and samples * len(q.mean) <= MOST_DRAWN_KEPT
        kept: list[dict[int, Tensor] | None] = [{} if again else None for _ in range(samples)]
        with nullcontext() if draws_nothing(network) else own:
            for rows in parts:
                part = rows.to(network.device)
                if self.method.averages_samples:
                    logits = torch.stack(list(network.samples(q, part, head, seeds, kept)))
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

    # A head that is told.

    def told(self, x: Tensor, head: int, samples: int) -> Probabilities:
        """Class probabilities, and the mean entropy of those under each sample."""
        return self.probabilities(x, head, self.seen[head], samples)

    def means(self, x: Tensor, head: int | None, samples: int) -> Tensor:
        """Mean outputs of a head, or of the one that is chosen for each input."""
        if head is not None:
            parts = self.outputs(x, head, samples)
            return torch.cat([one.mean(0)[:, : self.seen[head]] for one in parts])
        widths = set(self.seen.values())
        if len(widths) > 1:
            raise StateError(f"the heads have {sorted(widths)} outputs; say which: predict(x, 0)")
        found = x.new_empty(len(x), *widths)
        for one, rows in self._rows_by_head(self.choose(x, samples)[0]):
            found[rows] = self.means(x[rows], one, samples)
        return found

    # A head that has to be chosen.

    def untold(self, x: Tensor, samples: int) -> tuple[Tensor, Tensor, Tensor]:
        """Probabilities over the classes of all heads, entropies as above, and the position of the
        task that was chosen for each input."""
        tasks, known = self.choose(x, samples)
        classes, dtype = len(classes_of(self.learned, None)), self.q.mean.dtype
        probabilities = torch.zeros(len(x), classes, dtype=dtype)
        entropies = torch.zeros(len(x), dtype=dtype)
        for head, rows in self._rows_by_head(tasks):
            if head in known:
                own, data = (part[rows] for part in known[head])
            else:
                own, data = self.told(x[rows], head, samples)
            probabilities[rows[:, None], self.columns(head)], entropies[rows] = own, data
        return probabilities, entropies, tasks

    def choose(self, x: Tensor, samples: int) -> tuple[Tensor, dict[int, Probabilities]]:
        """The position of a task for each input, and what the heads answered if they were asked."""
        if self.typical:
            return most_typical(self.network, self.typical, x), {}
        if not isinstance(self.trainer.likelihood, Classification):
            raise StateError(
                f"the network has a head for each of {len(self.seen)} tasks; say which: "
                "predict(x, task=0), or let the learner keep what their inputs look like: "
                "Learner(..., recognise='features')"
            )
        heads = sorted(self.seen)
        known = {head: self.told(x, head, samples) for head in heads}
        entropies = torch.stack([entropy(known[head][0]) for head in heads], 1)
        best = surest(entropies, [self.seen[head] for head in heads])
        of_heads = [one.head for one in self.learned]
        return torch.tensor([of_heads.index(head) for head in heads])[best], known

    def columns(self, head: int) -> Tensor:
        """Where the classes of a head are among those of all."""
        place = {label: column for column, label in enumerate(classes_of(self.learned, None))}
        return torch.tensor([place[label] for label in classes_of_head(self.learned, head)])

    def _rows_by_head(self, tasks: Tensor) -> list[tuple[int, Tensor]]:
        """The rows of inputs whose task, by position, has each of the heads."""
        heads = torch.tensor([one.head for one in self.learned])[tasks]
        return [(int(head), (heads == head).nonzero()[:, 0]) for head in heads.unique()]
