"""What a processor can do and torch's libraries do not use by themselves."""

import os
from contextlib import suppress
from functools import cache
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


@cache
def mkl_leaves_half() -> bool:
    """Whether MKL uses half of the processor's vector units, whatever it is told: of AMD's, since
    family 26 (Zen 5) has units of 512 bits. There oneDNN's products take half the time."""
    wide = (
        torch.backends.cpu.get_cpu_capability() == "AVX512" and torch.backends.mkldnn.is_available()
    )
    family = _says("cpu family")
    return wide and _maker() == "AuthenticAMD" and family.isdecimal() and int(family) >= 26


def _maker() -> str:
    return _says("vendor_id")


def _says(name: str) -> str:
    """What the processor says of itself; nothing where it cannot be asked."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line for line in lines if line.startswith(name)).split(":")[1].strip()
    return ""
