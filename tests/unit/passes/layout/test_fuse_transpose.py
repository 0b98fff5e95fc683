from pass_helpers import all_attributes, model, nodes_of, parametrize, run_pass, run_same, stays

from ortplugin.ops.transpose import TO_THE_END as TO
from ortplugin.optimizer.pipeline import FUSE_TRANSPOSE

CONSTANTS = """int64[1] c0 = {0}, int64[1] c1 = {1}, int64[1] c2 = {2}, int64[1] c3 = {3}, int64[1] last = {-1},
  int64[1] end = {9223372036854775807}, int64 i0 = {0}, int64 i1 = {1}, int64 i2 = {-1}, int64[2] halves = {2, 4},
  int64[4] merged = {3, 10, 4, 6}, int64[1] step = {2}, float[4] zero = {0, 0, 0, 0}"""
QKV = "t = Transpose<2,0,3,1,4>(x)"


def graph(nodes, inputs, outputs, dtype="float16"):
  typed = ", ".join(f"{dtype}{each}" for each in inputs.split("; "))
  return f"({typed}) => ({', '.join(f'{dtype}{each}' for each in outputs.split('; '))}) <{CONSTANTS}> {{ {nodes} }}"


def windows(optimized):
  """perm, starts and ends of each FusedTranspose; without a window the perm alone."""
  found = []
  for node in nodes_of(optimized, "FusedTranspose"):
    given = all_attributes(node)
    found.append((given["perm"], given["starts"], given["ends"]) if "starts" in given else given["perm"])
  return found


def check(text, into, *wanted, changes=1, **lengths):
  """The operators and the windows after the pass; outputs are the same."""
  optimized, result = run_same(text, FUSE_TRANSPOSE, into=into, changes=changes, **lengths)
  assert windows(optimized) == list(wanted)
  return result


@parametrize("dtype", ["float16", "float", "int64", "uint8"])
@parametrize(
  "dims, perm", [("N,4,5,6", [0, 3, 1, 2]), ("N,4,5,6", [0, 2, 1, 3]), ("N,M", [1, 0]), ("N,4,1,6", [2, 3, 0, 1])]
)
def test_one(dims, perm, dtype):
  out = ",".join("ABCD"[: len(perm)])
  text = graph(f"y = Transpose<perm={perm}>(x)", f"[{dims}] x", f"[{out}] y", dtype)
  check(text, "FusedTranspose", perm)


def test_without_a_perm_axes_are_reversed():
  check(graph("y = Transpose(x)", "[N,4,5] x", "[5,4,N] y"), None, [2, 1, 0])


PARTS = {
  "Gather": (["q = Gather(t, i0)", "k = Gather(t, i1)", "v = Gather(t, i2)"], "[N,4,5,6]", ["Squeeze"]),
  "Slice": (["q = Slice(t, c0, c1, c0)", "k = Slice(t, c1, c2, c0)", "v = Slice(t, last, end, c0)"], "[1,N,4,5,6]", []),
  "Split": (["q, k, v = Split<axis=0>(t)"], "[1,N,4,5,6]", []),
}


@parametrize("opset", [11, 17])
@parametrize("name", PARTS)
def test_parts_behind_it(name, opset):
  nodes, shape, view = PARTS[name]
  text = graph(f"{QKV} {' '.join(nodes)}", "[N,5,3,4,6] x", "; ".join(f"{shape} {each}" for each in "qkv"))
  bounds = [(0, 1), (1, 2), (-1, TO) if name == "Slice" else (2, 3)]
  wanted = (([2, 0, 3, 1, 4], [0, 0, start, 0, 0], [TO, TO, end, TO, TO]) for start, end in bounds)
  assert check(model(text, opset), ["FusedTranspose", *view] * 3, *wanted).near_misses == ()


def test_parts_behind_a_reshape_that_keeps_their_axis():
  nodes = f"{QKV} r = Reshape(t, merged) a = Slice(r, c0, c1, c0) q = Squeeze(a, c0) k = Gather(r, i1)"
  text = graph(nodes, "[2,4,3,5,6] x", "[10,4,6] q; [10,4,6] k")
  into = "FusedTranspose Reshape Squeeze FusedTranspose Reshape"
  optimized, _ = run_same(text, FUSE_TRANSPOSE, into=into, changes=1)
  assert [starts for _, starts, _ in windows(optimized)] == [[0, 0, 0, 0, 0], [0, 0, 1, 0, 0]]


@parametrize(
  "nodes, out, perm, starts, view",
  [
    ("a = Slice(x, c1, end, c1) y = Transpose<0,2,1,3>(a)", "[N,6,L,4]", [0, 2, 1, 3], [0, 1, 0, 0], []),
    ("a = Slice(x, c2, last) y = Transpose<3,0,1,2>(a)", "[4,L,5,6]", [3, 0, 1, 2], [2, 0, 0, 0], []),
    (
      "a = Gather<axis=1>(x, i1) y = Transpose<0,2,1>(a)",
      "[N,4,6]", [1, 0, 3, 2], [0, 1, 0, 0], ["Squeeze"],
    ),
  ],
)  # fmt: skip
def test_a_part_before_it(nodes, out, perm, starts, view):
  text = graph(nodes, "[N,5,6,4] x", f"{out} y")
  optimized, _ = run_same(text, FUSE_TRANSPOSE, into=["FusedTranspose", *view], N=7, changes=1)
  assert [each[:2] for each in windows(optimized)] == [(perm, starts)]


