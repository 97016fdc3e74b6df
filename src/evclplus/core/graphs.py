"""Functions of tensors, compiled and kept on disk: the only file that knows how torch compiles.

A function is run once while its operations are traced (make_fx) on tensors that have shapes but no
numbers; the trace becomes a shared library (AOTInductor). What Python decides on the way is decided
once and for all. The library is kept in the user's cache, under a name made of all that it was made
from: the next process loads it in milliseconds, without tracing and without torch's compiler.
"""

import json
import platform
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from hashlib import sha256
from itertools import compress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from evclplus.errors import FileError
from evclplus.files import cache_folder, write_atomically

OPTIONS: dict[str, Any] = {
    # The processor says what it has; compiling a program for each answer takes ten seconds.
    "cpp.vec_isa_ok": True,
    # Headers compiled beforehand take twice as long to make as they save.
    "aot_inductor.precompile_headers": False,
    # The code that calls the kernels: it is most of the text and takes no time to run.
    "aot_inductor.compile_wrapper_opt_level": "O0",
}

MOST_KEPT = 64
"""Keys that have graphs on disk, some three megabytes each; the oldest go."""

Function = Callable[..., tuple[Tensor, ...]]


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
            return self.folder and self.folder / _digest(f"{_origin()} {_name(key)}")
        return None


@cache
def shared_graphs() -> Graphs:
    """Those of this process, which other processes find on disk."""
    return Graphs(cache_folder() / "graphs")


def _made(function: Function, arguments: Sequence[Argument], kept: Path | None) -> Graph:
    trace, used = _traced(function, arguments)
    read = list(compress(arguments, used))
    library = _compiled(trace, read)
    forms = tuple(one.form for one in read)
    if isinstance(library, Path):
        if kept is not None:
            _keep(kept, library, used, forms)
        return Graph(_opened(library), used, forms)
    return Graph(library, used, forms)


# Tracing and compiling.


def _traced(
    function: Function, arguments: Sequence[Argument]
) -> tuple[GraphModule, tuple[bool, ...]]:
    """The operations of a function, and which arguments they read. Sizes that may differ in the
    next call are symbols, one for all that are equal now."""
    from torch.fx.experimental.proxy_tensor import make_fx  # here: it takes a third of a second

    with _without_numbers(arguments) as shapes:
        trace = make_fx(function)(*shapes)
    placeholders = trace.graph.find_nodes(op="placeholder")
    trace.graph.eliminate_dead_code()
    used = tuple(bool(node.users) for node in placeholders)
    for node, is_used in zip(placeholders, used, strict=True):
        if not is_used:
            trace.graph.erase_node(node)
    # A tensor that is not an argument would be somebody else's for whoever comes next.
    assert not [node for node in trace.graph.nodes if node.op == "get_attr"]
    trace.recompile()
    return trace, used


@contextmanager
def _without_numbers(arguments: Sequence[Argument]) -> Iterator[list[Tensor]]:
    """The arguments with shapes but no numbers."""
    from torch._dynamo.source import ConstantSource
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import (
        DimDynamic,
        ShapeEnv,
        StatelessSymbolicContext,
    )

    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        shapes: list[Tensor] = []
        for number, one in enumerate(arguments):
            sizes = [DimDynamic.STATIC] * one.tensor.dim()
            if one.any_size:
                sizes[0] = DimDynamic.DUCK
            context: Any = StatelessSymbolicContext(dynamic_sizes=sizes)
            source = ConstantSource(f"argument_{number}")
            shapes.append(mode.from_tensor(one.tensor, source=source, symbolic_context=context))
        yield shapes


def _compiled(trace: GraphModule, arguments: Sequence[Argument]) -> Path | Function:
    """The shared library that torch makes of a trace."""
    import torch._inductor  # here: it takes a second

    shapes = tuple(node.meta["val"] for node in trace.graph.find_nodes(op="placeholder"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of parts of itself
        return Path(str(torch._inductor.aot_compile(trace, shapes, options=OPTIONS)))


def _opened(library: Path) -> Function:
    runner = torch._C._aoti.AOTIModelContainerRunnerCpu(str(library), 1)

    def run(*arguments: Tensor) -> tuple[Tensor, ...]:
        return tuple(runner.run(list(arguments)))

    return run


# On disk: a library, and beside it what it reads.


def _keep(folder: Path, library: Path, used: Sequence[bool], forms: Sequence[str]) -> None:
    """Kept for other processes; where that cannot be, they compile it again."""
    content = library.read_bytes()
    digest = sha256(content).hexdigest()
    about = {"library": digest, "used": list(used), "forms": list(forms)}
    with suppress(OSError, FileError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(folder / f"{digest}.so", content)
        write_atomically(folder / f"{digest}.json", json.dumps(about, indent=1))
        kept = sorted(folder.parent.iterdir(), key=lambda path: path.stat().st_mtime)
        for old in kept[:-MOST_KEPT]:
            shutil.rmtree(old, ignore_errors=True)


def _loaded(folder: Path | None, arguments: Sequence[Argument]) -> Graph | None:
    """What is kept for these arguments, if it is whole."""
    for path in sorted(folder.glob("*.json")) if folder else ():
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            about = json.loads(path.read_text())
            used, forms = tuple(about["used"]), tuple(about["forms"])
            library = path.with_suffix(".so")
            whole = sha256(library.read_bytes()).hexdigest() == about["library"]
            if whole and _take(used, forms, arguments):
                return Graph(_opened(library), used, forms)
    return None


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
    return _digest(" ".join(sha256(path.read_bytes()).hexdigest() for path in paths))


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


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()
