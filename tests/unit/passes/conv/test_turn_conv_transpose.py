import numpy as np
import pytest
from onnx import helper
from onnx_models import all_attributes, annotated, built, nodes_of
from pass_helpers import lines, operators, parametrize, programs, run_pass, run_same, stays

from ortplugin.optimizer import PIPELINE, run_passes
from ortplugin.optimizer.pipeline import CHANNELS_LAST_ALWAYS, CONV_EPILOGUE, FUSE_CONV, TURN_CONV_TRANSPOSE
from ortplugin.passes.conv import turn_conv_transpose


def up(x=(2, 16, 6, 5), w=(16, 8, 3, 3), dtype="float16", follows=True, constant=True, **attributes):
  rng = np.random.default_rng(5)
  kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
  channels = w[1] * int(attributes.get("group", 1))
  given = {"w": rng.standard_normal(w) / 4, "b": rng.standard_normal(channels)}
  nodes = [helper.make_node("ConvTranspose", ["x", "w", *["b"] * follows], ["y"], "up", **attributes)]
  if follows:
    nodes[0].output[0] = "c"
    nodes.append(helper.make_node("Relu", ["c"], ["y"], "relu"))
  inputs = {"x": (kind, x), **({} if constant else {"w": (kind, w)})}
  weights = {name: given[name].astype(dtype) for name in ["w"] * constant + ["b"] * follows}
  return built(nodes, inputs, {"y": (kind, [None] * len(x))}, weights=weights)


def before(original, last=True):
  steps = [FUSE_CONV, *([CHANNELS_LAST_ALWAYS] if last else []), CONV_EPILOGUE]
  return run_pass(original, *steps)[0]


def attributes_of(model):
  (fused,) = nodes_of(model, "FusedConv")
  return all_attributes(fused)


@pytest.fixture
def little(patch):
  patch(turn_conv_transpose, "MUCH_WORK", 1)


small = pytest.mark.usefixtures("little")


@small
@parametrize(
  "attributes, pads",
  [
    ({}, [2, 2, 2, 2]),
    ({"pads": [1, 0, 2, 1]}, [1, 2, 0, 1]),
    ({"strides": [1, 1], "pads": [2, 2, 2, 2]}, [0, 0, 0, 0]),
    ({"dilations": [2, 1], "pads": [1, 0, 0, 0]}, [3, 2, 4, 2]),
    ({"auto_pad": "VALID"}, [2, 2, 2, 2]),
    ({"group": 2}, [2, 2, 2, 2]),
  ],
)
def test_it_computes_the_same(attributes, pads):
  original = up(**attributes)
  optimized, _ = run_same(
    original, TURN_CONV_TRANSPOSE, start=before(original), changes=1, into="Transpose FusedConv Transpose"
  )
  found = attributes_of(optimized)
  assert found["pads"] == pads
  assert found["layout"] == b"NHWC"
  assert found.get("group", 1) == attributes.get("group", 1)
  assert programs(optimized)[0].count("Relu") == 1


@small
def test_lines_and_volumes():
  for x, w in (((2, 16, 9), (16, 8, 4)), ((1, 16, 3, 4, 2), (16, 8, 2, 3, 2))):
    original = up(x, w)
    run_same(original, TURN_CONV_TRANSPOSE, start=before(original), changes=1)


def pads_of_turned(original):
  optimized, _ = run_same(original, TURN_CONV_TRANSPOSE, start=before(original), changes=1)
  return attributes_of(optimized)["pads"]


@parametrize("kernel", [3, 5, 7])
@parametrize("follows", [False, True])
def test_a_depthwise_one(kernel, follows):
  original = up(("N", 6, 8, 9), (6, 1, kernel, kernel), "float32", follows, group=6, pads=[1, 1, 1, 1])
  assert pads_of_turned(original) == [kernel - 2] * 4


def test_weights_in_groups():
  w = np.arange(4 * 2 * 5 * 3).reshape(4, 2, 5, 3)  # [C, kernel, M / group]
  turned = turn_conv_transpose.turned(w, 2)
  assert turned.shape == (6, 2, 5, 2)
  assert turned[4, 0, 1, 1] == w[3, 1, 3, 1]


def test_where_it_pays():
  """A layer of ResNet-50's size, by default: the whole pipeline turns it, at batch 256 and not at batch 8."""
  for batch, op in ((256, "FusedConv"), (8, "FusedConvTranspose")):
    optimized, _, _ = run_passes(up((batch, 64, 56, 56), (64, 64, 3, 3), pads=[1, 1, 1, 1]), PIPELINE)
    assert operators(optimized) == ["FusedTranspose", op, "FusedTranspose"]


@parametrize("follows", [False, True])
def test_a_kernel_of_one_element(follows):
  original = up(("N", 16, 6, 5), (16, 8, 1, 1), follows=follows)
  assert pads_of_turned(original) == [0, 0, 0, 0]


@parametrize("follows", [False, True])
@parametrize(
  "x, w",
  [
    (("N", 512, 4, 3), (512, 8, 3, 3)),  # very long sums, of any batch
    ((4, 240, 14, 14), (240, 8, 3, 3)),  # long ones with little work
    ((1, 2048, 7, 7), (2048, 2048, 1, 1)),
  ],
)
def test_long_sums(x, w, follows):
  original = up(x, w, follows=follows)
  assert pads_of_turned(original) == [w[2] - 1] * 4


