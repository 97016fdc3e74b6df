"""Features of pretrained networks: computed once, and equal to what torch's own layers give."""

import json
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evclplus.data import efficientnet, minilm
from evclplus.data.datasets import MODELS
from evclplus.data.features import PART, Features
from evclplus.data.local import find
from evclplus.data.texts import texts
from evclplus.errors import FileError, SettingsError


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("EVCLPLUS_DATA", raising=False)
    monkeypatch.setenv("EVCLPLUS_CACHE", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


class Rows:
    """The features of a row are its number and twice its number. Remembers what was asked."""

    def __init__(self) -> None:
        self.asked: list[range] = []

    def __call__(self, rows: range) -> Tensor:
        self.asked.append(rows)
        return torch.tensor([[row, 2.0 * row] for row in rows])


def features(compute: Any, count: int = 2 * PART + 3) -> Features:
    return Features("some", count, 2, "key", compute)


def test_features_are_computed_once_and_in_parts(cache: Path) -> None:
    rows, done = Rows(), list[int]()
    with pytest.raises(FileError, match="`evclplus data prepare split-x` does it"):
        features(rows).read("split-x")
    features(rows).prepare(done.append)
    assert rows.asked == [range(PART), range(PART, 2 * PART), range(2 * PART, 2 * PART + 3)]
    assert done == [0, PART, 2 * PART, 2 * PART + 3]
    found = features(rows).read("split-x")
    assert torch.equal(found[:, 0], torch.arange(2.0 * PART + 3))
    assert torch.equal(found[:, 1], 2 * found[:, 0])
    features(rows).prepare(done.append)
    assert len(rows.asked) == 3


def test_a_damaged_part_is_computed_again(cache: Path) -> None:
    rows = Rows()
    features(rows).prepare(lambda _: None)
    whole = features(rows).read("split-x")
    (second,) = cache.rglob(f"{PART:06d}.npy")
    content = bytearray(second.read_bytes())
    content[-1] ^= 1
    second.write_bytes(content)
    with pytest.raises(FileError, match="no longer whole"):
        features(rows).read("split-x")
    rows.asked.clear()
    features(rows).prepare(lambda _: None)
    assert rows.asked == [range(PART, 2 * PART)]
    assert torch.equal(features(rows).read("split-x"), whole)


def test_two_that_compute_share_the_work(cache: Path) -> None:
    """Both meet before each part; the lock lets one compute it while the other waits."""
    rows, meeting = Rows(), threading.Barrier(2)

    def together(_: int) -> None:
        meeting.wait()

    other = threading.Thread(target=lambda: features(rows).prepare(together))
    other.start()
    features(rows).prepare(together)
    other.join()
    assert sorted(one.start for one in rows.asked) == [0, PART, 2 * PART]


# EfficientNet


class Block(nn.Module):
    """A block as the paper has it, of torch's own layers."""

    def __init__(self, before: int, wide: int, after: int, kernel: int) -> None:
        super().__init__()
        if wide != before:
            self._expand_conv = nn.Conv2d(before, wide, 1, bias=False)
            self._bn0 = nn.BatchNorm2d(wide, eps=1e-3)
        self._depthwise_conv = nn.Conv2d(wide, wide, kernel, groups=wide, bias=False)
        self._bn1 = nn.BatchNorm2d(wide, eps=1e-3)
        self._project_conv = nn.Conv2d(wide, after, 1, bias=False)
        self._bn2 = nn.BatchNorm2d(after, eps=1e-3)


class Reference(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self._conv_stem = nn.Conv2d(3, 4, 3, bias=False)
        self._bn0 = nn.BatchNorm2d(4, eps=1e-3)
        kernels = (3, 3, 3, 5, 5, 3, 3, 3, 5, 5, 5, 5, 5, 5, 5, 3)
        widths = [4, 4, *[6] * 15]
        self._blocks = nn.ModuleList(
            Block(before, before if index == 0 else 2 * before, after, kernel)
            for index, (before, after, kernel) in enumerate(
                zip(widths[:-1], widths[1:], kernels, strict=True)
            )
        )
        self._conv_head = nn.Conv2d(6, 7, 1, bias=False)
        self._bn1 = nn.BatchNorm2d(7, eps=1e-3)

    def features(self, x: Tensor) -> Tensor:
        def same(x: Tensor, layer: nn.Conv2d, stride: int) -> Tensor:
            # What TensorFlow calls "same", for sides that the stride divides.
            border = layer.kernel_size[0] - stride
            low = border // 2
            padded = F.pad(x, (low, border - low, low, border - low))
            return F.conv2d(padded, layer.weight, stride=stride, groups=layer.groups)

        x = F.relu6(self._bn0(same(x, self._conv_stem, 2)))
        for one, stride in zip(self._blocks, efficientnet.STRIDES, strict=True):
            block: Any = one
            before = x
            if hasattr(block, "_expand_conv"):
                x = F.relu6(block._bn0(block._expand_conv(x)))
            x = F.relu6(block._bn1(same(x, block._depthwise_conv, stride)))
            x = block._bn2(block._project_conv(x))
            if stride == 1 and x.shape == before.shape:
                x = x + before
        return F.relu6(self._bn1(self._conv_head(x))).mean((2, 3))


def test_the_folded_network_is_the_network() -> None:
    reference = Reference()
    for module in reference.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.8, 1.5)
            nn.init.normal_(module.bias)
            nn.init.normal_(module.running_mean, std=0.1)  # type: ignore[arg-type]
            nn.init.uniform_(module.running_var, 0.1, 0.5)  # type: ignore[arg-type]
    reference.eval()
    pixels = torch.randint(0, 256, (3, 3, 64, 64), dtype=torch.uint8)
    with torch.no_grad():
        expected = reference.features((pixels.float() - 127) / 128)
    found = efficientnet.EfficientNet(reference.state_dict())(pixels, 64)
    assert expected.std() > 0.1
    assert torch.allclose(found, expected, atol=1e-4)


def test_the_published_network_gives_the_published_features() -> None:
    """Numbers of the package efficientnet-lite-pytorch 0.1.0, for the same weights."""
    if next(find(MODELS["efficientnet"]), None) is None:
        pytest.skip("efficientnet is not here: evclplus data fetch efficientnet")
    pixels = (torch.arange(3 * 96 * 96) * 7919 % 256).view(1, 3, 96, 96).to(torch.uint8)
    found = efficientnet.efficientnet()(pixels, 96)[0]
    assert found[:4].tolist() == pytest.approx([0.1348, 0.0, 2.36, 0.0], abs=1e-4)


# MiniLM


def small_bert() -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=60,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=32,
    )
    return transformers.BertModel(config).eval()


