import onnx
from matmul_helpers import assert_stays, constant, inputs_of, weighted
from pass_helpers import lines, parametrize, programs, run_pass, same_outputs

from ortplugin.optimizer.pipeline import MATMUL_EPILOGUE, MATMUL_TO_FUSED, SPLIT_PRODUCTS

GATED = "a, b = Split<axis=-1, num_outputs=2>({c})  g = Gelu(a)  y = Mul(g, b)"


def graph(nodes, y="f[N,M,16] y", **weights):
  text = f"(f[N,M,8] x, f[N,M,32] r) => ({y}) {{ c = MatMul(x, w)  {nodes} }}"
  return weighted(text, {"w": (8, 32), **weights}, opset=20)


def test_a_gated_linear_unit_is_two_products():
  original = graph("d = Add(c, bias)  " + GATED.format(c="d"), bias=(32,))
  optimized, _ = run_pass(original, MATMUL_TO_FUSED, MATMUL_EPILOGUE, SPLIT_PRODUCTS)
  optimized, _ = run_pass(optimized, MATMUL_EPILOGUE, into="FusedMatMul FusedMatMul")
  same_outputs(original, optimized)
  assert [lines(each)[-1] for each in programs(optimized)] == ["y = Gelu(add)", "y = Mul(residual, add)"]
  assert [constant(optimized, each[1]).shape for each in inputs_of(optimized)] == [(16, 8), (16, 8)]


def test_parts_of_different_sizes():
  original = graph("y, z, u = Split<axis=2>(c, p)", "f[N,M,8] y, f[N,M,16] z, f[N,M,8] u")
  original.graph.initializer.append(onnx.helper.make_tensor("p", onnx.TensorProto.INT64, [3], [8, 16, 8]))
  optimized, _ = run_pass(original, MATMUL_TO_FUSED, SPLIT_PRODUCTS, into=["FusedMatMul"] * 3)
  same_outputs(original, optimized)


@parametrize("nodes, y, reason", [
  (GATED.format(c="c") + "  z = Softmax(c)", "f[N,M,16] y, f[N,M,32] z", "is also used by"),
  ("d = Add(c, r)  " + GATED.format(c="d"), "f[N,M,16] y", "'r' is no constant of 32 columns"),
  ("y, z = Split<axis=-1>(c, p)", "f[N,M,B] y, f[N,M,C] z", "not known to be multiples of 8"),
])  # fmt: skip
def test_stays(nodes, y, reason):
  original = graph(nodes, y)
  original.graph.initializer.append(onnx.helper.make_tensor("p", onnx.TensorProto.INT64, [2], [12, 20]))
  before, _ = run_pass(original, MATMUL_TO_FUSED, MATMUL_EPILOGUE)
  assert_stays(before, SPLIT_PRODUCTS, reason)
