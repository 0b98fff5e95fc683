"""Optimum's classifier on an optimized BERT with random weights against the transformers model."""

import numpy as np
import onnx
import pytest

import ortplugin

torch = pytest.importorskip("torch", reason="PyTorch is not installed; install the extra 'optimum'")
pytest.importorskip("optimum.onnxruntime", reason="Optimum is not installed; install the extra 'optimum'")
transformers = pytest.importorskip("transformers")

NAMES = ["input_ids", "attention_mask", "token_type_ids"]


def test_the_classifier(tmp_path):
  import optimum_classifier

  sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
  config = transformers.BertConfig(vocab_size=50, initializer_range=0.5, **sizes)
  torch.manual_seed(0)
  bert = transformers.BertForSequenceClassification(config).eval()
  config.save_pretrained(tmp_path)
  given = tuple(torch.ones(2, 6, dtype=torch.int64) for _ in NAMES)
  dims = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence")}
  options = {"dynamo": True, "verbose": False, "dynamic_shapes": dict.fromkeys(NAMES, dims), "output_names": ["logits"]}
  optimized, _ = ortplugin.optimize(torch.onnx.export(bert, given, **options).model_proto)
  assert "FusedLayerNorm" in {node.op_type for node in optimized.graph.node}
  onnx.save(optimized, tmp_path / "fast.onnx")

  ids, mask = torch.randint(50, (3, 7)), torch.arange(7) < torch.tensor([[7], [5], [2]])
  tokens = {"input_ids": ids, "attention_mask": mask.to(torch.int64), "token_type_ids": ids % 2}
  wanted = bert(**tokens).logits.detach().numpy()
  assert np.ptp(wanted, 0).min() > 1e-2
  model = optimum_classifier.load(tmp_path)
  np.testing.assert_allclose(model(**tokens).logits.numpy(), wanted, rtol=1e-4, atol=1e-4)
