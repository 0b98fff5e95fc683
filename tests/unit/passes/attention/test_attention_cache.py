"""A cache of keys and values in the forms that exporters write: the fused node, equal outputs, and what only looks like
one."""

import numpy as np
import pytest
from attention_helpers import assert_equal, attentions, attributes, feeds, graph, in_float  # noqa: F401, a fixture
from pass_helpers import add_weights, model, operators, parametrize, run_pass, run_same, stays

from ortplugin.optimizer.pipeline import (
  ATTENTION_CACHE,
  ATTENTION_ROTARY,
  DEAD_NODES,
  FUSE_ATTENTION,
  MERGE_PRODUCTS,
  SCATTER_TRANSPOSE,
  UPDATE_SLICE,
)

pytestmark = pytest.mark.usefixtures("in_float")

FUSE = (FUSE_ATTENTION, DEAD_NODES)
PASSES = (*FUSE, ATTENTION_CACHE, DEAD_NODES, ATTENTION_ROTARY, DEAD_NODES, MERGE_PRODUCTS, DEAD_NODES)


# Two texts, 4 heads of 8, 2 of K and V where they are shared, 3 new rows.
HEADS = "bshd = {0,2,1,3}  shape = {2,3,-1,8}  "
SPLIT = """three = {32,32,32}  q0, k0, v0 = Split<axis=-1>(x, three)  q1 = Reshape(q0, shape)
  k1 = Reshape(k0, shape)  v1 = Reshape(v0, shape)  q = Transpose<0,2,1,3>(q1)
  k = Transpose<0,2,1,3>(k1)  v = Transpose<0,2,1,3>(v1)  """
JOIN = "present_key = Concat<axis=-2>(past_key, k)  present_value = Concat<axis=2>(past_value, v)  "
ATTEND = """kt = Transpose<0,1,3,2>(keys)  s = MatMul(q, kt)  c = float {0.4}
  scaled = Mul(s, c)  p = Softmax<axis=-1>(scaled)  o = MatMul(p, values)
  ot = Transpose<0,2,1,3>(o)  flat = {2,3,32}  y = Reshape(ot, flat)"""
PLAIN = ATTEND.replace("keys", "present_key").replace("values", "present_value")
PRESENT = "float[2,4,10,8] present_key, present_value"


def built(nodes, inputs="float[2,3,96] x", rows="7", present=PRESENT, heads=4):
  past = f"float[2,{heads},{rows},8] past_key, past_value"
  return graph(nodes, f"{inputs}, {past}", f"float[2,3,32] y, {present}" if present else "float[2,3,32] y")


def assert_stays(original, reason, *passes):
  """The attention is fused, but not with the cache."""
  fused, _ = run_pass(original, *passes, *FUSE)
  assert attentions(fused)
  stays(fused, ATTENTION_CACHE, reason)
  return fused


def drawn(original, **lengths):
  """The node that has drawn in the cache; the outputs are the original's."""
  optimized, result = run_same(original, *PASSES, **lengths)
  assert "attention-cache" in [each.rewrite for each in result.changes]
  assert "Concat" not in operators(optimized)
  (node,) = attentions(optimized)
  return node


@parametrize("rows", ["7", "0", "p"])
def test_gpt_2(rows):
  """One product for Q, K and V, split; the cache is of some rows, of none, or of a number that only a run tells."""
  present = PRESENT if rows == "7" else PRESENT.replace("10", "3" if rows == "0" else "t")
  node = drawn(built(HEADS + SPLIT + JOIN + PLAIN, rows=rows, present=present), p=6, t=9)
  assert list(node.input) == ["x", "x", "x", "past_key", "past_value"]
  assert list(node.output) == ["y", "present_key", "present_value"]
  assert attributes(node) == {
    "scale": 0.4,
    "q_layout": "b s (0/3 h d)",
    "k_layout": "b s (1/3 h d)",
    "v_layout": "b s (2/3 h d)",
    "y_layout": "b s (h d)",
  }


def test_others_may_read_what_is_present():
  nodes = HEADS + SPLIT + JOIN + PLAIN.replace("y = Reshape", "z = Reshape") + (
      "  at = {-1}  most = ReduceMax<keepdims=0>(present_key)  y = Add(z, most)")  # fmt: skip
  assert list(drawn(built(nodes, present="")).output) == ["z", "present_key", "present_value"]


TABLES = {
  name: function(np.random.default_rng(3).uniform(-4, 4, (1, 1, 3, 4))).astype(np.float32)
  for name, function in (("cos", np.cos), ("sin", np.sin))
}
TURN = """{x}_lo = Slice({x}, zero, four, last)  {x}_hi = Slice({x}, four, end, last)  {x}_n = Neg({x}_hi)
  {x}_c = Concat<axis=-1>({x}_n, {x}_lo)  {x}_a = Mul({x}, cos)  {x}_b = Mul({x}_c, sin)
  {x}r = Add({x}_a, {x}_b)  """
