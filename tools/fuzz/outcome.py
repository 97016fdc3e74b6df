"""One case: what it did, and whether that was right."""

import resource
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from evclplus.errors import EvclplusError

LONGEST_LINE = 2000


class Hang(BaseException):
    """A case took longer than it may. No handler for errors may take it for one."""


class WrongError(Exception):
    """A case was answered, and the answer cannot be right."""


@dataclass
class Tally:
    """Counts by kind, and the first failures in full."""

    seconds: int
    keep: Path
    counts: dict[str, Counter[str]] = field(default_factory=dict)

    def case(self, kind: str, name: str, run: Callable[[], object], content: bytes = b"") -> None:
        """Run a case and count it."""
        found = self.counts.setdefault(kind, Counter())
        try:
            with alarm(self.seconds):
                run()
            found["answered"] += 1
        except EvclplusError as error:
            text = str(error)
            clear = text and "\n" not in text and len(text) < LONGEST_LINE
            found["refused" if clear else "unclear"] += 1
            if not clear:
                self._keep(kind, name, repr(text), content)
        except (Exception, Hang) as error:
            found["hang" if isinstance(error, Hang) else "traceback"] += 1
            self._keep(kind, name, traceback.format_exc(), content)

    @property
    def failures(self) -> int:
        bad = ("unclear", "hang", "traceback")
        return sum(one[name] for one in self.counts.values() for name in bad)

    def _keep(self, kind: str, name: str, text: str, content: bytes) -> None:
        self.keep.mkdir(parents=True, exist_ok=True)
        stem = f"{kind}-{sum(self.counts[kind].values())}".replace(" ", "-")
        (self.keep / f"{stem}.txt").write_text(
            f"{name}\n\n{text}", encoding="utf-8", errors="replace"
        )
        if content:
            (self.keep / f"{stem}.input").write_bytes(content)

    def table(self) -> str:
        columns = ("answered", "refused", "unclear", "traceback", "hang")
        lines = ["| kind | cases | " + " | ".join(columns) + " |", "|---|" + "--:|" * 6]
        for kind, counts in self.counts.items():
            cells = (sum(counts.values()), *(counts[name] for name in columns))
            lines.append(f"| {kind} | " + " | ".join(f"{cell:,}" for cell in cells) + " |")
        return "\n".join(lines)


@contextmanager
def alarm(seconds: int) -> Iterator[None]:
    def ring(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def limit_memory(megabytes: int) -> None:
    """From here on, so much more than there is now: what asks for more fails."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + megabytes * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def peak_megabytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
