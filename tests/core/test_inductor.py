"""Traces and kernels against the functions that they were made of."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from evclplus.core import inductor
from evclplus.core.graphs import Argument, Graph, Graphs
from evclplus.core.inductor import Function, OneDNN, library, product, traced


def in_place(vector: Tensor, factor: Tensor) -> tuple[Tensor, ...]:
    """A view sees what happens later to what it is a view of."""
    tail = vector[1:]
    before = tail * factor
    vector.mul_(factor).add_(1.0)
    tail.sub_(before.sum())
    return tail * 2, before


def inputs(count: int = 6) -> list[Tensor]:
    return [torch.linspace(-1, 2, count), torch.tensor(3.0)]


def compiled(function: Function, *tensors: Tensor) -> Graph:
    arguments = [Argument(one, any_size=one.dim() == 1) for one in tensors]
    return Graphs().find("key", function, arguments)


def assert_same(run: Callable[..., tuple[Tensor, ...]], count: int = 6) -> None:
    """The results, and what the arguments are afterwards."""
    given, expected = inputs(count), inputs(count)
    torch.testing.assert_close(run(*given), in_place(*expected))
    torch.testing.assert_close(given, expected)


def test_a_trace_changes_arguments_at_its_end_and_nothing_else_in_place() -> None:
    trace, used = traced(in_place, inputs(), [True, False])
    assert used == (True, True)
    calls = trace.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    (copy,) = calls
    in_place_calls = [
        node
        for node in trace.graph.nodes
        if node.op == "call_function"
        and getattr(node.target, "_schema", None) is not None
        and node.target._schema.is_mutable
    ]
    assert in_place_calls == [copy]
    assert_same(trace)


def test_kernels_change_arguments_as_the_function_does() -> None:
    graph = compiled(in_place, *inputs())
    for count in (6, 40):
        assert_same(lambda *given: graph(given), count)


def test_integers_divided_by_zero_are_an_error_and_not_the_end_of_the_process() -> None:
    def divide(one: Tensor, other: Tensor) -> tuple[Tensor, ...]:
        return (torch.div(one, other, rounding_mode="floor"),)

    one, other = torch.arange(7), torch.tensor([1, 2, 3, 1, 2, 3, 2])
    graph = compiled(divide, one, other)
    assert torch.equal(graph([one, other])[0], divide(one, other)[0])
    with pytest.raises(ArithmeticError, match="an index or a divisor that cannot be"):
        graph([one, torch.zeros_like(other)])


def test_a_function_that_takes_a_size_for_a_constant_is_not_compiled() -> None:
    def in_parts(vector: Tensor) -> tuple[Tensor, ...]:
        return (torch.cat([part * 2 for part in vector.split(4)]),)

    with pytest.raises(RuntimeError, match="one size only"):
        traced(in_parts, [torch.ones(9)], [True])


def test_what_the_compiler_does_not_understand_is_an_error_of_one_line() -> None:
    with pytest.raises(RuntimeError, match=r"failed: kernels\.cpp:2:\d+: error: ") as error:
        library("what is this;", lambda content: None).result()
    assert "\n" not in str(error.value)


onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch has no oneDNN")


def matrices(rows: int, inner: int, columns: int, way: str) -> tuple[Tensor, Tensor]:
    """Two pairs to multiply, the first or the second of each pair stored the other way round."""
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(2, rows, inner, generator=generator)
    b = torch.randn(2, inner, columns, generator=generator)
    return a.mT.contiguous().mT if way == "a" else a, b.mT.contiguous().mT if way == "b" else b


@onednn
@pytest.mark.parametrize("way", ["neither", "a", "b"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [(2, 3, 5), (190, 181, 170)])
def test_products_by_onednn_are_torch_s(
    size: tuple[int, int, int], dtype: torch.dtype, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inductor, "mkl_leaves_half", lambda: True)
    a, b = (one.to(dtype) for one in matrices(*size, way))
    expected = a.double() @ b.double()
    room = torch.full_like(expected, torch.nan).to(dtype)

    def assert_near(found: Tensor, expected: Tensor) -> None:
        within = 1e-4 if dtype == torch.float32 else 1e-10
        torch.testing.assert_close(found.double(), expected, rtol=0.0, atol=within)

    assert_near(OneDNN().bmm(a, b, room), expected)
    assert_near(OneDNN().mm(a[1], b[1], room[0]), expected[1])
    assert_near(room[0], expected[1])
    assert_near(product(a[0], b[0]), expected[0])


@onednn
def test_a_graph_has_its_large_products_by_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """And leaves them where they belong: in the rows of what it returns."""
    asked = []
    by_onednn = inductor._by_onednn

    def noted(a: Tensor, b: Tensor) -> Tensor:
        asked.append((a.shape, b.shape))
        return by_onednn(a, b)

    monkeypatch.setattr(inductor, "mkl_leaves_half", lambda: True)
    monkeypatch.setattr(inductor, "_by_onednn", noted)

    def function(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return (torch.bmm(a * 2, b) + 1, torch.mm(a[0, :2], b[0]))

    a, b = matrices(190, 181, 170, "neither")
    graph = Graphs().find("products", function, [Argument(a), Argument(b)])
    torch.testing.assert_close(graph([a, b]), function(a, b), rtol=1e-4, atol=1e-4)
    assert asked == [((190, 181), (181, 170))] * 2
