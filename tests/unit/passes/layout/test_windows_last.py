import numpy as np
from layout_helpers import FP16
from onnx import helper
from pass_helpers import add_weights, model, operators, parametrize, run_pass, run_same, stays

from ortplugin.optimizer.pipeline import CHANNELS_LAST, DEAD_NODES, FORBID_TF32, FUSE_CONV, WINDOWS_LAST

TO_IMAGE = "t = Transpose<0,5,1,3,2,4>(x)  r = Reshape(t, image)"
CONV = "y = Conv<pads=[1,1,1,1]>(r, w)"


def graph(nodes, x="float16[2,2,3,3,2,4] x", y="float16[2,4,6,6] y", image=(2, 4, 6, 6), weights=FP16):
  original = model(f"({x}) => ({y}) <{weights}> {{ {nodes} }}", opset=19)
  add_weights(original, image=np.array(image, np.int64))
  return original


@parametrize("batch", ["2", "N"])
def test_before_a_convolution(batch):
  original = graph(
    f"{TO_IMAGE}  {CONV}",
    f"float16[{batch},2,3,3,2,4] x",
    f"float16[{batch},4,6,6] y",
    (2 if batch == "2" else 0, 4, 6, 6),
  )
  optimized, result = run_same(original, FUSE_CONV, WINDOWS_LAST, N=2, into="Transpose Reshape Transpose FusedConv")
  perms = [list(helper.get_node_attr_value(optimized.graph.node[at], "perm")) for at in (0, 2)]
  assert perms == [[0, 1, 3, 2, 4, 5], [0, 3, 1, 2]]
  assert len([each for each in result.changes if each.rewrite == WINDOWS_LAST.name]) == 1
  run_same(
    original, FUSE_CONV, WINDOWS_LAST, CHANNELS_LAST, DEAD_NODES, N=2, into="Transpose Reshape FusedConv Transpose"
  )


def test_through_pools_and_what_is_pointwise():
  pool = "p = AveragePool<kernel_shape=[2,2], strides=[2,2]>(r)  s = Sigmoid(r)"
  original = graph(
    f"{TO_IMAGE}  {pool}  u = Conv<pads=[1,1,1,1]>(p, w)  y = Conv<pads=[1,1,1,1]>(s, w)",
    y="float16[2,4,6,6] y, float16[2,4,3,3] u",
  )
  optimized, _ = run_same(original, FUSE_CONV, WINDOWS_LAST, CHANNELS_LAST, DEAD_NODES)
  assert operators(optimized)[:2] == ["Transpose", "Reshape"]
  assert operators(optimized).count("Transpose") == 3  # the others are of the outputs


def test_of_float32():
  original = graph(f"{TO_IMAGE}  {CONV}", "float[2,2,3,3,2,4] x", "float[2,4,6,6] y", weights=SINGLE)
  run_pass(original, FUSE_CONV, FORBID_TF32, WINDOWS_LAST, into="Transpose Reshape Transpose FusedConv")


SINGLE = FP16.replace("float16", "float").split("{", 1)[0] + "{" + ", ".join(["0.5"] * 144) + "}"


@parametrize(
  "original",
  [
    graph(f"{TO_IMAGE}  y = Relu(r)"),  # without a convolution
    graph(f"{TO_IMAGE}  {CONV}  z = Neg(t)", y="float16[2,4,6,6] y, float16[2,4,2,3,3,2] z"),
    graph(f"{TO_IMAGE.replace('0,5,1', '0,1,5')}  {CONV}", "float16[2,4,3,3,2,2] x"),  # channels that are first
    graph(f"{TO_IMAGE}  {CONV}", "float16[2,2,3,3,4,2] x"),  # channels of which some are pixels
    graph(f"{TO_IMAGE}  {CONV}", "float16[2,2,A,3,2,4] x", "float16[2,4,B,C] y", (2, 4, 6, -1)),
  ],
)
def test_what_stays(original):
  stays(run_pass(original, FUSE_CONV)[0], WINDOWS_LAST)
