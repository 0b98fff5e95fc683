import time

import numpy as np
import pytest
from hypothesis import given, strategies as st
from pass_helpers import (
  annotated,
  lines,
  model,
  operators,
  parametrize,
  programs,
  reasons,
  run_pass,
  run_same,
  same_outputs,
  stays,
  tries,
)
from sample import examples

from ortplugin.optimizer.pipeline import FUSE_POINTWISE
from ortplugin.program import MAX_PARAMETERS, MAX_RESULTS, MAX_STATEMENTS, parse

X = "float[N,M,8] x"
Y = "float[N,M,8] y"


def graph(nodes, inputs=X, outputs=Y):
  return f"({inputs}) => ({outputs}) {{ {nodes} }}"


def check(text, ops, *wanted, opset=17, precision=""):
  """The operators after the pass and the statements of each program; outputs are the same."""
  optimized, _ = run_same(model(text, opset, ir=8 if opset < 20 else 10), FUSE_POINTWISE, into=ops, precision=precision)
  assert [lines(each) for each in programs(optimized)] == list(wanted)
  return optimized


# ---- what is fused


def test_broadcasts_and_literals():
  text = graph(
    "half = float {0.5}  a = Mul(x, half)  b = Add(a, bias)  c = Mul(column, b)  y = Tanh(c)",
    f"{X}, float[8] bias, float[M,1] column",
  )
  statements = ["mul = Mul(x, 0.5)", "add = Add(mul, bias)", "mul2 = Mul(scale, add)", "y = Tanh(mul2)"]
  assert list(check(text, "FusedPointwise", statements).graph.node[-1].input) == ["x", "bias", "column"]


def test_across_several_consumers_and_producers():
  """A diamond whose values other operators need too: one node, with those as outputs."""
  text = graph("s = Add(x, r)  a = Sigmoid(s)  b = Tanh(s)  y = Mul(a, b)  z = Softmax(b)", f"{X}, r", f"{Y}, z, s")
  optimized = check(
    text, "FusedPointwise Softmax", ["y = Add(x, x2)", "sigmoid = Sigmoid(y)", "y2 = Tanh(y)", "y3 = Mul(sigmoid, y2)"]
  )
  assert list(optimized.graph.node[0].output) == ["s", "b", "y"]


def test_siblings_meet_in_a_common_consumer():
  text = graph("a = Neg(x)  b = Abs(r)  y = Add(a, b)", f"{X}, r")
  check(text, "FusedPointwise", ["neg = Neg(x)", "abs = Abs(x2)", "y = Add(neg, abs)"])


def test_readers_of_one_input():
  text = graph("h = Softmax(x)  y = Sin(h)  z = Cos(h)", outputs=f"{Y}, z")
  check(text, "Softmax FusedPointwise", ["y = Sin(x)", "y2 = Cos(x)"])


def test_what_is_unrelated_stays_apart():
  stays(graph("y = Neg(x)  z = Abs(r)", f"{X}, r", f"{Y}, z"), FUSE_POINTWISE)


def test_a_single_operator_stays():
  stays(graph("h = Softmax(x)  a = Relu(h)  y = Softmax(a)"), FUSE_POINTWISE)


@parametrize(
  "opset, nodes, ops",
  [
    (17, "p = Greater(x, r)  q = Not(p)  y = Where(q, x, r)", "Greater Not Where"),
    (17, "h = Cast<to=10>(x)  k = Relu(h)  y = Cast<to=1>(k)", "Cast Relu Cast"),
    (17, "i = Cast<to=7>(x)  j = Mul(i, i)  y = Cast<to=1>(j)", "Cast Mul Cast"),
    (17, "a = Min(x, r, x)  y = Max(a, r)", "Min Min Max"),
    (17, "n = IsNaN(x)  m = IsInf(r)  b = Or(n, m)  y = Where(b, r, x)", "IsNaN IsInf Or Where"),
    (17, "a = HardSwish(x)  b = HardSigmoid(a)  y = Pow(b, r)", "HardSwish HardSigmoid Pow"),
    (17, "a = PRelu(x, r)  y = Celu(a)", "PRelu Celu"),
    (18, "a = Mish(x)  y = Div(a, r)", "Mish Div"),
    (20, 'a = Gelu<approximate="tanh">(x)  y = Erf(a)', "Gelu Erf"),
  ],
)
def test_operators_of_every_kind(opset, nodes, ops):
  original = model(graph(nodes, f"{X}, r"), opset, ir=8 if opset < 20 else 10)
  optimized, _ = run_pass(original, FUSE_POINTWISE, into="FusedPointwise")
  assert [each.op for each in parse(programs(optimized)[0]).statements] == ops.split()
  if "Cast<to=7>" not in nodes and "Pow" not in nodes:
    same_outputs(original, optimized, "float16" if "to = 10" in nodes else "")


