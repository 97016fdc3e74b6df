"""How long runs will take, from those that are finished."""

import math
from collections.abc import Iterable
from itertools import pairwise

from evclplus.benchmarks.registry import BENCHMARKS
from evclplus.experiments.config import Experiment
from evclplus.methods import method
from evclplus.methods.coreset import Coreset
from evclplus.methods.joint import Joint

OVERHEAD = 50_000
"""What a training step costs for each example beside the network's products, in products."""


class Estimate:
    """The cost of a run is its number of products, roughly. What a product takes is known best
    from runs of the same benchmark and method, then from the same method, then from any."""

    def __init__(self) -> None:
        self.cost: dict[tuple[str, ...], float] = {}
        self.seconds: dict[tuple[str, ...], float] = {}

    def learn(self, experiment: Experiment, seconds: float) -> None:
        for key in _groups(experiment):
            self.cost[key] = self.cost.get(key, 0.0) + cost(experiment)
            self.seconds[key] = self.seconds.get(key, 0.0) + seconds

    def of(self, experiment: Experiment) -> float:
        """Seconds. Something must have been learned."""
        key = next(key for key in _groups(experiment) if key in self.cost)
        return cost(experiment) * self.seconds[key] / self.cost[key]

    def left(self, runs: Iterable[tuple[Experiment, float]], workers: int) -> str:
        """Until all these are finished; each comes with the seconds already spent on it."""
        each = [max(0.0, self.of(experiment) - spent) for experiment, spent in runs]
        return duration(max(sum(each) / workers, max(each, default=0.0)))


def _groups(experiment: Experiment) -> list[tuple[str, ...]]:
    return [(experiment.benchmark, experiment.method), (experiment.method,), ()]


def cost(experiment: Experiment) -> float:
    """Roughly how many products a run takes."""
    entry = BENCHMARKS[experiment.benchmark]
    options, tasks = experiment.options, entry.tasks
    every_task_has_all = entry.settings().scenario == "domain"
    examples = entry.examples[0] / (1 if every_task_has_all else tasks)
    passes = float(tasks)
    chosen = method(experiment.method, **options)
    if isinstance(chosen, Joint):  # all tasks so far, again with each new one
        passes = tasks * (tasks + 1) / 2
    elif options.get("start") == "mle":
        passes += 1
    alone = isinstance(chosen, Coreset) and chosen.alone
    trained = 0.0 if alone else passes * examples
    # Before each test the coresets of all tasks seen are trained on.
    trained += float(options.get("coreset_size", 0)) * tasks * (tasks + 1) / 2
    hidden = experiment.network.hidden or ()
    widths = [math.prod(entry.shape), *hidden, entry.classes_per_task]
    products = sum(below * above for below, above in pairwise(widths))
    gaussian = 1 if chosen.is_point else 2
    epochs = experiment.training.epochs_of(math.ceil(examples / experiment.training.batch_size))
    return epochs * trained * (gaussian * products + OVERHEAD)


def duration(seconds: float) -> str:
    """As people say it: 40 s, 12 min, 3 h 20 min."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
