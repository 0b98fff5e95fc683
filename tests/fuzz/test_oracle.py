from dataclasses import replace

import numpy as np
from onnx_models import one_in, ones, parametrize, parsed, raises, zeros

from fuzz import oracle
from fuzz.evaluate import make_session, run
from fuzz.handmade import case_of, judged_as
from fuzz.judge import REUSED, Judge
from fuzz.narrow import narrow_model
from fuzz.providers import Provider
from fuzz.reference import Reference


def model_of(text, opset=17):
  return parsed(f"model {text}", opset)


@parametrize("opset", [7, 13, 21, 22, 25])
@parametrize("dtype", ["float", "double"])
def test_trials_move_every_element(opset, dtype):
  """ONNX Runtime lacks operators of new opsets, and trials that fail explain nothing."""
  model = model_of(f"({dtype}[2, 3] x) => (y) {{ y = Abs(x) }}", opset)
  x = np.linspace(1, 2, 6).reshape(2, 3).astype("float32" if dtype == "float" else "float64")
  found = oracle.trials(model, {"x": x}, "float32", ["y"], 3)
  assert all(found)
  off = np.array([each["y"] / x - 1 for each in found[1:]]).astype(np.float64)
  unit = oracle.UNIT[x.dtype.name]
  assert np.all(off.max(axis=0) > 0)
  assert np.all(off.min(axis=0) < 0)
  assert np.abs(off).max() <= 5 * unit  # two of the input's, two of the output's, and what these are rounded by
  assert len(np.unique(off, axis=0)) == len(off)  # no two trials are the same


def test_trials_of_an_empty_value_and_a_scalar():
  model = model_of("(float[n] x, float s) => (float[n] y, float t) { y = Abs(x) t = Abs(s) }", 22)
  found = oracle.trials(model, {"x": zeros(0), "s": np.float32(2)}, "float32", ["y", "t"], 3)
  assert all(each["y"].shape == (0,) and each["t"].shape == () for each in found)


@one_in(0)
def test_a_shape_that_values_decide():
  """Whether two numbers are equal in fp16 is rounding's to say, and few of the trials say that they are."""
  model = model_of("(float[2] x) => (float[n] y) { a = Sqrt(x) y = Unique<sorted=1>(a) }")
  close = np.float32([1.0, 1.0034])  # their roots are 1.7 units in the last place of fp16 apart
  case = case_of(model, {"x": close}, dtype="fp16", wide=model)
  got = {"y": ones(1)}
  assert Reference(case, {"x": close}).problem(got) is None
  far = {"x": np.float32([1.0, 1.5])}
  assert Reference(case, far).problem(got) is not None


@one_in(0)
def test_a_float_that_rounding_decides():
  """Whether the root is less than a number 1.7 units in the last place away: few of the trials say that it is not."""
  text = """(float[1] x) => (y) <float[1] c = {1.0017}>
        { a = Sqrt(x) b = Less(a, c) z = Cast<to=1>(b) y = Mul(z, c) }"""
  case = case_of(model_of(text), {"x": ones(1)}, dtype="fp16", wide=model_of(text))
  zero = {"y": np.zeros(1, np.float16)}
  assert Reference(replace(case, model=narrow_model(case.model, "fp16", ())), case.feeds[0]).problem(zero) is None
  far = {"x": np.full(1, 0.98, np.float32)}
  assert Reference(replace(case, model=narrow_model(case.model, "fp16", ())), far).problem(zero) is not None


