"""The hold-out is the one that published numbers were made with: row by row, in random order."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evclplus.errors import DataError
from evclplus.streams.arrays import Labelled, labelled
from evclplus.streams.holdout import hold_out
from evclplus.streams.shuffle import Purpose, random_order


def held_row_by_row(side: Labelled, fraction: float, purpose: Purpose, seed: int) -> list[int]:
    """The definition: walk through the rows in random order and hold out what still fits."""
    rows = side.rows.tolist()
    contents = [side.store[row].numpy().tobytes() for row in rows]
    classes = side.classes[side.rows].tolist()
    copies = Counter(contents)
    labels_of: dict[bytes, set[int]] = {}
    for content, label in zip(contents, classes, strict=True):
        labels_of.setdefault(content, set()).add(label)
    wanted = {label: max(1, round(fraction * count)) for label, count in Counter(classes).items()}
    held: set[bytes] = set()
    taken: Counter[int] = Counter()
    for position in random_order(len(rows), purpose, seed).tolist():
        content, label = contents[position], classes[position]
        if content in held or len(labels_of[content]) > 1:
            continue
        room = min(wanted[label] - taken[label], max(1, wanted[label] // 10))
        if copies[content] <= room:
            held.add(content)
            taken[label] += copies[content]
    return [row for row, content in zip(rows, contents, strict=True) if content in held]


def check(side: Labelled, fraction: float, seed: int) -> None:
    expected = held_row_by_row(side, fraction, Purpose.TEST, seed)
    rest = [row for row in side.rows.tolist() if row not in set(expected)]
    every = set(side.classes[side.rows].tolist())
    if any(set(side.classes[part].tolist()) != every for part in (expected, rest)):
        with pytest.raises(DataError, match="too few different ones to hold some out"):
            hold_out(side, fraction, Purpose.TEST, seed)
        return
    left, held = hold_out(side, fraction, Purpose.TEST, seed)
    assert (held.rows.tolist(), left.rows.tolist()) == (expected, rest)


@settings(max_examples=80, deadline=None)
@given(
    count=st.integers(30, 600),
    different=st.sampled_from([0.05, 0.3, 0.8, 1.0]),
    ambiguous=st.sampled_from([0.0, 0.02]),
    classes=st.integers(1, 4),
    fraction=st.sampled_from([0.05, 0.1, 0.2, 0.5, 0.9]),
    seed=st.integers(0, 10**6),
)
def test_the_same_rows_as_one_by_one(
    count: int, different: float, ambiguous: float, classes: int, fraction: float, seed: int
) -> None:
    """Few different pictures make many copies of each; some occur with two labels."""
    generator = np.random.default_rng(seed)
    pictures = generator.integers(0, 256, (max(1, int(different * count)), 1, 3, 3), dtype=np.uint8)
    # Squared, so that some pictures are common and most are rare.
    drawn = (generator.random(count) ** 2 * len(pictures)).astype(np.int64)
    labels = drawn % classes
    changed = generator.random(count) < ambiguous
    labels = np.where(changed, generator.integers(0, classes, count), labels)
    side = labelled((pictures[drawn], labels), "the data")
    side = side.keep(torch.from_numpy(np.flatnonzero(generator.random(count) < 0.9)))
    check(side, fraction, seed)


@pytest.mark.parametrize("seed", range(3))
def test_the_same_rows_as_one_by_one_on_digit_like_pictures(seed: int) -> None:
    """Mostly dark pictures of ten classes, a fifth of them copies, as in notMNIST."""
    generator = np.random.default_rng(seed)
    x = generator.integers(0, 256, (3000, 1, 28, 28), dtype=np.uint8)
    x[generator.random(x.shape) < 0.8] = 0
    y = generator.integers(0, 10, 3000)
    source = generator.integers(0, 3000, 600)
    x[2400:], y[2400:] = x[source], np.where(generator.random(600) < 0.95, y[source], y[2400:])
    check(labelled((x, y), "the data"), 0.1, seed)
