"""FusedAttention in ONNX Runtime on the CPU: its reference, what its decomposition gives in ONNX Runtime's own
operators, shapes, threads, what is refused."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime
import pytest
from attention_cases import CASES, GROWING, LARGE_CASES, by_name, case_of, check, growing
from node_cases import model_with
from onnx import helper
from onnx_models import parametrize

from ort.host import assert_equals_reference, make, on_any_threads, plain, run
from ort.refusals import assert_blamed
from ortplugin.errors import ModelError
from ortplugin.graph import DOMAIN
from ortplugin.ops import TensorType
from ortplugin.ops.attention import OPERATOR
from ortplugin.program import NUMPY_DTYPES

# They take up to 20 seconds each.
LARGE = [pytest.param(case, marks=pytest.mark.one_in(4)) for case in LARGE_CASES]


@parametrize("case", [*CASES, *LARGE])
def test_equals_the_reference(case):
  assert_equals_reference(case, check, inferred=not any(0 in shape for shape in case.shapes))


def decomposed(case, opset, shapes=None):
  """The outputs of the case's decomposition, without the library."""
  return run(plain(case.model_of(OPERATOR.decompose(case.node(), opset), shapes, opset)), case)


@parametrize("case", [*CASES, *LARGE])
def test_the_decomposition_gives_the_same(case):
  check(case, decomposed(case, 18), unit=2.0**-50 if case.dtype == "double" else 2.0**-21)


OPSETS = (
  "merged, float16",
  "one of two, float",
  "packed, an axis, float16",
  "packed, fewer heads, float",
  "rows of a matrix, of other sizes",
  "mask all, bool of float16, zero",
  "mask of keys, float of float, zero",
  "window, 20 by 90, float, alone",
  "softcap and mask, double",
  "no keys, zero, float16",
  "no batch, merged, float",
  "rotary half, packed, fewer heads",
  "rotary interleaved, 70 rows, 32 pairs of 64, float for float16",
  "rotary interleaved, everything, double",
  "rotary half, nothing",
)


@parametrize("opset", [11, 12, 13, 14, 17, 18, 22])
@parametrize("name", OPSETS)
def test_the_decomposition_at_every_opset(name, opset):
  """Of tensors whose sizes the model does not say."""
  case = by_name[name]
  found = decomposed(case, opset, [[None] * len(shape) for shape in case.shapes])
  check(case, found, unit=2.0**-50 if case.dtype == "double" else 2.0**-21)


@parametrize("case", LARGE)
def test_the_number_of_threads_changes_no_bit(case):
  on_any_threads(case)


def test_shapes_may_change_from_run_to_run():
  cases = [
    case_of(f"changing {sizes}", "float", sizes, "merged", causal="lower_right", scale=0.25)
    for sizes in ((2, 3, 5, 7, 8), (1, 3, 65, 130, 16), (0, 3, 1, 1, 8), (2, 3, 0, 4, 8), (2, 3, 5, 7, 8))
  ]
  session = make(cases[0].model([["b", "s", "c"], ["b", "t", "c"], ["b", "t", "e"]]))
  assert session.get_outputs()[0].shape[:2] == ["b", "s"]
  for case in cases:
    check(case, run(session, case))


def test_a_cache_grows_from_run_to_run():
  """A prompt, then tokens: what is present is the past of the next run, in one session."""
  session = make(growing(0, 1).model(GROWING))
  past, given = 0, growing(0, 1).inputs()[5:]
  for rows in (40, 1, 1, 3, 1):
    case = growing(past, rows)
    inputs = [*case.inputs()[:5], *given]
    found = session.run(None, dict(zip(case.names, inputs, strict=True)))
    check(case, found, inputs=inputs)
    past, given = past + rows, found[1:]


