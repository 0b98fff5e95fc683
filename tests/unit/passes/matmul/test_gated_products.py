from matmul_helpers import assert_stays, inputs_of, weighted
from onnx import TensorProto, helper
from onnx_models import all_attributes, nodes_of, parametrize
from pass_helpers import programs, run_pass, same_outputs

from ortplugin.optimizer.pipeline import GATED_PRODUCTS, MATMUL_EPILOGUE, MATMUL_TO_FUSED

BEFORE = (MATMUL_TO_FUSED, MATMUL_EPILOGUE)
GATED = "c = MatMul(x, w)  v = MatMul(x, u)  s = Sigmoid(v)  g = Mul(v, s)  y = Mul(g, c)"


def graph(nodes, y="f[N,M,16] y", columns=16, **more):
  weights = {"w": (8, 16), "u": (8, columns), "b": (16,)}
  return weighted(f"(f[N,M,8] x, f[N,M,8] z, f[N,M,16] r) => ({y}) {{ {nodes} }}", weights, opset=20, **more)


@parametrize("nodes, y", [
  (GATED, "f[N,M,16] y"),
  ("c = MatMul(x, w)  v = MatMul(x, u)  d = Add(v, b)  g = Gelu(d)  m = Mul(g, c)  y = Add(m, r)", "f[N,M,16] y"),
  (GATED + "  t = Softmax(g)", "f[N,M,16] y, f[N,M,16] t"),  # which of the two gates is free
  (GATED.replace("y =", "p =") + "  q = Add(p, r)  y = Relu(q)", "f[N,M,16] q, f[N,M,16] y"),
  ("v = MatMul(x, u)  c = MatMul(x, w)  a = Add(c, b)  y = Sub(a, v)", "f[N,M,16] y"),
])  # fmt: skip
def test_a_product_and_its_gate_are_one_node(nodes, y):
  original = graph(nodes, y)
  before, _ = run_pass(original, *BEFORE)
  assert len(nodes_of(before, "FusedMatMul")) == 2
  optimized, _ = run_pass(before, GATED_PRODUCTS, changes=1)
  (node,) = nodes_of(optimized, "FusedMatMul")
  assert all_attributes(node)["gated"] == 1
  ((x, w, u, *_),) = inputs_of(optimized)
  assert (x, {w[0], u[0]}) == ("x", {"w", "u"})
  assert len(programs(optimized)) == 1
  same_outputs(original, optimized)
  run_pass(optimized, *BEFORE, GATED_PRODUCTS, changes=0)


@parametrize("nodes, y, columns, reason", [
  (GATED + "  t = Softmax(g)  o = Softmax(c)", "f[N,M,16] y, f[N,M,16] t, f[N,M,16] o", 16, "is also used by"),
  (GATED, "f[N,M,16] g, f[N,M,16] c, f[N,M,16] y", 16, "output"),
  (GATED, "f[N,M,16] y", 1, "different shapes"),
])  # fmt: skip
def test_stays(nodes, y, columns, reason):
  before, _ = run_pass(graph(nodes, y, columns), *BEFORE)
  assert_stays(before, GATED_PRODUCTS, reason)


def test_weights_of_unknown_shapes_stay():
  before, _ = run_pass(graph(GATED), *BEFORE)
  for name in [each.name for each in before.graph.initializer]:
    before.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT16, [None, 8]))
  del before.graph.initializer[:]
  assert_stays(before, GATED_PRODUCTS, "may have different shapes")


def test_products_of_different_tensors_stay():
  before, _ = run_pass(graph(GATED.replace("MatMul(x, u)", "MatMul(z, u)")), *BEFORE)
  run_pass(before, GATED_PRODUCTS, changes=0)


def test_an_algorithm_that_was_tuned_stays():
  before, _ = run_pass(graph(GATED), *BEFORE)
  before.graph.node[0].attribute.add(name="algorithm", type=3, s=b"own")
  assert_stays(before, GATED_PRODUCTS, "algorithm")
