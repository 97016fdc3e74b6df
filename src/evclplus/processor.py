"""What a processor can do and torch's libraries do not use by themselves."""

import os
from contextlib import suppress
from pathlib import Path

import torch

SETTING = "MKL_ENABLE_INSTRUCTIONS"


def use_wide_vectors() -> None:
    """Let matrix products compute with AVX-512 on every processor that has it. MKL, which makes
    them for torch, uses it on Intel's own only; elsewhere a product takes a fifth longer.

    MKL asks once, at the first product of a process. Who has set the variable is heard.
    """
    if torch.backends.cpu.get_cpu_capability() == "AVX512" and _maker() not in ("", "GenuineIntel"):
        os.environ.setdefault(SETTING, "AVX512")


def _maker() -> str:
    """The processor's maker, as it says itself; nothing where it cannot be asked."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line for line in lines if line.startswith("vendor_id")).split(":")[1].strip()
    return ""
