"""Nodes that are invalid in every way that a file may be: passes leave them to ONNX Runtime, which says why."""

import contextlib
import random
import warnings

import numpy as np
import pytest
from layout_helpers import SAME, graph
from onnx import AttributeProto, numpy_helper
from pass_helpers import model, parametrize

from ortplugin.errors import OrtPluginError
from ortplugin.optimizer import run_passes, select_passes

SEEDS = 60
TEXTS = {
    "transposes": """g (float[N,4,5,6] x) => (float[A,B,C,D] y) { t = Transpose<0,3,1,2>(x)
      s = {0,2,3,4,5}  r = Reshape(t, s)  u = Transpose<0,3,4,1,2>(r)
      v = Transpose<0,1,2,4,3>(u)  q = {0,4,5,6}
      y = Reshape(v, q) }""",
    "scatters": """g (float[3,4,5] x, float[2,4,5] u, float[3,1,5] z2) => (float[A,B,C] y) {
      i = int64[2,1] {0, 1}  t = Transpose<1,0,2>(x)
      v = Transpose<1,0,2>(u)
      w = Transpose<1,0,2>(v)  a = Transpose<1,0,2>(t)  s = ScatterND(a, i, w)
      b = Transpose<1,0,2>(s)
      z = int64[3,1,5] {0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2}
      y = ScatterElements<axis=0>(b, z, z2) }""",
    "norms": """g (float[N,3,8] x, float[8] r, float[3,8] q) => (float[A,B,C] y)
      <float[8] g = {1,2,3,4,5,6,7,8}> {
      a = Add(x, r)  b = Mul(a, q)  m = ReduceMean<axes=[-1]>(b)  d = Sub(b, m)  p = Mul(d, d)
      v = ReduceMean<axes=[-1]>(p)  e = float {0.00001}  w = Add(v, e)  s = Sqrt(w)
      n = Div(d, s)  o = Mul(n, g)  l = LayerNormalization(o, g)  c = Cast<to=10>(l)  y = Cast<to=1>(c) }""",
    "shapes": """g (float[2,3,4] x) => (float[A,B,C] y) { s = Shape(x)  i = {1}
      n = Gather(s, i)  b = {0}  e = {2}
      p = Slice(s, b, e)  z = Size(x)  o = {-1}  k = Concat<axis=0>(p, o)
      r = Reshape(x, k)  q = {0,2}  v = Unsqueeze(r, q)  w = Squeeze(v, q)
      f = ReduceSum(w, i)  y = Mul(f, x) }""",
    "images": graph("""r = Relu(c)  p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r)
      m = ReduceMean<axes=[2,3]>(p)  n = Mul(p, m)  k = {0,0,1,1,0,0,1,1}
      z = Pad(n, k)  a = Concat<axis=1>(z, z)  h, i = Split<axis=1>(a)  b = {1}
      e = {3}  f = Slice(h, b, e, b)
      y = Softmax<axis=1>(f)""", out="float[A,B,C,D] y"),
    "linear layers": graph(f"""p = GlobalAveragePool(c)  f = Flatten(p)
      w2 = float[4,2] {{1, 2, 3, 4, 5, 6, 7, 8}}
      y = Gemm(f, w2)  q = {SAME}(c, w)""", out="float[A,B] y"),
}  # fmt: skip
NUMBERS = (-(2**63), -9, -1, 0, 1, 2, 3, 7, 2**31, 2**62, 2**63 - 1)


def nodes_of(made):
  return [node for node in made.graph.node if node.op_type != "Constant"]


def mutate(made, pick):
  """Changes one attribute, constant, input or shape to something that need not be valid."""
  lists = [a for node in made.graph.node for a in node.attribute if a.type == AttributeProto.INTS]
  single = [a for node in made.graph.node for a in node.attribute if a.type == AttributeProto.INT]
  tensors = [a.t for node in made.graph.node for a in node.attribute if a.type == AttributeProto.TENSOR]
  tensors += list(made.graph.initializer)
  kind = pick.choice(["list", "list", "number", "tensor", "tensor", "input", "shape", "attribute"])
  if kind == "list" and lists:
    chosen = pick.choice(lists).ints
    how = pick.choice(["drop", "add", "set", "empty"])
    if how == "drop" and chosen:
      chosen.pop()
    elif how == "add":
      chosen.append(pick.choice(NUMBERS))
    elif how == "set" and chosen:
      chosen[pick.randrange(len(chosen))] = pick.choice(NUMBERS)
    else:
      del chosen[:]
  elif kind == "number" and single:
    pick.choice(single).i = pick.choice(NUMBERS)
  elif kind == "tensor":
    tensor = pick.choice(tensors)
    shape = pick.choice([tuple(tensor.dims), tuple(tensor.dims)[:-1], (*tensor.dims, 1), (0,), (2, 2), ()])
    dtype = pick.choice([np.int64, np.int64, np.int32, np.float32, np.bool_, np.complex64, np.float16, np.str_])
    numbers = np.array([pick.choice(NUMBERS) for _ in range(int(np.prod(shape)))])
    with np.errstate(over="ignore"):
      values = numbers.astype(dtype).astype(object if dtype is np.str_ else dtype).reshape(shape)
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
  elif kind == "input":
    node = pick.choice(nodes_of(made))
    how = pick.choice(["drop", "empty", "repeat", "add"])
    if how == "drop":
      node.input.pop()
    elif how == "empty":
      node.input[pick.randrange(len(node.input))] = ""
    else:
      node.input.append(node.input[0] if how == "repeat" else "")
  elif kind == "shape":
    dims = pick.choice(made.graph.input).type.tensor_type.shape.dim
    if dims and pick.random() < 0.7:
      pick.choice(dims).dim_value = pick.choice(NUMBERS)
    elif dims:
      dims.pop()
  else:
    node = pick.choice(nodes_of(made))
    if node.attribute:
      node.attribute.pop()


