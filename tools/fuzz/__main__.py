"""Counts of what became of wrong input, as a table; exit code 1 if anything went wrong."""

import argparse
import logging
import os
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from evclplus.errors import EvclplusError
from evclplus.experiments.environment import commit_and_changes
from tools.fuzz import calls, commands, files
from tools.fuzz.outcome import Tally, limit_memory, peak_megabytes


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description=__doc__)
    parser.add_argument("--files", type=int, default=1000, help="mutated files")
    parser.add_argument("--calls", type=int, default=1000, help="hostile calls")
    parser.add_argument("--commands", type=int, default=50, help="command lines")
    parser.add_argument("--only", default="", help="files of kinds whose names begin like this")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=int, default=60, help="a case that takes longer hangs")
    parser.add_argument("--megabytes", type=int, default=1024, help="more memory than at the start")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-failures"), help="what failed")
    chosen = parser.parse_args()
    tally = Tally(chosen.seconds, chosen.keep.absolute())
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("evclplus").setLevel(logging.ERROR)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ |= {"EVCLPLUS_CACHE": f"{folder}/cache", "EVCLPLUS_DATA": ""}
        kinds = list(files.kinds(Path(folder)))
        limit_memory(chosen.megabytes)
        for kind in (one for one in kinds if one.name.startswith(chosen.only)):
            draws = random.Random(f"{chosen.seed} {kind.name}")
            for number in range(round(kind.share * chosen.files)):
                content = kind.damage(kind.content, draws)
                read = partial(kind.read, content)
                tally.case(kind.name, f"case {number}", read, content)
            _say(tally, kind.name)
        draws = random.Random(f"{chosen.seed} calls")
        for title, call in calls.cases(Path(folder), chosen.calls, draws):
            tally.case("calls", title, call)
        _say(tally, "calls")
        draws = random.Random(f"{chosen.seed} commands")
        for _ in range(chosen.commands):
            title, command = commands.case(draws)
            tally.case("command lines", title, partial(_refused, command))
        os.chdir("/")
    commit, dirty = commit_and_changes()
    print(tally.table())
    print(
        f"\nseed {chosen.seed}, commit {commit}{' with changes' if dirty else ''}, limits "
        f"{chosen.seconds} s and {chosen.megabytes} MB, peak {peak_megabytes()} MB in all, "
        f"{time.monotonic() - started:.0f} s"
    )
    sys.exit(1 if tally.failures else 0)


def _refused(command: Callable[[], object]) -> None:
    try:
        command()
    except commands.RefusedError as error:
        raise EvclplusError(str(error)) from None


def _say(tally: Tally, kind: str) -> None:
    print(f"{kind}: {dict(tally.counts.get(kind, {}))}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