def test_activations_of_onnx_runtime():
  original = model(graph("a = com.microsoft.BiasGelu(x, b)  y = Mul(a, x)", f"{X}, float[8] b"), contrib=True)
  run_same(original, FUSE_POINTWISE, program=["add = Add(x, bias)", "gelu = Gelu(add)", "y = Mul(gelu, x)"])


def test_integers_that_are_data():
  text = "(int64[N,M] x, int64[M] r) => (int64[N,M] y) { s = Add(x, r)  y = Mul(s, s) }"
  check(text, "FusedPointwise", ["add = Add(x, bias)", "y = Mul(add, add)"])


def test_where_a_result_jumps_float16_is_rounded_as_before():
  """x + r is equal to s, which was rounded when it was made."""
  inputs = "float16[N,M,8] x, r"
  text = graph("a = Add(x, r)  b = Sub(a, r)  e = Equal(b, x)  y = Where(e, a, b)", inputs, "float16[N,M,8] y")
  run_same(
    text,
    FUSE_POINTWISE,
    program=[
      "add = Add(x, x2)",
      "sub = Sub(add, x2)",
      "cast = Cast<to=float16>(sub)",
      "equal = Equal(cast, x)",
      "y = Where(equal, add, sub)",
    ],
  )


# ---- shapes, and costs


def test_a_cheap_small_value_is_computed_inside():
  """1 + gamma, and a mask made of a row and a column: interior values of smaller shapes."""
  text = graph(
    """one = float {1.0}  g = Add(gamma, one)  m = Less(row, column)  a = Mul(x, g)
      y = Where(m, a, x)""",
    f"{X}, float[8] gamma, float[1,8] row, float[M,1] column",
  )
  check(
    text,
    "FusedPointwise",
    ["add = Add(x, 1)", "less = Less(operand, operand2)", "mul = Mul(x2, add)", "y = Where(less, mul, x2)"],
  )


GATE = "float[2,3,8,8] x, float[2,3,1,1] s"


def test_an_expensive_small_value_is_computed_inside_where_the_whole_is_small():
  """Squeeze and excitation: a launch costs more than the Sigmoids."""
  text = graph("g = Sigmoid(s)  y = Mul(x, g)", GATE, "float[2,3,8,8] y")
  check(text, "FusedPointwise", ["sigmoid = Sigmoid(x)", "y = Mul(x2, sigmoid)"])


def test_an_expensive_small_value_stays_apart_where_the_whole_is_large():
  text = graph("g = Sigmoid(s)  y = Mul(x, g)", GATE.replace("8,8", "2000,2000"), "float[2,3,2000,2000] y")
  stays(text, FUSE_POINTWISE, "24000000 elements costs as much as moving 48000000 bytes")
  unknown = graph("g = Sigmoid(s)  y = Mul(x, g)", GATE.replace("8,8", "H,W"), "float[2,3,H,W] y")
  stays(unknown, FUSE_POINTWISE, "is 16 operations, above 4, and how many is unknown")


