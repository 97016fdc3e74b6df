"""What a number depends on beside its settings: versions, threads and the commit."""

import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch


def environment() -> dict[str, Any]:
    return {
        "evclplus": metadata.version("evclplus"),
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": metadata.version("numpy"),
        "platform": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
    }


def commit() -> str | None:
    """The commit this code is checked out at, marked when it has changes; None when the code
    is installed from a package, wherever that lies."""
    here = Path(__file__)

    def git(*words: str) -> str:
        command = ["git", "-C", str(here.parent), *words]
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", here.name)
        return git("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    except (OSError, subprocess.CalledProcessError):
        return None
