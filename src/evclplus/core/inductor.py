"""Torch's compiler, taken apart, and oneDNN's products: the only file that uses private parts of
torch.

1. A function is run once on tensors that have shapes but no numbers, and its operations are traced.
2. Inductor makes of the trace kernels in C++ and a Python function, `call`, that allocates memory,
   calls the kernels and has torch make the matrix products.
3. The C++ compiler makes one library of all kernels. They are called with addresses (ctypes).

Inductor itself compiles every kernel alone, together with code that Python can call it through, or
`call` in C++ as well (AOTInductor). Both read torch's large headers
more often, which is most of the time that compiling takes.
"""

import ctypes
import math
import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from os import devnull
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from evclplus.files import temporary_folder
from evclplus.processes import run_in
from evclplus.processor import mkl_leaves_half

Function = Callable[..., tuple[Tensor, ...]]

OPTIONS: dict[str, Any] = {
    # Nothing but `call` is wanted of the Python that inductor writes.
    "benchmark_harness": False,
    "graph_partition": False,
    # Who calls has seen to it that arguments have the right shapes.
    "size_asserts": False,
    "alignment_asserts": False,
    "cpp.descriptive_names": False,
    # For debuggers.
    "aot_inductor.enable_line_tables": False,
    "aot_inductor.enable_frame_pointer": False,
}

DEEPEST = 2000
"""Calls inside one another that inductor needs for long functions."""


@dataclass(frozen=True)
class Program:
    """What inductor makes of a trace, but for the library of its kernels."""

    call: str
    """A function in Python that takes a list of tensors."""
    kernels: dict[str, tuple[int, int]]
    """How many tensors and how many sizes each takes."""

    def opened(self, library: bytes) -> Function:
        """The function that was traced."""
        with temporary_folder() as folder:
            path = folder / "kernels.so"
            path.write_bytes(library)
            entries = ctypes.CDLL(str(path))
        private: Any = torch._C._dynamo.guards
        names: dict[str, Any] = {
            "torch": torch,
            "aten": torch.ops.aten,
            "extern_kernels": OneDNN() if mkl_leaves_half() else torch,
            "empty_strided_cpu": private._empty_strided_cpu,
            "reinterpret_tensor": private._reinterpret_tensor,
            "device": torch.device,
            "math": math,
            "inf": math.inf,
            "nan": math.nan,
        }
        for name, counts in self.kernels.items():
            names[name] = _kernel(entries[_entry(name)], *counts)
        exec(self.call, names)  # it is as much ours as the library, which is code too
        call = names["call"]
        return lambda *arguments: tuple(call(list(arguments)))


def _kernel(entry: Any, tensors: int, sizes: int) -> Callable[..., None]:
    entry.argtypes = [ctypes.c_void_p] * tensors + [ctypes.c_int64] * sizes
    entry.restype = ctypes.c_int
    address = Tensor.data_ptr

    def run(*given: Any) -> None:
        if entry(*map(address, given[:tensors]), *given[tensors:]):
            raise ArithmeticError("a compiled function met an index or a divisor that cannot be")

    return run


# Matrix products.

LARGE_ENOUGH = 2**22
"""Multiplications of a product above which oneDNN is faster, although its result is copied."""


def product(a: Tensor, b: Tensor) -> Tensor:
    """The product of two matrices, without a gradient, by whoever makes it faster here."""
    return _by_onednn(a, b) if mkl_leaves_half() and _suits_onednn(a, b) else a @ b


