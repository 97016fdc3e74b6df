"""Speed, as ratios against rivals measured in the same run, turn by turn.

Absolute times say little on a noisy machine. Each row times our work and its rival in
alternation and compares the least of several rounds.
"""

import gc
import multiprocessing
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import islice, pairwise
from multiprocessing.synchronize import Barrier
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from evclplus import networks
from evclplus.benchmarks import Stream, tasks
from evclplus.benchmarks.speed import conversion_cost
from evclplus.config import Training
from evclplus.core.batches import batches_per_epoch, minibatches
from evclplus.core.coresets import k_center
from evclplus.core.fisher import diagonal_fisher
from evclplus.core.step import LikelihoodGradient, Vectors, step_rates, update
from evclplus.learner import Learner
from evclplus.methods.base import Method
from evclplus.methods.evcl_plus import EVCLPlus
from evclplus.methods.ewc import EWC
from evclplus.progress import Progress
from evclplus.train import fit

BATCH = 256
EXAMPLES = 12_000
"""As many as the second task of SplitMNIST has, give or take a hundred."""

Work = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """What was compared, the ratio, and what we set out to reach."""

    name: str
    ratio: float
    must: float | None = None
    aim: float | None = None
    ours: float | None = None
    rival: float | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def rows(rounds: int = 12) -> list[Callable[[], Row]]:
    """The measurements, each ready to run."""
    mlp = {"2x256": [256, 256], "2x100": [100, 100], "4x150": [150] * 4}
    wide = mlp["2x256"]
    goals = {"2x256": (1.4, 1.0), "2x100": (1.1, 0.7), "4x150": (0.9, 0.7)}

    def timed(name: str, ours: Work, rival: Work, must: float | None, aim: float | None) -> Row:
        first, second = alternate(ours, rival, rounds)
        return Row(name, first / second, must, aim, first, second)

    def epoch_row(name: str) -> Callable[[], Row]:
        def measure() -> Row:
            return timed(
                f"EVCL+ epoch / plain epoch, {name}",
                epoch_of(EVCLPlus(), mlp[name]),
                plain_epoch(plain_mlp(mlp[name]), pixels()),
                *goals[name],
            )

        return measure

    return [
        *(epoch_row(name) for name in mlp),
        lambda: timed(
            "EVCL+ epoch / its matrix products alone, 2x256",
            epoch_of(EVCLPlus(), wide),
            matrix_products(wide),
            *(1.7, 1.25),
        ),
        lambda: timed(
            "EWC epoch / plain epoch, 2x256",
            epoch_of(EWC(), wide),
            plain_epoch(plain_mlp(wide), pixels()),
            *(0.8, 0.6),
        ),
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


def alternate(ours: Work, rival: Work, rounds: int) -> tuple[float, float]:
    """The least time of each, taken in turn so that both see the same machine."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds + 1):
        for work, taken in zip((ours, rival), times, strict=True):
            start = time.perf_counter()
            work()
            taken.append(time.perf_counter() - start)
    return min(times[0][1:]), min(times[1][1:])  # the first round warms up


# The rivals


def pixels() -> Tensor:
    return _bytes().float() / 255


def _bytes(shape: tuple[int, ...] = (1, 28, 28), count: int = EXAMPLES) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=generator)


def _labels(count: int = EXAMPLES) -> Tensor:
    return torch.randint(0, 2, (count,), generator=torch.Generator().manual_seed(1))


def plain_mlp(hidden: list[int]) -> nn.Module:
    return nn.Sequential(*networks.mlp(784, hidden).body.children(), nn.Linear(hidden[-1], 2))


def plain_epoch(network: nn.Module, x: Tensor) -> Work:
    """What people do every day: a DataLoader, autograd and torch's Adam, eager."""
    dataset = TensorDataset(x, _labels(len(x)))
    loader = DataLoader(dataset, batch_size=BATCH, shuffle=True, generator=torch.Generator())
    optimiser = torch.optim.Adam(network.parameters())

    def work() -> None:
        for inputs, labels in loader:
            optimiser.zero_grad()
            F.cross_entropy(network(inputs), labels).backward()
            optimiser.step()

    return work


def matrix_products(hidden: list[int]) -> Work:
    """Every product of one epoch and nothing else: two in each direction per layer."""
    widths = [784, *hidden, 2]
    inputs = [torch.randn(BATCH, width) for width in widths]
    weights = [torch.randn(b, a) for a, b in pairwise(widths)]

    def step() -> None:
        for layer, weight in enumerate(weights):
            for _ in range(2):
                torch.mm(inputs[layer], weight.t())
                torch.mm(inputs[layer + 1].t(), inputs[layer])
                if layer:
                    torch.mm(inputs[layer + 1], weight)

    def work() -> None:
        for _ in range(EXAMPLES // BATCH + 1):
            step()

    return work


# Our work


def _stream(x: Tensor, count: int = 2) -> Stream:
    pair, few = (x, _labels(len(x))), (x[:10], _labels(10))
    return tasks([pair] * count, test=[few] * count, validation=[few] * count)


def _after_first_task(method: Method, network: nn.Module, stream: Stream) -> Learner:
    return Learner(network, method, epochs=1, batch_size=BATCH, compile="off").learn(stream[0])


def _second_task(learner: Learner, stream: Stream) -> Work:
    training = Training(epochs=1, batch_size=BATCH, compile="on")

    def work() -> None:
        fit(
            learner.network,
            learner.q,
            learner.method.regulariser,
            learner.memory,
            [stream[1].train],
            training,
            torch.Generator().manual_seed(0),
            "epoch",
            Progress(),
        )

    return work


def epoch_of(method: Method, hidden: list[int]) -> Work:
    """An epoch of the second task, all penalties on."""
    stream = _stream(_bytes())
    network = networks.mlp(784, hidden, heads=stream.heads)
    return _second_task(_after_first_task(method, network, stream), stream)


def fisher_of(hidden: list[int]) -> Work:
    stream = _stream(_bytes())
    network = networks.mlp(784, hidden, heads=stream.heads)
    learner = _after_first_task(EWC(), network, stream)
    return lambda: diagonal_fisher(
        learner.network, learner.q, stream[0].train, torch.Generator().manual_seed(0)
    )


def prediction(hidden: list[int]) -> tuple[Work, Work]:
    stream = _stream(_bytes())
    network = networks.mlp(784, hidden, heads=stream.heads)
    learner = _after_first_task(EVCLPlus(), network, stream)
    x, plain = pixels()[:5000], plain_mlp(hidden)

    def passes() -> None:
        with torch.no_grad():
            for _ in range(10):
                for part in x.split(1024):
                    plain(part).softmax(1)

    return lambda: learner.predict_proba(x, task=0, samples=10), passes


def convnet_epochs() -> tuple[Work, Work]:
    x = _bytes((3, 32, 32), 2000)
    stream = _stream(x)
    network = networks.convnet((3, 32, 32), heads=stream.heads)
    learner = _after_first_task(EVCLPlus(), network, stream)
    plain = nn.Sequential(network.body, network.heads[0])
    return _second_task(learner, stream), plain_epoch(plain, x.float() / 255)


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


def step_parts(rounds: int = 12) -> dict[str, float]:
    """Milliseconds per step of EVCL+ on its second task, 2x256, by part; least of the rounds."""
    hidden = [256, 256]
    stream = _stream(_bytes())
    network = networks.mlp(784, hidden, heads=stream.heads)
    learner = _after_first_task(EVCLPlus(), network, stream)
    vectors, draws = Vectors(learner.q), torch.Generator().manual_seed(0)
    likelihood = LikelihoodGradient(learner.network, vectors, at_mean=False)
    data = [stream[1].train.gathered()]
    steps = batches_per_epoch(data, BATCH)
    large = list(minibatches(learner.network, data, BATCH, draws))
    small = list(islice(minibatches(learner.network, data, 8, draws), steps))
    compiled = torch.compile(update, fullgraph=True, dynamic=True)
    rates = step_rates([1e-3], vectors.mean)[0]
    examples = torch.tensor(float(EXAMPLES))

    def updates() -> None:
        for _ in range(steps):
            compiled(
                *(vectors, learner.method.regulariser, learner.memory, examples, rates),
                *(None, False),
            )

    noise = BATCH * (sum(hidden) + 2)
    parts: dict[str, Work] = {
        "minibatch: gather bytes, convert": lambda: list(
            minibatches(learner.network, data, BATCH, draws)
        ),
        "likelihood, forward and backward": lambda: [likelihood(batch) for batch in large],
        "of which the matrix products, by themselves": matrix_products(hidden),
        f"of which noise, {noise:,} normal numbers": lambda: [
            torch.randn(noise, generator=draws) for _ in range(steps)
        ],
        "of which Python and small operations (batch of 8)": lambda: [
            likelihood(batch) for batch in small
        ],
        "regulariser, its gradient, Adam: one compiled pass": updates,
    }
    return {
        name: 1000 * alternate(work, lambda: None, rounds)[0] / steps
        for name, work in parts.items()
    }


# Memory and throughput


class _Held(Progress):
    """Adds up the memory of all tensors in one training step."""

    def __init__(self) -> None:
        self.numbers = 0

    def advance(self, step: int, terms: object) -> None:
        if step == 2:
            tensors = [thing for thing in gc.get_objects() if type(thing) in TENSORS]
            self.numbers = sum(dict(map(_memory, tensors)).values()) // 4


TENSORS = (Tensor, nn.Parameter)


def _memory(tensor: Tensor) -> tuple[int, int]:
    """Where a tensor's memory is and how many bytes it has; transforms leave some without."""
    try:
        storage = tensor.untyped_storage()
        return storage.data_ptr(), storage.nbytes()
    except (RuntimeError, NotImplementedError):
        return 0, 0


def memory_in_vectors(count: int) -> float:
    """Numbers held while the last of `count` tasks is trained, beyond data, per weight."""
    stream = _stream(torch.zeros(12, 784), count)
    network = networks.mlp(784, [100, 100], heads=stream.heads)
    before = _Held()
    before.advance(2, None)  # the network and the data
    held = _Held()
    learner = Learner(network, EVCLPlus(), epochs=1, batch_size=4, compile="off", progress=held)
    for task in stream:
        learner.learn(task)
    return (held.numbers - before.numbers) / len(learner.q.mean)


def throughput() -> float:
    """Time for two cells at once with a thread each, over one after the other with two."""
    return median(_both_at_once() for _ in range(3)) / median(_in_turn() for _ in range(3))


def _in_turn() -> float:
    work = epoch_of(EVCLPlus(), [256, 256])
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
    work = epoch_of(EVCLPlus(), [256, 256])
    work()
    barrier.wait()
    start = time.perf_counter()
    work()
    times.put(time.perf_counter() - start)
