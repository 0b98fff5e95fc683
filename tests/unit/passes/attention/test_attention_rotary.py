from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from attention_helpers import in_float  # noqa: F401, a fixture
from onnx_models import add_weights, all_attributes, nodes_of, value_infos
from pass_helpers import model, operators, parametrize, run_pass, run_same, stays

from ortplugin.optimizer.pipeline import (
  ATTENTION_ROTARY,
  DEAD_NODES,
  FUSE_ATTENTION,
  FUSE_RMS_NORM,
  MERGE_PRODUCTS,
  NORM_EPILOGUE,
)

pytestmark = pytest.mark.usefixtures("in_float")

FUSE = (FUSE_ATTENTION, DEAD_NODES)
PASSES = (*FUSE, ATTENTION_ROTARY, DEAD_NODES)


# {x} becomes {y}, by tables cos and sin. Of a head of 8 elements all are rotated, or the first four.
TURNED = """{y}_lo = Slice({x}, zero, half, last)  {y}_hi = Slice({x}, half, end, last)  {y}_n = Neg({y}_hi)
  {y}_c = Concat<axis=-1>({y}_n, {y}_lo)"""
FULL = TURNED + "  {y}_a = Mul({x}, cos)  {y}_b = Mul({y}_c, sin)  {y} = Add({y}_a, {y}_b)"
SWAPPED = TURNED + "  {y}_a = Mul(cos, {x})  {y}_b = Mul(sin, {y}_c)  {y} = Add({y}_b, {y}_a)"
BY_SPLIT = """{y}_lo, {y}_hi = Split<axis=-1>({x}, halves)  {y}_n = Neg({y}_hi)
  {y}_c = Concat<axis=3>({y}_n, {y}_lo)  {y}_a = Mul({x}, cos)  {y}_b = Mul({y}_c, sin)  {y} = Add({y}_a, {y}_b)"""
PRODUCTS = """{y}_1 = Mul({y}_lo, cos)  {y}_2 = Mul({y}_hi, sin)  {y}_s = Sub({y}_1, {y}_2)
  {y}_3 = Mul({y}_hi, cos)  {y}_4 = Mul({y}_lo, sin)  {y}_t = Add({y}_3, {y}_4)"""
HALVES = "{y}_lo, {y}_hi = Split<axis=-1>({x}, halves)  " + PRODUCTS + "  {y} = Concat<axis=-1>({y}_s, {y}_t)"
REST = "{y}_r = Slice({x}, half, end, last)  {y}_0 = Slice({x}, zero, half, last)  "
PARTIAL = (
  REST
  + FULL.replace("{y}", "{y}_p").replace("{x}", "{y}_0").replace("half", "two")
  + ("  {y} = Concat<axis=-1>({y}_p, {y}_r)")
)
PARTIAL_HALVES = (
  "{y}_lo, {y}_hi, {y}_r = Split<axis=-1>({x}, quarters)  "
  + PRODUCTS
  + ("  {y} = Concat<axis=-1>({y}_s, {y}_t, {y}_r)")
)
NEIGHBOURS = "{y}_lo = Slice({x}, zero, end, last, two)  {y}_hi = Slice({x}, one, end, last, two)  "
STACK = "{y}_u = Unsqueeze({A}, minus)  {y}_v = Unsqueeze({B}, minus)  {y}_w = Concat<axis=-1>({y}_u, {y}_v)  "
INTERLEAVED = (
  NEIGHBOURS + PRODUCTS + STACK.replace("{A}", "{y}_s").replace("{B}", "{y}_t") + ("{y} = Reshape({y}_w, whole)")
)
GPT_J = (
  NEIGHBOURS
  + "{y}_n = Neg({y}_hi)  "
  + STACK.replace("{A}", "{y}_n").replace("{B}", "{y}_lo")
  + ("{y}_c = Reshape({y}_w, whole)  {y}_a = Mul({x}, cos)  {y}_b = Mul({y}_c, sin)  {y} = Add({y}_a, {y}_b)")
)


def tables(*shape, doubled="", dtype="float32"):
  """cos and sin, `doubled`: as halves or neighbours."""
  angles = np.random.default_rng(3).uniform(-4, 4, shape)
  if doubled:
    angles = np.concatenate([angles, angles], -1) if doubled == "half" else np.repeat(angles, 2, -1)
  return {"cos": np.cos(angles).astype(dtype), "sin": np.sin(angles).astype(dtype)}


