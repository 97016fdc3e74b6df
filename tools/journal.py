"""Files with a line for each finished run, which is not run again."""

import json
from pathlib import Path
from typing import Any

from evclplus.experiments.environment import environment
from evclplus.files import make_folder, write_atomically

Run = dict[str, Any]


def finished(path: Path) -> list[Run]:
    """What is in the file; nothing where there is none."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write(path: Path, runs: list[Run]) -> None:
    make_folder(path.parent)
    write_atomically(path, "".join(json.dumps(one) + "\n" for one in runs))


def commit() -> str:
    """The commit that runs now, and whether the package has changes since."""
    found = environment()
    return f"{found['commit']}{'-dirty' if found['dirty'] else ''}"
