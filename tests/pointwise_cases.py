"""The cases on which FusedPointwise must equal its reference, on every provider.

A case is a program, the shapes of its inputs and what stands in them.
"""

from dataclasses import dataclass

import numpy as np
from node_cases import OPSET, UNIT_ROUNDOFF, Expectation, ProgramCase, check_results, named, typed
from onnx import helper
from onnx_models import built, infos

from ortplugin.ops import pointwise_reference
from ortplugin.ops.pointwise import OPERATOR
from ortplugin.ops.pointwise.reference import pointwise
from ortplugin.program import FLOATING, INTEGERS, NUMPY_DTYPES


@dataclass(frozen=True)
class Case(ProgramCase):
  operator = OPERATOR
  node_name = "pointwise"

  def _numbers(self, rng, number, shape):
    """A row of VALUES, or "special": among several hundred elements every pair of these numbers meets."""
    if self.values == "special":
      return np.asarray(rng.choice([np.nan, np.inf, -np.inf, 0.0, 1.0, -1.0, 0.5, -2.5, 3.0], shape))
    return super()._numbers(rng, number, shape)


node_of, model_of = Case.node_of, Case.model_of


# ---- comparison

# What one statement's result may be off by, in units of the arithmetic's roundoff: the GPU's functions of float promise
# up to 4 (tanh, erf, pow some more), and ours are allowed as much on the CPU.
UNITS = 8.0

# These are sums or products inside whose terms are of the operand's order and may cancel.
ACTIVATIONS = ("Gelu", "QuickGelu", "Swish", "Mish", "HardSwish", "HardSigmoid", "Elu", "Celu", "Selu", "Softplus")


def expect(case, inputs=None, unit=None):
  program = case.program
  arrays = case.inputs() if inputs is None else list(inputs)
  wide = pointwise(program, arrays, rounded=False)
  outputs = pointwise(program, arrays)
  floating = set(program.dtypes.values()) & set(FLOATING)
  compute = UNIT_ROUNDOFF["double" if floating <= {"double"} else "float"] if unit is None else unit
  slack = [np.zeros(np.shape(value)) for value in wide]
  values = pointwise_reference.values(program, arrays)
  for index, statement in enumerate(program.statements):
    if program.dtypes[statement.name] not in FLOATING:
      continue
    size = np.abs(values[statement.name])
    if statement.op in ACTIVATIONS:
      size = np.maximum(size, np.abs(values[statement.names[0]]))
    errors = [np.zeros(np.shape(each)) for each in slack]
    for sign in (-1, 1):
      moved = dict(values)
      with np.errstate(all="ignore"):
        moved[statement.name] = values[statement.name] + sign * UNITS * compute * size
        _recompute(program, index + 1, moved)
        for number, result in enumerate(program.results):
          if result.dtype in FLOATING:
            error = np.abs(moved[result.name] - values[result.name])
            errors[number] = np.maximum(errors[number], np.where(np.isfinite(error), error, 0))
    slack = [each + error for each, error in zip(slack, errors, strict=True)]
  return Expectation(wide, outputs, slack)


def _recompute(program, first, values):
  """Computes again, from statement `first` on, what depends on a value that was changed."""
  changed = {program.statements[first - 1].name}
  for statement in program.statements[first:]:
    if changed.isdisjoint(statement.names):
      continue
    changed.add(statement.name)
    kept = _kept_as(program.operand_dtype(statement))
    operands = [values[x] if isinstance(x, str) else np.asarray(x, kept) for x in statement.operands]
    values[statement.name] = pointwise_reference.evaluate(statement, operands)


def _kept_as(dtype):
  return np.dtype(np.float64) if dtype in FLOATING else NUMPY_DTYPES[dtype]


def check(case, outputs, expected=None):
  """Compares a kernel's outputs with the reference, as `check_results` does.

  The slack is measured, element by element: by how much the result moves if a statement's value is moved by UNITS
  units of roundoff of the arithmetic (of its operand, for ACTIVATIONS), summed over the statements. So a cancellation
  gets what it needs and nothing else does.
  """
  check_results(case, outputs, expect(case) if expected is None else expected)


# ---- memory taken over

LINKS = 4


