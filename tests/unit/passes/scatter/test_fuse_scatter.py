import re

import numpy as np
import onnx
from pass_helpers import (
  add_weights,
  all_attributes,
  annotated,
  assert_same_values,
  model,
  operators,
  parametrize,
  random_feeds,
  run_pass,
  run_same,
  same_outputs,
  stays,
)

from ortplugin.optimizer.pipeline import DEAD_NODES, FUSE_SCATTER, UPDATE_SLICE


def text_of(inputs, nodes, x="float[3,4]"):
  return f"({x} x, {inputs}) => ({x} y) {{ {nodes} }}"


def ours(model):
  graph = model.graph if isinstance(model, onnx.ModelProto) else model
  return [(node.op_type, all_attributes(node)) for node in graph.node if node.domain == "ortplugin"]


def with_constants(original, **constants):
  add_weights(original, **constants)
  return original


ELEMENTS = text_of("int64[2,4] i, float[2,4] u", "y = ScatterElements%s(x, i, u)")
TUPLES = text_of("int64[2,1] i, float[2,4] u", "y = ScatterND%s(x, i, u)")


@parametrize("opset", [11, 13, 15, 16, 18, 20, 23])
@parametrize("graph", [ELEMENTS, TUPLES])
def test_plain(graph, opset):
  optimized, _ = run_same(model(graph % "", opset), FUSE_SCATTER, changes=1)
  name = "ScatterND" if graph is TUPLES else "ScatterElements"
  assert ours(optimized) == [(name, {} if graph is TUPLES else {"axis": 0})]


@parametrize("reduction, since", [("add", 16), ("mul", 16), ("max", 18), ("min", 18)])
@parametrize("graph", [ELEMENTS, TUPLES])
def test_reductions(graph, reduction, since):
  optimized, _ = run_same(model(graph % f'<reduction="{reduction}">', since), FUSE_SCATTER)
  assert ours(optimized)[0][1]["reduction"] == reduction.encode()


def run_on(original, *fragments):
  """Like stays, for models that onnx.checker refuses."""
  result = FUSE_SCATTER(annotated(original))
  assert not result.changes
  for fragment in fragments:
    assert any(fragment in each.reason for each in result.near_misses), result.near_misses


def test_a_reduction_before_its_opset_stays():
  run_on(model(TUPLES % '<reduction="add">', 15), "the reduction 'add' is none of opset 15")
  run_on(model(TUPLES % '<reduction="max">', 17), "the reduction 'max' is none of opset 17")
  run_on(model(TUPLES % '<reduction="median">', 18), "the reduction 'median' is none of opset 18")


STAYS = {
  "strings": (
    "(string[3] x, int64[1,1] i, string[1] u) => (string[3] y) { y = ScatterND(x, i, u) }",
    "the dtype of 'x' is string",
  ),
  "bool has no sum": (
    'g (bool[3] x, int64[1,1] i, bool[1] u) => (bool[3] y) { y = ScatterND<reduction="add">(x, i, u) }',
    "the dtype of 'x' is bool, which has no reduction 'add'",
  ),
  "data of unknown rank": (
    "(float[N] s, int64[R] t, int64[1,1] i, float[k] u) => (float[N] y) "
    "{ x = Reshape(s, t)  z = ScatterND(x, i, u)  y = Abs(s) }",
    "the rank of 'x' is unknown",
  ),
  "indices of unknown rank": (
    text_of("int64[N] s, int64[R] t, float[k] u", "i = Reshape(s, t)  y = ScatterND(x, i, u)", "float[3]"),
    "the rank of 'i' is unknown",
  ),
  "updates of unknown rank": (
    text_of("int64[1,1] i, float[N] s, int64[R] t", "u = Reshape(s, t)  y = ScatterND(x, i, u)", "float[3]"),
    "the rank of 'u' is unknown",
  ),
}


@parametrize("case", STAYS)
def test_what_the_operators_lack(case):
  text, reason = STAYS[case]
  stays(model(text, 18), FUSE_SCATTER, reason)


@parametrize("opset", [9, 10])
def test_scatter_before_it_was_renamed(opset, rng):
  original = model((ELEMENTS % "<axis=1>").replace("ScatterElements", "Scatter"), opset, ir=4)
  feeds = random_feeds(original, rng)
  optimized, _ = run_pass(original, UPDATE_SLICE, FUSE_SCATTER, changes=1)
  assert ours(optimized) == [("ScatterElements", {"axis": 1})]
  assert_same_values(original, optimized, feeds)


