"""Programs that are started here end with this process, however it ends."""

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

GUARD = """
import os, shutil, signal, sys
group, folder = sys.argv[1:]
if not sys.stdin.buffer.read():  # nobody said that it is done: who started this is dead
    try:
        os.killpg(int(group), signal.SIGKILL)
    except OSError:
        pass
    shutil.rmtree(folder, ignore_errors=True)
"""
"""A process that waits for its input to close, then ends a program and what that has started."""


def run_in(folder: Path, words: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    """Run a program that works in a temporary folder. Should this process be killed meanwhile, the
    program, all that it has started and the folder are gone a moment later: a compiler's parts
    would go on for long, for nobody."""
    # Sessions of their own: what ends this process and its group must not end the guard.
    program = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder)},
        start_new_session=True,
    )
    command = [sys.executable, "-I", "-S", "-c", GUARD, str(program.pid), str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as guard:
        try:
            out, errors = program.communicate()
        except BaseException:
            guard.communicate()  # it ends the program
            raise
        with suppress(OSError):
            guard.communicate(b"done")
    return subprocess.CompletedProcess(words, program.returncode, out, errors)