def test_a_small_value_that_something_else_needs_stays_apart():
  """It would be computed twice, and is no result: it has not the shape of the others."""
  text = graph("g = Neg(s)  a = Mul(x, g)  y = Relu(a)  z = Softmax(g)", f"{X}, float[8] s", f"{Y}, float[8] z")
  check(text, "Neg FusedPointwise Softmax", ["mul = Mul(x, scale)", "y = Relu(mul)"])
  _, result = run_pass(text, FUSE_POINTWISE)
  assert reasons(result) == ["'y' (FusedPointwise): it is computed apart: 'g' is also used by 'z' (Softmax)"]


def test_a_small_value_that_two_members_read_is_computed_inside():
  text = graph("g = Neg(s)  a = Mul(x, g)  y = Add(a, g)", f"{X}, float[8] s")
  check(text, "FusedPointwise", ["neg = Neg(x)", "mul = Mul(x2, neg)", "y = Add(mul, neg)"])


def test_small_values_are_fused_among_themselves():
  text = graph("a = Exp(s)  b = Log(a)  c = Tanh(b)  g = Softmax(c)  y = Mul(x, g)", f"{X}, float[8] s")
  check(text, "FusedPointwise Softmax Mul", ["exp = Exp(x)", "log = Log(exp)", "y = Tanh(log)"])


def test_a_shape_that_is_not_surely_the_same():
  """a may have one row where y has many."""
  text = graph("a = Neg(x)  y = Add(a, r)", "float[K,8] x, float[N,8] r", "float[N,8] y")
  stays(text, FUSE_POINTWISE, "[K, 8] is not surely")


def test_an_unknown_rank_is_left_alone():
  text = "(float[N] x, int64[K] s) => (float[M] y) { r = Reshape(x, s)  a = Neg(r)  b = Abs(a)  y = Reshape(b, s) }"
  stays(text, FUSE_POINTWISE, "the rank of 'r' is unknown")


def test_unnamed_lengths_are_the_same_along_a_chain():
  """What NonZero finds has a length that nothing names; a chain on it keeps that length."""
  text = "(float[N,M] x) => (int64[2,K] y) { i = NonZero(x)  a = Add(i, i)  b = Neg(a)  y = Mul(b, a) }"
  run_same(text, FUSE_POINTWISE, into="NonZero FusedPointwise")


# ---- what is kept


def test_no_cycle():
  """Softmax reads a and is read by y: a and y in one node would wait for it, and it for them."""
  text = graph("a = Abs(x)  s = Softmax(a)  b = Neg(a)  c = Add(b, s)  y = Relu(c)")
  check(text, "FusedPointwise Softmax FusedPointwise",
        ["y = Abs(x)", "y2 = Neg(y)"], ["add = Add(x, x2)", "y = Relu(add)"])  # fmt: skip


def test_no_cycle_of_two_sets():
  """Each pair alone has no path through others, both together do."""
  text = graph(
    """a = Abs(x)  b = Neg(r)  sa = Softmax(a)  sb = Softmax(b)  c = Add(b, sa)  d = Add(a, sb)
      y = Relu(c)  z = Relu(d)""",
    f"{X}, r",
    f"{Y}, z",
  )
  run_same(text, FUSE_POINTWISE)


def test_a_graph_output_in_between_keeps_its_name():
  text = graph("a = Abs(x)  b = Neg(a)  y = Exp(b)", outputs=f"{Y}, a")
  optimized = check(text, "FusedPointwise", ["y = Abs(x)", "neg = Neg(y)", "y2 = Exp(neg)"])
  assert list(optimized.graph.node[0].output) == ["a", "y"]


def test_shape_arithmetic_stays_on_the_cpu():
  """Lengths that a Reshape, an Expand or a Range needs, and an attention's scale made of one."""
  text = graph(
    """shape = Shape(x)  two = {2}  zero = {0}
      n = Gather(shape, zero)  m = Mul(n, two)  k = Div(m, two)  minus = Neg(two)  rest = Add(minus, k)
      abs = Abs(rest)  whole = Concat<axis=0>(n, abs, zero)  r = Reshape(x, shape)
      f = Cast<to=1>(n)  q = Sqrt(f)  half = Div(q, f)  scaled = Mul(r, half)  y = Relu(scaled)
      z = Identity(whole)""",
    outputs=f"{Y}, int64[3] z",
  )
  optimized, _ = run_same(text, FUSE_POINTWISE, program=["mul = Mul(x, scale)", "y = Relu(mul)"])
  assert operators(optimized).count("FusedPointwise") == 1


