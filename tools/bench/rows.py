"""The ratios we hold ourselves to, and what each should reach."""

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import nn

import evclplus as ec
from tools.bench.callback import epochs_by_turns, epochs_in_turn
from tools.bench.cells import both_at_once, in_turn
from tools.bench.conversion import conversion_cost
from tools.bench.memory import memory_in_vectors
from tools.bench.ours import RECOMMENDED, after_first_task, mlp_and_stream, stream_of
from tools.bench.plain import EXAMPLES, pictures, pixels, plain_epoch, plain_mlp
from tools.bench.timing import Work, alternate
from tools.bench.whole_run import WholeRun, whole_run

WIDE = (256, 256)


@dataclass(frozen=True)
class Row:
    """What was compared, the ratio, and what we set out to reach."""

    name: str
    ratio: float
    must: float
    aim: float | None = None
    ours: float | None = None
    rival: float | None = None

    @property
    def reached(self) -> str:
        """Which goal the ratio meets; every goal is an upper bound."""
        if self.aim is not None and self.ratio <= self.aim:
            return "aim"
        if self.ratio <= self.must:
            return "yes" if self.aim is None else "must"
        return "no"

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "reached": self.reached}


Measure = Callable[[], Row]


@dataclass(frozen=True)
class Network:
    """Hidden layers, and the goals for an epoch with them."""

    name: str
    hidden: Sequence[int]
    must: float
    aim: float


NETWORKS = (
    Network("2x256", WIDE, 1.1, 0.9),
    Network("2x100", (100, 100), 0.8, 0.6),
    Network("4x150", (150,) * 4, 1.0, 0.7),
)


def rows(rounds: int = 12) -> list[Measure]:
    """The measurements, each ready to run."""
    return [
        *(measure for network in NETWORKS for measure in epoch_rows(network, rounds)),
        *whole_run_rows(),
        partial(ewc_epoch, rounds),
        partial(si_epoch, rounds),
        partial(er_epoch, rounds),
        partial(fisher, rounds),
        partial(prediction, rounds),
        partial(convnet_epoch, rounds),
        partial(k_center_choice, rounds),
        *(partial(vectors_held, task) for task in (2, 30)),
        *conversion_rows(),
        two_cells,
    ]


def compared(name: str, taken: Iterable[float], must: float, aim: float | None = None) -> Row:
    """A row from the seconds of our work and the rival's."""
    ours, rival = taken
    return Row(name, ours / rival, must, aim, ours, rival)


def epoch_rows(network: Network, rounds: int, examples: int = EXAMPLES) -> list[Measure]:
    """The second and the fifth task of one learner, function-space term and all."""

    @cache
    def taken() -> dict[int, dict[str, float]]:
        return epochs_by_turns(
            RECOMMENDED,
            *mlp_and_stream(network.hidden, 5, examples),
            {"plain": plain_epoch(plain_mlp(network.hidden), pixels(examples))},
            tasks=(2, 5),
            rounds=rounds,
        )

    def measure(task: int) -> Row:
        name = f"EVCL+ epoch of task {task} / plain epoch, {network.name}"
        return compared(name, taken()[task].values(), network.must, network.aim)

    return [partial(measure, task) for task in (2, 5)]


def whole_run_rows(run: Callable[[], WholeRun] = whole_run) -> list[Measure]:
    """Both from one measurement."""
    measured = cache(run)

    def measure(state: str, must: float, aim: float) -> Row:
        found = measured()
        data = f"five tasks of 10 epochs, {found.stream}"
        name = f"whole run, {state} compiler cache / plain run, {data}"
        return compared(name, (getattr(found, state), found.plain), must, aim)

    return [partial(measure, "warm", 1.3, 1.0), partial(measure, "cold", 2.0, 1.3)]


def ewc_epoch(rounds: int, hidden: Sequence[int] = WIDE, examples: int = EXAMPLES) -> Row:
    taken = epochs_by_turns(
        ec.EWC(),
        *mlp_and_stream(hidden, examples=examples),
        {"plain": plain_epoch(plain_mlp(hidden), pixels(examples))},
        rounds=rounds,
    )
    return compared("EWC epoch / plain epoch, 2x256", taken[2].values(), 0.8, 0.6)


