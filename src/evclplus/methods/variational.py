"""What VCL, EVCL and EVCL+ share: Gaussian weights, where they start, and the ELBO's terms."""

from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from evclplus.core.gaussian import MeanField, kl
from evclplus.core.network import BayesianNetwork
from evclplus.methods.base import Lesson, Memory, Method


class Variational(Method):
    """A method that learns a Gaussian over every weight."""

    beta: float = Field(1.0, ge=0, description="weight of the KL; below 1 tempers the likelihood")
    kl_scale: Literal["examples", "none"] = Field(
        "examples",
        description="divide the KL by the task's number of examples (the ELBO), or not (as the "
        "paper's algorithm box prints it)",
    )
    initial_variance: float = Field(1e-3, gt=0, description="variance of every weight at first")
    start: Literal["mle", "random"] = Field(
        "mle", description="first means: maximum likelihood on task 1, or the network's own"
    )
    start_epochs: int | None = Field(
        None, ge=1, description="epochs of the maximum-likelihood start; none: as for a task"
    )
    prior_mean: Literal["zero", "mle"] = Field(
        "zero", description="first prior: N(0, prior_variance) or N(start, prior_variance)"
    )
    prior_variance: float = Field(1.0, gt=0, description="variance of the first prior")
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

    def prepare(self, q: MeanField, memory: Memory, lesson: Lesson) -> tuple[MeanField, Memory]:
        """Before the first task, maximum likelihood sets the means. Weights that come into use
        get the first prior; all others keep their last posterior as prior."""
        if memory.tasks == 0 and self.start == "mle":
            # The mean network by itself: no regulariser, and the variances stay.
            q = lesson.fit(
                lesson.network,
                q,
                None,
                memory,
                lesson.data,
                purpose="start",
                epochs=self.start_epochs,
                at_mean=True,
            )
        new = lesson.new()
        prior = memory.prior.replaced(new, 0.0, self.prior_variance)
        if self.prior_mean == "mle":
            prior = replace(prior, mean=torch.where(new, q.mean, prior.mean))
        return q, replace(memory, prior=prior)

    def scaled_kl(self, q: MeanField, prior: MeanField, examples: Tensor) -> Tensor:
        """(beta / N) KL(q || prior): the negative ELBO over the number of examples."""
        scale = self.beta / examples if self.kl_scale == "examples" else self.beta
        return scale * kl(q, prior)
