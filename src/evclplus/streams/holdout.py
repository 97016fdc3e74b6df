"""Train, validation and test splits of a dataset, by a fixed seed and without leaks."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from evclplus.errors import DataError, SettingsError
from evclplus.streams.arrays import Labelled, Pair, check_alike, labelled
from evclplus.streams.duplicates import fingerprints, first_equal
from evclplus.streams.shuffle import Purpose, random_order


@dataclass(frozen=True)
class Splits:
    """A dataset's three splits. They may share a store but never a row.

    `class_names` name the tasks; `max_value` is the largest value a stored byte can have; `notes`
    are warnings that a reader of the results must see.
    """

    train: Labelled
    validation: Labelled
    test: Labelled
    class_names: Mapping[int, str] = field(default_factory=dict)
    max_value: float = 255.0
    notes: tuple[str, ...] = ()


def make_splits(
    data: Pair,
    *,
    test: Pair | None,
    validation: Pair | None,
    test_fraction: float,
    validation_fraction: float,
    seed: int,
    what: str = "the data",
) -> Splits:
    """Use the splits that were given and hold the missing ones out of `data`, stratified."""
    if not isinstance(test_fraction, float | int) or not 0 < test_fraction < 1:
        raise SettingsError(f"test_fraction = {test_fraction!r:.60} is wrong: between 0 and 1")
    if not 0 <= validation_fraction < 1:
        raise SettingsError(
            f"validation_fraction = {validation_fraction} is wrong: at least 0 and below 1"
        )
    train = labelled(data, what)
    notes: tuple[str, ...] = ()
    if test is None:
        train, test_split = hold_out(train, test_fraction, Purpose.TEST, seed, what)
    else:
        test_split = labelled(test, f"the test part of {what}")
        check_alike(train, test_split, (what, "its test part"))
        check_classes_known(train, test_split, what, "test")
        notes = _leak(train, test_split, what)
    if validation is None:
        train, validation_split = hold_out(
            train, validation_fraction, Purpose.VALIDATION, seed, what
        )
    else:
        validation_split = labelled(validation, f"the validation part of {what}")
        check_alike(train, validation_split, (what, "its validation part"))
        check_classes_known(train, validation_split, what, "validation")
    return Splits(train, validation_split, test_split, notes=notes)


def check_classes_known(train: Labelled, other: Labelled, what: str, part: str) -> None:
    """An example of a class that is not learned could only be left out of the score."""
    classes = other.classes[other.rows]
    unknown = ~torch.isin(classes, train.classes[train.rows])
    if unknown.any():
        raise DataError(
            f"{int(unknown.sum())} of the {len(other)} {part} examples of {what} are of classes"
            f" that are not in its training part, such as {int(classes[unknown][0])}; leave them"
            " out, or number the classes of both parts alike (from_folder(..., classes=...))"
        )


def _leak(train: Labelled, test: Labelled, what: str) -> tuple[str, ...]:
    """A warning when the test part that was given repeats training examples."""
    known = fingerprints(train.store, train.rows)
    shared = int(np.isin(fingerprints(test.store, test.rows), known).sum())
    if not shared:
        return ()
    return (
        f"{shared} of the {len(test)} test examples of {what} are in its training part too, so the"
        " accuracies are too high",
    )


def hold_out(
    split: Labelled, fraction: float, purpose: Purpose, seed: int, what: str = "the data"
) -> tuple[Labelled, Labelled]:
    """Split off `fraction` of every class. Copies of one image all stay or all go.

    Two kinds of images always stay: one that occurs with different labels, which could not be
    answered rightly twice, and one with so many copies that it would be over a tenth of what is
    held out of its class.
    """
    if fraction == 0.0:
        return split, split.keep(split.rows[:0])
    rows = split.rows.numpy()
    classes = split.classes[split.rows].numpy()
    # An image is known by the position of its first row.
    images = first_equal(split.store, split.rows)
    copies = np.bincount(images, minlength=len(rows))
    candidates = _without_repeats(images[random_order(len(rows), purpose, seed)])
    ambiguous = np.unique(images[classes != classes[images]])
    candidates = candidates[~np.isin(candidates, ambiguous)]

    chosen = []
    for label, count in zip(*np.unique(classes, return_counts=True), strict=True):
        wanted = max(1, round(fraction * int(count)))
        own = candidates[classes[candidates] == label]
        own = own[copies[own] <= max(1, wanted // 10)]
        chosen.append(own[_first_that_fit(copies[own], wanted)])
    held = np.isin(images, np.concatenate(chosen))
    _check_both_filled(classes, held, what)
    return split.keep(torch.from_numpy(rows[~held])), split.keep(torch.from_numpy(rows[held]))


def _without_repeats(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """The different values in the order in which they first occur."""
    return values[np.sort(np.unique(values, return_index=True)[1])]


def _first_that_fit(sizes: NDArray[np.int64], room: int) -> NDArray[np.int64]:
    """Positions of the sizes that go into `room`, filled in order; what no longer fits is left."""
    left = np.arange(len(sizes))
    fitting = [left[:0]]
    while len(left):
        filled = np.cumsum(sizes[left])
        count = int(np.searchsorted(filled, room, side="right"))
        fitting.append(left[:count])
        room -= int(filled[count - 1]) if count else 0
        left = left[count:][sizes[left[count:]] <= room]
    return np.concatenate(fitting)


def _check_both_filled(classes: NDArray[np.int64], held: NDArray[np.bool_], what: str) -> None:
    for label in np.unique(classes).tolist():
        of_class = classes == label
        if not (held & of_class).any() or not (~held & of_class).any():
            raise DataError(
                f"class {label} of {what} has {int(of_class.sum())} examples, too few different"
                " ones to hold some out; give test= and validation= or more examples"
            )
