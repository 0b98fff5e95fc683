import numpy as np
import pytest
from attention_helpers import assert_equal, attentions, attributes, feeds, fused, graph, in_float  # noqa: F401
from pass_helpers import add_weights, nodes_of, operators, parametrize, restore, run, run_pass, stays, value_infos

from ortplugin.optimizer.pipeline import DEAD_NODES, FUSE_ATTENTION

pytestmark = pytest.mark.usefixtures("in_float")

QKV = "float[2,4,5,8] q, k, v"
SCORES = "kt = Transpose<0,1,3,2>(k)  s = MatMul(q, kt)"
END = "p = Softmax<axis=-1>(masked)  y = MatMul(p, v)"
Y = "float[2,4,5,8] y"
LOW = "low = float {-3e38}  zero = float {0}"
LOWEST = "lowest = float {-3.4028235e38}"
TRIANGLE = np.tril(np.ones((5, 5), bool))


def masking(how, inputs="", **constants):
  """An attention of which `how` makes `masked` from its scores s."""
  original = graph(f"{SCORES} {how} {END}", f"{QKV}, {inputs}" if inputs else QKV, Y)
  add_weights(original, **constants)
  return original


def with_constant(values, how="masked = Add(s, m)"):
  return masking(f"{LOW} {how}", m=values)


CAUSAL = {
  "upper left": (TRIANGLE, {"causal": "upper_left"}),
  "for each head": (np.broadcast_to(TRIANGLE, (1, 4, 5, 5)), {"causal": "upper_left"}),
  "a window": (TRIANGLE & ~np.tril(np.ones((5, 5), bool), -3), {"causal": "upper_left", "window": 3}),
  "only oneself": (np.eye(5, dtype=bool), {"causal": "upper_left", "window": 1}),
  "all": (np.ones((5, 5), bool), {}),
}


@parametrize("number", [-np.inf, -3e38, -65504.0, -1e4])
@parametrize("name", CAUSAL)
def test_constant_triangles_become_attributes(name, number):
  kept, expected = CAUSAL[name]
  _, node = fused(with_constant(np.where(kept, 0, number).astype(np.float32)))
  assert attributes(node) == expected
  assert len(node.input) == 3


@parametrize("values, how", [(TRIANGLE, "Where(m, s, low)"), (~TRIANGLE, "Where(m, low, s)")])
def test_constant_bools_do_too(values, how):
  _, node = fused(with_constant(values, f"masked = {how}"))
  assert attributes(node) == {"causal": "upper_left"}


OTHERS = {
  "the other triangle": (np.where(TRIANGLE.T, 0, -np.inf), "bool"),
  "a triangle in one head alone": (np.where(np.stack([TRIANGLE, TRIANGLE.T]).repeat(2, 0), 0, -1e30), "bool"),
  "a row that is masked whole": (np.where(np.arange(5)[:, None] > 0, 0, -3e38) + np.zeros((5, 5)), "float"),
  "a bias": (np.linspace(-2, 2, 25).reshape(5, 5), "float"),
  "a number that leaves some weight": (np.where(TRIANGLE, 0, -5), "float"),
}


@parametrize("name", OTHERS)
def test_other_constants_stay_operands(name):
  values, dtype = OTHERS[name]
  _, node = fused(with_constant(values.astype(np.float32)))
  assert attributes(node) == {"mask_dtype": dtype}


def test_masks_in_the_graph_stay_as_they_are():
  for inputs, how, dtype in (
    ("float[2,1,1,5] m", "masked = Add(m, s)", "float"),
    ("float[5] m", "masked = Add(s, m)", "float"),
    ("bool[2,1,5,5] m", "low = float {-inf}  masked = Where(m, s, low)", "bool"),
  ):
    optimized, node = fused(masking(how, inputs))
    assert attributes(node) == {"mask_dtype": dtype}
    assert node.input[3] == "m"
    assert "Where" not in operators(optimized)


def test_a_triangle_and_a_padding_in_one_are_both():
  how = "both = And(t, m)  low = float {-inf}  masked = Where(both, s, low)"
  optimized, node = fused(masking(how, "bool[2,1,1,5] m", t=TRIANGLE))
  assert attributes(node) == {"causal": "upper_left", "mask_dtype": "bool"}
  assert list(node.input[3:]) == ["m"]
  assert operators(optimized) == ["FusedAttention"]


