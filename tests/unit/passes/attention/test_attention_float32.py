import onnx
import pytest
from attention_helpers import STANDARD, X, assert_equal, attentions, attributes, feeds, graph, with_weights
from pass_helpers import operators, run_pass, stays
from test_merge_products import CORE, HEADS, MERGED, PRODUCTS, WEIGHTS

import ortplugin
from ortplugin.optimizer.pipeline import ATTENTION_FLOAT32, DEAD_NODES
from ortplugin.passes.attention import fuse_attention

QKV = "float[2,5,32] q, k, v"
PLAIN = "s = MatMul(q, k)  p = Softmax<axis=-1>(s)  y = MatMul(p, v)"
HALVES = "float16[2,4,5,8] q, float16[2,4,8,5] k, float16[2,4,5,8] v"


@pytest.fixture
def pays(monkeypatch):
  monkeypatch.setattr(fuse_attention, "FLOAT32_PAYS", True)


@pytest.mark.usefixtures("pays")
def test_it_becomes_one_node():
  original = graph(f"{HEADS} {CORE}", QKV)
  optimized, _ = run_pass(original, ATTENTION_FLOAT32, DEAD_NODES)
  (node,) = attentions(optimized)
  assert attributes(node) == STANDARD
  assert_equal(original, optimized, feeds(original))
  operator = graph("y = Attention<q_num_heads=4, kv_num_heads=4>(q, k, v)", QKV, opset=23)
  (node,) = attentions(run_pass(operator, ATTENTION_FLOAT32)[0])
  assert attributes(node) == {**STANDARD, "scale": 0.35355}


@pytest.mark.usefixtures("pays")
def test_what_lies_by_columns_stays():
  """The kernel for tensor cores reads rows, and in float32 the other one is slow."""
  inputs = "float[2,4,5,8] q, float[2,4,8,5] k, float[2,4,5,8] v"
  stays(graph(PLAIN, inputs, "float[2,4,5,8] y"), ATTENTION_FLOAT32, "don't lie in its operands")
  rows = graph(f"k = Transpose<0,1,3,2>(kr)  {PLAIN}", inputs.replace("8,5] k", "5,8] kr"), "float[2,4,5,8] y")
  assert operators(run_pass(rows, ATTENTION_FLOAT32, DEAD_NODES)[0]) == ["FusedAttention"]
  assert not run_pass(graph(PLAIN, HALVES, "float16[2,4,5,8] y"), ATTENTION_FLOAT32)[1].changes


@pytest.mark.usefixtures("pays")
def test_wide_heads_stay_where_tf32_is_forbidden():
  for size, count in ((128, 1), (136, 0)):
    nodes = f"{HEADS} {CORE}".replace(",8}", f",{size}}}").replace("32", str(4 * size))
    model = graph(nodes, QKV.replace("32", str(4 * size)), f"float[2,5,{4 * size}] y")
    for precision, fused in ((None, 1), ("fp32", count)):
      optimized, _ = ortplugin.optimize(model, precision=precision, providers=["cuda"])
      assert operators(optimized).count("FusedAttention") == fused


def test_it_stays_where_that_does_not_pay(monkeypatch):
  monkeypatch.setattr(fuse_attention, "FLOAT32_PAYS", False)
  stays(graph(f"{HEADS} {CORE}", QKV), ATTENTION_FLOAT32)


@pytest.mark.usefixtures("pays")
@pytest.mark.parametrize("precision, said", [(None, []), ("tf32", [1])])
def test_a_transformers_products_become_one(precision, said):
  original = with_weights(graph(f"{PRODUCTS} {HEADS} {CORE}", X), **WEIGHTS)
  optimized, _ = ortplugin.optimize(original, skip=["matmul-float32"], precision=precision, providers=["cuda"])
  (node,) = attentions(optimized)
  assert operators(optimized) == ["MatMul", "FusedAttention"]
  found = attributes(node)
  assert [found.pop(name) for name in ("allow_tf32",) if name in found] == said
  assert found == MERGED
  assert_equal(original, optimized, feeds(original))


@pytest.mark.usefixtures("pays")
def test_precision_fp32_forbids_it_to_round():
  original = with_weights(graph(f"{PRODUCTS} {HEADS} {CORE}", X), **WEIGHTS)
  assert not attentions(ortplugin.optimize(original, precision="fp32", providers=["cpu"])[0])
  optimized, _ = ortplugin.optimize(original, precision="fp32", providers=["cuda"])
  (node,) = attentions(optimized)
  assert onnx.helper.get_node_attr_value(node, "allow_tf32") == 0