@parametrize("name", ["written 300, 3 at -100 of 1, half, float16", "written 9, 1 at 8 of 4, none, float16"])
def test_a_cache_is_written_in_place(name):
  """What is present has the memory of the past."""
  case = by_name[name]
  session = make(case.model())
  given = {name: onnxruntime.OrtValue.ortvalue_from_numpy(each.copy()) for name, each in case.feeds().items()}
  binding = session.io_binding()
  for value in session.get_inputs():
    binding.bind_ortvalue_input(value.name, given[value.name])
  binding.bind_output("y", "cpu")
  for kind in ("key", "value"):
    binding.bind_ortvalue_output(f"present_{kind}", given[f"past_{kind}"])
  session.run_with_iobinding(binding)
  check(case, [binding.get_outputs()[0].numpy(), *(given[f"past_{kind}"].numpy() for kind in ("key", "value"))])


@parametrize("position", [-10, 9, 2**62, -(2**63)])
def test_a_position_that_is_none_of_the_cache(position):
  case = by_name["written 9, 1 at 8 of 4, none, float"]
  feeds = {**case.feeds(), "position": np.array([position])}
  with pytest.raises(Exception, match=f"position is {position}, but 1 rows from there on must be among the 9"):
    make(case.model()).run(None, feeds)


def test_a_mask_may_be_left_out_by_an_empty_name():
  """In the specification. ONNX Runtime itself gives no empty name to an operator of a library."""
  case = by_name["merged, float"]
  node = case.node()
  node.input.append("")
  decomposition = case.model_of(OPERATOR.decompose(node, 18))
  check(case, run(plain(decomposition), case))
  with pytest.raises(Exception, match="FusedAttention"):
    make(case.model_of([node]))


def test_a_name_of_a_size_is_kept():
  """Whatever layout it passes through, where no product hides it."""
  for layout, given, wanted in (
    ("standard", [["n", 3, "s", 8], ["n", 3, "t", 8], ["n", 3, "t", 8]], ["n", 3, "s", 8]),
    ("standard", [[2, 3, "s", 8], ["n", 3, "t", 8], ["m", 3, "t", "e"]], [2, 3, "s", "e"]),
    ("merged", [["n", "s", 24], ["n", "t", 24], ["n", "t", 24]], ["n", "s", 24]),
    ("channels first", [["n", "c", "s"], ["n", "c", "t"], ["n", 24, "t"]], ["n", 24, "s"]),
    ("rows of a matrix", [["n", 3, "s", 8], ["n", 3, "t", 8], ["n", 3, "t", 8]], [None, 24]),
  ):
    session = make(case_of("names", "float", (2, 3, 5, 7, 8), layout).model(given))
    found = [dim if not str(dim).startswith("ortplugin_") else None for dim in session.get_outputs()[0].shape]
    assert found == wanted


def test_unknown_ranks():
  case = by_name["mask all, bool of float, zero"]
  check(case, run(make(case.model([None] * 4)), case))
  check(case, run(make(case.model([None, None, [2, 2, 70, 16], None])), case))


# ---- refusals


@dataclass(frozen=True)
class Wrong:
  """A node with something wrong: its attributes, the shapes of Q, K and V (and the mask), and the message's words."""

  words: str
  given: tuple[tuple[str, Any], ...] = ()
  shapes: tuple[tuple[int, ...], ...] = ((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 6))
  mask: str = ""
  last: str = ""  # the dtype of the last input, if not float
  outputs: int = 1

  @property
  def dtypes(self):
    """Of the inputs."""
    made = [self.mask if i == 3 and self.mask else "float" for i in range(len(self.shapes))]
    return [*made[:-1], self.last or made[-1]]

  def node(self):
    given = {"qkv_dtype": "float", "heads": 4, "kv_heads": 2, **({"mask_dtype": self.mask} if self.mask else {}),
             **dict(self.given)}  # fmt: skip
    names = [f"x{i}" for i in range(len(self.shapes))]
    given = {key: value for key, value in given.items() if value is not None}
    outputs = ["y", "present_key", "present_value"][: self.outputs]
    return helper.make_node("FusedAttention", names, outputs, "culprit", domain=DOMAIN, **given)

  def model(self, known):
    inputs = [
      (f"x{i}", dtype, shape if known else None)
      for i, (dtype, shape) in enumerate(zip(self.dtypes, self.shapes, strict=True))
    ]
    return model_with([self.node()], inputs, [(name, "float") for name in self.node().output])