NUMBERS = "zero = {0}  four = {4}  end = {9223372036854775807}  last = {3}  "
PROJECT = """q0 = MatMul(x, wq)  k0 = MatMul(x, wk)  v0 = MatMul(x, wv)
  """ + SPLIT[SPLIT.index("q1 =") :]
SHARE = """two = {2}  many = {2,2,2,10,8}  all = {2,4,10,8}  ku = Unsqueeze(present_key, two)
  ke = Expand(ku, many)  keys = Reshape(ke, all)  vu = Unsqueeze(present_value, two)
  ve = Expand(vu, many)  values = Reshape(ve, all)  """


def llama(nodes):
  made = built(nodes, "float[2,3,16] x", present=PRESENT.replace("[2,4", "[2,2"), heads=2)
  for name, width in (("wq", 32), ("wk", 16), ("wv", 16)):
    weight = np.random.default_rng(ord(name[1])).standard_normal((16, width)).astype(np.float32) / 4
    add_weights(made, **{name: weight})
  for name, values in TABLES.items():
    add_weights(made, **{name: np.concatenate([values, values], -1)})
  return made


ROTATED = TURN.format(x="q") + TURN.format(x="k")
JOIN_ROTATED = JOIN.replace("(past_key, k)", "(past_key, kr)")


def test_llama():
  original = llama(HEADS + NUMBERS + PROJECT + ROTATED + JOIN_ROTATED + SHARE + ATTEND.replace("(q,", "(qr,"))
  optimized, _ = run_same(original, *PASSES, into="MatMul FusedAttention")
  (node,) = attentions(optimized)
  assert len(set(node.input[:3])) == 1
  assert list(node.input[5:]) == ["past_key", "past_value"]
  assert attributes(node) == {
    "scale": 0.4, "rotary": "half", "q_layout": "b s (h:0/8 d)", "k_layout": "b s (h:4/8 d)",
    "v_layout": "b s (h:6/8 d)", "y_layout": "b s (h d)",
  }  # fmt: skip


def test_a_scale_of_the_new_keys_stays():
  """It is part of what is present; one of Q is part of the scale."""
  scaled = "two = float {2}  qs = Mul(q, two)  ks = Mul(k, two)  "
  nodes = HEADS + SPLIT + scaled + JOIN.replace("(past_key, k)", "(past_key, ks)") + PLAIN.replace("(q,", "(qs,")
  optimized, _ = run_same(built(nodes), *PASSES)
  (node,) = attentions(optimized)
  assert "Mul" in operators(optimized)
  assert (attributes(node)["scale"], list(node.input[3:])) == (0.8, ["past_key", "past_value"])


@parametrize("layout", ["b s h d", "s b h d"])
def test_a_cache_of_another_layout(layout):
  """Rows before heads: the cache is joined before its Transpose."""
  order = layout.replace(" ", "")
  perm = ["bshd".index(letter) for letter in order]
  back = [order.index(letter) for letter in "bhsd"]
  rows = {"b": "2", "s": "7", "h": "4", "d": "8"}
  past = ",".join(rows[letter] for letter in order)
  nodes = HEADS + SPLIT.split("k = Transpose")[0]
  for x, name in (("k", "key"), ("v", "value")):
    nodes += f"""{x} = Transpose<perm={perm}>({x}1)
      present_{name} = Concat<axis={order.index("s")}>(past_{name}, {x})
      {name}s = Transpose<perm={back}>(present_{name})  """
  present = past.replace("7", "10")
  original = graph(
    nodes + ATTEND,
    f"float[2,3,96] x, float[{past}] past_key, past_value",
    f"float[2,3,32] y, float[{present}] present_key, present_value",
  )
  assert attributes(drawn(original))["past_layout"] == layout