def test_alone_between_transposes():
  """Data that has its channels last already: the Transposes meet their inverses, and nothing follows the layer. With
  64 channels and much work it becomes one, with little work or more channels it does not."""
  for batch, channels, op in ((256, 64, "FusedConv"), (8, 64, "FusedConvTranspose"), (64, 128, "FusedConvTranspose")):
    alone = up((batch, 56, 56, channels), (channels, channels, 3, 3), follows=False, pads=[1, 1, 1, 1])
    (layer,) = alone.graph.node
    layer.input[0], layer.output[0] = "first", "c"
    alone.graph.node.insert(0, helper.make_node("Transpose", ["x"], ["first"], perm=[0, 3, 1, 2]))
    alone.graph.node.append(helper.make_node("Transpose", ["c"], ["y"], perm=[0, 2, 3, 1]))
    optimized, _, _ = run_passes(alone, PIPELINE)
    assert operators(optimized) == [op]
    assert lines(programs(optimized)[0]) == []


MISSES = {
  "not constant": (up(constant=False), "is no constant"),
  "pads that cut more": (up(pads=[3, 0, 0, 0]), "its pads [3, 0, 0, 0] cut off more than its kernel adds"),
  "auto_pad": (up(auto_pad="SAME_UPPER"), "its pads depend on the shape"),
  "output_shape": (up(output_shape=[7, 6]), "its pads depend on the shape"),
  "output padding": (up(dilations=[2, 2], output_padding=[1, 0]), "it has output_padding of [1, 0]"),
  "alone": (up(follows=False), "nothing follows it"),
  "many channels, alone": (up((1, 1024, 2, 3), (1024, 512, 1, 1), follows=False), "nothing follows it"),
  "groups, alone": (up(w=(16, 8, 1, 1), follows=False, group=2), "nothing follows it"),
  "long sums, much work": (
    up((5, 240, 14, 14), (240, 256, 3, 3), follows=False),
    "nothing follows it, and it has 707788800 multiply-adds, more than 536870912",
  ),
  "long sums of any batch": (up(("N", 240, 4, 4), (240, 8, 3, 3), follows=False), "is not known"),
  "sums that are not so long": (
    up((1, 224, 4, 4), (224, 8, 3, 3), follows=False),
    "nothing follows it, and its sums, for 8 channels, have 2016 elements in 1 groups",
  ),
  "long sums in groups": (
    up((1, 1024, 4, 4), (1024, 16, 3, 3), follows=False, group=2),
    "nothing follows it, and its sums, for 16 channels, have 4608 elements in 2 groups",
  ),
  "long sums of volumes": (up((1, 256, 3, 3, 3), (256, 8, 3, 3, 3), follows=False), "nothing follows it"),
  "long sums of 12 filters": (up((1, 512, 4, 4), (512, 12, 3, 3), follows=False), "nothing follows it"),
  "long sums of 500 channels": (up((1, 500, 4, 4), (500, 8, 3, 3), follows=False), "nothing follows it"),
  "float": (up(dtype="float32"), "only with channels last, and depthwise or in fp16 or bf16"),
  "any batch": (up(("N", 16, 6, 5)), "is not known"),
  "few channels": (up(w=(16, 3, 3, 3)), "its result has 3 channels in a group"),
}


@small
@parametrize("name", MISSES)
def test_near_misses(name):
  original, reason = MISSES[name]
  stays(before(original), TURN_CONV_TRANSPOSE, reason)


def test_few_products_stay():
  stays(before(up()), TURN_CONV_TRANSPOSE, "it has 129024 multiply-adds")


@small
def test_strides_and_tuned_ones_stay():
  stays(before(up(strides=[2, 1])), TURN_CONV_TRANSPOSE)
  tuned = before(up())
  node_of(tuned).attribute.append(helper.make_attribute("algorithm", "split"))
  stays(tuned, TURN_CONV_TRANSPOSE)


def node_of(found):
  (fused,) = nodes_of(found, "FusedConvTranspose")
  return fused


@small
@parametrize(
  "attribute, value, reason",
  [
    ("program", "nonsense", "expected '('"),
    ("program", "(float16 c) => (float16 c) {}", "3 inputs, but its program has"),
    ("program", None, "expected '('"),
    ("pads", [1], "pads has 1 numbers"),
    ("group", 3, "3 groups do not divide"),
  ],
)
def test_invalid_nodes_stay(attribute, value, reason):
  found = before(up())
  node = node_of(found)
  kept = [each for each in node.attribute if each.name != attribute]
  del node.attribute[:]
  node.attribute.extend([*kept, *([] if value is None else [helper.make_attribute(attribute, value)])])
  result = TURN_CONV_TRANSPOSE(annotated(found))
  assert not result.changes
  assert any(reason in each.reason for each in result.near_misses), result.near_misses


@small
def test_weights_that_a_caller_may_override_stay():
  found = before(up())
  weights = next(each for each in found.graph.initializer if each.name == node_of(found).input[1])
  found.graph.input.append(helper.make_tensor_value_info(weights.name, weights.data_type, weights.dims))
  stays(found, TURN_CONV_TRANSPOSE, "is no constant")


@small
def test_shared_weights():
  original = up()
  kind = original.graph.input[0].type.tensor_type.elem_type
  original.graph.node.append(helper.make_node("Relu", ["w"], ["z"], "reader"))
  original.graph.output.append(helper.make_tensor_value_info("z", kind, (16, 8, 3, 3)))
  run_same(original, TURN_CONV_TRANSPOSE, start=before(original), changes=1)


@small
def test_channels_first_stay():
  stays(before(up(), last=False), TURN_CONV_TRANSPOSE, "only with channels last")
