"""The benchmarks by name. A new one is a builder and one entry here."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from evclplus.benchmarks.digits import digits
from evclplus.benchmarks.permuted import PermutedSettings, permuted_stream
from evclplus.benchmarks.settings import StreamSettings
from evclplus.benchmarks.split import SplitSettings, split_stream
from evclplus.benchmarks.task import Stream
from evclplus.config import nearest
from evclplus.errors import SettingsError


@dataclass(frozen=True)
class Benchmark:
    """A named stream: what it is, what can be set and the network it is usually run with."""

    name: str
    description: str
    settings: type[StreamSettings]
    build: Callable[[str, Any, int], Stream]
    hidden: tuple[int, ...]


def benchmark(name: str, *, seed: int = 0, **settings: Any) -> Stream:
    """The stream `name`, built with `settings`; what is left out has the published value."""
    found = BENCHMARKS.get(name)
    if found is None:
        raise SettingsError(f"there is no benchmark {name!r}; {nearest(name, BENCHMARKS)}")
    return found.build(name, found.settings(**settings), seed)


def _split_digits(name: str, settings: SplitSettings, seed: int) -> Stream:
    data = digits(settings.validation_fraction, settings.holdout_seed)
    return split_stream(name, data, settings, seed)


def _permuted_digits(name: str, settings: PermutedSettings, seed: int) -> Stream:
    data = digits(settings.validation_fraction, settings.holdout_seed)
    return permuted_stream(name, data, settings, seed)


_ALL = (
    Benchmark(
        "split-digits",
        "scikit-learn's 8x8 digits in pairs 0/1 to 8/9, offline",
        SplitSettings,
        _split_digits,
        (100, 100),
    ),
    Benchmark(
        "permuted-digits",
        "scikit-learn's 8x8 digits, a pixel permutation per task, offline",
        PermutedSettings,
        _permuted_digits,
        (100, 100),
    ),
)

BENCHMARKS = {entry.name: entry for entry in _ALL}