def test_operands_of_shapes_stay_on_the_cpu():
  text = "(float[N,M] x, int64[2] s) => (float[A,B] y) { a = Abs(s)  b = Add(a, a)  c = Sub(b, a)  y = Expand(x, c) }"
  stays(text, FUSE_POINTWISE)


def test_the_condition_and_counter_of_a_loop_stay_on_the_cpu():
  text = f"""({X}, int64 most, bool start) => (float[N,M,8] y) {{
    y = Loop(most, start, x) <body = b (int64 i, bool going, float[N,M,8] v) => (bool more, float[N,M,8] w) {{
        three = int64 {{3}}  j = Add(i, i)  few = Less(j, three)  more = And(few, going)
        a = Neg(v)  w = Mul(a, x)
    }}> }}"""
  optimized, _ = run_same(text, FUSE_POINTWISE)
  assert operators(optimized.graph.node[0].attribute[0].g) == ["Add", "Less", "And", "FusedPointwise"]


def test_in_bodies_with_values_from_outside():
  text = f"""({X}, bool flag) => (float[N,M,8] y) {{ a = Abs(x)  b = Neg(a)
      y = If(flag) <then () => (float[N,M,8] p) {{ c = Exp(b)  p = Add(c, a) }},
                      else () => (float[N,M,8] q) {{ d = Tanh(b)  q = Sin(d) }}> }}"""
  optimized, _ = run_same(text, FUSE_POINTWISE, into="FusedPointwise If", changes=3)
  assert list(optimized.graph.node[0].output) == ["a", "b"]
  assert [operators(each.g) for each in optimized.graph.node[1].attribute] == [["FusedPointwise"]] * 2


def test_what_folds_into_a_conv_stays():
  """A frozen batch norm, written out: ONNX Runtime makes it part of the weights. The activation then is alone."""
  text = """(float[N,2,8,8] x, float[2,1,1] free) => (float[N,2,8,8] y, z) {
    w = float[2,2,1,1] {1.0, 2.0, 3.0, 4.0}  s = float[1,2,1,1] {2.0, 3.0}
    b = float[2,1,1] {1.0, -1.0}
    c = Conv(x, w)  m = Mul(c, s)  a = Add(b, m)  y = Relu(a)
    d = Conv(y, w)  e = Mul(free, d)  z = Add(e, b) }"""
  run_pass(text, FUSE_POINTWISE, into="Conv Mul Add Relu Conv FusedPointwise")


def test_an_old_opset_is_left_alone():
  stays(model(graph("a = Neg(x)  y = Abs(a)"), 10), FUSE_POINTWISE)


def test_what_a_program_cannot_say_is_reported():
  optimized, result = run_pass(graph("a = Neg(x)  c = Cast<to=8>(a)  d = Cast<to=1>(c)  y = Relu(d)"), FUSE_POINTWISE)
  assert operators(optimized) == ["Neg", "Cast", "Cast", "Relu"] or "FusedPointwise" in operators(optimized)
  assert any("string" in each or "object" in each for each in reasons(result))


def test_the_limit_and_the_names():
  original = model(graph("a = Abs(x)  b = Neg(a)  s = Softmax(b)  c = Exp(s)  y = Sin(c)"))
  original.graph.node[1].name = "negate"
  _, result = run_pass(original, FUSE_POINTWISE, into="FusedPointwise Softmax FusedPointwise")
  assert [each.nodes for each in result.changes] == [("'a' (Abs)", "negate (Neg)"), ("'c' (Exp)", "'y' (Sin)")]
  assert [each.result for each in result.changes] == ["negate (FusedPointwise)", "'y' (FusedPointwise)"]
  run_same(original, FUSE_POINTWISE, limit=1, into="FusedPointwise Softmax Exp Sin", changes=1)


