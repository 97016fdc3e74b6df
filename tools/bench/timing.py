"""Timing by turns."""

import time
from collections.abc import Callable

Work = Callable[[], object]


def seconds_of(work: Work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def alternate(*works: Work, rounds: int) -> list[float]:
    """The least time of each in seconds, taken in turn so that all see the same machine."""
    turns = [[seconds_of(work) for work in works] for _ in range(rounds + 1)]
    return [min(taken) for taken in zip(*turns[1:], strict=True)]  # the first round warms up
