"""The cases on which FusedSumTo must equal its reference, on every provider.

A case is a program, the shapes of its inputs and what stands in them.
"""

from dataclasses import dataclass

import numpy as np
from node_cases import UNIT_ROUNDOFF, Expectation, ProgramCase, check_results, named, typed

from ortplugin.ops import pointwise_reference
from ortplugin.ops.sum_to import OPERATOR, axes_of, sum_of
from ortplugin.ops.sum_to.reference import sum_to
from ortplugin.program import FLOATING, SUMS


@dataclass(frozen=True)
class Case(ProgramCase):
  """One FusedSumTo with its inputs. `exact` is not used: what is exact shows in integers."""

  operator = OPERATOR
  node_name = "sums"


node_of, model_of = Case.node_of, Case.model_of


# ---- comparison

# What a value may be off by, in units of the arithmetic's roundoff times the size of what it is made of: the terms, and
# the tree of additions in which each takes part.
UNITS = 4.0


def expect(case, inputs=None, unit=None):
  program = case.program
  floating = set(program.dtypes.values()) & set(FLOATING)
  compute = UNIT_ROUNDOFF["double" if floating <= {"double"} else "float"] if unit is None else unit
  arrays = case.inputs() if inputs is None else list(inputs)
  shape = np.broadcast_shapes(*(np.shape(array) for array in arrays))
  values = pointwise_reference.values(program, arrays, lambda statement, operand: operand)
  sizes = {name: np.abs(values[name].astype(np.float64)) for name in values}
  for statement in program.statements:
    for name in statement.names:
      if program.dtypes[name] in FLOATING:
        sizes[statement.name] = np.maximum(sizes[statement.name], sizes[name])
  slack = []
  for result in program.results:
    statement = sum_of(program, result.name)
    made = np.broadcast_to(sizes[result.name], shape)
    if statement is not None:
      axes, keepdims = axes_of(statement)
      made = np.sum(made, axis=axes, keepdims=keepdims)
    slack.append(UNITS * compute * made)
  return Expectation(sum_to(program, arrays, rounded=False), sum_to(program, arrays), slack)


def check(case, outputs, expected=None):
  """Compares a kernel's outputs with the reference as pointwise_cases.check does, but for the slack: UNITS c size.

  c is the unit roundoff of the arithmetic, `size` the largest of the values that the result is made of, for a sum
  added up over its terms. Blocked sums of n terms are off by some log2(n) units at worst and by far less on average;
  one element that is left out or taken twice shows.
  """
  check_results(case, outputs, expect(case) if expected is None else expected)


# ---- programs
# T stands for the dtype at hand.


def summed(axes, keepdims=1):
  """The plain sum of one tensor."""
  return f'(T x) => (T y) {{ y = SumTo<axes="{axes}", keepdims={keepdims}>(x) }}'


LERP_GRAD = """(T dout, T w) => (T dx, T dy) {
  a = Sub(1, w)
  g = Mul(a, dout)
  dx = SumTo<axes="AXES">(g)
  dy = Mul(w, dout)
}"""
BOTH = """(T dout, T w) => (T dx, T dy) {
  a = Sub(1, w)
  g = Mul(a, dout)
  h = Mul(w, dout)
  dx = SumTo<axes="1 2 3">(g)
  dy = SumTo<axes="0", keepdims=0>(h)
}"""
RELU_GRAD = """(T dy, T y) => (T db, T dx) {
  p = Greater(y, 0)
  dx = Where(p, dy, 0)
  db = SumTo<axes="0 2 3", keepdims=0>(dx)
}"""

