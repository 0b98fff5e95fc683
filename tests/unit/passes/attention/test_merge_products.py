import pytest
from attention_helpers import X, attributes, fused, graph, in_float, with_weights  # noqa: F401
from onnx_models import initializers
from pass_helpers import operators, parametrize, reasons, run_pass, value_infos

from ortplugin.optimizer.pipeline import DEAD_NODES, FUSE_ATTENTION, MERGE_PRODUCTS

pytestmark = pytest.mark.usefixtures("in_float")

CORE = """kt = Transpose<0,2,3,1>(k4)  qh = Transpose<0,2,1,3>(q4)
  vh = Transpose<0,2,1,3>(v4)  s = MatMul(qh, kt)  p = Softmax<axis=-1>(s)  a = MatMul(p, vh)
  y4 = Transpose<0,2,1,3>(a)  joined = {2,5,32}  y = Reshape(y4, joined)"""
HEADS = "heads = {2,-1,4,8}  q4 = Reshape(q, heads)  k4 = Reshape(k, heads)  v4 = Reshape(v, heads)"
PRODUCTS = "q = MatMul(x, wq)  k = MatMul(x, wk)  v = MatMul(x, wv)"
BIASED = "q0 = MatMul(x, wq)  q = Add(q0, bq)  k = MatMul(x, wk)  v0 = MatMul(x, wv)  v = Add(bv, v0)"
MERGED = {
  "q_layout": "b s (h:0/12 d)",
  "k_layout": "b s (h:4/12 d)",
  "v_layout": "b s (h:8/12 d)",
  "y_layout": "b s (h d)",
}


WEIGHTS = dict.fromkeys(("wq", "wk", "wv"), (16, 32))
BIASES = {"bq": (32,), "bv": (1, 1, 32)}


def test_three_products_become_one():
  original = with_weights(graph(f"{PRODUCTS} {HEADS} {CORE}", X), **WEIGHTS)
  _, node = fused(original, MERGE_PRODUCTS, into="MatMul FusedAttention")
  assert attributes(node) == MERGED
  assert len(set(node.input)) == 1


def merged_bias(**shapes):
  """The model, and the one bias that the projections have then."""
  original = with_weights(graph(f"{BIASED} {HEADS} {CORE}", X), **WEIGHTS, **shapes)
  optimized, node = fused(original, MERGE_PRODUCTS, into="MatMul Add FusedAttention")
  assert attributes(node) == MERGED
  return original, next(each for name, each in initializers(optimized).items() if name.endswith("/bias"))


def test_a_bias_that_is_missing_is_zeros():
  _, bias = merged_bias(**BIASES)
  assert bias.shape == (96,)
  assert not bias[32:64].any()


@parametrize("shape", [(), (1,), (1, 1, 1)])
def test_one_number_is_a_bias_of_every_column(shape):
  original, bias = merged_bias(bq=(32,), bv=shape)
  assert (bias[64:] == initializers(original)["bv"].reshape(())).all()


@parametrize("shape", [(1, 1, 1, 1), (1, 1, 1, 32), (5, 1), (2, 1, 32)])
def test_what_is_no_bias_of_columns_stays(shape):
  original = with_weights(graph(f"{BIASED} {HEADS} {CORE}", X), **WEIGHTS, bq=(32,), bv=shape)
  optimized, node = fused(original, MERGE_PRODUCTS)
  assert sorted(operators(optimized)) == ["Add", "Add", "FusedAttention", "MatMul", "MatMul"]
  assert attributes(node)["k_layout"] == "b s (h:4/8 d)"


def test_scaled_queries_are_merged_too():
  scaled = "q1 = MatMul(x, wq)  c = float {0.25}  q = Mul(q1, c)  " + PRODUCTS.split("  ", 1)[1]
  _, node = fused(with_weights(graph(f"{scaled} {HEADS} {CORE}", X), **WEIGHTS), MERGE_PRODUCTS)
  assert attributes(node) == {**MERGED, "scale": 0.25}


