import numpy as np
import pytest
from attention_helpers import attributes, fused, in_float  # noqa: F401
from pass_helpers import add_weights, model, operators, parametrize, stays

from ortplugin.optimizer.pipeline import FUSE_ATTENTION

pytestmark = pytest.mark.usefixtures("in_float")

FOUR = "float[2,4,5,8] q, float[2,2,5,8] k, v"
THREE = "float[2,5,32] q, float[2,5,16] k, v"
FOUR_Y, THREE_Y = "float[2,4,5,8] y", "float[2,5,32] y"
HEADS = "q_num_heads = 4, kv_num_heads = 2"
LAID = {f"{each}_layout": "b s (h d)" for each in "qkvy"}
ROOT = round(8**-0.5, 5)


def operator(node, inputs, y, opset=23, contrib=False):
  return model(f"({inputs}) => ({y}) {{ {node} }}", opset, contrib, ir=10)


ONNX = {
  "heads apart": ("y = Attention(q, k, v)", FOUR, FOUR_Y, {"scale": ROOT}),
  "heads together": (f"y = Attention<{HEADS}>(q, k, v)", THREE, THREE_Y, {**LAID, "scale": ROOT}),
  "scale and softcap": (
    "y = Attention<scale=0.5, softcap=2.0>(q, k, v)",
    FOUR,
    FOUR_Y,
    {"scale": 0.5, "softcap": 2.0},
  ),
  "causal": ("y = Attention<is_causal=1>(q, k, v)", FOUR, FOUR_Y, {"scale": ROOT, "causal": "upper_left"}),
  "a mask to add": (
    f"y = Attention<{HEADS}, softcap=2.0>(q, k, v, m)",
    f"{THREE}, float[2,1,5,5] m",
    THREE_Y,
    {**LAID, "scale": ROOT, "softcap": 2.0, "mask_dtype": "float", "masked_rows": "zero"},
  ),
  "bools, causal": (
    "y = Attention<is_causal=1>(q, k, v, m)",
    f"{FOUR}, bool[5,5] m",
    FOUR_Y,
    {"scale": ROOT, "causal": "upper_left", "mask_dtype": "bool", "masked_rows": "zero"},
  ),
}


@parametrize("opset", [23, 24])
@parametrize("form", ONNX)
def test_attention_of_onnx(form, opset):
  node, inputs, y, expected = ONNX[form]
  _, found = fused(operator(node, inputs, y, opset), into="FusedAttention")
  assert attributes(found) == expected


@parametrize("causal", [0, 1])
@parametrize("queries", [1, 3])
@parametrize("lengths", [[5, 2], [3, 0]])
def test_lengths_of_the_keys(causal, queries, lengths):
  """Of a cache that is the caller's: the last query is the last of so many keys."""
  heads = f"float[2,4,{queries},8] q, float[2,2,5,8] k, v, int64[2] l"
  node = f"y = Attention<is_causal={causal}>(q, k, v, , , , l)"
  _, found = fused(operator(node, heads, f"float[2,4,{queries},8] y", 24), given={"l": np.array(lengths)})
  assert attributes(found) == {"scale": ROOT, "mask_dtype": "bool", "masked_rows": "zero"}


def test_a_row_that_is_masked_whole_is_zero():
  original = operator("y = Attention(q, k, v, m)", f"{FOUR}, bool[5,5] m", FOUR_Y)
  mask = np.ones((5, 5), bool)
  mask[2] = False
  _, node = fused(original, given={"m": mask})
  assert attributes(node)["masked_rows"] == "zero"


def test_views_before_and_after_are_read_through():
  views = """shape = {2,5,4,8}  few = {2,5,2,8}
    q4 = Reshape(q, shape)  qh = Transpose<0,2,1,3>(q4)  k4 = Reshape(k, few)
    kh = Transpose<0,2,1,3>(k4)  v4 = Reshape(v, few)  vh = Transpose<0,2,1,3>(v4)
    a = Attention(qh, kh, vh)  t = Transpose<0,2,1,3>(a)
    joined = {2,5,32}  y = Reshape(t, joined)"""
  _, node = fused(operator(views, THREE, THREE_Y), into="FusedAttention")
  assert attributes(node) == {**LAID, "scale": ROOT}


QKV = "float[2,5,32] q, float[2,7,32] k, v"
MULTI_HEAD = "com.microsoft.MultiHeadAttention<num_heads = 4"
CONTRIB = {
  "plain": (f"y = {MULTI_HEAD}> (q, k, v)", QKV, {**LAID, "scale": ROOT}, "FusedAttention"),
  "scale, values of another size": (
    f"y = {MULTI_HEAD}, scale = 0.5> (q, k, v)",
    "float[2,5,32] q, float[2,7,32] k, float[2,7,12] v",
    {**LAID, "scale": 0.5},
    "FusedAttention",
  ),
  "a bias for the scores": (
    f"y = {MULTI_HEAD}> (q, k, v, , , m)",
    f"{QKV}, float[1,4,5,7] m",
    {**LAID, "scale": ROOT, "mask_dtype": "float"},
    "FusedAttention",
  ),
  "padding": (
    f"y = {MULTI_HEAD}, mask_filter_value = -1000.0> (q, k, v, , m)",
    f"{QKV}, int32[2,7] m",
    {**LAID, "scale": ROOT, "mask_dtype": "float"},
    "Cast Unsqueeze Where FusedAttention",
  ),
  "causal": (
    f"y = {MULTI_HEAD}, unidirectional = 1> (q, k, v)",
    QKV.replace("7,", "5,"),
    {**LAID, "scale": ROOT, "causal": "upper_left"},
    "FusedAttention",
  ),
}


