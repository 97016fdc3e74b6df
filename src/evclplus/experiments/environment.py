"""What a number depends on beside its settings: versions, the processor's ways and the commit."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from evclplus.processor import SETTING, mkl_leaves_half

PACKAGE = Path(__file__).parents[1]


def environment(**more: Any) -> dict[str, Any]:
    """What can be seen from here, and what only the caller knows."""
    commit, dirty = commit_and_changes()
    return {
        "evclplus": metadata.version("evclplus"),
        "commit": commit,
        "dirty": dirty,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": metadata.version("numpy"),
        "platform": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
        "products": os.environ.get(SETTING, "as MKL chooses"),
        "compiled_products": "oneDNN" if mkl_leaves_half() else "MKL",
        "flush_denormal": flushes_denormal(),
        **more,
    }


def flushes_denormal() -> bool:
    """Whether this thread takes numbers too small for a full mantissa for zero."""
    return (torch.tensor(1e-310, dtype=torch.float64) * 1.0).item() == 0.0


def commit_and_changes() -> tuple[str | None, bool | None]:
    """The commit this code is checked out at, and whether the package has changes since; None when
    it is installed from elsewhere."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(PACKAGE), *words]
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")
        # Files beside the package, results among them, change no number.
        return git("rev-parse", "--short=12", "HEAD"), bool(git("status", "--porcelain", "."))
    except (OSError, subprocess.CalledProcessError):
        return None, None
