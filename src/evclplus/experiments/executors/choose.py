"""Which executor a command line means."""

import os
from collections.abc import Sequence
from pathlib import Path

from evclplus.errors import SettingsError
from evclplus.experiments.executors.base import Executor
from evclplus.experiments.executors.local import Processes


def executor_for(
    on: str | None, jobs: int | None, out: Path, scratch: Path | None, slurm: Sequence[str]
) -> Executor:
    """`ray` and `slurm` come with extras and are imported when they are asked for."""
    kind, _, address = (on or "").partition("://")
    if slurm and kind != "slurm":
        raise SettingsError("--slurm says what a job of --on slurm asks for; there is none here")
    if not on:
        if scratch is not None:
            raise SettingsError("--scratch is for --on ray and --on slurm; here, --out has all")
        return Processes(jobs or os.cpu_count() or 1)
    if kind == "ray":
        from evclplus.experiments.executors.on_ray import OnRay

        return OnRay(address, jobs, scratch)
    if kind == "slurm" and address in ("", "local"):
        from evclplus.experiments.executors.on_slurm import OnSlurm

        return OnSlurm(address or "slurm", jobs, scratch or out / ".slurm", slurm)
    raise SettingsError(
        f"--on {on!r:.60} is wrong: expected ray, ray://HOST:PORT, slurm or slurm://local"
    )
