"""Being asked to stop: what is under way is saved first, and only between two steps.

SIGINT (Ctrl-C) and SIGTERM save and stop, SIGUSR1 saves and goes on. Asked a second time, a process
stops where it is. The state of this file is the system's own table of handlers.
"""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

STOPPING = (signal.SIGINT, signal.SIGTERM)
SAVING = getattr(signal, "SIGUSR1", None)
"""Not every system has it."""


class Stopped(SystemExit):
    """This process was asked to stop. No `Exception`: nothing that catches those may go on. Its
    code is as shells have it, 130 and 143."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number

    def __str__(self) -> str:
        return signal.Signals(self.number).name


class Signals:
    """What this process was asked. While it is held, a first request waits."""

    def __init__(self, say: Callable[[str], None] = lambda line: None) -> None:
        self.say = say
        self.heard: set[int] = set()
        """What this process was asked."""
        self.stop: int | None = None
        self.save = False
        """What is to be done: what was heard, or what processes have agreed upon."""
        self._held = 0
        self._alone = True

    def receive(self, number: int, frame: FrameType | None = None) -> None:
        """The handler."""
        again = number != SAVING and not self.heard.isdisjoint(STOPPING)
        self.heard.add(number)
        if self._alone:
            self.heed((number,))
        if number == SAVING:
            return
        if again or not self._held:
            self.stop = number
            raise Stopped(number)
        self.say(f"{Stopped(number)}: saving before it stops; once more stops at once")

    def heed(self, numbers: Iterable[int]) -> None:
        """These requests are to be obeyed."""
        for number in numbers:
            if number == SAVING:
                self.save = True
            else:
                self.stop = number

    def saved(self) -> None:
        """A request to save was obeyed."""
        self.save = False
        self.heard.discard(SAVING or 0)

    @contextmanager
    def held(self, alone: bool = True) -> Iterator[None]:
        """A first request to stop waits until the end of this block, or for `obey`. One of several
        processes, which is not `alone`, obeys what they have agreed to `heed`, until then."""
        before, self._alone = self._alone, alone and self._alone
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
            self._alone = before
            if self._alone:
                self.heed(tuple(self.heard))
        if not self._held:
            self.obey()

    def obey(self) -> None:
        """Stop now if that was asked."""
        if self.stop is not None:
            raise Stopped(self.stop)


def current() -> Signals | None:
    """Who handles the signals of this process, if it is one of these."""
    handlers = map(signal.getsignal, _numbers())
    owners = (getattr(handler, "__self__", None) for handler in handlers)
    return next((owner for owner in owners if isinstance(owner, Signals)), None)


@contextmanager
def watched(say: Callable[[str], None] = lambda line: None) -> Iterator[Signals]:
    """Signals are handled as this file says; afterwards as before, and a request to stop that came
    meanwhile is passed on to who handled it then. What was ignored stays so."""
    known = current()
    if known is not None or threading.current_thread() is not threading.main_thread():
        yield known or Signals()
        return
    signals = Signals(say)
    before = {
        number: signal.signal(number, signals.receive)
        for number in _numbers()
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield signals
    except Stopped:
        _restore(before)
        assert signals.stop is not None
        signal.raise_signal(signals.stop)  # dies of it, or raises KeyboardInterrupt
        raise
    finally:
        _restore(before)
    if signals.stop is not None:
        signal.raise_signal(signals.stop)


def _numbers() -> tuple[signal.Signals, ...]:
    return STOPPING if SAVING is None else (*STOPPING, SAVING)


def _restore(before: Mapping[signal.Signals, object]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler or signal.SIG_DFL)  # type: ignore[arg-type]
