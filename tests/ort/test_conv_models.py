"""Convolutional networks with channels first and last: what is fused, which Transposes remain, equal outputs.

The exported models of tests/data and the networks of the onnx package, in ONNX Runtime with the library.
"""

import json
from collections import Counter

import numpy as np
import onnx
from exported import DATA
from onnx import numpy_helper
from onnx_models import all_attributes, nodes_of, one_in, parametrize

from models.light import NAMES as NETWORKS, path, randomized
from ort.host import verify
from ortplugin import optimize

EXPECTED = json.loads((DATA / "expected.json").read_text())
NAMES = [name for name in sorted(EXPECTED) if name.split("_")[0] in ("convnext", "efficientnet", "mobilenet")]
# Operators that are no part of a convolution: a squeeze-excite's product, whose gate depends on what it scales; with
# channels first also what follows a Gemm.
APART = {"convnext": 0, "efficientnet": 2, "mobilenet": 1}
# What a matrix product reads as [N, C H W].
FLATTENED = dict.fromkeys(("bvlc_alexnet", "vgg19", "zfnet512"), (("FusedPool", "Reshape"),))
POINTWISE = ("FusedPointwise", "Relu", "Add", "Sub", "Mul", "Div", "HardSwish", "HardSigmoid", "Sigmoid", "Clip", "Erf")


def original_of(name):
  return onnx.load(DATA / f"{name}.onnx")


def half(model):
  for tensor in (*model.graph.initializer, *(a.t for n in model.graph.node for a in n.attribute if a.name == "value")):
    if tensor.data_type == onnx.TensorProto.FLOAT:
      tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
  for info in (*model.graph.input, *model.graph.output, *model.graph.value_info):
    if info.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
      info.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
  return model


def apart(model):
  return [node.op_type for node in model.graph.node if node.op_type in POINTWISE]


def transposes(model):
  """What makes the input of each Transpose, and what reads its output: operators, or 'graph'."""
  makers = {name: node.op_type for node in model.graph.node for name in node.output}
  readers = {name: node.op_type for node in reversed(model.graph.node) for name in node.input}
  moved = nodes_of(model, "Transpose")
  return [(makers.get(node.input[0], "graph"), readers.get(node.output[0], "graph")) for node in moved]


def layouts(model):
  return Counter(all_attributes(node).get("layout", b"NCHW").decode() for node in nodes_of(model, "FusedConv"))


@one_in(2)
@parametrize("name", NAMES)
def test_channels_first(name):
  original = original_of(name)
  optimized, _ = optimize(original, layout="nchw", skip=["matmul-float32"])
  assert set(layouts(optimized)) == {"NCHW"}
  if not name.startswith("convnext"):  # whose linear layers are MatMuls of an image with channels last
    assert len(apart(optimized)) == APART[name.split("_")[0]] + name.startswith("mobilenet")
    assert not transposes(optimized)
  verify(original, optimized)


@one_in(2)
@parametrize("name", NAMES)
def test_channels_last(name):
  original = original_of(name)
  optimized, _ = optimize(original, layout="nhwc")
  check_channels_last(name, original, optimized)
  verify(original, optimized)
  again, report = optimize(optimized, layout="nhwc")
  assert not report.changes
  assert again == optimized


def check_channels_last(name, original, optimized):
  """Every convolution, activation and residual sum in one node; no Transpose, before the image either."""
  assert set(layouts(optimized)) == {"NHWC"}
  assert len(apart(optimized)) == APART[name.split("_")[0]]
  assert transposes(optimized) == []
  linear = sum(node.op_type in ("MatMul", "Gemm") for node in original.graph.node)
  convolutions = sum(node.op_type == "Conv" for node in original.graph.node)
  assert layouts(optimized)["NHWC"] == convolutions + linear


@one_in(2)
@parametrize("name", NAMES)
def test_in_float16_channels_are_last(name):
  original = half(original_of(name))
  optimized, _ = optimize(original)
  check_channels_last(name, original, optimized)
  verify(original, optimized)
  first, _ = optimize(original, layout="nchw")
  assert set(layouts(first)) == {"NCHW"}


@one_in(2)
@parametrize("name", ["resnet50", "densenet121", "shufflenet", "squeezenet", "inception_v2"])
def test_networks_of_the_onnx_package(name):
  original = randomized(name, logits=True)
  optimized, _ = optimize(original, layout="nhwc")
  assert transposes(optimized) == []
  assert set(layouts(optimized)) == {"NHWC"}
  verify(original, optimized)


@one_in(11)
@parametrize("name", NETWORKS)
def test_all_of_them_as_they_are(name):
  """Weights too large to be folded are computed: these have a Transpose. What else ends a region: LRN and Flatten."""
  optimized, _ = optimize(path(name), layout="nhwc")
  assert set(layouts(optimized)) == {"NHWC"}
  found = Counter(each for each in transposes(optimized) if each[0] != "ConstantOfShape")
  ends = {pair: count for pair, count in found.items() if not {"LRN", "MaxPool"} & set(pair)}
  assert ends == dict.fromkeys(FLATTENED.get(name, ()), 1)
  around_lrn = 4 if name in ("bvlc_alexnet", "inception_v1", "zfnet512") else 0
  assert sum(found.values()) - sum(ends.values()) == around_lrn
