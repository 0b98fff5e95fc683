import sys
from collections import Counter

import numpy as np
import onnxruntime
import pytest

import ortplugin
from ortplugin import torch_export
from ortplugin.errors import UsageError
from ortplugin.optimizer import PIPELINE, run_passes

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
functional = torch.nn.functional


def check(function, args, expected, tolerance=1e-4):
  wanted = function(*[each.detach().requires_grad_(each.is_floating_point()) for each in args])
  model = torch_export.export(function, args)
  assert Counter(node.op_type for node in model.graph.node if node.domain == "ortplugin") == expected
  for each in (model, run_passes(model, PIPELINE)[0]):
    options = onnxruntime.SessionOptions()
    ortplugin.register(options)
    session = onnxruntime.InferenceSession(each.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = {value.name: x.detach().numpy() for value, x in zip(session.get_inputs(), args, strict=True)}
    for got, want in zip(session.run(None, feeds), wanted, strict=True):
      np.testing.assert_allclose(got, want.detach().numpy(), rtol=tolerance, atol=tolerance)
  return model


@pytest.mark.parametrize(
  "transposed, groups, attributes",
  [
    (False, 1, {"stride": 2, "padding": 1}),
    (False, 2, {"stride": (2, 1), "dilation": (1, 2), "padding": (0, 2)}),
    (True, 1, {}),
    (True, 2, {"stride": 2, "padding": 1, "output_padding": 1}),
  ],
)
def test_gradients_of_convolutions(transposed, groups, attributes):
  torch.manual_seed(1)
  x, w, b = torch.randn(2, 4, 9, 8), torch.randn(4, 6 // groups, 3, 3), torch.randn(6)
  if not transposed:
    w = torch.randn(6, 4 // groups, 3, 3)
  convolution = functional.conv_transpose2d if transposed else functional.conv2d

  def step(x, w, b):
    y = functional.relu(convolution(x, w, b, groups=groups, **attributes))
    loss = (y * y).mean()
    return (loss, *torch.autograd.grad(loss, [x, w, b]))

  check(step, (x, w, b), Counter({"ConvGrad": 1}))


def test_a_saliency_map():
  torch.manual_seed(2)

  def saliency(x, w):
    return torch.autograd.grad(functional.conv2d(x, w, padding=1).tanh().sum(), [x])

  model = check(saliency, (torch.randn(1, 3, 8, 8), torch.randn(5, 3, 3, 3)), Counter({"ConvGrad": 1}))
  (node,) = [each for each in model.graph.node if each.op_type == "ConvGrad"]
  assert len(node.output) == 1


def test_lerp_and_its_gradients():
  torch.manual_seed(3)

  def step(x, y, w):
    z = torch.lerp(x, y, w)
    return (z, *torch.autograd.grad(z.square().sum(), [x, y, w]))

  model = check(step, (torch.randn(4, 1, 5), torch.randn(4, 3, 5), torch.rand(3, 1)), Counter({"FusedPointwise": 1}))
  optimized, _, _ = run_passes(model, PIPELINE)
  assert {node.op_type for node in optimized.graph.node} >= {"FusedSumTo"}


@pytest.mark.parametrize("weight", [0.25, -1.5])
def test_lerp_with_a_number(weight):
  def step(x, y):
    return (torch.lerp(x, y, weight),)

  check(step, (torch.randn(4, 5), torch.randn(4, 5)), Counter({"FusedPointwise": 1}), 1e-6)


def test_what_is_missing_is_named(monkeypatch):
  monkeypatch.setitem(sys.modules, "onnxscript", None)
  with pytest.raises(UsageError, match=r"needs torch and onnxscript.*pip install ortplugin\[torch\]"):
    torch_export.translations()
