import numpy as np
import onnx
from matmul_helpers import assert_stays, weighted
from onnx_models import all_attributes, nodes_of, op_types, parametrize, parsed
from pass_helpers import add_weights, run_pass, same_outputs

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
LAYER = "y = LayerNormalization<axis=-1, epsilon=1e-5>({v}, g, h)"


def graph(nodes, y="f[N,M,64] y", width=64, **weights):
  text = f"(f[N,M,8] x, f[N,M,{width}] r) => ({y}) {{ c = MatMul(x, w)  v = Add(c, r)  {nodes} }}"
  return weighted(text, {"w": (8, width), "g": (width,), "h": (width,), **weights}, opset=17)


@parametrize("nodes, y, keeps", [
  (LAYER.format(v="v"), "f[N,M,64] y", 0),
  (LAYER.format(v="v") + "  z = Softmax(v)", "f[N,M,64] y, f[N,M,64] z", 1),
  (LAYER.format(v="v"), "f[N,M,64] v, f[N,M,64] y", 1),
])  # fmt: skip
def test_a_product_and_its_norm_are_one_node(nodes, y, keeps):
  original = graph(nodes, y)
  before, _ = run_pass(original, *BEFORE)
  optimized, _ = run_pass(before, MATMUL_NORM)
  (node,) = nodes_of(optimized, "FusedMatMulNorm")
  assert all_attributes(node)["keeps_product"] == keeps
  assert not {"FusedMatMul", "FusedLayerNorm"} & set(op_types(optimized))
  same_outputs(original, optimized)
  apart = onnx.load_model_from_string(standard_on_cpu(optimized.SerializeToString()))
  assert op_types(apart)[:2] == ["FusedMatMul", "FusedLayerNorm"]


FIRST = "n = LayerNormalization<axis=-1, epsilon=1e-5>(x, g, h)  {}  y = MatMul({}, w)"


def first(nodes, shape="1,2", y="f[M,16] y"):
  return weighted(
    f"(f[{shape},8] x) => ({y}) {{ {nodes} }}", {"w": (8, 16), "g": (8,), "h": (8,), "t": (2, 8), "s": (8, 8)}, opset=17
  )


@parametrize("shape, view, a", [
  ("1,2", "", "n"), ("4", "", "n"), ("1,4", "d = Constant<value_ints=[4, 8]>()  a = Reshape(n, d)", "a")
])  # fmt: skip
def test_a_norm_of_few_rows_and_their_product_are_one_node(shape, view, a):
  original = first(FIRST.format(view, a), shape, "f[1,2,16] y" if shape == "1,2" else "f[4,16] y")
  before, _ = run_pass(original, *BEFORE)
  optimized, _ = run_pass(before, NORM_MATMUL)
  (node,) = nodes_of(optimized, "FusedMatMulNorm")
  assert all_attributes(node)["norm_first"] == 1
  assert not {"FusedMatMul", "FusedLayerNorm"} & set(op_types(optimized))
  same_outputs(original, optimized)
  apart = onnx.load_model_from_string(standard_on_cpu(optimized.SerializeToString()))
  assert op_types(apart)[-2:] == ["FusedLayerNorm", "FusedMatMul"]


def test_the_norm_of_a_gated_product_goes_with_it():
  nodes = (
    FIRST.format("", "n").replace("y = MatMul", "u = MatMul") + "  v = MatMul(n, w2)  k = Sigmoid(v)  m = Mul(v, k)"
  )
  original = weighted(
    f"(f[1,2,8] x) => (f[1,2,16] y) {{ {nodes}  y = Mul(m, u) }}",
    {"w": (8, 16), "w2": (8, 16), "g": (8,), "h": (8,)},
    opset=17,
  )
  before, _ = run_pass(original, *BEFORE, GATED_PRODUCTS)
  optimized, _ = run_pass(before, NORM_MATMUL)
  (node,) = nodes_of(optimized, "FusedMatMulNorm")
  assert all_attributes(node)["gated"] == 1
  same_outputs(original, optimized)


@parametrize("nodes, reason", [
  (FIRST.format("", "n") + "  z = Relu(n)", "is also used"),
  (FIRST.format("", "n").replace("axis=-1", "axis=-2").replace("g, h", "t"), "not over the last axis"),
  (FIRST.format("", "n").replace("g, h", "t, h"), "no vector of 8"),
  (FIRST.format("", "n").replace("y = MatMul(n, w)", "c = MatMul(n, s)  y = Add(c, n)"), "as an operand, too"),
])  # fmt: skip
def test_the_norm_of_few_rows_stays(nodes, reason):
  outputs = "f[1,2,16] y, f[1,2,8] z" if "z =" in nodes else "f[1,2,M] y"
  made = first(nodes, "1,2", outputs)
  before, _ = run_pass(made, *BEFORE)
  assert_stays(before, NORM_MATMUL, reason)


def test_a_norm_of_many_rows_goes_to_no_product():
  for shape in ("5,1", "N,1"):
    before, _ = run_pass(first(FIRST.format("", "n"), shape, "f[N,1,16] y"), *BEFORE)
    run_pass(before, NORM_MATMUL, changes=0)


@parametrize("nodes, width, reason", [
  ("y = LayerNormalization<axis=-2>(v, g, h)", 64, "not over the last axis"),
  (LAYER.format(v="v"), 40, "no multiple of 32"),
  (LAYER.format(v="v"), 4096, "up to 2048"),
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
