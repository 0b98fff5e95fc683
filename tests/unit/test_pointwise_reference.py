import operator

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from onnx_models import built, parametrize, raises, zeros
from operator_places import check_decomposition

from ortplugin.errors import ModelError
from ortplugin.ops.decompose import to_onnx
from ortplugin.ops.pointwise_reference import values
from ortplugin.program import DTYPES, INTEGERS, NUMPY_DTYPES, OPERATORS, UNSIGNED, integer_range, parse, sum_axes


def truncated(x, y):
  return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) if y else 0


def saturated(number, dtype):
  low, high = integer_range(dtype)
  return 0 if number != number else low if number <= low else high if number >= high else int(number)


def power(x, y, dtype):
  try:
    magnitude = float(abs(x)) ** float(y)
    return saturated(-magnitude if x < 0 and y % 2 else magnitude, dtype)
  except ZeroDivisionError:
    return saturated(np.inf, dtype)


def clipped(x, low, high):
  return min(max(x, low), high)


# What each operator means for Python's integers, before the result is taken modulo 2^bits.
MEANING = {
  "Abs": abs,
  "Neg": operator.neg,
  "Sign": lambda x: (x > 0) - (x < 0),
  "Relu": lambda x: max(x, 0),
  "Add": operator.add,
  "Sub": operator.sub,
  "Mul": operator.mul,
  "Div": truncated,
  "Min": min,
  "Max": max,
  "Mod": lambda x, y: x % y if y else 0,
  "Mod<fmod=1>": lambda x, y: x - truncated(x, y) * y if y else 0,
  "BitwiseAnd": operator.and_,
  "BitwiseOr": operator.or_,
  "BitwiseXor": operator.xor,
  "BitwiseNot": operator.invert,
  'BitShift<direction="LEFT">': lambda x, n: x << n if n < 64 else 0,
  'BitShift<direction="RIGHT">': lambda x, n: x >> n if n < 64 else 0,
  "Clip": clipped,
  "Equal": operator.eq,
  "Less": operator.lt,
  "LessOrEqual": operator.le,
  "Greater": operator.gt,
  "GreaterOrEqual": operator.ge,
}


def statement_of(op, dtype):
  spec = OPERATORS[op.split("<")[0]]
  names = ["x", "y", "z"][: len(spec.operands)]
  declared = ", ".join(f"{dtype} {name}" for name in names)
  result = "bool" if spec.result == "B" else dtype
  return parse(f"({declared}) => ({result} r) {{ r = {op}({', '.join(names)}) }}")


def wrapped(number, dtype):
  low, high = integer_range(dtype)
  return (number - low) % (high - low + 1) + low


def telling(dtype):
  low, high = integer_range(dtype)
  return sorted({low, low + 1, high - 1, high, *(n for n in (-7, -2, -1, 0, 1, 2, 3, 5, 31) if low <= n <= high)})


def test_every_integer_operator_is_meant():
  named = {name.split("<")[0] for name in MEANING} | {"Pow"}
  assert named == {n for n, spec in OPERATORS.items() if set(spec.types) & set(INTEGERS) and not spec.core} - {
    "Where",
    "Cast",
  }


@parametrize("op, dtype", [(op, d) for op in MEANING for d in OPERATORS[op.split("<")[0]].types if d in INTEGERS])
def test_integers_are_exact(op, dtype):
  program = statement_of(op, dtype)
  grids = np.meshgrid(*[np.array(telling(dtype), NUMPY_DTYPES[dtype])] * len(program.parameters))
  found = values(program, grids)["r"]
  assert found.dtype == NUMPY_DTYPES[program.results[0].dtype]
  operands = [[int(x) for x in grid.ravel()] for grid in grids]
  expected = [MEANING[op](*each) for each in zip(*operands, strict=True)]
  if program.results[0].dtype != "bool":
    expected = [wrapped(number, dtype) for number in expected]
  assert found.ravel().tolist() == expected


