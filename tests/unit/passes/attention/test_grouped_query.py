"""ONNX Runtime's GroupQueryAttention: a cache that is written, one that is begun, none; and what stays."""

import numpy as np
import pytest
from attention_helpers import STANDARD, attentions, attributes, feeds, in_float  # noqa: F401, a fixture
from pass_helpers import add_weights, assert_close, model, operators, parametrize, restore, run, run_pass, stays

from ortplugin.optimizer.pipeline import ATTENTION_ROTARY, COMMON_SUBEXPRESSIONS, DEAD_NODES, FUSE_ATTENTION

pytestmark = pytest.mark.usefixtures("in_float")

GQA = "com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 2"
APART = "float[{b},{s},64] q, float[{b},{s},32] k, v"
PACKED = "float[{b},{s},128] q"
CACHE = ", float[{b},2,{p},16] pk, pv"
LENGTHS = ", int32[{b}] l"
WRITTEN = {"scale": 0.25, "causal": "lower_right", "cache": "write", **STANDARD}


def built(attributes_="", inputs="q, k, v", b=2, s=1, rows=9, total=9, more="", values="", opset=17, lengths=LENGTHS):
  """The operator with a past of so many rows, where there are any, and a constant total_sequence_length."""
  given = (PACKED if inputs == "q, , " else APART) + (CACHE if rows is not None else "") + lengths
  past = "pk, pv" if rows is not None else ", "
  y = f"float[{b},{s},64] y, float[{b},2,{rows or total},16] ok, ov"
  node = f"y, ok, ov = {GQA}{attributes_}> ({inputs}, {past}, l, total{more})"
  total_ = f"int32 total = {{{total}}}" if total else ""
  graph = f"({given.format(b=b, s=s, p=rows)}{values}) => ({y}) <{total_}> {{ {node} }}"
  return model(graph, opset, True, ir=10)


def with_tables(original, rng, pairs=8, rows=16):
  """The tables of a rotation, of which both are float."""
  angles = rng.standard_normal((rows, pairs))
  add_weights(original, cos=np.cos(angles).astype(np.float32), sin=np.sin(angles).astype(np.float32))
  return original


def fused(original, last, passes=(), **given):
  """The node, for which all rows of the caches that are in use, and what is read of them, equal the original's."""
  optimized, _ = run_pass(original, FUSE_ATTENTION, *passes, DEAD_NODES)
  (node,) = attentions(optimized)
  assert_same(original, optimized, last, feeds(original, **{"": 0}) | given)
  return optimized, node


def assert_same(original, optimized, last, given):
  """Of each text what is in use, up to its last row."""
  given |= {"l": np.array(last, np.int32)}
  expected, found = run(original, given), run(restore(optimized), given)
  for text, filled in enumerate(np.ravel(last)):
    assert_close(expected[0][text, : filled + 1], found[0][text, : filled + 1])
    for one, other in zip(expected[1:], found[1:], strict=True):
      assert_close(one[text, :, : filled + 1], other[text, :, : filled + 1])


FORMS = {
  "one row": ({}, [8, 3], {}),
  "one row in an empty cache": ({}, [0, 5], {}),
  "some rows of one text": ({"b": 1, "s": 3}, [5], {}),
  "a prompt in a cache with more room": ({"s": 4, "total": 4}, [3, 1], {}),
  "scale and softcap": ({"attributes_": ", scale = 0.5, softcap = 2.0"}, [8, 3], {"scale": 0.5, "softcap": 2.0}),
  "a window": ({"attributes_": ", local_window_size = 3"}, [8, 1], {"window": 3}),
  "a window over some rows": ({"attributes_": ", local_window_size = 3", "b": 1, "s": 4}, [6], {"window": 3}),
  "packed": ({"inputs": "q, , "}, [8, 3], {}),
  "lengths in a column": ({"lengths": ", int32[2,1] l"}, [[8], [3]], {}),
  "a bias": (
    {"more": ", , , , m", "values": ", float[2,1,1,9] m"},
    [8, 3],
    {"mask_dtype": "float"},
  ),
}


@parametrize("form", FORMS)
def test_a_cache_that_is_written(form):
  how, last, expected = FORMS[form]
  _, node = fused(built(**how), last)
  shown = attributes(node)
  packed = {f"{each}_layout": shown[f"{each}_layout"] for each in "qkv"} if how.get("inputs") else {}
  assert shown == WRITTEN | packed | expected
  assert list(node.output) == ["y", "ok", "ov"]


@parametrize("interleaved", [0, 1])
@parametrize("how", ["one row", "some rows", "a prompt", "positions", "packed", "begun"])
def test_the_rotation_is_drawn_in(how, interleaved, rng):
  forms = {
    "one row": ({}, [8, 3]),
    "some rows": ({"b": 1, "s": 3}, [5]),
    "a prompt": ({"s": 4, "total": 4}, [3, 1]),
    "positions": ({"more": ", cos, sin, at", "values": ", int64[2,1] at"}, [8, 3]),
    "packed": ({"inputs": "q, , "}, [8, 3]),
    "begun": ({"s": 4, "total": 4, "rows": None}, [3, 1]),
  }
  build, last = forms[how]
  tables = {"more": ", cos, sin", "attributes_": f", do_rotary = 1, rotary_interleaved = {interleaved}"}
  original = with_tables(built(**tables | build), rng)
  given = {"at": np.array([[11], [4]])} if how == "positions" else {}
  optimized, node = fused(original, last, (ATTENTION_ROTARY,), **given)
  assert attributes(node)["rotary"] == ("interleaved" if interleaved else "half")
  assert {"RotaryEmbedding", "Split"}.isdisjoint(operators(optimized))


