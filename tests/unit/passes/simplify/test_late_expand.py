import numpy as np
from pass_helpers import add_weights, model, parametrize, run_same, stays

from ortplugin.optimizer.pipeline import LATE_EXPAND


def graph(nodes, inputs, shape=(2, 1, 3, 4), y="float[2,5,3,4] y"):
  original = model(f"({inputs}) => ({y}) {{ {nodes} }}", contrib="microsoft" in nodes)
  add_weights(original, s=np.asarray(shape, np.int64))
  return original


M, Y = "float[2,1,1,4] m", "float[2,1,3,4] y"
MASK = "bool[2,1,1,4] m"
WHERE = "zero = float {0.0}  low = float {-65504.0}  e = Expand(m, s)"
VIEW = "to = {10, -1} "

CASES = {
  "away": (graph("e = Expand(m, s)  y = Add(x, e)", "float[2,5,3,4] x, float[2,1,1,4] m"), "Add"),
  "away, of named lengths": (
      graph("e = Expand(m, s)  y = Add(x, e)", "float[N,M,3,4] x, float[N,1,1,4] m", (1, 1, 3, 1),
            "float[N,M,3,4] y"), "Add"),
  "behind": (graph(f"{WHERE}  y = Where(e, zero, low)", MASK, y=Y), "Where Expand"),
  "behind, and then away": (graph(f"{WHERE}  w = Where(e, zero, low)  y = Add(w, x)", f"{MASK}, float[2,5,3,4] x"),
                            "Where Add"),
  "through bfloat16": (graph("e = Expand(m, s)  b = Cast<to=16>(e)  y = Cast<to=1>(b)", M,
                             y=Y), "Cast Cast Expand"),
  "two of one": (graph("e = Expand(m, s)  y = Mul(e, e)", M, y=Y),
                 "Mul Expand"),
  "two that make the shape together": (
      graph("e = Expand(a, s)  f = Expand(b, s)  y = Add(e, f)", "float[2,1,3,1] a, float[4] b",
            y=Y), "Add"),
  "one that others read": (
      graph("e = Expand(m, s)  y = Add(x, e)  z = Softmax(e)", "float[2,5,3,4] x, float[2,1,1,4] m",
            y="float[2,5,3,4] y, float[2,1,3,4] z"), "Expand Add Softmax"),
  "behind a Transpose": (
      graph("e = Expand(m, s)  t = Transpose<2,0,3,1>(e)  y = Softmax(t)", "float[3,1] m",
            y="float[3,2,4,1] y"), "Unsqueeze Transpose Expand Softmax"),
  "behind Transposes, and then away": (  # positions of BoTNet's scores
      graph("""e = Expand(a, s)  t = Transpose<0,3,1,2>(e)  f = Expand(b, s)
            u = Transpose<0,3,1,2>(f)  y = Add(t, u)""", "float[2,5,1,4] a, float[2,1,3,4] b", (2, 5, 3, 4),
            y="float[2,4,5,3] y"), "Transpose Transpose Add"),
  "behind a view that both have, and then away": (
      graph(f"{VIEW} e = Expand(a, s)  v = Reshape(e, to)  f = Expand(b, s)  w = Reshape(f, to)  y = Add(v, w)",
            "float[2,5,1,4] a, float[2,5,3,1] b", (2, 5, 3, 4), y="float[10,12] y"), "Add Reshape"),
  "behind a view beside what is no Expand, and a number": (
      graph("""one = {1}  half = float {0.5}  e = Expand(m, s)
            v = Unsqueeze(e, one)  w = Unsqueeze(x, one)  y = Max(half, v, w)""", "float[4] m, float[2,5,3,4] x",
            (2, 5, 3, 4), y="float[2,1,5,3,4] y"), "Max Unsqueeze"),
  "behind a view that others read": (
      graph(f"{VIEW} e = Expand(a, s)  v = Reshape(e, to)  w = Reshape(x, to)  y = Mul(v, w)  z = Softmax(w)",
            "float[4] a, float[2,5,3,4] x", (2, 5, 3, 4), y="float[10,12] y, z"),
      "Reshape Mul Reshape Softmax"),
}  # fmt: skip


@parametrize("case", CASES)
def test_smaller(case):
  original, left = CASES[case]
  run_same(original, LATE_EXPAND, into=left)


STAY = {
  "a Cast to bfloat16, which ONNX Runtime does not expand on the CPU": graph(
    "e = Expand(m, s)  b = Cast<to=16>(e)  t = Transpose(b)  y = Cast<to=1>(t)",
    M,
    y="float[4,3,1,2] y",
  ),
  "a mask of Dropout, which nothing else expands": graph(
    "e = Expand(m, s)  y, k = Dropout(e)", M, y="float[2,1,3,4] y, bool[2,1,3,4] k"
  ),
  "data of PRelu, to which its slope broadcasts": graph(
    "e = Expand(m, s)  y = PRelu(e, x)", "float[2,1,1,4] m, float[2,1,3,4] x", y=Y
  ),
  "data of CastLike, whose other operand has no part in the shape": graph(
    "e = Expand(m, s)  y = CastLike(e, x)", "float[2,1,1,4] m, float[2,1,3,4] x", y=Y
  ),
  "data of BiasGelu, whose bias does not broadcast": graph(
    "e = Expand(m, s)  y = com.microsoft.BiasGelu(e, x)", "float[1] m, float[4] x", (4,), "float[4] y"
  ),
  "for what is not pointwise": graph("e = Expand(m, s)  y = Softmax(e)", M, y=Y),
  "what others read": graph("e = Expand(m, s)  y = Neg(e)  z = Softmax(e)", M, y="float[2,1,3,4] y, z"),
  "an output": graph("e = Expand(m, s)  y = Neg(e)", M, y="float[2,1,3,4] y, e"),
  "a view of an Expand beside what has none": graph(
    f"{VIEW} e = Expand(a, s)  v = Reshape(e, to)  y = Add(v, b)",
    "float[2,5,1,4] a, float[10,1] b",
    (2, 5, 3, 4),
    y="float[10,12] y",
  ),
  "views of two shapes": graph(
    f"{VIEW} e = Expand(a, s)  v = Reshape(e, to)  w = Reshape(b, to)  y = Add(v, w)",
    "float[2,5,1,4] a, float[5,2,3,4] b",
    (2, 5, 3, 4),
    y="float[10,12] y",
  ),
  "views without an Expand": graph(
    f"{VIEW} v = Reshape(a, to)  w = Reshape(b, to)  y = Add(v, w)", "float[2,5,3,4] a, b", y="float[10,12] y"
  ),
  "before a Transpose, what others read": graph(
    "e = Expand(m, s)  y = Transpose(e)  z = Softmax(e)", M, y="float[4,3,1,2] y, float[2,1,3,4] z"
  ),
  "before a Transpose, lengths that are not known": model("""(float[N,1] m, int64[2] s) => (float[A,B] y) {
      e = Expand(m, s)  y = Transpose(e) }"""),
  "lengths that are not known": model("""(float[N,1] m, int64[2] s) => (float[A,B] y) {
      e = Expand(m, s)  y = Neg(e) }"""),
}


@parametrize("what", STAY)
def test_stays(what):
  stays(STAY[what], LATE_EXPAND)