def chained(dtype, shape):
  """A serialised model of nodes that each turn (s, d) into (s + d, s - d): both inputs of each node end there, so both
  outputs may lie on an input, and crosswise."""
  text = typed("(T x, T r) => (T s, T d) { s = Add(x, r) d = Sub(x, r) }", dtype)
  nodes = [helper.make_node("Neg", [f"n{name}"], [f"{name}0"]) for name in "sd"]
  for index in range(LINKS):
    node = node_of(text, f"link{index}")
    node.input[:] = [f"s{index}", f"d{index}"]
    node.output[:] = [f"s{index + 1}", f"d{index + 1}"]
    nodes.append(node)
  of = (dtype, shape)
  inputs, results = {"ns": of, "nd": of}, {f"{name}{LINKS}": of for name in "sd"}
  model = built(nodes, inputs, results, OPSET, 9, domains=["ortplugin"])
  model.graph.value_info.extend(infos({f"{name}{i}": of for i in range(LINKS) for name in "sd"}))
  return model.SerializeToString()


def check_chain(run, dtype, shape):
  """Runs such a model, three times: sums and differences of small whole numbers are exact in every dtype."""
  rng = np.random.default_rng(shape[-1])
  for _ in range(3):
    s, d = (rng.integers(-8, 8, shape).astype(NUMPY_DTYPES[dtype]) for _ in range(2))
    found = run({"ns": -s, "nd": -d})
    for _ in range(LINKS):
      s, d = s + d, s - d
    np.testing.assert_array_equal(found[0], s)
    np.testing.assert_array_equal(found[1], d)


# ---- programs
# T stands for the dtype at hand.

SUM_RELU = "(T x, T r) => (T y) { s = Add(x, r) y = Relu(s) }"
LERP = "(T x, T y, T w) => (T z) { a = Sub(1, w) b = Mul(a, x) c = Mul(w, y) z = Add(b, c) }"
LERP_DIFFERENCE = "(T x, T y, T w) => (T z) { d = Sub(y, x) s = Mul(d, w) z = Add(x, s) }"
SILU = "(T x) => (T y) { s = Sigmoid(x) y = Mul(x, s) }"
ERF_GELU = "(T x) => (T y) { d = Div(x, 1.4142135) e = Erf(d) p = Add(e, 1) m = Mul(x, p) y = Mul(m, 0.5) }"
CHAIN = """(T x, T a, T b) => (T y) {
  u = Mul(x, a)
  v = Add(u, b)
  w = Tanh(v)
  n = Neg(w)
  e = Exp(n)
  q = Div(x, e)
  c = Clip(q, -4, 4)
  y = Sub(c, x)
}"""
FULL = (3, 7, 65)

PROGRAMS = {
  "sum and Relu": (SUM_RELU, (FULL, FULL)),
  "lerp, scalar weight": (LERP, (FULL, FULL, ())),
  "lerp, equal shapes": (LERP, (FULL, FULL, FULL)),
  "lerp, leading broadcast": (LERP, (FULL, (7, 65), (65,))),
  "lerp, middle broadcast": (LERP, (FULL, (3, 1, 65), (3, 7, 1))),
  "lerp by difference": (LERP_DIFFERENCE, (FULL, FULL, (1,))),
  "Silu": (SILU, (FULL,)),
  "a chain of eight": (CHAIN, (FULL, (65,), (7, 1))),
  "S is larger than every input": (SUM_RELU, ((3, 1, 65), (7, 1))),
  "outer product": ("(T x, T y) => (T z) { p = Mul(x, y) z = Abs(p) }", ((33, 1), (1, 57))),
  "one column": (SUM_RELU, ((5, 1), (5, 1))),
  "rank 0": ("(T x, T y) => (T z) { s = Mul(x, y) z = Neg(s) }", ((), ())),
  "rank 0 and rank 1": (SUM_RELU, ((), (1,))),
  "one element of many axes": (SUM_RELU, ((1, 1, 1, 1, 1), (1,))),
  "many axes": (SUM_RELU, ((2, 3, 1, 2, 3, 1, 2, 5), (3, 4, 1, 3, 2, 1, 5))),
  "alternating axes": (LERP, ((2, 1, 3, 1, 5, 1, 4), (1, 3, 1, 2, 1, 3, 1), (2, 3, 3, 2, 5, 3, 4))),
  "empty": (SUM_RELU, ((3, 0, 5), (5,))),
  "empty by broadcast": (SUM_RELU, ((0, 8), (1, 8))),
  "several results": ("(T x, T b) => (T s, T y, T z) { s = Add(x, b) y = Sigmoid(s) z = Mul(y, x) }", (FULL, (65,))),
  "a parameter is a result": ("(T x, T b) => (T y, T x) { y = Mul(x, b) }", (FULL, (65,))),
  "results of fewer inputs": (
    "(T x, T a, T b) => (T y, T u, T c) { y = Add(x, a) u = Neg(a) c = Mul(b, 2) }",
    (FULL, (65,), (7, 1)),
  ),
  "a column and a row": ("(T x, T c, T r) => (T y) { u = Mul(x, c) y = Add(u, r) }", (FULL, (3, 1, 1), (1, 65))),
  "channels of images": (
    "(T x, T s, T b) => (T y) { u = Mul(x, s) v = Add(u, b) y = HardSwish(v) }",
    ((2, 5, 9, 11), (1, 5, 1, 1), (5, 1, 1)),
  ),
  "masked": ("(T x, bool m, T v) => (T y, bool n) { n = Not(m) z = Where(n, x, v) y = Mul(z, 3) }", (FULL, (7, 1), ())),
  "comparisons": (
    """(T x, T b) => (T y, bool g, bool e) {
        g = Greater(x, b)
        l = LessOrEqual(x, 0.5)
        e = Xor(g, l)
        y = Where(e, x, b)
      }""",
    (FULL, (65,)),
  ),
  "results of all floating dtypes": (
    """(T x) => (float16 h, bfloat16 b, float f, double d, bool t) {
        n = Mul(x, 3)
        h = Cast<to=float16>(n)
        b = Cast<to=bfloat16>(n)
        f = Cast<to=float>(n)
        d = Cast<to=double>(n)
        t = Cast<to=bool>(x)
      }""",
    (FULL,),
  ),
  "integers beside": (
    """(T x, int64 i, int32 j) => (T y, int64 k) {
        w = Cast<to=int64>(j)
        k = Add(i, w)
        m = Mod(k, 3)
        c = Cast<to=T>(m)
        y = Mul(x, c)
      }""",
    (FULL, (7, 1), (65,)),
  ),
}


