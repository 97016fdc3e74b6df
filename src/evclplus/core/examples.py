"""Labelled inputs: rows of a store that several tasks may share, and the head that answers them."""

from dataclasses import dataclass, field, replace
from math import prod

import torch
from torch import Tensor


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

    def __call__(self, rows: Tensor) -> Tensor:
        if self.permutation is not None:
            # Reordering before the conversion moves bytes instead of floats.
            rows = rows.flatten(1).index_select(1, self.permutation).view(rows.shape)
        if self.blank is not None:
            rows = rows.flatten(1).masked_fill(self.blank, 0).view(rows.shape)
        if rows.dtype == torch.uint8:  # pixels; other integers are tokens and stay what they are
            rows = rows.to(torch.get_default_dtype())
        if self.scale != 1.0:
            rows = rows * self.scale
        return rows + self.shift if self.shift != 0.0 else rows


@dataclass(frozen=True)
class Examples:
    """Labelled inputs for one head.

    `store` is kept once and shared by every task cut from it; `rows` says which of its rows are
    these examples (None: all of them). Only the first `outputs` outputs of the head are in use:
    in a class-incremental stream that number grows from task to task.
    """

    store: Tensor
    labels: Tensor
    outputs: int
    head: int = 0
    rows: Tensor | None = None
    view: View = field(default_factory=View)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.store.shape[1:])

    @property
    def input_size(self) -> int:
        return prod(self.input_shape)

    def inputs(self, index: Tensor | None = None) -> Tensor:
        """Network input for the examples at `index`, or for all of them."""
        rows = self.rows
        if index is not None:
            rows = index if rows is None else rows[index]
        return self.view(self.store if rows is None else self.store[rows])

    def take(self, index: Tensor) -> "Examples":
        """The examples at `index`, still rows of the same store."""
        rows = index if self.rows is None else self.rows[index]
        return replace(self, labels=self.labels[index], rows=rows)

    def without(self, index: Tensor) -> "Examples":
        """All examples but those at `index`."""
        keep = torch.ones(len(self), dtype=torch.bool)
        keep[index] = False
        return self.take(keep.nonzero().squeeze(1))

    def materialised(self) -> "Examples":
        """A copy that owns its inputs and nothing else, for memory that must outlive the store."""
        return Examples(self.inputs().clone(), self.labels.clone(), self.outputs, self.head)
