"""The one visible training loop."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from math import cos, pi
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from evclplus.callbacks import Progress
from evclplus.core.batches import Batch, Criterion, batches_per_epoch, minibatches
from evclplus.core.examples import Examples
from evclplus.core.gaussian import MeanField
from evclplus.core.hold import Hold
from evclplus.core.network import BayesianNetwork
from evclplus.core.step import LikelihoodGradient, Update, Vectors, step_rates
from evclplus.core.traced import TracedLikelihood, can_be_traced
from evclplus.core.traced_update import TracedUpdate
from evclplus.errors import TrainingError
from evclplus.methods.base import Memory, Method
from evclplus.settings import Training

logger = logging.getLogger("evclplus")

P = ParamSpec("P")
Result = TypeVar("Result")

WORK_THAT_EARNS_COMPILING = 1e8
"""A task's steps times weights above which compiling the update pays for itself within a few
tasks. A count, not a measurement: the same settings must always take the same path."""

STEPS_THAT_EARN_TRACING = 3000
"""The same for compiling the likelihood's gradient: it saves a step about a millisecond."""


def fit(
    network: BayesianNetwork,
    q: MeanField,
    method: Method | None,
    memory: Memory,
    data: Sequence[Examples],
    training: Training,
    generator: torch.Generator,
    label: str,
    progress: Progress,
    at_mean: bool = False,
    criterion: Criterion = F.cross_entropy,
    hold: Hold | None = None,
) -> MeanField:
    """Minimise nll (+ function, with `hold`) + the method's regulariser, if there is a method, over
    the data, starting from q, which is left as it is."""
    if len(data) == 1:  # joint training keeps to the shared pixels: it would copy every task
        data = [data[0].gathered()]
    data = [examples.on(q.mean.device) for examples in data]
    at_mean = at_mean or len(q.variance) == 0  # point values have no spread to learn
    examples = q.mean.new_tensor(float(sum(map(len, data))))
    # Before there are vectors, because computing terms takes room for a few more.
    if method is not None and not method.regulariser(q, memory, examples):
        method = None  # nothing to add, so nothing to differentiate
    elif method is not None:
        method = method.in_tensors(q.mean)
    vectors = Vectors(q, low_precision=training.precision == "bf16")
    update = Update(vectors, method, memory, examples, training.clip_norm, at_mean)
    steps = training.epochs * batches_per_epoch(data, training.batch_size)
    rates = step_rates([learning_rate(training, step / steps) for step in range(steps)], q.mean)
    compiler = Compiler()
    move = compiler.update(training, steps * len(q.mean), update)
    likelihood = compiler.likelihood(training, steps, network, vectors, at_mean, hold)
    step = 0
    progress.start(label, steps)
    for epoch in range(1, training.epochs + 1):
        total = torch.zeros_like(examples)
        for batch in minibatches(network, data, training.batch_size, generator, criterion, hold):
            found = likelihood(batch)
            for term in found.values():
                total += term
            move(rates[step])
            step += 1
            progress.advance(step, partial(_terms, found, update))
        # Looking at a number waits for the device, so this is done once per epoch.
        if not _all_finite(total, vectors):
            terms = _terms(found, update)
            raise TrainingError(_what_is_not_finite(terms, label, epoch, training.epochs))
    progress.finish()
    return vectors.posterior()


def _terms(found: dict[str, Tensor], update: Update) -> dict[str, Tensor]:
    """The named parts of the loss after a step."""
    return found | update.terms(update.vectors.mean, update.vectors.variance)


def _all_finite(total: Tensor, vectors: Vectors) -> bool:
    """From the least and the largest numbers, which take no room; both are nan if one is."""
    parts = [part for part in (total, vectors.mean, vectors.variance) if part.numel()]
    return bool(torch.stack([edge for part in parts for edge in part.aminmax()]).isfinite().all())


def learning_rate(training: Training, done: float) -> float:
    """The step size when a part `done`, from 0 to 1, of a task's steps is behind."""
    factors = {
        "constant": 1.0,
        "linear": 1.0 - done,
        "cosine": 0.5 * (1.0 + cos(pi * done)),
    }
    return training.learning_rate * factors[training.schedule]


class Compiler:
    """Compiles what a task's training calls again and again, if that is asked for or earns its
    time back. Where a compilation fails, everything goes on uncompiled and one line says so."""

    def __init__(self) -> None:
        self.works = True

    def update(self, training: Training, work: float, update: Update) -> Callable[[Tensor], None]:
        if not _wanted(training, work >= WORK_THAT_EARNS_COMPILING):
            return update
        return self._while_it_works(TracedUpdate(update), update)

    def likelihood(
        self,
        training: Training,
        steps: int,
        network: BayesianNetwork,
        vectors: Vectors,
        at_mean: bool,
        hold: Hold | None,
    ) -> Callable[[Batch], dict[str, Tensor]]:
        general = LikelihoodGradient(network, vectors, at_mean)
        # Each task holds one head more, and so has a graph that no other task can use.
        earns_its_time = hold is None and steps >= STEPS_THAT_EARN_TRACING
        asked = network.device.type == "cpu" and _wanted(training, earns_its_time)
        if not (asked and can_be_traced(network)):
            return general
        return self._while_it_works(TracedLikelihood(network, vectors, at_mean), general)

    def _while_it_works(
        self, compiled: Callable[P, Result], plain: Callable[P, Result]
    ) -> Callable[P, Result]:
        def call(*arguments: P.args, **options: P.kwargs) -> Result:
            if self.works:
                try:
                    return compiled(*arguments, **options)
                except Exception as error:  # whatever a machine's compiler can do wrong
                    self.works = False
                    reason = _in_one_line(error)
                    logger.warning("training goes on without compiling: %s", reason)
            return plain(*arguments, **options)

        return call


def _wanted(training: Training, earns_its_time: bool) -> bool:
    return training.compile == "on" or (training.compile == "auto" and earns_its_time)


def _in_one_line(error: Exception) -> str:
    """What went wrong: torch may put a line that only names its backend before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if not line.endswith(":")), type(error).__name__)


def _what_is_not_finite(terms: dict[str, Tensor], label: str, epoch: int, epochs: int) -> str:
    values = ", ".join(f"{name} {value.item():g}" for name, value in terms.items())
    return (
        f"{label}, epoch {epoch} of {epochs}: a number is not finite ({values}); the learner "
        "keeps the state it had before this task; lower learning_rate or lam, or set clip_norm"
    )