PROGRAMS = {
  "rows": (summed("1"), ((5, 77),)),
  "rows of vectors": (summed("1"), ((33, 64),)),
  "short rows": (summed("1", 0), ((1001, 3),)),
  "columns": (summed("0"), ((77, 5),)),
  "columns of vectors": (summed("0", 0), ((129, 96),)),
  "three columns": (summed("0"), ((4001, 3),)),
  "everything": (summed("0 1 2", 0), ((3, 7, 65),)),
  "everything, dimensions kept": (summed("0 1 2"), ((3, 7, 65),)),
  "one axis": (summed("0", 0), ((1000,),)),
  "the middle": (summed("1", 0), ((3, 7, 65),)),
  "both ends": (summed("0 2"), ((3, 7, 65),)),
  "bias of NCHW": (summed("0 2 3", 0), ((4, 6, 9, 11),)),
  "bias of NHWC": (summed("0 1 2", 0), ((4, 9, 11, 6),)),
  "alternating axes": (summed("0 2 4"), ((3, 2, 4, 3, 5, 8),)),
  "axes of length 1": (summed("1"), ((5, 1, 8),)),
  "one element": (summed("0", 0), ((1,),)),
  "what broadcasts is summed over": ('(T x, T r) => (T y) { p = Mul(x, r) y = SumTo<axes="0 1">(p) }', ((7, 1), (9,))),
  "a scalar, many times": ('(T x, T r) => (T y, T s) { s = Add(x, r) y = SumTo<axes="0">(r) }', ((), (9, 8))),
  "no axis is left": (summed("0 1", 0), ((1, 1),)),
  "empty": (summed("0", 0), ((0, 5),)),
  "sums and values of nothing": (LERP_GRAD.replace("AXES", "0"), ((0, 5), (5,))),
  "nothing to sum": (summed("1"), ((0, 5),)),
  "nothing along one of several axes": (
    """(T x, T r) => (T a, T b, T c, T p) {
        p = Mul(x, r)
        a = SumTo<axes="0 1 2 3">(x)
        b = SumTo<axes="2 3">(p)
        c = SumTo<axes="1">(p)
      }""",
    ((8, 2, 0, 2), (2, 1, 1)),
  ),
  "lerp, gradients": (LERP_GRAD.replace("AXES", "1 2 3"), ((4, 3, 13, 12), (3, 1, 12))),
  "lerp, odd gradients": (LERP_GRAD.replace("AXES", "1 2 3"), ((4, 3, 5, 7), (3, 1, 7))),
  "lerp, leading gradients": (LERP_GRAD.replace("AXES", "0"), ((64, 40), (40,))),
  "lerp, scalar weight": (LERP_GRAD.replace("AXES", "0"), ((64, 40), (1,))),
  "lerp, gradients over other axes": (BOTH, ((4, 3, 6, 8), (3, 1, 8))),
  "Relu and bias": (RELU_GRAD, ((4, 6, 8, 8), (4, 6, 8, 8))),
  "sums of one shape": (
    '(T x, T r) => (T a, T b) { p = Mul(x, r) a = SumTo<axes="0">(p) b = SumTo<axes="0", keepdims=0>(x) }',
    ((70, 33), (33,)),
  ),
  "rows and columns": (
    '(T x) => (T r, T c, T a) { r = SumTo<axes="1">(x) c = SumTo<axes="0">(x) a = SumTo<axes="0 1">(x) }',
    ((70, 34),),
  ),
  "sums in other dtypes": (
    """(T x, int32 i) => (float f, T y, int32 k, double d) {
        y = SumTo<axes="1">(x)
        f = Cast<to=float>(y)
        k = SumTo<axes="1">(i)
        e = Cast<to=double>(x)
        d = SumTo<axes="0 1", keepdims=0>(e)
      }""",
    ((40, 36), (40, 1)),
  ),
  "a parameter is a result": ('(T x, T r) => (T x, T y) { p = Mul(x, r) y = SumTo<axes="1">(p) }', ((4, 1), (6,))),
}


def _integers():
  return [
    Case(f"{name}, {dtype}, {values}", typed(summed(axes), dtype), (shape,), values)
    for dtype in SUMS
    if dtype not in FLOATING
    for values in ("normal", "whole range")
    for name, axes, shape in (
      ("whole rows", "1", (9, 515)),
      ("whole columns", "0", (515, 12)),
      ("all whole numbers", "0 1", (33, 65)),
    )
  ]


def _values():
  return [
    Case(f"{values}, {name}, {dtype}", typed(summed(axes), dtype), (shape,), values)
    for dtype in FLOATING
    for values in ("special rows", "large", "denormal", "offset", "ones")
    for name, axes, shape in (("rows", "1", (24, 515)), ("columns", "0", (515, 24)))
  ]


CASES = (*Case.of_floats(PROGRAMS), *_integers(), *_values())

# Enough elements for every core and every block.
LARGE_CASES = tuple(
  Case(f"large: {name}, {dtype}", typed(text, dtype), shapes)
  for name, text, shapes in (
    ("everything", summed("0 1"), ((1031, 1021),)),
    ("rows", summed("1"), ((64, 1 << 14),)),
    ("many short rows", summed("1", 0), ((1 << 16, 12),)),
    ("columns", summed("0"), ((1 << 14, 64),)),
    ("odd columns", summed("0", 0), ((4099, 251),)),
    ("few long columns", summed("0"), ((5, 1 << 18),)),
    ("a block of columns", summed("1"), ((3, 300, 2048),)),
    ("bias of NCHW", RELU_GRAD, ((8, 32, 56, 56), (8, 32, 56, 56))),
    ("bias of odd NCHW", summed("0 2 3"), ((16, 32, 49, 49),)),
    ("lerp, gradients", LERP_GRAD.replace("AXES", "1 2 3"), ((8, 3, 244, 244), (3, 1, 244))),
    ("lerp, gradients over other axes", BOTH, ((8, 3, 122, 244), (3, 1, 244))),
  )
  for dtype in ("float16", "float", "double")
)

by_name = named((*CASES, *LARGE_CASES))

# What the operands of BOTH become from run to run.
CHANGING = (((2, 3, 5, 7), (3, 1, 7)), ((1, 1, 1, 1), (3, 5, 7)), ((2, 0, 5, 7), (1, 1, 7)), ((0, 3, 5, 7), (3, 1, 7)))
