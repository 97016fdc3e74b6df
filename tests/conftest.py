"""Shared by all tests: the same random numbers in every run, and real data where there is any."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from evclplus.data.datasets import DATASETS
from evclplus.data.local import Found, find
from evclplus.files import cache_folder

torch.set_num_threads(1)

RealData = Callable[[str], Found]


@pytest.fixture(autouse=True)
def _the_same_numbers_in_every_run() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def decoded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of the tests' own, so that nothing is decoded twice or left behind."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def real_data(decoded: Path, monkeypatch: pytest.MonkeyPatch) -> RealData:
    """Where a dataset lies on this machine, or a skip."""
    named = (os.environ.get("EVCLPLUS_DATA"), cache_folder())
    roots = [Path(folder) for folder in named if folder and Path(folder).is_dir()]
    monkeypatch.setenv("EVCLPLUS_CACHE", str(decoded))

    def look(name: str) -> Found:
        for root in roots:
            found = next(find(DATASETS[name], root), None)
            if found is not None:
                return found
        pytest.skip(f"{name} is not here: point EVCLPLUS_DATA at it or fetch it")

    return look
