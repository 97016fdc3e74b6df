"""The page: one HTML file that needs nothing beside it."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from evclplus.experiments.report.comparison import Comparison, MethodRow, settings_but_seed
from evclplus.experiments.report.escape import plain
from evclplus.experiments.report.figures import Image, row_style
from evclplus.experiments.report.headline import headline
from evclplus.experiments.report.numbers import DASH, number
from evclplus.experiments.report.statistics import spread
from evclplus.experiments.report.tables import MEASURES, Table, baseline_table, results_table
from evclplus.experiments.report.uncertainty import Known
from evclplus.experiments.report.uncertainty import section as uncertainty_section
from evclplus.experiments.report.writers import BASELINE_RULE

VERSIONS = ("evclplus", "torch", "python")


@dataclass(frozen=True)
class Figures:
    """The figures of one comparison."""

    accuracy: Image
    narrow_accuracy: Image
    matrices: tuple[Image, ...]
    """In the order of the rows."""
    known: Known | None = None


@dataclass(frozen=True)
class Provenance:
    """How the records of one row came about; every list holds distinct values."""

    label: str
    seeds: str
    commands: list[str]
    commit: str
    versions: str
    threads: str
    seconds: str
    settings: str


@dataclass(frozen=True)
class Section:
    """What the template shows of one comparison."""

    title: str
    tasks: list[str]
    headline: list[str]
    results: Table
    against: Table | None
    baseline: str
    notes: list[str]
    labels: list[str]
    ours: list[str]
    colours: dict[str, str]
    accuracy: str
    narrow_accuracy: str
    matrices: list[str]
    uncertainty: Markup
    provenance: list[Provenance]


def page(comparisons: Sequence[Comparison], figures: Sequence[Figures], unfinished: int) -> str:
    """The whole page as HTML. Everything that comes from records is escaped by the template."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(
        files("evclplus.experiments.report").joinpath("template.html").read_text(encoding="utf-8")
    )
    sections = [
        _section(comparison, drawn) for comparison, drawn in zip(comparisons, figures, strict=True)
    ]
    return template.render(
        sections=sections,
        unfinished=unfinished,
        measures=MEASURES,
        baseline_rule=BASELINE_RULE,
        record_count=sum(len(row.records) for each in comparisons for row in each.rows),
    )


def _section(comparison: Comparison, figures: Figures) -> Section:
    rows = comparison.rows
    return Section(
        title=comparison.title,
        tasks=[plain(name) for name in comparison.task_names],
        headline=headline(comparison),
        results=results_table(comparison),
        against=baseline_table(comparison),
        baseline=comparison.baseline.label if comparison.baseline else "",
        notes=comparison.notes,
        labels=[row.label for row in rows],
        ours=[row.label for row in rows if row.is_ours],
        colours={row.label: row_style(row)[0] for row in rows},
        accuracy=_data_uri(figures.accuracy),
        narrow_accuracy=_data_uri(figures.narrow_accuracy),
        matrices=[_data_uri(image) for image in figures.matrices],
        uncertainty=uncertainty_section(comparison, figures.known),
        provenance=[_provenance(row) for row in rows],
    )


def _data_uri(image: Image) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(image.svg).decode()}"


def _provenance(row: MethodRow) -> Provenance:
    versions = [f"{name} {', '.join(_environment(row, name) or [DASH])}" for name in VERSIONS]
    return Provenance(
        label=row.label,
        seeds=", ".join(map(str, row.seeds)),
        commands=_environment(row, "command") or [DASH],
        commit=_commits(row),
        versions=" · ".join(versions),
        threads=", ".join(_environment(row, "threads")) or DASH,
        seconds=_seconds([record.seconds for record in row.records]),
        settings="\n".join(
            f"{plain(key)} = {plain(value)}" for key, value in settings_but_seed(row.records[0])
        ),
    )


def _environment(row: MethodRow, key: str) -> list[str]:
    """The distinct values the records of a row give for one key; a record may lack it."""
    values = (record.environment.get(key) for record in row.records)
    return list(dict.fromkeys(plain(value) for value in values if value is not None))


def _commits(row: MethodRow) -> str:
    marked = [
        f"{plain(record.environment['commit'])}{' with changes' if record.is_dirty else ''}"
        for record in row.records
        if record.environment.get("commit") is not None
    ]
    return ", ".join(dict.fromkeys(marked)) or DASH


def _seconds(runs: Sequence[Mapping[str, float]]) -> str:
    """Each phase's mean over the runs that have it."""
    phases = dict.fromkeys(phase for run in runs for phase in run)
    means = {phase: spread([run[phase] for run in runs if phase in run]).mean for phase in phases}
    return ", ".join(f"{plain(phase)} {number(mean, 1)}" for phase, mean in means.items()) or DASH
