import numpy as np
from pass_helpers import add_weights, model, nodes_of, operators, parametrize, reasons, run_pass, run_same

from ortplugin.optimizer.pipeline import FUSE_LAYER_NORM, NORM_EPILOGUE, NORM_ORDER, NORM_PROLOGUE, ROW_ORDER

FUSE = FUSE_LAYER_NORM, NORM_EPILOGUE, ROW_ORDER, NORM_PROLOGUE
NORM = "y = LayerNormalization(s, g)"
AFTER = "n = LayerNormalization(x, g)"
NUMBERS = {
  "order": [5, 0, 2, 2, -1, 3],
  "flat": [2, 6, 8],
  "image": [2, 3, 2, 8],
  "split": [2, 3, 2, 1, 1, 8],
  "merged": [2, 3, 16],
  "back": [0, 3, 2, 8],
  "two": [0, 1],
}
X = "float[2,3,2,8] x"
ROWS = "float[2,6,8] x"


def graph(nodes, inputs, made, width=8):
  original = model(f"({inputs}, float[{width}] g) => (float[{made}] y) {{ {nodes} }}")
  for name, number in NUMBERS.items():
    if any(name in node.input for node in original.graph.node):
      add_weights(original, **{name: np.int64(number)})
  return original


CASES = {  # nodes, inputs, shape of y, what it becomes, which operands are in order
  "behind, between views": (
      f"{AFTER}  a = Reshape(n, flat)  b = Gather<axis=1>(a, order)  y = Reshape(b, image)", X, "2,3,2,8",
      ["Reshape", "Reshape"], [0]),
  "behind, a sum": (
      "s = Add(x, r)  t = Mul(s, c)  n = LayerNormalization(t, g)  y = Gather<axis=1>(n, order)",
      f"{ROWS}, float[2,6,1] r, float[1,1,8] c", "2,6,8", [], [0, 1]),
  "a residual": (
      f"a = Reshape(r, flat)  b = Gather<axis=1>(a, order)  c = Reshape(b, image)  s = Add(x, c)  {NORM}",
      f"{X}, float[4,3,8] r", "2,3,2,8", ["Reshape"], [1]),
  "two in one order": (
      f"a = Gather<axis=1>(x, order)  b = Gather<axis=1>(r, order)  s = Add(a, b)  {NORM}",
      f"{ROWS}, {ROWS.replace('x', 'r')}", "2,6,8", [], [0, 1]),
  "windows": (
      f"{AFTER}  a = Reshape(n, split)  y = Transpose<0,2,1,3,4,5>(a)", X, "2,2,3,1,1,8",
      ["Reshape"], [0]),
  "patches": (
      f"a = Reshape(x, flat)  b = Gather<axis=1>(a, order)  s = Reshape(b, merged)  {NORM}", X, "2,3,16",
      ["Reshape"], [0]),
  "any number of images": (
      f"b = Gather<axis=1>(r, order)  c = Reshape(b, back)  s = Add(x, c)  {NORM}",
      "float[N,3,2,8] x, float[N,6,8] r", "N,3,2,8", [], [1]),
}  # fmt: skip


@parametrize("case", CASES)
def test_a_norm_reads_in_order(case):
  nodes, inputs, made, others, ordered = CASES[case]
  original = graph(nodes, inputs, made, 16 if case == "patches" else 8)
  optimized, _ = run_same(original, *FUSE, NORM_ORDER, **({"N": 3} if "N" in made else {}))
  assert sorted(operators(optimized)) == sorted([*others, "FusedLayerNorm"])
  norm = nodes_of(optimized, "FusedLayerNorm")[0]
  assert next(list(each.ints) for each in norm.attribute if each.name == "ordered") == ordered
  assert run_pass(optimized, *FUSE, NORM_ORDER)[1].changes == ()


STAY = {
  "another axis": (f"{AFTER}  y = Gather<axis=2>(n, order)", ROWS, "2,6,6", ""),
  "images": (f"{AFTER}  y = Gather<axis=0>(n, two)", ROWS, "2,6,8", ""),
  "two readers": (f"{AFTER}  a = Gather<axis=1>(n, order)  y = Add(n, a)", ROWS, "2,6,8", "'n' is also used by"),
  "an order that is none of the model's": (f"{AFTER}  y = Gather<axis=1>(n, i)", f"{ROWS}, int64[6] i", "2,6,8", ""),
  "an operand of each image": (
    "s = Add(x, r)  n = LayerNormalization(s, g)  y = Gather<axis=1>(n, order)",
    f"{ROWS}, float[2,1,8] r",
    "2,6,8",
    "'r' of shape [2, 1, 8] is neither of each row nor of all",
  ),
  "a norm over the rows too": (
    "n = LayerNormalization<axis=1>(x, h)  y = Gather<axis=1>(n, order)",
    f"{ROWS}, float[6,8] h",
    "2,6,8",
    "",
  ),
}


@parametrize("case", STAY)
def test_stays(case):
  nodes, inputs, made, reason = STAY[case]
  fused, _ = run_pass(graph(nodes, inputs, made), *FUSE)
  _, result = run_pass(fused, NORM_ORDER, changes=0)
  assert any(reason in each for each in [*reasons(result), ""])


def test_one_order_for_each_norm():
  """Of nine rows the last is another one than of six."""
  nodes = f"a = Gather<axis=1>(x, order)  b = Gather<axis=1>(r, order)  s = Add(a, b)  {NORM}"
  original = graph(nodes, f"{ROWS}, float[2,9,8] r", "2,6,8")
  _, result = run_same(original, *FUSE, NORM_ORDER, into="Gather FusedLayerNorm")
  assert any("reads other rows in another order" in each for each in reasons(result))
