"""Where the time of one task goes, seen from outside."""

import time
from itertools import pairwise
from statistics import median

from tools.bench.callback import EPOCHS, WARM_UP, Callback, is_training, learner_with
from tools.bench.ours import RECOMMENDED, mlp_and_stream
from tools.bench.plain import BATCH, EXAMPLES, pixels, plain_epoch, plain_mlp
from tools.bench.timing import alternate, seconds_of


class Moments(Callback):
    """When the training of the last task began, and when each of its epochs ended."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs
        self.times: list[float] = []
        self._steps = 0

    def start(self, label: str, steps: int) -> None:
        self._steps = steps // self.epochs if is_training(label) else 0
        if self._steps:
            self.times = [time.perf_counter()]

    def advance(self, step: int, terms: object) -> None:
        if self._steps and step % self._steps == 0:
            self.times.append(time.perf_counter())


def task_parts(
    rounds: int = 12, hidden: tuple[int, ...] = (256, 256), examples: int = EXAMPLES
) -> dict[str, float]:
    """Seconds of the parts of learning a second task with the recommended settings."""
    network, stream = mlp_and_stream(hidden, examples=examples)
    moments = Moments(EPOCHS)
    learner = learner_with(moments, network, RECOMMENDED, epochs=EPOCHS, batch_size=BATCH)
    learner.learn(stream[0])
    began = time.perf_counter()
    learner.learn(stream[1])
    ended = time.perf_counter()
    epochs = [after - before for before, after in pairwise(moments.times)]
    plain = plain_epoch(plain_mlp(hidden), pixels(examples))
    return {
        "before the training": moments.times[0] - began,
        "first epoch, with compiling if it pays": epochs[0],
        "a later epoch": median(epochs[WARM_UP:]),
        "after the training: Fisher": ended - moments.times[-1],
        "all of the task": ended - began,
        "evaluation on both tasks' training data": seconds_of(
            lambda: learner.evaluate(stream.tasks, on="train")
        ),
        "a plain epoch": alternate(plain, rounds=rounds)[0],
    }