@one_in(0)
def test_a_sum_that_is_zero_but_for_rounding():
  """The products cancel, but not when each is rounded to float32; AveragePool, which has no double, stands beside."""
  text = """(float[1,1,3] x) => (float[1] y, float[1,1,3] p) <float[1] c = {0.14590375}, int64[2] axes = {0,1}>
        { a = Mul(x, c) s = Flatten(a) b = ReduceSum<keepdims=0>(s, axes) t = Cast<to=9>(b) f = Cast<to=1>(t)
          e = Constant<value_floats=[1.0]>() y = Mul(f, e) p = AveragePool<kernel_shape=[1]>(x) }"""
  x = {"x": np.float32([[[5, 7, -12]]])}
  reference = Reference(case_of(model_of(text), x), x)
  assert reference.wanted["y"] == 1
  assert reference.problem({"y": zeros(1), "p": x["x"]}) is None
  assert reference.problem({"y": zeros(1), "p": x["x"] + 1}) is not None
  other = {"x": x["x"] + 1}
  reference = Reference(case_of(model_of(text), other), other)
  assert reference.problem({"y": zeros(1), "p": other["x"]}) is not None


@one_in(2)
@parametrize("divides, right", [("Sub", True), ("Mul", False)])
def test_a_sum_that_rounding_makes_zero(divides, right):
  """In bf16 the terms may be equal, and 0 / 0 is NaN; a product is 0 of no rounding."""
  model = model_of(f"""(float[3] x) => (y) <float[3] c = {{0.999,0.5,-1}}>
        {{ a = {divides}(x, c)  y = Div(a, a) }}""")
  x = {"x": np.array([1, 1, 1] if divides == "Sub" else [0.001, 1, 1], np.float32)}
  reference = Reference(case_of(model, x, precision="bf16"), x)
  assert (reference.problem({"y": np.float32([np.nan, 1, 1])}) is None) is right
  assert reference.problem({"y": np.float32([1, np.nan, 1])}) is not None


@parametrize("moved, right", [(1.0, True), (1e-3, False)])
def test_a_tangent_of_a_rounded_number(moved, right):
  """Eight trials need not show how far it may be off; of small numbers they do."""
  model = model_of("(float[64] x) => (y) { a = Neg(x)  y = Tan(a) }")
  x = np.linspace(300, 800, 64, dtype=np.float32) * np.float32(moved)
  reference = Reference(case_of(model, {"x": x}, precision="bf16"), {"x": x})
  have = {"y": np.tan(-x.astype(np.float64) * (1 + 2.0**-8 if right else 2)).astype(np.float32)}
  assert (reference.problem(have) is None) is right


CONCAT = "(float[1,n] x) => (float[a,b] y) <float[1,2] w = {1,2}> { y = Concat<axis=0>(x, w) }"


@parametrize("width, axis, undefined", [(0, 0, True), (2, 0, False), (0, 1, False)])
def test_an_empty_tensor_that_does_not_fit(width, axis, undefined):
  model = model_of(CONCAT.replace("axis=0", f"axis={axis}"))
  assert bool(oracle.is_undefined(model, {"x": zeros(1, width)})) is undefined


@parametrize("size", [0, 1])
def test_shapes_where_an_empty_tensor_does_not_fit(size):
  """What is believed of a Concat need not hold where the original's result is undefined."""
  model = model_of(
    """(float[N,M,M] x) => (float[a,b,c] y)
        { a = Abs(x)  s = ReduceSum<axes=[0,1], keepdims=1>(a)  y = Concat<axis=0>(a, s) }""",
    9,
  )
  feeds = [{"x": ones(3, size, size)}]
  assert Judge().judge(case_of(model, *feeds, checks=("shapes",))).what == "same"


@parametrize("batch, undefined", [(1, False), (2, True), (4, False)])
def test_a_skip_of_another_batch(batch, undefined):
  """Which ONNX Runtime repeats, or cuts off: the rows fit."""
  model = model_of("""(float[N,1,3] x, float[M,1,3] s) => (float[?,?,?] y) <float[3] w = {1, 2, 3}>
        { y = com.microsoft.SkipLayerNormalization(x, s, w) }""")
  feeds = {"x": ones(4, 1, 3), "s": ones(batch, 1, 3)}
  assert oracle.run(oracle.make_session(model), feeds)["y"].shape == (4, 1, 3)
  assert bool(oracle.is_undefined(model, feeds)) is undefined