def test_a_slice_in_an_opset_that_can_not_write_it_back_stays():
  original = with_constants(
    model(text_of("float[1,4] u", "y = Scatter(x, i, u)"), 10, ir=4), i=np.ones((1, 4), np.int64)
  )
  optimized, _ = run_same(original, UPDATE_SLICE, FUSE_SCATTER)
  assert ours(optimized) == [("ScatterElements", {"axis": 0, "unique": 1})]


def test_an_older_scatter_stays():
  run_on(model((ELEMENTS % "").replace("ScatterElements", "Scatter"), 8), "the model has opset 8")


def test_a_shape_that_is_changed_stays():
  """TorchScript writes shapes so; ONNX Runtime computes them on the host."""
  original = """(float[N,4] x, int64[1] n) => (float[A,B] y) { s = Shape(x)
    at = {1}  t = ScatterElements(s, at, n)  y = Expand(x, t) }"""
  stays(original, FUSE_SCATTER)


def test_a_local_function_of_the_name_stays():
  text = """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
    g (float[3,4] x, int64[2,1] i, float[2,4] u) => (float[3,4] y) { y = local.ScatterND(x, i, u) }
    <domain: "local", opset_import: ["" : 17]> ScatterND (x, i, u) => (y) { y = Abs(x) }"""
  stays(onnx.parser.parse_model(text), FUSE_SCATTER)


UNIQUE = {
  "constant rows": ("ScatterND", "", "float[3,4]", np.array([[2], [0]]), 1),
  "constant rows, one from the end": ("ScatterND", "", "float[3,4]", np.array([[2], [-1]]), 0),
  "a negative row that is another": ("ScatterND", "", "float[3,4]", np.array([[2], [-2]]), 1),
  "rows of an open size": ("ScatterND", "", "float[rows,4]", np.array([[2], [0]]), 1),
  "rows of an open size, from both ends": ("ScatterND", "", "float[rows,4]", np.array([[2], [-1]]), 0),
  "pairs": ("ScatterND", "", "float[3,4]", np.array([[1, 0], [0, 1]]), 1),
  "a pair twice": ("ScatterND", "", "float[3,4]", np.array([[1, 0], [1, 0]]), 0),
  "elements": ("ScatterElements", "<axis=1>", "float[3,4]", np.array([[0, 3, 2], [1, 0, 2]]), 1),
  "elements, wrapped": ("ScatterElements", "<axis=1>", "float[3,4]", np.array([[0, 3, -1], [1, 0, 2]]), 0),
  "elements, one along the axis": ("ScatterElements", "<axis=1>", "float[3,4]", np.array([[0], [0]]), 1),
}


@parametrize("case", UNIQUE)
def test_unique_constants(case):
  op, attributes, data, indices, unique = UNIQUE[case]
  depth = indices.shape[-1] if op == "ScatterND" else 0
  shape = [2, 4][: 3 - depth] if depth else list(indices.shape)
  text = f"({data} x, float{shape} u) => ({data} y) {{ y = {op}{attributes}(x, i, u) }}"
  optimized, _ = run_same(with_constants(model(text), i=indices), FUSE_SCATTER)
  assert ours(optimized)[0][1].get("unique", 0) == unique


