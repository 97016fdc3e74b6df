"""A saved learner on disk: learner.json, which names and checksums one safetensors file.

Writing learner.json is the last step and atomic, so a folder holds the old learner or the new
one, never a mixture. Reading trusts nothing: both files may come from a stranger.

What a method keeps is walked field by field: its tensors go into the state, all else into `kept`
of learner.json, each with the name of its type. Only the types that the method itself names are
ever made from it.
"""

import copy
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from math import prod
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from evclplus.core import tree
from evclplus.core.engine import Moments
from evclplus.core.examples import Examples
from evclplus.core.gaussian import Layout, MeanField
from evclplus.core.layers import LOCAL_LAYERS
from evclplus.core.likelihoods import Classification, Criterion, Likelihood, Regression
from evclplus.core.network import BayesianNetwork, Predicate
from evclplus.errors import FileError
from evclplus.files import make_folder, read_file, write_atomically
from evclplus.locks import in_turn
from evclplus.methods.base import Method
from evclplus.networks import Architecture, ReadyNetwork, build

HEADER = "learner.json"
SCHEMA = 3
LARGEST_WEIGHT = 1e12
"""No learned mean or variance comes near; larger ones overflow in a few layers."""


class SavedLayout(BaseModel):
    model_config = ConfigDict(extra="forbid")

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    gaussian_names: int

    @property
    def total(self) -> int:
        return sum(prod(shape) for shape in self.shapes)

    @property
    def point_names(self) -> tuple[str, ...]:
        return self.names[self.gaussian_names :]


