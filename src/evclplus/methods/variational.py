"""What VCL, EVCL and EVCL+ share: Gaussian weights, where they start, and the ELBO's terms."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from evclplus.core.batches import Source
from evclplus.core.calibration import prior_variances
from evclplus.core.gaussian import MeanField, kl
from evclplus.core.network import BayesianNetwork
from evclplus.methods.base import Lesson, Method, Start, Trained
from evclplus.methods.finetune import FineTune
from evclplus.methods.space import TRAINING, Log, Space

LEAST_PRIOR_VARIANCE = 0.01
"""A first prior is not narrower than this, however many inputs a layer has."""


@dataclass(frozen=True)
class Posterior:
    """The Gaussian that the next posterior is held to: the last one, and the first prior for
    weights that no task has used yet."""

    prior: MeanField


class Variational(Method):
    """A method that learns a Gaussian over every weight. Its memory has a `prior`."""

    space: ClassVar[Space] = TRAINING | {
        "beta": Log(1e-4, 1.0),
        "initial_variance": Log(1e-7, 1e-2),
        "prior_variance": Log(1e-3, 1.0),
    }
    memory_type: ClassVar[type] = Posterior

    beta: float = Field(0.3, ge=0, description="weight of the KL; below 1 tempers the likelihood")
    kl_scale: Literal["weights", "examples", "none"] = Field(
        "weights",
        description="divide the KL by the task's number of examples (the ELBO), by that of weights "
        "where there are more of them, or not at all (as the paper's algorithm box prints it)",
    )
    initial_variance: float = Field(
        1e-3, gt=0, le=1e6, description="variance of every weight at first"
    )
    start: Literal["mle", "random"] = Field(
        "random", description="first means: maximum likelihood on task 1, or the network's own"
    )
    start_epochs: int | None = Field(
        None, ge=1, description="epochs of the maximum-likelihood start; none: as for a task"
    )
    prior_mean: Literal["zero", "mle"] = Field(
        "zero", description="first prior: N(0, prior_variance) or N(start, prior_variance)"
    )
    prior_variance: float | None = Field(
        None,
        gt=0,
        le=1e6,
        description="variance of the first prior; none: 1 / fan-in, at least 0.01",
    )
    prediction: Literal["samples", "mean"] = Field(
        "samples", description="average over posterior samples, or use the mean network"
    )

    @property
    def is_point(self) -> bool:
        return False

    @property
    def averages_samples(self) -> bool:
        return self.prediction == "samples"

    def initial(self, network: BayesianNetwork) -> MeanField:
        return network.initial(self.initial_variance)

    def first_memory(self, q: MeanField) -> Any:
        return self.memory_type(prior=q)

    def begin(self, lesson: Lesson) -> Start:
        """Before the first task, maximum likelihood sets the means. Weights that come into use
        get the first prior; all others keep their last posterior as prior."""
        q, prior = lesson.q, lesson.memory.prior
        sources = (Source((lesson.task,)),)
        if lesson.position == 0 and self.start == "mle":
            # The mean network by itself: no regulariser, and the variances stay.
            q = lesson.fit(
                FineTune(),
                lesson.network,
                q,
                lesson.memory,
                sources,
                purpose="start",
                epochs=self.start_epochs,
                at_mean=True,
            ).q
        new = lesson.new()
        variance: float | Tensor | None = self.prior_variance
        if variance is None:
            variance = prior_variances(prior.layout, LEAST_PRIOR_VARIANCE).to(prior.variance)
        prior = prior.replaced(new, 0.0, variance)
        if self.prior_mean == "mle":
            prior = replace(prior, mean=torch.where(new, q.mean, prior.mean))
        if self.kl_scale == "weights":
            examples = torch.tensor(float(len(lesson.task)))
            lesson.calibrated["kl_weight"] = float(self.kl_weight(examples, len(q.variance)))
        return Start(q, replace(lesson.memory, prior=prior), lesson.task, sources)

    def end(self, lesson: Lesson, start: Start, trained: Trained) -> Any:
        return replace(start.memory, prior=trained.q)

    def scaled_kl(self, q: MeanField, prior: MeanField, examples: Tensor) -> Tensor:
        """(beta / N) KL(q || prior): the negative ELBO over the number of examples."""
        return self.kl_weight(examples, q.variance.shape[0]) * kl(q, prior)

    def kl_weight(self, examples: Tensor, weights: int) -> Tensor:
        """beta / N for the ELBO. With P weights the KL is a sum of P terms and the likelihood one
        of N: with beta / max(N, P), a few examples are not outweighed by many weights."""
        terms = {
            "weights": examples.clamp_min(weights),
            "examples": examples,
            "none": torch.ones_like(examples),
        }
        return self.beta / terms[self.kl_scale]
