"""Timing by turns."""

import time
from collections.abc import Callable

Work = Callable[[], object]


def alternate(*works: Work, rounds: int) -> list[float]:
    """The least time of each in seconds, taken in turn so that all see the same machine."""
    times: list[list[float]] = [[] for _ in works]
    for _ in range(rounds + 1):
        for work, taken in zip(works, times, strict=True):
            start = time.perf_counter()
            work()
            taken.append(time.perf_counter() - start)
    return [min(taken[1:]) for taken in times]  # the first round warms up


def repeated(work: Work, times: int) -> Work:
    def all_of_it() -> None:
        for _ in range(times):
            work()

    return all_of_it
