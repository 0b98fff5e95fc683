import numpy as np
import pytest
from attention_cases import CASES, LAYOUTS, by_name, case_of, check
from node_cases import invalid_nodes
from onnx import helper
from onnx_models import parametrize

from ortplugin.errors import ModelError
from ortplugin.graph import DOMAIN
from ortplugin.ops import TensorType
from ortplugin.ops.attention import OPERATOR
from ortplugin.ops.attention.layout import Atom, Sizes, parse, shape_of, sizes
from ortplugin.ops.attention.reference import Scores, attention, laid_out, rotated, view

FLOAT = np.dtype(np.float32)

# ---- layouts


def test_a_layout_is_axes_of_atoms():
  layout = parse(" b  s(1/3 h:4/16 d) ")
  assert layout.axes == ((Atom("b"),), (Atom("s"),), (Atom("/", 1, 3), Atom("h", 4, 16), Atom("d")))
  assert str(layout) == "b s (1/3 h:4/16 d)"
  assert layout.order == "bshd"
  assert str(parse("(b) (h s) d")) == "b (h s) d"


@parametrize("texts", LAYOUTS.values())
def test_the_text_of_a_layout_is_the_layout(texts):
  for text, is_output in zip(texts, (False, False, False, True), strict=True):
    whole = text.format(h=4, hk=6, t=8)
    assert str(parse(whole, is_output=is_output)) == whole
    assert parse(str(parse(whole, is_output=is_output)), is_output=is_output) == parse(whole, is_output=is_output)


WRONG_LAYOUTS = {
  "": "must each stand there once",
  "b s h": "must each stand there once",
  "b s h d d": "must each stand there once",
  "b s h x": "'x' is none of the atoms",
  "b s h D": "'D' is none of the atoms",
  "b\ts h d": "is none of the atoms",
  "b s (h d": "parentheses",
  "b s h d)": "parentheses",
  "b (s (h d))": "parentheses",
  "b s () h d": "parentheses",
  "b s h 3/3 d": "'3/3' must be",
  "b s h /3 d": "'/3' is none of the atoms",
  "b s h -1/3 d": "'-1/3' is none of the atoms",
  "b s h:2 d": "'h:2' is none of the atoms",
  "b s h:5/4 d": "'h:5/4' must be",
  "b s d:0/2 h": "'d:0/2' is none of the atoms",
  "b s h 0/2147483648 d": "must be",
  "b s h d" + " 0/1" * 13: "longer than the 16 atoms",
  "b s h d" + " " * 2000: "longer than the 16 atoms",
  "b (s h d)": "more than one of b, s and d",
  "(b s) h d": "more than one of b, s and d",
}


@parametrize("text", WRONG_LAYOUTS)
def test_what_is_no_layout(text):
  with pytest.raises(ValueError, match=WRONG_LAYOUTS[text].replace("(", r"\(")):
    parse(text)


def test_an_output_may_merge_what_it_likes():
  assert str(parse("(b s h d)", is_output=True)) == "(b s h d)"
  for text in ("b s h d 0/1", "b s h:0/4 d"):
    with pytest.raises(ValueError, match="an output is all of its tensor"):
      parse(text, is_output=True)


SIZES = [
  ("b h s d", 4, (2, 4, "S", 8), Sizes(2, "S", 8)),
  ("b s (h d)", 4, ("N", None, 32), Sizes("N", None, 8)),
  ("b s (h d)", 4, (2, 5, "C"), Sizes(2, 5, None)),
  ("b s (h d)", 1, (2, 5, "C"), Sizes(2, 5, "C")),
  ("b s (1/3 h d)", 4, (2, 5, 96), Sizes(2, 5, 8)),
  ("b s (h:4/6 d)", 2, (2, 5, 48), Sizes(2, 5, 8)),
  ("(b h) s d", 4, (8, 0, 8), Sizes(2, 0, 8)),
  ("b (s 0/2) 1/2 h d", 4, ("N", 10, 2, None, 8), Sizes("N", 5, 8)),
]


@parametrize("text, heads, shape, wanted", SIZES)
def test_sizes_of_a_shape(text, heads, shape, wanted):
  assert sizes(parse(text), heads, shape) == wanted


