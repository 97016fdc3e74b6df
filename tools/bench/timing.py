"""Timing by turns."""

import gc
import time
from collections.abc import Callable, Mapping

Work = Callable[[], object]

TURN = 0.05
"""Seconds a turn of quick steps should take, long against the clock and whatever interrupts."""


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


def milliseconds(steps: Mapping[str, Work], rounds: int) -> dict[str, float]:
    """The least time of each step, by name. A turn repeats quick steps."""
    gc.collect()  # of earlier networks, which may be large
    counts = [max(1, round(TURN / alternate(step, rounds=1)[0])) for step in steps.values()]
    turns = map(repeated, steps.values(), counts)
    taken = alternate(*turns, rounds=rounds)
    return {
        name: 1000 * seconds / count
        for name, seconds, count in zip(steps, taken, counts, strict=True)
    }
