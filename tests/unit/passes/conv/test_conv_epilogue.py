from layout_helpers import FP16, SAME, W, constant
from pass_helpers import (
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
)

from ortplugin.optimizer.pipeline import CHANNELS_LAST_ALWAYS, CONV_EPILOGUE, FUSE_CONV, FUSE_POINTWISE, IMAGE_INPUT


def graph(nodes, constants="", inputs="", outputs="", dtype="float", out="[N,4,5,6]"):
  weight = (W if dtype == "float" else FP16) + (f", {constants}" if constants else "")
  return f"({dtype}[N,4,5,6] x{inputs}) => ({dtype}{out} y{outputs}) <{weight}> {{ c = {SAME}(x, w)  {nodes} }}"


def fuse(original, into=None):
  return run_same(original, CONV_EPILOGUE, start=run_pass(original, FUSE_CONV)[0], into=into)


def statements(optimized):
  return [lines(each) for each in programs(optimized)]


S = "float s = {0.5}, float three = {3}, float six = {6}, float zero = {0}, float one = {1}, float root = {1.4142135}"


@parametrize(
  "nodes, expected",
  [
      ("y = Relu(c)", ["y = Relu(c)"]),
      ("y = LeakyRelu<alpha=0.1>(c)", ["y = LeakyRelu<alpha=0.1>(c)"]),
      ("y = Clip(c, zero, six)", ["y = Clip(c, 0, 6)"]),
      ("y = HardSwish(c)", ["y = HardSwish(c)"]),
      ("a = Mul(c, s)  y = Tanh(a)", ["mul = Mul(c, 0.5)", "y = Tanh(mul)"]),
      ("a = Sigmoid(c)  y = Mul(c, a)", ["sigmoid = Sigmoid(c)", "y = Mul(c, sigmoid)"]),
      ("a = Add(c, three)  b = Clip(a, zero, six)  d = Mul(c, b)  y = Div(d, six)",
       ["add = Add(c, 3)", "clip = Clip(add, 0, 6)", "mul = Mul(c, clip)", "y = Div(mul, 6)"]),
      ("a = Add(c, three)  b = Clip(a, zero, six)  d = Div(b, six)  y = Mul(c, d)",
       ["add = Add(c, 3)", "clip = Clip(add, 0, 6)", "div = Div(clip, 6)", "y = Mul(c, div)"]),
      ("a = Div(c, root)  b = Erf(a)  d = Add(b, one)  e = Mul(c, d)  y = Mul(e, s)",
       ["div = Div(c, 1.4142135381698608)", "erf = Erf(div)", "add = Add(erf, 1)", "mul = Mul(c, add)",
        "y = Mul(mul, 0.5)"]),
      ("a = Softplus(c)  b = Tanh(a)  y = Mul(c, b)",
       ["softplus = Softplus(c)", "tanh = Tanh(softplus)", "y = Mul(c, tanh)"]),
      ("a = Add(c, r)  y = Relu(a)", ["add = Add(c, residual)", "y = Relu(add)"]),
      ("a = Relu(c)  y = Add(a, r)", ["relu = Relu(c)", "y = Add(relu, residual)"]),
      ("y = Add(c, x)", ["y = Add(c, residual)"]),
      ("a = Mul(c, g)  y = Add(a, r)", ["mul = Mul(c, scale)", "y = Add(mul, residual)"]),
      ("y = PRelu(c, g)", ["y = PRelu(c, slope)"]),
      ("a = Sum(c, x, r)  y = Relu(a)", ["add = Add(c, residual)", "add2 = Add(add, residual2)", "y = Relu(add2)"]),
  ],
)  # fmt: skip
def test_chains(nodes, expected):
  constants = f"{S}, float[4,1,1] g = {{0.5, -1, 2, 3}}"
  optimized, result = fuse(model(graph(nodes, constants, ", float[N,4,5,6] r")), into="FusedConv")
  assert statements(optimized) == [expected]
  assert len(result.changes) == 1


def test_in_float16():
  fuse(model(graph("a = Add(c, r)  y = Relu(a)", "", ", float16[N,4,5,6] r", dtype="float16")), into="FusedConv")


def test_casts_become_part_of_it():
  fuse(model(graph("a = Cast<to=1>(c)  b = Relu(a)  y = Cast<to=10>(b)", dtype="float16")), into="FusedConv")


def test_what_was_fused_before_is_drawn_in():
  original = model(graph("a = Add(c, r)  b = Sigmoid(a)  y = Mul(a, b)", "", ", float[N,4,5,6] r"))
  before, _ = run_pass(original, FUSE_POINTWISE, FUSE_CONV, into="FusedConv FusedPointwise")
  run_same(original, CONV_EPILOGUE, start=before, into="FusedConv")


def test_an_operand_that_is_made_later():
  """The convolution moves behind what its program reads."""
  fuse(model(graph("a = Softmax(r)  y = Add(a, c)", "", ", float[N,4,5,6] r")), into="Softmax FusedConv")