def si_epoch(rounds: int, hidden: Sequence[int] = WIDE, examples: int = EXAMPLES) -> Row:
    """Both with one step's worth of a penalty; SI follows its path besides."""
    methods = (ec.SynapticIntelligence(), ec.EWC())
    taken = epochs_in_turn(methods, *mlp_and_stream(hidden, examples=examples), rounds=rounds)
    return compared("SI epoch / EWC epoch, 2x256", taken, 1.15)


def er_epoch(rounds: int, hidden: Sequence[int] = WIDE, examples: int = EXAMPLES) -> Row:
    """As many stored examples in a step as of the task."""
    methods = (ec.ExperienceReplay(), ec.FineTune())
    taken = epochs_in_turn(methods, *mlp_and_stream(hidden, examples=examples), rounds=rounds)
    return compared("ER epoch / fine-tuning epoch, 2x256", taken, 2.1)


def fisher(rounds: int) -> Row:
    plain = plain_epoch(plain_mlp(WIDE), pixels())
    taken = alternate(fisher_work(), plain, rounds=rounds)
    return compared("Fisher on 5,000 examples / plain epoch, 2x256", taken, 0.25, 0.2)


def fisher_work() -> Work:
    """Nothing public computes a Fisher by itself, so this one row knows where it is made."""
    from evclplus.core.fisher import diagonal_fisher

    learner, stream = after_first_task(ec.EWC(), WIDE)
    return lambda: diagonal_fisher(
        learner.network, learner.q, stream[0].train, torch.Generator().manual_seed(0)
    )


def prediction(rounds: int) -> Row:
    learner, _ = after_first_task(RECOMMENDED, WIDE)
    x, plain = pixels()[:5000], plain_mlp(WIDE)

    def passes() -> None:
        with torch.no_grad():
            for _ in range(10):
                for part in x.split(1024):
                    plain(part).softmax(1)

    def ours() -> None:
        learner.predict_proba(x, task=0, samples=10)

    taken = alternate(ours, passes, rounds=rounds)
    return compared("prediction with 10 samples / 10 plain passes, 2x256", taken, 0.9, 0.8)


def convnet_epoch(rounds: int, examples: int = 2000) -> Row:
    x = pictures((3, 32, 32), examples)
    stream = stream_of(x)
    network = ec.networks.convnet((3, 32, 32), heads=stream.heads)
    plain = deepcopy(nn.Sequential(network.body, network.heads[0]))
    turns = {"plain": plain_epoch(plain, x.float() / 255)}
    taken = epochs_by_turns(RECOMMENDED, network, stream, turns, rounds=min(rounds, 7))
    name = "EVCL+ convnet epoch / plain epoch, 2,000 x 3x32x32"
    return compared(name, taken[2].values(), 2.2, 2.0)


def k_center_choice(rounds: int) -> Row:
    """Nothing public chooses a coreset by itself, so this one row knows how it is chosen."""
    from evclplus.core.coresets import k_center

    x = pixels()
    taken = alternate(
        lambda: k_center(x, 200, torch.Generator().manual_seed(0)),
        plain_epoch(plain_mlp(WIDE), x),
        rounds=rounds,
    )
    return compared("k-center, 200 of 12,000 / plain epoch, 2x256", taken, 4.0, 1.5)


def vectors_held(task: int) -> Row:
    return Row(f"vectors held while training task {task}", memory_in_vectors(task), 15, 13)


def conversion_rows() -> list[Measure]:
    """Feeding a plain step of 2x100 from bytes, against ready floats."""
    cost = cache(conversion_cost)

    def measure(way: str, feed: str) -> Row:
        name = f"step fed from {way} / from ready floats"
        return compared(name, (getattr(cost(), feed), cost().floats), 1.05)

    return [partial(measure, "bytes", "plain"), partial(measure, "a permuted task", "gathered")]


def two_cells() -> Row:
    turns = [(both_at_once(), in_turn()) for _ in range(2)]
    taken = [min(times) for times in zip(*turns, strict=True)]
    return compared("two cells at once, a thread each / in turn, two threads", taken, 1.0)