@parametrize("scatter", ["ScatterElements<axis=2>({}, places, {})", "ScatterND ({}, where, {})"])
def test_a_cache_of_fixed_length(scatter):
  """As transformers' StaticCache: new rows are written at a position, and a mask leaves out what is behind them."""
  nodes = (
    HEADS
    + SPLIT
    + """key = {k}  value = {v}  kt = Transpose<0,1,3,2>(key)  s = MatMul(q, kt)
      none = float {-30000}  nil = float {0}  m = Where(seen, nil, none)
      masked = Add(s, m)  p = Softmax<axis=-1>(masked)  o = MatMul(p, value)
      ot = Transpose<0,2,1,3>(o)  flat = {2,3,32}  y = Reshape(ot, flat)
      present_key = Identity(key)  present_value = Identity(value)"""
  )
  for name, past, x in (("{k}", "past_key", "k"), ("{v}", "past_value", "v")):
    nodes = nodes.replace(name, scatter.format(past, x))
  original = built(nodes, "float[2,3,96] x, bool[1,1,3,7] seen", present=PRESENT.replace("10", "7"))
  for name, values in (("places", np.full((2, 4, 3, 8), [[2], [3], [4]])), ("where", _places())):
    if name in scatter:
      add_weights(original, **{name: values.astype(np.int64)})
  optimized, _ = run_same(original, UPDATE_SLICE, *PASSES)
  (node,) = attentions(optimized)
  assert list(node.input[:3]) == ["x", "x", "x"]
  assert list(node.input[4:6]) == ["past_key", "past_value"]
  assert (attributes(node)["cache"], list(node.output)) == ("write", ["y", "key", "value"])


# As dynamo writes it: the rows in front, in the order of the cache's. A run tells `place`, the position of the one new
# row of each text.
WRITE = """past_{0}t = Transpose<2,0,1,3>(past_{0})  new_{0}t = Transpose<1,0,2,3>({1}1)
  {0}w = ScatterND(past_{0}t, rows, new_{0}t)  present_{0} = Transpose<1,2,0,3>({0}w)  """
STATIC = (
  HEADS.replace("{2,3,-1,8}", "{2,1,-1,8}")
  + SPLIT
  + "one = {1}  rows = Unsqueeze(place, one)  "
  + WRITE.format("key", "k")
  + WRITE.format("value", "v")
  + PLAIN.replace("{2,3,32}", "{2,1,32}")
)


def static(nodes):
  past, present = (f"float[2,4,7,8] {time}_key, {time}_value" for time in ("past", "present"))
  return graph(nodes, f"float[2,1,96] x, int64[1] place, {past}", f"float[2,1,32] y, {present}")


STATIC_PASSES = (UPDATE_SLICE, SCATTER_TRANSPOSE, DEAD_NODES)


def test_a_position_that_a_run_tells():
  optimized, _ = run_same(static(STATIC), *STATIC_PASSES, *PASSES)
  (node,) = attentions(optimized)
  assert (attributes(node)["cache"], list(node.input[:5])) == ("write", ["x", "x", "x", "past_key", "past_value"])
  assert "UpdateSlice" not in operators(optimized)


def masked(seen, added="nil, none"):
  """With the mask that `seen` makes of the keys' numbers and the position."""
  mask = f"""numbers = {{0,1,2,3,4,5,6}}  at = Unsqueeze(rows, one)  {seen}
    none = float {{-1e31}}  nil = float {{0}}  m = Where(seen, {added})  masked = Add(scaled, m)  """
  return static(STATIC.replace("p = Softmax<axis=-1>(scaled)", f"{mask} p = Softmax<axis=-1>(masked)"))


@parametrize("seen", ["LessOrEqual(numbers, at)", "GreaterOrEqual(at, numbers)", "Greater(numbers, at)", "not"])
def test_a_mask_of_what_follows_is_causal(seen):
  less = "less = Less(at, numbers)  seen = Not(less)"
  added = "none, nil" if seen.startswith("Greater(") else "nil, none"
  original = masked(less if seen == "not" else f"seen = {seen}", added)
  optimized, _ = run_same(original, *STATIC_PASSES, *PASSES)
  (node,) = attentions(optimized)
  assert (attributes(node)["causal"], len(node.input)) == ("lower_right", 6)


@parametrize("seen", [
  "seen = Less(numbers, at)", "seen = GreaterOrEqual(numbers, at)",
  "next = Add(at, one)  seen = LessOrEqual(numbers, next)",
  "others = {1,0,2,3,4,5,6}  seen = LessOrEqual(others, at)",
])  # fmt: skip
def test_another_mask_stays_one(seen):
  optimized, _ = run_same(masked(seen), *STATIC_PASSES, *PASSES)
  (node,) = attentions(optimized)
  assert ("causal" in attributes(node), attributes(node)["mask_dtype"]) == (False, "float")


SCATTERED = """present_key = TensorScatter{0}(past_key, k{1})  present_value = TensorScatter{0}(past_value, v{1})
  y = Attention<is_causal=1>(q, present_key, present_value, , , , lengths)"""


def tensor_scatter(nodes):
  past, present = (f"float[2,2,7,8] {time}_key, {time}_value" for time in ("past", "present"))
  heads = "float[2,4,2,8] q, float[2,2,2,8] k, v, int64[2] lengths, int64[2] places"
  return model(f"({heads}, {past}) => (float[2,4,2,8] y, {present}) {{ {nodes} }}", 24, ir=10)


