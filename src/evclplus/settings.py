"""Settings: validated and frozen; a wrong value is one clear line. No torch here."""

import difflib
from collections.abc import Iterable, Mapping
from math import ceil
from operator import index
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from evclplus.errors import SettingsError


def nearest(name: object, known: Iterable[str]) -> str:
    """'did you mean X?' when a known name is close, else the list of the known ones."""
    names = sorted(known)
    close = difflib.get_close_matches(str(name)[:100], names, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(names) or 'none'}"


LARGEST_SEED = 2**63 - 1


def whole(name: str, value: Any, least: int, most: int = LARGEST_SEED) -> int:
    """A whole number as Python's own, whoever made it; anything else is one clear line."""
    if not is_whole(value) or not least <= index(value) <= most:
        upper = "" if most == LARGEST_SEED else f" and at most {most}"
        shown = f"{value!r:.60}"
        raise SettingsError(f"{name} = {shown} is wrong: a whole number, at least {least}{upper}")
    return index(value)


def is_whole(value: Any) -> bool:
    """Whether it is a whole number: Python's, numpy's or torch's, but no bool."""
    try:
        index(value)
    except (TypeError, ValueError, RuntimeError):
        return False
    return not isinstance(value, bool)


def _one_line(model: type[BaseModel], error: ValidationError) -> str:
    """The first problem pydantic found, in one line a user can act on."""
    problem = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return f"{model.__name__} has no setting {key!r}; {nearest(key, model.model_fields)}"
    message = problem["msg"].removeprefix("Value error, ")
    if isinstance(problem.get("ctx", {}).get("error"), SettingsError):
        return message  # a group inside this one has said it already
    if not key:
        return f"{model.__name__}: {message}"
    if problem["type"] == "missing":
        return f"{model.__name__} needs the setting {key!r}"
    return f"{model.__name__}: {key} = {problem['input']!r:.100} is wrong: {message}"


class Settings(BaseModel):
    """The base of every group of settings. A wrong value raises a one-line `SettingsError`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise SettingsError(_one_line(type(self), error)) from None

    def __deepcopy__(self, memo: object = None) -> Self:
        return self  # frozen

    before: ClassVar[dict[str, Any]] = {}
    """What a file from before a setting existed means, where that is not the default."""

    @classmethod
    def earlier(cls) -> dict[str, Any]:
        """What a file from before means, for the settings that there are: a class may leave some of
        its base out."""
        return {name: value for name, value in cls.before.items() if name in cls.model_fields}

    @classmethod
    def default(cls, name: str) -> Any:
        """The default of a setting."""
        return cls.model_fields[name].default


Optimiser = Literal["adam", "sgd"]

LEARNING_RATES: dict[Optimiser, float] = {"adam": 3e-3, "sgd": 0.1}
"""Adam's is in steps of a weight, that of plain steps in gradients."""

FEWEST_EPOCHS, FEWEST_STEPS = 10, 1000
"""A large task is gone through a few times, a small one as often as learning takes steps."""


MOST_SHARDS = 1024


class Training(Settings):
    """How one task is trained."""

    before: ClassVar[dict[str, Any]] = {"std_rate": 1.0, "optimiser": "adam"}

    epochs: int | None = Field(
        None,
        ge=1,
        description="passes over a task's training data; none: 10, or as many as make 1,000 steps",
    )
    batch_size: int = Field(256, ge=1, description="examples per step")
    optimiser: Optimiser | None = Field(
        None, description="adam, or sgd: plain steps; none: what the method needs, or adam"
    )
    learning_rate: float | None = Field(
        None, gt=0, description="the step size; none: the method's, mostly 3e-3 (adam), 0.1 (sgd)"
    )
    momentum: float = Field(
        0.0, ge=0, lt=1, description="of sgd: how much of a step is made again in the next"
    )
    keep_optimiser: bool = Field(
        False, description="the optimiser's running means go on from task to task"
    )
    std_rate: float = Field(
        10.0, gt=0, description="the step size of log sigma, in steps of the means"
    )
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "cosine", description="how the learning rate falls to zero within each task"
    )
    clip_norm: float | None = Field(
        None, gt=0, description="largest norm of the gradient; none: no clipping"
    )
    compile: Literal["auto", "on", "off"] = Field(
        "auto",
        description="torch.compile for a training step; auto: where a task is long enough",
    )
    device: str | None = Field(
        None, description="cpu, cuda, cuda:1, mps, ...; none: where the network's weights are"
    )
    precision: Literal["full", "bf16"] = Field(
        "full", description="bf16: products of training steps in bfloat16, all else as it was"
    )
    shards: int | None = Field(
        None,
        description="parts of a batch that processes may share out, each with noise of its own: 1, "
        "2, 4, ...; none: 4 under torchrun, otherwise a batch is not cut",
    )

    @field_validator("shards")
    @classmethod
    def _powers_of_two(cls, shards: int | None) -> int | None:
        if shards is not None and (not 1 <= shards <= MOST_SHARDS or shards & (shards - 1)):
            raise ValueError(f"1, 2, 4, ... up to {MOST_SHARDS}: shards are added up two by two")
        return shards

    def suited(
        self, optimisers: tuple[Optimiser, ...], rates: Mapping[Optimiser, float]
    ) -> "Training":
        """With an optimiser and its learning rate filled in: what was asked for, if that is among
        these, or the first of them."""
        fits = self.optimiser is None or self.optimiser in optimisers
        optimiser = self.optimiser if self.optimiser in optimisers else optimisers[0]
        assert optimiser is not None
        rate = self.learning_rate if fits else None
        values = {"optimiser": optimiser, "learning_rate": rate or rates[optimiser]}
        if optimiser == "adam" and not fits:
            values["momentum"] = 0.0
        return self.model_copy(update=values)

    def epochs_of(self, batches: int) -> int:
        """How often a task of so many batches is gone through."""
        return self.epochs or max(FEWEST_EPOCHS, ceil(FEWEST_STEPS / batches))