class OneDNN:
    """What graphs call torch for, with large products by oneDNN."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def mm(self, a: Tensor, b: Tensor, out: Tensor) -> Tensor:
        if not _suits_onednn(a, b):
            return torch.mm(a, b, out=out)
        return out.copy_(_by_onednn(a, b))

    def bmm(self, a: Tensor, b: Tensor, out: Tensor) -> Tensor:
        if not _suits_onednn(a, b):
            return torch.bmm(a, b, out=out)
        for one, other, place in zip(a.unbind(), b.unbind(), out.unbind(), strict=True):
            place.copy_(_by_onednn(one, other))
        return out


def _suits_onednn(a: Tensor, b: Tensor) -> bool:
    size = a.shape[-2] * a.shape[-1] * b.shape[-1]
    on_processor = a.device.type == b.device.type == "cpu"
    return on_processor and a.dtype == b.dtype == torch.float32 and size >= LARGE_ENOUGH


def _by_onednn(a: Tensor, b: Tensor) -> Tensor:
    """The operator is that of linear layers, x W^T."""
    found: Tensor = torch.ops.mkldnn._linear_pointwise.default(a, b.t(), None, "none", [], "")
    return found


# Tracing.


def is_traced(tensor: Tensor) -> bool:
    """Whether it has no numbers yet, only operations that will make them."""
    return type(tensor) is not Tensor or torch._is_functional_tensor(tensor)


def traced(
    function: Function, tensors: Sequence[Tensor], any_size: Sequence[bool]
) -> tuple[GraphModule, tuple[bool, ...]]:
    """The operations of a function, and which arguments they read. First sizes that may differ in
    the next call are symbols, one for all that are equal now."""
    # Here, because they take two seconds.
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    import_module("torch._inductor.lowering")  # decompositions need it and do not import it
    with _without_numbers(tensors, any_size) as shapes:
        trace = make_fx(_functional(function), select_decomp_table())(*shapes)
        sizes: list[Any] = [
            one.shape[0] for one, is_any in zip(shapes, any_size, strict=True) if is_any
        ]
        # A size that the function has taken for a constant would be read beyond a shorter row's
        # end. Which one it is stands in torch's log (TORCH_LOGS=+dynamic).
        if any(isinstance(size, int) or size.node.maybe_as_int() is not None for size in sizes):
            raise RuntimeError("a compiled function would serve one size only")
    placeholders = trace.graph.find_nodes(op="placeholder")
    trace.graph.eliminate_dead_code()
    used = tuple(bool(node.users) for node in placeholders)
    for node, is_used in zip(placeholders, used, strict=True):
        if not is_used:
            trace.graph.erase_node(node)
    # A tensor that is not an argument would be somebody else's for whoever comes next.
    assert not trace.graph.find_nodes(op="get_attr")
    trace.recompile()
    return trace, used


@contextmanager
def _without_numbers(tensors: Sequence[Tensor], any_size: Sequence[bool]) -> Iterator[list[Tensor]]:
    """The tensors with shapes but no numbers."""
    from torch._dynamo.source import ConstantSource
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import (
        DimDynamic,
        ShapeEnv,
        StatelessSymbolicContext,
    )

    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        shapes: list[Tensor] = []
        for number, (one, is_any) in enumerate(zip(tensors, any_size, strict=True)):
            sizes = [DimDynamic.STATIC] * one.dim()
            if is_any:
                sizes[0] = DimDynamic.DUCK
            context: Any = StatelessSymbolicContext(dynamic_sizes=sizes)
            source = ConstantSource(f"argument_{number}")
            shapes.append(mode.from_tensor(one, source=source, symbolic_context=context))
        yield shapes


def _functional(function: Function) -> Function:
    """The function as inductor wants it: nothing happens in place, but that arguments which change
    get their new numbers at the end."""

    def run(*arguments: Tensor) -> tuple[Tensor, ...]:
        torch._enable_functionalization(reapply_views=True)
        try:
            given = [torch._to_functional_tensor(one) for one in arguments]
            found = function(*given)
            for one in (*given, *found):
                torch._sync(one)  # type: ignore[attr-defined]
            given = [torch._from_functional_tensor(one) for one in given]
            found = tuple(torch._from_functional_tensor(one) for one in found)
        finally:
            torch._disable_functionalization()
        for argument, new in zip(arguments, given, strict=True):
            if new is not argument:
                argument.copy_(new)
        return found

    return run


# From a trace to kernels.


def lowered(trace: GraphModule) -> tuple[Program, str]:
    """What inductor makes of a trace: how it is called, and its kernels in C++."""
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes
    from torch._inductor.fx_passes.post_grad import post_grad_passes, view_to_reshape
    from torch._inductor.graph import GraphLowering
    from torch._inductor.utils import Placeholder
    from torch._inductor.virtualized import V

    shapes = [node.meta["val"] for node in trace.graph.find_nodes(op="placeholder")]
    mode = shapes[0].fake_mode
    with _inductor(), V.set_fake_mode(mode):
        view_to_reshape(trace)
        trace = joint_graph_passes(trace, torch.device("cpu"))
        post_grad_passes(trace, is_inference=True)
        graph = GraphLowering(trace, shapes, mode.shape_env, is_inference=True)
        with V.set_graph_handler(graph), V.set_extern_kernel_nodes([]):
            graph.run(*shapes)
            text = graph.codegen()[0].value
    assert not graph.constants  # a tensor in a graph could not be kept
    kernels = {
        name: source.replace(str(Placeholder.KERNEL_NAME), name).replace("#pragma CMT", "//")
        for source, name in graph.wrapper_code.src_to_kernel.items()
    }
    counts = {}
    for name, source in kernels.items():
        arguments = re.search(rf"\b{name}\(([^)]*)\)", source)[1].split(",")  # type: ignore[index]
        counts[name], entry = _entry_point(name, arguments)
        kernels[name] = f"{source}\n{entry}"
    call = text[text.index("def call(") :]
    return Program(call, counts), "\n".join(kernels.values())


def _entry(name: str) -> str:
    return f"try_{name}"


def _entry_point(name: str, arguments: Sequence[str]) -> tuple[tuple[int, int], str]:
    """How many tensors and sizes a kernel takes, and a function in C++ that calls it and says
    whether it went wrong: Python cannot catch what C++ throws."""
    pointers = ["*" in one for one in arguments]
    tensors = sum(pointers)
    assert all(pointers[:tensors])
    given = ", ".join(one.split()[-1] for one in arguments)
    code = (
        f'extern "C" int {_entry(name)}({", ".join(arguments)})\n'
        f"{{ try {{ {name}({given}); return 0; }} catch (...) {{ return 1; }} }}"
    )
    return (tensors, len(arguments) - tensors), code


@contextmanager
def _inductor() -> Iterator[None]:
    """Inductor at work with our options; what it does to the process is undone."""
    from torch._inductor import config, cpu_vec_isa
    from torch._inductor.debug import DebugContext

    limit, probe = sys.getrecursionlimit(), cpu_vec_isa.VecISA.check_build
    try:
        sys.setrecursionlimit(max(limit, DEEPEST))
        cpu_vec_isa.VecISA.check_build = _is_known_to_the_compiler  # type: ignore
        with (
            warnings.catch_warnings(action="ignore"),  # torch warns of parts of itself
            torch.random.fork_rng(devices=()),
            torch.no_grad(),
            config.patch(OPTIONS),
            DebugContext(),
        ):
            yield
    finally:
        cpu_vec_isa.VecISA.check_build = probe  # type: ignore[method-assign]
        sys.setrecursionlimit(limit)


def _is_known_to_the_compiler(instructions: Any, code: str) -> bool:
    """Whether the compiler has these instructions; that the processor has them is asked before.
    Inductor compiles and runs a program with each, which takes a second and more."""
    from torch._inductor.cpp_builder import get_cpp_compiler

    flags = instructions.build_arch_flags().split()
    words = [get_cpp_compiler(), *flags, "-E", "-x", "c++", devnull]
    return subprocess.run(words, capture_output=True).returncode == 0


# From kernels to a library.


def library(source: str, then: Callable[[bytes], None]) -> Future[bytes]:
    """The kernels compiled, and `then` what is to be done with the library; both go on while Python
    does something else."""
    from torch._inductor.cpp_builder import CppBuilder, CppTorchOptions
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    with _inductor():
        options = CppTorchOptions(vec_isa=pick_vec_isa(), warning_all=False, extra_flags=["-w"])
        command = CppBuilder("kernels", "kernels.cpp", options).get_command_line()

    def work() -> bytes:
        words = shlex.split(command)
        with temporary_folder() as folder:
            code = f"#include <torch/csrc/inductor/cpp_prefix.h>\n{source}\n"
            (folder / "kernels.cpp").write_text(code)
            done = run_in(folder, words)
            if done.returncode:
                lines = [line for line in done.stderr.splitlines() if "error" in line]
                raise RuntimeError(f"{words[0]} failed: {[*lines, done.stderr][0]}")
            content = (folder / "kernels.so").read_bytes()
        then(content)
        return content

    worker = ThreadPoolExecutor(1)
    found = worker.submit(work)
    worker.shutdown(wait=False)
    return found
