import numpy as np
from pass_helpers import add_weights, all_attributes, model, operators, parametrize, run_pass, run_same, stays

from ortplugin.optimizer.pipeline import DEAD_NODES, FUSE_SCATTER, REMOVE_IDENTITIES, SCATTER_TRANSPOSE, UPDATE_SLICE

PASSES = (UPDATE_SLICE, FUSE_SCATTER, SCATTER_TRANSPOSE, DEAD_NODES)
SCATTER = """{{ xt = Transpose<perm={perm}>(x)  {updates}  yt = {scatter}(xt, i, ut)
  y = Transpose<perm={back}>(yt) }}"""


def scatter(
  indices,
  op="ScatterND",
  perm="[1, 0, 2]",
  back="[1, 0, 2]",
  u="float[3,2,5]",
  updates="ut = Transpose<perm={perm}>(u)",
  values=None,
):
  body = SCATTER.format(perm=perm, back=back, scatter=op, updates=updates.format(perm=perm))
  made = model(f"(float[3,4,5] x{indices}, {u} u) => (float[3,4,5] y) {body}", 18)
  if values is not None:
    add_weights(made, i=np.array(values))
  return made


def attributes(model):
  (node,) = [each for each in model.graph.node if each.domain == "ortplugin"]
  return all_attributes(node)


FORMS = {
  "a slice": (scatter("", values=[[1], [2]]), "UpdateSlice", {"axes": [1]}),
  "rows": (scatter(", int64[2,1] i"), "Reshape ScatterElements", {"axis": 1}),
  "a sum": (
      scatter(", int64[2,1] i", op='ScatterND<reduction="add">'),
      "Reshape ScatterElements", {"axis": 1, "reduction": b"add"}),
  "three axes in turn": (
      scatter("", perm="[2, 0, 1]", back="[1, 2, 0]", u="float[3,4,2]", values=[[1], [2]]),
      "UpdateSlice", {"axes": [2]}),
  "ScatterElements": (
      scatter(", int64[2,3,5] i", op="ScatterElements<axis=0>"), "Transpose ScatterElements", {"axis": 1}),
  "ScatterElements, indices transposed too": (
      scatter(", int64[3,2,5] i0", op="ScatterElements<axis=0>",
              updates="ut = Transpose<perm={perm}>(u)  i = Transpose<perm={perm}>(i0)"),
      "ScatterElements", {"axis": 1}),
  "updates that were not transposed": (
      scatter("", u="float[2,3,5]", updates="ut = Neg(u)", values=[[1], [2]]), "Neg Transpose UpdateSlice",
      {"axes": [1]}),
}  # fmt: skip


@parametrize("form", FORMS)
def test_every_form(form):
  original, expected, found = FORMS[form]
  optimized, _ = run_same(original, *PASSES, into=expected)
  assert attributes(optimized) == found


def test_constant_updates_are_transposed_here(rng):
  original = scatter("", updates="", values=[[1], [2]])
  add_weights(original, ut=rng.random((2, 3, 5), np.float32))
  optimized, _ = run_same(original, *PASSES, into="UpdateSlice")
  assert [list(each.dims) for each in optimized.graph.initializer if each.name.startswith("ut")] == [[3, 2, 5]]


def test_tuples_of_two_stay():
  original = scatter(", int64[2,2] i", u="float[2,5]", updates="ut = Neg(u)")
  for number, dim in enumerate(original.graph.output[0].type.tensor_type.shape.dim):
    dim.dim_param = f"D{number}"
  fused, _ = run_pass(original, UPDATE_SLICE, FUSE_SCATTER)
  stays(fused, SCATTER_TRANSPOSE, "are not a column that one axis of data takes")


def transposed(outputs, more=""):
  return f"""(float[3,4,5] x, int64[2,1] i, float[3,2,5] u) => (float[3,4,5] y, float[4,3,5] {outputs}) {{
    xt = Transpose<1,0,2>(x)  ut = Transpose<1,0,2>(u)  yt = ScatterND(xt, i, ut)
    y = Transpose<1,0,2>(yt)  {more} }}"""


@parametrize("original", [transposed("yt"), transposed("z", "z = Neg(yt)")])
def test_a_result_that_is_needed_transposed(original):
  optimized, _ = run_same(original, *PASSES)
  assert "ScatterND" in operators(optimized)


def test_transposed_data_that_something_else_reads():
  optimized, _ = run_same(transposed("z", "z = Neg(xt)"), *PASSES)
  assert sorted(operators(optimized)) == ["Neg", "Reshape", "ScatterElements", "Transpose"]


def test_a_transpose_that_does_more_remains():
  original = model("""(float[3,4,5] x, float[3,2,5] u) => (float[5,3,4] y) {
    xt = Transpose<1,0,2>(x)  ut = Transpose<1,0,2>(u)  yt = ScatterND(xt, i, ut)
    y = Transpose<2,1,0>(yt) }""")
  add_weights(original, i=np.array([[1], [2]]))
  run_same(original, *PASSES, into="UpdateSlice Transpose")


def test_two_in_a_row_with_their_transposes_merged():
  original = model("""(float[3,4,5] x, int64[2,1] i, float[4,3,5] u, float[2,3,4] v) => (float[3,4,5] y) {
    a = Transpose<1,0,2>(x)  b = ScatterND(a, j, u)  c = Transpose<2,1,0>(b)
    d = ScatterND(c, i, v)  y = Transpose<1,2,0>(d) }""")
  add_weights(original, j=np.array([[0], [1], [3], [2]]))
  optimized, _ = run_same(original, *PASSES, REMOVE_IDENTITIES)
  assert operators(optimized).count("ScatterElements") == 2
  assert operators(optimized).count("Transpose") == 2  # of the updates


def test_standard_scatters_are_not_touched():
  stays(FORMS["rows"][0], SCATTER_TRANSPOSE)
