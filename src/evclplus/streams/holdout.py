"""Train, validation and test sides of a dataset, by a fixed seed and without leaks."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evclplus.errors import DataError, SettingsError
from evclplus.streams.arrays import Labelled, Pair, check_alike, labelled
from evclplus.streams.shuffle import Purpose, random_order


@dataclass(frozen=True)
class Sides:
    """A dataset's three sides. They may share a store but never a row.

    `class_names` name the tasks; `largest` is the largest value a stored byte can have; `notes`
    are warnings that a reader of the results must see.
    """

    train: Labelled
    validation: Labelled
    test: Labelled
    class_names: Mapping[int, str] = field(default_factory=dict)
    largest: float = 255.0
    notes: tuple[str, ...] = ()


def sides(
    data: Pair,
    *,
    test: Pair | None,
    validation: Pair | None,
    test_fraction: float,
    validation_fraction: float,
    seed: int,
    what: str = "the data",
) -> Sides:
    """Use the sides that were given and hold the missing ones out of `data`, stratified."""
    if not 0 < test_fraction < 1 or not 0 <= validation_fraction < 1:
        raise SettingsError(
            f"test_fraction {test_fraction} and validation_fraction {validation_fraction} must be"
            " between 0 and 1"
        )
    train = labelled(data, what)
    notes: tuple[str, ...] = ()
    if test is None:
        train, test_side = hold_out(train, test_fraction, Purpose.TEST, seed, what)
    else:
        test_side = labelled(test, f"the test part of {what}")
        check_alike(train, test_side, (what, "its test part"))
        notes = _leak(train, test_side, what)
    if validation is None:
        train, validation_side = hold_out(
            train, validation_fraction, Purpose.VALIDATION, seed, what
        )
    else:
        validation_side = labelled(validation, f"the validation part of {what}")
        check_alike(train, validation_side, (what, "its validation part"))
    return Sides(train, validation_side, test_side, notes=notes)


def _leak(train: Labelled, test: Labelled, what: str) -> tuple[str, ...]:
    """A warning when the test part that was given repeats training examples."""
    known = set(digests(train.store, train.rows))
    shared = sum(digest in known for digest in digests(test.store, test.rows))
    if not shared:
        return ()
    return (
        f"{shared} of the {len(test)} test examples of {what} are in its training part too, so the"
        " accuracies are too high",
    )


def hold_out(
    side: Labelled, fraction: float, purpose: Purpose, seed: int, what: str = "the data"
) -> tuple[Labelled, Labelled]:
    """Split off `fraction` of every class. Copies of one picture all stay or all go.

    Two kinds of pictures always stay: one that occurs with different labels, which could not be
    answered rightly twice, and one with so many copies that it would be over a tenth of what is
    held out of its class.
    """
    if fraction == 0.0:
        return side, side.keep(side.rows[:0])
    rows = side.rows.numpy()
    classes = side.classes[side.rows].numpy()
    pictures = picture_numbers(side.store, side.rows)
    copies = Counter(pictures.tolist())
    labels_of: dict[int, set[int]] = {}
    for picture, label in zip(pictures.tolist(), classes.tolist(), strict=True):
        if copies[picture] > 1:
            labels_of.setdefault(picture, set()).add(label)

    wanted = {
        label: max(1, round(fraction * count)) for label, count in Counter(classes.tolist()).items()
    }
    held_pictures: set[int] = set()
    taken: Counter[int] = Counter()
    for position in random_order(len(rows), purpose, seed).tolist():
        picture, label = int(pictures[position]), int(classes[position])
        if picture in held_pictures or len(labels_of.get(picture, ())) > 1:
            continue
        room = min(wanted[label] - taken[label], max(1, wanted[label] // 10))
        if copies[picture] <= room:
            held_pictures.add(picture)
            taken[label] += copies[picture]

    held = np.isin(pictures, np.fromiter(held_pictures, dtype=np.int64, count=len(held_pictures)))
    _check_both_filled(classes, held, what)
    return side.keep(torch.from_numpy(rows[~held])), side.keep(torch.from_numpy(rows[held]))


def picture_numbers(store: Tensor, rows: Tensor) -> NDArray[np.int64]:
    """A number per row such that equal rows, and only they, have equal numbers."""
    first_seen: dict[bytes, int] = {}
    numbers = (
        first_seen.setdefault(digest, position)
        for position, digest in enumerate(digests(store, rows))
    )
    return np.fromiter(numbers, dtype=np.int64, count=len(rows))


def digests(store: Tensor, rows: Tensor) -> Iterator[bytes]:
    """A short hash of every row's content."""
    array = store.numpy()
    for row in rows.tolist():
        yield blake2b(array[row].tobytes(), digest_size=16).digest()


def _check_both_filled(classes: NDArray[np.int64], held: NDArray[np.bool_], what: str) -> None:
    for label in np.unique(classes).tolist():
        of_class = classes == label
        if not (held & of_class).any() or not (~held & of_class).any():
            raise DataError(
                f"class {label} of {what} has {int(of_class.sum())} examples, too few different"
                " ones to hold some out; give test= and validation= or more examples"
            )