WHOLE = """(T x, T y, T z) => (T a, T p, T d, T m, T c, bool e, bool l) {
  s = Add(x, y)
  t = Sub(s, z)
  p = Mul(t, x)
  a = Max(s, p)
  d = Div(x, y)
  m = Mod(x, y)
  c = Clip(p, 3, 100)
  e = Equal(x, y)
  l = Less(p, z)
}"""
BITS = """(T x, T y) => (T a, T o, T e, T n) {
  a = BitwiseAnd(x, y)
  o = BitwiseOr(x, y)
  e = BitwiseXor(a, o)
  n = BitwiseNot(x)
}"""
SHIFTS = '(T x, T y) => (T l, T r) { l = BitShift<direction="LEFT">(x, y) r = BitShift<direction="RIGHT">(x, y) }'

OTHERS = """(T x, T y, bool b) => (T a, T n, T s, T r, T m, T p, T w, T k, bool i, bool o, bool e) {
  a = Abs(x) n = Neg(x) s = Sign(x) r = Relu(x) m = Min(x, y) p = Pow(x, 2)
  g = Greater(x, y) h = GreaterOrEqual(x, y) l = LessOrEqual(x, y)
  i = And(g, b) o = Or(l, b) e = Equal(i, b) v = Where(b, o, h) w = Where(v, x, y) k = Cast<to=T>(b)
}"""


def _integers():
  cases = []
  for dtype in INTEGERS:
    for values in ("normal", "whole range"):
      shapes = ((4, 33), (33,), (4, 1))
      cases.append(Case(f"whole numbers, {dtype}, {values}", typed(WHOLE, dtype), shapes, values))
      cases.append(Case(f"bits, {dtype}, {values}", typed(BITS, dtype), ((4, 33), (33,)), values))
    cases.append(Case(f"others, {dtype}", typed(OTHERS, dtype), ((4, 33), (33,), (4, 1))))
    if dtype.startswith("u"):
      cases.append(Case(f"shifts, {dtype}", typed(SHIFTS, dtype), ((4, 33), (33,))))
    info = np.iinfo(NUMPY_DTYPES[dtype])
    ends = f"(T x) => (T y, T z) {{ y = Add(x, {info.max}) z = Max(y, {info.min}) }}"
    cases.append(Case(f"ends of the range, {dtype}", typed(ends, dtype), ((77,),), "whole range"))
    to = "".join(f" v{i} = Cast<to={other}>(x)" for i, other in enumerate(INTEGERS))
    results = ", ".join(f"{other} v{i}" for i, other in enumerate(INTEGERS))
    cases.append(Case(f"casts of {dtype}", f"({dtype} x) => ({results}) {{{to} }}", ((77,),), "whole range"))
    up = f"({dtype} x) => (float f, double d, bool b) {{ f = Cast<to=float>(x) d = Cast<to=double>(x) "
    exact = ("f", "d")
    cases.append(Case(f"{dtype} to floating", up + "b = Cast<to=bool>(x) }", ((77,),), "whole range", exact))
    down = f"(float x) => ({dtype} y) {{ a = Abs(x) y = Cast<to={dtype}>(a) }}"
    cases.append(Case(f"float to {dtype}", down, ((77,),)))
  return cases