RUN_TIME = {
  "NonZero": (text_of("bool[3,4] m, float[N] u", "n = NonZero(m)  i = Transpose<1,0>(n)  y = ScatterND(x, i, u)"), 1),
  "TopK along the axis": (
    text_of("float[3,2] u", "k = {2} v, i = TopK(x, k)  y = ScatterElements<axis=1>(x, i, u)"),
    1,
  ),
  "TopK along another axis": (
    """(float[3,4] x, float[2,4] u) => (float[3,4] y) {
      k = {2}  v, i = TopK<axis=0>(x, k)
      y = ScatterElements<axis=1>(x, i, u) }""",
    0,
  ),
  "ArgMax": (text_of("float[3,1] u", "i = ArgMax<axis=1>(x)  y = ScatterElements<axis=1>(x, i, u)"), 1),
  "ArgMax along another axis": (
    text_of("float[1,4] u", "i = ArgMax<axis=0>(x)  y = ScatterElements<axis=1>(x, i, u)"),
    0,
  ),
  "a Range": (
    """(float[N,4] x, float[M,4] u) => (float[N,4] y) { s = Shape<end=1>(u)  n = Squeeze(s)
      z = int64 {0}  o = int64 {1}  r = Range(z, n, o)
      a = {1}  i = Unsqueeze(r, a)  y = ScatterND<reduction="add">(x, i, u) }""",
    1,
  ),
  "a Range from anywhere": (
    """(float[N,4] x, int64 z, n, float[M,4] u) => (float[N,4] y) {
      o = int64 {1}  r = Range(z, n, o)
      a = {1}  i = Unsqueeze(r, a)  y = ScatterND<reduction="add">(x, i, u) }""",
    0,
  ),
  "places of a condition": (
    """(float[N,4] x, bool[N] m, float[k,4] u) => (float[N,4] y) {
      n = NonZero(m)  t = Transpose<1,0>(n)  o = {1}  p = Squeeze(t, o)
      s = {-1,1}  c = Reshape(p, s)  f = Shape(c)
      w = {4}  z = {0}  h = Gather(f, z)
      e = Concat<axis=0>(h, w)  i = Expand(c, e)  y = ScatterElements<reduction="add">(x, i, u) }""",
    1,
  ),
  "places of a matrix's rows": (
    """(float[N,4] x, bool[N,4] m, float[k,4] u) => (float[N,4] y) {
      n = NonZero(m)  t = Transpose<1,0>(n)  z = {0}
      o = {1}  c = Slice(t, z, o, o)  i = Reshape(c, d)
      y = ScatterND(x, i, u) }""",
    0,
  ),
  "TopK of a vector": (
    """(float[8,4] x, float[8] v, float[3,4] u) => (float[8,4] y) {
      k = {3}  w, j = TopK(v, k)  a = {1}
      i = Unsqueeze(j, a)  y = ScatterND(x, i, u) }""",
    1,
  ),
  "an input": (TUPLES % "", 0),
  "one index": (text_of("int64[1,1] i, float[1,4] u", 'y = ScatterND<reduction="add">(x, i, u)'), 1),
  "one element": (text_of("int64[2] i, float u", "y = ScatterND(x, i, u)"), 1),
}


@parametrize("case", RUN_TIME)
def test_unique_at_run_time(case, rng):
  text, unique = RUN_TIME[case]
  original = with_constants(model(text, 18), **({"d": np.array([-1, 1])} if "Reshape(c, d)" in text else {}))
  optimized, _ = run_pass(original, FUSE_SCATTER)
  assert ours(optimized)[0][1].get("unique", 0) == unique
  feeds = random_feeds(original, rng, N=3, M=3, k=1)
  if "NonZero" in text:
    rest = feeds["u"].shape[1:]
    feeds["u"] = rng.standard_normal((int(feeds["m"].sum()), *rest)).astype(np.float32)
  if case == "a Range from anywhere":
    feeds.update(z=np.array(-2), n=np.array(1), u=rng.standard_normal((3, 4)).astype(np.float32))
  assert_same_values(original, optimized, feeds)


COPY = """(float[3,4,5] x, int64[2] i, float[3,2,5] u) => (float[3,4,5] y) {{
  {0}  y = ScatterElements<axis=1>(x, j, u) }}"""
REPEATED = {
  "index_copy": ("a = {0,2}  k = Unsqueeze(i, a) s = {3,2,5}  j = Expand(k, s)", ["Unsqueeze", "ScatterElements"]),
  "a shape at run time": (
    "a = {0,2}  k = Unsqueeze(i, a)  s = Shape(u)  j = Expand(k, s)",
    ["Unsqueeze", "ScatterElements"],
  ),
  "without the leading axis": (
    "a = {1}  k = Unsqueeze(i, a)  s = Shape(u)  j = Expand(k, s)",
    ["Unsqueeze", "Unsqueeze", "ScatterElements"],
  ),
  "tiled": ("a = {0,2}  k = Unsqueeze(i, a) s = {3,1,5}  j = Tile(k, s)", ["Unsqueeze", "ScatterElements"]),
  "tiled along its own axis": (
    "a = {0,2}  z = {0} "
    "o = {1}  f = Slice(i, z, o)  p = {2}  "
    "g2 = Tile(f, p)  k = Unsqueeze(g2, a)  s = Shape(u)  j = Expand(k, s)",
    ["Slice", "Tile", "Unsqueeze", "ScatterElements"],
  ),
  "repeated twice": (
    "a = {0,2}  k = Unsqueeze(i, a)  t = {1,2,5}  h = Expand(k, t)  s = Shape(u)  j = Expand(h, s)",
    ["Unsqueeze", "ScatterElements"],
  ),
}


