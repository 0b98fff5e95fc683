import numpy as np
import onnx
from exported import DATA
from pass_helpers import (
  assert_close,
  model,
  operators,
  parametrize,
  random_feeds,
  reasons,
  restore,
  run,
  run_pass,
  run_same,
  same_outputs,
  stays,
)

from ortplugin.optimizer import PIPELINE, optimize
from ortplugin.optimizer.pipeline import FUSE_POINTWISE, FUSE_SUM_TO

GRADIENT = "a = Sub(one, w)  g = Mul(a, dout)"


def graph(nodes, inputs, outputs, constants="float one = {1}"):
  return f"({inputs}) => ({outputs}) <{constants}> {{ {nodes} }}"


def check(text, ops, statements, opset=17):
  optimized, _ = run_same(model(text, opset), FUSE_SUM_TO, into=ops, program=statements)
  return optimized


# ---- what becomes one


@parametrize("opset", [11, 12, 13, 17, 18])
def test_the_gradients_of_lerp(opset):
  """x: [N, 1, 1, 1]; y: [N, 3, M, 8]; w: [3, 1, 8]."""
  reduce = "dx = ReduceSum<axes=[1,2,3]>(g)" if opset < 13 else "dx = ReduceSum(g, axes)"
  check(
    graph(
      f"{GRADIENT}  {reduce}  dy = Mul(w, dout)",
      "float[N,3,M,8] dout, float[3,1,8] w",
      "float[N,1,1,1] dx, float[N,3,M,8] dy",
      "float one = {1}" + (", int64[3] axes = {1, 2, 3}" if opset >= 13 else ""),
    ),
    "FusedSumTo",
    ["sub = Sub(1, x)", "mul = Mul(sub, x2)", 'y = SumTo<axes="1 2 3">(mul)', "y2 = Mul(x, x2)"],
    opset,
  )


def test_both_gradients_summed_over_other_axes():
  """dout is read twice, which is less than to write and read a tensor of its size."""
  check(
    graph(
        f"{GRADIENT}  dx = ReduceSum(g, cxy)  h = Mul(w, dout)  dy = ReduceSum<keepdims=0>(h, n)",
        "float[N,3,M,8] dout, float[3,1,8] w",
        "float[N,1,1,1] dx, float[3,M,8] dy",
        "float one = {1}, int64[3] cxy = {1,-2,3}, int64[1] n = {0}",
    ),
    "FusedSumTo",
    ["sub = Sub(1, x)", "mul = Mul(sub, x2)", 'y = SumTo<axes="1 2 3">(mul)', "mul2 = Mul(x, x2)",
     'y2 = SumTo<axes="0", keepdims=0>(mul2)'],
  )  # fmt: skip


def test_a_trailing_reshape_stays():
  optimized = check(
    graph(
      f"{GRADIENT}  s = ReduceSum<keepdims=0>(g, axes)  dx = Reshape(s, shape)",
      "float[4,3,8] dout, float[8] w",
      "float[1,8] dx",
      "float one = {1}, int64[2] axes = {0,1}, int64[2] shape = {1,8}",
    ),
    "FusedSumTo Reshape",
    ["sub = Sub(1, x)", "mul = Mul(sub, x2)", 'y = SumTo<axes="0 1", keepdims=0>(mul)'],
  )
  assert list(optimized.graph.node[0].output) == ["s"]


def test_relu_and_bias_gradients():
  """The gradient of a convolution's bias and Relu: what flows on is a result beside the sum."""
  check(
    graph(
      "p = Greater(y, zero)  dx = Where(p, dy, zero)  db = ReduceSum<keepdims=0>(dx, axes)",
      "float[N,3,M,8] dy, y",
      "float[3] db, float[N,3,M,8] dx",
      "float zero = {0}, int64[3] axes = {0,2,3}",
    ),
    "FusedSumTo",
    ["greater = Greater(x, 0)", "y = Where(greater, x2, 0)", 'y2 = SumTo<axes="0 2 3", keepdims=0>(y)'],
  )


