import numpy as np
from layout_helpers import constant
from onnx import helper
from onnx_models import add_weights, all_attributes, annotated, nodes_of, parsed, value_infos
from pass_helpers import model, operators, parametrize, run_pass, run_same, same_outputs, stays

from ortplugin.optimizer import PIPELINE
from ortplugin.optimizer.pipeline import (
  CHANNELS_LAST_ALWAYS,
  CONV_EPILOGUE,
  FUSE_CONV,
  IMAGE_OUTPUT,
  MATMUL_TO_CONV,
  VECTOR_CONV_TRANSPOSE,
)

UP = "strides = [2, 2], pads = [1, 1, 1, 1]"


def network(filters=3, channels=8, attributes=UP, extra="", outputs="", size="5,4", kernel=(4, 4)):
  """A transposed convolution that makes an image; `moved` puts its channels last, before a Transpose."""
  return model(f"""(float[N,{channels},{size}] x) => (float[N,M,H,W] y{outputs})
    <{constant("w", channels, filters, *kernel)}>
    {{ y = ConvTranspose<{attributes}>(x, w)  {extra} }}""")


def moved(original):
  return run_pass(original, FUSE_CONV, CHANNELS_LAST_ALWAYS, CONV_EPILOGUE)[0]


@parametrize("filters", [1, 3, 8])
def test_a_transpose_is_spared(filters):
  original = network(filters)
  assert operators(moved(original)) == ["Transpose", "FusedConvTranspose", "Transpose"]
  optimized, _ = run_same(original, IMAGE_OUTPUT, start=moved(original), into="Transpose FusedConvTranspose", changes=1)
  (node,) = nodes_of(optimized, "FusedConvTranspose")
  assert all_attributes(node)["output_layout"] == b"NCHW"
  assert list(node.output) == ["y"]
  stays(optimized, [FUSE_CONV, CHANNELS_LAST_ALWAYS, CONV_EPILOGUE, IMAGE_OUTPUT])


def test_what_is_pointwise_stays_with_its_layout():
  """An operator after the image is not drawn into a program whose operands have another layout."""
  original = network(extra="z = Tanh(y)", outputs=", float[N,M,H,W] z")
  moved_image = run_pass(network(), FUSE_CONV, CHANNELS_LAST_ALWAYS, IMAGE_OUTPUT)[0]
  moved_image.graph.node.append(helper.make_node("Tanh", ["y"], ["z"], "tanh"))
  moved_image.graph.output.extend(value_infos("float[N,M,H,W] z"))
  stays(moved_image, CONV_EPILOGUE)
  same_outputs(original, moved_image)


def test_the_whole_pipeline_keeps_it():
  original = network()
  optimized, _ = run_pass(moved(original), IMAGE_OUTPUT)
  run_same(original, *PIPELINE, start=optimized, into="FusedTranspose FusedConvTranspose")


def test_its_rows_are_no_channels():
  """A MatMul after it is none of an image with channels last."""
  optimized, _ = run_pass(moved(network()), IMAGE_OUTPUT)
  optimized.graph.node.append(helper.make_node("MatMul", ["y", "m"], ["z"], "rows"))
  add_weights(optimized, m=np.ones((8, 2), np.float32))
  optimized.graph.output.extend(value_infos("float[N,M,H,2] z"))
  stays(optimized, MATMUL_TO_CONV)


def test_one_pixel_is_no_vector():
  """vector-conv-transpose, whose result has channels last."""
  optimized, _ = run_pass(moved(network(attributes="strides = [2, 2]", size="1,1")), IMAGE_OUTPUT)
  assert all_attributes(optimized.graph.node[-1])["output_layout"] == b"NCHW"
  stays(optimized, VECTOR_CONV_TRANSPOSE)


NEAR_MISSES = {
  "it has 9 filters": network(9),
  "its 6 channels are no multiple": network(channels=6),
  "its kernel is dilated by [2, 1]": network(attributes="dilations = [2, 1]"),
  "its kernel is [9, 4]; up to 7 rows": network(kernel=(9, 4)),
  "its strides are [5, 1]": network(attributes="strides = [5, 1]"),
  "its strides are [4, 4], for 3 filters; a pixel of X may become 8 vectors": network(attributes="strides = [4, 4]"),
  "it has 2 groups": network(attributes=f"{UP}, group = 2"),
  "others read": network(extra="t = Transpose<0,2,3,1>(y)  z = Softmax(t)", outputs=", float[N,H,W,3] z"),
}


@parametrize("words", NEAR_MISSES)
def test_near_misses(words):
  stays(moved(NEAR_MISSES[words]), IMAGE_OUTPUT, words)


def node_of(found):
  (node,) = nodes_of(found, "FusedConvTranspose")
  return node


def test_a_graph_output_with_channels_last_stays():
  found = moved(network())
  found.graph.output.append(helper.make_tensor_value_info(node_of(found).output[0], 1, ["N", None, None, None]))
  stays(found, IMAGE_OUTPUT, "others read")


def test_another_permutation_stays():
  found = moved(network())
  (perm,) = found.graph.node[-1].attribute
  perm.ints[:] = [0, 3, 2, 1]
  stays(found, IMAGE_OUTPUT)


def test_an_invalid_node_stays():
  found = moved(network())
  (program,) = (each for each in node_of(found).attribute if each.name == "program")
  program.s = b"nonsense"
  result = IMAGE_OUTPUT(annotated(found))
  assert not result.changes
  assert "expected '('" in result.near_misses[0].reason


def test_double_stays():
  """For which there is no kernel of ours."""
  original = parsed(
    "(double[N,8,?,?] x) => (double[N,3,?,?] y) { [up] y = ConvTranspose(x, w) }", weights={"w": np.ones((8, 3, 4, 4))}
  )
  stays(moved(original), IMAGE_OUTPUT, "its dtype is double")
