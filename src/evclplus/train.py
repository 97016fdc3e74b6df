"""The one visible training loop."""

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from evclplus.config import Training
from evclplus.core.batches import Criterion, batches_per_epoch, minibatches
from evclplus.core.examples import Examples
from evclplus.core.gaussian import MeanField
from evclplus.core.network import BayesianNetwork
from evclplus.core.step import LikelihoodGradient, Vectors, step_rates, update
from evclplus.errors import TrainingError
from evclplus.methods.base import Memory, Regulariser
from evclplus.progress import Progress

logger = logging.getLogger("evclplus")

Update = Callable[..., dict[str, Tensor]]

WORK_THAT_EARNS_COMPILING = 1e9
"""Steps times weights above which compiling the update pays for itself. A count, not a
measurement: the same settings must always take the same path."""


def fit(
    network: BayesianNetwork,
    q: MeanField,
    regulariser: Regulariser | None,
    memory: Memory,
    data: Sequence[Examples],
    training: Training,
    generator: torch.Generator,
    label: str,
    progress: Progress,
    at_mean: bool = False,
    criterion: Criterion = F.cross_entropy,
) -> MeanField:
    """Minimise nll + regulariser over the data, starting from q, which is left as it is."""
    if len(data) == 1:  # joint training keeps to the shared pixels: it would copy every task
        data = [data[0].gathered()]
    vectors = Vectors(q)
    at_mean = at_mean or len(q.log_std) == 0  # point values have no spread to learn
    likelihood = LikelihoodGradient(network, vectors, at_mean)
    examples = torch.as_tensor(float(sum(map(len, data))), dtype=q.mean.dtype)
    if regulariser is not None and not regulariser(q, memory, examples):
        regulariser = None  # nothing to add, so nothing to differentiate
    steps = training.epochs * batches_per_epoch(data, training.batch_size)
    move = _chosen_update(training, steps * len(q.mean))
    step = 0
    progress.start(label, steps)
    for _ in range(training.epochs):
        for batch in minibatches(network, data, training.batch_size, generator, criterion):
            nll = likelihood(batch)
            rate = learning_rate(training, step / steps)
            step += 1
            rates = step_rates(rate, step, like=q.mean)
            regulariser_terms = move(
                vectors, regulariser, memory, examples, rates, training.clip_norm, at_mean
            )
            terms = {"nll": nll, **regulariser_terms}
            if not math.isfinite(sum(terms.values(), start=torch.zeros(())).item()):
                raise TrainingError(_what_is_not_finite(terms, label, step, steps))
            progress.advance(step, terms)
    progress.finish()
    return vectors.posterior()


def learning_rate(training: Training, done: float) -> float:
    """The step size when a part `done`, from 0 to 1, of a task's steps is behind."""
    factors = {
        "constant": 1.0,
        "linear": 1.0 - done,
        "cosine": 0.5 * (1.0 + math.cos(math.pi * done)),
    }
    return training.learning_rate * factors[training.schedule]


def _chosen_update(training: Training, work: float) -> Update:
    """The update, compiled if that is asked for or earns its time back."""
    if training.compile == "off" or (
        training.compile == "auto" and work < WORK_THAT_EARNS_COMPILING
    ):
        return update
    compiled = torch.compile(update, fullgraph=True, dynamic=True)

    def compiled_or_plain(*arguments: Any) -> dict[str, Tensor]:
        nonlocal compiled
        try:
            return compiled(*arguments)
        except Exception as error:  # whatever a machine's compiler can do wrong
            if compiled is update:
                raise
            reason = str(error).strip().splitlines()[0]
            logger.warning("training goes on without torch.compile: %s", reason)
            compiled = update
            return update(*arguments)

    return compiled_or_plain


def _what_is_not_finite(terms: dict[str, Tensor], label: str, step: int, steps: int) -> str:
    values = {name: value.item() for name, value in terms.items()}
    name, value = next(
        ((name, value) for name, value in values.items() if not math.isfinite(value)),
        ("total", math.inf),
    )
    return (
        f"{label}, step {step} of {steps}: the {name} term is {value}; the learner keeps the "
        "state it had before this task; lower learning_rate or lam, or set clip_norm"
    )
