"""Equal rows are found by content alone, whatever their type and size."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evclplus.streams import duplicates
from evclplus.streams.duplicates import CHUNK, fingerprints, first_equal


def row_by_row(store: torch.Tensor, rows: torch.Tensor) -> list[int]:
    """The definition: a dictionary of the rows' bytes."""
    first_seen: dict[bytes, int] = {}
    contents = (store[row].numpy().tobytes() for row in rows)
    return [first_seen.setdefault(content, position) for position, content in enumerate(contents)]


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from([torch.uint8, torch.int64, torch.float32]),
    shape=st.sampled_from([(1,), (7,), (8,), (3, 5), (1, 4, 4)]),
    largest=st.sampled_from([1, 2, 255]),
    count=st.sampled_from([1, 2, 60, CHUNK + 3]),
    seed=st.integers(0, 10**6),
)
def test_the_first_equal_row(
    kind: torch.dtype, shape: tuple[int, ...], largest: int, count: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    store = torch.randint(0, largest + 1, (count, *shape), generator=generator).to(kind)
    rows = torch.randint(0, count, (count,), generator=generator)
    assert first_equal(store, rows).tolist() == row_by_row(store, rows)


def test_no_rows() -> None:
    assert len(first_equal(torch.zeros(3, 4), torch.arange(0))) == 0


def test_rows_that_share_a_fingerprint_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    store = torch.tensor([[1, 2], [3, 4], [1, 2], [5, 6], [3, 4]], dtype=torch.uint8)
    monkeypatch.setattr(
        duplicates, "fingerprints", lambda store, rows: np.zeros(len(rows), dtype=np.uint64)
    )
    assert first_equal(store, torch.arange(5)).tolist() == [0, 1, 0, 3, 1]


@pytest.mark.parametrize("byte", range(8))
def test_fingerprints_tell_every_byte_apart(byte: int) -> None:
    """Rows that differ in one byte of each word only, also in the highest."""
    values = np.random.default_rng(0).integers(0, 256, size=(20_000, 4), dtype=np.uint8)
    store = np.zeros((20_000, 4, 8), dtype=np.uint8)
    store[:, :, byte] = values
    hashes = fingerprints(torch.from_numpy(store), torch.arange(20_000))
    assert len(np.unique(hashes)) == len(np.unique(values, axis=0))


def test_fingerprints_depend_on_content_alone() -> None:
    store = torch.randint(0, 256, (40, 3, 5), dtype=torch.uint8)
    order = torch.randperm(40)
    moved = store[order]
    expected = fingerprints(store, order)
    assert np.array_equal(fingerprints(moved, torch.arange(40)), expected)
