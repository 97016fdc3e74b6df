"""TD-VCL: temporal-difference variational continual learning (Melo, Abate and Gal, 2024).

With the data of earlier tasks the posterior after task t can be written from any of the last n
posteriors, and not from the last one alone, whose errors would go on from task to task:

    q_t ~ q_{t-k} p(D_t | theta) ... p(D_{t-k+1} | theta),   k = 1 .. n

TD(lambda) takes the mean of these n objectives, with weights w_k that fall by lambda:

    minimise  sum_j c_j E_q[-log p(D_{t-j} | theta)] + beta sum_k w_k KL(q || q_{t-k}),   over N

    w_k = lambda^(k-1) (1 - lambda) / (1 - lambda^n),   k = 1 .. n
    c_j = sum of w_k over k > j,                        j = 0 .. n - 1; c_0 = 1

lambda = 1 is the paper's n-step form, n = 1 is VCL. Of an earlier task a few examples are stored;
the mean over them stands for the mean over the task. The KLs of one q are one KL, but for a
constant: to the Gaussian that is proportional to the product of all q_{t-k}^w_k.

It keeps the last n posteriors and `stored` examples of each of the last n - 1 tasks. The equations
are the paper's; in its public code the older posterior is a parameter that is trained along.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from evclplus.core.batches import Source
from evclplus.core.coresets import random_subset
from evclplus.core.engine import Terms
from evclplus.core.examples import Examples
from evclplus.core.gaussian import MeanField
from evclplus.methods.base import Lesson, Start, Trained
from evclplus.methods.reservoir import beside
from evclplus.methods.space import OneOf, Space
from evclplus.methods.variational import Variational


@dataclass(frozen=True)
class Past:
    """The last posteriors, examples of the last tasks and how many each of them had; the latest
    first. While a task is learned, `prior` is the product of the posteriors."""

    prior: MeanField
    older: tuple[MeanField, ...] = ()
    stored: tuple[Examples, ...] = ()
    sizes: tuple[int, ...] = ()


class TDVCL(Variational):
    """VCL from several of the last posteriors at once, with a few stored examples in between."""

    name: ClassVar[str] = "td-vcl"
    colour: ClassVar[str] = "#0B6E4F"
    marker: ClassVar[str] = "d"
    memory_type: ClassVar[type] = Past
    space: ClassVar[Space] = Variational.space | {
        "steps": OneOf((2, 3, 5, 8)),
        "lam": OneOf((0.1, 0.5, 0.8, 1.0)),
    }

    steps: int = Field(5, ge=1, description="n, how many of the last posteriors are used; 1: VCL")
    lam: float = Field(
        0.5, gt=0, le=1, description="lambda, what a posterior counts beside the next; 1: n-step"
    )
    stored: int = Field(200, ge=1, description="examples stored of each of the last n - 1 tasks")

    def regulariser(self, q: MeanField, memory: Past, examples: Tensor) -> Terms:
        return {"kl": self.scaled_kl(q, memory.prior, examples)}

    def begin(self, lesson: Lesson) -> Start:
        start = super().begin(lesson)
        past, last = lesson.memory, start.memory.prior
        new = lesson.new()  # no posterior knows these: all have the first prior
        older = tuple(_with_first_prior(one, last, new) for one in past.older)
        priors = (last, *older)
        prior = product(priors, kl_weights(len(priors), self.lam))
        memory = replace(past, prior=prior, older=priors)
        return Start(start.q, memory, start.task, self._sources(lesson))

    def _sources(self, lesson: Lesson) -> tuple[Source, ...]:
        """The task, and what is stored of earlier ones: c_j N_{t-j} / N times the mean over it."""
        past, task = lesson.memory, lesson.task
        shares = likelihood_weights(len(past.stored) + 1, self.lam)[1:]
        kept = beside(past.stored, task)
        return (
            Source((task,), weight=1.0),
            *(
                Source((one,), weight=share * size / len(task))
                for one, share, size in zip(kept, shares, past.sizes, strict=True)
            ),
        )

    def end(self, lesson: Lesson, start: Start, trained: Trained) -> Past:
        past, task, n = start.memory, lesson.task, self.steps
        generator = lesson.generator("stored")
        chosen = task.take(random_subset(task, self.stored, generator)).materialised()
        return Past(
            trained.q,
            past.older[: n - 1],
            (chosen, *past.stored)[: n - 1],
            (len(task), *past.sizes)[: n - 1],
        )


def kl_weights(count: int, lam: float) -> list[float]:
    """w_k = lambda^(k-1) (1 - lambda) / (1 - lambda^n), for the latest posterior first."""
    each = [lam**k for k in range(count)]
    return [one / sum(each) for one in each]


def likelihood_weights(count: int, lam: float) -> list[float]:
    """c_j, the sum of w_k over k > j: what the data of j tasks ago count."""
    each = kl_weights(count, lam)
    return [sum(each[j:]) for j in range(count)]


def product(gaussians: tuple[MeanField, ...], weights: list[float]) -> MeanField:
    """The Gaussian proportional to the product of these, each to the power of its weight. Where the
    weights add up to 1, KL(q || it) is the weighted sum of the KLs, but for a constant."""
    first, *others = gaussians
    if not others:
        return first
    precision = torch.stack([w / one.variance for w, one in zip(weights, gaussians, strict=True)])
    means = torch.stack([one.gaussian_mean for one in gaussians])
    mean = first.mean.clone()
    first.gaussian(mean).copy_((precision * means).sum(0) / precision.sum(0))
    return MeanField(mean, 1 / precision.sum(0), first.layout)


def _with_first_prior(one: MeanField, prior: MeanField, new: Tensor) -> MeanField:
    return MeanField(
        torch.where(new, prior.mean, one.mean),
        torch.where(one.gaussian(new), prior.variance, one.variance),
        one.layout,
    )
