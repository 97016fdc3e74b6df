"""Where the time of one training step goes."""

from itertools import islice

import torch

from evclplus.core.batches import batches_per_epoch
from evclplus.core.noise import CountedNoise, new_seed
from evclplus.core.step import LikelihoodGradient, Vectors
from evclplus.methods.evcl_plus import EVCLPlus
from tools.bench.ours import NextTask, learner_and_stream
from tools.bench.plain import BATCH, OUTPUTS, matrix_products_of_an_epoch
from tools.bench.timing import Work, alternate, repeated


def step_parts(rounds: int = 12) -> dict[str, float]:
    """Milliseconds per step of EVCL+ on its second task, 2x256, by part; least of the rounds."""
    hidden = [256, 256]
    learner, stream = learner_and_stream(EVCLPlus(), hidden)
    task = NextTask(learner, stream[1].train)
    steps = batches_per_epoch(task.data, BATCH)
    large = list(task.minibatches())
    small = list(islice(task.minibatches(8), steps))
    general = LikelihoodGradient(learner.network, Vectors(learner.q), at_mean=False)
    noise = BATCH * (sum(hidden) + OUTPUTS)
    numbers = torch.compile(lambda seed, like: CountedNoise(seed).like(like), fullgraph=True)
    seed, room = new_seed(task.draws), torch.empty(noise)
    parts: dict[str, Work] = {
        "minibatch: gather bytes": lambda: list(task.minibatches()),
        "likelihood and its gradient: one compiled graph": lambda: [
            task.likelihood(batch) for batch in large
        ],
        "of which the matrix products, by themselves": matrix_products_of_an_epoch(hidden),
        f"of which noise, {noise:,} normal numbers": repeated(lambda: numbers(seed, room), steps),
        "of which the rest, with a batch of 8": lambda: [task.likelihood(batch) for batch in small],
        "the same without compiling, as other networks have it": lambda: [
            general(batch) for batch in large
        ],
        "regulariser, its gradient, Adam: one compiled pass": repeated(task.update, steps),
    }
    return {name: 1000 * alternate(work, rounds=rounds)[0] / steps for name, work in parts.items()}
