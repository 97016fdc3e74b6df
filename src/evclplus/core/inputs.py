"""Networks of several inputs, and transformers of text, as networks of one tensor.

A learner keeps, cuts, shuffles and saves one tensor of examples. What a module takes beside it
(a mask, a second picture) is in the same row, and the module here takes the row apart: nothing else
has to know.
"""

from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from evclplus.errors import ConversionError, DataError

LARGEST_WHOLE = 2**24
"""The largest whole number that a float of 32 bits holds exactly, and all below it."""


class SeveralInputs(nn.Module):
    """A module of several inputs as a network of one: each row of x has them one after the other.

    shapes   of each input, for one example, by the name it has in the module's forward
    whole    the names of those that are whole numbers, such as tokens and masks

    `pack(**inputs)` makes x. If all inputs are whole numbers x is one of int64, else of float32.
    """

    def __init__(
        self,
        module: nn.Module,
        shapes: Mapping[str, Sequence[int]],
        whole: Collection[str] = (),
    ) -> None:
        super().__init__()
        self.module = module
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self.whole = frozenset(whole)
        if not self.shapes or not self.whole <= self.shapes.keys():
            raise ConversionError(
                f"the inputs are {sorted(self.shapes)} and whole numbers are {sorted(self.whole)}; "
                "give a shape for each input, and whole numbers among them"
            )

    def pack(self, **inputs: Any) -> Tensor:
        """The inputs as one tensor, a row for each example."""
        if inputs.keys() != self.shapes.keys():
            raise DataError(f"got the inputs {sorted(inputs)}; expected {sorted(self.shapes)}")
        given = {name: torch.as_tensor(inputs[name]) for name in self.shapes}
        rows = len(next(iter(given.values())))
        for name, shape in self.shapes.items():
            self._check(name, given[name], (rows, *shape))
        kind = torch.int64 if self.whole == self.shapes.keys() else torch.float32
        return torch.cat([one.reshape(rows, -1).to(kind) for one in given.values()], 1)

    def _check(self, name: str, values: Tensor, shape: tuple[int, ...]) -> None:
        if tuple(values.shape) != shape:
            raise DataError(f"the input {name} has shape {tuple(values.shape)}; expected {shape}")
        if name not in self.whole:
            return
        if values.is_floating_point() or values.is_complex():
            raise DataError(f"the input {name} is {values.dtype}; expected whole numbers")
        beside_floats = self.whole != self.shapes.keys()
        if beside_floats and bool((values.long().abs() > LARGEST_WHOLE).any()):
            raise DataError(
                f"the input {name} goes beyond {LARGEST_WHOLE}, the largest whole number that can "
                "lie beside floats; number its values anew"
            )

    def forward(self, x: Tensor) -> Any:
        if self.whole and x.dtype in (torch.bfloat16, torch.float16):
            raise ConversionError(f"{x.dtype} holds no whole numbers; make the module float32")
        parts = x.flatten(1).split([prod(shape) for shape in self.shapes.values()], 1)
        inputs = {
            name: (part.long() if name in self.whole else part).reshape(len(x), *shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }
        return self.module(**inputs)

    def extra_repr(self) -> str:
        return f"{self.shapes}, whole={sorted(self.whole)}"


class TextEncoder(nn.Module):
    """A transformer of the package transformers as the body of a network: rows of tokens to
    features, the mean of the last layer over the tokens that are not padding.

    The mask follows from the tokens, so tokens are all that an example needs. Parameters without
    requires_grad stay as they are: with adapters (LoRA) only these are learned, and a saved learner
    has only these, beside a checksum of each frozen parameter.
    """

    def __init__(self, model: nn.Module, padding: int = 0) -> None:
        super().__init__()
        self.model = model
        self.padding = padding

    def forward(self, tokens: Tensor) -> Tensor:
        mask = (tokens != self.padding).long()
        hidden = self.model(input_ids=tokens, attention_mask=mask).last_hidden_state
        return mean_over_tokens(hidden, mask)

    def extra_repr(self) -> str:
        """What a transformer's modules do not say of themselves."""
        config = getattr(self.model, "config", None)
        names = ("model_type", "num_attention_heads", "hidden_act")
        said = {name: getattr(config, name) for name in names if hasattr(config, name)}
        return ", ".join(
            f"{name}={value}" for name, value in ({"padding": self.padding} | said).items()
        )


def mean_over_tokens(hidden: Tensor, mask: Tensor) -> Tensor:
    """The mean of the rows of (examples, tokens, features) that the mask has."""
    there = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * there).sum(1) / there.sum(1).clamp_min(1.0)
