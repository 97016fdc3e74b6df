"""scikit-learn's handwritten digits: 1,797 real images of 8x8 pixels that need no download."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from pydantic import Field, field_validator
from torch import Tensor
from torch.nn import functional as F

from evclplus.core.examples import Examples
from evclplus.core.likelihoods import Regression
from evclplus.streams.holdout import Splits, make_splits
from evclplus.streams.permuted import PermutedSettings, permuted_stream
from evclplus.streams.settings import StreamSettings
from evclplus.streams.shuffle import Purpose, random_fractions
from evclplus.streams.split import SplitSettings, split_stream
from evclplus.streams.task import Scenario, Stream, Task


class AngleSettings(SplitSettings):
    """rotated-digits-angle: by how much a picture is turned is to be told."""

    largest_angle: float = Field(
        60.0, gt=0, le=180, description="degrees; pictures are turned by up to so many, either way"
    )
    turns: int = Field(4, ge=1, le=100, description="angles for each picture, all in one split")
    angle_seed: int = Field(0, ge=0, description="seed of the angles")
    std: float = Field(
        0.2, gt=0, description="of the Gaussian around an output, where a target's deviation is 1"
    )

    @field_validator("scenario")
    @classmethod
    def _has_no_classes(cls, scenario: Scenario) -> Scenario:
        if scenario == "class":
            raise ValueError("numbers are to be predicted, not classes; take task or domain")
        return scenario


def split_digits(name: str, settings: SplitSettings, seed: int, _: Path | str | None) -> Stream:
    return split_stream(name, _digits(settings), settings, seed)


def permuted_digits(
    name: str, settings: PermutedSettings, seed: int, _: Path | str | None
) -> Stream:
    return permuted_stream(name, _digits(settings), settings, seed)


def rotated_digits_angle(
    name: str, settings: AngleSettings, seed: int, _: Path | str | None
) -> Stream:
    """Tasks are cut and split as pictures, before they are turned: no picture is in two splits."""
    stream = split_digits(name, settings, seed, None)
    tasks = tuple(_of_angles(task, settings) for task in stream)
    return replace(stream, tasks=tasks, likelihood=Regression(settings.std))


def _of_angles(task: Task, settings: AngleSettings) -> Task:
    """The targets are the angles, less the mean of the task's training part, over its deviation."""
    train, validation, test = (
        _turned(part, settings) for part in (task.train, task.validation, task.test)
    )
    mean, deviation = train.labels.mean(), train.labels.std(correction=0)

    def scaled(part: Examples) -> Examples:
        return replace(part, labels=((part.labels - mean) / deviation).float())

    return replace(
        task, train=scaled(train), validation=scaled(validation), test=scaled(test), classes=()
    )


def _turned(examples: Examples, settings: AngleSettings) -> Examples:
    """Every picture turned by its own angles, which are the labels, in degrees. They belong to the
    picture: other tasks or splits do not change them."""
    assert examples.rows is not None
    count, turns = len(examples.store), settings.turns
    fractions = random_fractions(count * turns, Purpose.ANGLES, settings.angle_seed)
    angles = settings.largest_angle * (2 * torch.from_numpy(fractions).view(count, turns) - 1)
    rows = examples.rows.repeat_interleave(turns)
    chosen = angles[examples.rows].flatten()
    store = turned(examples.store[rows], chosen)
    return replace(examples, store=store, labels=chosen[:, None], outputs=1, rows=None)


def turned(pictures: Tensor, degrees: Tensor) -> Tensor:
    """Bytes (pictures, channels, height, width), each picture turned counter-clockwise about its
    middle. Between pixels it is linear, and outside there are zeros."""
    turn = degrees.double().deg2rad()
    ratio = pictures.shape[2] / pictures.shape[3]
    cosine, sine, zero = turn.cos(), turn.sin(), torch.zeros_like(turn)
    across = torch.stack([cosine, -sine * ratio, zero], 1)
    down = torch.stack([sine / ratio, cosine, zero], 1)
    grid = F.affine_grid(torch.stack([across, down], 1), list(pictures.shape), align_corners=False)
    found = F.grid_sample(pictures.double(), grid, align_corners=False)
    # Rounded to nine digits first, so that the last bit of a cosine cannot choose the byte.
    return found.round(decimals=9).round().to(torch.uint8)


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
