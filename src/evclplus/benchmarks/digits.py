"""scikit-learn's handwritten digits: 1,797 real images of 8x8 pixels that need no download."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from evclplus.streams.holdout import Splits, make_splits
from evclplus.streams.permuted import PermutedSettings, permuted_stream
from evclplus.streams.settings import StreamSettings
from evclplus.streams.split import SplitSettings, split_stream
from evclplus.streams.task import Stream


def split_digits(name: str, settings: SplitSettings, seed: int, _: Path | str | None) -> Stream:
    return split_stream(name, _digits(settings), settings, seed)


def permuted_digits(
    name: str, settings: PermutedSettings, seed: int, _: Path | str | None
) -> Stream:
    return permuted_stream(name, _digits(settings), settings, seed)


def _digits(settings: StreamSettings) -> Splits:
    """The digits as bytes 0..16 in one channel, a fifth of them held out as the test split."""
    # Imported here: scikit-learn is slow to import and only this dataset needs it.
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    pixels = images.astype(np.uint8).reshape(-1, 1, 8, 8)
    made = make_splits(
        (pixels, labels.astype(np.int64)),
        test=None,
        validation=None,
        test_fraction=0.2,
        validation_fraction=settings.validation_fraction,
        seed=settings.holdout_seed,
        what="digits",
    )
    return replace(made, max_value=16.0)
