"""all-MiniLM-L6-v2 (Wang et al., 2020; Reimers et al., 2021): texts to tokens, to vectors.

Needs the extra `pretrained`. The model is made from verified bytes: no file is opened that was not
checked, no code of anybody is run.
"""

import json
from collections.abc import Sequence
from typing import Any

import torch
from safetensors.torch import load as load_tensors
from torch import Tensor

from evclplus.core.inputs import mean_over_tokens
from evclplus.data.datasets import MINILM
from evclplus.data.local import Folder, contents_of
from evclplus.errors import SettingsError

FEATURES = 384
PADDING = 0
AT_ONCE = 32


def _need(package: str) -> Any:
    """An optional package, or the one line that says how to get it."""
    import importlib

    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise SettingsError(
            f"pretrained networks for text need the package {package} ({error}); "
            "pip install 'evclplus[pretrained]'"
        ) from None


def minilm(data_dir: Folder = None) -> tuple[Any, Any]:
    """The tokenizer and the transformer, in evaluation mode."""
    tokenizers, transformers = _need("tokenizers"), _need("transformers")
    contents = {file.name: content for file, content in contents_of(MINILM, data_dir).items()}
    config = transformers.BertConfig(**json.loads(contents["config.json"]))
    model = transformers.BertModel(config)
    weights = load_tensors(contents["model.safetensors"])
    weights.pop("embeddings.position_ids", None)  # 0, 1, 2...: older versions stored them
    model.load_state_dict(weights)
    return tokenizers.Tokenizer.from_str(contents["tokenizer.json"].decode()), model.eval()


def tokens(tokenizer: Any, texts: Sequence[str], length: int) -> Tensor:
    """A row of `length` tokens for each text: cut off, or filled up with the padding token."""
    tokenizer.no_padding()
    tokenizer.enable_truncation(length)
    rows = torch.full((len(texts), length), PADDING)
    for row, encoded in zip(rows, tokenizer.encode_batch(list(texts)), strict=True):
        row[: len(encoded.ids)] = torch.tensor(encoded.ids)
    return rows


@torch.inference_mode()
def embedded(model: Any, rows: Tensor) -> Tensor:
    """A vector of length 1 for each row of tokens: the mean over its tokens, normalised."""
    lengths = (rows != PADDING).sum(1)
    vectors = torch.empty(len(rows), model.config.hidden_size)
    for index in lengths.argsort().split(AT_ONCE):  # rows of like length, so that little is padding
        batch = rows[index, : int(lengths[index].max())]
        mask = (batch != PADDING).long()
        hidden = model(input_ids=batch, attention_mask=mask).last_hidden_state
        vectors[index] = torch.nn.functional.normalize(mean_over_tokens(hidden, mask))
    return vectors