@dataclass(frozen=True)
class Form:
  """How Q and K are rotated: as b h s d, before their Transpose as b s h d, or before their Reshape as b s (h d)."""

  nodes: str
  constants: dict[str, np.ndarray]
  rotary: str = "half"
  shape: tuple[int, ...] = (5, 4)  # of the tables that the node reads
  at: str = "b h s d"
  before: str = ""
  inputs: str = ""
  left: tuple[str, ...] = ()  # operators that stay besides
  opset: int = 18
  keys: str = ""  # what is done with the rotated keys
  attributes: dict[str, Any] = field(default_factory=dict)


def built(form, dtype="float"):
  """Attention of 4 heads of 8, of 5 rows of 2 texts, whose q and k are rotated."""
  steps = ["{y} = Reshape({x}, by_head)", "{y} = Transpose<0,2,1,3>({x})"]
  steps.insert(("b s (h d)", "b s h d", "b h s d").index(form.at), form.nodes)

  def heads(name, result):
    values = [name, f"{name}4", f"{name}5", result]
    return " ".join(
      step.replace("{x}", x).replace("{y}", y) for step, x, y in zip(steps, values, values[1:], strict=False)
    )

  text = f"""{form.before} zero = {{0}} one = {{1}} two = {{2}} half = {{4}} end = {{9223372036854775807}}
    last = {{-1}} minus = {{-1}} halves = {{4,4}} quarters = {{2,2,4}} by_head = {{2,5,4,8}}
    {heads("q", "qh")} {heads("k", "kr")} v4 = Reshape(v, by_head)  {form.keys or "kh = Identity(kr)"}
    kt = Transpose<0,1,3,2>(kh)  vh = Transpose<0,2,1,3>(v4)  s = MatMul(qh, kt)
    p = Softmax<axis=-1>(s)  a = MatMul(p, vh)  y4 = Transpose<0,2,1,3>(a)
    joined = {{2,5,32}}  y = Reshape(y4, joined)"""
  # In the Reshape of what is stacked, all axes but the last two are as they are.
  text = f"whole = {'{2,5,4,8}' if form.at == 'b s h d' else '{2,4,5,8}'} {text}"
  inputs = ", ".join([*(f"{dtype}[2,5,32] {name}" for name in "qkv"), *([form.inputs] if form.inputs else [])])
  made = model(f"({inputs}) => ({dtype}[2,5,32] y) {{ {text} }}", form.opset, contrib=True, ir=10)
  add_weights(made, **form.constants)
  return made


def node_of(optimized):
  (node,) = nodes_of(optimized, "FusedAttention")
  return node, all_attributes(node)


FOUR, ROWS = (1, 1, 5, 4), (1, 5, 1, 4)
EQUAL = tables(*FOUR, doubled="half")
DOUBLED = (
  "c = Concat<axis=-1>(f, f)  cw = Cos(c)  sw = Sin(c)  at = {1}  cos = Unsqueeze(cw, at)  sin = Unsqueeze(sw, at)"
)
REPEATED = """pairs = {1,5,4,2}  three = {3}  g = Unsqueeze(f, three)  e = Expand(g, pairs)  flat = {1,5,8}
  c = Reshape(e, flat)  cw = Cos(c)  sw = Sin(c)  at = {2}  cos = Unsqueeze(cw, at)  sin = Unsqueeze(sw, at)"""
CONTRIB = "{y} = com.microsoft.RotaryEmbedding"
FORMS = {
  "Llama: halves, of tables whose halves are equal": Form(FULL, EQUAL),
  "operands the other way round": Form(SWAPPED, tables(5, 4, doubled="half")),
  "halves by Split, a table for each text": Form(BY_SPLIT, tables(2, 1, 5, 4, doubled="half"), shape=(2, 5, 4)),
  "before the Transpose": Form(FULL, tables(*ROWS, doubled="half"), at="b s h d"),
  "tables of half the width": Form(HALVES, tables(*FOUR)),
  "GPT-NeoX: the first elements": Form(PARTIAL, tables(1, 1, 5, 2, doubled="half"), shape=(5, 2)),
  "the first elements, by one Split and Concat": Form(PARTIAL_HALVES, tables(5, 2), shape=(5, 2)),
  "neighbours": Form(INTERLEAVED, tables(*FOUR), "interleaved"),
  "GPT-J: neighbours, before the Transpose": Form(
      GPT_J, tables(*ROWS, doubled="interleaved"), "interleaved", at="b s h d"),
  "tables of the graph": Form(
      FULL, {}, shape=(2, 5, 4), before=DOUBLED, inputs="float[2,5,4] f",
      left=("Cos", "Unsqueeze", "Squeeze", "Sin", "Unsqueeze", "Squeeze")),
  "tables of the graph, neighbours": Form(
      GPT_J, {}, "interleaved", at="b s h d", before=REPEATED, inputs="float[1,5,4] f",
      left=("Unsqueeze", "Expand", "Reshape", "Cos", "Sin", "Unsqueeze", "Unsqueeze", "Slice", "Squeeze", "Slice",
            "Squeeze")),
  "ONNX Runtime's operator": Form(
      CONTRIB + "({x}, start, cos, sin)", {**tables(9, 4), "start": np.array([2])}),
  "ONNX Runtime's operator, neighbours, with positions": Form(
      CONTRIB + "<interleaved=1>({x}, where, cos, sin)", tables(9, 4), "interleaved", (2, 5, 4),
      inputs="int64[2,5] where", left=("Gather", "Gather")),
}  # fmt: skip


