"""Two cells of a comparison at once, a thread each, against one after the other."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.synchronize import Barrier

import torch

from tools.bench.callback import epochs_by_turns
from tools.bench.ours import RECOMMENDED, mlp_and_stream
from tools.bench.plain import EXAMPLES
from tools.bench.timing import Work

PATIENCE = 600
"""Seconds one cell waits for the other, so that a failure of one ends both."""

_meeting: list[Barrier] = []


def both_at_once(examples: int = EXAMPLES) -> float:
    """Seconds in which each of two processes has trained an epoch. All epochs start together."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(2)
    with ProcessPoolExecutor(2, context, initializer=_one_thread, initargs=(barrier,)) as pool:
        return max(pool.map(_one_cell, [examples] * 2))


def in_turn(examples: int = EXAMPLES) -> float:
    """Seconds for two epochs, one after the other, with all threads."""
    return 2 * _epoch({}, examples)


def _one_thread(barrier: Barrier) -> None:
    torch.set_num_threads(1)
    _meeting.append(barrier)


def _one_cell(examples: int) -> float:
    return _epoch({"wait": lambda: _meeting[0].wait(PATIENCE)}, examples)


def _epoch(rivals: dict[str, Work], examples: int) -> float:
    network, stream = mlp_and_stream([256, 256], examples=examples)
    return epochs_by_turns(RECOMMENDED, network, stream, rivals)[2]["ours"]