# ---- limits, large graphs


def flat(nodes, inputs, outputs, shape="[2,3]"):
  given, made = (", ".join(f"float{shape} {name}" for name in names) for names in (inputs, outputs))
  return model(f"({given}) => ({made}) {{ {nodes} }}")


def repeated(numbers, *nodes):
  """The nodes in turn, one set for each number i; j is the next number."""
  return " ".join(nodes[i % len(nodes)].format(i=i, j=i + 1) for i in numbers)


def test_long_chains_are_cut():
  nodes = repeated(range(700), "v{j} = Neg(v{i})", "v{j} = Sin(v{i})", "v{j} = Abs(v{i})")
  optimized, result = run_same(flat(nodes, ["v0"], ["v700"]), FUSE_POINTWISE)
  assert [len(parse(each).statements) for each in programs(optimized)] == [MAX_STATEMENTS, MAX_STATEMENTS, 188]
  assert any("512 statements, and the limit is 256" in each for each in reasons(result))


def test_many_inputs_are_cut():
  nodes = "s1 = Add(p0, p1) " + repeated(range(1, 79), "s{j} = Add(s{i}, p{j})")
  optimized, result = run_same(flat(nodes, [f"p{i}" for i in range(80)], ["s79"]), FUSE_POINTWISE)
  assert max(len(parse(each).parameters) for each in programs(optimized)) == MAX_PARAMETERS
  assert len(programs(optimized)) == 3
  assert any("inputs, and the limit is 32" in each for each in reasons(result))


def test_many_outputs_are_cut():
  nodes = "h = Abs(x) y0 = Mul(h, h) " + repeated(range(39), "y{j} = Mul(h, y{i})")
  optimized, result = run_same(flat(nodes, ["x"], [f"y{i}" for i in range(40)]), FUSE_POINTWISE)
  assert max(len(parse(each).results) for each in programs(optimized)) == MAX_RESULTS
  assert any("outputs, and the limit is 16" in each for each in reasons(result))


def chain(count):
  return flat(repeated(range(count), "v{j} = Neg(v{i})", "v{j} = Abs(v{i})"), ["v0"], [f"v{count}"])