def test_a_split_before_them():
  nodes = """a, b = Split<axis=2>(x, halves) y = Transpose<0,2,1>(a) t = Transpose<2,0,1>(b)
    z = Gather<axis=1>(t, i0)"""
  text = graph(nodes, "[2,5,6] x", "[2,2,5] y; [4,5] z")
  wanted = ([0, 2, 1], [0, 0, 0], [TO, TO, 2]), ([2, 0, 1], [0, 0, 2], [1, TO, 6])
  check(text, "FusedTranspose FusedTranspose Squeeze", *wanted, changes=2)


def test_two_windows_of_one_axis_are_not_put_together():
  text = graph("a = Slice(x, c1, end, c1) t = Transpose<1,0,2>(a) y = Slice(t, c1, c3, c0)", "[N,5,6] x", "[2,N,6] y")
  check(text, "Slice FusedTranspose", ([1, 0, 2], [0, 1, 0], [TO, 3, TO]), N=2)


@parametrize(
  "nodes, outputs",
  [
    ("a = Slice(t, c0, c2, c0) b = Slice(t, c1, c3, c0)", "[2,N,4,5,6] a; [2,N,4,5,6] b"),  # an element twice
    ("a = Slice(t, c0, end, c0, step)", "[2,N,4,5,6] a"),
    ("a = Gather(t, c1)", "[1,N,4,5,6] a"),
    ("a = Slice(t, c0, c1, c0) b = Relu(t)", "[1,N,4,5,6] a; [3,N,4,5,6] b"),
    ("a = Slice(t, c0, c1, c0) b = Slice(t, c1, c2, c2)", "[1,N,4,5,6] a; [3,N,1,5,6] b"),
    ("a = Gather(t, i0)", "[N,4,5,6] a; [3,N,4,5,6] t"),
    ("r = Reshape(t, merged) a = Gather<axis=1>(r, i0)", "[3,4,6] a"),  # of an axis that the Reshape merged
  ],
)
def test_what_else_reads_it_reads_all(nodes, outputs):
  text = graph(f"{QKV} {nodes}", "[2,5,3,4,6] x" if "Reshape" not in nodes else "[2,4,3,5,6] x", outputs)
  optimized, _ = run_same(text, FUSE_TRANSPOSE, changes=1)
  assert windows(optimized) == [[2, 0, 3, 1, 4]]
  assert len(optimized.graph.node) == nodes.count(" = ") + 1


@parametrize(
  "nodes, inputs, outputs",
  [
    ("y = Transpose<0,3,1,2>(x)", "[N,1,1,7] x", "[N,7,1,1] y"),  # a view
    ("y = Transpose<0,1>(x)", "[N,M] x", "[N,M] y"),
    ("t = Transpose<0,2,1>(b) y = MatMul(x, t)", "[2,5,6] x; [2,4,6] b", "[2,5,4] y"),
    ("t = Transpose<0,3,1,2>(x) a = Pad(t, w) y = Transpose<0,2,3,1>(a)", "[2,3,4,5] x", "[2,3,4,5] y"),
  ],
)
def test_what_stays(nodes, inputs, outputs):
  text = graph(nodes, inputs, outputs, "float").replace("int64[1] c0", "int64[8] w = {0,0,0,0,0,0,0,0}, int64[1] c0")
  stays(text, FUSE_TRANSPOSE)


def test_a_product_of_more_than_the_last_two_axes_reads_a_copy():
  text = graph("t = Transpose<0,2,1,3>(b) y = MatMul(x, t)", "[2,3,4,5] x; [2,5,3,6] b", "[2,3,4,6] y")
  run_pass(text, FUSE_TRANSPOSE, into="FusedTranspose MatMul", changes=1)


def test_arithmetic_on_shapes_and_constants_stays():
  shapes = """(float[N,M,4] x) => (float[A,B,C] y) <int64[2,2] s = {0,0,-1,0}, int64[3] at = {0,1,2}> {
    n = Shape(x) g = Gather(n, s) t = Transpose(g) f = Flatten<axis=0>(t) q = Squeeze(f)
    d = Gather(q, at) y = Reshape(x, d) }"""
  stays(shapes, FUSE_TRANSPOSE)
  weights = """(float[3,4,2] x) => (y) <float[2,1,3] w = {1,2,3,4,5,6}> {
    n = Neg(w) t = Transpose(n) y = Add(x, t) }"""
  stays(weights, FUSE_TRANSPOSE)


def test_near_misses():
  text = "(float[6] x, int64[K] s) => (float[A,B] y) { r = Reshape(x, s) y = Transpose<1,0>(r) }"
  stays(text, FUSE_TRANSPOSE, "the rank of 'r' is unknown")


def test_an_old_opset():
  text = "(float[N,M] x) => (float[M,N] y) { y = Transpose(x) }"
  stays(model(text, 9), FUSE_TRANSPOSE, "the model has opset 9")
