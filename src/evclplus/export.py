"""A learner's answers for one task as a file that runs without it: ONNX, or torch's own .pt2.

The mean network has one output, `probability` (regression: `mean`). An ensemble of weights drawn
from the posterior has three: `probability`, its entropy `total`, and `data`, the mean entropy under
each draw; total - data is what the weights leave open (regression: `mean` and `variance` over the
draws). The first dimension of inputs and outputs is free.
"""

import copy
import io
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from evclplus.core.gaussian import MeanField
from evclplus.core.metrics import entropy
from evclplus.core.network import BayesianNetwork
from evclplus.errors import FileError, SettingsError
from evclplus.files import make_folder, write_atomically

Format = Literal["onnx", "pt2"]
Named = dict[str, Tensor]

LARGEST_ERROR = 1e-3
"""Of a number that a runtime computes in another order; a wrong operator is further away."""


class MeanNetwork(nn.Module):
    """The answers of the mean weights."""

    def __init__(self, module: nn.Module, head: tuple[int, ...], outputs: int, classifies: bool):
        super().__init__()
        self.module, self.head, self.outputs = module, head, outputs
        self.classifies = classifies
        self.names = ("probability",) if classifies else ("mean",)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        found = self.module(x, *self.head)[:, : self.outputs]
        return (found.softmax(1) if self.classifies else found,)


class Ensemble(nn.Module):
    """The answers of several draws of the weights, and how far they agree."""

    def __init__(
        self,
        module: nn.Module,
        drawn: Named,
        head: tuple[int, ...],
        outputs: int,
        classifies: bool,
    ):
        super().__init__()
        self.module, self.head, self.outputs = module, head, outputs
        self.classifies = classifies
        self.names = ("probability", "total", "data") if classifies else ("mean", "variance")
        self.parameter_names = tuple(drawn)
        for place, value in enumerate(drawn.values()):
            self.register_buffer(f"draw_{place}", value)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        drawn = {name: getattr(self, f"draw_{at}") for at, name in enumerate(self.parameter_names)}

        def answer(weights: Named) -> Tensor:
            found: Tensor = functional_call(self.module, weights, (x, *self.head))
            return found[:, : self.outputs]

        found = vmap(answer)(drawn)
        if not self.classifies:
            return found.mean(0), found.var(0, correction=0)
        each = found.softmax(2)
        mean = each.mean(0)
        return mean, entropy(mean), entropy(each).mean(0)


def exportable(
    network: BayesianNetwork,
    q: MeanField,
    head: int,
    outputs: int,
    classifies: bool,
    samples: int,
    generator: torch.Generator,
) -> MeanNetwork | Ensemble:
    """A plain module that answers for a head, by the mean weights or by draws from q."""
    plain = network.copy()
    plain.keep_local(())
    module = copy.deepcopy(plain.skeleton).cpu().eval()
    asked = (head,) if network.has_heads else ()
    means = {name: value.detach().cpu() for name, value in q.layout.named(q.mean).items()}
    if not samples:
        parameters = dict(module.named_parameters())
        with torch.no_grad():
            for name, value in means.items():
                parameters[name].copy_(value)
        return MeanNetwork(module, asked, outputs, classifies)
    used = network.names_for(head)
    variances = {name: value.cpu() for name, value in q.layout.named(q.variance).items()}
    drawn = {}
    for name in used:
        shape = (samples, *means[name].shape)
        noise = torch.randn(shape, generator=generator, dtype=means[name].dtype)
        std = variances[name].sqrt() if name in variances else torch.zeros(())
        drawn[name] = means[name] + std * noise
    return Ensemble(module, drawn, asked, outputs, classifies)


def export(module: MeanNetwork | Ensemble, x: Tensor, path: Path, format: Format) -> Path:
    """Write a module that answers inputs like x, and compare what was written with it."""
    if format == "onnx":
        missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if not find_spec(name)]
        if missing:
            raise SettingsError(
                f"writing ONNX needs {missing[0]}: install it with `pip install 'evclplus[export]'`"
            )
    # A dimension of one would be taken for a constant.
    x = torch.cat([x, x])[:2] if len(x) < 2 else x[:2]
    shapes = {"x": {0: torch.export.Dim("inputs")}}
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # torch on parts of itself
            program = torch.export.export(module, (x,), dynamic_shapes=shapes)
            content = _onnx(program, module.names) if format == "onnx" else _pt2(program)
            # A batch of another size.
            other = torch.cat([x, x.flip(0)])[:3]
            expected, found = module(other), _answers(content, other, format)
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        # All of them are torch's and onnxruntime's ways to say that a module does what they do
        # not know; nothing of ours raises them here.
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise FileError(f"the network cannot be written as {format}: {reason}") from None
    for one, another in zip(expected, found, strict=True):
        if not torch.allclose(one, another, atol=LARGEST_ERROR, rtol=LARGEST_ERROR):
            raise FileError(
                f"the network cannot be written as {format}: the file would give other answers "
                "than the learner"
            )
    make_folder(path.parent)
    write_atomically(path, content)
    return path


def _pt2(program: torch.export.ExportedProgram) -> bytes:
    stream = io.BytesIO()
    torch.export.save(program, stream)
    return stream.getvalue()


def _onnx(program: torch.export.ExportedProgram, names: tuple[str, ...]) -> bytes:
    made = torch.onnx.export(
        program, dynamo=True, input_names=["x"], output_names=list(names), verbose=False
    )
    assert made is not None
    return bytes(made.model_proto.SerializeToString())


def _answers(content: bytes, x: Tensor, format: Format) -> list[Tensor]:
    """What a file would say, read as its users read it."""
    if format == "pt2":
        return list(torch.export.load(io.BytesIO(content)).module()(x))
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return [torch.from_numpy(one) for one in session.run(None, {"x": x.numpy()})]
