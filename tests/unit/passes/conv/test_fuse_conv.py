import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx_models import all_attributes, built, value_infos
from pass_helpers import lines, parametrize, programs, run_pass, run_same, same_outputs, stays

from ortplugin.optimizer.pipeline import FUSE_CONV


def conv(
  spatial=2, dtype="float", opset=17, bias=True, weights=(), bias_shape=(6,), constant="wb", x_shape=None, **attributes
):
  """A model of one Conv: x [N, 4, 7, ..], w [6, 4 / group, 3, ..], b [6]; which of them are constant."""
  generator = np.random.default_rng(7)
  weights = weights or (6, 4 // int(str(attributes.get("group", 1))), *[3] * spatial)
  values = {"w": generator.standard_normal(weights) * 0.3, "b": generator.standard_normal(bias_shape)}
  names = ["x", "w", *["b"] * bias]
  shape = ("N", 4, *[7] * spatial) if x_shape is None else x_shape
  inputs = {"x": (dtype, shape)} | {name: (dtype, values[name].shape) for name in names[1:] if name not in constant}
  numpy = helper.tensor_dtype_to_np_dtype(TensorProto.DataType.Value(dtype.upper()))
  weights = {name: values[name].astype(numpy) for name in names[1:] if name in constant}
  node = helper.make_node("Conv", names, ["y"], "conv", **attributes)
  return built([node], inputs, {"y": (dtype, ["N", *"ABCD"[: spatial + 1]])}, opset, weights=weights)


@parametrize("spatial", [1, 2, 3])
@parametrize("opset", [11, 13, 17, 24])
def test_dimensions_and_opsets(spatial, opset):
  original = conv(spatial, opset=opset, strides=[2] * spatial, pads=[1] * spatial + [0] * spatial)
  optimized, result = run_same(original, FUSE_CONV, into="FusedConv")
  assert [lines(each) for each in programs(optimized)] == [["y = Add(c, bias)"]]
  (bias,) = [each for each in optimized.graph.initializer if each.name.startswith("b")]
  assert list(bias.dims) == [6] + [1] * spatial
  assert [change.nodes for change in result.changes] == [("conv (Conv)",)]


@parametrize("name", ["dilations", "kernel_shape", "pads", "strides"])
def test_an_empty_list_is_none(name):
  original = conv()
  attribute = original.graph.node[0].attribute.add()
  attribute.name, attribute.type = name, onnx.AttributeProto.INTS
  optimized, _ = run_pass(original, FUSE_CONV)
  assert optimized == run_pass(conv(), FUSE_CONV)[0]


@parametrize("dtype", ["float16", "bfloat16", "float", "double"])
def test_dtypes(dtype):
  original = conv(dtype=dtype, opset=22)
  optimized, _ = run_pass(original, FUSE_CONV, into="FusedConv")
  assert programs(optimized)[0].startswith(f"({dtype} c, {dtype} bias) => ({dtype} y)")
  if dtype in ("float", "float16"):  # ONNX Runtime's CPU has no Conv of the others to compare with
    same_outputs(original, optimized)


@parametrize(
  "attributes",
  [
    {},
    {"group": 2, "dilations": [2, 1], "kernel_shape": [3, 3]},
    {"auto_pad": "SAME_UPPER", "strides": [2, 3]},
    {"auto_pad": "SAME_UPPER", "strides": [4, 4]},
    {"auto_pad": "VALID"},
    {"pads": [1, 0, 2, 3], "strides": [1, 2]},
  ],
)
@parametrize("bias", [False, True])
def test_attributes_are_kept(attributes, bias):
  optimized, _ = run_same(conv(bias=bias, **attributes), FUSE_CONV)
  (node,) = optimized.graph.node
  kept = all_attributes(node)
  assert kept.pop("program").count(b"Add") == bias
  wanted = {name: value.encode() if isinstance(value, str) else value for name, value in attributes.items()}
  assert kept == {"kernel_shape": [3, 3], **wanted}


@parametrize("opset", [11, 13])
@parametrize("constant", ["w", "b", ""])
def test_weights_and_biases_that_are_computed(opset, constant):
  into = "FusedConv" if "b" in constant else "Unsqueeze FusedConv"
  run_same(conv(opset=opset, constant=constant), FUSE_CONV, into=into)


def test_an_overridable_bias_is_reshaped_at_run_time():
  original = conv()
  original.graph.input.extend(value_infos("float[6] b"))
  run_same(original, FUSE_CONV, into="Unsqueeze FusedConv")


def test_dynamic_spatial_dimensions():
  run_same(conv(x_shape=("N", 4, "rows", "length")), FUSE_CONV, into="FusedConv")


def test_shape_of_what_it_makes():
  """value_info of an operator of ours in the middle, which ONNX Runtime's memory plan needs."""
  original = conv()
  original.graph.node.append(helper.make_node("Relu", ["y"], ["z"]))
  original.graph.output[0].name = "z"
  optimized, _ = run_pass(original, FUSE_CONV)
  (info,) = optimized.graph.value_info
  assert [d.dim_param or d.dim_value for d in info.type.tensor_type.shape.dim] == ["N", 6, 5, 5]


@parametrize(
  "original, fragment",
  [
    (conv(bias_shape=(1,)), "its bias 'b' has the shape [1], not [6]"),
    (conv(bias_shape=(6, 1)), "its bias 'b' has the shape [6, 1], not [6]"),
    (conv(group=3, weights=(6, 4, 3, 3)), "X has 4 channels, W with 3 groups is for 12"),
    (conv(group=4, weights=(6, 1, 3, 3)), "6 output channels, which 4 groups do not divide"),
    (conv(pads=[1, 1, 1, 1], auto_pad="SAME_UPPER"), "pads is [1, 1, 1, 1] beside auto_pad SAME_UPPER"),
    (conv(weights=(6, 4, 9, 9)), "the kernel covers 9 elements"),
    (conv(kernel_shape=[2, 2]), "kernel_shape is [2, 2], but W has the kernel"),
    (conv(4, opset=17), "the attributes are of 4 spatial dimensions"),
    (conv(opset=8), "the model has opset 8"),
    (conv(weights=(6, 4, 1, 3), auto_pad="SAME_UPPER", strides=[4, 1]), "SAME_UPPER beside strides [4, 1]"),
    (conv(auto_pad="SAME_LOWER", strides=[3, 5]), "SAME_LOWER beside strides [3, 5]"),
  ],
)
def test_near_misses(original, fragment):
  stays(original, FUSE_CONV, fragment)


def test_an_unknown_rank_stays():
  original = """(float[N] v, int64[R] shape) => (float[A,B,C,D] y) <float[1,1,1,1] w = {2}> {
    x = Reshape(v, shape)  y = Conv(x, w) }"""
  stays(original, FUSE_CONV, "the rank of 'x' is unknown")


def test_another_domain_s_conv_stays():
  original = conv()
  original.graph.node[0].domain = "com.acme"
  original.opset_import.append(helper.make_opsetid("com.acme", 1))
  stays(original, FUSE_CONV)
