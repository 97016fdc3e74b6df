"""Following how training gets on. The loop reports to a `Callback`; this one stays silent."""

from collections.abc import Callable, Mapping

from torch import Tensor

LazyTerms = Callable[[], Mapping[str, Tensor]]
"""Computes the named parts of the loss. Only called by who shows them: it takes a while."""


class Callback:
    """Silent. Subclasses draw a bar, write a log or pass events on."""

    def start(self, label: str, steps: int) -> None:
        """A phase of so many steps begins."""

    def advance(self, step: int, terms: LazyTerms) -> None:
        """A step is done; `terms()` are the named parts of its loss."""

    def finish(self) -> None:
        """The phase is over."""