@pytest.mark.slow
def test_a_text_s_vector_does_not_depend_on_the_others() -> None:
    model = small_bert()
    rows = torch.randint(1, 60, (70, 12))
    lengths = torch.randint(1, 13, (70,))
    rows[torch.arange(12) >= lengths[:, None]] = minilm.PADDING
    together = minilm.embedded(model, rows)
    assert torch.allclose(together.norm(dim=1), torch.ones(70))
    for row, length, vector in zip(rows, lengths, together, strict=True):
        with torch.no_grad():
            alone = model(input_ids=row[None, :length]).last_hidden_state.mean(1)[0]
        assert torch.allclose(vector, alone / alone.norm(), atol=1e-5)


def test_texts_become_rows_of_tokens() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {"[UNK]": 1, "a": 2, "b": 3, "c": 4}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    rows = minilm.tokens(words, ["a b", "c", "a b c a b", "z"], 4)
    assert rows.tolist() == [[2, 3, 0, 0], [4, 0, 0, 0], [2, 3, 4, 2], [1, 0, 0, 0]]


@pytest.mark.slow
def test_the_published_transformer() -> None:
    """Sentences of like meaning lie near each other, as they do for its authors."""
    if next(find(MODELS["minilm"]), None) is None:
        pytest.skip("minilm is not here: evclplus data fetch minilm")
    pytest.importorskip("transformers")
    tokenizer, model = minilm.minilm()
    said = ["A man is eating food.", "A man is eating a piece of bread.", "The girl is asleep."]
    vectors = minilm.embedded(model, minilm.tokens(tokenizer, said, 16))
    near = vectors @ vectors.T
    # The first figure stands in the documentation of sentence-transformers.
    assert float(near[0, 1]) == pytest.approx(0.7553, abs=1e-3)
    assert float(near[0, 2]) < 0.2


def test_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(SettingsError, match=r"pip install 'evclplus\[pretrained\]'"):
        minilm.minilm()


def test_missing_files_are_one_line(cache: Path) -> None:
    with pytest.raises(FileError, match="`evclplus data fetch efficientnet`"):
        efficientnet.efficientnet()
    with pytest.raises(FileError, match="`evclplus data fetch newsgroups`"):
        texts()
    with pytest.raises(SettingsError, match="holds no texts"):
        texts("letter")


@pytest.mark.slow
def test_a_model_that_was_changed_is_not_read(cache: Path) -> None:
    folder = cache / "minilm"
    folder.mkdir()
    for file in MODELS["minilm"].files:
        (folder / file.name).write_bytes(bytes(file.size) if file.size < 10**6 else b"")
    (folder / "config.json").write_text(json.dumps({"vocab_size": 10**12}))
    pytest.importorskip("transformers")
    with pytest.raises(FileError, match="get it again"):
        minilm.minilm()


def test_features_are_floats_of_32_bits(cache: Path) -> None:
    features(lambda rows: torch.zeros(len(rows), 2, dtype=torch.float64), 4).prepare(lambda _: None)
    (path,) = cache.rglob("*.npy")
    assert np.load(path).dtype == np.float32
