import numpy as np
import pytest
from attention_helpers import attentions, graph, in_float  # noqa: F401, a fixture
from onnx import numpy_helper
from pass_helpers import add_weights, parametrize, run_pass, run_same, stays

from ortplugin.optimizer.pipeline import ATTENTION_ROTARY, DEAD_NODES, FUSE_ATTENTION, ROTATED_ROWS

pytestmark = pytest.mark.usefixtures("in_float")

# Of {x} [2, 4, 5, 8] the rows from 2 on are rotated: {y}_r.
FRONT = "{y}_f = Slice({x}, zero, two, two)  {y}_r = Slice({x}, two, end, two)  "
NEIGHBOURS = """{y}_lo = Slice({y}_r, zero, end, last, two)  {y}_hi = Slice({y}_r, one, end, last, two)
  {y}_n = Neg({y}_hi)  {y}_u = Unsqueeze({y}_n, last)  {y}_v = Unsqueeze({y}_lo, last)
  {y}_w = Concat<axis=-1>({y}_u, {y}_v)  {y}_c = Reshape({y}_w, whole)  """
HALVES = """{y}_lo = Slice({y}_r, zero, four, last)  {y}_hi = Slice({y}_r, four, end, last)
  {y}_n = Neg({y}_hi)  {y}_c = Concat<axis=-1>({y}_n, {y}_lo)  """
FULL = "{y}_a = Mul({y}_r, cos)  {y}_b = Mul(sin, {y}_c)  {y}_s = Add({y}_a, {y}_b)  "
APART = """{y}_lo = Slice({y}_r, zero, four, last)  {y}_hi = Slice({y}_r, four, end, last)
  {y}_1 = Mul({y}_lo, cos)  {y}_2 = Mul({y}_hi, sin)  {y}_3 = Sub({y}_1, {y}_2)  {y}_4 = Mul({y}_hi, cos)
  {y}_5 = Mul({y}_lo, sin)  {y}_6 = Add({y}_4, {y}_5)  {y}_s = Concat<axis=-1>({y}_3, {y}_6)  """
JOINED = "{y} = Concat<axis=2>({y}_f, {y}_s)  "


def built(rotated=NEIGHBOURS + FULL, front=FRONT, joined=JOINED):
  nodes = front + rotated + joined
  q, k = (nodes.replace("{x}", x).replace("{y}", y) for x, y in (("q", "rq"), ("k", "rk")))
  original = graph(
    f"""zero = {{0}} one = {{1}} two = {{2}} four = {{4}} end = {{9223372036854775807}} last = {{-1}}
    back = {{-9}} whole = {{2,4,3,8}} flat = {{2,5,32}} {q} {k} t = Transpose<0,1,3,2>(rk)
    s = MatMul(rq, t)  p = Softmax(s)  o = MatMul(p, v)  b = Transpose<0,2,1,3>(o)  y = Reshape(b, flat)""",
    "float[2,4,5,8] q, k, v",
  )
  angles = np.random.default_rng(3).uniform(-4, 4, (3, 4))
  if rotated != APART:
    angles = np.repeat(angles, 2, -1) if NEIGHBOURS in rotated else np.concatenate([angles, angles], -1)
  add_weights(original, cos=np.cos(angles).astype(np.float32), sin=np.sin(angles).astype(np.float32))
  return original


@parametrize("rotated, kind", [
  (NEIGHBOURS + FULL, b"interleaved"), (HALVES + FULL, b"half"), (APART, b"half"),
])  # fmt: skip
def test_becomes_part_of_the_attention(rotated, kind):
  passes = (FUSE_ATTENTION, ROTATED_ROWS, ATTENTION_ROTARY, DEAD_NODES)
  optimized, _ = run_same(built(rotated), *passes, into="FusedAttention")
  (node,) = attentions(optimized)
  assert {each.name: each.s for each in node.attribute}["rotary"] == kind
  tables = [numpy_helper.to_array(each) for each in optimized.graph.initializer if each.name in node.input]
  assert [each.shape for each in tables] == [(5, 4), (5, 4)]
  assert [each[:2].tolist() for each in tables] == [[[1] * 4] * 2, [[0] * 4] * 2]


def test_without_attention_it_stays():
  stays(built(), ROTATED_ROWS)


@parametrize("original, reason", [
  (built(front=FRONT.replace("{y}_f = Slice({x}", "{y}_g = Neg({x})  {y}_f = Slice({y}_g")), "is not the rest of"),
  (built(NEIGHBOURS.replace("{y}_r", "{y}_q") + FULL.replace("{y}_r", "{y}_q"),
         FRONT + "{y}_q = Slice({y}_r, last, back, two, last)  "), "is not the rest of"),
  (built(front=FRONT.replace("zero, two, two", "one, two, two"),
         joined="{y}_j = Concat<axis=2>({y}_f, {y}_f)  " + JOINED.replace("{y}_f", "{y}_j")), "is not the rest of"),
  (built(joined=JOINED.replace("{y}_f, {y}_s", "{y}_s, {y}_f")), ""),
])  # fmt: skip
def test_what_is_not_all_rows_stays(original, reason):
  _, result = run_pass(original, FUSE_ATTENTION, ROTATED_ROWS)
  assert not [change for change in result.changes if change.rewrite == ROTATED_ROWS.name]
  assert not reason or any(reason in miss.reason for miss in result.near_misses)
