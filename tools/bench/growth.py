"""How the time of a training step grows: with parameters, batch size, tasks learned and examples.

A step is EVCL+'s on the task after those it has learned: the gradient of the likelihood, then the
update, both compiled. Its minibatches are ready, as are the plain step's, except where the number
of examples grows: there drawing them is part of the step, for that is what could grow.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from math import sqrt

from evclplus import networks
from evclplus.core.examples import Examples
from evclplus.learner import Learner
from evclplus.methods.evcl_plus import EVCLPlus
from tools.bench.memory import memory_in_vectors
from tools.bench.ours import NextTask, stream_of
from tools.bench.plain import (
    BATCH,
    INPUTS,
    OUTPUTS,
    labels,
    matrix_products,
    pictures,
    plain_mlp,
    plain_step,
)
from tools.bench.timing import Work, milliseconds

Point = dict[str, float]
"""What has grown and to what, and the milliseconds or vectors found there, by name."""


@dataclass(frozen=True)
class Sizes:
    """Where to measure. Examples come in whole batches, so that all of them are equally large."""

    parameters: Sequence[int] = tuple(int(10 ** (4 + i / 2)) for i in range(7))
    batch_size: Sequence[int] = tuple(2**i for i in range(4, 12))
    tasks: Sequence[int] = (1, 2, 5, 10, 20, 50, 100)
    examples: Sequence[int] = tuple(BATCH * i for i in (4, 8, 20, 40, 80, 200, 400, 800))
    hidden: Sequence[int] = (256, 256)


FULL = Sizes()


def growth(rounds: int = 12, sizes: Sizes = FULL) -> Iterator[tuple[str, Point]]:
    """The points of four curves, one after the other, each with the name of its curve."""
    for parameters in sizes.parameters:
        yield "parameters", more_parameters(parameters, rounds)
    for batch_size in sizes.batch_size:
        yield "batch_size", larger_batches(batch_size, sizes.hidden, rounds)
    # A curve that should be flat is measured by turns: a slow minute then lifts all of it.
    for point in more_tasks(sizes.tasks, sizes.hidden, rounds):
        yield "tasks", point
    for point in more_examples(sizes.examples, sizes.hidden, rounds):
        yield "examples", point


def more_parameters(parameters: int, rounds: int) -> Point:
    width = _width(parameters)
    learner, examples = _learned(1, [width, width], BATCH)
    found = _beside_plain(NextTask(learner, examples), [width, width], rounds)
    return {"parameters": len(learner.q.mean), "width": width, **found}


def larger_batches(size: int, hidden: Sequence[int], rounds: int) -> Point:
    learner, examples = _learned(1, hidden, size)
    return {
        "batch_size": size,
        **_beside_plain(NextTask(learner, examples), hidden, rounds),
    }


def more_tasks(counts: Sequence[int], hidden: Sequence[int], rounds: int) -> list[Point]:
    def step(tasks: int) -> Work:
        task = NextTask(*_learned(tasks, hidden, BATCH))
        batch = next(task.minibatches())
        return lambda: task.step(batch)

    vectors = {tasks: memory_in_vectors(tasks + 1) for tasks in counts}
    found = milliseconds({str(tasks): step(tasks) for tasks in counts}, rounds)
    return [
        {"tasks": tasks, "evcl_plus": found[str(tasks)], "vectors": vectors[tasks]}
        for tasks in counts
    ]


def more_examples(counts: Sequence[int], hidden: Sequence[int], rounds: int) -> list[Point]:
    learner, few = _learned(1, hidden, BATCH)
    store, every_label = pictures(count=max(counts)), labels(max(counts))

    def step(size: int) -> Work:
        examples = replace(few, store=store[:size], labels=every_label[:size], rows=None)
        task = NextTask(learner, examples)
        # One epoch follows the other, so that a shuffle is paid for once in an epoch.
        batches = chain.from_iterable(task.minibatches() for _ in count())
        return lambda: task.step(next(batches))

    found = milliseconds({str(size): step(size) for size in counts}, rounds)
    return [{"examples": size, "evcl_plus": found[str(size)]} for size in counts]


def _width(parameters: int) -> int:
    """Of two equal hidden layers with about so many weights in all, two heads included."""
    linear = INPUTS + 2 + 2 * OUTPUTS
    return max(1, round((sqrt(linear**2 + 4 * parameters) - linear) / 2))


def _learned(tasks: int, hidden: Sequence[int], examples: int) -> tuple[Learner, Examples]:
    """EVCL+ after so many tasks, each an epoch of a single batch, and the data of the next. The
    network has a head for each of them."""
    stream = stream_of(pictures(count=examples), tasks + 1)
    network = networks.mlp(INPUTS, hidden, heads=stream.heads)
    learner = Learner(network, EVCLPlus(), epochs=1, batch_size=examples, compile="off")
    for task in stream.tasks[:-1]:
        learner.learn(task)
    return learner, stream.tasks[-1].train


def _beside_plain(task: NextTask, hidden: Sequence[int], rounds: int) -> dict[str, float]:
    """Our step on all examples as one batch, the plain one, and our matrix products alone."""
    size = len(task.data[0])
    batch = next(task.minibatches(size))
    plain = plain_step(plain_mlp(hidden))
    return milliseconds(
        {
            "evcl_plus": lambda: task.step(batch),
            "plain": lambda: plain(batch.inputs, batch.y),
            "matrix_products": matrix_products(hidden, size),
        },
        rounds,
    )