_UNARY = """Neg Abs Sign Floor Ceil Round Relu Sqrt Exp Sin Cos Tan Atan Sinh Cosh Tanh Asinh Erf Sigmoid Softplus
    Softsign HardSwish Mish Gelu LeakyRelu Elu Celu Selu HardSigmoid ThresholdedRelu Shrink Swish QuickGelu"""
UNARY = _UNARY.split()


def _functions():
  cases = []
  for dtype in FLOATING:
    for number, first in enumerate(range(0, len(UNARY), 8)):
      names = UNARY[first : first + 8]
      statements = "".join(f" v{i} = {name}({'a' if name == 'Sqrt' else 'x'})" for i, name in enumerate(names))
      wanted = "".join(f", T v{i}" for i in range(len(names)))
      text = f"(T x) => (T a{wanted}) {{ a = Abs(x){statements} }}"
      cases.append(Case(f"functions {number}, {dtype}", typed(text, dtype), ((515,),)))
    domains = """(T x) => (T a, T b, T c, T d, T e, T f, T g) {
        t = Tanh(x) p = Abs(x) q = Add(p, 1)
        a = Asin(t) b = Acos(t) c = Log(q) d = Reciprocal(q) e = Pow(q, x) f = Acosh(q) h = Mul(t, 0.5) g = Atanh(h)
      }"""
    cases.append(Case(f"functions of domains, {dtype}", typed(domains, dtype), ((515,),)))
  for dtype in ("float16", "float"):  # ONNX Runtime has no Erf of double
    cases.append(Case(f"Gelu written with Erf, {dtype}", typed(ERF_GELU, dtype), (FULL,)))
  return cases


# What every operator makes of NaN and infinities, in any place: a maximum in one instruction is one that drops NaN.
SPECIAL_UNARY = (*UNARY, "Asin", "Acos", "Log", "Reciprocal", "Acosh", "Atanh")
SPECIAL_OTHERS = (
  """(T x, T r) => (T a, T b, T c, T d, T e, T f, T g, T h, T i, T j, T k) {
      a = Add(x, r) b = Sub(x, r) c = Mul(x, r) d = Div(x, r) e = Mod<fmod=1>(x, r) f = Pow(x, r)
      g = Min(x, r) h = Max(x, r) i = PRelu(x, r) j = Max(x, 1) k = Min(1, x)
    }""",
  """(T x, T r) => (T a, T b, T c, bool d, bool e, bool f, bool g, bool h, T i) {
      a = Clip(x, -1, 1) b = Clip(x, -inf, 1) c = Clip(x, -1, inf)
      d = Equal(x, r) e = Less(x, r) f = LessOrEqual(x, r) g = Greater(x, r) h = GreaterOrEqual(x, r) i = Where(e, x, r)
    }""",
)


def _special():
  texts = []
  for first in range(0, len(SPECIAL_UNARY), 8):
    names = SPECIAL_UNARY[first : first + 8]
    statements = "".join(f" v{i} = {name}(x)" for i, name in enumerate(names))
    wanted = ", ".join(f"T v{i}" for i in range(len(names)))
    texts.append((f"{names[0]} to {names[-1]}", f"(T x) => ({wanted}) {{{statements} }}", ((515,),)))
  texts += [(f"others {i}", text, ((515,), (515,))) for i, text in enumerate(SPECIAL_OTHERS)]
  return [
    Case(f"NaN and infinities, {name}, {dtype}", typed(text, dtype), shapes, "special")
    for name, text, shapes in texts
    for dtype in FLOATING
  ]