def test_the_later_of_two_convolutions_takes_their_sum():
  original = model(graph(f"d = {SAME}(r, w)  a = Relu(d)  b = Add(a, c)  y = Relu(b)", "", ", float[N,4,5,6] r"))
  optimized, _ = fuse(original, into="FusedConv FusedConv")
  assert statements(optimized) == [[], ["relu = Relu(c)", "add = Add(relu, residual)", "y = Relu(add)"]]


def test_the_earlier_takes_the_sum_where_the_later_may_not():
  text = graph(f"d = {SAME}(r, w)  y = Add(d, c)", "", ", float[N,4,5,6] r", ", float[N,4,5,6] d")
  optimized, _ = fuse(model(text), into="FusedConv FusedConv")
  assert statements(optimized) == [[], ["y = Add(residual, c)"]]


def test_a_residual_network():
  original = model(
    graph(f"""a = Relu(c)  d = {SAME}(a, w)  e = Add(d, x)  f = Relu(e)
      g = {SAME}(f, w)  h = Relu(g)  i = {SAME}(h, w)  j = Add(i, f)  y = Relu(j)""")
  )
  optimized, _ = fuse(original, into=["FusedConv"] * 4)
  assert statements(optimized)[1::2] == [["add = Add(c, residual)", "y = Relu(add)"]] * 2


def test_squeeze_and_excite():
  """The gate depends on what it scales: it ends both chains."""
  nodes = """a = Relu(c)  p = GlobalAveragePool(a)  d = Conv(p, u)  e = Relu(d)  f = Conv(e, u)  s = Sigmoid(f)
    y = Mul(s, a)"""
  original = model(graph(nodes, constant("u", 4, 4, 1, 1)))
  optimized, result = fuse(original, into="FusedConv GlobalAveragePool FusedConv FusedConv Mul")
  assert statements(optimized) == [["y = Relu(c)"], ["y = Relu(c)"], ["y = Sigmoid(c)"]]
  assert any("'s', which it also reads, depends on the convolution" in each for each in reasons(result))


def test_a_value_with_other_readers_is_the_last():
  text = graph("a = Add(c, x)  b = Relu(a)  y = Softmax(a)", "", "", ", float[N,4,5,6] b")
  _, result = fuse(model(text), into="FusedConv Relu Softmax")
  assert any("'a' is also used by 'y' (Softmax)" in each for each in reasons(result))


def test_a_graph_output_is_the_last():
  _, result = fuse(model(graph("a = Add(c, x)  y = Relu(a)", "", "", ", float[N,4,5,6] a")), into="FusedConv Relu")
  assert any("'a' is a graph output" in each for each in reasons(result))


@parametrize(
  "text, fragment",
  [
      (graph("y = Add(c, r)", "", ", float[M,N,4,5,6] r", out="[M,N,4,5,6]"), "'r' of shape [M, N, 4, 5, 6] does"),
      (graph("y = Add(c, r)", "", ", float[K,4,5,6] r", out="[A,4,5,6]"), "of shape [K, 4, 5, 6] does not surely"),
      (graph("e = MaxPool<kernel_shape=[5,6]>(c)  d = Conv(e, u)  y = Mul(d, x)", constant("u", 4, 4, 1, 1)),
       "'x' of shape [N, 4, 5, 6] does not surely broadcast to"),
      (graph("v = Reshape(r, t)  y = Add(c, v)", "", ", float[K] r, int64[R] t", out="[A,B,C,D]"),
       "the rank of 'v' is unknown"),
      (graph("a = Softmax(c)  y = Add(c, a)"), "'a', which it also reads, depends on the convolution"),
      (graph("a = Relu(c)  y = Softmax(c)", "", "", ", float[N,4,5,6] a"), "'c' is also used by 'y' (Softmax)"),
      (graph("y = Relu(c)", "", "", ", float[N,4,5,6] c"), "'c' is a graph output"),
      (graph("y = Floor(c)", dtype="float16"), "'c' has to be rounded to float16 before it"),
      (graph("y = Cast<to=6>(c)").replace("(float[N,4,5,6] y)", "(int32[N,4,5,6] y)"), "it has a value of int32"),
      (graph("y, mask = Dropout(c)", "", "", ", bool[N,4,5,6] mask"), "its mask is wanted"),
  ],
)  # fmt: skip
def test_near_misses(text, fragment):
  before, _ = run_pass(text, FUSE_CONV)
  stays(before, CONV_EPILOGUE, fragment)


def test_spatial_dimensions_that_are_not_known_to_be_equal():
  text = "(float[N,4,H,V] x, float[N,4,A,B] r) => (float[N,4,E,F] y) <" + W + "> { c = Conv(x, w)  y = Add(c, r) }"
  before, _ = run_pass(text, FUSE_CONV)
  stays(before, CONV_EPILOGUE, "does not surely broadcast to [N, 4, ")


