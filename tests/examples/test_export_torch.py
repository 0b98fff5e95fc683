"""From PyTorch to a session: the operators are ours, the outputs PyTorch's."""

import numpy as np
import onnx
import pytest

import ortplugin

torch = pytest.importorskip("torch", reason="PyTorch is not installed; install the extra 'torch'")
pytest.importorskip("onnxscript", reason="onnxscript is not installed; install the extra 'torch'")


def test_a_module(monkeypatch):
  import export_torch

  session, saved = ortplugin.session, []
  monkeypatch.setattr(ortplugin, "session", lambda data: (saved.append(data), session(data))[1])
  torch.manual_seed(0)
  network = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.GELU(), torch.nn.LayerNorm(6))
  fast = export_torch.optimized_session(network, (torch.rand(2, 3, 8, 8),), dynamic_shapes=export_torch.OPEN_BATCH)
  assert {"FusedConv", "FusedLayerNorm"} <= {node.op_type for node in onnx.load_from_string(saved[0]).graph.node}
  for batch in (1, 5):
    image = torch.rand(batch, 3, 8, 8)
    (scores,) = fast.run(None, {fast.get_inputs()[0].name: image.numpy()})
    np.testing.assert_allclose(scores, network(image).detach().numpy(), rtol=1e-5, atol=1e-5)