def _values():
  cases = []
  shape = (8, 515)
  exact = "(T x, T r) => (T s, T n, T a, T m, T c) { s = Add(x, r) n = Neg(x) a = Abs(r) m = Max(x, r) c = Min(x, r) }"
  special = """(T x) => (T y, T z, T r, T c, bool n, bool i, bool p) {
      n = IsNaN(x)
      i = IsInf(x)
      p = IsInf<detect_negative=0>(x)
      y = Where(n, 0, x)
      z = Mul(x, 0)
      r = Relu(x)
      c = Clip(x, -1, 1)
    }"""
  for dtype in FLOATING:
    for values in ("normal", "large", "denormal", "negative zero", "special rows"):
      # The sum of two numbers rounds to the same bits from float32 as from float64, in every dtype.
      names = ("s", "n", "a") if values == "negative zero" else ("s", "n", "a", "m", "c")
      cases.append(Case(f"exact, {values}, {dtype}", typed(exact, dtype), (shape, shape), values, names))
    cases.append(Case(f"special, {dtype}", typed(special, dtype), (shape,), "special rows"))
    overflow = "(T x) => (T y) { t = Mul(x, 1e30) y = Mul(t, 1e30) }"
    cases.append(Case(f"results overflow to infinity, {dtype}", typed(overflow, dtype), (shape,), "large"))
  wide = "(float16 x) => (float16 y) { t = Mul(x, 1000) y = Div(t, 1000) }"
  cases.append(Case("no overflow between statements", wide, (shape,), "large"))
  cases.append(
    Case("denormals of float stay", "(float x) => (float s) { s = Add(x, x) }", (shape,), "denormal float", ("s",))
  )
  return cases


def _limits():
  cases = []
  for dtype in ("float16", "float", "double"):
    names = [f"p{i}" for i in range(32)]
    text = f"({', '.join(f'T {name}' for name in names)}) => (T y) {{ s1 = Add(p0, p1)"
    text += "".join(f" s{i} = Add(s{i - 1}, p{i})" for i in range(2, 32)) + " y = Neg(s31) }"
    shapes = tuple((4, 129) if i % 3 == 0 else (129,) if i % 3 == 1 else (4, 1) for i in range(32))
    cases.append(Case(f"32 parameters, {dtype}", typed(text, dtype), shapes))
    results = ", ".join(f"T r{i}" for i in range(16))
    text = f"(T x) => ({results}) {{ r0 = Neg(x)"
    text += "".join(f" r{i} = Add(r{i - 1}, {i})" for i in range(1, 16)) + " }"
    cases.append(Case(f"16 results, {dtype}", typed(text, dtype), ((4, 129),)))
    text = "(T x) => (T s255) { s0 = Mul(x, 0.5)"
    text += "".join(f" s{i} = {('Add', 'Sub')[i % 2]}(s{i - 1}, {('x', 0.25)[i % 2]})" for i in range(1, 256)) + " }"
    cases.append(Case(f"256 statements, {dtype}", typed(text, dtype), ((4, 129),)))
  return cases


def _sizes():
  return [
    Case(f"{count} elements, {dtype}", typed(SUM_RELU, dtype), ((count,), (count,)))
    for count in (1, 3, 7, 8, 9, 31, 33, 255, 1023, 4097, 65537)
    for dtype in ("float16", "float")
  ]


CASES = (*Case.of_floats(PROGRAMS), *_integers(), *_functions(), *_special(), *_values(), *_limits(), *_sizes())

# Enough elements for every core and every block.
LARGE_CASES = tuple(
  Case(f"large: {name}, {dtype}", typed(text, dtype), shapes)
  for name, text, shapes in (
    ("contiguous", SUM_RELU, ((1 << 20,), (1 << 20,))),
    ("odd", SUM_RELU, ((1021, 1031), (1021, 1031))),
    ("rows", LERP, ((1024, 1031), (1031,), ())),
    ("columns", LERP, ((1024, 1031), (1024, 1), (1024, 1))),
    ("channels", LERP, ((8, 64, 47, 47), (64, 1, 1), (8, 1, 47, 47))),
  )
  for dtype in ("float16", "float")
)

by_name = named((*CASES, *LARGE_CASES))

# What the operands of LERP become from run to run: other sizes, other broadcast axes.
CHANGING = (
  ((3, 5, 7), (3, 5, 7), (5, 7)),
  ((3, 1, 7), (1, 5, 1), (1, 7)),
  ((1, 1, 1), (3, 5, 7), (5, 1)),
  ((3, 5, 7), (3, 5, 7), (1, 1)),
  ((2, 0, 7), (2, 1, 1), (1, 7)),
  ((1, 1, 1), (1, 1, 1), (1, 1)),
)
