"""Settings: validated and frozen; a wrong value is one clear line. No torch here."""

import difflib
from collections.abc import Iterable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from evclplus.errors import SettingsError


def nearest(name: str, known: Iterable[str]) -> str:
    """'did you mean X?' when a known name is close, else the list of the known ones."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(names) or 'none'}"


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
    return f"{model.__name__}: {key} = {problem['input']!r} is wrong: {message}"


class Settings(BaseModel):
    """The base of every group of settings. A wrong value raises a one-line `SettingsError`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise SettingsError(_one_line(type(self), error)) from None

    @classmethod
    def default(cls, name: str) -> Any:
        """The default of a setting."""
        return cls.model_fields[name].default


class Training(Settings):
    """How one task is trained."""

    epochs: int = Field(100, ge=1, description="passes over a task's training data")
    batch_size: int = Field(256, ge=1, description="examples per step")
    learning_rate: float = Field(1e-3, gt=0, description="Adam's step size")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="how the learning rate falls to zero within each task"
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