def test_what_follows_a_result_is_drawn_in():
  check(
    graph(
        "p = Greater(y, zero)  dx = Where(p, dy, zero)  db = ReduceSum<keepdims=0>(dx, axes)  q = Mul(dx, z)",
        "float[N,3,8] dy, y, z",
        "float[3] db, float[N,3,8] q",
        "float zero = {0}, int64[2] axes = {0,2}",
    ),
    "FusedSumTo",
    ["greater = Greater(x, 0)", "where = Where(greater, x2, 0)", 'y = SumTo<axes="0 2", keepdims=0>(where)',
     "y2 = Mul(where, x3)"],
  )  # fmt: skip


def test_sums_over_the_same_axes():
  check(
    graph(
      "s = ReduceSum<keepdims=0>(x, last)  k = ReduceSum(x, last)  c = ReduceSum(x, first)",
      "float[N,8] x",
      "float[N] s, float[N,1] k, float[1,8] c",
      "int64[1] first = {0}, int64[1] last = {-1}",
    ),
    "FusedSumTo ReduceSum",
    ['y = SumTo<axes="1", keepdims=0>(x)', 'y2 = SumTo<axes="1">(x)'],
  )


def test_over_all_axes():
  for axes in ("", ", none"):
    check(
      graph(f"d = Sub(x, t)  q = Mul(d, d)  y = ReduceSum<keepdims=0>(q{axes})", "float[N,8] x, t",
            "float y", "int64[0] none = {}"),
      "FusedSumTo",
      ["sub = Sub(x, x2)", "mul = Mul(sub, sub)", 'y = SumTo<axes="0 1", keepdims=0>(mul)'],
    )  # fmt: skip


def test_a_cast_around_the_sum():
  check(
    "(float16[N,8] x, float16[8] b) => (float16[N] y) <int64[1] axes = {1}> "
    "{ t = Add(x, b)  u = Cast<to=1>(t)  s = ReduceSum<keepdims=0>(u, axes)  y = Cast<to=10>(s) }",
    "FusedSumTo",
    ["add = Add(x, bias)", "cast = Cast<to=float>(add)", 'sumto = SumTo<axes="1", keepdims=0>(cast)',
     "y = Cast<to=float16>(sumto)"],
  )  # fmt: skip


@parametrize("number", ["-2", "3", "0"])
@parametrize("keepdims", [0, 1])
@parametrize("opset", [12, 17])
def test_a_constant_before_its_slope(opset, keepdims, number):
  """PRelu's result has its first operand's shape: a literal in its place must not make it a scalar."""
  axes = ("axes=[0], ", "") if opset < 13 else ("", ", axes")
  original = model(
    graph(
      f"p = PRelu(c, x)  y = ReduceSum<{axes[0]}keepdims={keepdims}>(p{axes[1]})",
      "float[1] x",
      f"float{'[1]' * keepdims} y",
      f"float[1] c = {{{number}}}" + ", int64[1] axes = {0}" * (opset >= 13),
    ),
    opset,
  )
  run_same(original, FUSE_SUM_TO, into="FusedSumTo")


def test_a_comparison_sees_what_the_model_rounds():
  check(
    "(float16[N,8] x, float16[8] b) => (y) <int64[1] axes = {0}, float16 zero = {0}> "
    "{ t = Mul(x, b)  p = Greater(t, zero)  u = Where(p, x, zero)  y = ReduceSum<keepdims=0>(u, axes) }",
    "FusedSumTo",
    ["mul = Mul(x, scale)", "cast = Cast<to=float16>(mul)", "greater = Greater(cast, 0)",
     "where = Where(greater, x, 0)", 'y = SumTo<axes="0", keepdims=0>(where)'],
  )  # fmt: skip


def test_in_a_body():
  text = """(float[N,8] x, bool c) => (float[N] y) { y = If(c) <
      then () => (float[N] t) { p = Mul(x, x)  t = ReduceSum<keepdims=0, axes=[1]>(p) },
      else () => (float[N] e) { q = Exp(x)  e = ReduceSum<keepdims=0, axes=[1]>(q) }> }"""
  run_same(model(text, 12), FUSE_SUM_TO, changes=2)


