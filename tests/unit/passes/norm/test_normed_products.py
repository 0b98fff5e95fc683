import pytest
from attention_helpers import X, attributes, fused, graph, in_float, with_weights  # noqa: F401
from onnx_models import initializers
from pass_helpers import nodes_of, operators, parametrize, run_pass

from ortplugin.optimizer.pipeline import DEAD_NODES, FUSE_ATTENTION, FUSE_RMS_NORM, NORMED_PRODUCTS

pytestmark = pytest.mark.usefixtures("in_float")

NORM = "RMSNormalization<axis=-1, epsilon=1e-6>"
PRODUCTS = "q = MatMul(x, wq)  k0 = MatMul(x, wk)  k = Add(k0, bk)  v = MatMul(x, wv)"
HEADS = """heads = {2,-1,4,8}  few = {2,-1,2,8}  q4 = Reshape(q, heads)  k4 = Reshape(k, few)  v4 = Reshape(v, few)
  more = {2,5,2,2,8}  three = {3}"""
NORMS = f"qn = {NORM}(q4, gq)  kn = {NORM}(k4, gk)"
CORE = """k3 = Unsqueeze(kn, three)  ke = Expand(k3, more)  k8 = Reshape(ke, heads)
  v3 = Unsqueeze(v4, three)  ve = Expand(v3, more)  v8 = Reshape(ve, heads)  kt = Transpose<0,2,3,1>(k8)
  qh = Transpose<0,2,1,3>(qn)  vh = Transpose<0,2,1,3>(v8)  s = MatMul(qh, kt)  p = Softmax<axis=-1>(s)
  a = MatMul(p, vh)  y4 = Transpose<0,2,1,3>(a)  joined = {2,5,32}  y = Reshape(y4, joined)"""
PLAIN = f"{PRODUCTS} {HEADS} {NORMS} {CORE}"
# As Gemma 3: the heads are in front of the rows before they are normalised.
FRONT = (
  PLAIN.replace(f"qn = {NORM}(q4, gq)", f"qf = Transpose<0,2,1,3>(q4)  qh = {NORM}(qf, gq)")
  .replace("qh = Transpose<0,2,1,3>(qn)", "")
  .replace(f"kn = {NORM}(k4, gk)", f"kf = Transpose<0,2,1,3>(k4)  kh = {NORM}(kf, gk)  two = {{2}}")
  .replace(
    "Unsqueeze(kn, three)  ke = Expand(k3, more)", "Unsqueeze(kh, two)  wide = {2,2,2,5,8}  ke = Expand(k3, wide)"
  )
  .replace("k8 = Reshape(ke, heads)", "all = {2,4,5,8}  k8 = Reshape(ke, all)")
  .replace("<0,2,3,1>(k8)", "<0,1,3,2>(k8)")
)
WEIGHTS = {"wq": (16, 32), "wk": (16, 16), "wv": (16, 16), "bk": (16,), "gq": (8,), "gk": (8,)}


def network(*, nodes=PLAIN, inputs=X, **weights):
  return with_weights(graph(nodes, inputs, opset=23), **{**WEIGHTS, **weights})


def merged(original, **given):
  return fused(original, FUSE_RMS_NORM, NORMED_PRODUCTS, **given)


@parametrize("nodes", [PLAIN, FRONT])
def test_products_and_norms_become_one_of_each(nodes):
  optimized, node = merged(network(nodes=nodes), into="MatMul Add Reshape FusedLayerNorm FusedAttention")
  assert [attributes(node)[f"{each}_layout"] for each in "qkv"] == ["b s h:0/8 d", "b s h:4/8 d", "b s h:6/8 d"]
  (norm,) = nodes_of(optimized, "FusedLayerNorm")
  assert initializers(optimized)[norm.input[2]].ravel().tolist() == [True] * 6 + [False] * 2


def test_one_number_is_one_of_each_head():
  merged(network(gq=(1,)), into="MatMul Add Reshape FusedLayerNorm FusedAttention")


def test_values_that_are_no_product_of_it_stay():
  other = PRODUCTS.replace("MatMul(x, wv)", "MatMul(z, wv)")
  original = network(nodes=f"{other} {HEADS} {NORMS} {CORE}", inputs=f"{X}, float[2,5,16] z")
  optimized, node = merged(original)
  assert sorted(operators(optimized)) == ["Add", "FusedAttention", "FusedLayerNorm", "MatMul", "MatMul", "Reshape"]
  assert [attributes(node)[f"{each}_layout"] for each in "qkv"] == ["b s h:0/6 d", "b s h:4/6 d", "b s (h d)"]
  (norm,) = nodes_of(optimized, "FusedLayerNorm")
  assert len(norm.input) == 2


STAY = {
  "another epsilon": {"nodes": f"{PRODUCTS} {HEADS} {NORMS.replace('1e-6>(k4', '1e-3>(k4')} {CORE}"},
  "keys of another tensor": {
    "nodes": f"{PRODUCTS.replace('MatMul(x, wk)', 'MatMul(z, wk)')} {HEADS} {NORMS} {CORE}",
    "inputs": f"{X}, float[2,5,16] z",
  },
  "keys without a norm": {"nodes": f"{PRODUCTS} {HEADS} {NORMS.replace(f'{NORM}(k4, gk)', 'Identity(k4)')} {CORE}"},
  "a norm of whole rows": {"nodes": PLAIN.replace("(q4, gq)", "(q4, g2)"), "g2": (4, 8)},
  "gamma that is an input": {
    "nodes": PLAIN.replace("gk)", "g)"),
    "inputs": f"{X}, float[8] g",
  },
}


@parametrize("what", STAY)
def test_stays(what):
  before, _ = run_pass(network(**STAY[what]), FUSE_RMS_NORM, FUSE_ATTENTION, DEAD_NODES)
  after, report = run_pass(before, NORMED_PRODUCTS)
  assert operators(after) == operators(before)
  assert "FusedAttention" in operators(after)
  reasons = [each.reason for each in report.near_misses]
  assert bool(reasons) == (what in ("a norm of whole rows", "gamma that is an input")), reasons


def test_what_else_reads_a_norm_keeps_it():
  original = graph(f"{PRODUCTS} {HEADS} {NORMS} {CORE} z = Neg(kn)", X, "float[2,5,32] y, float[2,5,2,8] z", opset=23)
  before, _ = run_pass(with_weights(original, **WEIGHTS), FUSE_RMS_NORM, FUSE_ATTENTION, DEAD_NODES)
  after, report = run_pass(before, NORMED_PRODUCTS)
  assert operators(after) == operators(before)
  assert "used" in report.near_misses[0].reason
