"""Our side of the comparisons: the recommended settings, and tasks to learn with them."""

from collections.abc import Sequence

from torch import Tensor

import evclplus as ec
from tools.bench.plain import BATCH, EXAMPLES, INPUTS, labels, pictures

RECOMMENDED = ec.EVCLPlus()


def stream_of(x: Tensor, count: int = 2) -> ec.Stream:
    """The same inputs as `count` tasks of two classes, a head for each."""
    pair, few = (x, labels(len(x))), (x[:10], labels(10))
    return ec.tasks([pair] * count, test=[few] * count, validation=[few] * count)


def mlp_and_stream(
    hidden: Sequence[int], count: int = 2, examples: int = EXAMPLES
) -> tuple[ec.networks.ReadyNetwork, ec.Stream]:
    stream = stream_of(pictures(count=examples), count)
    return ec.networks.mlp(INPUTS, hidden, heads=stream.heads), stream


def after_first_task(method: ec.Method, hidden: Sequence[int]) -> tuple[ec.Learner, ec.Stream]:
    network, stream = mlp_and_stream(hidden)
    return ec.Learner(network, method, epochs=1, batch_size=BATCH).learn(stream[0]), stream
