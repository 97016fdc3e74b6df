"""The one visible training loop."""

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from math import cos, pi
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from evclplus.config import Training
from evclplus.core.batches import Criterion, batches_per_epoch, minibatches
from evclplus.core.examples import Examples
from evclplus.core.gaussian import MeanField
from evclplus.core.hold import Hold
from evclplus.core.network import BayesianNetwork
from evclplus.core.step import LikelihoodGradient, Regulariser, Vectors, step_rates, update
from evclplus.errors import TrainingError
from evclplus.methods.base import Memory, Method
from evclplus.progress import Progress

logger = logging.getLogger("evclplus")

Update = Callable[..., None]

WORK_THAT_EARNS_COMPILING = 1e8
"""A task's steps times weights above which compiling the update pays for itself within a few
tasks. A count, not a measurement: the same settings must always take the same path."""

COMPILED_FORMS = 64
"""How many forms of the update one process may compile. A form belongs to a method's equation, to
what the memory holds and to the precision; a worker that runs a whole table sees dozens, and at
torch's own limit of eight it would go on uncompiled."""


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
    vectors = Vectors(q, low_precision=training.precision == "bf16")
    at_mean = at_mean or len(q.log_std) == 0  # point values have no spread to learn
    likelihood = LikelihoodGradient(network, vectors, at_mean)
    examples = q.mean.new_tensor(float(sum(map(len, data))))
    regulariser = None if method is None else method.in_tensors(q.mean).regulariser
    if regulariser is not None and not regulariser(q, memory, examples):
        regulariser = None  # nothing to add, so nothing to differentiate
    steps = training.epochs * batches_per_epoch(data, training.batch_size)
    rates = step_rates([learning_rate(training, step / steps) for step in range(steps)], q.mean)
    move = _chosen_update(training, steps * len(q.mean))
    step = 0
    progress.start(label, steps)
    for epoch in range(1, training.epochs + 1):
        total = torch.zeros_like(examples)
        for batch in minibatches(network, data, training.batch_size, generator, criterion, hold):
            found = likelihood(batch)
            for term in found.values():
                total += term
            move(
                *(vectors, regulariser, memory, examples, rates[step], training.clip_norm, at_mean)
            )
            step += 1
            progress.advance(step, partial(_terms, found, vectors, regulariser, memory, examples))
        # Looking at a number waits for the device, so this is done once per epoch.
        if not _all_finite(total, vectors):
            terms = _terms(found, vectors, regulariser, memory, examples)
            raise TrainingError(_what_is_not_finite(terms, label, epoch, training.epochs))
    progress.finish()
    return vectors.posterior()


def _terms(
    found: dict[str, Tensor],
    vectors: Vectors,
    regulariser: Regulariser | None,
    memory: Memory,
    examples: Tensor,
) -> dict[str, Tensor]:
    """The named parts of the loss after a step."""
    others = {} if regulariser is None else regulariser(vectors.posterior(), memory, examples)
    return found | others


def _all_finite(total: Tensor, vectors: Vectors) -> bool:
    parts = (total, vectors.mean, vectors.log_std)
    return bool(torch.stack([part.isfinite().all() for part in parts]).all())


def learning_rate(training: Training, done: float) -> float:
    """The step size when a part `done`, from 0 to 1, of a task's steps is behind."""
    factors = {
        "constant": 1.0,
        "linear": 1.0 - done,
        "cosine": 0.5 * (1.0 + cos(pi * done)),
    }
    return training.learning_rate * factors[training.schedule]


def _chosen_update(training: Training, work: float) -> Update:
    """The update, compiled if that is asked for or earns its time back."""
    if training.compile == "off" or (
        training.compile == "auto" and work < WORK_THAT_EARNS_COMPILING
    ):
        return update
    compiled = torch.compile(update, fullgraph=True, dynamic=True)
    # Only a task's first step can meet a new form, and raising the limit takes time in each.
    limit: Any = torch._dynamo.config.patch(recompile_limit=COMPILED_FORMS)

    def compiled_or_plain(*arguments: Any) -> None:
        nonlocal compiled, limit
        try:
            with limit:
                compiled(*arguments)
            limit = nullcontext()
        except Exception as error:  # whatever a machine's compiler can do wrong
            if compiled is update:
                raise
            logger.warning("training goes on without torch.compile: %s", _in_one_line(error))
            compiled = update
            update(*arguments)

    return compiled_or_plain


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