def _wrong(words, *shapes, mask="", **given):
  return Wrong(words, tuple(given.items()), shapes or Wrong.shapes, mask)


def _cached(words, *past, outputs=3, **given):
  return Wrong(words, tuple(given.items()), (*Wrong.shapes, *past), outputs=outputs)


def _rotated(words, cos, sin_shape=None, sin="", shapes=((2, 4, 5, 8), (2, 2, 5, 8), (2, 2, 5, 6)), **given):
  return Wrong(words, (("rotary", "half"), *given.items()), (*shapes, cos, sin_shape or cos), last=sin)


PAST = (2, 2, 9, 8), (2, 2, 9, 6)
WRONG = (
  _wrong("'qkv_dtype' is missing", qkv_dtype=None),
  _wrong("'qkv_dtype' is 'int8'", qkv_dtype="int8"),
  _wrong("'heads' is 0", heads=None),
  _wrong("'heads' is 65537", heads=65537),
  _wrong("'kv_heads' is 0", kv_heads=0),
  _wrong("heads is 3, but must be a multiple of kv_heads, 2", heads=3),
  _wrong("'causal' is 'both'", causal="both"),
  _wrong("'masked_rows' is 'none'", masked_rows="none"),
  _wrong("'window' is -1", causal="upper_left", window=-1),
  _wrong("window is 3 beside causal 'none'", window=3),
  _wrong("scale is inf", scale=float("inf")),
  _wrong("softcap -1", softcap=-1.0),
  _wrong("'q_layout' is 'b s h': b, s, h and d must each stand there once", q_layout="b s h"),
  _wrong("'k_layout' is 'b h s x': 'x' is none of the atoms", k_layout="b h s x"),
  _wrong("'v_layout' is 'b (h s d)': a product has more than one of b, s and d", v_layout="b (h s d)"),
  _wrong("'y_layout' is 'b h s d 0/2': an output is all of its tensor", y_layout="b h s d 0/2"),
  _wrong("'k_layout' is 'b h:3/4 s d': from head 3 on there are no 2 of 4", k_layout="b h:3/4 s d"),
  _wrong("'k_layout' is 'b (h s d': its parentheses", k_layout="b (h s d"),
  _wrong(
    "there is a mask, but the attribute 'mask_dtype' is missing", *Wrong.shapes, (5, 7), mask_dtype=None, mask="bool"
  ),
  _wrong("'mask_dtype' is there, but no mask", mask_dtype="bool"),
  _wrong("'mask_dtype' is 'float16'", *Wrong.shapes, (5, 7), mask="float16"),
  _wrong("Q: its shape is [2, 3, 5, 8], but its layout 'b h s d' has 4 on axis 1", (2, 3, 5, 8), *Wrong.shapes[1:]),
  _wrong(
    "K: its shape is [2, 7, 15], but its layout 'b s (h d)' has a multiple of 2 on axis 2",
    Wrong.shapes[0],
    (2, 7, 15),
    Wrong.shapes[2],
    k_layout="b s (h d)",
  ),
  _wrong("V: its shape is [2, 7], but its layout 'b h s d' has 4 axes", *Wrong.shapes[:2], (2, 7)),
  _wrong("b of Q is 2, b of K is 3", Wrong.shapes[0], (3, 2, 7, 8), (3, 2, 7, 6)),
  _wrong("s of K is 7, s of V is 9", *Wrong.shapes[:2], (2, 2, 9, 6)),
  _wrong("d of Q is 8, d of K is 4", Wrong.shapes[0], (2, 2, 7, 4), Wrong.shapes[2]),
  _wrong("the head size, d of V, is 257", *Wrong.shapes[:2], (2, 2, 7, 257)),
  _wrong("the head size, d of K, is 0", (2, 4, 5, 0), (2, 2, 7, 0), (2, 2, 7, 6)),
  _wrong("the mask's shape [5, 6] does not broadcast to [2, 4, 5, 7]", *Wrong.shapes, (5, 6), mask="bool"),
  _wrong("'rotary' is 'full'", rotary="full"),
  _wrong("'rotary_dtype' is 'float', but 'rotary' is none", rotary_dtype="float"),
  _wrong("the node has 3 inputs", rotary="half"),
  _rotated("'rotary_dtype' is 'double' but must be one of float", (5, 4), rotary_dtype="double"),
  _rotated("sin is float16, but the attribute 'rotary_dtype' is float; cast it", (5, 4), sin="float16"),
  _rotated("s of Q is 5, s of K, which is rotated as Q is, is 7", (5, 4), shapes=Wrong.shapes),
  _rotated("cos is [5, 4] and sin [5, 3], but both are of one shape", (5, 4), (5, 3)),
  _rotated("cos is [1, 1, 5, 4] and sin", (1, 1, 5, 4)),
  _rotated("cos is [6, 4], but b of Q is 2 and s of Q and K is 5", (6, 4)),
  _rotated("cos is [3, 5, 4], but b of Q is 2", (3, 5, 4)),
  _rotated("cos has 5 columns, but must have 1 to 8 / 2, half the head size", (5, 5)),
  _rotated("cos has 0 columns", (5, 0)),
  _cached("the node has 5 inputs and 2 outputs", *PAST, outputs=2),
  _cached("and 3 outputs; its inputs are Q, K, V"),
  _cached("'past_layout' is there, but no past_key", outputs=1, past_layout="b h s d"),
  _cached("'past_layout' is 'b h s 0/2 d'", (2, 2, 9, 2, 8), (2, 2, 9, 2, 6), past_layout="b h s 0/2 d"),
  _cached("'past_layout' is '(b s) h d': a product has", (18, 2, 8), (18, 2, 6), past_layout="(b s) h d"),
  _cached("b of Q, K and V is 2, b of past_key is 3", (3, 2, 9, 8), (2, 2, 9, 6)),
  _cached("s of past_key is 9, s of past_value is 8", (2, 2, 9, 8), (2, 2, 8, 6)),
  _cached("d of K is 8, d of past_key is 4", (2, 2, 9, 4), (2, 2, 9, 6)),
  _cached("d of V is 6, d of past_value is 8", (2, 2, 9, 8), (2, 2, 9, 8)),
  _cached("past_key: its shape is [2, 4, 9, 8], but its layout 'b h s d' has 2 on axis 1", (2, 4, 9, 8), (2, 2, 9, 6)),
  _cached("the node has 6 inputs and 2 outputs", *PAST, (1,), outputs=2, cache="write"),
  _cached("'cache' is 'over'", *PAST, cache="over"),
  _cached("'cache' is write, but past_key, past_value and position are not there", outputs=1, cache="write"),
  _cached("position is float, but must be int64; cast it", *PAST, (1,), cache="write"),
  _wrong("the mask's shape [1, 1, 1, 5, 7] does not broadcast", *Wrong.shapes, (1, 1, 1, 5, 7), mask="bool"),
)