def test_a_shape_that_does_not_fit():
  for text, shape, words in (
    ("b h s d", (2, 3, 5, 8), r"\[2, 3, 5, 8\], but by its layout 'b h s d' axis 1 has 4"),
    ("b s (h d)", (2, 5, 30), "axis 2 has a multiple of 4"),
    ("b s h d 1/3", (2, 5, 4, 8, 2), "axis 4 has 3"),
    ("b s (h d)", (2, 5), "has 3 axes"),
  ):
    with pytest.raises(ValueError, match=words):
      sizes(parse(text), 4, shape)


def test_shapes_of_sizes():
  for text, of, wanted in (
    ("b s (h d)", Sizes("N", "S", 8), ("N", "S", 32)),
    ("b s (h d)", Sizes("N", 5, None), ("N", 5, None)),
    ("(b s) h d", Sizes(1, "S", "D"), ("S", 4, "D")),
    ("(b s) h d", Sizes("N", "S", 8), (None, 4, 8)),
  ):
    assert shape_of(parse(text, is_output=True), 4, of) == wanted


# ---- reference


def slow(q, k, v, mask, how):
  batch, heads, queries, _ = q.shape
  keys, group = k.shape[2], heads // k.shape[1]
  y = np.zeros((batch, heads, queries, v.shape[3]))
  for b, h, i in np.ndindex(batch, heads, queries):
    s = np.full(keys, -np.inf)
    last = i + (keys - queries if how.causal == "lower_right" else 0)
    for j in range(keys):
      if how.causal != "none" and (j > last or (how.window and j <= last - how.window)):
        continue
      s[j] = how.scale * float(q[b, h, i] @ k[b, h // group, j])
      if how.softcap:
        s[j] = how.softcap * np.tanh(s[j] / how.softcap)
      if mask is not None:
        given = np.broadcast_to(mask, (batch, heads, queries, keys))[b, h, i, j]
        s[j] = (s[j] if given else -np.inf) if mask.dtype == np.bool_ else s[j] + given
    if (s == -np.inf).all():
      y[b, h, i] = 0 if how.zero or keys == 0 else np.nan
    else:
      p = np.exp(s - s.max())
      y[b, h, i] = (p / p.sum()) @ v[b, h // group]
  return y


@parametrize("causal", ["none", "upper_left", "lower_right"])
@parametrize("queries, keys", [(5, 7), (7, 5), (4, 4), (1, 3), (3, 0)])
def test_the_reference_is_the_formula(queries, keys, causal):
  rng = np.random.default_rng(queries * 10 + keys)
  q, k, v = rng.standard_normal((2, 4, queries, 3)), rng.standard_normal((2, 2, keys, 3)), rng.random((2, 2, keys, 6))
  seen = rng.random((queries, keys)) < 0.6
  added = np.where(seen, rng.random((queries, keys)), -np.inf)
  for mask in (None, seen, added):
    for zero in (False, True):
      for window, softcap in ((0, 0.0), (2, 1.5)) if causal != "none" else ((0, 0.0), (0, 1.5)):
        how = Scores(0.7, softcap, causal, window, zero)
        np.testing.assert_allclose(attention(q, k, v, mask, how), slow(q, k, v, mask, how), 1e-12)


def test_views():
  x = np.arange(2 * 5 * 3 * 4 * 8).reshape(2, 5, 96)
  whole = x.reshape(2, 5, 3, 4, 8)
  np.testing.assert_array_equal(view(x, parse("b s (1/3 h d)"), 4), whole[:, :, 1].transpose(0, 2, 1, 3))
  heads = x.reshape(2, 5, 12, 8)[:, :, 4:6].transpose(0, 2, 1, 3)
  np.testing.assert_array_equal(view(x, parse("b s (h:4/12 d)"), 2), heads)
  for text in ("b s (h d)", "(b h) d s", "s (h b) d", "(d b s h)"):
    y = laid_out(heads, parse(text, is_output=True))
    assert y.shape == shape_of(parse(text, is_output=True), 2, Sizes(2, 5, 8))
  np.testing.assert_array_equal(view(laid_out(heads, parse("s (h d) b")), parse("s (h d) b"), 2), heads)


def test_the_decomposition_is_small_where_nothing_is_asked_for():
  node = case_of("plain", "float", (2, 3, 5, 7, 8), scale=1.0).node()
  assert [each.op_type for each in OPERATOR.decompose(node, 18) if each.op_type != "Constant"] == [
    "Transpose", "MatMul", "Softmax", "MatMul", "Identity",
  ]  # fmt: skip


# ---- shapes


def types_of(*shapes):
  return [TensorType(FLOAT, shape) for shape in shapes]


def test_shape_inference():
  node = case_of("shapes", "float", (2, 4, 2, 5, 7, 8, 6), "merged").node()
  for shapes, wanted in (
    ([("N", "S", 32), ("N", "T", 16), ("N", "T", 12)], ("N", "S", 24)),
    ([(None, "S", None), (2, None, None), (None, 7, 12)], (2, "S", 24)),
    ([None, None, (3, 7, 12)], (3, None, 24)),
    ([("A", 5, 32), ("B", 7, 16), None], ("A", 5, None)),
    ([(0, 0, 32), (0, 0, 16), (0, 0, 12)], (0, 0, 24)),
  ):
    assert OPERATOR.infer_shapes(node, types_of(*shapes)) == types_of(wanted)
  assert OPERATOR.infer_shapes(node, types_of(None, None, None)) == types_of(None)
  assert OPERATOR.infer_shapes(node, [TensorType(None, None)] * 3) == types_of(None)


def node_with(inputs=3, outputs=1, **given):
  whole = {"qkv_dtype": "float", "heads": 4, "kv_heads": 2, **given}
  names = [f"x{i}" for i in range(inputs)], [f"y{i}" for i in range(outputs)]
  kept = {key: value for key, value in whole.items() if value is not None}
  return helper.make_node("FusedAttention", *names, "culprit", domain=DOMAIN, **kept)


# What ONNX Runtime refuses, too, tests/ort/test_attention.py has.
WRONG = {
  "all four; but it has ['x0', 'x1', 'x2', 'x3', 'x4'] and 1 outputs": node_with(5),
  "it has no attribute 'head'; did you mean heads": node_with(head=3),
  "the attribute 'scale' is INT instead of FLOAT": node_with(scale=1),
  "mask_dtype is 'double', but must be one of ('bool', 'float', 'float16')": node_with(
    4, qkv_dtype="float16", mask_dtype="double"
  ),
  "allow_tf32 is 2": node_with(allow_tf32=2),
  "mask_dtype is '', but must be one of ('bool', 'float', 'float16')": node_with(6, qkv_dtype="float16", rotary="half"),
  "rotary_dtype is 'double', but must be 'float' or 'float16'": node_with(
    5, qkv_dtype="float16", rotary="interleaved", rotary_dtype="double"
  ),
}


test_an_invalid_node_is_named = invalid_nodes(WRONG)


def test_shapes_of_a_cache():
  node = node_with(5, 3, past_layout="b s h d")
  given = types_of((2, 4, 5, 8), (2, 2, "N", 8), (None, 2, 5, 6), (2, 7, 2, 8), (2, "P", 2, 6))
  assert OPERATOR.infer_shapes(node, given) == types_of((2, 4, 5, 6), (2, 12, 2, 8), (2, 12, 2, 6))
  given[1:5] = types_of((2, 2, "N", 8), None, (2, "P", 2, 8), None)
  assert OPERATOR.infer_shapes(node, given) == types_of((2, 4, 5, None), (2, None, 2, 8), (2, None, 2, None))


def test_the_mask_broadcasts_and_dtypes_are_those_of_the_attributes():
  right = [(2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 6)]
  assert OPERATOR.infer_shapes(node_with(), types_of(*right)) == types_of((2, 4, 5, 6))
  masked = node_with(4, mask_dtype="bool")
  for mask in ((2, 2, 5, 7), (0,)):
    with pytest.raises(ModelError, match=r"the mask's shape .* does not broadcast"):
      OPERATOR.infer_shapes(masked, [*types_of(*right), TensorType(np.dtype(bool), mask)])
  for mask in ((), ("M",), (5, 1), (2, 1, None, 7)):
    assert OPERATOR.infer_shapes(masked, [*types_of(*right), TensorType(np.dtype(bool), mask)])
  with pytest.raises(ModelError, match="the mask is float32, but mask_dtype is 'bool'"):
    OPERATOR.infer_shapes(masked, types_of(*right, (5, 7)))
  with pytest.raises(ModelError, match="V is float64, but qkv_dtype is 'float'"):
    OPERATOR.infer_shapes(node_with(), [*types_of(*right[:2]), TensorType(np.dtype(np.float64), right[2])])


# ---- the comparison: it must see what a wrong kernel would do


def _outputs(case):
  return [np.array(each) for each in OPERATOR.reference(case.node(), case.inputs())]


@parametrize("case", CASES[::9])
def test_the_reference_passes_its_own_comparison(case):
  check(case, _outputs(case))


ROTATED_MISTAKES = {
  "the angles' sign": lambda x: [*x[:4], -x[4]],
  "a row further": lambda x: [*x[:3], *(np.roll(each, 1, axis=0) for each in x[3:])],
  "one pair is not": lambda x: [*x[:3], np.where(np.arange(4) == 3, 1, x[3]), np.where(np.arange(4) == 3, 0, x[4])],
  "Q is not": lambda x: [turned(x[0], x[3], -x[4]), *x[1:]],
}


def turned(x, cos, sin):
  return np.array(rotated(x, cos, sin, "half"))


def assert_seen(case, mistake):
  inputs = [np.asarray(x) for x in case.inputs()]
  changed = [np.asarray(x).astype(inputs[0].dtype) for x in mistake(inputs)]
  with pytest.raises(AssertionError, match="differ"):
    check(case, OPERATOR.reference(case.node(), changed))


@parametrize("dtype", ["float16", "bfloat16", "float", "double"])
@parametrize("mistake", ROTATED_MISTAKES)
def test_the_comparison_sees_mistakes_of_a_rotation(mistake, dtype):
  case = case_of(f"mistaken, rotated, {dtype}", dtype, (2, 2, 20, 20, 16), tables=(dtype, (20, 4)), rotary="half")
  assert_seen(case, ROTATED_MISTAKES[mistake])


def test_a_rotation_is_the_formula():
  rng = np.random.default_rng(5)
  x, angles = rng.standard_normal((2, 3, 4, 11)), rng.uniform(-9, 9, (2, 4, 5))
  for rotary, pairs in (
    ("half", [(p, p + 5) for p in range(5)]),
    ("interleaved", [(2 * p, 2 * p + 1) for p in range(5)]),
  ):
    found = rotated(x, np.cos(angles), np.sin(angles), rotary)
    for p, (m, n) in enumerate(pairs):
      wanted = (x[..., m] + 1j * x[..., n]) * np.exp(1j * angles[:, None, :, p])
      np.testing.assert_allclose(found[..., m] + 1j * found[..., n], wanted, 1e-12)
    np.testing.assert_array_equal(found[..., 10:], x[..., 10:])


def test_tables_in_the_mask_s_place():
  """An empty name between V and cos is no mask."""
  case = by_name["rotary half, merged"]
  node = case.node()
  node.input.insert(3, "")
  inputs = case.inputs()
  inputs.insert(3, None)
  check(case, OPERATOR.reference(node, inputs))
  assert OPERATOR.infer_shapes(node, [TensorType(None, None)] * 6)[0].shape is None


MISTAKES = {
  "a key is left out": lambda x: [x[0], x[1], np.where(np.arange(70)[:, None] == 9, 0, x[2])],
  "two keys are swapped": lambda x: [x[0], x[1][:, :, [*range(5), 6, 5, *range(7, 70)]], x[2]],
  "another head's values": lambda x: [x[0], x[1], x[2][:, ::-1]],
  "the head is cut short": lambda x: [np.where(np.arange(16) == 15, 0, x[0]), x[1], x[2]],
}


@parametrize("dtype", ["float16", "bfloat16", "float", "double"])
@parametrize("mistake", MISTAKES)
def test_the_comparison_sees_mistakes(mistake, dtype):
  assert_seen(case_of(f"mistaken, {dtype}", dtype, (2, 2, 20, 70, 16)), MISTAKES[mistake])