@pytest.mark.one_in(4)
@parametrize("seed", range(SEEDS))
@parametrize("name", TEXTS)
def test_no_exception_of_python(name, seed):
  """Whatever is wrong with a node, a pass skips it, or says so in the package's own words."""
  pick = random.Random(f"{name} {seed}")
  made = model(TEXTS[name])
  for _ in range(pick.choice([1, 1, 2, 4])):
    mutate(made, pick)
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    with contextlib.suppress(OrtPluginError):
      run_passes(made, select_passes(layout="nhwc", gpu=True))


def test_a_length_beyond_63_bits_is_open():
  """No message holds it, so no value is described with it."""
  made = model(f"""g (float[1,1,5] x, float[1,1,{2**62}] z) => (float[A,B,C] y, float[D,E,F] v)
    <float[1,1,2] w = {{1,2}}, float[3] s = {{1,1,2.6}}> {{
        c = ConvTranspose<strides=[{2**62}]>(x, w)  y = Relu(c)  t = Resize(z, , s)
        u = Relu(t)  v = Neg(u) }}""")
  run_passes(made, select_passes(gpu=True))


def test_a_slice_of_a_slice_beyond_63_bits_stays():
  made = model(f"""g (float[N,M] x, float[1,1] u) => (float[N,M] y) {{ z = {{0}}
    e = int64[1] {{{2**62}}}  t = int64[1] {{{2**62}}}
    p = Slice(x, z, e, z, t)  i = int64[1,1] {{{2**62}}}  v = ScatterND(p, i, u)
    j = int64[2,1] {{0, {2**62}}}  y = ScatterND(x, j, v) }}""")
  run_passes(made, select_passes(gpu=True))


OF_A_SCALAR = (
  *("Gather<axis=0>(x, i)", "Gather<axis=-1>(t, j)", "GatherND(x, i)", "GatherElements<axis=0>(x, i)"),
  *("ScatterElements<axis=0>(x, i, x)", "ScatterND(x, i, x)", "Concat<axis=0>(x, x)", "Split<axis=0>(x)"),
  *("Softmax<axis=0>(x)", "Flatten<axis=1>(x)", "Squeeze(x, i)", "Slice(x, i, k, i)", "CumSum(x, i)"),
  *("ReduceSum(x, i)", "ReduceMean<axes=[0]>(x)", "ReduceMax<axes=[-1], keepdims=0>(b)", "ArgMax<axis=0>(x)"),
  *("LayerNormalization<axis=0>(x, x)", "Transpose<0>(x)", "MaxPool<kernel_shape=[1]>(x)", "MatMul(x, t)"),
  *("GlobalAveragePool(x)", "Resize(x, , f)", "Tile(x, k)", "Pad(x, k)", "Compress<axis=0>(x, b)", "Unsqueeze(x, e)"),
)


@parametrize("node", OF_A_SCALAR)
def test_nodes_of_a_scalar(node):
  """An axis modulo the rank divides by 0."""
  for behind in (
    "y = Relu(v)",
    "w = Transpose(v) y = Reshape(w, k)",
    "w = Gather<axis=0>(v, i) y = Softmax(w)",
    "w, u = Split<axis=-1>(v) y = Add(w, u)",
    "w = Slice(v, i, k, i) y = Mul(w, x)",
  ):
    made = model(f"""g (float x, bool b) => (float[A] y) <int64[1] i = {{0}}, int64[2] j = {{0, 0}}, int64[1] k = {{1}},
      int64[0] e = {{}}, float[1] f = {{1}}, float t = {{2}}> {{ v = {node} {behind} }}""")
    with contextlib.suppress(OrtPluginError):
      run_passes(made, select_passes(layout="nhwc", gpu=True))
