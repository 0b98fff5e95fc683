import numpy as np
from pass_helpers import add_weights, model, operators, parametrize, run_pass, same_outputs

from ortplugin.optimizer.pipeline import FUSE_ATTENTION, SCALED_QUERIES

MASKED = "a = Add(f, m)  p = Softmax<axis=-1>(a)"


def graph(nodes, factors, q="2,3,5,8"):
  made = model(
    f"(float16[{q}] q, float16[2,3,8,7] k, float16[2,3,7,8] v, float16[5,7] m) => (y) {{ s = MatMul(q, k)  {nodes} "
    "y = MatMul(p, v) }",
    18,
  )
  add_weights(made, w=np.asarray(factors, np.float16))
  return made


HEADS = np.array([0.5, 2, 10]).reshape(3, 1, 1)


@parametrize("nodes, factors", [
  (f"f = Mul(s, w)  {MASKED}", HEADS),
  (f"f = Mul(w, s)  {MASKED}", HEADS[None]),
  (f"f = Div(s, w)  {MASKED}", np.arange(1, 6).reshape(5, 1)),
])  # fmt: skip
def test_attention_has_factors_of_heads(nodes, factors):
  original = graph(nodes, factors)
  optimized, _ = run_pass(original, SCALED_QUERIES, FUSE_ATTENTION)
  assert operators(optimized) == ["Div" if "Div" in nodes else "Mul", "FusedAttention"]
  same_outputs(original, optimized)


@parametrize("nodes, factors, more", [
  (f"f = Mul(s, w)  {MASKED}", np.arange(7), {}),  # of keys
  (f"f = Mul(s, w)  {MASKED}", np.full((3, 1, 1), 2), {}),  # one for all
  (f"f = Mul(s, w)  {MASKED}", HEADS * 100, {}),
  (f"f = Div(s, w)  {MASKED}", HEADS / 100, {}),
  (f"f = Div(w, s)  {MASKED}", HEADS, {}),
  ("f = Mul(s, w)  a = Add(f, s)  p = Softmax<axis=-1>(a)", HEADS, {}),
  ("f = Mul(s, w)  p = Relu(f)", HEADS, {}),
  (f"f = Mul(s, w)  {MASKED}", HEADS, {"q": "1,1,5,8"}),
])  # fmt: skip
def test_what_stays(nodes, factors, more):
  original = graph(nodes, factors, **more)
  assert operators(run_pass(original, SCALED_QUERIES)[0]) == operators(original)
