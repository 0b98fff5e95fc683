from layout_helpers import constant
from pass_helpers import all_attributes, model, nodes_of, operators, parametrize, run_pass, run_same, stays

from ortplugin.optimizer.pipeline import (
  CHANNELS_LAST_ALWAYS,
  CONV_EPILOGUE,
  FUSE_CONV,
  TRANSPOSE_VIEWS,
  VECTOR_CONV_TRANSPOSE,
)
from ortplugin.passes.base import NearMiss


def graph(attributes="", *, x="N,4,1,1", y="N,5,3,2", weight="", after="", more="", bias=5):
  weight = weight or constant("w", 4, 5, 3, 2)
  inputs = "" if "= {" in weight else f", {weight}"
  constants = ", ".join(each for each in (constant("b", bias), "" if inputs else weight, more) if each)
  return model(f"""(float[{x}] x{inputs}) => (float[{y}] y) <{constants}> {{
    {"c" if after else "y"} = ConvTranspose{attributes}(x, w, b)  {after} }}""")


def before(original):
  return run_pass(original, FUSE_CONV, CHANNELS_LAST_ALWAYS, CONV_EPILOGUE, TRANSPOSE_VIEWS)[0]


@parametrize("attributes", ["", "<strides=[2,3]>"])
def test_one_pixel(attributes):
  original = graph(attributes)
  optimized, _ = run_same(original, VECTOR_CONV_TRANSPOSE, start=before(original), changes=1)
  assert "FusedConvTranspose" not in operators(optimized)
  (fused,) = nodes_of(optimized, "FusedConv")
  found = all_attributes(fused)
  assert found.pop("program")
  assert found == {"layout": b"NHWC", "kernel_shape": [1, 1]}
  sizes = {each.name: list(each.dims) for each in optimized.graph.initializer}
  assert [sizes[name] for name in fused.input[1:]] == [[30, 1, 1, 4], [30]]


def test_its_epilogue_stays_with_it():
  original = graph(after="r = Relu(c)  y = Mul(r, s)", more="float s = {0.5}")
  run_same(original, VECTOR_CONV_TRANSPOSE, start=before(original), into="Reshape FusedConv Reshape Transpose")


def test_lines_and_volumes():
  for x, y, shape in (("N,4,1", "N,5,3", (4, 5, 3)), ("N,4,1,1,1", "N,5,2,3,2", (4, 5, 2, 3, 2))):
    original = graph(x=x, y=y, weight=constant("w", *shape))
    run_same(original, VECTOR_CONV_TRANSPOSE, start=before(original), changes=1)


MISSES = {
  "groups": (graph("<group=2>", y="N,10,3,2", bias=10), "it has 2 groups"),
  "pads": (graph("<pads=[1,0,0,0]>", y="N,5,2,2"), "it has pads of [1, 0, 0, 0]"),
  "output padding": (graph("<output_padding=[1,0], strides=[2,2]>", y="N,5,4,2"), "it has output_padding of [1, 0]"),
  "dilations": (graph("<dilations=[2,1]>", y="N,5,5,2"), "its kernel is dilated by [2, 1]"),
  "a caller's weights": (graph(weight="float[4,5,3,2] w"), "is no constant"),
}


@parametrize("name", MISSES)
def test_near_misses(name):
  original, reason = MISSES[name]
  fused = before(original)
  optimized, result = run_pass(fused, VECTOR_CONV_TRANSPOSE)
  assert not result.changes
  (miss,) = result.near_misses
  assert isinstance(miss, NearMiss)
  assert reason in miss.reason
  assert operators(optimized) == operators(fused)


def test_more_than_one_pixel_stays():
  fused = before(graph(x="N,4,2,1", y="N,5,4,2"))
  stays(fused, VECTOR_CONV_TRANSPOSE)
  fused = run_pass(graph(), FUSE_CONV)[0]  # channels first
  stays(fused, VECTOR_CONV_TRANSPOSE)
