"""The command line. Bad input ends with one line on standard error and exit code 2.

A command is a function in one of these files and a line in COMMANDS. torch, scipy, matplotlib and
what is built on them take seconds to import: each command imports what it needs."""

import sys
from collections.abc import Callable
from io import TextIOWrapper

import typer
from typer.exceptions import TyperException

from evclplus.errors import EvclplusError, SettingsError
from evclplus.experiments.cli.data import data, data_fetch, data_prepare, data_show
from evclplus.experiments.cli.describe import explain, init, list_
from evclplus.experiments.cli.records import pack, report, track, watch
from evclplus.experiments.cli.runs import compare, demo, run
from evclplus.experiments.cli.search import tune
from evclplus.experiments.cli.tables import check, reproduce
from evclplus.experiments.cli.terminal import announce, complain, has_torchrun, output, reason
from evclplus.signals import Stopped, watched

COMMANDS: dict[str, Callable[..., None]] = {
    "run": run,
    "compare": compare,
    "demo": demo,
    "reproduce": reproduce,
    "check": check,
    "tune": tune,
    "report": report,
    "watch": watch,
    "track": track,
    "pack": pack,
    "list": list_,
    "explain": explain,
    "init": init,
}
DATA_COMMANDS: dict[str, Callable[..., None]] = {
    "fetch": data_fetch,
    "prepare": data_prepare,
    "show": data_show,
}

app = typer.Typer(
    name="evclplus",
    help="Bayesian continual learning: EVCL+ and every method it is compared with.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for _name, _command in COMMANDS.items():
    app.command(_name)(_command)
data_app = typer.Typer(no_args_is_help=False)
app.add_typer(data_app, name="data")
data_app.callback(invoke_without_command=True)(data)
for _name, _command in DATA_COMMANDS.items():
    data_app.command(_name)(_command)


def main() -> None:
    """The entry point: every mistake of a user becomes one line and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # whatever the encoding, no letter is an error
            stream.reconfigure(errors="replace")
    with watched(announce) as signals:
        code = output.code(_main())
        signals.stop = None  # it was obeyed, or came after all was done
    sys.exit(code)


def _main() -> int:
    try:
        if has_torchrun() and sys.argv[1:2] not in (["run"], ["--help"], []):
            raise SettingsError(
                f"torchrun is for `evclplus run`; {sys.argv[1]} has processes of its own (--jobs)"
            )
        return int(app(prog_name="evclplus", standalone_mode=False) or 0)
    except (EvclplusError, TyperException) as error:
        text = error.format_message() if isinstance(error, TyperException) else str(error)
        complain(text or "see evclplus --help")
        return 2
    except Stopped as stopped:
        complain(reason(stopped))
        return 128 + stopped.number
    except OSError as error:  # a full disk, where nobody else has a word for it
        where = "" if error.filename is None else f" {error.filename}"
        complain(f"cannot read or write{where}: {error.strerror or error}")
        return 2
