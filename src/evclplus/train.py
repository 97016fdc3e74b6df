"""The one visible training loop."""

import math
from collections.abc import Sequence

import torch

from evclplus.config import Training
from evclplus.core.batches import batches_per_epoch, minibatches
from evclplus.core.examples import Examples
from evclplus.core.gaussian import MeanField
from evclplus.core.network import BayesianNetwork
from evclplus.errors import TrainingError
from evclplus.methods.base import Loss, Terms
from evclplus.progress import Progress


def fit(
    network: BayesianNetwork,
    q: MeanField,
    loss: Loss,
    data: Sequence[Examples],
    training: Training,
    generator: torch.Generator,
    label: str,
    progress: Progress,
) -> MeanField:
    """Minimise the loss over the data, starting from q. The q handed in is left as it is."""
    if len(data) == 1:  # joint training keeps to the shared pixels: it would copy every task
        data = [data[0].gathered()]
    q = q.clone()
    moved = [vector.requires_grad_() for vector in (q.mean, q.log_std) if len(vector)]
    optimiser = torch.optim.Adam(moved, lr=training.learning_rate, fused=True)
    steps = training.epochs * batches_per_epoch(data, training.batch_size)
    step = 0
    progress.start(label, steps)
    for _ in range(training.epochs):
        for batch in minibatches(network, data, training.batch_size, generator):
            for group in optimiser.param_groups:
                group["lr"] = learning_rate(training, step / steps)
            terms = loss(q, batch)
            total = terms.total
            step += 1
            if not math.isfinite(total.item()):
                raise TrainingError(_what_is_not_finite(terms, label, step, steps))
            optimiser.zero_grad()
            total.backward()
            if training.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(moved, training.clip_norm)
            optimiser.step()
            progress.advance(step, terms.named())
    progress.finish()
    return q.clone()


def learning_rate(training: Training, done: float) -> float:
    """The step size when a part `done`, from 0 to 1, of a task's steps is behind."""
    factors = {
        "constant": 1.0,
        "linear": 1.0 - done,
        "cosine": 0.5 * (1.0 + math.cos(math.pi * done)),
    }
    return training.learning_rate * factors[training.schedule]


def _what_is_not_finite(terms: Terms, label: str, step: int, steps: int) -> str:
    bad = {name: value.item() for name, value in terms.named().items()}
    name, value = next(
        ((name, value) for name, value in bad.items() if not math.isfinite(value)),
        ("total", math.inf),
    )
    return (
        f"{label}, step {step} of {steps}: the {name} term is {value}; the learner keeps the "
        "state it had before this task; lower learning_rate or lam, or set clip_norm"
    )