@parametrize("dtype", INTEGERS)
def test_powers(dtype):
  x, y = np.meshgrid(*[np.array(telling(dtype), NUMPY_DTYPES[dtype])] * 2)
  found = values(statement_of("Pow", dtype), [x, y])["r"]
  for given, exponent, value in zip(x.ravel(), y.ravel(), found.ravel(), strict=True):
    try:
      expected = power(int(given), int(exponent), dtype)
    except OverflowError:
      odd_negative = given < 0 and int(exponent) % 2
      expected = integer_range(dtype)[0 if odd_negative else 1]
    assert value == expected, f"{given} ** {exponent}"


@parametrize("to", INTEGERS)
def test_casts_to_integers(to):
  low, high = integer_range(to)
  given = [0.0, -0.0, 0.9, -0.9, 1.5, -1.5, 100.0, np.nan, np.inf, -np.inf, 1e30, -1e30, float(low), float(high),
           float(high) / 2]  # fmt: skip
  program = parse(f"(double x) => ({to} y) {{ y = Cast<to={to}>(x) }}")
  found = values(program, [np.array(given)])["y"]
  assert found.tolist() == [saturated(float(np.trunc(x)), to) for x in given]
  for source in INTEGERS:
    program = parse(f"({source} x) => ({to} y) {{ y = Cast<to={to}>(x) }}")
    numbers = telling(source)
    found = values(program, [np.array(numbers, NUMPY_DTYPES[source])])["y"]
    assert found.tolist() == [wrapped(number, to) for number in numbers]
    assert found.dtype == NUMPY_DTYPES[to]


def test_casts_of_integers_round_to_nearest_even():
  program = parse("(int64 x) => (float y, double z) { y = Cast<to=float>(x) z = Cast<to=double>(x) }")
  given = np.int64([2**24 + 1, 2**24 + 3, 2**53 + 1, 2**63 - 1, -(2**63)])
  found = values(program, [given])
  assert found["y"].tolist() == [2.0**24, 2.0**24 + 4, 2.0**53, 2.0**63, -(2.0**63)]
  assert found["z"].tolist() == [2.0**24 + 1, 2.0**24 + 3, 2.0**53, 2.0**63, -(2.0**63)]
  truth = parse("(double x) => (bool b, int8 n) { b = Cast<to=bool>(x) n = Cast<to=int8>(b) }")
  found = values(truth, [np.array([0.0, -0.0, 0.1, np.nan, -np.inf])])
  assert found["b"].tolist() == [False, False, True, True, True]
  assert found["n"].tolist() == [0, 0, 1, 1, 1]


def test_bfloat16_is_rounded_once():
  """Just above the middle between two values; float32 in between would fall on the middle."""
  program = parse(
    "(double x, int64 n) => (bfloat16 y, bfloat16 m) { y = Cast<to=bfloat16>(x) m = Cast<to=bfloat16>(n) }"
  )
  x = np.array([1 + 2**-8 + 2**-40, -1 - 2**-8 - 2**-40, 1 + 2**-8 - 2**-40, np.inf, np.nan, 1e300])
  found = values(program, [x, np.array([2**40 + 2**32 + 1, 2**63 - 1, 2**40 + 2**32, 3, -(2**63), 257])])
  np.testing.assert_array_equal(found["y"], [1 + 2**-7, -1 - 2**-7, 1, np.inf, np.nan, np.inf])
  assert found["m"].tolist() == [2.0**40 + 2.0**33, 2.0**63, 2.0**40, 3, -(2.0**63), 256]


def test_literals_are_those_of_their_dtype():
  program = parse("(float16 x, float z) => (float16 y, float w) { y = Add(x, 0.1) w = Add(z, 0.1) }")
  found = values(program, [np.zeros(1, np.float16), zeros(1)])
  assert found["y"].tolist() == [float(np.float16(0.1))]
  assert found["w"].tolist() == [float(np.float32(0.1))]