def test_layers_share_what_tells_their_rows(rng):
  """Two operators with the same lengths: one Cast, and one Gather of each table."""
  node = f"{GQA}, do_rotary = 1>"
  original = model(
    f"""({APART.format(b=2, s=1)}{CACHE.format(b=2, p=9)}, int32[2] l) => (float[2,1,64] y, float[2,2,9,16] ok, ov,
    float[2,2,9,16] uk, uv) <int32 total = {{9}}> {{
      a, ok, ov = {node}(q, k, v, pk, pv, l, total, cos, sin)
      y, uk, uv = {node}(a, k, v, pk, pv, l, total, cos, sin) }}""",
    17,
    True,
    ir=10,
  )
  passes = (FUSE_ATTENTION, ATTENTION_ROTARY, DEAD_NODES, COMMON_SUBEXPRESSIONS, DEAD_NODES)
  optimized, _ = run_pass(with_tables(original, rng), *passes)
  assert operators(optimized) == ["Cast", "Unsqueeze", "Gather", "Gather", "FusedAttention", "FusedAttention"]


def test_keys_that_are_all_new():
  """Without a past, where what is present is read, and where it is not; and a past without rows."""
  for rows, present, inputs in ((None, True, 5), (None, False, 3), (0, True, 5)):
    original = built(b=2, s=4, rows=rows, total=4)
    if rows == 0:
      for each in original.graph.output[1:]:
        each.type.tensor_type.shape.dim[2].dim_value = 4
    if not present:
      del original.graph.output[1:]
    _, node = fused(original, [3, 1])
    causal = "lower_right" if present else "upper_left"
    assert attributes(node) == {"scale": 0.25, "causal": causal, **STANDARD}
    assert len(node.input) == inputs


def test_open_rows_and_texts(rng):
  """How many rows are new, and of how many texts, is told at run time; the cache has the room that it says."""
  tables = {"more": ", cos, sin", "attributes_": ", do_rotary = 1"}
  original = with_tables(built(b="B", s="S", rows="T", total=None, values=", int32[1] total", **tables), rng)
  optimized, _ = run_pass(original, FUSE_ATTENTION, ATTENTION_ROTARY, DEAD_NODES)
  (node,) = attentions(optimized)
  assert attributes(node)["rotary"] == "half"
  for texts, new, total, last in ((2, 1, 9, [8, 3]), (2, 4, 4, [3, 2]), (1, 3, 7, [6])):
    given = feeds(original, B=texts, S=new, T=9) | {"total": np.array([total], np.int32)}
    assert_same(original, optimized, last, given)


STAY = {
  "a past that grows": ({"rows": 8, "total": 9}, "is not known to have room for all of 'total'"),
  "a length that nobody knows": (
    {"rows": 8, "total": None, "values": ", int32[1] total"},
    "fix the shapes of the past",
  ),
  "a prompt of unknown length": (
    {"s": 4, "rows": None, "total": None, "values": ", int32[1] total"},
    "'total' is not known to be the number of queries",
  ),
  "keys of other rows": ({"inputs": "q, r, r", "values": ", float[2,3,32] r"}, "are not Q, K and V of 4 and 2 heads"),
  "a rotation without tables": ({"attributes_": ", do_rotary = 1"}, "it lacks an input"),
  "tables of no columns": (
    {"attributes_": ", do_rotary = 1", "more": ", t, t", "values": ", float[16] t"},
    "'t', of shape [16], is no table",
  ),
  "both ways": ({"attributes_": ", causal = 0"}, "causal is 0"),
  "a smooth softmax": ({"attributes_": ", smooth_softmax = 1"}, "smooth_softmax is 1"),
  "sinks": ({"more": ", , , , , h", "values": ", float[4] h"}, "it reads sinks"),
  "a bias of fewer columns": (
    {"s": 4, "total": 4, "more": ", , , , m", "values": ", float[2,1,4,4] m"},
    "has not a column for each row",
  ),
  "lengths of other texts": ({"lengths": ", int32[3] l"}, "is not one for each text"),
}


@parametrize("name", STAY)
def test_what_is_more_stays(name):
  how, reason = STAY[name]
  original = built(**how)
  if how.get("rows") == 8:
    for each in original.graph.output[1:]:
      each.type.tensor_type.shape.dim[2].dim_value = 9
  stays(original, FUSE_ATTENTION, reason)


def test_what_stays_leaves_nothing_behind():
  """Its window and the triangle of its bias are told apart when Split and positions are made."""
  original = built(", local_window_size = 2", "q, , ", b=1, s=4, total=4, more=", , , , m")
  add_weights(original, m=np.triu(np.full((1, 1, 4, 9), -np.inf, np.float32), 1))
  stays(original, (FUSE_ATTENTION, DEAD_NODES), "so is its mask in another way")
  assert operators(run_pass(original, FUSE_ATTENTION)[0]) == ["GroupQueryAttention"]
