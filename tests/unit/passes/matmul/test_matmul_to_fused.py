import numpy as np
import onnx
from matmul_helpers import attribute, constant, inputs_of, weighted
from onnx import helper, numpy_helper
from pass_helpers import add_weights, nodes_of, parametrize, run_pass, run_same, same_outputs, stays

from ortplugin.optimizer.pipeline import DEAD_NODES
from ortplugin.passes.matmul.matmul_to_fused import MATMUL_TO_FUSED, MatMulToFused

MATMUL = "(f[N,M,8] x) => (f[N,M,6] y) { y = MatMul(x, w) }"
SHARED = MATMUL.replace(" y) {", " y, f[8,6] v) { v = Neg(w) ")


def gemm(attributes="", operands="x, w, b"):
  return f"(f[N,8] x) => (f[N,6] y) {{ y = Gemm{attributes}({operands}) }}"


@parametrize(
  "text, weights, statements",
  [
    (MATMUL, {"w": (8, 6)}, []),
    ("(f[8] x) => (f[6] y) { y = MatMul(x, w) }", {"w": (8, 6)}, []),
    ("(f[N,2,3,M,8] x) => (f[N,2,3,M,6] y) { y = MatMul(x, w) }", {"w": (8, 6)}, []),
    ("(f[N,M,8] x) => (f[N,M,6] y) { t = Transpose(w)  y = MatMul(x, t) }", {"w": (6, 8)}, []),
    ("(f[N,M,8] x) => (f[N,M,6] y) { t = Transpose<1,0>(w)  y = MatMul(x, t) }", {"w": (6, 8)}, []),
    (gemm(operands="x, w"), {"w": (8, 6)}, []),
    (gemm("<transB = 1>"), {"w": (6, 8), "b": (6,)}, ["y = Add(c, bias)"]),
    (gemm(), {"w": (8, 6), "b": (1, 6)}, ["y = Add(c, bias)"]),
    (gemm(), {"w": (8, 6), "b": ()}, ["y = Add(c, bias)"]),
    (gemm("<alpha=0.5>", "x, w"), {"w": (8, 6)}, ["scaled = Mul(c, 0.5)"]),
    (
      gemm("<alpha=0.5, beta=2.0>"),
      {"w": (8, 6), "b": (6,)},
      ["scaled = Mul(c, 0.5)", "scaled_bias = Mul(bias, 2)", "y = Add(scaled, scaled_bias)"],
    ),
    ("(f[N,8] x, f[N,1] b) => (f[N,6] y) { y = Gemm(x, w, b) }", {"w": (8, 6)}, ["y = Add(c, bias)"]),
  ],
)
def test_forms(text, weights, statements):
  optimized, _ = run_same(
    weighted(text, weights),
    MATMUL_TO_FUSED,
    DEAD_NODES,
    into="FusedMatMul",
    changes=1 + ("Transpose" in text),
    program=statements,
  )
  (node,) = optimized.graph.node
  assert attribute(node, "trans_b") == 1
  assert constant(optimized, node.input[1]).shape == (6, 8)


def test_a_bias_times_0_is_not_read():
  original = weighted(gemm("<beta=0.0>"), {"w": (8, 6), "b": (6,)})
  original.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.full(6, np.nan, np.float16), "b"))
  same_outputs(original, run_pass(original, MATMUL_TO_FUSED)[0])


def test_bfloat16():
  original = weighted(MATMUL.replace("f[", "bfloat16["), {})
  values = np.arange(48).reshape(8, 6).astype(helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16))
  add_weights(original, w=values)
  optimized, _ = run_pass(original, MATMUL_TO_FUSED)
  (node,) = optimized.graph.node
  assert node.op_type == "FusedMatMul"
  assert (constant(optimized, node.input[1]) == values.T).all()


SINGLE = MatMulToFused("matmul-float32", ("float",), "float32")


