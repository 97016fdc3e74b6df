"""Where the time of one training step goes."""

from itertools import islice

import torch

from evclplus.bench.ours import NextTask, compiled_update, learner_and_stream
from evclplus.bench.plain import BATCH, OUTPUTS, matrix_products_of_an_epoch
from evclplus.bench.timing import Work, alternate, repeated
from evclplus.core.batches import batches_per_epoch
from evclplus.methods.evcl_plus import EVCLPlus


def step_parts(rounds: int = 12) -> dict[str, float]:
    """Milliseconds per step of EVCL+ on its second task, 2x256, by part; least of the rounds."""
    hidden = [256, 256]
    learner, stream = learner_and_stream(EVCLPlus(), hidden)
    task = NextTask(learner, stream[1].train, compiled_update())
    steps = batches_per_epoch(task.data, BATCH)
    large = list(task.minibatches())
    small = list(islice(task.minibatches(8), steps))
    noise = BATCH * (sum(hidden) + OUTPUTS)
    parts: dict[str, Work] = {
        "minibatch: gather bytes, convert": lambda: list(task.minibatches()),
        "likelihood, forward and backward": lambda: [task.likelihood(batch) for batch in large],
        "of which the matrix products, by themselves": matrix_products_of_an_epoch(hidden),
        f"of which noise, {noise:,} normal numbers": lambda: [
            torch.randn(noise, generator=task.draws) for _ in range(steps)
        ],
        "of which Python and small operations (batch of 8)": lambda: [
            task.likelihood(batch) for batch in small
        ],
        "regulariser, its gradient, Adam: one compiled pass": repeated(task.update, steps),
    }
    return {name: 1000 * alternate(work, rounds=rounds)[0] / steps for name, work in parts.items()}
