import numpy as np
import pytest
from attention_helpers import assert_equal, attentions, feeds, in_float  # noqa: F401
from hypothesis import HealthCheck, given, settings, strategies as st
from onnx import TensorProto, helper
from pass_helpers import built, operators, run_pass
from sample import examples

from ortplugin.optimizer.pipeline import FUSE_ATTENTION, MERGE_PRODUCTS

pytestmark = pytest.mark.usefixtures("in_float")


class Builder:
  def __init__(self):
    self.nodes = []
    self.inputs = {}

  def op(self, op, *inputs, **attributes):
    self.nodes.append(helper.make_node(op, list(inputs), [f"t{len(self.nodes)}"], **attributes))
    return f"t{len(self.nodes) - 1}"

  def integers(self, *values):
    return self.op("Constant", value=helper.make_tensor("", TensorProto.INT64, [len(values)], values))

  def input(self, shape):
    name = f"x{len(self.inputs)}"
    self.inputs[name] = "float", shape
    return name


@st.composite
def views(draw, build, sizes, wanted):
  """A tensor with the axes `wanted`, a view of an input whose axes are a random order of b, s, h, d and an index.

  Two axes that follow each other may be one in the input; heads may lie among others.
  """
  order = draw(st.permutations([*"bshd", *("i" if draw(st.booleans()) else "")]))
  more = draw(st.integers(0, 2)) if draw(st.booleans()) else None
  lengths = {**sizes, "i": 3, "h": sizes["h"] * (1 if more is None else 1 + more)}
  groups = []
  for name in order:
    if groups and draw(st.booleans()):
      groups[-1].append(name)
    else:
      groups.append([name])
  shape = [int(np.prod([lengths[name] for name in group])) for group in groups]
  tensor = build.op("Reshape", build.input(shape), build.integers(*(lengths[name] for name in order)))
  names = list(order)
  if more:
    first = sizes["h"] * draw(st.integers(0, more))
    axis = names.index("h")
    tensor = build.op("Slice", tensor, build.integers(first), build.integers(first + sizes["h"]), build.integers(axis))
  if "i" in names:
    index = build.op("Constant", value_int=draw(st.integers(-3, 2)))
    tensor = build.op("Gather", tensor, index, axis=names.index("i"))
    names.remove("i")
  return build.op("Transpose", tensor, perm=[names.index(name) for name in wanted]), " ".join(map("".join, groups))


@st.composite
def graphs(draw):
  """softmax(Q K^T) V of random views, the result in a random order."""
  b, heads, kv, rows, columns, head, value = (
    draw(st.sampled_from(choices)) for choices in ((1, 2, 3), (1, 2, 4), (0, 1), (1, 5), (1, 7), (1, 8), (1, 3))
  )
  build = Builder()
  q, _ = draw(views(build, {"b": b, "h": heads, "s": rows, "d": head}, "bhsd"))
  k, _ = draw(views(build, {"b": b, "h": 1 if kv else heads, "s": columns, "d": head}, "bhds"))
  v, _ = draw(views(build, {"b": b, "h": 1 if kv else heads, "s": columns, "d": value}, "bhsd"))
  y = build.op("MatMul", build.op("Softmax", build.op("MatMul", q, k), axis=-1), v)
  order = draw(st.permutations("bhsd"))
  sizes = {"b": b, "h": heads, "s": rows, "d": value}
  y = build.op("Transpose", y, perm=["bhsd".index(name) for name in order])
  shape = [sizes[name] for name in order]
  if draw(st.booleans()):
    at = draw(st.integers(0, 2))
    shape[at : at + 2] = [shape[at] * shape[at + 1]]
    y = build.op("Reshape", y, build.integers(*shape))
  return built(build.nodes, build.inputs, {y: ("float", shape)})


@given(graphs(), st.integers(0, 2**16))
@settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
def test_views_are_read_through(original, seed):
  optimized, _ = run_pass(original, FUSE_ATTENTION, MERGE_PRODUCTS)
  assert len(attentions(optimized)) == 1
  left = set(operators(optimized)) - {"FusedAttention"}
  assert left <= {"Reshape", "Slice", "Gather", "Transpose"}
  assert_equal(original, optimized, feeds(original, rng=np.random.default_rng(seed)))
