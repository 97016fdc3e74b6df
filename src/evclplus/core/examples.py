"""Labelled inputs: rows of a store that several tasks may share, and the head that answers them."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np
import torch
from torch import Tensor

from evclplus.errors import DataError

SMALL_BATCH = 1024

MOST_ROWS, MOST_NUMBERS = 1024, 2**21
"""Examples looked at together when nothing is learned from them, and the numbers they may have.
Smaller parts stay in a processor's cache; the activations of pictures are large."""

NUMBERS_PER_TOKEN = 256
"""A token becomes a vector of hundreds of numbers, in every layer of a transformer."""


NUMBERS_IN_MEMORY = 2**26
"""Of inputs that are predicted for together; there may be more than memory has room for."""


def rows_at_once(inputs: Tensor, most: int = MOST_NUMBERS) -> int:
    """How many of the inputs to look at together, which have so many numbers at the most."""
    tokens = inputs.dtype == torch.int64
    numbers = max(1, inputs[:1].numel()) * (NUMBERS_PER_TOKEN if tokens else 1)
    return min(MOST_ROWS, max(1, most // numbers))


@dataclass(frozen=True)
class View:
    """How stored rows become network input: reordered pixels, then `value * scale + shift`.

    `permutation` says for every value of an input where in the stored row it comes from; values
    marked in `blank` come from nowhere (outside a rotated picture) and count as stored zeros.
    """

    scale: float = 1.0
    shift: float = 0.0
    permutation: Tensor | None = None
    blank: Tensor | None = None

    def fingerprint(self) -> str:
        """Says whether two views are the same."""
        digest = hashlib.sha256(repr((self.scale, self.shift)).encode())
        for part in (self.permutation, self.blank):
            digest.update(b"/" if part is None else part.cpu().numpy().tobytes())
        return digest.hexdigest()[:16]

    @property
    def conversion(self) -> "View":
        """What is left to do with rows that are reordered."""
        return View(self.scale, self.shift)

    def reorder(self, rows: Tensor) -> Tensor:
        """Stored rows with their values moved, still as stored. Their memory need not be
        contiguous."""
        if self.permutation is not None:
            rows = _reordered(rows.flatten(1), self.permutation).unflatten(1, rows.shape[1:])
        if self.blank is not None:
            rows = rows.flatten(1).masked_fill(self.blank, 0).view(rows.shape)
        return rows

    def convert(self, rows: Tensor) -> Tensor:
        """Stored values as the network computes with them."""
        if rows.dtype != torch.uint8:  # tokens and other integers stay what they are
            scaled = rows if self.scale == 1.0 else rows * self.scale
            return scaled if self.shift == 0.0 else scaled + self.shift
        # Converting first and then scaling in place is several times faster than a product of
        # bytes and a float.
        values = rows.to(torch.get_default_dtype())
        if self.scale != 1.0:
            values.mul_(self.scale)
        return values if self.shift == 0.0 else values.add_(self.shift)


def _reordered(rows: Tensor, order: Tensor) -> Tensor:
    """`rows[:, order]`, made the quick way.

    Picking single values costs the same for any number of rows. For a minibatch it is quicker to
    pick rows of its transpose, whole runs of bytes; numpy transposes bytes faster than torch.
    """
    if rows.is_cpu and len(rows) <= SMALL_BATCH:
        columns = torch.from_numpy(np.ascontiguousarray(rows.numpy().T))
        return columns.index_select(0, order).t()
    return rows.gather(1, order.expand(rows.shape))


def _check_tensors(store: object, labels: object) -> None:
    for name, value, least in (("inputs", store, 2), ("labels", labels, 1)):
        if not isinstance(value, Tensor):
            raise DataError(
                f"the {name} of examples are of type {type(value).__name__}; give a torch tensor"
            )
        if value.ndim < least:
            raise DataError(
                f"the {name} of examples have the shape {tuple(value.shape)}; expected at least "
                f"{least} dimensions, the first for the examples"
            )
        if name == "labels" and not (value.dtype == torch.int64 or value.is_floating_point()):
            raise DataError(
                f"the labels of examples are {value.dtype}; expected int64 for classes, or "
                "floating-point numbers"
            )


@dataclass(frozen=True)
class Examples:
    """Labelled inputs for one head.

    `store` is kept once and shared by every task cut from it; `rows` says which of its rows are
    these examples (None: all of them). Only the first `outputs` outputs of the head are in use:
    in a class-incremental stream that number grows from task to task. `answers` is a row for each
    example that a method wants beside its label, such as what earlier heads said of it.
    """

    store: Tensor
    labels: Tensor
    outputs: int
    head: int = 0
    rows: Tensor | None = None
    view: View = field(default_factory=View)
    answers: Tensor | None = None

    def __post_init__(self) -> None:
        _check_tensors(self.store, self.labels)
        inputs = self.store if self.rows is None else self.rows
        if len(inputs) != len(self.labels):
            raise DataError(
                f"there are {len(inputs)} inputs but {len(self.labels)} labels; give one label "
                "per input"
            )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.store.shape[1:])

    @property
    def input_size(self) -> int:
        return prod(self.input_shape)

    @property
    def nbytes(self) -> int:
        """What all of them take, as stored."""
        return len(self) * self.input_size * self.store.element_size()

    def inputs(self, index: Tensor | None = None) -> Tensor:
        """Network input for the examples at `index`, or for all of them."""
        return self.view.convert(self.stored(index))

    def stored(self, index: Tensor | None = None) -> Tensor:
        """The same as stored, but reordered."""
        rows = self.rows
        if index is not None:
            rows = index if rows is None else rows.index_select(0, index)
        # index_select copies whole rows and is many times faster than `store[rows]`.
        return self.view.reorder(self.store if rows is None else self.store.index_select(0, rows))

    def take(self, index: Tensor) -> "Examples":
        """The examples at `index`, still rows of the same store."""
        rows = index if self.rows is None else self.rows[index]
        answers = None if self.answers is None else self.answers[index]
        return replace(self, labels=self.labels[index], rows=rows, answers=answers)

    def parts(self) -> Iterator["Examples"]:
        """One after the other, as many at once as memory surely has room for; mostly all."""
        rows = max(1, NUMBERS_IN_MEMORY // max(1, self.input_size))
        if len(self) <= rows:
            yield self
            return
        for index in torch.arange(len(self)).split(rows):
            yield self.take(index)

    def without(self, index: Tensor) -> "Examples":
        """All examples but those at `index`."""
        keep = torch.ones(len(self), dtype=torch.bool)
        keep[index] = False
        return self.take(keep.nonzero().squeeze(1))

    def gathered(self) -> "Examples":
        """The same examples as a store of their own, in the stored type and already reordered.

        Reordering a minibatch costs more than converting it. A loop that reads the same examples
        many times does it once, for the price of one copy of them while they are trained on.
        """
        if self.rows is None and self.view.permutation is None:
            return self
        rows = torch.arange(len(self.store)) if self.rows is None else self.rows
        store = self.store.new_empty((len(rows), *self.input_shape))
        for part, target in zip(rows.split(SMALL_BATCH), store.split(SMALL_BATCH), strict=True):
            target.copy_(self.view.reorder(self.store.index_select(0, part)))
        return replace(self, store=store, rows=None, view=self.view.conversion)

    def on(self, device: torch.device) -> "Examples":
        """The same examples, kept on a device."""
        if self.store.device == device:
            return self
        moved = self.gathered()
        blank = None if moved.view.blank is None else moved.view.blank.to(device)
        return replace(
            moved,
            store=moved.store.to(device),
            labels=moved.labels.to(device),
            answers=None if moved.answers is None else moved.answers.to(device),
            view=replace(moved.view, blank=blank),
        )

    def for_learning(self) -> "Examples":
        """The same, whatever mode its tensors were made in: gradients cannot pass through those of
        torch.inference_mode."""
        if not (self.store.is_inference() or self.labels.is_inference()):
            return self
        rows = None if self.rows is None else self.rows.clone()
        return replace(self, store=self.store.clone(), labels=self.labels.clone(), rows=rows)

    def kept(self) -> "Examples":
        """For memory that outlives the task. A store that only these examples are in may be an
        array that its owner fills again, so it is copied; one that tasks share is not."""
        own = len(self) == len(self.store) and self.view.permutation is None
        return replace(self, store=self.store.clone()) if own else self

    def materialised(self) -> "Examples":
        """A copy that owns its inputs and nothing else, for memory that must outlive the store."""
        inputs = self.inputs().clone(memory_format=torch.contiguous_format)
        answers = None if self.answers is None else self.answers.clone()
        return Examples(inputs, self.labels.clone(), self.outputs, self.head, answers=answers)