@parametrize("value, undefined", [(np.inf, True), (np.nan, True), (2.0**31, True), (-(2.0**31), False)])
def test_a_float_that_no_integer_is(value, undefined):
  model = model_of("(double[1] x) => (int32[1] y) { a = Abs(x) b = Mul(a, x) c = Div(b, a) y = Cast<to=6>(c) }")
  assert bool(oracle.is_undefined(model, {"x": np.array([value])})) is undefined


@parametrize("numbers, undefined", [((1e30, 1e30), False), ((1e30, 1e30, 1e-30, 1e-30), True)])
def test_a_product_that_its_order_decides(numbers, undefined):
  x = np.array(numbers, np.float32)
  model = model_of("(float[n] x) => (float y) { a = Abs(x)  y = ReduceProd<keepdims=0>(a) }")
  assert bool(oracle.is_undefined(model, {"x": x})) is undefined
  assert not oracle.is_undefined(model, {"x": x[[0, -1]]})


def test_a_float_that_is_infinite_in_half_precision():
  model = model_of("(float[1] x) => (int32[1] y) { a = Mul(x, x)  y = Cast<to=6>(a) }")
  feeds = {"x": np.float32([268])}
  assert not oracle.is_undefined(model, feeds)
  assert oracle.is_undefined(model, feeds, halves=True)


POOLS = """(float[2,1,2] x) => (float[2,1,0] g, float[2,1,1] i) <float[1] c = {0.5}>
    {
        f = AveragePool<ceil_mode=1, kernel_shape=[3], pads=[1,1], strides=[3]>(x)
        g = Resize<axes=[2], mode="nearest">(f, "", c)
        i = GlobalAveragePool(x)
    }"""
IN_FP16 = """(float[2,1,2] x) => (float[2,1,0] g, float[2,1,1] i) <float[1] c = {0.5}>
    {
        z = Cast<to=10>(x)
        f = AveragePool<ceil_mode=1, kernel_shape=[3], pads=[1,1], strides=[3]>(z)
        e = Resize<axes=[2], mode="nearest">(f, "", c)
        h = GlobalAveragePool(z)
        i = Cast<to=1>(h)
        g = Cast<to=1>(e)
    }"""


def test_memory_planned_by_a_shape_inferred_wrongly(monkeypatch):
  """ONNX Runtime gives a result the memory of an empty one that it infers to have an element."""
  feeds = {"x": ones(2, 1, 2)}
  model = model_of(IN_FP16, 21)
  with raises(Exception, REUSED):
    run(make_session(model), feeds)
  case = case_of(model_of(POOLS, 21), feeds)

  assert judged_as(monkeypatch, case, model).what == "unfit"


@parametrize("kind, have, right", [("pole", -1e9, True), ("zero", 1e3, False), ("rare", 1e3, False)])
def test_beside_a_pole_no_size_is_the_largest(kind, have, right):
  noise = np.random.default_rng(0).standard_normal(oracle.MORE_TRIALS)
  values = {"pole": 1 / noise, "zero": noise, "rare": np.where(abs(noise) > 2.5, noise, 0)}[kind]
  if kind == "pole":
    values[0] = 2e3
  candidates = [np.array([value]) for value in values]
  assert (oracle.explained(candidates, np.array([have]), "float32") == "") is right


class Failing(Provider):
  def run(self, session, feeds):
    raise RuntimeError("Expand: invalid expand shape")


@parametrize("selects, what", [("Unique", "unfit"), ("Abs", "finding")])
def test_a_failure_that_rounding_decides(selects, what):
  """How many values there are of which two are equal, until they are rounded otherwise."""
  width = 2 if selects == "Unique" else 3
  model = model_of(f"""(float[3] x) => (float[?,?] y) <int64[2] s = {{4, {width}}}>
        {{ a = Mul(x, x)  u = {selects}(a)  y = Expand(u, s) }}""")
  x = {"x": np.float32([1.5, -1.5, 2])}
  assert Judge(Failing()).judge(case_of(model, x)).what == what
  assert Judge().judge(case_of(model, x)).what == "same"