@parametrize("given", [("", ""), ("<axis=2>", ", places"), ('<mode="linear">', ", places")])
def test_tensor_scatter(given):
  """ONNX's own form: each text has a position and a length of its own."""
  original = tensor_scatter(SCATTERED.format(*given))
  feed = {"lengths": np.array([7, 4]), "places": np.array([5, 2])}
  optimized, _ = run_pass(original, *FUSE, ATTENTION_CACHE, DEAD_NODES)
  assert_equal(original, optimized, feeds(original) | feed)
  (node,) = attentions(optimized)
  assert attributes(node)["cache"] == "write"
  assert list(node.input[4:6]) == ["past_key", "past_value"]


def test_a_ring_stays():
  assert_stays(tensor_scatter(SCATTERED.format('<mode="circular">', ", places")), "is none of two tensors along")


@parametrize(
  ("reason", "old", "new"),
  [
    ("are not written to their caches alike", "valuew = ScatterND(past_valuet, rows,",
     "other = Add(rows, one)  valuew = ScatterND(past_valuet, other,"),
    ("is made of what", "kt =", "m = ReduceMax(present_key)  qm = Mul(q, m)  kt ="),
  ],
)  # fmt: skip
def test_what_is_written_and_stays(reason, old, new):
  nodes = STATIC.replace(old, new)
  assert_stays(static(nodes.replace("MatMul(q,", "MatMul(qm,") if "qm" in new else nodes), reason, *STATIC_PASSES)


def _places():
  """Of rows 2 to 4 of each text and head."""
  return np.stack(np.meshgrid(range(2), range(4), range(2, 5), indexing="ij"), -1)


NEAR = HEADS + SPLIT + JOIN + PLAIN
MISSES = {
  "is not known to have a row for each query": NEAR.replace("(past_key, k)", "(k, past_key)").replace(
    "(past_value, v)", "(v, past_value)"
  ),
  "is no cache of its own": NEAR.replace(
    "present_value = Concat<axis=2>(past_value, v)", "pv = Concat<axis=2>(past_value, v)  present_value = Neg(pv)"
  ),
  "is none of two tensors along": NEAR.replace("(past_key, k)", "(past_key, ka, kb)").replace(
    "present_key =", "one = {1,2}  ka, kb = Split<axis=2>(k, one)  present_key ="
  ),
  "lie in different ways": NEAR.replace(
    "present_value = Concat<axis=2>(past_value, v)",
    """
      pvt = Transpose<0,2,1,3>(past_value)  vt = Transpose<0,2,1,3>(v)
      cvt = Concat<axis=1>(pvt, vt)  values = Transpose<0,2,1,3>(cvt)
      present_value = Identity(values)""",
  ).replace("(p, present_value)", "(p, values)"),
  "is made of what": NEAR.replace("MatMul(q, kt)", "MatMul(qm, kt)").replace(
    "kt =", "m = ReduceMax(present_key)  qm = Mul(q, m)  kt ="
  ),
}


@parametrize("reason", MISSES)
def test_what_stays(reason):
  assert_stays(built(MISSES[reason]), reason)


def test_a_concat_of_heads_is_no_cache():
  """Joined along another axis than the rows."""
  joined = JOIN.replace("axis=-2", "axis=1").replace("axis=2", "axis=1") + "q2 = Concat<axis=1>(q, q)  "
  nodes = HEADS + SPLIT + joined + PLAIN.replace("MatMul(q,", "MatMul(q2,").replace("{2,3,32}", "{2,3,64}")
  inputs = "float[2,3,96] x, float[2,4,3,8] past_key, past_value"
  original = graph(nodes, inputs, "float[2,3,64] y, float[2,8,3,8] present_key, present_value")
  assert_stays(original, "is none of two tensors along the sequence of 'b h s d'")


def test_keys_that_are_rotated_behind_the_cache():
  """The cache holds them as they were: the node would rotate the new ones alone, so neither pass takes them."""
  turned = TURN.format(x="q") + TURN.format(x="present_key").replace("cos", "cos_all").replace("sin", "sin_all")
  attend = PLAIN.replace("(q,", "(qr,").replace("(present_key)", "(present_keyr)")
  made = built(HEADS + NUMBERS + SPLIT + JOIN + turned + attend)
  for suffix, count in (("", 3), ("_all", 10)):
    angles = np.random.default_rng(3).uniform(-4, 4, (1, 1, count, 4))
    for name, function in (("cos", np.cos), ("sin", np.sin)):
      values = np.concatenate([function(angles)] * 2, -1).astype(np.float32)
      add_weights(made, **{name + suffix: values})
  fused = assert_stays(made, "is no cache of its own")
  stays(fused, ATTENTION_ROTARY, "there are not known to be as many keys as queries")
