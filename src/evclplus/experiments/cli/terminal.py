"""What commands write: standard output that may be gone, plain lines, one line for a mistake."""

import os
import shlex
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, cast

import typer
from rich.console import Console

from evclplus.signals import Stopped

if TYPE_CHECKING:
    from evclplus.experiments.record import Record


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
        complain(f"cannot write to standard output: {self.failed.strerror}")
        return code or 2


output = Output()
console = Console(file=cast(IO[str], output))


def printable(text: str) -> str:
    """One line of letters that a terminal shows and does not obey, and that any encoding has."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return shown.encode(encoding, "replace").decode(encoding, "replace")


def say(line: str) -> None:
    """One plain line: not broken, not coloured, and in a log file at once."""
    console.print(printable(line), soft_wrap=True, markup=False, highlight=False)


def show(records: "list[Record]") -> None:
    from evclplus.experiments.report.terminal import terminal_table

    console.print(terminal_table(records))


def typed_command() -> str:
    """What was typed, for the record; bytes of a path that are no text are written out."""
    typed = shlex.join(["evclplus", *sys.argv[1:]])
    return typed.encode("utf-8", "backslashreplace").decode()


def complain(message: str) -> None:
    who = "evclplus" if _rank() == "0" else f"evclplus, process {_rank()}"
    print(f"{who}: {' '.join(printable(message).split())}", file=sys.stderr)


def announce(message: str) -> None:
    """What one of several processes says for all of them."""
    if _rank() == "0":
        complain(message)


def _rank() -> str:
    """Which of torchrun's processes this is."""
    return os.environ.get("RANK", "0") if has_torchrun() else "0"


def has_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


def stopped_exit(stopped: Stopped, kept: str) -> typer.Exit:
    """Say what is there after a stop; the exit code is the signal's."""
    announce(f"{reason(stopped)}: {kept}; call again to go on")
    return typer.Exit(128 + stopped.number)


def reason(stopped: Stopped) -> str:
    return "interrupted" if stopped.number == signal.SIGINT else f"stopped by {stopped}"
