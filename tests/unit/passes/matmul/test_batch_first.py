from matmul_helpers import weighted
from pass_helpers import nodes_of, operators, parametrize, run_pass, same_outputs, stays

from ortplugin.optimizer.pipeline import (
  BATCH_FIRST,
  DEAD_NODES,
  FUSE_ATTENTION,
  MATMUL_EPILOGUE,
  MATMUL_TO_FUSED,
  MATMUL_VIEWS,
)

BEFORE = [FUSE_ATTENTION, DEAD_NODES, MATMUL_TO_FUSED, MATMUL_VIEWS, MATMUL_EPILOGUE]
HEADS = """sh = {5,6,8}  hd = {2,3,5,8}
  rq = Reshape(q, sh)  tq = Transpose<1,0,2>(rq)  hq = Reshape(tq, hd)
  rk = Reshape(k, sh)  tk = Transpose<1,0,2>(rk)  hk = Reshape(tk, hd)
  rv = Reshape(v, sh)  tv = Transpose<1,0,2>(rv)  hv = Reshape(tv, hd)
  kt = Transpose<0,1,3,2>(hk)  scores = MatMul(hq, kt)  p = Softmax(scores)  o = MatMul(p, hv)
  to = Transpose<2,0,1,3>(o)"""
FIRST = "t = Transpose<1,0,2>(x)"
PACKED = f"""{FIRST}  m = MatMul(t, w)  a = Add(m, b)  eights = {{24,24,24}}
  q, k, v = Split<axis=-1>(a, eights)  {HEADS}"""
APART = f"""{FIRST}  q = MatMul(t, wq)  k = MatMul(t, wk)  v = MatMul(t, wv)  {HEADS}"""
FLAT = "rows = {10,24}  r = Reshape(to, rows)  n = MatMul(r, wo)  c = Add(n, bo)"
BACK = """sbc = {5,2,24}  d = Reshape(c, sbc)  e = Transpose<1,0,2>(d)"""
RANK3 = """sbc = {5,2,24}  r = Reshape(to, sbc)  n = MatMul(r, wo)  c = Add(n, bo)
  e = Transpose<1,0,2>(c)"""
SHAPES = {
  "w": (24, 72),
  "b": (72,),
  "wq": (24, 24),
  "wk": (24, 24),
  "wv": (24, 24),
  "wo": (24, 24),
  "bo": (24,),
  "u": (5, 2, 24),
}


def graph(nodes, more=""):
  text = f"(f[2,5,24] x) => (f[2,5,24] y{more}) {{ {nodes}  y = Softmax(e) }}"
  used = {name: shape for name, shape in SHAPES.items() if f", {name})" in text}
  return weighted(text, used, opset=18)


def layouts(optimized):
  (node,) = nodes_of(optimized, "FusedAttention")
  given = {each.name: each.s.decode() for each in node.attribute if each.name.endswith("layout")}
  return [given[f"{name}_layout"] for name in "qkvy"]


CASES = {
  "packed": (f"{PACKED}  {FLAT}  {BACK}", "b s (0/3 h d)"),
  "packed, of three axes": (f"{PACKED}  {RANK3}", "b s (0/3 h d)"),
  "three products": (f"{APART}  {FLAT}  {BACK}", "b s (h d)"),
}


@parametrize("case", CASES)
def test_batch_first(case):
  nodes, layout = CASES[case]
  original = graph(nodes)
  before, _ = run_pass(original, *BEFORE)
  assert layouts(before)[0].startswith("s b")
  assert operators(before).count("Transpose") == 2
  optimized, _ = run_pass(before, BATCH_FIRST)
  assert "Transpose" not in operators(optimized)
  assert "Reshape" not in operators(optimized)
  assert (layouts(optimized)[0], layouts(optimized)[3]) == (layout, "b s (h d)")
  same_outputs(original, optimized)


def test_a_residual_sum_joins_then():
  original = graph(f"{PACKED}  {FLAT}  {BACK}".replace("e = Tr", "f = Tr") + "  e = Add(x, f)")
  optimized, _ = run_pass(
    run_pass(original, *BEFORE, BATCH_FIRST)[0],
    MATMUL_EPILOGUE,
    into="FusedMatMul FusedAttention FusedMatMul Softmax",
  )
  same_outputs(original, optimized)


STAY = {
  "a product that others read": (graph(f"{PACKED}  {FLAT}  {BACK}", ", f[5,2,72] a"), 1),
  "an operand for each position": (graph(f"{PACKED}  {FLAT}  {BACK}".replace("Add(m, b)", "Add(m, z)").replace(
      "m = MatMul", "z = Concat<axis=-1>(t, t, t)  m = MatMul")), 1),
  "an output of attention's product": (graph(f"{PACKED}  {FLAT}  {BACK}", ", f[10,24] c"), 1),
  "another order of the rows": (graph(f"{PACKED}  {FLAT}  {BACK}".replace("{5,2,24}", "{2,5,24}").replace(
      "e = Transpose<1,0,2>(d)", "h = Transpose<1,0,2>(d)  s = {2,5,24}  e = Reshape(h, s)")), 1),
}  # fmt: skip


@parametrize("what", STAY)
def test_one_side_stays(what):
  original, left = STAY[what]
  before, _ = run_pass(original, *BEFORE)
  optimized, _ = run_pass(before, BATCH_FIRST)
  assert operators(optimized).count("Transpose") == left
  same_outputs(original, optimized)


def test_channels_that_move_stay():
  """Before the product the last axis moves: its rows are others."""
  nodes = APART.replace(
    "t = Transpose<1,0,2>(x)",
    "i = {5,24,2}  j = Reshape(x, i)  t = Transpose<0,2,1>(j)",
  )
  before, _ = run_pass(graph(f"{nodes}  {FLAT}  l = {{2,5,24}}  e = Reshape(c, l)"), *BEFORE)
  stays(before, BATCH_FIRST)