class SavedTask(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    head: int = Field(ge=0)
    outputs: int = Field(ge=1)
    calibrated: dict[str, float] = Field(default_factory=dict)
    classes: tuple[int, ...] = ()
    view: str = ""
    largest: float | None = None

    @model_validator(mode="after")
    def _a_class_for_each_output(self) -> "SavedTask":
        if len(self.classes) not in (0, self.outputs):
            raise ValueError(f"{len(self.classes)} classes for {self.outputs} outputs")
        return self


class Header(BaseModel):
    """The content of learner.json."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    schema_version: Literal[3] = Field(3, alias="schema")
    method: dict[str, Any] = Field(description="its kind and settings")
    training: dict[str, Any]
    seed: int
    samples: int = Field(ge=1, le=10**6)
    likelihood: str = Field(description="classification, regression or own")
    std: float = Field(1.0, gt=0, description="of regression")
    architecture: Architecture | None
    network: str
    growth: list[tuple[int, int, int]] = Field(
        description="heads that came with tasks, or became wider: head, outputs, features"
    )
    layout: SavedLayout
    modules: dict[str, str] | None = Field(None, description="what each module is, by its path")
    frozen: dict[str, str] = Field(
        default_factory=dict, description="checksums of parameters that are not learned"
    )
    learned: list[SavedTask]
    recognise: Literal["entropy", "features"] = "entropy"
    typical: list[tuple[float, float]] = Field(
        default_factory=list, description="of each task, how typical its own examples are"
    )
    kept: Any = Field(description="what the method keeps, but for its tensors")
    optimiser_steps: int = Field(
        0, ge=0, description="that the optimiser's running means have seen; 0: none are kept"
    )
    state: str = Field(pattern=r"^state-[0-9a-f]{16}\.safetensors$")
    sha256: str

    def own_network(self) -> ReadyNetwork:
        """The ready-made network of the file. What has many more weights than the state cannot be
        it and is not made."""
        architecture, names = self.own_architecture(), len(self.layout.names)
        fits = len(architecture.hidden) + len(architecture.heads) <= names
        if fits:
            with torch.device("meta"):
                weights = sum(one.numel() for one in build(architecture, seed=0).parameters())
            fits = weights <= 2 * self.layout.total + 10**6
        if not fits:
            raise FileError("the saved architecture and the saved layout do not match")
        return build(architecture, seed=0)

    def check_size(self, tensors: Mapping[str, Tensor]) -> None:
        """The state must have the weights that the header speaks of, before any is made."""
        if "q.mean" not in tensors:
            raise FileError("the saved state has no q.mean; it is damaged")
        weights = tensors["q.mean"].numel()
        if len(self.layout.names) != len(self.layout.shapes):
            raise FileError("the saved layout is damaged: names and shapes differ in number")
        sizes = (size for shape in self.layout.shapes for size in shape)
        if any(size < 0 for size in sizes) or self.layout.total != weights:
            raise FileError(
                f"the saved layout has {self.layout.total} weights but the saved state {weights}"
            )
        for head, outputs, features in self.growth:
            if head < 0 or not (0 < outputs <= weights and 0 < features <= weights):
                raise FileError(
                    f"the saved growth of head {head} to {outputs} outputs does not fit the state"
                )

    def check_method(self, given: Method) -> None:
        """Another method would not know what to do with what this one has kept."""
        if self.method.get("kind") != given.name:
            raise FileError(
                f"this learner was saved with the method {self.method.get('kind')}, not "
                f"{given.name}; load it with its own, or begin a new learner"
            )

    def own_architecture(self) -> Architecture:
        if self.architecture is None:
            raise FileError(
                f"this learner has a network of its own kind, {self.network}; pass it again: "
                f"Learner.load(path, network={self.network}(...))"
            )
        return self.architecture

    def own_likelihood(self, criterion: Criterion | None) -> Any:
        """As `Learner` takes it; a criterion of one's own is passed again."""
        if self.likelihood == "regression":
            return Regression(self.std)
        if self.likelihood == "classification":
            return Classification()
        if criterion is None:
            raise FileError(
                "this learner has a criterion of its own; pass it again: Learner.load(path, "
                "criterion=...)"
            )
        return criterion

    def own_point(self, point: Predicate | None, known: Predicate | None) -> Predicate:
        """Which parameters are point values. Where heads may still come, a choice beyond those that
        are `known` to be is passed again."""
        saved = self.layout.point_names
        odd = [name for name in saved if known is not None and not known(name)]
        if point is None and odd:
            raise FileError(
                f"this learner keeps {odd[0]} and others as point values, and heads may still "
                "come; pass the choice again: Learner.load(path, point=...)"
            )
        if point is None and known is not None:
            return known
        return point or (lambda name: name in saved)

    def check_modules(self, network: BayesianNetwork) -> None:
        """Equal parameters do not make equal networks: what each module is, and the values of those
        parameters that are not learned, have to be as they were."""
        found = modules_of(network)
        modules = found if self.modules is None else self.modules
        for path in sorted({**found, **modules}):
            saved, given = (one.get(path, "absent") for one in (modules, found))
            if saved != given:
                raise FileError(
                    f"the network does not match the saved learner: {path or 'it'} is {saved} in "
                    f"the file and {given} in the network; pass it as it was at first: "
                    "Learner.load(path, network=...)"
                )
        values = frozen_of(network)
        for name, digest in self.frozen.items():
            if values.get(name) != digest:
                raise FileError(
                    f"the network does not match the saved learner: its parameter {name}, which is "
                    "not learned, has other values than when it was saved"
                )

    def check_layout(self, found: Layout) -> None:
        """The network handed to load must have the saved parameters, name by name."""
        saved = dict(zip(self.layout.names, self.layout.shapes, strict=True))
        given = dict(zip(found.names, found.shapes, strict=True))
        for name in saved.keys() | given.keys():
            if saved.get(name) != given.get(name):
                raise FileError(
                    f"the network does not match the saved learner: parameter {name} is "
                    f"{saved.get(name, 'absent')} in the file and {given.get(name, 'absent')} in "
                    f"the network; build {self.network} as it was when it was saved"
                )
        if (self.layout.names, self.layout.gaussian_names) != (found.names, found.gaussian_names):
            raise FileError(
                "the network does not match the saved learner: its parameters come in another "
                "order, or others are point values"
            )


def modules_of(network: BayesianNetwork) -> dict[str, str]:
    """What each module is, with what it says of itself."""
    return {path: _described(module) for path, module in network.skeleton.named_modules()}


def _described(module: nn.Module) -> str:
    for plain, local in LOCAL_LAYERS.items():
        if type(module) is local:
            module = copy.copy(module)
            module.__class__ = plain  # type: ignore[assignment]
    hooked = module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module)
    # A function in it is shown with its address, which is another every time.
    extra = re.sub(r" at 0x[0-9a-f]+", "", module.extra_repr())
    return f"{type(module).__name__}({extra}){' with a hook' if hooked else ''}"


def frozen_of(network: BayesianNetwork) -> dict[str, str]:
    """A checksum for each parameter that is not learned."""
    learned = set(network.layout.names)
    named = network.skeleton.named_parameters()
    return {name: _digest(value) for name, value in named if name not in learned}