def test_an_and_with_nothing_but_true_is_no_mask():
  """Transformers expands its mask to rows with such an And: the operand stays small."""
  how = f"{LOW} both = And(t, m)  bias = Where(both, zero, low)  masked = Add(s, bias)"
  original = masking(how, "bool[2,1,1,5] m", t=np.ones((1, 1, 5, 1), bool))
  optimized, node = fused(original, into="Where FusedAttention")
  assert nodes_of(optimized, "Where")[0].input[0] == "m"
  assert attributes(node) == {"mask_dtype": "float"}


def test_a_where_of_nothing_but_true_is_its_bias():
  """T5 without padding: the bias stays one for all texts."""
  how = f"{LOW} bias = Where(t, b, low)  masked = Add(s, bias)"
  _, node = fused(masking(how, "float[1,4,5,5] b", t=np.ones((2, 1, 5, 5), bool)), into="FusedAttention")
  assert node.input[3] == "b"


def test_constants_that_all_texts_share_are_kept_once(rng):
  bias = rng.standard_normal((1, 4, 5, 5)).astype(np.float32)
  optimized, node = fused(with_constant(np.broadcast_to(bias, (2, 4, 5, 5))))
  mask = next(each for each in optimized.graph.initializer if each.name == node.input[3])
  assert list(mask.dims) == [1, 4, 5, 5]


@parametrize("how", [
  f"{LOW} masked = Where(m, s, low)",
  f"{LOW} bias = Where(m, zero, low)  masked = Add(s, bias)",
  "low = float {-10000}  masked = Where(m, s, low)",
  f"{LOW} {LOWEST} bias = Where(m, zero, lowest)  masked = Add(s, bias)",
  # A padding above a mask that is filled in: their sum is float32's lowest number and not -inf.
  f"{LOW} {LOWEST} fill = float {{-9984}}"
  "  filled = Where(m, s, fill)  bias = Where(m, zero, lowest)  masked = Add(filled, bias)",
])  # fmt: skip
def test_rows_that_a_number_masks_whole_weigh_all_keys_alike(how):
  original = masking(how, "bool[2,1,5,5] m")
  mask = feeds(original)["m"]
  mask[0, 0, 1:4] = False
  fused(original, given={"m": mask})


@parametrize("dtype, low, number, fuses", [
  ("float", -1e9, -1e4, False), ("float", -9e3, -1e4, False), ("float", -9e3, -1e9, True),
  ("float16", -65504, -1e4, False), ("float16", -65504, -65504, True),
])  # fmt: skip
@parametrize("form", ["b = Add({}, s)  masked = Where(m, b, fill)", "b = Where(m, s, fill)  masked = Add(b, {})"])
@parametrize("mask", ["t", "w"])
def test_the_higher_of_two_numbers_that_mask_a_row(mask, form, dtype, low, number, fuses):
  """LOWEST would stand for both of them, or for the one alone that is filled in."""
  if form.startswith("b = W") and dtype == "float":
    return  # whatever is added to it
  how = f"w = Where(c, zero, low)  {form.format(mask)}"
  original = graph(f"{SCORES} {how} {END}", f"{dtype}{QKV[5:]}, bool[5,5] m, bool[5,5] c", f"{dtype}{Y[5:]}")
  kind = np.float32 if dtype == "float" else np.float16
  given = {"m": np.ones((5, 5), bool), "c": np.ones((5, 5), bool)}
  given["m"][0, :3] = given["c"][0, 3:] = False
  add_weights(original, zero=kind(0), low=kind(low), fill=kind(number), t=np.where(given["c"], 0, low).astype(kind))
  if not fuses:
    stays(original, FUSE_ATTENTION, "fills in")
  elif dtype == "float":
    fused(original, given=given)
  else:  # ONNX Runtime adds in float32 on the CPU, where the lowest number absorbs no score
    given |= {name: each for name, each in feeds(original).items() if name not in given}
    optimized, _ = run_pass(original, FUSE_ATTENTION, DEAD_NODES)
    found = run(restore(optimized), given)[0][:, :, 0]
    np.testing.assert_allclose(found, given["v"].astype(np.float64).mean(axis=-2), atol=2e-3)


@parametrize("number", [-1e4, -3e38, -np.inf])
@parametrize("before", ["hidden = Add(s, t)", "b = Where(t2, zero, low)  hidden = Add(s, b)", "hidden = Add(t3, s)"])
def test_a_number_takes_the_place_of_masked_scores(before, number):
  triangle = np.where(TRIANGLE, 0, -np.inf).astype(np.float32)
  how = f"{LOW} {before}  masked = Where(m, hidden, fill)"
  original = masking(how, "bool[5,5] m, t2, float[5,5] t3", t=triangle, fill=np.float32(number))
  fused(original)
  mask = feeds(original)["m"]
  mask[0] = False
  mask[1, :2] = False
  if number == -np.inf:
    mask[:, 0] = True
  _, node = fused(original, given={"m": mask, "t2": TRIANGLE, "t3": triangle})
  assert "causal" not in attributes(node) or number == -np.inf


