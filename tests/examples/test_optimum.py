"""Optimum's classifier on an optimized BERT with random weights, against the transformers model; nothing is loaded
from anywhere.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from example_model import EXAMPLES

torch = pytest.importorskip("torch", reason="PyTorch is not installed; install the extra 'optimum'")
pytest.importorskip("optimum.onnxruntime", reason="Optimum is not installed; install the extra 'optimum'")
transformers = pytest.importorskip("transformers")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "what", "a", "fine", "day", "mess", "."]
TEXTS = ["What a fine day.", "What a mess", "a fine, fine mess."]


class Exported(torch.nn.Module):
  def __init__(self, model: Any) -> None:
    super().__init__()
    self.model = model

  def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
    return self.model(input_ids, attention_mask, token_type_ids).logits


@pytest.fixture(scope="module")
def bert() -> Any:
  torch.manual_seed(0)
  config = transformers.BertConfig(
    vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
    max_position_embeddings=32, initializer_range=0.5, attn_implementation="eager", id2label={0: "good", 1: "bad"},
  )  # fmt: skip
  return transformers.BertForSequenceClassification(config).eval()


@pytest.fixture(scope="module")
def folder(bert: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
  """What optimum-cli makes: a tokenizer, config.json and model.onnx."""
  path = tmp_path_factory.mktemp("classifier")
  (path / "vocab.txt").write_text("\n".join(WORDS))
  transformers.BertTokenizerFast(path / "vocab.txt").save_pretrained(path)
  bert.config.save_pretrained(path)
  names = ["input_ids", "attention_mask", "token_type_ids"]
  torch.onnx.export(
    Exported(bert).eval(), tuple(torch.ones(2, 6, dtype=torch.int64) for _ in names), path / "model.onnx",
    dynamo=True, verbose=False, external_data=False, input_names=names, output_names=["logits"],
    dynamic_shapes={name: {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence")} for name in names},
  )  # fmt: skip
  return path


def test_the_classifier(example: Callable[[str], ModuleType], bert: Any, folder: Path) -> None:
  module = example("optimum_classifier")
  model = module.load(folder)
  saved = onnx.load(folder / module.OPTIMIZED)
  assert "FusedLayerNorm" in {node.op_type for node in saved.graph.node if node.domain == "ortplugin"}
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
  for texts in (TEXTS, TEXTS[:1]):
    tokens = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
      wanted = bert(**tokens).logits.numpy()
    assert len(texts) == 1 or np.ptp(wanted, 0).min() > 1e-2
    np.testing.assert_allclose(model(**tokens).logits.numpy(), wanted, rtol=1e-4, atol=1e-4)


def test_the_command(bert: Any, folder: Path, environment: dict[str, str]) -> None:
  command = [sys.executable, str(EXAMPLES / "optimum_classifier.py"), str(folder), *TEXTS]
  shown = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.splitlines()
  assert [line.split("  ")[1] for line in shown] == TEXTS
  assert {line.split()[0] for line in shown} <= {"good", "bad"}
