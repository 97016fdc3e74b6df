"""Streams beyond pictures of bytes: features of pretrained networks, and a table."""

from dataclasses import replace
from pathlib import Path

from pydantic import Field

from evclplus.data import features
from evclplus.data.datasets import find_dataset
from evclplus.data.loading import dataset
from evclplus.streams.arrays import labelled
from evclplus.streams.holdout import Splits, hold_out, make_splits
from evclplus.streams.scaling import Scaling
from evclplus.streams.shuffle import Purpose
from evclplus.streams.split import SplitSettings, split_stream
from evclplus.streams.task import Stream

Folder = Path | str | None


class NewsgroupsSettings(SplitSettings):
    """split-newsgroups. A vector has length 1, so its 384 numbers are small; times sqrt(384) their
    mean square is 1, whatever the data."""

    scaling: Scaling | None = Field("raw", description="unit, centred, symmetric, standard or raw")
    scale: float | None = Field(384**0.5, description="factor of a stored value")


class LetterSettings(SplitSettings):
    """split-letter. There is no official test split."""

    test_fraction: float = Field(0.2, gt=0, lt=1, description="share held out as test")


def split_newsgroups(
    name: str, settings: NewsgroupsSettings, seed: int, data_dir: Folder
) -> Stream:
    data = _splits(name, features.of_newsgroups(data_dir), settings, "newsgroups")
    return split_stream(name, data, settings, seed)


def split_cifar10_features(
    name: str, settings: SplitSettings, seed: int, data_dir: Folder
) -> Stream:
    data = _splits(name, features.of_cifar10(data_dir), settings, "cifar10")
    return split_stream(name, data, settings, seed)


def split_letter(name: str, settings: LetterSettings, seed: int, data_dir: Folder) -> Stream:
    arrays = dataset("letter", data_dir=data_dir)
    made = make_splits(
        arrays.train,
        test=None,
        validation=None,
        test_fraction=settings.test_fraction,
        validation_fraction=settings.validation_fraction,
        seed=settings.holdout_seed,
        what="letter",
    )
    # Measurements are whole numbers from 0 to 15.
    data = replace(made, class_names=arrays.class_names, max_value=15.0)
    return split_stream(name, data, settings, seed)


def _splits(name: str, found: features.Pair, settings: SplitSettings, of: str) -> Splits:
    (train, train_labels), (test, test_labels) = found
    learned, validation = hold_out(
        labelled((train.read(name), train_labels), of),
        settings.validation_fraction,
        Purpose.VALIDATION,
        settings.holdout_seed,
    )
    tested = labelled((test.read(name), test_labels), of)
    return Splits(learned, validation, tested, dict(enumerate(find_dataset(of).class_names)))