# What the specification says where it is not the same, but for quotes around an attribute's name.
IN_OTHER_WORDS = {
  "'qkv_dtype' is missing": "qkv_dtype, that of Q, K, V and Y, is ''",
  "'qkv_dtype' is 'int8'": "qkv_dtype, that of Q, K, V and Y, is 'int8'",
  "'heads' is 0": "heads is None, but must be from 1",
  "'k_layout' is 'b h:3/4 s d': from head 3": "k_layout is 'b h:3/4 s d', but from head 3",
  "there is a mask, but": "mask_dtype is '', but must be one of ('bool', 'float')",
  "'mask_dtype' is there": "mask_dtype is 'bool', but there is no mask; remove it",
  "'rotary_dtype' is 'float', but": "rotary_dtype is 'float', but rotary is 'none'; remove it",
  "'rotary_dtype' is 'double' but": "rotary_dtype is 'double', but must be 'float'",
  "sin is float16": "sin is float16, but rotary_dtype is 'float'; cast it",
  "the node has 3 inputs": "perhaps a mask, and with rotary 'half' cos and sin",
  "the node has 5 inputs": "all four; but it has ['x0', 'x1', 'x2', 'x3', 'x4'] and 2 outputs",
  "the node has 6 inputs": "all four, and position; but it has ['x0', 'x1', 'x2', 'x3', 'x4', 'x5'] and 2 outputs",
  "'cache' is write, but": "all four, and position; but it has ['x0', 'x1', 'x2'] and 1 outputs",
  "position is float": "position is float32, but must be int64; cast it",
  "and 3 outputs": "its inputs are Q, K, V and perhaps a mask",
  "'past_layout' is there": "past_layout is 'b h s d', but there is no past_key; remove it",
  "b of Q, K and V": "b of Q is 2 and b of past_key is 3",
  "d of K is 8, d of past_key": "d of Q is 8 and d of past_key is 4",
}


