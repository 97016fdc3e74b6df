"""EfficientNet-lite0 (Tan and Le, 2019; lite0: Liu, 2020), for its features.

Only what an answer needs: every normalisation is folded into the convolution before it, which gives
the same numbers up to rounding.
"""

import io
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from evclplus.data.datasets import EFFICIENTNET
from evclplus.data.local import Folder, contents_of

FEATURES = 1280
STRIDES = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1)
"""Of the sixteen blocks; all else is in the shapes of the weights."""
EPSILON = 1e-3

Convolution = tuple[Tensor, Tensor]


class EfficientNet:
    """Pictures to features, from the weights as they were published."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        def folded(path: str, norm: str) -> Convolution:
            prefix = norm if "." not in path else f"{path.rpartition('.')[0]}.{norm}"
            return fold(state, f"{path}.weight", prefix)

        self.stem = folded("_conv_stem", "_bn0")
        self.blocks = []
        for index, stride in enumerate(STRIDES):
            path = f"_blocks.{index}"
            widens = f"{path}._expand_conv.weight" in state
            expand = folded(f"{path}._expand_conv", "_bn0") if widens else None
            each = folded(f"{path}._depthwise_conv", "_bn1")
            self.blocks.append((expand, each, folded(f"{path}._project_conv", "_bn2"), stride))
        self.head = folded("_conv_head", "_bn1")

    @torch.inference_mode()
    def __call__(self, pixels: Tensor, side: int) -> Tensor:
        """Features (pictures, 1280) of bytes (pictures, 3, height, width), drawn `side` wide."""
        x = (pixels.float() - 127.0) / 128.0  # as it was trained
        x = F.interpolate(x, size=(side, side), mode="bilinear", align_corners=False)
        x = x.contiguous(memory_format=torch.channels_last)
        x = convolved(x, self.stem, stride=2).clamp_(0, 6)
        for expand, each, project, stride in self.blocks:
            before = x
            if expand is not None:
                x = convolved(x, expand).clamp_(0, 6)
            x = convolved(x, each, stride, groups=x.shape[1]).clamp_(0, 6)
            x = convolved(x, project)
            if stride == 1 and x.shape == before.shape:
                x += before
        return convolved(x, self.head).clamp_(0, 6).mean((2, 3))


def fold(state: Mapping[str, Tensor], weight: str, norm: str) -> Convolution:
    """One convolution that does what a convolution and its normalisation do: w x gamma / sigma and
    beta - mu gamma / sigma."""
    scale = state[f"{norm}.weight"] / (state[f"{norm}.running_var"] + EPSILON).sqrt()
    bias = state[f"{norm}.bias"] - state[f"{norm}.running_mean"] * scale
    folded = state[weight] * scale[:, None, None, None]
    return folded.contiguous(memory_format=torch.channels_last), bias


def convolved(x: Tensor, own: Convolution, stride: int = 1, groups: int = 1) -> Tensor:
    """A convolution whose output is as large as its input over the stride; where the border that
    this takes is odd, right and below have the pixel more, as in TensorFlow."""
    weight, bias = own
    kernel, size = weight.shape[2], x.shape[2]
    border = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    before, after = border // 2, border - border // 2
    if before != after:
        x, before = F.pad(x, (before, after, before, after)), 0
    return F.conv2d(x, weight, bias, stride, before, groups=groups)


def efficientnet(data_dir: Folder = None) -> EfficientNet:
    """The published network."""
    (content,) = contents_of(EFFICIENTNET, data_dir).values()
    return EfficientNet(torch.load(io.BytesIO(content), weights_only=True))