@parametrize("text", [MATMUL, gemm(operands="x, w")])
def test_float32_is_a_pass_of_its_own(text):
  original = weighted(text, {"w": (8, 6)}, half=False)
  stays(original, MATMUL_TO_FUSED)
  stays(weighted(text, {"w": (8, 6)}), SINGLE)
  optimized, _ = run_same(original, SINGLE, into="FusedMatMul")
  assert constant(optimized, optimized.graph.node[0].input[1]).shape == (6, 8)


def test_float32_as_the_engine_takes_it(monkeypatch):
  text = MATMUL.replace("8]", "6]")
  stays(weighted(text, {"w": (6, 6)}, half=False), SINGLE, "'w' of shape [6, 6] makes sums of which")
  monkeypatch.setattr("ortplugin.passes.matmul.matmul_to_fused.COPY_BYTES", 95)
  stays(weighted(SHARED, {"w": (8, 6)}, half=False), SINGLE, "'w' stays [K, N]")


@parametrize(
  "text, weights, reasons",
  [
    ("(f[N,M,8] x, f[8,6] w) => (f[N,M,6] y) { y = MatMul(x, w) }", {}, ["'w' of shape [8, 6] is no constant"]),
    (MATMUL.replace("x)", "x, f[8,6] w)"), {"w": (8, 6)}, ["that no caller may override"]),
    (MATMUL, {"w": (3, 8, 6)}, []),  # a batch of products
    ("(f[N,M,8] x, f[N,8,6] z) => (f[N,M,6] y) { y = MatMul(x, z) }", {}, []),
    ("(f[8,N] x) => (f[N,6] y) { y = Gemm<transA = 1>(x, w) }", {"w": (8, 6)}, ["'x' is transposed"]),
  ],
)
def test_what_stays(text, weights, reasons):
  stays(weighted(text, weights), MATMUL_TO_FUSED, *reasons)


def test_products_that_share_weights_share_the_transposed_ones():
  original = weighted(
    "(f[N,M,8] x, f[N,8] z) => (f[N,M,8] y, f[N,8] v) { a = MatMul(x, w)  y = MatMul(a, w)  v = Gemm(z, w) }",
    {"w": (8, 8)},
  )
  optimized, _ = run_same(original, MATMUL_TO_FUSED, into=["FusedMatMul"] * 3)
  assert len({each[1] for each in inputs_of(optimized)}) == 1
  assert len(optimized.graph.initializer) == 1


EMBEDDING = "(int64[N,M] ids) => (f[N,M,6] y) { e = Gather(table, ids)  %s  y = MatMul(e, t) }"


@parametrize("transposed", [True, False])
def test_a_head_reads_the_table_of_embeddings(transposed):
  """Through a Transpose, or where an exporter has folded that into weights of their own."""
  original = weighted(EMBEDDING % ("t = Transpose(table)" if transposed else ""), {"table": (6, 8)})
  if not transposed:
    add_weights(original, t=np.ascontiguousarray(constant(original, "table").T))
  optimized, _ = run_same(original, MATMUL_TO_FUSED, DEAD_NODES, into="Gather FusedMatMul")
  assert inputs_of(optimized) == [["e", "table"]]


def test_another_table_is_not_taken_for_the_weights():
  optimized, _ = run_same(weighted(EMBEDDING % "", {"table": (6, 8), "t": (8, 6)}), MATMUL_TO_FUSED)
  assert inputs_of(optimized) == [["e", "t_rows"]]


def test_large_weights_that_others_read_stay_as_they_are(monkeypatch):
  monkeypatch.setattr("ortplugin.passes.matmul.matmul_to_fused.COPY_BYTES", 95)
  optimized, _ = run_same(weighted(SHARED, {"w": (8, 6)}), MATMUL_TO_FUSED)
  assert inputs_of(optimized) == [["x", "w"]]
  assert attribute(nodes_of(optimized, "FusedMatMul")[0], "trans_b") == 0
