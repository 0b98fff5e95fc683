import numpy as np
import onnx
from matmul_helpers import assert_stays, weighted
from onnx_models import all_attributes, nodes_of, op_types, parametrize, parsed
from pass_helpers import add_weights, run_pass, run_same

from ortplugin.optimizer.pipeline import (
  FUSE_LAYER_NORM,
  GATED_PRODUCTS,
  MATMUL_EPILOGUE,
  MATMUL_NORM,
  MATMUL_TO_FUSED,
  NORM_MATMUL,
)
from ortplugin.standard import standard_on_cpu

BEFORE = (FUSE_LAYER_NORM, MATMUL_TO_FUSED, MATMUL_EPILOGUE)
LAYER = "y = LayerNormalization<axis=-1, epsilon=1e-5>(v, g, h)"


def graph(nodes, y="f[N,M,64] y", width=64, **weights):
  text = f"(f[N,M,8] x, f[N,M,{width}] r) => ({y}) {{ c = MatMul(x, w)  v = Add(c, r)  {nodes} }}"
  return weighted(text, {"w": (8, width), "g": (width,), "h": (width,), **weights}, opset=17)


def merged(original, rewrite, *more):
  """The attributes of the one node that is made, and the operators of the standard form."""
  before, _ = run_pass(original, *BEFORE, *more)
  optimized, _ = run_same(original, rewrite, start=before)
  (node,) = nodes_of(optimized, "FusedMatMulNorm")
  assert not {"FusedMatMul", "FusedLayerNorm"} & set(op_types(optimized))
  apart = standard_on_cpu(optimized.SerializeToString())
  return all_attributes(node), apart and op_types(onnx.load_model_from_string(apart))


@parametrize("nodes, y, keeps", [
  (LAYER, "f[N,M,64] y", 0),
  (LAYER + "  z = Softmax(v)", "f[N,M,64] y, f[N,M,64] z", 1),
  (LAYER, "f[N,M,64] v, f[N,M,64] y", 1),
])  # fmt: skip
def test_a_product_and_its_norm_are_one_node(nodes, y, keeps):
  attributes, apart = merged(graph(nodes, y), MATMUL_NORM)
  assert attributes["keeps_product"] == keeps
  assert apart[:2] == ["FusedMatMul", "FusedLayerNorm"]


FIRST = "n = LayerNormalization<axis=-1, epsilon=1e-5>(x, g, h)  y = MatMul(n, w)"


def first(nodes, shape="1,2", y="f[M,16] y"):
  return weighted(
    f"(f[{shape},8] x) => ({y}) {{ {nodes} }}", {"w": (8, 16), "g": (8,), "h": (8,), "t": (2, 8), "s": (8, 8)}, opset=17
  )


@parametrize("shape, nodes", [
  ("1,2", FIRST), ("4", FIRST), ("1,4", FIRST.replace("y = MatMul(n", "d = {4,8}  a = Reshape(n, d)  y = MatMul(a"))
])  # fmt: skip
def test_a_norm_of_few_rows_and_their_product_are_one_node(shape, nodes):
  original = first(nodes, shape, "f[1,2,16] y" if shape == "1,2" else "f[4,16] y")
  attributes, apart = merged(original, NORM_MATMUL)
  assert attributes["norm_first"] == 1
  assert apart[-2:] == ["FusedLayerNorm", "FusedMatMul"]


def test_the_norm_of_a_gated_product_goes_with_it():
  nodes = FIRST.replace("y = MatMul", "u = MatMul") + "  v = MatMul(n, w2)  k = Sigmoid(v)  m = Mul(v, k)"
  original = weighted(
    f"(f[1,2,8] x) => (f[1,2,16] y) {{ {nodes}  y = Mul(m, u) }}",
    {"w": (8, 16), "w2": (8, 16), "g": (8,), "h": (8,)},
    opset=17,
  )
  assert merged(original, NORM_MATMUL, GATED_PRODUCTS)[0]["gated"] == 1


@parametrize("nodes, reason", [
  (FIRST + "  z = Relu(n)", "is also used"),
  (FIRST.replace("axis=-1", "axis=-2").replace("g, h", "t"), "not over the last axis"),
  (FIRST.replace("g, h", "t, h"), "no vector of 8"),
  (FIRST.replace("y = MatMul(n, w)", "c = MatMul(n, s)  y = Add(c, n)"), "as an operand, too"),
])  # fmt: skip
def test_the_norm_of_few_rows_stays(nodes, reason):
  outputs = "f[1,2,16] y, f[1,2,8] z" if "z =" in nodes else "f[1,2,M] y"
  made = first(nodes, "1,2", outputs)
  before, _ = run_pass(made, *BEFORE)
  assert_stays(before, NORM_MATMUL, reason)


def test_a_norm_of_many_rows_goes_to_no_product():
  for shape in ("5,1", "N,1"):
    before, _ = run_pass(first(FIRST, shape, "f[N,1,16] y"), *BEFORE)
    run_pass(before, NORM_MATMUL, changes=0)


@parametrize("nodes, width, reason", [
  ("y = LayerNormalization<axis=-2>(v, g, h)", 64, "not over the last axis"),
  (LAYER, 40, "no multiple of 32"),
  (LAYER, 4096, "up to 2048"),
])  # fmt: skip
def test_stays(nodes, width, reason):
  before, _ = run_pass(graph(nodes, f"f[N,M,{width}] y", width), *BEFORE)
  assert_stays(before, MATMUL_NORM, reason)


def test_a_norm_that_narrows_its_input_stays():
  """The product's node has one dtype."""
  norm = "(float x) => (float16 y) { s = Cast<to=float16>(x) y = RMSNormalization(s) }"
  before = parsed(
    f"""(float[1,8] x) => (float16[1,4] y) {{
      n = ortplugin.FusedLayerNorm<program="{norm}">(x)
      y = ortplugin.FusedMatMul<program="(float16 c) => (float16 c) {{}}">(n, w) }}""",
    17,
    domains=["ortplugin"],
  )
  add_weights(before, w=np.ones((8, 4), np.float16))
  assert_stays(before, NORM_MATMUL, "another dtype")