def test_floats_where_integers_differ():
  program = parse("""(double x) => (double m, bool a, bool b, bool c) {
      m = Mod<fmod=1>(x, 3)
      a = IsInf<detect_negative=0>(x)
      b = IsInf<detect_positive=0>(x)
      c = IsInf(x)
    }""")
  found = values(program, [np.array([7.5, -7.5, np.inf, -np.inf, np.nan])])
  np.testing.assert_array_equal(found["m"], [1.5, -1.5, np.nan, np.nan, np.nan])
  assert found["a"].tolist() == [False, False, True, False, False]
  assert found["b"].tolist() == [False, False, False, True, False]
  assert found["c"].tolist() == [False, False, True, True, False]


# The decomposition


def in_onnx(program, inputs, opset):
  """The program through its decomposition, in onnx's own evaluator: ONNX Runtime lacks many integer kernels."""
  rank = max(x.ndim for x in inputs.values())
  ranks = [
    rank - s.attribute("axes").count(" ") - 1
    if (s := program.statement(r.name)) and s.op == "SumTo" and not s.number("keepdims")
    else rank
    for r in program.results
  ]
  outputs = [f"out_{each.name}" for each in program.results]
  nodes = to_onnx(program, [p.name for p in program.parameters], outputs, opset, "t", sums)
  given = {each.name: (each.dtype, inputs[each.name].shape) for each in program.parameters}
  results = {f"out_{r.name}": (r.dtype, [None] * n) for r, n in zip(program.results, ranks, strict=True)}
  model = built(nodes, given, results, opset, 10)
  onnx.checker.check_model(model, full_check=True)
  return [np.asarray(value) for value in ReferenceEvaluator(model).run(None, dict(inputs))]


def sums(builder, statement, dtype, operand, output):
  axes = sum_axes(str(statement.attribute("axes")))
  builder.sum(operand, axes, bool(statement.number("keepdims")), output)


@parametrize("opset", [11, 13, 18])
@parametrize("op", [*MEANING, "Pow"])
def test_integer_operators_decompose_to_their_reference(op, opset, rng):
  """On numbers for which ONNX defines the result: no overflow, no division by zero."""
  for dtype in OPERATORS[op.split("<")[0]].types:
    if dtype not in INTEGERS:
      continue
    program = statement_of(op, dtype)
    low = 0 if dtype in UNSIGNED else -5
    inputs = {parameter.name: rng.integers(low, 6, 24).astype(NUMPY_DTYPES[dtype]) for parameter in program.parameters}
    if op.startswith(("Div", "Mod")):
      inputs["y"] = np.where(inputs["y"] == 0, np.asarray(1, inputs["y"].dtype), inputs["y"])
    if op == "Sub" and not low:
      inputs["x"] = np.asarray(inputs["x"] + np.asarray(5, inputs["x"].dtype))
    if op == "Pow":
      inputs["x"], inputs["y"] = np.abs(inputs["x"]) + 1, np.abs(inputs["y"]) % 3
    if op == "Clip":  # its limits are scalars in ONNX
      inputs["y"], inputs["z"] = (np.asarray(n, NUMPY_DTYPES[dtype]) for n in (1, 4))
    if op.startswith("Bitwise") and opset < 18:
      with raises(ModelError, f"r = {op}' of {dtype} has no equivalent in opset {opset}"):
        in_onnx(program, inputs, opset)
      continue
    (found,) = in_onnx(program, inputs, opset)
    expected = values(program, list(inputs.values()))["r"]
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected, err_msg=dtype)


@parametrize("to", DTYPES)
@parametrize("given", [dtype for dtype in DTYPES if dtype != "bfloat16"])
def test_casts_decompose_to_their_reference(given, to):
  program = parse(f"({given} x) => ({to} y) {{ y = Cast<to={to}>(x) }}")
  numbers = np.array([0, 1, 2, 100, 127]).astype(NUMPY_DTYPES[given])
  (found,) = in_onnx(program, {"x": numbers}, 24)
  assert found.dtype == NUMPY_DTYPES[to]
  np.testing.assert_array_equal(found.astype(np.float64), values(program, [numbers])["y"].astype(np.float64))


