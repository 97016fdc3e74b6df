"""A download's progress bar, which also stops a server that sends too much or too slowly."""

import time

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from evclplus.errors import FileError

DRAWN = 2**16
"""Bytes between two drawings of the bar."""


class DownloadBar:
    """What pooch asks of a progress bar: `total`, `update`, `reset`, `close`."""

    def __init__(
        self, address: str, limit: int, min_speed: float, grace: float, *, visible: bool
    ) -> None:
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
        self._bars = Progress(
            *columns,
            TransferSpeedColumn(),
            console=console,
            transient=True,
            disable=not (visible and console.is_terminal),
        )
        self._bar = self._bars.add_task(address.rpartition("/")[2], total=None)
        self._address, self._limit = address, limit
        self._min_speed, self._grace = min_speed, grace
        self._received, self._started = 0, time.monotonic()
        self.total = 0
        self._bars.start()

    def update(self, size: int) -> None:
        # pooch reports whole chunks, also for a last one that is shorter.
        if self._received > self._limit:
            raise FileError(f"{self._address} sends more than the {self._limit} bytes it should")
        self._received += size
        seconds = time.monotonic() - self._started
        if seconds > self._grace and self._received < self._min_speed * seconds:
            raise FileError(f"{self._address} sends less than {self._min_speed:.0f} bytes a second")
        if self._received // DRAWN != (self._received - size) // DRAWN:
            self._bars.update(self._bar, total=self.total or None, completed=self._received)

    def reset(self) -> None:
        self._received = 0

    def close(self) -> None:
        self._bars.stop()