def _digest(value: Tensor) -> str:
    plain = value.detach().cpu().contiguous().flatten().view(torch.uint8)
    return hashlib.sha256(plain.numpy().tobytes()).hexdigest()[:16]


def saved_likelihood(likelihood: Likelihood) -> dict[str, Any]:
    """The fields of a header that say what the outputs mean."""
    if isinstance(likelihood, Regression):
        return {"likelihood": "regression", "std": likelihood.std}
    return {"likelihood": "classification" if isinstance(likelihood, Classification) else "own"}


# What a method keeps, as plain data and tensors.


def as_plain(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """Plain data for JSON. Tensors go into `tensors` by their path, and stand here as it."""
    if isinstance(value, Tensor):
        tensors[path] = value
        return {"tensor": path}
    if isinstance(value, Layout):
        return {"type": "Layout"}  # there is one, and it stands in the header
    if isinstance(value, Examples) and value.rows is not None:
        value = value.gathered()  # not the whole store
    if isinstance(value, tuple) or is_dataclass(value):
        parts = tree.parts(value)
        named = {name: as_plain(part, f"{path}.{name}", tensors) for name, part in parts}
        return {"type": type(value).__name__, "parts": named}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a memory may not hold a {type(value).__name__} ({path})")


class Reader:
    """Makes a memory again from plain data and tensors, checking all of it."""

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        layout: Layout,
        device: torch.device,
        types: tuple[type, ...],
        dtype: torch.dtype,
    ) -> None:
        self.tensors, self.layout, self.device, self.dtype = tensors, layout, device, dtype
        self.types = {one.__name__: one for one in _with_inner(types)}

    def value(self, plain: Any, path: str) -> Any:
        if not isinstance(plain, dict):
            if isinstance(plain, list):
                raise FileError(f"the saved {path} is damaged")
            return plain
        if "tensor" in plain:
            return self.tensor(str(plain["tensor"]))
        kind, parts = plain.get("type"), plain.get("parts", {})
        if kind == "Layout":
            return self.layout
        if not isinstance(parts, dict):
            raise FileError(f"the saved {path} is damaged")
        made = {name: self.value(part, f"{path}.{name}") for name, part in parts.items()}
        if kind == "tuple":
            return tuple(made.values())
        if not isinstance(kind, str) or kind not in self.types:
            raise FileError(f"the saved {path} is a {kind}, which its method does not keep")
        return self._checked(self._made(self.types[kind], made, path), path)

    def tensor(self, name: str) -> Tensor:
        try:
            return self.tensors[name].to(self.device)
        except KeyError:
            raise FileError(f"the saved state has no {name}; it is damaged") from None

    def moments(self, steps: int) -> Moments:
        """What the optimiser remembers."""
        first, second = self.tensor("optimiser.first"), self.tensor("optimiser.second")
        shape = (1 + (self.layout.gaussian_total > 0), self.layout.total)
        fit = all(
            one.shape == shape and one.dtype == self.dtype and one.isfinite().all()
            for one in (first, second)
        )
        if not fit or not (second >= 0).all():
            raise FileError("the saved optimiser does not fit the layout or is damaged")
        return Moments(first, second, steps)

    def _made(self, kind: type, parts: dict[str, Any], path: str) -> Any:
        hints = get_type_hints(kind)
        for name, part in parts.items():
            if not _fits(part, hints.get(name, Any)):
                raise FileError(
                    f"the saved {path}.{name} is a {type(part).__name__}; it is damaged"
                )
        try:
            return kind(**parts)
        except (TypeError, ValueError, AttributeError) as error:
            raise FileError(f"the saved {path} is no {kind.__name__}: {error}") from None

    def _checked(self, value: Any, path: str) -> Any:
        if isinstance(value, MeanField):
            self.check_weights(value, path)
        elif isinstance(value, Examples):
            _check_examples(value, path)
        else:
            for one in fields(value):
                part = getattr(value, one.name)
                fits = not tree.is_per_weight(one) or (
                    part.shape[-1:] == (self.layout.total,) and part.dtype == self.dtype
                )
                if not fits or (isinstance(part, Tensor) and not part.isfinite().all()):
                    raise FileError(
                        f"the saved {path}.{one.name} does not fit the layout or is not finite"
                    )
        return value

    def check_weights(self, q: MeanField, path: str) -> None:
        sizes = ((q.mean, self.layout.total), (q.variance, self.layout.gaussian_total))
        fit = all(
            part.shape == (size,)
            and part.dtype == self.dtype
            and bool((part.abs() <= LARGEST_WEIGHT).all())
            for part, size in sizes
        )
        if not fit or not (q.variance > 0).all():
            raise FileError(
                f"the saved {path} does not fit the saved layout, is not finite or has a "
                "variance that is not > 0"
            )


