"""The ratios we hold ourselves to, and what each should reach."""

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing.synchronize import Barrier
from typing import Any

import torch
from torch import nn

from evclplus import networks
from evclplus.core.coresets import k_center
from evclplus.core.fisher import diagonal_fisher
from evclplus.methods.base import Method
from evclplus.methods.evcl_plus import EVCLPlus
from evclplus.methods.ewc import EWC
from tools.bench.conversion import conversion_cost
from tools.bench.memory import memory_in_vectors
from tools.bench.ours import (
    after_first_task,
    epochs_of,
    learner_and_stream,
    second_task,
    stream_of,
)
from tools.bench.plain import (
    matrix_products_of_an_epoch,
    pictures,
    pixels,
    plain_epoch,
    plain_mlp,
)
from tools.bench.timing import Work, alternate, repeated

EPOCHS = 3
"""Epochs in a turn. What is done once per task then counts for three of them, not for one."""


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


def rows(rounds: int = 12) -> list[Callable[[], Row]]:
    """The measurements, each ready to run."""
    mlp = {"2x256": [256, 256], "2x100": [100, 100], "4x150": [150] * 4}
    wide = mlp["2x256"]
    goals = {"2x256": (1.4, 1.0), "2x100": (1.1, 0.7), "4x150": (0.9, 0.7)}

    def timed(name: str, ours: Work, rival: Work, must: float, aim: float) -> Row:
        first, second = alternate(ours, rival, rounds=rounds)
        return Row(name, first / second, must, aim, first, second)

    def epoch_row(
        name: str, method: Method, hidden: list[int], goals: tuple[float, float], **more: Any
    ) -> Callable[[], Row]:
        def measure() -> Row:
            return timed(
                name,
                epochs_of(method, hidden, EPOCHS, **more),
                repeated(plain_epoch(plain_mlp(hidden), pixels()), EPOCHS),
                *goals,
            )

        return measure

    return [
        *(
            epoch_row(f"EVCL+ epoch / plain epoch, {name}", EVCLPlus(), mlp[name], goals[name])
            for name in mlp
        ),
        *(
            epoch_row(
                f"EVCL+ epoch with bf16 products / plain epoch, {name}",
                *(EVCLPlus(), mlp[name], goals[name]),
                precision="bf16",
            )
            for name in mlp
            if _has_bfloat16()
        ),
        lambda: timed(
            "EVCL+ epoch / its matrix products alone, 2x256",
            epochs_of(EVCLPlus(), wide, EPOCHS),
            repeated(matrix_products_of_an_epoch(wide), EPOCHS),
            *(1.7, 1.25),
        ),
        epoch_row("EWC epoch / plain epoch, 2x256", EWC(), wide, (0.8, 0.6)),
        lambda: timed(
            "Fisher on 5,000 examples / plain epoch, 2x256",
            fisher_of(wide),
            plain_epoch(plain_mlp(wide), pixels()),
            *(0.5, 0.2),
        ),
        lambda: timed(
            "prediction with 10 samples / 10 plain passes, 2x256",
            *prediction(wide),
            *(1.5, 0.8),
        ),
        lambda: timed(
            "EVCL+ convnet epoch / plain, 2,000 x 3x32x32", *convnet_epochs(), *(2.5, 2.0)
        ),
        lambda: timed(
            "k-center, 200 of 12,000 / plain epoch, 2x256",
            lambda: k_center(pixels(), 200, torch.Generator().manual_seed(0)),
            plain_epoch(plain_mlp(wide), pixels()),
            *(4.0, 1.5),
        ),
        lambda: Row("vectors held while training task 2", memory_in_vectors(2), 16, 13),
        lambda: Row("vectors held while training task 30", memory_in_vectors(30), 16, 13),
        *conversion_rows(),
        lambda: Row("two cells at once, a thread each / in turn, two threads", throughput(), 1.0),
    ]


def _has_bfloat16() -> bool:
    """Whether the processor multiplies such numbers itself; without, it takes twice as long."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def fisher_of(hidden: list[int]) -> Work:
    learner, stream = learner_and_stream(EWC(), hidden)
    return lambda: diagonal_fisher(
        learner.network, learner.q, stream[0].train, torch.Generator().manual_seed(0)
    )


def prediction(hidden: list[int]) -> tuple[Work, Work]:
    learner, _ = learner_and_stream(EVCLPlus(), hidden)
    x, plain = pixels()[:5000], plain_mlp(hidden)

    def passes() -> None:
        with torch.no_grad():
            for _ in range(10):
                for part in x.split(1024):
                    plain(part).softmax(1)

    return lambda: learner.predict_proba(x, task=0, samples=10), passes


def convnet_epochs() -> tuple[Work, Work]:
    x = pictures((3, 32, 32), 2000)
    stream = stream_of(x)
    network = networks.convnet((3, 32, 32), heads=stream.heads)
    learner = after_first_task(EVCLPlus(), network, stream)
    plain = nn.Sequential(network.body, network.heads[0])
    return second_task(learner, stream), plain_epoch(plain, x.float() / 255)


def conversion_rows() -> list[Callable[[], Row]]:
    """Feeding a plain step of 2x100 from bytes, against ready floats."""
    cost: list[Any] = []

    def ratio(name: str, slowdown: str) -> Callable[[], Row]:
        def measure() -> Row:
            if not cost:
                cost.append(conversion_cost())
            return Row(name, 1 + getattr(cost[0], slowdown), 1.05)

        return measure

    return [
        ratio("step fed from bytes / from ready floats", "plain_slowdown"),
        ratio("step fed from a permuted task / from ready floats", "gathered_slowdown"),
    ]


def throughput() -> float:
    """Time for two cells at once with a thread each, over one after the other with two; by turns,
    the least of each."""
    turns = [(_both_at_once(), _in_turn()) for _ in range(3)]
    return min(at_once for at_once, _ in turns) / min(in_turn for _, in_turn in turns)


def _in_turn() -> float:
    work = epochs_of(EVCLPlus(), [256, 256], EPOCHS)
    work()
    start = time.perf_counter()
    work()
    work()
    return time.perf_counter() - start


def _both_at_once() -> float:
    context = multiprocessing.get_context("spawn")
    barrier, times = context.Barrier(2), context.SimpleQueue()
    processes = [context.Process(target=_one_cell, args=(barrier, times)) for _ in range(2)]
    for process in processes:
        process.start()
    taken = [times.get() for _ in processes]
    for process in processes:
        process.join()
    return float(max(taken))


def _one_cell(barrier: Barrier, times: Any) -> None:
    torch.set_num_threads(1)
    work = epochs_of(EVCLPlus(), [256, 256], EPOCHS)
    work()
    barrier.wait()
    start = time.perf_counter()
    work()
    times.put(time.perf_counter() - start)
