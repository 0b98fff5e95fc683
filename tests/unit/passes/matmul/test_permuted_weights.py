import numpy as np
from matmul_helpers import assert_stays, constant, inputs_of, weighted
from pass_helpers import operators, parametrize, run_pass, same_outputs

from ortplugin.optimizer.pipeline import GATED_PRODUCTS, MATMUL_EPILOGUE, MATMUL_TO_FUSED, PERMUTED_WEIGHTS

LAST = "t = Transpose<0,3,1,2>(x)"


def graph(nodes, y="f[N,16] y", **more):
  weights = {"w": (24, 16), **more}
  return weighted(f"(f[N,3,2,4] x) => ({y}) {{ {nodes} }}", weights, opset=20)


@parametrize("nodes, more", [
  (LAST + "  b = Flatten(t)  y = MatMul(b, w)", {}),
  (LAST + "  b = Flatten(t)  y = Gemm<transB=1>(b, v, c)", {"v": (16, 24), "c": (16,)}),
  ("t = Transpose<0,2,1,3>(x)  b = Flatten(t)  c = MatMul(b, w)  y = Relu(c)", {}),
])  # fmt: skip
def test_transposed_rows(nodes, more):
  original = graph(nodes, **more)
  optimized, _ = run_pass(original, MATMUL_TO_FUSED, MATMUL_EPILOGUE, PERMUTED_WEIGHTS, into="Reshape FusedMatMul")
  same_outputs(original, optimized, N=3)


def test_a_gate_is_rearranged_too():
  nodes = f"{LAST}  b = Flatten(t)  c = MatMul(b, w)  d = MatMul(b, v)  s = Sigmoid(d)  y = Mul(c, s)"
  original = graph(nodes, v=(24, 16))
  before, _ = run_pass(original, MATMUL_TO_FUSED, MATMUL_EPILOGUE, GATED_PRODUCTS)
  assert operators(before).count("FusedMatMul") == 1
  optimized, _ = run_pass(before, PERMUTED_WEIGHTS, into="Reshape FusedMatMul")
  same_outputs(original, optimized, N=3)
  ((_, *weights),) = inputs_of(optimized)
  assert all(not np.array_equal(constant(before, a), constant(optimized, b))
             for a, b in zip(inputs_of(before)[0][1:], weights, strict=True))  # fmt: skip


@parametrize("nodes, y, reason", [
  (LAST + "  b = Flatten(t)  c = MatMul(b, w)  y = Softmax(c)  z = Relu(b)", "f[N,16] y, f[N,24] z", "also used by"),
  (LAST + "  b = Flatten(t)  y = Gemm<transB=1>(b, v)  z = Add(v, v)", "f[N,16] y, f[16,24] z", "'v' is no constant"),
])  # fmt: skip
def test_stays(nodes, y, reason):
  before, _ = run_pass(graph(nodes, y, v=(16, 24)), MATMUL_TO_FUSED)
  assert_stays(before, PERMUTED_WEIGHTS, reason)


@parametrize("nodes", [
  "t = Transpose<1,0,2,3>(x)  b = Flatten<axis=2>(t)  y = MatMul(b, v)",  # rows change places
  "b = Flatten(x)  y = MatMul(b, w)",
])  # fmt: skip
def test_is_none(nodes):
  original = graph(nodes, "f[M,16] y", v=(8, 16))
  before, _ = run_pass(original, MATMUL_TO_FUSED)
  _, result = run_pass(before, PERMUTED_WEIGHTS)
  assert (result.changes, result.near_misses) == ((), ())
