import numpy as np
from onnx import helper
from onnx_models import add_weights, all_attributes, built, nodes_of, value_infos
from pass_helpers import lines, model, operators, parametrize, programs, run_same, same_outputs, stays

from ortplugin.optimizer import PIPELINE, run_passes, select_passes
from ortplugin.optimizer.pipeline import FUSE_CONV

NUMPY = {"float": np.float32, "float16": np.float16}


def up(
  after=(), *, dtype="float", weights=(4, 6, 3, 3), bias_shape=(6,), x_shape=("N", 4, 5, 7), opset=17, **attributes
):
  """x [N, 4, 5, 7] -> ConvTranspose -> the operators `after` -> y."""
  rng = np.random.default_rng(3)
  kind = helper.np_dtype_to_tensor_dtype(np.dtype(NUMPY[dtype]))
  channels = weights[1] * int(str(attributes.get("group", 1)))
  constants = {"w": rng.standard_normal(weights) * 0.3}
  if bias_shape is not None:
    constants["b"] = rng.standard_normal(bias_shape)
  for name in ("scale", "shift", "mean"):
    constants[name] = rng.standard_normal(channels)
  constants["var"] = rng.random(channels) + 0.5
  nodes = [helper.make_node("ConvTranspose", ["x", "w", *["b"] * (bias_shape is not None)], ["v0"], "up", **attributes)]
  for number, op in enumerate(after):
    extra = ["scale", "shift", "mean", "var"] if op == "BatchNormalization" else []
    nodes.append(helper.make_node(op, [f"v{number}", *extra], [f"v{number + 1}"], op.lower()))
  nodes[-1].output[0] = "y"
  read = {name for node in nodes for name in node.input}
  weights = {name: value.astype(NUMPY[dtype]) for name, value in constants.items() if name in read}
  y = {"y": (kind, ["N", *"ABC"[: len(x_shape) - 1]])}
  return built(nodes, {"x": (kind, x_shape)}, y, opset, weights=weights)


@parametrize(
  "attributes",
  [
    {},
    {"strides": [2, 3], "pads": [1, 0, 1, 2], "output_padding": [1, 0]},
    {"strides": [2, 2], "output_shape": [10, 14]},
    {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
    {"dilations": [2, 1], "kernel_shape": [3, 3]},
    {"auto_pad": "VALID"},
  ],
)
@parametrize("biased", [False, True])
def test_attributes_are_kept(attributes, biased):
  optimized, _ = run_same(up(bias_shape=(6,) if biased else None, **attributes), FUSE_CONV, into="FusedConvTranspose")
  kept = all_attributes(optimized.graph.node[0])
  assert kept.pop("program").count(b"Add") == biased
  wanted = {name: value.encode() if isinstance(value, str) else value for name, value in attributes.items()}
  assert kept == {"kernel_shape": [3, 3], **wanted}


def test_groups_and_dimensions():
  for original in (
    up(group=2, weights=(4, 3, 3, 3)),
    up(weights=(4, 6, 3), x_shape=("N", 4, 9), strides=[2]),
    up(weights=(4, 6, 3, 2, 3), x_shape=("N", 4, 3, 4, 5), strides=[2, 1, 2]),
  ):
    run_same(original, FUSE_CONV, into="FusedConvTranspose")


@parametrize(
  "after, statements",
  [
    (("BatchNormalization", "Relu"), ["add = Add(c, bias)", "y = Relu(add)"]),
    (("Relu",), ["add = Add(c, bias)", "y = Relu(add)"]),
    (("BatchNormalization", "Tanh"), ["add = Add(c, bias)", "y = Tanh(add)"]),
    (("Sigmoid", "Neg"), ["add = Add(c, bias)", "sigmoid = Sigmoid(add)", "y = Neg(sigmoid)"]),
  ],
)
@parametrize("group", [1, 2])
def test_what_follows_is_drawn_in(after, statements, group):
  original = up(after, group=group, weights=(4, 6 // group, 3, 3), strides=[2, 2])
  optimized, _, _ = run_passes(original, select_passes(layout="nchw"))
  assert operators(optimized) == ["FusedConvTranspose"]
  assert [lines(each) for each in programs(optimized)] == [statements]
  same_outputs(original, optimized)


def test_a_decoder_has_its_channels_last(rng):
  first = up(("Relu",), dtype="float16", strides=[2, 2])
  first.graph.node[-1].output[0] = "middle"
  first.graph.node.append(helper.make_node("ConvTranspose", ["middle", "w2"], ["y"], "up2", strides=[2, 2]))
  add_weights(first, w2=rng.standard_normal((6, 8, 2, 2)).astype(np.float16))
  optimized, _, _ = run_passes(first, PIPELINE)
  assert operators(optimized) == ["FusedTranspose", "FusedConvTranspose", "FusedConvTranspose", "FusedTranspose"]
  assert [all_attributes(node)["layout"] for node in nodes_of(optimized, "FusedConvTranspose")] == [b"NHWC"] * 2
  same_outputs(first, optimized)


def test_resize_before_a_conv_is_left_alone():
  original = model("""(float[N,1,4,4] x) => (float[N,1,A,B] y)
    <float[4] scales = {1,1,2,2}, float[1,1,3,3] w = {1,2,3,4,5,6,7,8,9}> {
    r = Resize<mode="nearest">(x, , scales)  y = Conv<pads=[1,1,1,1]>(r, w) }""")
  optimized, _, _ = run_passes(original, select_passes(layout="nchw"))
  assert operators(optimized)[-1] == "FusedConv"
  assert "FusedConvTranspose" not in operators(optimized)
  same_outputs(original, optimized)


@parametrize(
  "original, fragment",
  [
    (up(bias_shape=(4,)), "its bias 'b' has the shape [4], not [6]"),
    (up(group=2), "its bias 'b' has the shape [6], not [12]"),
    (up(bias_shape=None, group=3), "W has 4 input channels, which 3 groups do not divide"),
    (up(output_shape=[1, 6, 10, 14], strides=[2, 2]), "output_shape has 4 numbers"),
    (up(pads=[9, 9, 9, 9]), "lower its pads"),
  ],
)
def test_near_misses(original, fragment):
  stays(original, FUSE_CONV, fragment)


def test_weights_that_are_inputs():
  original = up(bias_shape=None)
  del original.graph.initializer[:]
  original.graph.input.extend(value_infos("float[4,6,3,3] w"))
  run_same(original, FUSE_CONV, into="FusedConvTranspose")
