"""Settings: validated, frozen, dumped to JSON and hashed. No torch here."""

import difflib
import hashlib
import json
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from evclplus.errors import FileError, SettingsError


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
        description="torch.compile for a training step; auto: the parts for which a task is long "
        "enough. The compiled step draws other random numbers",
    )
    device: str | None = Field(
        None, description="cpu, cuda, cuda:1, mps, ...; none: where the network's weights are"
    )
    precision: Literal["full", "bf16"] = Field(
        "full", description="bf16: products of training steps in bfloat16, all else as it was"
    )


class Network(Settings):
    """The network a benchmark is run with. What is left out comes from the benchmark."""

    kind: Literal["mlp", "convnet"] = "mlp"
    hidden: tuple[int, ...] | None = Field(
        None, description="widths of the hidden layers (mlp) or channels (convnet)"
    )


class Experiment(Settings):
    """One cell of a comparison: everything that decides its result."""

    method: str
    benchmark: str
    seed: int = Field(0, ge=0)
    options: dict[str, Any] = Field(default_factory=dict, description="the method's settings")
    stream: dict[str, Any] = Field(default_factory=dict, description="the benchmark's settings")
    network: Network = Network()
    training: Training = Training()
    samples: int = Field(10, ge=1, description="posterior samples averaged in a prediction")
    evaluate_on: Literal["test", "validation"] = Field(
        "test", description="the side scores are taken on; tuning looks at validation only"
    )

    def fingerprint(self) -> str:
        """A short hash of the settings: equal settings, equal fingerprint."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class Plan(Settings):
    """What a TOML file and the flags of run and compare say: experiments that differ in method
    and seed. `options` has a table for each method that is not run with its defaults."""

    benchmark: str = "split-digits"
    methods: tuple[str, ...] = ("evcl+",)
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = (0,)
    options: dict[str, dict[str, Any]] = Field(default_factory=dict)
    stream: dict[str, Any] = Field(default_factory=dict)
    network: Network = Network()
    training: Training = Training()
    samples: int = Field(10, ge=1)
    evaluate_on: Literal["test", "validation"] = "test"

    @field_validator("seeds", mode="before")
    @classmethod
    def _count_of_seeds(cls, seeds: Any) -> Any:
        """A number n stands for the seeds 0 to n-1."""
        return tuple(range(seeds)) if isinstance(seeds, int) else seeds

    def experiment(self, method: str, seed: int) -> Experiment:
        return Experiment(
            method=method,
            benchmark=self.benchmark,
            seed=seed,
            options=self.options.get(method, {}),
            stream=self.stream,
            network=self.network,
            training=self.training,
            samples=self.samples,
            evaluate_on=self.evaluate_on,
        )

    def experiments(self) -> list[Experiment]:
        """Every method with every seed, all methods of one seed before the next."""
        return [self.experiment(method, seed) for seed in self.seeds for method in self.methods]


def load_plan(file: Path | None, flags: dict[str, Any], assignments: Sequence[str]) -> Plan:
    """A plan from a TOML file, then flags, then `SECTION.KEY=VALUE` assignments, each winning
    over what came before."""
    values = {} if file is None else read_toml(file)
    values = _merged(values, {key: value for key, value in flags.items() if value is not None})
    for assignment in assignments:
        values = _merged(values, _parse_assignment(assignment))
    return Plan(**values)


def read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"cannot read {file}: {error.strerror}") from None
    except ValueError as error:
        raise FileError(f"{file} is not TOML: {error}") from None


def _parse_assignment(text: str) -> dict[str, Any]:
    """`training.epochs=5` as nested tables. A section that is no setting names a method."""
    key, equals, value = text.partition("=")
    section, dot, name = key.strip().rpartition(".")
    if not equals or not dot or not name:
        raise SettingsError(
            f"--set {text!r} is wrong: expected SECTION.KEY=VALUE, such as training.epochs=5 or "
            "evcl+.lam=100"
        )
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except ValueError:
        parsed = value.strip()  # a bare word is a string
    if section in ("training", "network", "stream"):
        return {section: {name: parsed}}
    return {"options": {section: {name: parsed}}}


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Both, table by table; where both have a value the one above wins."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        both = isinstance(old, dict) and isinstance(value, dict)
        result[key] = _merged(old, value) if both else value  # type: ignore[arg-type]
    return result