@parametrize("form", FORMS.values(), ids=FORMS)
def test_a_rotation_goes_into_the_attention(form):
  optimized, result = run_same(built(form), *PASSES)
  node, attributes = node_of(optimized)
  assert [each.rewrite for each in result.changes if each.rewrite != "dead-nodes"] == [
    "fuse-attention",
    "attention-rotary",
  ]
  assert attributes["rotary"] == form.rotary.encode()
  assert "rotary_dtype" not in attributes
  assert list(node.input[:3]) == ["q", "k", "v"]
  assert {attributes[f"{name}_layout"] for name in "qkvy"} == {b"b s (h d)"}
  assert sorted(operators(optimized)) == sorted([*form.left, "FusedAttention"])
  shapes = {each.name: tuple(each.dims) for each in optimized.graph.initializer}
  assert [shapes.get(name, form.shape) for name in node.input[3:]] == [form.shape] * 2  # others are computed


def test_the_operator_of_onnx():
  """Of opset 23, with heads apart and in rows; ONNX Runtime's CPU provider need not have it."""
  for attributes, at in (("", "b h s d"), (", num_heads = 4", "b s (h d)")):
    nodes = f"{{y}} = RotaryEmbedding<rotary_embedding_dim=4{attributes}>({{x}}, cos, sin)"
    form = Form(nodes, tables(2, 5, 2), opset=23, at=at)
    run_same(built(Form(PARTIAL_HALVES, tables(2, 1, 5, 2))), *PASSES, start=built(form), into="FusedAttention")


def test_float_tables_between_casts():
  """Computed in float32 and rounded once, as the node does it."""
  nodes = (
    "{y}_w = Cast<to=1>({x})  "
    + FULL.replace("{x}", "{y}_w").replace("{y} = Add", "{y}_z = Add")
    + ("  {y} = Cast<to=10>({y}_z)")
  )
  optimized, _ = run_same(built(Form(nodes, EQUAL), "float16"), *PASSES, precision="bfloat16")
  node, attributes = node_of(optimized)
  assert (attributes["rotary_dtype"], list(node.input[:3])) == (b"float", ["q", "k", "v"])


def test_scales_and_products_go_along():
  """A scale before the rotation, and Q and K as products of one tensor, which become one."""
  form = Form(FULL, EQUAL, before="""q0 = MatMul(x, wq)  k = MatMul(x, wk)  v = MatMul(x, wv)
    c = float {0.5}  q = Mul(q0, c)""")  # fmt: skip
  made = built(form)
  del made.graph.input[:]
  made.graph.input.extend(value_infos("float[2,5,16] x"))
  for name in ("wq", "wk", "wv"):
    weight = np.random.default_rng(len(name)).standard_normal((16, 32)).astype(np.float32) / 4
    add_weights(made, **{name: weight})
  optimized, _ = run_same(made, *PASSES, MERGE_PRODUCTS, into="MatMul FusedAttention")
  node, attributes = node_of(optimized)
  assert (attributes["scale"], attributes["k_layout"]) == (0.5, b"b s (h:4/12 d)")
  assert len(set(node.input[:3])) == 1


