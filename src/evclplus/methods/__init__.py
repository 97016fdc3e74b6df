"""The methods by name. A new one is a new file and a line in `METHODS`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from evclplus.errors import SettingsError
from evclplus.methods.base import Method
from evclplus.methods.coreset import Coreset
from evclplus.methods.evcl import EVCL
from evclplus.methods.evcl_plus import EVCLPlus
from evclplus.methods.ewc import EWC
from evclplus.methods.finetune import FineTune
from evclplus.methods.joint import Joint
from evclplus.methods.vcl import VCL
from evclplus.settings import nearest


@dataclass(frozen=True)
class Entry:
    """How a method is built from options, and what it is in one line."""

    build: Callable[..., Method]
    options: tuple[str, ...]
    description: str


def _plain(kind: type[Method]) -> Entry:
    return Entry(kind, tuple(kind.model_fields), (kind.__doc__ or "").splitlines()[0])


def _with_coreset(
    kind: type[Method], selection: Literal["random", "kcenter"], description: str, alone: bool
) -> Entry:
    """A method wrapped in a coreset; the options of both are given together."""
    own = ("coreset_size", "coreset_budget", "coreset_epochs")

    def build(**options: Any) -> Method:
        outer = {name: options.pop(name) for name in own if name in options}
        return Coreset(method=kind(**options), selection=selection, alone=alone, **outer)

    return Entry(build, (*kind.model_fields, *own), description)


METHODS: dict[str, Entry] = {
    "evcl+": _plain(EVCLPlus),
    "evcl": _plain(EVCL),
    "vcl": _plain(VCL),
    "vcl-random": _with_coreset(VCL, "random", "VCL with a random coreset.", False),
    "vcl-kcenter": _with_coreset(VCL, "kcenter", "VCL with a k-center coreset.", False),
    "ewc": _plain(EWC),
    "coreset-random": _with_coreset(VCL, "random", "A random coreset alone.", True),
    "coreset-kcenter": _with_coreset(VCL, "kcenter", "A k-center coreset alone.", True),
    "finetune": _plain(FineTune),
    "joint": _plain(Joint),
    "evcl+-random": _with_coreset(EVCLPlus, "random", "EVCL+ with a random coreset.", False),
    "evcl+-kcenter": _with_coreset(EVCLPlus, "kcenter", "EVCL+ with a k-center coreset.", False),
}


RETIRED = {"fisher_at": "mean"}
"""Options that are gone, with the value that means what is done now. Records made when they were
there have it in them."""


def method(name: str, **options: Any) -> Method:
    """A method by its name, with its options."""
    options = dict(pair for pair in options.items() if pair not in RETIRED.items())
    if name not in METHODS:
        raise SettingsError(f"there is no method {name!r}; {nearest(name, METHODS)}")
    entry = METHODS[name]
    for option in options:
        if option not in entry.options:
            hint = nearest(option, entry.options)
            raise SettingsError(f"method {name} has no option {option!r}; {hint}")
    return entry.build(**options)
