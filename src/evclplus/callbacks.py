"""Showing how training gets on. The loop reports to a `Progress`; this one stays silent."""

from collections.abc import Callable, Mapping

from torch import Tensor

Terms = Callable[[], Mapping[str, Tensor]]
"""Computes the named parts of the loss. Only called by who shows them: it takes a while."""


class Progress:
    """Silent. Subclasses draw a bar or pass the news on."""

    def start(self, label: str, steps: int) -> None:
        """A phase of so many steps begins."""

    def advance(self, step: int, terms: Terms) -> None:
        """A step is done; `terms()` are the named parts of its loss."""

    def finish(self) -> None:
        """The phase is over."""
