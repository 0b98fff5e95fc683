import numpy as np
from onnx import numpy_helper
from onnx_models import add_weights, all_attributes, nodes_of, value_infos
from pass_helpers import model, operators, parametrize, reasons, run_pass, run_same

from ortplugin.optimizer.pipeline import DEAD_NODES, NESTED_SLICES, UPDATE_SLICE

PASSES = (UPDATE_SLICE, NESTED_SLICES, DEAD_NODES)


def nested(part, inner, outer, u, x="float[4,6,5]", **constants):
  made = model(f"({x} x, {u} u) => ({x} y) {{ {part}  {inner}  {outer} }}", 18)
  for name, values in constants.items():
    add_weights(made, **{name: np.array(values, np.int64)})
  return made


GATHER = "p = Gather<axis=0>(x, a)"
SLICE = "p = Slice(x, s, e, ax, st)"
SQUEEZED = "w = Unsqueeze(q, zero)  y = ScatterND(x, i, w)"
FORMS = {
  "a[1, 2:4] = v": (
      nested(GATHER, "q = ScatterND(p, j, u)", SQUEEZED, "float[2,5]", a=1, j=[[2], [3]], zero=[0], i=[[1]]),
      [0, 1], [1, 2], None),
  "a[-1, 2:4] = v": (
      nested(GATHER, "q = ScatterND(p, j, u)", SQUEEZED, "float[2,5]", a=-1, j=[[2], [3]], zero=[0], i=[[3]]),
      [0, 1], [3, 2], None),
  "a[1:3, 2] = v": (
      nested(SLICE, "q = ScatterElements<axis=1>(p, j, u)", "y = ScatterND(x, i, q)", "float[2,1,5]",
             s=[1], e=[3], ax=[0], st=[1], j=np.full((2, 1, 5), 2), i=[[1], [2]]),
      [0, 1], [1, 2], None),
  "a[::2][1] = v": (
      nested(SLICE, "q = ScatterND(p, j, u)", "y = ScatterND(x, i, q)", "float[1,6,5]",
             s=[0], e=[9], ax=[0], st=[2], j=[[1]], i=[[0], [2]]),
      [0], [2], [2]),
}  # fmt: skip


@parametrize("form", FORMS)
def test_every_form(form):
  original, axes, starts, steps = FORMS[form]
  optimized, _ = run_same(original, *PASSES)
  assert [each for each in operators(optimized) if each != "Unsqueeze"] == ["UpdateSlice"]
  (node,) = nodes_of(optimized, "UpdateSlice")
  assert all_attributes(node) == {"axes": axes, **({"steps": steps} if steps else {})}
  given = {each.name: numpy_helper.to_array(each).tolist() for each in optimized.graph.initializer}
  assert given[node.input[2]] == starts


STAYS = {
  "another row": (
      nested(GATHER, "q = ScatterND(p, j, u)", SQUEEZED, "float[2,5]", a=2, j=[[2], [3]], zero=[0], i=[[1]]),
      "takes {0: (2, 1)} of 'x', not {0: (1, 1)}"),
  "other rows": (
      nested(SLICE, "q = ScatterND(p, j, u)", "y = ScatterND(x, i, q)", "float[1,6,5]",
             s=[0], e=[2], ax=[0], st=[1], j=[[1]], i=[[1], [2]]),
      "takes {0: (0, 1)} of 'x', not {0: (1, 1)}"),
  "a part of something else": (
      nested("n = Neg(x)  p = Gather<axis=0>(n, a)", "q = ScatterND(p, j, u)", SQUEEZED, "float[2,5]",
             a=1, j=[[2], [3]], zero=[0], i=[[1]]), ""),
}  # fmt: skip


@parametrize("case", STAYS)
def test_what_is_not_the_same_part(case):
  original, reason = STAYS[case]
  optimized, result = run_same(original, *PASSES)
  assert operators(optimized).count("UpdateSlice") == 2
  assert bool(result.near_misses) == bool(reason)
  assert all(reason in each for each in reasons(result))


def test_an_inner_result_that_is_needed():
  original = FORMS["a[1:3, 2] = v"][0]
  original.graph.output.extend(value_infos("float[2,6,5] q"))
  optimized, result = run_same(original, *PASSES)
  assert operators(optimized).count("UpdateSlice") == 2
  assert "'q' is a graph output, so it has to stay" in reasons(result)[0]


def test_an_open_size():
  """A slice from a start other than 0 may be cut short: then the sizes have to be known."""
  rows = {"i": [[0], [1]], "j": np.full((2, 1, 5), 2), "ax": [0], "st": [1]}
  parts = (SLICE, "q = ScatterElements<axis=1>(p, j, u)", "y = ScatterND(x, i, q)", "float[2,1,5]", "float[N,6,5]")
  original = nested(*parts, s=[0], e=[2], **rows)
  run_same(original, *PASSES, into="UpdateSlice")
  original = nested(*parts, s=[1], e=[3], **{**rows, "i": [[1], [2]]})
  assert operators(run_pass(original, *PASSES)[0]).count("UpdateSlice") == 2
