"""The real datasets, where this machine has them."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from evclplus.benchmarks.cache import cache_folder
from evclplus.benchmarks.datasets import DATASETS
from evclplus.benchmarks.local import Found, find

RealData = Callable[[str], Found]


@pytest.fixture(scope="session")
def real_data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealData]:
    """Where a dataset lies, or a skip. What is decoded goes to a cache of the tests' own."""
    own_cache = cache_folder()
    patch = pytest.MonkeyPatch()
    patch.setenv("EVCLPLUS_CACHE", str(tmp_path_factory.mktemp("cache")))
    # EVCLPLUS_DATA stays what it is; files fetched earlier are found through it as a last resort.
    roots = [Path(folder) for folder in (os.environ.get("EVCLPLUS_DATA"), own_cache) if folder]

    def look(name: str) -> Found:
        for root in roots:
            found = next(find(DATASETS[name], root), None)
            if found is not None:
                return found
        pytest.skip(f"{name} is not here: point EVCLPLUS_DATA at it or fetch it")

    yield look
    patch.undo()