@parametrize("low", [-1e4, -1e9])
@parametrize("behind", ["b", "Where(m2, zero, low)", "Where(m2, zero, t3)", "Where(m2, zero, lower)"])
def test_what_is_added_to_a_number_may_decide_a_row(behind, low):
  """LOWEST would be lower than -1e30."""
  number = f"low = float {{{low}}}  zero = float {{0}}  lower = float {{-1e30}}"
  after = "b2 = Identity(b)" if behind == "b" else f"b2 = {behind}"
  how = f"{number} filled = Where(m, s, low)  {after}  masked = Add(filled, b2)"
  original = masking(how, "bool[5,5] m, m2, float[5] b, float[5,5] t3")
  stays(original, FUSE_ATTENTION, "is added to", "may decide a row that is masked whole")


@parametrize("factor", [1e30, -1e4])
def test_integers_times_a_number_that_is_not_the_lowest_may_decide_a_row(factor):
  """Of 2 the product is positive: beside LOWEST, which is lower, 1e30 is lost."""
  how = "low = float {-1e4}  filled = Where(m, s, low)  f = Cast<to=1>(n)"
  how += f"  one = float {{1}}  no = Sub(one, f)  factor = float {{{factor}}}"
  original = masking(f"{how}  b = Mul(no, factor)  masked = Add(filled, b)", "bool[5,5] m, int64[5] n")
  stays(original, FUSE_ATTENTION, "may decide a row that is masked whole")


PADDINGS = {
  "bools": "zero2 = float {0}  b = Where(m2, zero2, lowest)",
  "bools of texts": "axes = {0,1}  w = Unsqueeze(m1, axes)  zero2 = float {0}  b = Where(w, zero2, lowest)",
  "integers": "axes = {0,1}  w = Unsqueeze(n, axes)  f = Cast<to=1>(w)  one = float {1}"
  "  no = Sub(one, f)  b = Mul(no, lowest)",
}


def test_a_number_that_hides_scores_is_filled_in_as_it_is():
  """In a row that it and a padding by the same number mask whole, all keys that one of them masks weigh alike."""
  how = "low = float {-1e30}  zero = float {0}  filled = Where(m, s, low)"
  original = masking(f"{how}  b = Where(m2, zero, low)  masked = Add(filled, b)", "bool[5,5] m, bool[5] m2")
  fused(original)
  fused(original, given={"m": TRIANGLE, "m2": np.arange(5) >= 2})


@parametrize("number", [-1e4, -1e9, -3.4028235e38])
@parametrize("triangle", [False, True])
@parametrize("padding", PADDINGS)
def test_a_padding_of_the_lowest_number_decides_as_before(padding, triangle, number):
  """GPT-2 in a text that is padded on the left: rows that the triangle and the padding mask whole together."""
  original = masking(
    f"{LOWEST} filled = Where(m, s, fill)  {PADDINGS[padding]}  masked = Add(filled, b)",
    f"{'' if triangle else 'bool[5,5] m,'} bool[5,5] m2, bool[5] m1, int64[5] n",
    fill=np.float32(number),
  )
  if triangle:
    add_weights(original, m=TRIANGLE)
  padded = np.arange(5) >= 2
  given = {"m1": padded, "n": padded.astype(np.int64), "m2": np.tile(padded, (5, 1))}
  _, node = fused(original, given=given if triangle else given | {"m": TRIANGLE & (np.arange(5) != 4)[:, None]})
  assert attributes(node) == {"mask_dtype": "float"}


@parametrize("number, causal", [(-np.inf, True), (-3.4028235e38, False), (-1e4, False)])
def test_a_triangle_beside_a_padding_is_causal_if_it_is_infinite(number, causal):
  """In a row that both mask whole a finite number has weights, where the padding is the same or lower."""
  how = f"{LOWEST} b = Where(m2, zero, lowest)  padded = Add(s, b)  masked = Add(padded, m)"
  original = with_constant(np.where(TRIANGLE, 0, number).astype(np.float32), how)
  original.graph.input.extend(value_infos("bool[5] m2"))
  _, node = fused(original, given={"m2": np.arange(5) >= 2})
  assert attributes(node) == {**({"causal": "upper_left"} if causal else {}), "mask_dtype": "float"}