def test_a_norm_leaves_the_rotation_of_its_result():
  """Gemma 3: the norms of Q and K are behind the Transposes, so that nothing is between them and x cos."""
  norm = """{y}_q = Mul({x}, {x})  {y}_mean = ReduceMean({y}_q, last)  {y}_e = Add({y}_mean, epsilon)
    {y}_root = Sqrt({y}_e)  {y}_d = Div({x}, {y}_root)  {y}_x = Mul({y}_d, gamma)  """
  form = Form(norm + FULL.replace("{x}", "{y}_x"), EQUAL, before="epsilon = float {0.001}")
  made = built(form)
  add_weights(made, gamma=np.linspace(0.5, 1.5, 8, dtype=np.float32))
  optimized, _ = run_same(made, FUSE_RMS_NORM, NORM_EPILOGUE, *PASSES)
  assert [operators(optimized).count(name) for name in ("FusedLayerNorm", "FusedAttention", "Mul")] == [2, 1, 0]
  assert len(node_of(optimized)[0].input) == 5


def test_equal_tables_are_one_constant():
  twice = built(Form(FULL, EQUAL))
  again = onnx.compose.add_prefix(built(Form(FULL, EQUAL)), "second/")
  optimized, _ = run_pass(onnx.compose.merge_models(twice, again, [("y", "second/q")]), *PASSES)
  one, two = (node for node in optimized.graph.node if node.op_type == "FusedAttention")
  assert list(one.input[3:]) == list(two.input[3:])


DIFFERENT = tables(1, 1, 5, 8)
MISSES = {
  "only one of Q and K is rotated: 'kh', made by": Form(
    FULL,
    EQUAL,
    inputs="float[2,4,2,8] past",
    keys="recent = Slice(kr, zero, three, two)  kh = Concat<axis=2>(past, recent)",
    before="three = {3}",
  ),
  "is not known to have equal halves": Form(FULL, DIFFERENT),
  "'cos' is not known to have equal neighbours": Form(GPT_J, tables(*ROWS, doubled="half"), at="b s h d"),
  "has not one row for each position": Form(FULL, tables(1, 1, 1, 4, doubled="half")),
  "is not known to be one row for each position": Form(FULL, tables(1, 4, 5, 4, doubled="half")),
  "'qh_one', which is rotated, is not known to have the shape": Form(
    "{y}_one = Slice({x}, zero, one, zero)  " + FULL.replace("{x}", "{y}_one"), tables(2, 1, 5, 4, doubled="half")
  ),
  "'kr' is a graph output": Form(FULL, EQUAL),
  "the first position, 'start', is no constant": Form(
    CONTRIB + "({x}, start, cos, sin)", tables(9, 4), inputs="int64[1] start"
  ),
  "or it scales": Form(CONTRIB + "<scale=2.0>({x}, start, cos, sin)", {**tables(9, 4), "start": np.array([2])}),
  "is not as": Form(CONTRIB + "({x}, start, cos, sin)", {**tables(9, 4), "start": np.array([2])}, at="b s h d"),
  "different tables, 'cos' and 'k5_cos'": Form(FULL, {**EQUAL, "k5_cos": DIFFERENT["cos"]}),
}


@parametrize("reason", MISSES)
def test_what_stays(reason):
  form = MISSES[reason]
  made = built(form)
  if "k5_cos" in form.constants:
    next(node for node in made.graph.node if node.output[0] == "kr_a").input[1] = "k5_cos"
  if "'kr'" in reason:
    made.graph.output.extend(value_infos("float[2,4,5,8] kr"))
  fused, _ = run_pass(made, *FUSE)
  stays(fused, ATTENTION_ROTARY, reason)


@parametrize(
  "nodes",
  [
    FULL.replace("Neg({y}_hi)", "Neg({y}_lo)").replace("({y}_n, {y}_lo)", "({y}_hi, {y}_n)"),  # by -angle
    FULL.replace("({y}_n, {y}_lo)", "({y}_lo, {y}_n)"),
    FULL.replace("Add({y}_a", "Sub({y}_a"),
    HALVES.replace("Sub({y}_1, {y}_2)", "Sub({y}_2, {y}_1)"),
    HALVES.replace("{y}_4 = Mul({y}_lo, sin)", "{y}_4 = Mul({y}_lo, cos)"),
    HALVES.replace("({y}_s, {y}_t)", "({y}_t, {y}_s)"),
    INTERLEAVED.replace("{y}_hi = Slice({x}, one", "{y}_hi = Slice({x}, zero"),
    PARTIAL_HALVES.replace("{y}_t, {y}_r)", "{y}_r, {y}_t)"),
  ],
)
def test_what_is_no_rotation(nodes):
  width = 2 if "quarters" in nodes else 4
  fused, _ = run_pass(built(Form(nodes, tables(1, 1, 5, width, doubled="half" if "{y}_c" in nodes else ""))), *FUSE)
  stays(fused, ATTENTION_ROTARY)