def in_python(words):
  for start, other in IN_OTHER_WORDS.items():
    if words.startswith(start):
      return other
  words = re.sub(r"^'(\w+)' is", r"\1 is", words)
  words = re.sub(r", (\w of \w+)(, which .*,)? is", r" and \1\2 is", words)
  return re.sub(r"but its layout ('.*') has (.*) on (axis \d)", r"but by its layout \1 \3 has \2", words)


@parametrize("known", [True, False], ids=["known", "open"])
@parametrize("wrong", WRONG, ids=lambda wrong: wrong.words)
def test_what_is_wrong_is_refused(wrong, known):
  """With the session, or where only the shapes are wrong and not known, with the run; and by the specification."""
  feeds = {
    f"x{i}": np.ones(shape, NUMPY_DTYPES[dtype])
    for i, (dtype, shape) in enumerate(zip(wrong.dtypes, wrong.shapes, strict=True))
  }
  with pytest.raises(Exception) as caught:  # noqa: PT011, ONNX Runtime's own kinds
    make(wrong.model(known)).run(None, feeds)
  assert_blamed(caught.value, wrong.words, "FusedAttention")
  types = [TensorType(array.dtype, array.shape) for array in feeds.values()]
  with pytest.raises(ModelError, match="culprit") as spec:
    OPERATOR.infer_shapes(wrong.node(), types)
  assert in_python(wrong.words) in str(spec.value)


@parametrize("mask", ["", "mask"])
def test_a_float16_attention_between_operators_that_have_none(mask):
  """ONNX Runtime computes Sin in float there, and gives a node between two of them float instead of float16."""
  attributes = {"qkv_dtype": "float16", "heads": 2, "kv_heads": 2} | ({"mask_dtype": "float16"} if mask else {})
  attributes |= {f"{name}_layout": "b s (h d)" for name in "qkvy"}
  inputs = [("q", "float16", (1, 4, 6)), ("mask", "float16", (4, 4))]
  nodes = [
    helper.make_node("Sin", ["q"], ["a"]),
    helper.make_node("FusedAttention", ["a", "a", "q", *([mask] if mask else [])], ["b"], domain=DOMAIN, **attributes),
    helper.make_node("Sin", ["b"], ["y"]),
  ]
  rng = np.random.default_rng(0)
  feeds = {name: rng.standard_normal(shape).astype(np.float16) for name, _, shape in inputs[: 2 if mask else 1]}
  found = make(model_with(nodes, inputs[: len(feeds)], [("y", "float16")])).run(None, feeds)[0]
  q, v = (np.sin(feeds["q"].astype(float)).reshape(4, 2, 3), feeds["q"].astype(float).reshape(4, 2, 3))
  scores = np.einsum("shd,thd->hst", q, q) + (feeds["mask"].astype(float) if mask else 0)
  weights = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
  wanted = np.sin(np.einsum("hst,thd->shd", weights, v).reshape(1, 4, 6))
  np.testing.assert_allclose(found.astype(float), wanted, rtol=4e-3, atol=4e-3)
