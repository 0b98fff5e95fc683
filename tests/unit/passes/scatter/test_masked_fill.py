import numpy as np
from pass_helpers import assert_same_values, model, operators, parametrize, random_feeds, run_pass, run_same, stays

from ortplugin.optimizer.pipeline import DEAD_NODES, MASKED_FILL

COUNT = """m1 = {-1}  flat = Reshape(m, m1)  number = Cast<to=7>(flat)
  count = ReduceSum(number)"""
PLACES = "places = NonZero(m)  i = Transpose<1,0>(places)"


def fill(
  x="float[3,4]",
  mask="bool[3,4]",
  value="v = float {2.5}",
  updates="w = Expand(v, count)  u = Reshape(w, m1)",
  places=PLACES,
  scatter="ScatterND",
  opset=18,
  more=("", ""),
):
  """`more`: inputs and outputs."""
  nodes = f"{COUNT}  {value}  {places}  {updates}  y = {scatter}(x, i, u)"
  return model(f"({x} x, {mask} m{more[0]}) => ({x} y{more[1]}) {{ {nodes} }}", opset)


FORMS = {
  "as dynamo writes it": fill(),
  "without the Reshape": fill(updates="u = Expand(v, count)"),
  "a value of shape [1]": fill(value="v = float[1] {2.5}"),
  "more dimensions than x": fill(
    value="v = float[1,1,1] {2.5}",
    updates="c1 = Concat<axis=0>(one, one, count)  w = Expand(v, c1)  u = Reshape(w, m1)",
    places=PLACES + "  one = {1}",
  ),
  "int64": fill(x="int64[3,4]", value="v = int64 {7}"),
  "float16": fill(x="float16[3,4]", value="h = float {2.5}  v = Cast<to=10>(h)"),
  "double": fill(x="double[3,4]", value="v = double {2.5}"),
  "a perm that is absent": fill(places="places = NonZero(m)  i = Transpose(places)"),
  "ConstantOfShape": fill(updates="u = ConstantOfShape<value=float[1] {2.5}>(count)"),
  "an open size": fill(x="float[N,4]", mask="bool[N,4]"),
  "opset 13": fill(opset=13),
  "one dimension": fill(x="float[5]", mask="bool[5]"),
}


@parametrize("form", FORMS)
def test_every_form(form):
  optimized, result = run_same(FORMS[form], MASKED_FILL, DEAD_NODES)
  assert [each for each in operators(optimized) if each not in ("Cast", "Reshape")] == ["Where"]
  assert len([each for each in result.changes if each.rewrite == "masked-fill"]) == 1


@parametrize("chosen", [0.0, 1.0])
def test_all_or_nothing_is_chosen(chosen, rng):
  original = fill()
  optimized, _ = run_pass(original, MASKED_FILL)
  assert_same_values(original, optimized, {**random_feeds(original, rng), "m": np.full((3, 4), bool(chosen))})


def test_a_mask_over_the_first_axes():
  original = fill("float[3,4,5]", updates="five = {5}  s = Concat<axis=0>(count, five)  u = Expand(v, s)")
  run_same(original, MASKED_FILL, DEAD_NODES, into="Unsqueeze Where")


def test_a_mask_that_was_repeated():
  original = model(
    f"""(float[3,4] x, bool[3,1] m0) => (float[3,4] y) {{
      s = {{3,4}}  m = Expand(m0, s)  {COUNT}  {PLACES}
      v = float {{2.5}}  u = Expand(v, count)  y = ScatterND(x, i, u) }}""",
    18,
  )
  run_same(original, MASKED_FILL, DEAD_NODES, into="Where")


def test_a_value_at_run_time():
  original = fill(value="", updates="u = Expand(v, count)", more=(", float v", ""))
  run_same(original, MASKED_FILL, DEAD_NODES, into="Where")


MISSES = {
  "a mask of another size": (fill(x="float[N,4]", mask="bool[M,4]"), "the shape of 'm', [M, 4] is not surely"),
  "a mask that would broadcast": (fill(mask="bool[1,4]"), "the shape of 'm', [1, 4] is not surely"),
  "a mask of numbers": (fill(mask="float[3,4]"), "'m' is no mask of 'x'"),
  "an unknown size": (fill(x="float[N,4]", mask="bool[3,4]"), "is not surely that of 'x', [N, 4]"),
  "no Where for int8": (
    fill(x="int8[3,4]", value="h = float {2.5}  v = Cast<to=3>(h)"),
    "for which ONNX Runtime has no Where",
  ),
}


@parametrize("case", MISSES)
def test_near_misses(case):
  original, reason = MISSES[case]
  stays(original, MASKED_FILL, reason)


OTHERS = {
  "masked_scatter": model(
    f"(float[3,4] x, bool[3,4] m, float[N] u) => (float[3,4] y) {{ {PLACES}  y = ScatterND(x, i, u) }}"
  ),
  "a sum": fill(scatter='ScatterND<reduction="add">'),
  "places that are not a mask's": fill(places=PLACES.replace("i =", "j =") + "  i = Abs(j)"),
  "values that differ": fill(
    value="v = float[2] {1.0, 2.0}", updates="w = Tile(v, count)  z = {0}  u = Slice(w, z, count)"
  ),
}


@parametrize("case", OTHERS)
def test_what_is_no_masked_fill_stays(case):
  stays(OTHERS[case], MASKED_FILL)


def test_the_places_are_used_elsewhere_too():
  original = fill(updates="u = Expand(v, count)", more=("", ", int64[N,2] i"))
  run_same(original, MASKED_FILL, DEAD_NODES, into="NonZero Transpose Where")