@parametrize("form", CONTRIB)
def test_attention_of_onnx_runtime(form):
  node, inputs, expected, into = CONTRIB[form]
  width = 12 if "12] v" in inputs else 32
  _, found = fused(operator(node, inputs, f"float[2,5,{width}] y", 17, contrib=True), into=into)
  assert attributes(found) == expected


def test_the_bias_of_the_projections_is_added_before(rng):
  original = operator(f"y = {MULTI_HEAD}> (q, k, v, b)", QKV, THREE_Y, 17, contrib=True)
  add_weights(original, b=rng.standard_normal(96).astype(np.float32))
  fused(original, into="Add Add Add FusedAttention")


def test_one_product_with_its_weights(rng):
  for attributes_, mask in (
    ("num_heads = 4", None),
    ("num_heads = 4, unidirectional = 1", None),
    ("num_heads = 4", "int32[2,5] m"),
  ):
    inputs = "float[2,5,16] x" + (f", {mask}" if mask else "")
    node = f"y = com.microsoft.Attention<{attributes_}>(x, w, b{', m' if mask else ''})"
    original = operator(node, inputs, THREE_Y, 17, contrib=True)
    for name, shape in (("w", (16, 96)), ("b", (96,))):
      values = (rng.standard_normal(shape) * 0.3).astype(np.float32)
      add_weights(original, **{name: values})
    optimized, found = fused(original)
    assert operators(optimized)[-1] == "FusedAttention"
    assert operators(optimized).count("MatMul") == 1
    assert attributes(found)["k_layout"] == "b s (1/3 h d)"


PASTS = ", float[2,{},3,8] p, o"
CACHED = {
  "Attention": (
    "Attention<is_causal=1>(q, k, v, , p, o)",
    FOUR,
    FOUR_Y,
    {"scale": ROOT, "causal": "lower_right", "masked_rows": "zero"},
  ),
  "Attention, heads together, a mask": (
    f"Attention<{HEADS}>(q, k, v, m, p, o)",
    f"{THREE}, float[2,1,5,8] m",
    THREE_Y,
    {**LAID, "scale": ROOT, "mask_dtype": "float", "masked_rows": "zero"},
  ),
  "MultiHeadAttention": (
    f"{MULTI_HEAD}, unidirectional = 1> (q, k, v, , , b, p, o)",
    QKV.replace("7,", "5,") + ", float[2,4,5,8] b",
    THREE_Y,
    {**LAID, "scale": ROOT, "causal": "lower_right", "mask_dtype": "float"},
  ),
}


@parametrize("name", CACHED)
def test_a_cache(name):
  node, inputs, y, expected = CACHED[name]
  contrib = name == "MultiHeadAttention"
  heads = 4 if contrib else 2
  y += f", float[2,{heads},8,8] pk, pv"
  made = operator(f"y, pk, pv = {node}", inputs + PASTS.format(heads, heads), y, 17 if contrib else 23, contrib)
  _, found = fused(made, into="FusedAttention")
  assert (list(found.input[-2:]), list(found.output)) == (["p", "o"], ["y", "pk", "pv"])
  assert attributes(found) == expected


STAY = {
  "half a cache": (f"y = {MULTI_HEAD}> (q, k, v, , , , p)", f"{QKV}, float[2,4,3,8] p", "a past of K or of V alone"),
  "a cache of other values": (
    f"y = {MULTI_HEAD}> (q, k, v, , , , p, o)",
    f"{QKV}, float[2,4,3,8] p, float[2,4,2,8] o",
    "is not known to have one number of rows",
  ),
  "causal with more new keys": (
    f"y, a, c = {MULTI_HEAD}, unidirectional = 1> (q, k, v, , , , p, p)",
    f"{QKV}, float[2,4,3,8] p",
    "as many new keys as queries",
  ),
  "a cache that is not written": (
    f"y = {MULTI_HEAD}> (q, k, v, , , , p, p)",
    f"{QKV}, float[2,4,3,8] p",
    "does not write both that are present",
  ),
  "a length of the cache": (
    f"y = {MULTI_HEAD}> (q, k, v, , , , p, p, l)",
    f"{QKV}, float[2,4,3,8] p, int32[1] l",
    "it reads lengths of a cache, 'l'",
  ),
  "lengths of keys": (f"y = {MULTI_HEAD}> (q, k, v, , m)", f"{QKV}, int32[2] m", "has not one number a key"),
  "a bias that is no constant": (f"y = {MULTI_HEAD}> (q, k, v, b)", f"{QKV}, float[96] b", "'b' is no constant"),
  "causal with more keys": (f"y = {MULTI_HEAD}, unidirectional = 1> (q, k, v)", QKV, "as many keys as queries"),
}


@parametrize("name", STAY)
def test_what_is_more_than_attention_stays(name):
  node, inputs, reason = STAY[name]
  stays(operator(node, inputs, THREE_Y, 17, contrib=True), FUSE_ATTENTION, reason)


def test_a_mask_that_may_be_shorter_than_the_keys_stays():
  original = operator("y = Attention(q, k, v, m)", f"{FOUR}, float[5,4] m", FOUR_Y)
  stays(original, FUSE_ATTENTION, "may be larger than the scores")
  original = operator("y = Attention(q, k, v, m)", f"{FOUR}, float[5,1] m", FOUR_Y)
  stays(original, FUSE_ATTENTION, "may be shorter than the keys")


def test_the_matrix_of_scores_as_an_output_stays():
  original = operator("y, a, b, s = Attention(q, k, v)", FOUR, "float[2,4,5,8] y, float[2,4,5,5] s")
  stays(original, FUSE_ATTENTION, "'s' is a graph output")
