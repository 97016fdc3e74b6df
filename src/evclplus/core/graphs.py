"""Operations written down and compiled, so that running them again takes no Python.

torch.compile would do this too, but before every call it asks whether its arguments are still what
they were when it compiled: up to a quarter of a millisecond for a whole update. Whoever calls
here answers for that.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

Operations = Callable[..., tuple[Tensor, ...]]


def written_down(
    function: Operations, arguments: Sequence[Tensor], any_length: int = 0
) -> GraphModule:
    """The operations of a function. The first size of the first `any_length` arguments may be any
    number later, the same for all; every other size stays what it is, so that loops are made
    for it."""
    # Imported here, because it takes a third of a second and most programs never compile.
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    mode = FakeTensorMode(shape_env=ShapeEnv())

    def without_numbers(position: int, tensor: Tensor) -> Tensor:
        sizes = [DimDynamic.STATIC] * tensor.dim()
        if position < any_length:
            sizes[0] = DimDynamic.DUCK  # equal ones stay equal
        context: Any = StatelessSymbolicContext(dynamic_sizes=sizes)
        return mode.from_tensor(tensor, symbolic_context=context)

    shapes = [without_numbers(*pair) for pair in enumerate(arguments)]
    with mode:
        traced = make_fx(function)(*shapes)
    # A tensor that is not an argument would be somebody else's for whoever comes next.
    assert not [node for node in traced.graph.nodes if node.op == "get_attr"]
    return traced


def compiled(traced: GraphModule) -> Operations:
    from torch._inductor import standalone_compile  # here, because it takes a second

    shapes = [node.meta["val"] for node in traced.graph.find_nodes(op="placeholder")]
    operations: Operations = standalone_compile(traced, shapes)
    return operations