def test_fewer_heads_of_keys_and_values():
  nodes = f"""{PRODUCTS}  heads = {{2,-1,4,8}}  few = {{2,-1,2,8}}  q4 = Reshape(q, heads)
    k2 = Reshape(k, few)  v2 = Reshape(v, few)  more = {{2,5,2,2,8}}  three = {{3}}
    k3 = Unsqueeze(k2, three)  ke = Expand(k3, more)  k4 = Reshape(ke, heads)
    v3 = Unsqueeze(v2, three)  ve = Expand(v3, more)  v4 = Reshape(ve, heads)  {CORE}"""
  original = with_weights(graph(nodes, X), wq=(16, 32), wk=(16, 16), wv=(16, 16))
  _, node = fused(original, MERGE_PRODUCTS, into="MatMul FusedAttention")
  assert [attributes(node)[f"{each}_layout"] for each in "qkv"] == ["b s (h:0/8 d)", "b s (h:4/8 d)", "b s (h:6/8 d)"]


def test_keys_and_values_of_an_encoder():
  nodes = f"q = MatMul(x, wq)  k = MatMul(z, wk)  v = MatMul(z, wv)  {HEADS} {CORE}"
  original = with_weights(graph(nodes, f"{X}, float[2,7,16] z"), **WEIGHTS)
  _, node = fused(original, MERGE_PRODUCTS, into="MatMul MatMul FusedAttention")
  assert [attributes(node)[f"{each}_layout"] for each in "qkv"] == ["b s (h d)", "b s (h:0/8 d)", "b s (h:4/8 d)"]


def test_gemm_of_rows():
  nodes = """q = Gemm<transB = 1>(x, wq, bq)  k = Gemm(x, wk)  v = Gemm(x, wv, bv)
    by_head = {5,4,8}  q3 = Reshape(q, by_head)  k3 = Reshape(k, by_head)  v3 = Reshape(v, by_head)
    qh = Transpose<1,0,2>(q3)  kt = Transpose<1,2,0>(k3)  vh = Transpose<1,0,2>(v3)
    zero = {0}  q4 = Unsqueeze(qh, zero)  k4 = Unsqueeze(kt, zero)  v4 = Unsqueeze(vh, zero)
    s = MatMul(q4, k4)  p = Softmax<axis=-1>(s)  y = MatMul(p, v4)"""
  original = graph(nodes, "float[5,16] x", "float[1,4,5,8] y")
  with_weights(original, wq=(32, 16), wk=(16, 32), wv=(16, 32), bq=(32,), bv=(32,))
  _, node = fused(original, MERGE_PRODUCTS)
  assert len(node.input) == 3


MISSES = {
  "another reader of K": (f"{PRODUCTS} {HEADS} {CORE} z = Neg(k)", "float[2,5,32] y, z", 2),
  "queries of another tensor": (f"{PRODUCTS.replace('x, wq', 'other, wq')} {HEADS} {CORE}", "float[2,5,32] y", 2),
}


@parametrize("miss", MISSES)
def test_the_others_are_merged_all_the_same(miss):
  nodes, y, products = MISSES[miss]
  optimized, _ = fused(with_weights(graph(nodes, f"{X}, other", y), **WEIGHTS), MERGE_PRODUCTS)
  assert operators(optimized).count("MatMul") == products


def test_weights_that_a_caller_may_override_stay():
  original = with_weights(graph(f"{PRODUCTS} {HEADS} {CORE}", X), **WEIGHTS)
  original.graph.input.extend(value_infos("float[16,32] wq, wk, wv"))
  optimized, result = run_pass(original, FUSE_ATTENTION, MERGE_PRODUCTS, DEAD_NODES)
  assert operators(optimized).count("MatMul") == 3
  assert any("a caller may override 'wq'" in reason for reason in reasons(result))


def test_a_product_that_the_attention_reads_without_the_bias_stays():
  products = "v = MatMul(x, wq)  q = Add(v, bq)  k0 = MatMul(x, wk)  k = Add(k0, bk)"
  weights = {"wq": (16, 32), "wk": (16, 32), "bq": (32,), "bk": (32,)}
  original = with_weights(graph(f"{products} {HEADS} {CORE}", X), **weights)
  fused(original, MERGE_PRODUCTS, into="MatMul Add MatMul Add FusedAttention")