def test_large_integers_stay_exact():
  program = parse("(uint64 x) => (uint64 y) { s = Sub(x, 1) y = Max(s, 18446744073709551610) }")
  (found,) = in_onnx(program, {"x": np.array([2**64 - 1, 5], np.uint64)}, 24)
  assert found.tolist() == [2**64 - 2, 2**64 - 6]


SHAPES = [
  # each result has the shape that all parameters broadcast to, whichever it is computed from
  (
    "(float x, float w) => (float y, float a, float w) { y = Mul(x, w) a = Exp(w) }",
    {"x": (2, 1, 3), "w": (4, 1)},
    {"y": (2, 4, 3), "a": (2, 4, 3), "w": (2, 4, 3)},
  ),
  (
    "(float x, float y, float z) => (float a, float b, float c) { a = Add(x, y) b = Neg(z) c = Mul(x, 2) }",
    {"x": (2, 1, 1), "y": (3, 1), "z": (1, 4)},
    {"a": (2, 3, 4), "b": (2, 3, 4), "c": (2, 3, 4)},
  ),
  ("(float x, float y) => (float x, float a) { a = Neg(y) }", {"x": (), "y": ()}, {"x": (), "a": ()}),
  (
    "(float w, float d) => (float s, float t, float u) "
    '{ s = SumTo<axes="0 2">(w) t = SumTo<axes="1", keepdims=0>(d) u = Sub(1, w) }',
    {"w": (3, 1), "d": (2, 1, 4)},
    {"s": (1, 3, 1), "t": (2, 4), "u": (2, 3, 4)},
  ),
]


@parametrize("opset", [11, 13, 24])
@parametrize("text, shapes, expected", SHAPES)
def test_results_have_the_whole_shape(text, shapes, expected, opset, rng):
  program = parse(text)
  inputs = {n: np.asarray(rng.random(shape), np.float32) for n, shape in shapes.items()}
  found = in_onnx(program, inputs, opset)
  assert {r.name: f.shape for r, f in zip(program.results, found, strict=True)} == expected
  whole = np.broadcast_shapes(*shapes.values())

  def core(statement, x):
    axes = sum_axes(str(statement.attribute("axes")))
    return np.sum(np.broadcast_to(x, whole), axes, keepdims=bool(statement.number("keepdims")))

  for result, value in zip(program.results, found, strict=True):
    wanted = values(program, list(inputs.values()), core)[result.name]
    np.testing.assert_allclose(value, np.broadcast_to(wanted, value.shape), rtol=1e-6)


def test_a_result_of_the_whole_shape_is_not_expanded():
  program = parse("(float x, float w) => (float y, float z) { y = Mul(x, w) z = Neg(y) }")
  assert [node.op_type for node in to_onnx(program, ["x", "w"], ["y", "z"], 18, "t")] == ["Mul", "Neg"]


@parametrize(
  "op, dtype, opset, operators",
  [
    ("Mish(x)", "float", 17, ["Softplus", "Tanh", "Mul"]),
    ("Mish(x)", "float", 18, ["Mish"]),
    ("Mish(x)", "bfloat16", 20, ["Cast", "Softplus", "Tanh", "Mul", "Cast"]),  # Softplus has bfloat16 from 22 on
    ("Mish(x)", "bfloat16", 22, ["Mish"]),
    ("Pow(x, x)", "bfloat16", 13, ["Cast", "Cast", "Pow", "Cast"]),  # its exponent has bfloat16 from 15 on
    ("Pow(x, x)", "bfloat16", 15, ["Pow"]),
  ],
)
def test_operators_that_the_opset_has_in_part(op, dtype, opset, operators):
  program = parse(f"({dtype} x) => ({dtype} y) {{ y = {op} }}")
  assert [node.op_type for node in to_onnx(program, ["x"], ["y"], opset, "t")] == operators
  check_decomposition(program, opset)
