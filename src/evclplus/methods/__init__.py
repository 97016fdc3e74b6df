"""The methods by name. A new one is a new file and a line in `METHODS`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from evclplus.errors import SettingsError
from evclplus.methods.agem import AGEM
from evclplus.methods.base import Method, Role
from evclplus.methods.coreset import CORESET, Coreset
from evclplus.methods.der import DarkExperienceReplay
from evclplus.methods.dgr import GenerativeReplay
from evclplus.methods.evcl import EVCL
from evclplus.methods.evcl_plus import EVCLPlus
from evclplus.methods.ewc import EWC
from evclplus.methods.finetune import FineTune
from evclplus.methods.fromp import FROMP
from evclplus.methods.generative import GenerativeClassifier
from evclplus.methods.gpm import GradientProjectionMemory
from evclplus.methods.gvcl import GVCL
from evclplus.methods.hat import HAT
from evclplus.methods.joint import Joint
from evclplus.methods.kfac import KroneckerLaplace
from evclplus.methods.lwf import LearningWithoutForgetting
from evclplus.methods.mas import MemoryAwareSynapses
from evclplus.methods.natural import NaturalVCL
from evclplus.methods.ncl import NaturalContinualLearning
from evclplus.methods.ogd import OrthogonalGradientDescent
from evclplus.methods.progress_compress import ProgressCompress
from evclplus.methods.progressive import Progressive
from evclplus.methods.replay import ExperienceReplay
from evclplus.methods.rwalk import RiemannianWalk
from evclplus.methods.sfsvi import FunctionSpaceVI
from evclplus.methods.space import Space
from evclplus.methods.synaptic import SynapticIntelligence
from evclplus.methods.td_vcl import TDVCL
from evclplus.methods.ucb import UCB
from evclplus.methods.ucl import UCL
from evclplus.methods.vcl import VCL
from evclplus.settings import nearest


@dataclass(frozen=True)
class Entry:
    """A method under a name: how it is built from options, and what others need to know of it."""

    build: Callable[..., Method]
    kind: type[Method]
    options: tuple[str, ...]
    description: str
    role: Role
    colour: str
    marker: str
    space: Space


def _plain(kind: type[Method]) -> Entry:
    description = (kind.__doc__ or kind.__name__).strip().splitlines()[0]
    options = tuple(kind.model_fields)
    style = (kind.role, kind.colour, kind.marker)
    return Entry(kind, kind, options, description, *style, kind.space)


def _variant(kind: type[Method], description: str, style: tuple[str, str], **fixed: Any) -> Entry:
    """A method with other defaults, for who compares it with and without a part."""

    def build(**options: Any) -> Method:
        return kind(**(fixed | options))

    space = {name: one for name, one in kind.space.items() if name not in fixed}
    return Entry(build, kind, tuple(kind.model_fields), description, "baseline", *style, space)


def _with_coreset(
    kind: type[Method],
    selection: Literal["random", "kcenter"],
    description: str,
    style: tuple[str, str],
    alone: bool = False,
) -> Entry:
    """A method wrapped in a coreset; the options of both are given together."""
    own = ("coreset_size", "coreset_budget", "coreset_epochs")

    def build(**options: Any) -> Method:
        outer = {name: options.pop(name) for name in own if name in options}
        return Coreset(method=kind(**options), selection=selection, alone=alone, **outer)

    options = (*kind.model_fields, *own)
    role: Role = kind.role if not alone else "baseline"
    return Entry(build, kind, options, description, role, *style, kind.space | CORESET)


METHODS: dict[str, Entry] = {
    "evcl+": _plain(EVCLPlus),
    "evcl": _plain(EVCL),
    "vcl": _plain(VCL),
    "vcl-random": _with_coreset(VCL, "random", "VCL with a random coreset.", ("#56B4E9", "v")),
    "vcl-kcenter": _with_coreset(VCL, "kcenter", "VCL with a k-center coreset.", ("#332288", "<")),
    "vcl-tempered": _variant(
        VCL,
        "VCL with a tempered likelihood: beta / N times the KL.",
        ("#88CCEE", "+"),
        beta=0.1,
        kl_scale="examples",
    ),
    "td-vcl": _plain(TDVCL),
    "gvcl": _plain(GVCL),
    "gvcl-film": _variant(GVCL, "GVCL with FiLM layers per task.", ("#CCBB44", "|"), film=True),
    "ucl": _plain(UCL),
    "ucb": _plain(UCB),
    "ewc": _plain(EWC),
    "si": _plain(SynapticIntelligence),
    "mas": _plain(MemoryAwareSynapses),
    "natural-vcl": _plain(NaturalVCL),
    "rwalk": _plain(RiemannianWalk),
    "lwf": _plain(LearningWithoutForgetting),
    "ogd": _plain(OrthogonalGradientDescent),
    "gpm": _plain(GradientProjectionMemory),
    "kfac": _plain(KroneckerLaplace),
    "ncl": _plain(NaturalContinualLearning),
    "s-fsvi": _plain(FunctionSpaceVI),
    "fromp": _plain(FROMP),
    "er": _plain(ExperienceReplay),
    "a-gem": _plain(AGEM),
    "der++": _plain(DarkExperienceReplay),
    "der": _variant(
        DarkExperienceReplay,
        "Dark experience replay from stored logits, without labels.",
        ("#884455", "v"),
        beta=0.0,
    ),
    "hat": _plain(HAT),
    "progressive": _plain(Progressive),
    "progress-compress": _plain(ProgressCompress),
    "dgr": _plain(GenerativeReplay),
    "generative": _plain(GenerativeClassifier),
    "coreset-random": _with_coreset(
        VCL, "random", "A random coreset alone.", ("#CC79A7", "P"), alone=True
    ),
    "coreset-kcenter": _with_coreset(
        VCL, "kcenter", "A k-center coreset alone.", ("#882255", "X"), alone=True
    ),
    "finetune": _plain(FineTune),
    "joint": _plain(Joint),
    "evcl+-weights": _variant(
        EVCLPlus,
        "EVCL+ without its function-space term.",
        ("#F0A070", "*"),
        lam_function=0.0,
    ),
    "evcl-function": _variant(
        EVCL, "EVCL with the function-space term.", ("#B8860B", "x"), lam_function=0.03
    ),
    "vcl-function": _variant(
        EVCL,
        "VCL with the function-space term.",
        ("#66B3E3", "1"),
        lam=0.0,
        lam_function=0.03,
    ),
    "ewc-function": _variant(
        EWC, "EWC with the function-space term.", ("#225522", "2"), lam_function=0.03
    ),
    "evcl+-random": _with_coreset(
        EVCLPlus, "random", "EVCL+ with a random coreset.", ("#44AA99", "8")
    ),
    "evcl+-kcenter": _with_coreset(
        EVCLPlus, "kcenter", "EVCL+ with a k-center coreset.", ("#661100", "H")
    ),
}


def entry(name: str) -> Entry:
    if not isinstance(name, str) or name not in METHODS:
        raise SettingsError(f"there is no method {name!r:.60}; {nearest(name, METHODS)}")
    return METHODS[name]


def role_of(name: str) -> Role:
    """What a method is in a comparison; one that is not known here is a baseline."""
    return METHODS[name].role if name in METHODS else "baseline"


def method(name: str, **options: Any) -> Method:
    """A method by its name, with its options."""
    found = entry(name)
    for option in options:
        if option not in found.options:
            hint = nearest(option, found.options)
            raise SettingsError(f"method {name} has no option {option!r}; {hint}")
    return found.build(**options)


def options_of(chosen: Method) -> dict[str, Any]:
    """Every setting with its value, enough to build the method again by its registered name."""
    if isinstance(chosen, Coreset):
        own = chosen.model_dump(mode="json", exclude={"method", "selection", "alone"})
        return {**options_of(chosen.method), **own}
    return chosen.model_dump(mode="json")


# What a saved learner says of its method: its kind and settings, methods inside methods too.

KINDS: dict[str, type[Method]] = {
    Coreset.name: Coreset,
    **{one.kind.name: one.kind for one in METHODS.values()},
}


def described(chosen: Method) -> dict[str, Any]:
    """As plain data."""
    inner = {name: described(value) for name, value in chosen if isinstance(value, Method)}
    return {"kind": chosen.name, **chosen.model_dump(mode="json", exclude=set(inner)), **inner}


def from_description(description: dict[str, Any]) -> Method:
    """The method that was described."""
    values = {
        name: from_description(value) if isinstance(value, dict) and "kind" in value else value
        for name, value in description.items()
        if name != "kind"
    }
    kind = description.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise SettingsError(
            f"there is no method {kind!r} here; a method of your own is passed again: "
            "Learner.load(path, method=...)"
        )
    return KINDS[kind](**(KINDS[kind].earlier() | values))
