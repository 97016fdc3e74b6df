"""What one run leaves behind: record.json, written once, when the run is complete."""

import json
from collections.abc import Mapping, Sequence
from math import isclose
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from evclplus.benchmarks.registry import BENCHMARKS
from evclplus.core.metrics import ACCURACY, ERROR, Metric, average
from evclplus.errors import FileError, SettingsError
from evclplus.experiments.config import Experiment
from evclplus.experiments.uncertainty import Figures
from evclplus.files import read_file, write_atomically
from evclplus.methods import entry, method, options_of
from evclplus.methods.base import training_for
from evclplus.settings import Training

SCHEMA = 1
RECORD = "record.json"
UNFINISHED = "unfinished.json"
"""What a run directory holds instead of a record while its run is not complete."""

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Distance = Annotated[float, Field(ge=0.0)]
Triangle = list[list[float]]
"""Row t holds a figure for tasks 1..t after learning task t."""

MATRICES = {
    ACCURACY: ("accuracy", "negative_log_likelihood", "brier_score", "calibration_error"),
    ERROR: ("root_mean_squared_error", "negative_log_likelihood"),
}
AVERAGES = {
    "negative_log_likelihood": "average_negative_log_likelihood",
    "brier_score": "average_brier_score",
    "calibration_error": "average_calibration_error",
}
"""What is a mean after the last task, beside the metric's own."""

FIELDS = {
    metric: {*metric.fields, *names, *(AVERAGES[one] for one in names if one in AVERAGES)}
    for metric, names in MATRICES.items()
}
"""The fields of a record that only some metrics have."""


