"""Functions of tensors, compiled and kept on disk; `core/inductor.py` has how.

A function is run once while its operations are traced; what Python decides on the way is decided
once and for all. The trace becomes a library of kernels and a short text that calls them. Both are
kept in the user's cache, under a name made of all that they were made from: the next process loads
them in milliseconds, without tracing and without torch's compiler.
"""

import gc
import json
import os
import platform
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cache, partial
from hashlib import sha256
from itertools import compress
from pathlib import Path

import torch
from torch import Tensor
from torch.fx import GraphModule

from evclplus.core.inductor import Function, Program, library, lowered, traced
from evclplus.errors import FileError
from evclplus.files import cache_folder, write_atomically

MOST_KEPT = 64
"""Keys that have graphs on disk, some hundred kilobytes each; the oldest go."""

Keep = Callable[[Program, bytes], None]


@dataclass(frozen=True)
class Argument:
    """A tensor that a graph reads. The first size of some may be another one in the next call."""

    tensor: Tensor
    any_size: bool = False

    @property
    def form(self) -> str:
        size = "any" if self.any_size else self.tensor.shape[:1]
        return f"{size} {self.tensor.shape[1:]} {self.tensor.stride()} {self.tensor.dtype}"


@dataclass(frozen=True)
class Graph:
    """A compiled function, which of the arguments it reads, and what these must look like."""

    function: Function
    used: tuple[bool, ...]
    forms: tuple[str, ...]

    def __call__(self, arguments: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return self.function(*compress(arguments, self.used))

    def takes(self, arguments: Sequence[Argument]) -> bool:
        return _take(self.used, self.forms, arguments)


def _take(used: Sequence[bool], forms: Sequence[str], arguments: Sequence[Argument]) -> bool:
    """An argument that is not read may have any form."""
    read = [one.form for one in compress(arguments, used)]
    return len(used) == len(arguments) and read == list(forms)


class Graphs:
    """Compiled functions, each by a key that says what it was made from. Tasks, heads and networks
    of one kind share them, and with a folder other processes too."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.made: dict[object, list[Graph]] = {}

    def find(self, key: object, function: Function, arguments: Sequence[Argument]) -> Graph:
        """The graph for these arguments, loaded or compiled if need be."""
        for graph in self.made.get(key, []):
            if graph.takes(arguments):
                return graph
        kept = self._kept(key)
        graph = _loaded(kept, arguments) or _made(function, arguments, kept)
        self.made.setdefault(key, []).append(graph)
        return graph

    def _kept(self, key: object) -> Path | None:
        """The folder of the graphs with this key; none where a name cannot say what made them."""
        with suppress(NamelessError):
            return self.folder and self.folder / _digest(f"{_origin()} {_name(key)}".encode())
        return None


@cache
def shared_graphs() -> Graphs:
    """Those of this process, which other processes find on disk."""
    return Graphs(cache_folder() / "graphs")


def _made(function: Function, arguments: Sequence[Argument], kept: Path | None) -> Graph:
    tensors, any_size = zip(*((one.tensor, one.any_size) for one in arguments), strict=True)
    with _uncollected():
        trace, used = traced(function, tensors, any_size)
        forms = tuple(one.form for one in compress(arguments, used))

        def keep(program: Program, content: bytes) -> None:
            if kept is not None:
                _keep(kept, program, content, used, forms)

        return Graph(_compiled(trace, keep), used, forms)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Python looks for no garbage meanwhile. Compiling makes millions of objects that live on, and
    looking through them again and again took a quarter of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _compiled(trace: GraphModule, keep: Keep) -> Function:
    """The function of a trace. Its kernels are compiled while something else is done; the first
    call waits for them."""
    program, source = lowered(trace)
    content = library(source, partial(keep, program))
    return _Opened(lambda: program.opened(content.result()))


class _Opened:
    """A function that is opened when it is called."""

    def __init__(self, opened: Callable[[], Function]) -> None:
        self.opened = opened
        self.function: Function | None = None

    def __call__(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        if self.function is None:
            self.function = self.opened()
        return self.function(*arguments)


# On disk: a library of kernels, and beside it how they are called. The name is a digest of both.


def _keep(
    folder: Path, program: Program, content: bytes, used: Sequence[bool], forms: Sequence[str]
) -> None:
    """Kept for other processes; where that cannot be, they compile it again."""
    about = {**asdict(program), "used": used, "forms": forms}
    text = json.dumps(about, indent=1)
    path = folder / f"{_digest(text.encode() + content)}.json"
    with suppress(OSError, FileError):
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.mkdir(exist_ok=True, mode=0o700)
        write_atomically(path.with_suffix(".so"), content)
        write_atomically(path, text)
        kept = sorted(folder.parent.iterdir(), key=lambda path: path.stat().st_mtime)
        for old in kept[:-MOST_KEPT]:
            shutil.rmtree(old, ignore_errors=True)


def _loaded(folder: Path | None, arguments: Sequence[Argument]) -> Graph | None:
    """What is kept for these arguments, if it is whole and nobody else can have written it: it is
    code."""
    if folder is None or not (_is_ours(folder) and _is_ours(folder.parent)):
        return None
    for path in sorted(folder.glob("*.json")):
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            text, content = path.read_bytes(), path.with_suffix(".so").read_bytes()
            about = json.loads(text)
            used, forms = tuple(about["used"]), tuple(about["forms"])
            whole = path.stem == _digest(text + content)
            if whole and _take(used, forms, arguments):
                program = Program(about["call"], about["kernels"])
                return Graph(program.opened(content), used, forms)
    return None


def _is_ours(folder: Path) -> bool:
    """Whether a folder is this user's and nobody else may write there."""
    try:
        about = folder.stat()
    except OSError:
        return False
    # A system without such owners has no such permissions either.
    return not hasattr(os, "getuid") or (about.st_uid == os.getuid() and not about.st_mode & 0o022)


class NamelessError(Exception):
    """Something took part in a trace that another process could not recognise."""


def _name(value: object) -> str:
    """A text that is the same in every process for what gives the same trace. A type stands for its
    code, which is known of what Python, torch and this package have only."""
    if value is None or isinstance(value, bool | int | float | str | torch.dtype | torch.Size):
        return repr(value)
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_name, value))})"
    if isinstance(value, type):
        if value.__module__.partition(".")[0] not in ("builtins", "evclplus", "torch"):
            raise NamelessError
        return f"{value.__module__}.{value.__qualname__}"
    if is_dataclass(value):
        return _name((type(value), *(getattr(value, field.name) for field in fields(value))))
    raise NamelessError


@cache
def _package() -> str:
    """The code of this package."""
    root = Path(__file__).parents[1]
    paths = sorted(path for path in root.rglob("*.py"))
    return _digest(" ".join(_digest(path.read_bytes()) for path in paths).encode())


@cache
def _machine() -> str:
    """What a library can run on: it is made for this processor's instructions."""
    flags = platform.processor()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        flags = next((line for line in lines if line.startswith(("flags", "Features"))), flags)
    return f"{platform.platform()} {platform.machine()} {flags}"


def _origin() -> str:
    """All that decides a library beside the key. Loops are cut for a number of threads."""
    return f"{_package()} {torch.__version__} {_machine()} {torch.get_num_threads()}"


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()
