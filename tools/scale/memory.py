"""What this process takes of the memory, in bytes; from /proc, so on Linux."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SECONDS_BETWEEN_LOOKS = 0.1


def resident(kind: str = "VmRSS") -> int:
    """VmRSS: all. RssAnon: its own. RssFile: pages of files, which the system takes back when it
    needs them. VmHWM: the most so far."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == kind:
            return int(value.split()[0]) * 1024
    raise KeyError(kind)


class Most:
    """The most that was seen of RssAnon."""

    def __init__(self) -> None:
        self.bytes = 0
        self.ended = threading.Event()

    def look(self) -> None:
        while not self.ended.wait(SECONDS_BETWEEN_LOOKS):
            self.bytes = max(self.bytes, resident("RssAnon"))


@contextmanager
def most_of_its_own() -> Iterator[Most]:
    """Looks many times a second while something is done."""
    most = Most()
    thread = threading.Thread(target=most.look, daemon=True)
    thread.start()
    try:
        yield most
    finally:
        most.ended.set()
        thread.join()
        most.bytes = max(most.bytes, resident("RssAnon"))
