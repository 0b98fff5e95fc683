from matmul_helpers import weighted
from pass_helpers import operators, parametrize, run_pass, same_outputs

from ortplugin.optimizer.pipeline import (
  CHANNEL_PRODUCTS,
  CHANNELS_LAST,
  CONV_EPILOGUE,
  MATMUL_EPILOGUE,
  MATMUL_TO_FUSED,
)

BEFORE = [MATMUL_TO_FUSED, MATMUL_EPILOGUE]
TO, BACK = "t = Transpose<0,2,1>(x)", "y = Transpose<0,2,1>({})"
ONE = f"{TO}  c = MatMul(t, w)  d = Add(c, b)  {BACK.format('d')}"
MLP = f"{TO}  c = MatMul(t, w)  d = Add(c, b)  e = Relu(d)  f = MatMul(e, v)  {BACK.format('f')}"
HEADS = """t = Transpose<0,2,3,1>(x)  c = MatMul(t, w)  d = Add(c, b)
  y = Transpose<0,3,1,2>(d)"""
SHAPES = {"w": (20, 36), "b": (36,), "v": (36, 18)}
FEW = {"w": (6, 5), "b": (5,)}


def graph(nodes, x="2,20,24", y="2,36,24", shapes=SHAPES, half=True):
  used = {name: shape for name, shape in shapes.items() if f", {name})" in nodes}
  return weighted(f"(f[{x}] x) => (f[{y}] y) {{ {nodes} }}", used, half=half)


CASES = {
  "one": (graph(ONE), ["FusedConv"]),
  "two": (graph(MLP, y="2,18,24"), ["FusedConv", "FusedConv"]),
  "heads": (graph(HEADS, "2,6,3,7", "2,5,3,7", FEW), ["FusedConv"]),
  "an open batch": (graph(ONE, "N,20,24", "N,36,24"), ["FusedConv"]),
}


@parametrize("case", CASES)
def test_channel_products(case):
  original, wanted = CASES[case]
  optimized, _ = run_pass(original, *BEFORE, CHANNEL_PRODUCTS, into=wanted)
  same_outputs(original, optimized)
  assert operators(run_pass(optimized, CHANNELS_LAST)[0]) == wanted  # which has an engine as it is


def test_what_is_pointwise_behind_it_joins():
  original = graph(ONE.replace("y = ", "e = ") + "  y = Add(e, e)")
  optimized, _ = run_pass(original, *BEFORE, CHANNEL_PRODUCTS, CONV_EPILOGUE, into="FusedConv")
  same_outputs(original, optimized)


def test_a_transpose_that_others_read_stays():
  original = graph(ONE.replace("y = ", "e = ") + "  s = ReduceSum(t)  y = Add(e, s)")
  optimized, _ = run_pass(original, *BEFORE, CHANNEL_PRODUCTS, into="Transpose FusedConv ReduceSum Add")
  same_outputs(original, optimized)


STAY = {
  "an odd number of pixels": (graph(ONE, "2,20,25", "2,36,25"), "no engine"),
  "odd channels": (graph(ONE, "2,21,24", shapes={"w": (21, 36), "b": (36,)}), "no engine"),
  "many channels": (graph(ONE, "2,514,24", shapes={"w": (514, 36), "b": (36,)}), "no engine"),
  "an operand of each row": (graph(ONE, shapes={"w": (20, 36), "b": (24, 36)}), "is not one number"),
  "another order": (graph(HEADS.replace("<0,3,1,2>", "<0,3,2,1>"), "2,6,3,8", "2,5,8,3", FEW), ""),
  "a product that others read": (
    graph(MLP.replace("y = ", "u = ") + "  s = ReduceSum(e)  y = Add(u, s)", y="2,18,24"),
    "ReduceSum",
  ),
}


@parametrize("case", STAY)
def test_near_misses(case):
  original, reason = STAY[case]
  before, _ = run_pass(original, *BEFORE)
  _, result = run_pass(before, CHANNEL_PRODUCTS, into=operators(before))
  assert [reason in each.reason for each in result.near_misses] == ([True] if reason else [])