class Record(BaseModel):
    """The result of one experiment. Accuracies are fractions between 0 and 1. A stream of numbers
    to predict has errors in their place and no figures that are for classes."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    schema_version: Literal[1] = Field(1, alias="schema")
    method: str
    benchmark: str
    seed: int
    config: Experiment
    tasks: list[str] = Field(min_length=1, description="names, in the order of learning")
    notes: list[str] = Field(description="what a reader must know, e.g. a protocol that leaks")

    accuracy: list[list[Fraction]] | None = None
    root_mean_squared_error: list[list[Distance]] | None = None
    negative_log_likelihood: Triangle
    brier_score: Triangle | None = None
    calibration_error: Triangle | None = None
    accuracy_before: list[Fraction] | None = Field(
        None, description="on each task just before learning it"
    )
    accuracy_untrained: list[Fraction] | None = Field(
        None, description="on each task with the first weights"
    )
    error_before: list[Distance] | None = None
    error_untrained: list[Distance] | None = None

    average_accuracy: float | None = None
    average_error: float | None = None
    forgetting: float
    backward_transfer: float
    forward_transfer: float
    learning_accuracy: float | None = None
    learning_error: float | None = None
    average_negative_log_likelihood: float
    average_brier_score: float | None = None
    average_calibration_error: float | None = None

    calibrated: list[dict[str, float]] = Field(
        default_factory=list, description="strengths found on each task, by name"
    )
    uncertainty: Figures | None = Field(None, description="after the last task")
    environment: dict[str, Any] = Field(description="versions, threads, commit, command")
    seconds: dict[str, float] = Field(description="time per phase")

    @property
    def metric(self) -> Metric:
        """What the tasks are judged by."""
        return ACCURACY if self.accuracy is not None else ERROR

    @property
    def matrix(self) -> Triangle:
        """By its metric."""
        found: Triangle = getattr(self, self.metric.name)
        return found

    @property
    def average(self) -> float:
        """The mean of its metric over all tasks after the last one."""
        found: float = getattr(self, self.metric.average)
        return found

    @model_validator(mode="after")
    def _has_the_fields_of_its_metric(self) -> "Record":
        own = FIELDS[self.metric]
        for name in sorted(set.union(*FIELDS.values())):
            there = getattr(self, name) is not None
            if there != (name in own):
                said = "is in" if there else "is missing in"
                raise ValueError(f"{name} {said} a record of {self.metric.title}")
        if self.metric is not ACCURACY and self.uncertainty is not None:
            raise ValueError(f"uncertainty, which is of classes, is in a record of {ERROR.title}")
        return self

    @model_validator(mode="after")
    def _matrices_are_triangles(self) -> "Record":
        lengths = list(range(1, len(self.tasks) + 1))
        for name in MATRICES[self.metric]:
            if [len(row) for row in getattr(self, name)] != lengths:
                raise ValueError(f"{name} is not a lower triangle over {len(self.tasks)} tasks")
        return self

    @model_serializer(mode="wrap")
    def _leave_out_other_metrics(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        others = set.union(*FIELDS.values()) - FIELDS[self.metric]
        return {name: value for name, value in handler(self).items() if name not in others}

    def check_figures(self) -> None:
        """What stands in two places has to be the same in both: a flipped digit shows."""
        for name in ("method", "benchmark", "seed"):
            if getattr(self, name) != getattr(self.config, name):
                raise ValueError(f"{name} is another than the {name} of its config")
        "".join((self.method, self.benchmark, *self.tasks)).encode()  # half a pair of surrogates?
        count = len(self.tasks)
        metric = self.metric
        if self.benchmark in BENCHMARKS and BENCHMARKS[self.benchmark].metric is not metric:
            raise ValueError(f"{metric.title} is not what {self.benchmark} is judged by")
        before, untrained = getattr(self, metric.before), getattr(self, metric.untrained)
        if not len(before) == len(untrained) == count:
            raise ValueError(f"{metric.before} or {metric.untrained} is not over {count} tasks")
        found = {name: getattr(self, name) for name in MATRICES[metric]}
        for name, value in summary(metric, found, before, untrained).items():
            if not isclose(getattr(self, name), value, rel_tol=1e-6, abs_tol=1e-6):
                raise ValueError(
                    f"{name} is {getattr(self, name):g}, but its table makes it {value:g}"
                )

    @property
    def full_config(self) -> Experiment:
        """The settings as this version knows them: an option that came after the record has the
        value that says what was done before there was one, or its default. A method or a stream
        that is not known here keeps what it was told."""
        try:
            given = entry(self.config.method).kind.earlier() | self.config.options
            chosen = method(self.config.method, **given)
            training = training_for(chosen, self.config.training)
            kind = BENCHMARKS[self.config.benchmark].settings
            stream = kind(**self.config.stream).model_dump(mode="json")
        except (SettingsError, KeyError):
            return self.config
        options = options_of(chosen)
        return self.config.model_copy(
            update={"options": options, "stream": stream, "training": training}
        )

    @property
    def is_dirty(self) -> bool:
        """Whether the code had changes that its commit does not have."""
        commit = str(self.environment.get("commit"))
        return self.environment.get("dirty") is True or commit.endswith("-dirty")

    def to_bytes(self) -> bytes:
        """What is in its file."""
        return f"{self.model_dump_json(by_alias=True, indent=1)}\n".encode()

    def write(self, folder: Path) -> Path:
        path = folder / RECORD
        write_atomically(path, self.to_bytes())
        return path

    @classmethod
    def read(cls, path: Path) -> "Record":
        """Read a record that anyone may have written: every field is checked."""
        return cls.of(read_json(path), path)

    @classmethod
    def of(cls, content: Any, path: Path) -> "Record":
        """What was read from `path` as a record."""
        if not isinstance(content, dict) or content.get("schema") != SCHEMA:
            found = content.get("schema") if isinstance(content, dict) else None
            raise FileError(f"{path} has schema {found!r}, this version reads schema {SCHEMA}")
        config = content.get("config")
        if isinstance(config, dict) and isinstance(config.get("training"), dict):
            training = Training.before | config["training"]
            content = {**content, "config": {**config, "training": training}}
        try:
            record = cls.model_validate(content)
            record.check_figures()
            return record
        except (ValidationError, ValueError) as error:
            reason = error.errors()[0] if isinstance(error, ValidationError) else None
            where = ".".join(map(str, reason["loc"])) if reason else ""
            what = reason["msg"] if reason else str(error).splitlines()[0]
            raise FileError(f"{path} is not a valid record: {where} {what}".strip()) from None


def summary(
    metric: Metric,
    matrices: Mapping[str, Triangle],
    before: Sequence[float],
    untrained: Sequence[float],
) -> dict[str, float]:
    """The fields of a record that follow from others."""
    own = metric.summary(matrices[metric.name], before, untrained)
    means = {name: average(found) for name, found in matrices.items()}
    return own | {AVERAGES[name]: mean for name, mean in means.items() if name in AVERAGES}


def read_json(path: Path) -> Any:
    content = read_file(path)
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise FileError(f"{path} is not JSON; it is damaged or not a record") from None
