"""How the time of a training step grows: with parameters, batch size, tasks learned and examples.

A step is a steady epoch's time divided by its steps, so that drawing minibatches is part of it. It
is EVCL+'s with the recommended settings, on the task after those it has learned. These runs are
short, so what `compile="auto"` gives to long ones is asked for.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, sqrt

from tools.bench.callback import EPOCHS, epochs_by_turns
from tools.bench.memory import memory_in_vectors
from tools.bench.ours import RECOMMENDED, mlp_and_stream
from tools.bench.plain import BATCH, INPUTS, OUTPUTS, pixels, plain_epoch, plain_mlp

Point = dict[str, float]
"""What has grown and to what, and the milliseconds or vectors found there, by name."""


@dataclass(frozen=True)
class Sizes:
    """Where to measure. Examples come in whole batches, so that all of them are equally large.

    `steps` are those of an epoch, where the number of examples is not what grows.
    """

    parameters: Sequence[int] = tuple(int(10 ** (4 + i / 2)) for i in range(7))
    batch_size: Sequence[int] = tuple(2**i for i in range(4, 12))
    tasks: Sequence[int] = (1, 2, 5, 10, 20)
    examples: Sequence[int] = tuple(BATCH * i for i in (4, 8, 20, 40, 80, 200))
    hidden: Sequence[int] = (256, 256)
    steps: int = 8
    epochs: int = EPOCHS
    compile: str = "on"


FULL = Sizes()


def growth(rounds: int = 12, sizes: Sizes = FULL) -> Iterator[tuple[str, Point]]:
    """The points of four curves, one after the other, each with the name of its curve."""
    for parameters in sizes.parameters:
        width = _width(parameters)
        point = _steps([width, width], BATCH * sizes.steps, BATCH, rounds, sizes)[2]
        yield "parameters", {"parameters": _count(width), "width": width, **point}
    for size in sizes.batch_size:
        point = _steps(sizes.hidden, size * sizes.steps, size, rounds, sizes)[2]
        yield "batch_size", {"batch_size": size, **point}
    after = [tasks + 1 for tasks in sizes.tasks]
    for task, point in _steps(
        sizes.hidden, BATCH * sizes.steps, BATCH, rounds, sizes, tasks=after
    ).items():
        yield "tasks", {"tasks": task - 1, **point, "vectors": memory_in_vectors(task)}
    for examples in sizes.examples:
        point = _steps(sizes.hidden, examples, BATCH, rounds, sizes)[2]
        yield "examples", {"examples": examples, **point}


def _steps(
    hidden: Sequence[int],
    examples: int,
    batch_size: int,
    rounds: int,
    sizes: Sizes,
    tasks: Collection[int] = (2,),
) -> dict[int, Point]:
    """Milliseconds of our step and of the plain one, by turns, on each of the tasks."""
    network, stream = mlp_and_stream(hidden, max(tasks), examples)
    found = epochs_by_turns(
        *(RECOMMENDED, network, stream),
        {"plain": plain_epoch(plain_mlp(hidden), pixels(examples), batch_size)},
        tasks=tasks,
        rounds=rounds,
        epochs=sizes.epochs,
        batch_size=batch_size,
        compile=sizes.compile,
    )
    each = 1000 / ceil(examples / batch_size)
    return {
        task: {"evcl_plus": each * taken["ours"], "plain": each * taken["plain"]}
        for task, taken in found.items()
    }


def _width(parameters: int) -> int:
    """Of two equal hidden layers with about so many weights in all, two heads included."""
    linear = INPUTS + 2 + 2 * OUTPUTS
    return max(1, round((sqrt(linear**2 + 4 * parameters) - linear) / 2))


def _count(width: int) -> int:
    """Weights and biases of two such layers and two heads."""
    return (INPUTS + 1) * width + (width + 1) * width + 2 * (width + 1) * OUTPUTS