def test_a_residual_of_dynamic_dimensions_that_stay():
  """With this padding the convolution's result has the lengths of what it reads."""
  text = f"(float[N,4,rows,length] x) => (float[N,4,A,B] y) <{W}> {{ c = {SAME}(x, w)  a = Add(c, x)  y = Relu(a) }}"
  fuse(model(text), into="FusedConv")


@parametrize(
  "nodes, fused",
  [
    # A block with strides and its shortcut: two ways to the same lengths, which have no name.
    (
      """c = Conv<pads=[1,1,1,1], strides=[2,2]>(x, w)  r = Relu(c)  d = Conv<pads=[1,1,1,1]>(r, w)
        s = Conv<strides=[2,2]>(x, u)  a = Add(d, s)  y = Relu(a)""",
      3,
    ),
    (
      """c = Conv<pads=[1,1,1,1], strides=[2,2]>(x, w)  d = Conv<pads=[1,1,1,1]>(c, w)
        m = Mul(c, k)  a = Add(d, m)  y = Relu(a)""",
      2,
    ),
    # One less: not the same.
    (
      """c = Conv<pads=[1,1,1,1], strides=[2,2]>(x, w)  s = Conv<strides=[2,2]>(x, w)
        a = Softmax(s)  b = Add(c, a)  y = Relu(b)""",
      0,
    ),
    ("""c = Conv<strides=[2,2]>(x, u)  s = Conv<strides=[3,3]>(x, u)  a = Softmax(s)  y = Add(c, a)""", 0),
    (
      """c = Conv<strides=[2,2]>(x, u)  s = Conv<strides=[2,2], pads=[0,0,1,0]>(x, u)
        a = Softmax(s)  y = Add(c, a)""",
      0,
    ),
  ],
)
def test_residuals_of_lengths_without_a_name(nodes, fused):
  ones = f"{constant('u', 4, 4, 1, 1)}, float[4,1,1] k = {{1, 2, 3, 4}}"
  text = f"(float[N,4,rows,length] x) => (float[N,4,A,B] y) <{W}, {ones}> {{ {nodes} }}"
  optimized, result = run_pass(run_pass(text, FUSE_CONV)[0], CONV_EPILOGUE)
  left = [each for each in operators(optimized) if each in ("Add", "Relu")]
  if fused:
    same_outputs(model(text), optimized)
    assert operators(optimized).count("FusedConv") == fused
    assert not left
  else:
    assert "Add" in left
    assert any("does not surely broadcast" in each for each in reasons(result))


@parametrize("size, fused", [("H,V", False), ("H,W", True)])
def test_images_that_are_read_with_channels_first(size, fused):
  """Their lengths stand elsewhere than the results'."""
  text = f"""(float[N,4,H,W] x, float[N,4,{size}] z) => (float[N,4,A,B] y) <{W}> {{
    c = Conv<strides=[2,2]>(x, w)  d = Conv<strides=[2,2]>(z, w)  y = Add(c, d) }}"""
  before, _ = run_pass(text, FUSE_CONV, CHANNELS_LAST_ALWAYS)
  optimized, result = run_pass(before, IMAGE_INPUT, CONV_EPILOGUE)
  assert [each.rewrite for each in result.changes] == ["image-input"] * 2 + ["conv-epilogue"] * fused
  assert ("Add" in operators(optimized)) != fused


def test_an_identity_is_no_epilogue():
  before, _ = run_pass(graph("i = Identity(c)  y = Softmax(i)"), FUSE_CONV)
  stays(before, CONV_EPILOGUE)


def test_what_is_used_inside_a_body_is_the_last():
  branches = """y = If(b) <then () => (float[N,4,5,6] t) { t = Neg(c) },
      otherwise () => (float[N,4,5,6] e) { e = Softmax(c) }>  z = Relu(c)"""
  before, _ = run_pass(graph(branches, "", ", bool b", ", float[N,4,5,6] z"), FUSE_CONV)
  stays(before, CONV_EPILOGUE, "'c' is also used inside a body")


def test_more_operands_than_a_program_has():
  """Of forty sums the convolution takes thirty-one: its own value is a parameter too."""
  inputs = "".join(f", float[N,4,5,6] r{i}" for i in range(40))
  sums = "  ".join(f"a{i} = Add({'c' if i == 0 else f'a{i - 1}'}, r{i})" for i in range(40))
  _, result = fuse(model(graph(f"{sums}  y = Relu(a39)", "", inputs)), into=["FusedConv"] + ["Add"] * 9 + ["Relu"])
  assert any("exceeds a program's limits" in each for each in reasons(result))


@parametrize(
  "nodes, before",
  [("a = Relu(c)  y = Neg(c)", "FusedConv Relu Neg"), ("y = Neg(c)  a = Relu(y)  b = Tanh(a)", "FusedConv Relu Tanh")],
)
def test_what_nothing_reads_is_no_part_of_a_program(nodes, before):
  """As without dead-nodes, which takes such operators away."""
  fuse(model(graph(nodes)), into=before)
