"""Our side of the comparisons: a learner that knows some tasks and trains the next."""

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from evclplus import networks
from evclplus.callbacks import Progress
from evclplus.core.batches import Batch, minibatches
from evclplus.core.examples import Examples
from evclplus.core.step import Update, Vectors, step_rates
from evclplus.core.traced import TracedLikelihood
from evclplus.core.traced_update import TracedUpdate
from evclplus.learner import Learner
from evclplus.methods.base import Method
from evclplus.settings import Training
from evclplus.streams.sequence import tasks
from evclplus.streams.task import Stream
from evclplus.train import fit
from tools.bench.plain import BATCH, EXAMPLES, INPUTS, labels, pictures
from tools.bench.timing import Work

Precision = Literal["full", "bf16"]


def stream_of(x: Tensor, count: int = 2) -> Stream:
    """The same inputs as `count` tasks of two classes, a head for each."""
    pair, few = (x, labels(len(x))), (x[:10], labels(10))
    return tasks([pair] * count, test=[few] * count, validation=[few] * count)


def after_first_task(method: Method, network: nn.Module, stream: Stream) -> Learner:
    return Learner(network, method, epochs=1, batch_size=BATCH, compile="off").learn(stream[0])


def second_task(
    learner: Learner, stream: Stream, epochs: int = 1, precision: Precision = "full"
) -> Work:
    """The second task, all penalties on, the update compiled."""
    training = Training(epochs=epochs, batch_size=BATCH, compile="on", precision=precision)

    def work() -> None:
        fit(
            learner.network,
            learner.q,
            learner.method,
            learner.memory,
            [stream[1].train],
            training,
            torch.Generator().manual_seed(0),
            "second task",
            Progress(),
        )

    return work


def learner_and_stream(
    method: Method, hidden: Sequence[int], examples: int = EXAMPLES
) -> tuple[Learner, Stream]:
    stream = stream_of(pictures(count=examples))
    network = networks.mlp(INPUTS, hidden, heads=stream.heads)
    return after_first_task(method, network, stream), stream


def epoch_of(method: Method, hidden: Sequence[int], examples: int = EXAMPLES) -> Work:
    return epochs_of(method, hidden, 1, examples)


def epochs_of(
    method: Method,
    hidden: Sequence[int],
    epochs: int,
    examples: int = EXAMPLES,
    precision: Precision = "full",
) -> Work:
    """Several epochs in one go, as training has them: what is done once per task is done once."""
    return second_task(*learner_and_stream(method, hidden, examples), epochs, precision)


class NextTask:
    """The training of one more task, taken apart: the two halves of a step can be called alone.
    Both are compiled."""

    def __init__(self, learner: Learner, examples: Examples) -> None:
        self.learner = learner
        self.data = [examples.gathered()]
        self.vectors = Vectors(learner.q)
        self.likelihood = TracedLikelihood(learner.network, self.vectors, at_mean=False)
        self.draws = torch.Generator().manual_seed(0)
        method, total = (
            learner.method.in_tensors(learner.q.mean),
            torch.tensor(float(len(examples))),
        )
        update = Update(self.vectors, method, learner.memory, total, None, at_mean=False)
        self._update = TracedUpdate(update)
        self._rates = step_rates([1e-3], self.vectors.mean)[0]

    def minibatches(self, size: int = BATCH) -> Iterator[Batch]:
        """One epoch of them."""
        return minibatches(self.learner.network, self.data, size, self.draws)

    def update(self) -> None:
        self._update(self._rates)

    def step(self, batch: Batch) -> None:
        self.likelihood(batch)
        self.update()
