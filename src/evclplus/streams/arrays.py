"""What users give as inputs and labels, checked and turned into tensors."""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evclplus.core.examples import rows_at_once
from evclplus.errors import DataError

AS_THEY_ARE = (torch.float32, torch.uint8, torch.int64)
"""Types of inputs that are not converted."""

Pair = tuple[Any, Any]
"""Inputs and integer labels, each a numpy array, a torch tensor or a nested list."""


@dataclass(frozen=True)
class Labelled:
    """Rows of a store with the class of each: one split (train, validation or test) of a dataset.

    `classes` has an entry for every row of the store; `rows` are the ones that belong here.
    """

    store: Tensor
    classes: Tensor
    rows: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def keep(self, rows: Tensor) -> "Labelled":
        """The same store with other rows of it."""
        return Labelled(self.store, self.classes, rows)


def labelled(pair: Pair, what: str) -> Labelled:
    """Check `(inputs, labels)` and share the inputs' memory where their type allows it."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise DataError(f"{what} must be a pair (inputs, labels), got {type(pair).__name__}")
    store = inputs_of(pair[0], what)
    classes = _classes(pair[1], what)
    if len(store) != len(classes):
        raise DataError(
            f"{what} has {len(store)} inputs but {len(classes)} labels; give one label per input"
        )
    return Labelled(store, classes, torch.arange(len(store)))


def check_alike(first: Labelled, second: Labelled, names: tuple[str, str]) -> None:
    """Both must hold inputs of one shape and one kind."""
    shapes = tuple(first.store.shape[1:]), tuple(second.store.shape[1:])
    if shapes[0] != shapes[1]:
        raise DataError(
            f"inputs of {names[0]} have the shape {shapes[0]} but those of {names[1]} {shapes[1]};"
            " give both the same shape"
        )
    if first.store.dtype != second.store.dtype:
        kinds = [str(split.store.dtype).removeprefix("torch.") for split in (first, second)]
        raise DataError(
            f"inputs of {names[0]} are {kinds[0]} but those of {names[1]} {kinds[1]}; give both"
            " the same type"
        )


def listed(values: Any, what: str) -> list[Any]:
    """What was given one after the other, as a list."""
    if isinstance(values, str | bytes | dict) or not isinstance(values, Iterable):
        raise DataError(f"{what} are of type {type(values).__name__}; give a list of them")
    try:
        return list(values)
    except TypeError:  # a tensor of one number says that it can be gone through
        raise DataError(f"{what} are one number; give a list of them") from None


def tensor_of(values: Any, what: str) -> Tensor:
    """Numbers in any form as a tensor, which shares their memory where it can."""
    if isinstance(values, Tensor):
        if values.layout is not torch.strided or values.is_quantized or values.is_meta:
            raise DataError(f"{what} is a tensor without plain numbers; give a dense one")
        return values.detach().cpu()
    try:
        array = np.asarray(values)
        if isinstance(values, np.memmap) and array.flags.c_contiguous and array.dtype.isnative:
            return _mapped(array)
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        if not array.flags.writeable:
            # torch warns about sharing read-only memory; the pixels are never written to.
            array = array.copy()
        return torch.from_numpy(np.ascontiguousarray(array))
    except Exception:  # whatever an object does when it is asked for its numbers
        raise DataError(
            f"{what} is not an array of numbers; give a numpy array or a torch tensor"
        ) from None


def _mapped(array: NDArray[Any]) -> Tensor:
    """An array on disk stays there, whoever may write to it: nobody here does."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable")
        return torch.from_numpy(array)


def inputs_of(values: Any, what: str) -> Tensor:
    store = tensor_of(values, f"the inputs of {what}")
    if isinstance(values, np.memmap) and store.dtype not in AS_THEY_ARE:
        raise DataError(
            f"the inputs of {what} are an array on disk of type {values.dtype}, which would have "
            "to be converted in memory; store it as float32, uint8 or int64, or pass np.array(x)"
        )
    if store.ndim < 2:
        raise DataError(
            f"the inputs of {what} have the shape {tuple(store.shape)};"
            " expected (examples, ...) with at least two dimensions"
        )
    if len(store) == 0 or store.numel() == 0:
        raise DataError(
            f"{what} is empty: its inputs have the shape {tuple(store.shape)}; give examples"
        )
    if store.is_complex():
        raise DataError(f"the inputs of {what} are complex numbers; give real ones")
    if store.is_floating_point():
        store = store.to(torch.float32)
        _check_finite(store, what)
    elif store.dtype != torch.uint8:
        # Bytes are pixels and are scaled later; other integers are tokens, for an embedding.
        store = store.to(torch.int64)
    return store.contiguous()


def _check_finite(store: Tensor, what: str) -> None:
    rows = store.flatten(1).split(rows_at_once(store))
    bad = torch.cat([~torch.isfinite(some).all(dim=1) for some in rows])
    if bad.any():
        first = int(bad.nonzero()[0])
        raise DataError(
            f"{what} has NaN or infinite inputs in {int(bad.sum())} of {len(store)} rows, first in"
            f" row {first}; clean or drop them"
        )


def _classes(values: Any, what: str) -> Tensor:
    classes = tensor_of(values, f"the labels of {what}")
    if classes.ndim != 1:
        raise DataError(
            f"the labels of {what} have the shape {tuple(classes.shape)};"
            " expected one integer per example"
        )
    if classes.is_floating_point() or classes.is_complex() or classes.dtype == torch.bool:
        raise DataError(
            f"the labels of {what} are of type {str(classes.dtype).removeprefix('torch.')};"
            " expected integers"
        )
    return classes.to(torch.int64)