def test_a_mask_of_no_columns_that_is_viewed_otherwise_stays():
  nodes = "kt = Transpose<0,2,1>(k)  s = MatMul(q, kt)  masked = Add(s, m)"
  original = graph(f"{nodes} {END}", "float[3,5,8] q, float[3,0,8] k, v, float[3,1,0] m", "float[3,5,8] y")
  stays(original, FUSE_ATTENTION, "the mask 'm' has no elements")


@parametrize("number, fuses", [(-1e4, False), (-1e9, False), (-3e38, True), (-np.inf, True)])
def test_a_bias_behind_a_number_that_it_changes(number, fuses):
  weights = {"fill": np.float32(number), "b": np.linspace(-90, 90, 5, dtype=np.float32)}
  original = masking("filled = Where(m, s, fill)  masked = Add(filled, b)", "bool[5,5] m", **weights)
  optimized, _ = run_pass(original, FUSE_ATTENTION)
  assert bool(attentions(optimized)) == fuses
  assert_equal(original, optimized, feeds(original) | {"m": TRIANGLE & (np.arange(5) != 2)[:, None]})


@parametrize(
  "how", ["bias = Where(m, zero, low)", "bias = Where(m, b, low)", "no = Not(m)  bias = Where(no, low, zero)"]
)
def test_in_float16_the_number_hides_the_score(how):
  """x + -65504 is -65504 in float16: the weights of a row that is masked whole are equal.

  On the CPU ONNX Runtime adds in float32, which shows the scores.
  """
  nodes = f"{SCORES} {how}  masked = Add(s, bias)  {END}"
  inputs = f"{QKV}, bool[2,1,5,5] m, float[4,5,5] b".replace("float", "float16")
  original = graph(nodes, inputs, Y.replace("float", "float16"))
  add_weights(original, zero=np.float16(0), low=np.float16(-65504))
  optimized, _ = run_pass(original, FUSE_ATTENTION, DEAD_NODES)
  (node,) = attentions(optimized)
  assert attributes(node) == {"mask_dtype": "float"}
  given = feeds(original, scale=0.8)
  given["m"][...] |= np.eye(5, dtype=bool)
  assert_equal(original, optimized, given)
  given["m"][1, 0, 2] = False
  mean = given["v"][1].astype(np.float64).mean(axis=-2)
  np.testing.assert_allclose(run(restore(optimized), given)[0][1, :, 2], mean, atol=2e-3)


def test_several_masks_are_added_up():
  how = """low = float {-inf}  biased = Add(s, b)  kept = Where(m, biased, low)
    masked = Add(kept, t)"""
  triangle = np.where(TRIANGLE, 0, -np.inf).astype(np.float32)
  original = masking(how, "float[4,5,5] b, bool[2,1,1,5] m", t=triangle)
  given = {"m": np.ones((2, 1, 1, 5), bool)}
  given["m"][1, ..., 3:] = False
  optimized, _ = run_pass(original, FUSE_ATTENTION, DEAD_NODES)
  (node,) = attentions(optimized)
  assert attributes(node) == {"causal": "upper_left", "mask_dtype": "float"}
  assert_equal(original, optimized, {**feeds(original), **given})


def test_constants_of_windows_are_repeated_for_each_image(rng):
  how = """windows = {2,2,4,5,5}  s5 = Reshape(s, windows)  m5 = Add(s5, m)  back = {4,4,5,5}
    masked = Reshape(m5, back)"""
  original = graph(f"{SCORES} {how} {END}", QKV.replace("[2,", "[4,"), Y.replace("[2,", "[4,"))
  add_weights(original, m=(rng.random((1, 2, 1, 5, 5)) < 0.5).astype(np.float32) * np.float32(-100))
  optimized, node = fused(original)
  assert attributes(node) == {"mask_dtype": "float"}
  mask = next(each for each in optimized.graph.initializer if each.name == node.input[3])
  assert list(mask.dims) == [4, 1, 5, 5]


def test_a_mask_of_heads_that_are_read_in_groups_is_read_as_it_is():
  nodes = """two = {2}  more = {2,2,2,5,8}  all = {2,4,5,8}
    k5 = Unsqueeze(k, two)  ke = Expand(k5, more)  kh = Reshape(ke, all)  kt = Transpose<0,1,3,2>(kh)
    v5 = Unsqueeze(v, two)  ve = Expand(v5, more)  vh = Reshape(ve, all)
    s = MatMul(q, kt)  masked = Add(s, m)  p = Softmax<axis=-1>(masked)  y = MatMul(p, vh)"""
  inputs = "float[2,4,5,8] q, float[2,2,5,8] k, v, float[1,4,5,5] m"
  _, node = fused(graph(nodes, inputs, Y), into="FusedAttention")
  assert node.input[3] == "m"