def test_it_runs_before_other_pointwise_operators_are_fused():
  """A chain beside the sum, fused first, is then joined with it: x is read once."""
  original = model(
    graph(
      "e = Exp(x)  y = Mul(e, b)  z = Add(y, x)  p = Mul(x, b)  s = ReduceSum(p, axes)",
      "float[N,8] x, float[8] b",
      "float[N,8] z, float[1,8] s",
      "int64[1] axes = {0}",
    )
  )
  names = [step.name for step in PIPELINE]
  assert names.index(FUSE_SUM_TO.name) < names.index(FUSE_POINTWISE.name)
  optimized, _ = optimize(original)
  assert operators(optimized) == ["FusedSumTo"]
  same_outputs(original, optimized)


# ---- what must not


X = "float[N,8] x"
STAYS = {
  "a lone sum": ("y = ReduceSum(x)", X, "float[1,1] y"),
  "a mean": ("p = Mul(x, x)  y = ReduceMean<axes=[1]>(p)", X, "float[N,1] y"),
  # ONNX Runtime's sums of integers do not wrap.
  "integers": ("p = Mul(x, x)  y = ReduceSum(p)", "int64[N,8] x", "int64[1,1] y"),
  "axes that are not known": (
    "p = Mul(x, x)  y = ReduceSum(p, axes)",
    f"{X}, int64[1] axes",
    "float[N,1] y",
    "the axes 'axes' of 'y' (ReduceSum) are no constant",
  ),
  "no axes, which may mean nothing": ("p = Mul(x, x)  y = ReduceSum<noop_with_empty_axes=1>(p)", X, "float[N,8] y"),
  "an unknown rank": (
    "v = Reshape(x, shape)  p = Mul(v, v)  y = ReduceSum<keepdims=0>(p)",
    f"{X}, int64[r] shape",
    "float y",
    "rank of 'p' is unknown",
  ),
  "a shape in floats": (
    "s = Shape(x)  f = Cast<to=1>(s)  g = Mul(f, one)  y = ReduceSum<keepdims=0>(g)",
    X,
    "float y",
  ),
}


@parametrize("what", STAYS)
def test_what_stays(what):
  nodes, inputs, outputs, *reason = STAYS[what]
  stays(graph(nodes, inputs, outputs), FUSE_SUM_TO, *reason)


def test_an_intermediate_that_is_a_graph_output_is_kept():
  optimized = check(
    graph("p = Mul(x, b)  y = ReduceSum(p, axes)", "float[N,8] x, float[8] b", "float[1,8] y, float[N,8] p",
          "int64[1] axes = {0}"),
    "FusedSumTo",
    ["y = Mul(x, scale)", 'y2 = SumTo<axes="0">(y)'],
  )  # fmt: skip
  assert list(optimized.graph.node[0].output) == ["p", "y"]


def test_a_smaller_value_that_something_else_needs_is_computed_once():
  check(
    graph("a = Exp(w)  p = Mul(x, a)  y = ReduceSum(p, axes)  z = Softmax(a)", "float[N,8] x, float[8] w",
          "float[1,8] y, float[8] z", "int64[1] axes = {0}"),
    "Exp FusedSumTo Softmax",
    ["mul = Mul(x, scale)", 'y = SumTo<axes="0">(mul)'],
  )  # fmt: skip


def test_an_expensive_smaller_value_is_computed_once():
  nodes = "t = Tan(w)  a = Exp(t)  p = Mul(x, a)  y = ReduceSum(p, axes)"
  original = graph(nodes, "float[100000,256] x, float[256] w", "float[1,256] y", "int64[1] axes = {0}")
  _, result = run_pass(original, FUSE_SUM_TO, into="Tan Exp FusedSumTo")
  assert any("'a' is computed apart: computing it again" in reason for reason in reasons(result))


def test_no_cycle():
  """q reads what the sum reads, and the sum itself by way of Softmax."""
  optimized = check(
    graph("p = Mul(x, b)  y = ReduceSum(p, axes)  s = Softmax(y)  q = Mul(x, s)", "float[N,8] x, float[8] b",
          "float[N,8] q", "int64[1] axes = {0}"),
    "FusedSumTo Softmax Mul",
    ["mul = Mul(x, scale)", 'y = SumTo<axes="0">(mul)'],
  )  # fmt: skip
  assert optimized.graph.node[0].output == ["y"]


