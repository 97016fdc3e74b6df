"""Views: the quick conversions equal the plain ones, and rotations turn the right way."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from evclplus.core.examples import SMALL_BATCH, Examples, View, rows_at_once
from evclplus.errors import DataError
from evclplus.streams.rotated import rotated_tasks, rotation
from evclplus.streams.settings import pixel_permutation
from evclplus.streams.task import Stream


@settings(max_examples=60, deadline=None)
@given(
    count=st.sampled_from([1, 2, 7, 256, SMALL_BATCH, SMALL_BATCH + 1]),
    channels=st.sampled_from([1, 3]),
    kind=st.sampled_from([torch.uint8, torch.float32]),
    scale=st.sampled_from([1.0, 1 / 255, 2.5]),
    shift=st.sampled_from([0.0, -0.5]),
    permuted=st.booleans(),
    blanked=st.booleans(),
)
def test_views_equal_the_plain_formula(
    count: int,
    channels: int,
    kind: torch.dtype,
    scale: float,
    shift: float,
    permuted: bool,
    blanked: bool,
) -> None:
    generator = torch.Generator().manual_seed(count)
    store = torch.randint(0, 256, (count + 3, channels, 4, 5), generator=generator).to(kind)
    order = torch.randperm(channels * 20, generator=generator)
    blank = torch.rand(channels * 20, generator=generator) < 0.3
    view = View(scale, shift, order if permuted else None, blank if blanked else None)
    index = torch.randint(0, count, (count,), generator=generator)
    rows = torch.arange(3, count + 3)
    before = store.clone()
    examples = Examples(store, torch.zeros(count, dtype=torch.int64), 2, rows=rows, view=view)

    expected = store[rows[index]].flatten(1)
    expected = expected[:, order] if permuted else expected
    expected = torch.where(blank, torch.zeros_like(expected), expected) if blanked else expected
    expected = (expected.float() * scale + shift).view(-1, channels, 4, 5)
    given_ = examples.inputs(index)
    assert torch.equal(given_, expected)
    assert given_.view(count, -1).shape == (count, channels * 20)
    assert torch.equal(examples.inputs()[index], expected)
    assert torch.equal(examples.gathered().inputs(index), expected)
    assert examples.materialised().store.is_contiguous()
    assert torch.equal(store, before)


def test_tokens_stay_integers() -> None:
    tokens = torch.arange(12).view(3, 4)
    assert torch.equal(Examples(tokens, torch.zeros(3), 2).inputs(), tokens)


def pictures() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(3).integers(1, 256, size=(20, 9, 9), dtype=np.uint8)
    return x, np.arange(20) % 2


def turned(stream: Stream, task: int) -> tuple[torch.Tensor, np.ndarray]:
    train = stream[task].train
    assert train.rows is not None
    return train.inputs(), pictures()[0][train.rows.numpy()]


def test_quarter_turns_are_exact() -> None:
    stream = rotated_tasks(*pictures(), angles=(0, 90, 180, 270, 360), scaling="raw")
    for task, quarter in enumerate((0, 1, 2, 3, 0)):
        given_, stored = turned(stream, task)
        assert np.array_equal(given_.numpy(), np.rot90(stored, quarter, axes=(1, 2)))


def test_other_angles_agree_with_pillow() -> None:
    stream = rotated_tasks(*pictures(), angles=(0, 25, 45, 100), scaling="raw")
    for task, angle in enumerate((0, 25, 45, 100)):
        given_, stored = turned(stream, task)
        expected = np.stack([np.asarray(Image.fromarray(image).rotate(angle)) for image in stored])
        assert (given_.numpy() == expected).mean() > 0.97  # ties may round the other way


def test_colours_turn_and_shuffle_together() -> None:
    source, inside = rotation((3, 6, 6), 30)
    assert torch.equal(source[36:72], source[:36] + 36)
    assert torch.equal(inside[72:], inside[:36])
    order = pixel_permutation((3, 6, 6), 0, 0)
    assert torch.equal(order[72:], order[:36] + 72)
    assert sorted(order.tolist()) == list(range(108))


def test_what_is_no_picture_cannot_be_turned() -> None:
    with pytest.raises(DataError, match="cannot be rotated"):
        rotated_tasks(np.arange(80).reshape(20, 4), np.arange(20) % 2)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((5, 784), 1024), ((5, 3, 32, 32), 682), ((1, 2**22), 1), ((0, 784), 1024)],
)
def test_few_large_inputs_are_looked_at_together(shape: tuple[int, ...], expected: int) -> None:
    assert rows_at_once(torch.empty(shape, device="meta")) == expected