@parametrize("case", REPEATED)
@parametrize("opset", [12, 18])
def test_an_index_that_was_only_repeated(case, opset):
  nodes, expected = REPEATED[case]
  if opset < 13:  # whose Unsqueeze has its axes in an attribute
    axes = "[0,2]" if "{0,2}" in nodes else "[1]"
    nodes = re.sub(r"Unsqueeze\((\w+), a\)", rf"Unsqueeze<axes={axes}>(\1)", nodes)
  optimized, _ = run_same(model(COPY.format(nodes), opset), FUSE_SCATTER, DEAD_NODES)
  assert [each for each in operators(optimized) if each != "Shape"] == expected


def test_a_constant_index_that_was_only_repeated():
  indices = np.broadcast_to(np.array([3, 1])[None, :, None], (3, 2, 5))
  original = with_constants(model(COPY.format("j = Identity(c)")), c=indices)
  original.graph.node[1].input[1] = "c"
  del original.graph.node[0]
  optimized, _ = run_same(original, FUSE_SCATTER)
  assert [list(each.dims) for each in optimized.graph.initializer] == [[1, 2, 1]]
  assert ours(optimized) == [("ScatterElements", {"axis": 1, "unique": 1})]


def test_rows_of_columns():
  """a[:, index] = v, as TorchScript writes it: pairs of every row and each index."""
  original = """(float[3,4,5] x, int64[2] i, float[3,2,5] u) => (float[3,4,5] y) {
    rows = int64[3,2,1] {0, 0, 1, 1, 2, 2}  s = {3,2}
    e = Expand(i, s)  a = {-1}  columns = Unsqueeze(e, a)
    j = Concat<axis=-1>(rows, columns)  y = ScatterND(x, j, u) }"""
  optimized, _ = run_same(original, FUSE_SCATTER, DEAD_NODES, into="Reshape ScatterElements")
  assert ours(optimized)[0][1] == {"axis": 1}


def test_pairs_that_belong_together_stay_tuples():
  """a[index, other] = v"""
  original = """(float[3,4,5] x, int64[2] i, k, float[2,5] u) => (float[3,4,5] y) {
    a = {-1}  b = Unsqueeze(i, a)  c = Unsqueeze(k, a)
    j = Concat<axis=-1>(b, c)  y = ScatterND(x, j, u) }"""
  optimized, _ = run_same(original, FUSE_SCATTER)
  assert ours(optimized) == [("ScatterND", {})]


@parametrize("dtype", ["float16", "double", "int8", "uint64", "bool", "bfloat16"])
def test_dtypes(dtype):
  original = model((TUPLES % "").replace("float[", f"{dtype}["), 18)
  optimized, _ = run_pass(original, FUSE_SCATTER)
  assert ours(optimized)[0][0] == "ScatterND"
  if dtype != "bfloat16":  # which ONNX Runtime does not take from NumPy
    same_outputs(original, optimized)


@parametrize(
  "text",
  [
    text_of("int64[0,1] i, float[0,4] u", "y = ScatterND(x, i, u)"),
    "(float[3,0] x, int64[2,1] i, float[2,0] u) => (float[3,0] y) { y = ScatterND(x, i, u) }",
    text_of("int64[1] i, float u", "y = ScatterND(x, i, u)", "float[3]"),
    text_of("int64[0,4] i, float[0,4] u", "y = ScatterElements(x, i, u)"),
  ],
)
def test_nothing_to_do(text):
  optimized, _ = run_same(text, FUSE_SCATTER)
  assert len(ours(optimized)) == 1


@parametrize("op", ["ScatterND", "ScatterElements"])
def test_what_else_needs_the_data(op):
  """Used elsewhere, an input, an output: the operator copies its data where ONNX Runtime does not give it away."""
  i = "int64[2,1] i" if op == "ScatterND" else "int64[2,4] i"
  original = f"""(float[3,4] x, {i}, float[2,4] u, bool c) => (float[3,4] y, a, z) {{
      a = Neg(x)  b = {op}(a, i, u)  w = {op}(x, i, u)  y = Add(b, w)
      z = If(c) <then () => (float[3,4] p) {{ p = Abs(b) }},
                  else () => (float[3,4] q) {{ q = {op}(a, i, u) }}> }}"""
  run_same(original, FUSE_SCATTER, changes=3)