def residual(count):
  block = "a{i} = Relu(v{i})  b{i} = Softmax(a{i})  c{i} = Mul(b{i}, v0)  v{j} = Add(a{i}, c{i})"
  return flat(repeated(range(count // 4), block), ["v0"], [f"v{count // 4}"])


def far(count):
  block = "a{i} = Softmax(v{i})  b{i} = Add(a{i}, early)  v{j} = Relu(b{i})"
  return flat("early = Tanh(v0) " + repeated(range(count // 3), block), ["v0"], [f"v{count // 3}"])


def star(count):
  return flat("h = Relu(v0) " + repeated(range(count), "y{i} = Neg(h)"), ["v0"], [f"y{i}" for i in range(count)])


def ladder(count):
  block = "p{i} = Neg(a{i})  q{i} = Softmax(b{i})  a{j} = Add(p{i}, q{i})  b{j} = Mul(q{i}, p{i})"
  return flat(repeated(range(count // 4), block), ["a0", "b0"], [f"a{count // 4}", f"b{count // 4}"])


@pytest.mark.one_in(5)
@parametrize("make", [chain, residual, far, star, ladder])
def test_ten_thousand_nodes(make):
  """In time near linear: ten times the nodes take at most twenty times as long, and no more than a minute."""
  seconds = []
  for count in (1000, examples(10_000)):
    graph = annotated(make(count))
    start = time.process_time()
    result = FUSE_POINTWISE(graph)
    seconds.append(time.process_time() - start)
    assert len(result.changes) >= count // 256
  assert seconds[1] < 60
  assert seconds[1] < 20 * seconds[0] + 5


# ---- random graphs

UNARY = ("Neg", "Abs", "Tanh", "Sigmoid", "Relu", "Sin", "Softplus")
BINARY = ("Add", "Sub", "Mul", "Max", "Min")
SHAPES = {"x": "[N,M,8]", "r": "[N,M,8]", "b": "[8]", "c": "[M,1]", "e": "[N,1,8]", "one": "[1,1,1]", "s": "[]"}


@st.composite
def graphs(draw):
  ranks = {name: shape for name, shape in SHAPES.items()}
  nodes = []
  for index in range(draw(st.integers(2, 25))):
    name = f"v{index}"
    known = list(ranks)
    a = draw(st.sampled_from(known[-6:]))
    kind = draw(st.sampled_from(["unary", "binary", "binary", "binary", "where", "softmax", "cast", "if"]))
    b = draw(st.sampled_from(known))
    ranks[name] = ranks[a]
    if kind in ("binary", "where"):
      shapes = {ranks[a], ranks[b]}
      full = next((each for each in shapes if shapes <= {each, "[]", "[8]"}), "[N,M,8]")
      if len(shapes) > 1 and full == "[N,M,8]" and "[N,M,8]" not in shapes:
        b = draw(st.sampled_from(["x", "r"]))
      ranks[name] = full if len(shapes) > 1 else ranks[a]
    if kind == "unary" or (kind == "if" and ranks[a] != "[N,M,8]") or (kind == "softmax" and ranks[a] == "[]"):
      nodes.append(f"{name} = {draw(st.sampled_from(UNARY))}({a})")
    elif kind == "binary":
      pair = [a, b] if draw(st.booleans()) else [b, a]
      nodes.append(f"{name} = {draw(st.sampled_from(BINARY))}({pair[0]}, {pair[1]})")
    elif kind == "where":
      nodes.append(f"{name}_p = Greater({a}, {b})  {name} = Where({name}_p, {a}, {b})")
    elif kind == "softmax":
      nodes.append(f"{name} = Softmax({a})")
    elif kind == "cast":
      nodes.append(f"{name}_c = Cast<to=11>({a})  {name} = Cast<to=1>({name}_c)")
    else:
      nodes.append(f"""{name} = If(flag) <
          then{index} () => (float[N,M,8] {name}_t)
              {{ {name}_u = Neg({a})  {name}_t = Abs({name}_u) }},
          else{index} () => (float[N,M,8] {name}_f) {{ {name}_f = Add(x, {a}) }}>""")
  made = [name for name in ranks if name not in SHAPES]
  outputs = draw(st.sets(st.sampled_from(made), min_size=1, max_size=4)) | {made[-1]}
  declared = ", ".join(f"float{'' if shape == '[]' else shape} {name}" for name, shape in SHAPES.items())
  results = ", ".join(f"float{'' if ranks[n] == '[]' else ranks[n]} {n}" for n in sorted(outputs))
  return model(f"({declared}, bool flag) => ({results}) {{ {'  '.join(nodes)} }}")


@tries(40)
@given(graphs(), st.integers(0, 2**32 - 1))
def test_the_same_outputs(original, seed):
  optimized, result = run_pass(original, FUSE_POINTWISE)
  models = [optimized]
  if result.changes:  # stopped anywhere, the model is right as well
    models.append(run_pass(original, FUSE_POINTWISE, limit=seed % len(result.changes))[0])
  for each in models:
    for lengths in ({}, {"N": 1, "M": 1}):
      same_outputs(original, each, rng=np.random.default_rng(seed), precision="float16", **lengths)
  again, _ = run_pass(original, FUSE_POINTWISE)
  assert again == optimized


@parametrize("op", ["Sum", "Max", "Mean"])
def test_a_node_of_thousands_of_inputs_takes_no_square_of_them(op):
  """Nor is any of them looked at in detail: a program has fewer statements."""
  names = [f"x{index}" for index in range(4000)]
  imported = annotated(flat(f"s = {op}({', '.join(names)}) y = Relu(s)", names, ["y"], "[N,4]"))
  begin = time.process_time()
  result = FUSE_POINTWISE(imported)
  assert time.process_time() - begin < 5
  assert not result.changes
  assert any(f"has 4000 inputs; a program has {MAX_STATEMENTS} statements" in each for each in reasons(result))
