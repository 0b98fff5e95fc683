"""Dtypes and shapes of values: what is believed where a model contradicts itself, and that it ends."""

import random

import onnx_graphsurgeon as gs
import pytest
from onnx_models import annotated, parsed

from ortplugin.graph.certainty import DECLARED, INFERRED, PROVED, Certainty
from ortplugin.model import annotate as module
from ortplugin.optimizer import run_passes, select_passes

ROUNDS = 20  # far more than the graphs of one test need


@pytest.fixture(autouse=True)
def it_ends(patch):
  """A graph that is gone over again and again fails instead of hanging."""
  rounds = []
  infer = module._infer

  def counted(*arguments, **named):
    rounds.append(None)
    assert len(rounds) <= ROUNDS, "it goes back and forth"
    infer(*arguments, **named)

  patch(module, "_infer", counted)


def shapes(text, opset=17):
  graph = annotated(parsed(f"{text}", opset, domains=["com.microsoft"]))
  return {t.name: None if t.shape is None else tuple(t.shape) for node in graph.nodes for t in node.outputs}


def test_names_of_outputs_give_way_to_lengths():
  """Every value is an output whose declared name contradicts what is inferred."""
  found = shapes("""(float[3,2] x, float[2,P] r) => (float[L,M] v0, float[M,P] v1, float[M,B] v3)
    <float[2] g = {1,1}> { v0 = com.microsoft.SkipLayerNormalization(x, r, g)  v1 = Add(v0, x)
    v2 = LayerNormalization(v1, g)  v3 = Add(v1, r) }""")
  assert found["v0"] == found["v1"] == found["v2"] == (3, 2)


def test_a_name_of_the_input_wins_over_a_declared_length():
  """As where a network was exported for one image and its input was opened then."""
  text = "(float[N,4] x) => (float[B,4] y) <float[1,4] a> { a = Relu(x)  y = Neg(a) }"
  assert shapes(text) == {"a": ("N", 4), "y": ("N", 4)}
  text = """(float[N,4] x, float[4] s) => (float[B,4] y) <float[1,4] a>
    { a = com.microsoft.SkipLayerNormalization(x, x, s)  y = Neg(a) }"""
  assert shapes(text)["a"] == ("N", 4)


ATTENTIONS = {
  "Attention<num_heads = 2>(x, w)": 8,
  "Attention<num_heads = 2, qkv_hidden_sizes = [4, 4, 6]>(x, w)": 6,
  "MultiHeadAttention<num_heads = 2>(x, x, v)": 10,
  "MultiHeadAttention<num_heads = 2>(x, kv)": 12,
  "MultiHeadAttention<num_heads = 2>(qkv)": 8,
  "GroupQueryAttention<num_heads = 2, kv_num_heads = 1>(x, v, v, , , l, t)": 12,
  "GroupQueryAttention<num_heads = 4, kv_num_heads = 1>(x, , , , , l, t)": 8,
}


@pytest.mark.parametrize("node", ATTENTIONS)
def test_attention_of_onnx_runtime_has_the_shape_of_its_queries(node):
  text = f"""(float[N,3,12] x, float[12,24] w, float[N,3,10] v, float[N,3,2,2,6] kv, float[N,3,2,3,4] qkv, int32[N] l,
    int32 t) => (float[A,B,C] y) {{ a = com.microsoft.{node}  y = Relu(a) }}"""
  assert shapes(text)["a"] == ("N", 3, ATTENTIONS[node])


def test_what_only_the_model_says_is_taken():
  text = "(float[N,4] x, int64[2] s) => (float[A,B] y) <float[3,5] a> { a = Reshape(x, s)  y = Relu(a) }"
  assert shapes(text)["a"] == (3, 5)


STALE = """(float[1,1,5] x, float[1,1,2] u, int64[1,1] zero) => (float[A,B,C] y)
      <int64[1] axes = {0}, float[1,1,3] p, float[1,3] s, float[1,1,3] r> {
      p = MaxPool<kernel_shape=[1], strides=[3], ceil_mode=1>(x)
      s = Squeeze(p, axes)
      r = Unsqueeze(s, axes)
      y = ScatterND(r, zero, u)
  }"""


def test_what_follows_from_a_hidden_node_is_surer_than_what_the_model_says():
  """onnx infers 3 windows, exporters write that, and ONNX Runtime computes 2."""
  shapes = {node.outputs[0].name: node.outputs[0].shape for node in annotated(parsed(STALE)).nodes}
  assert shapes == {"p": (1, 1, 2), "s": (1, 2), "r": (1, 1, 2), "y": (1, 1, 2)}


def test_descriptions_that_are_wrong_go():
  made, _, _ = run_passes(parsed(STALE), select_passes(only=["fuse-scatter"]))
  assert [node.domain for node in made.graph.node] == ["", "", "", "ortplugin"]
  said = {each.name: [dim.dim_value for dim in each.type.tensor_type.shape.dim] for each in made.graph.value_info}
  assert said == {"r": [1, 1, 2]}


@pytest.mark.parametrize("seed", range(300))
def test_it_ends_whatever_a_model_says_of_its_values(seed):
  """Also with contradictions in every value, of which some are outputs."""
  pick = random.Random(seed)

  def dims(lengths):
    return ",".join(pick.choice(lengths) for _ in range(2))

  values, nodes = ["x", "r"], []
  for index in range(pick.randint(3, 7)):
    a, b = pick.choice(values), pick.choice(values)
    op = pick.choice([f"com.microsoft.SkipLayerNormalization({a}, {b}, g)", f"LayerNormalization({a}, g)",
                      f"Add({a}, {b})", f"Tanh({a})", f"Transpose<1,0>({a})"])  # fmt: skip
    values.append(f"v{index}")
    nodes.append(f"v{index} = {op}")
  outputs = [each for each in values[2:] if pick.random() < 0.5 or each == values[-1]]
  told = [f"float[{dims('235BSPQ')}] {each}" for each in values[2:] if each not in outputs and pick.random() < 0.7]
  told.append("float[2] g = {1,1}")
  outer = ", ".join(f"float[{dims('BSPQZKLM')}] {each}" for each in outputs)
  text = f"(float[{dims('235BSPQ')}] x, float[{dims('235BSPQ')}] r) => ({outer}) <{', '.join(told)}>"
  assert shapes(f"{text} {{ {'  '.join(nodes)} }}", pick.choice([13, 17]))


def test_a_length_gives_way_to_a_surer_one_only():
  tensor = gs.Variable("t", None, (1, None, "N"))
  certainty = Certainty([])
  assert certainty.learn(tensor, ("B", 4, "unk__7"), INFERRED)
  assert tensor.shape == ("B", 4, "N")
  assert not certainty.learn(tensor, (2, 5, 6), DECLARED)
  assert tensor.shape == ("B", 4, "N")
  assert certainty.learn(tensor, (2, 4, 6), PROVED)
  assert tensor.shape == (2, 4, 6)
  for level in (DECLARED, INFERRED, PROVED):
    assert not certainty.learn(tensor, (7, 7, 7), level)
    assert not certainty.learn(tensor, (7, 7), level)


def test_a_surer_rank_replaces_another():
  tensor = gs.Variable("t", None, (1, 2))
  certainty = Certainty([])
  assert certainty.learn(tensor, (3,), INFERRED)
  assert not certainty.learn(tensor, (3, 4), INFERRED)
  assert tensor.shape == (3,)
