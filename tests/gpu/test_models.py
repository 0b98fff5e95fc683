"""Whole models on a GPU: every norm fused, outputs as before, and a replayed CUDA graph equal to a plain run."""

import numpy as np
import pytest
from onnx_models import nodes_of

import ortplugin
from gpu.device import cupy
from models.bert import BertConfig, build_bert, build_bert_base, random_weights

pytestmark = pytest.mark.gpu

MINILM = BertConfig(hidden_size=384, num_hidden_layers=6, intermediate_size=1536)  # the demo's, with other weights


@pytest.mark.parametrize("name", ["BERT-base, float16", "MiniLM, float"])
def test_a_transformer(name):
  is_base = name.startswith("BERT")
  model = build_bert_base(np.float16) if is_base else build_bert(MINILM, random_weights(0), np.float32)
  optimized, _ = ortplugin.optimize(model)
  fused = [*nodes_of(optimized, "FusedLayerNorm"), *nodes_of(optimized, "FusedMatMulNorm")]
  assert len(fused) == (BertConfig() if is_base else MINILM).norms
  assert not nodes_of(optimized, "LayerNormalization")

  rng = np.random.default_rng(0)
  shape = (4, 64)
  feeds = {
    "input_ids": cupy.asarray(rng.integers(0, 30000, shape)),
    "attention_mask": cupy.asarray((np.arange(64) < rng.integers(8, 65, (4, 1))).astype(np.int64)),
    "token_type_ids": cupy.zeros(shape, np.int64),
  }
  expected = run(model, feeds)
  plain = run(optimized, feeds)
  for key, value in expected.items():
    scale = float(cupy.abs(value.astype(cupy.float64)).max())
    error = float(cupy.abs(value.astype(cupy.float64) - plain[key].astype(cupy.float64)).max()) / scale
    # fp16 rounds each of some 150 operators to 11 bits; fp32 on CUDA multiplies matrices in TF32, of 11 bits too.
    assert error < 2e-2, key

  session = ortplugin.session(optimized.SerializeToString(), providers=["cuda"], cuda_graph=True)
  for _ in range(3):
    replayed = ortplugin.run(session, feeds, copy=True)
    for key, value in plain.items():
      assert (replayed[key] == value).all(), key


def run(model, feeds):
  """The outputs on the CUDA provider, without a graph."""
  return ortplugin.run(ortplugin.session(model.SerializeToString(), providers=["cuda"]), feeds)
