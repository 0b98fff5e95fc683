"""The nine convolutional networks of the onnx package: of old opset and IR, with weights made by ConstantOfShape."""

from collections import Counter

import onnx
import pytest

from models.light import NAMES, path, randomized
from ort.host import verify
from ortplugin import optimize
from ortplugin.cli import main

# What has to be gone, and what may remain: ConstantOfShape of weights beyond the budget of constant folding (1 MiB).
GONE = ("Sum", "Unsqueeze", "Dropout", "Mul", "BatchNormalization", "Conv")
REMAIN = {
  "bvlc_alexnet": 7, "densenet121": 2, "inception_v1": 7, "inception_v2": 13, "resnet50": 18, "shufflenet": 1,
  "squeezenet": 1, "vgg19": 15, "zfnet512": 7,
}  # fmt: skip
# Activations and sums that are no part of a convolution: after BatchNormalizations of what a Concat made in DenseNet,
# after a Concat in ShuffleNet, after a Gemm in the others.
APART = {"densenet121": 62, "shufflenet": 3, "bvlc_alexnet": 2, "vgg19": 2, "zfnet512": 2}
# As they are, all weights are alike, so that some convolutions of one image are the same; and what is pointwise behind
# those, where they differ in their BatchNormalizations.
EQUAL = {"inception_v1": 2, "inception_v2": 9}
BEHIND_EQUAL = {"inception_v2": 2}
POINTWISE = ("FusedPointwise", "Relu", "Add", "Mul")


def counts(model):
  return Counter(node.op_type for node in model.graph.node)


@pytest.mark.one_in(10)
@pytest.mark.parametrize("name", NAMES)
def test_as_they_are(name):
  original = onnx.load(path(name))
  optimized, report = optimize(path(name))
  assert report.opset == (original.opset_import[0].version, 11)
  left = counts(optimized)
  assert not [each for each in GONE if left[each]]
  assert left["ConstantOfShape"] == REMAIN[name]
  assert left["FusedConv"] == counts(original)["Conv"] - EQUAL.get(name, 0)
  assert sum(left[each] for each in POINTWISE) == APART.get(name, 0) + BEHIND_EQUAL.get(name, 0)
  verify(original, optimized)


# Those whose weights take less than 120 MB; the others have neither normalisations nor sums.
@pytest.mark.one_in(0)
@pytest.mark.parametrize("name", ["densenet121", "inception_v2", "resnet50", "shufflenet"])
def test_with_random_weights(name):
  """As they are, all channels of a layer are equal and most outputs 1/1000, which hides mistakes."""
  original = randomized(name, logits=True)
  optimized, _ = optimize(original)
  left = counts(optimized)
  assert not [each for each in (*GONE, "ConstantOfShape") if left[each]]
  assert sum(left[each] for each in POINTWISE) == APART.get(name, 0)
  verify(original, optimized)
  again, report = optimize(optimized)
  assert not report.changes
  assert again == optimized


def test_on_the_command_line(tmp_path, capsys):
  output = tmp_path / "out.onnx"
  assert main([str(path("shufflenet")), "-o", str(output), "--provider", "cpu"]) == 0
  assert "Upgraded from opset 9 to 11." in capsys.readouterr().out
  written = onnx.load(output)
  onnx.checker.check_model(written)
  assert [each.version for each in written.opset_import if not each.domain] == [11]
  assert [each.name for each in written.graph.input] == ["gpu_0/data_0"]