def _with_inner(types: Iterable[type]) -> Iterator[type]:
    """These types and those that their fields are declared to hold."""
    for one in types:
        yield one
        for hint in get_type_hints(one).values():
            inner = (part for part in (hint, *get_args(hint)) if is_dataclass(part))
            yield from _with_inner(part for part in inner if isinstance(part, type))


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is what a field is declared to hold, as far as declarations say."""
    inside = get_args(hint)
    if hint is Any:
        return True
    if get_origin(hint) is tuple:
        if not isinstance(value, tuple):
            return False
        hints = inside[:1] * len(value) if inside[-1] is Ellipsis else inside
        return len(value) == len(hints) and all(map(_fits, value, hints))
    if get_origin(hint) in (Union, UnionType):
        return any(_fits(value, one) for one in inside)
    if hint is float:
        return isinstance(value, int | float)
    return isinstance(value, hint) if isinstance(hint, type) else True


def _check_examples(examples: Examples, path: str) -> None:
    labels = examples.labels
    if examples.outputs < 1 or examples.head < 0 or examples.store.is_complex():
        raise FileError(f"the saved {path} has no outputs, no head or complex numbers")
    if examples.rows is not None or not examples.store.isfinite().all():
        raise FileError(f"the saved {path} has numbers that are not finite, or rows of elsewhere")
    whole = labels.dtype == torch.int64 and labels.numel() > 0
    if whole and not 0 <= int(labels.min()) <= int(labels.max()) < examples.outputs:
        raise FileError(f"the saved {path} has labels outside its {examples.outputs} outputs")


def write(
    folder: Path, header: dict[str, Any], tensors: dict[str, Tensor], overwrite: bool
) -> Path:
    """Write a learner into `folder`."""
    make_folder(folder)
    plain = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    state = save_tensors(plain)
    digest = hashlib.sha256(state).hexdigest()
    name = f"state-{digest[:16]}.safetensors"
    content = Header(**header, state=name, sha256=digest)
    with in_turn(folder):
        exists = (folder / HEADER).exists()
        if exists and not overwrite:
            raise FileError(
                f"{folder} holds a saved learner already; pass overwrite=True to replace"
            )
        old = _old_state(folder) if exists else None
        write_atomically(folder / name, state)
        write_atomically(folder / HEADER, content.model_dump_json(by_alias=True, indent=1) + "\n")
        if old is not None and old != name:
            (folder / old).unlink(missing_ok=True)
    return folder


def _old_state(folder: Path) -> str | None:
    """The state that the learner to be replaced names: the only file that may go."""
    try:
        return read_header(folder).state
    except FileError:
        return None


def read_header(folder: Path) -> Header:
    path = folder / HEADER
    try:
        content = json.loads(read_file(path), parse_constant=_no_number)
    except FileError as error:
        raise FileError(f"{folder} holds no saved learner: {error}") from None
    except (ValueError, RecursionError):
        raise FileError(f"{path} is not JSON; it is damaged or not a saved learner") from None
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise FileError(f"{path} is not a learner saved by this version (schema {SCHEMA})")
    try:
        return Header.model_validate(content)
    except (ValidationError, ValueError) as error:
        problem = error.errors()[0] if isinstance(error, ValidationError) else None
        reason = f"{problem['loc'][0]}: {problem['msg']}" if problem else str(error)
        raise FileError(f"{path} is not a valid learner: {reason}") from None


def read(folder: Path) -> tuple[Header, dict[str, Tensor]]:
    """Read a learner that anyone may have written; nothing in it is ever executed."""
    header, state = _read_pair(folder)
    if hashlib.sha256(state).hexdigest() != header.sha256:
        raise FileError(f"{folder / header.state} is damaged: its checksum does not match")
    try:
        return header, load_tensors(state)
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise FileError(f"{folder / header.state} is not a safetensors file: {error}") from None


def _read_pair(folder: Path) -> tuple[Header, bytes]:
    """A header and the state that it names. While one is read the other may be replaced: then there
    is a new header."""
    header = read_header(folder)
    while True:
        try:
            return header, read_file(folder / header.state)
        except FileError:
            again = read_header(folder)
            if again.state == header.state:
                raise
            header = again


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")
