"""Programs and folders that end with this process, however it ends."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from evclplus.files import temporary_folder

GUARD = """
import os, shutil, signal, sys
folder, *groups = sys.argv[1:]
if not sys.stdin.buffer.read():  # nobody said that it is done: who started this is dead
    for group in groups:
        try:
            os.killpg(int(group), signal.SIGKILL)
        except OSError:
            pass
    shutil.rmtree(folder, ignore_errors=True)
"""
"""A process that waits for its input to close, then ends programs with what they have started, and
removes the folder that they work in."""


@contextmanager
def guarded_folder() -> Iterator[Path]:
    """A temporary folder that is gone a moment after this process, should it be killed."""
    with temporary_folder() as folder, _guarded(folder):
        yield folder


def run_in(
    folder: Path,
    words: Sequence[str],
    output: IO[bytes] | None = None,
    timeout: float | None = None,
) -> "subprocess.CompletedProcess[str]":
    """Run a program that works in a temporary folder. Should this process be killed meanwhile, the
    program, all that it has started and the folder are gone a moment later: a compiler's parts
    would go on for long, for nobody. So are they when the time is over."""
    # Sessions of their own: what ends this process and its group must not end the guard.
    program = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=output or subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder)},
        start_new_session=True,
    )
    with program, _guarded(folder, str(program.pid)):
        out, errors = program.communicate(timeout=timeout)
    return subprocess.CompletedProcess(words, program.returncode, out or "", errors)


@contextmanager
def _guarded(folder: Path, *groups: str) -> Iterator[None]:
    """Where this block ends in any way but well, groups of processes and the folder end too."""
    command = [sys.executable, "-I", "-S", "-c", GUARD, str(folder), *groups]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as guard:
        try:
            yield
        except BaseException:
            guard.communicate()  # it does its work
            raise
        with suppress(OSError):
            guard.communicate(b"done")
