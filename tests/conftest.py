"""Shared by all tests."""

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _the_same_numbers_in_every_run() -> None:
    torch.manual_seed(0)