def test_nothing_computes_with_the_sum():
  """Also where one element is summed, so that the sum has the shape of what it reads."""
  check(
    graph("p = Mul(x, b)  y = ReduceSum(p, axes)  z = Mul(y, b)", "float[1,8] x, float[8] b", "float[1,8] z",
          "int64[1] axes = {0}"),
    "FusedSumTo Mul",
    ["mul = Mul(x, scale)", 'y = SumTo<axes="0">(mul)'],
  )  # fmt: skip


SHAPES = {
  "a part that broadcasts": ("float[1,8] o", "float[1] u", 1),
  "length 1 on the axis": ("float[N,1] o", "float[N] u", 1),
  "a lower rank": ("float[8] o", "float u", 0),
  "a length that may be 1": ("float[M,8] o", "float[M] u", 1),
}


@parametrize("case", SHAPES)
@parametrize("first", [True, False])
def test_sums_of_other_shapes_stay_apart(case, first):
  """y = x + o; y.sum(), o.sum(): an input that both read is not the whole of what both sum."""
  operand, result, axis = SHAPES[case]
  sums = ["s = ReduceSum<keepdims=0>(y, axes)", "u = ReduceSum<keepdims=0>(o, axes)"]
  original = model(
    graph(
      "y = Add(x, o)  " + "  ".join(sums if first else reversed(sums)),
      f"float[N,8] x, {operand}",
      f"float[A] s, {result}",
      f"int64[1] axes = {{{axis}}}",
    )
  )
  optimized, _ = run_pass(original, FUSE_SUM_TO)
  assert sorted(operators(optimized)) == ["FusedSumTo", "ReduceSum"]
  for lengths in ({"M": 1, "N": 3}, {"M": 1, "N": 1}):
    same_outputs(original, optimized, **lengths)


def test_two_fused_sums_of_other_shapes_stay_apart():
  """x [a,b,c] and o [a,1,c]: the sum of o is of a program with several inputs, too."""
  original = graph(
    "y = Mul(x, o)  s = ReduceSum(y, axes)  z = Mul(o, p)  u = ReduceSum(z, axes)",
    "float[N,5,8] x, float[N,1,8] o, p",
    "float[N,1,8] s, u",
    "int64[1] axes = {1}",
  )
  run_same(original, FUSE_SUM_TO, into="FusedSumTo FusedSumTo")


def test_an_old_opset_stays():
  stays(model(graph("p = Mul(x, x)  y = ReduceSum<axes=[1]>(p)", X, "float[N,1] y"), 10), FUSE_SUM_TO)


# ---- lerp, from exporters

LERP = DATA / "lerp"


def lerp(x, y, w):
  return np.asarray(x + w * (y - x), np.float32)


def gradients(dout, w):
  return [(dout * (1 - w)).sum((1, 2, 3), keepdims=True), (dout * w).sum(0, keepdims=True)]


EXPORTED = {
  "tensor_weight": ("FusedPointwise", lambda x, y, w: [lerp(x, y, w)]),
  "one_weight": ("FusedPointwise", lambda x, y, w: [lerp(x, y, w)]),
  "low_weight": ("FusedPointwise", lambda x, y: [lerp(x, y, 0.25)]),
  "high_weight": ("FusedPointwise", lambda x, y: [lerp(x, y, 0.75)]),
  "gradients": ("FusedSumTo Reshape", gradients),
}


@parametrize("exporter", ["torchscript", "dynamo"])
@parametrize("name", EXPORTED)
def test_what_torch_exports_becomes_one(name, exporter, rng):
  ops, formula = EXPORTED[name]
  original = onnx.load(LERP / f"{name}_{exporter}.onnx")
  optimized, _ = optimize(original)
  assert operators(optimized) == ops.split()
  feeds = random_feeds(original, rng)
  for found in (run(original, feeds), run(restore(optimized), feeds)):
    for got, wanted in zip(found, formula(*feeds.values()), strict=True):
      assert_close(wanted, got)


@parametrize("weight", ["float w", "float[1] w", "float[3,1,8] w"])
def test_the_plain_form_of_lerp_becomes_one(weight):
  original = model(f"""(float[4,1,1,1] x, float[4,3,6,8] y, {weight}) => (float[4,3,6,8] z)
    {{ d = Sub(y, x)  p = Mul(w, d)  z = Add(x, p) }}""")
  optimized, _ = optimize(original)
  assert operators(optimized) == ["FusedPointwise"]
  same_outputs(original, optimized)
