"""The cases on which FusedMatMul must equal its reference, on every provider.

A case is the shapes of A and B, an epilogue and a dtype. The slack is that of conv_cases.py: a product is a
convolution of one element.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from conv_cases import BARE, BIAS, BIAS_RELU, EPILOGUES, RESIDUAL_RELU, RandomProduct, expect_of
from node_cases import Shape, check_results, named, output_name, typed
from onnx import helper

from ortplugin.ops.matmul import OPERATOR
from ortplugin.ops.matmul.reference import product
from ortplugin.program import FLOATING, parse

__all__ = ["BARE", "BIAS", "BIAS_RELU", "CASES", "RESIDUAL_RELU", "Case", "by_name", "check", "expect", "made", "typed"]


@dataclass(frozen=True)
class Case(RandomProduct):
  """One node with its inputs: A, B as the node has it, and the operands."""

  factors = ("A", "B")

  name: str
  text: str
  shapes: tuple[Shape, ...]
  trans_b: bool = False
  values: str = "normal"
  constant: bool = False
  exact: tuple[str, ...] = ()
  attributes: Mapping[str, Any] = field(default_factory=dict)

  @property
  def products(self):
    return self.shapes[0][-1]

  def node(self):
    program = self.program
    outputs = [output_name(program, result) for result in program.results]
    return helper.make_node(
      OPERATOR.name, self.names, outputs, "product", domain=OPERATOR.domain, program=self.text,
      trans_b=int(self.trans_b), **self.attributes,
    )  # fmt: skip


def expect(case, inputs=None, unit=None):
  """What `check` compares with; `unit`: the unit roundoff of the arithmetic, where it is not the kernel's."""
  a, b, *operands = case.inputs() if inputs is None else inputs
  sizes = [np.nan_to_num(np.abs(each.astype(np.float64)), posinf=0) for each in (a, b)]
  value, size = product(case.trans_b, a, b), product(case.trans_b, *sizes)
  return expect_of(case, value, size, a.shape[-1], operands, unit)


def check(case, outputs, expected=None):
  """Compares a kernel's outputs with the reference."""
  check_results(case, outputs, expect(case) if expected is None else expected)


def made(name, text, dtype, a, n, operands=None, **more):
  """A case of B [K, n]. An operand that is not given is [n] if it is called b, one number as "one", else whole."""
  result = (*a[:-1], n)
  usual = {"b": (n,), "one": (1,), "s": (*a[:1], *(1,) * (len(a) - 2), n), "p": (*a[1:-1], 1)}
  if len(a) == 1:
    usual |= {"s": (n,), "p": (1,)}
  text = typed(text, dtype)
  others = [parameter.name for parameter in parse(text).parameters[1:]]
  dims = [(operands or {}).get(each, result if each == "m" else usual.get(each.rstrip("2"), result)) for each in others]
  return Case(name, text, (a, (a[-1], n), *dims), **more)


def transposed(case):
  """The same with B as [N, K]."""
  a, b, *operands = case.shapes
  return replace(case, name=f"{case.name}, trans_b", shapes=(a, b[::-1], *operands), trans_b=True)


# A, N.
GEOMETRIES = {
  "a vector": ((24,), 16),
  "one row": ((1, 40), 24),
  "few rows": ((7, 32), 48),
  "odd": ((49, 13), 27),
  "one column": ((70, 8), 1),
  "one product": ((5, 1), 9),
  "aligned": ((2, 65, 64), 72),
  "four axes": ((2, 3, 37, 16), 24),
  "five axes": ((2, 1, 3, 5, 8), 16),
  "six axes": ((1, 2, 3, 2, 7, 8), 16),
  "no rows": ((2, 0, 8), 16),
  "no columns": ((3, 8), 0),
  "no sums": ((2, 3, 0), 8),
}
TWO = "(T c, T u, T v) => (T y) { a = Mul(c, u) y = Add(a, v) }"
# Operands that broadcast inside the rows: A, N, u, v. The last two have no view of three axes of rows.
INSIDE = {
  "of each image": ((3, 37, 16), 24, (3, 1, 24), (1, 37, 1)),
  "a table of positions": ((3, 37, 16), 24, (37, 24), (24,)),
  "of each image, few": ((2, 5, 16), 8, (2, 1, 1), (5, 8)),
  "three axes": ((2, 3, 37, 16), 24, (2, 1, 37, 24), (3, 1, 24)),
  "the first and last": ((2, 3, 7, 16), 8, (2, 1, 7, 1), (24 // 3,)),
  "five axes in two": ((2, 3, 4, 5, 16), 8, (2, 3, 1, 1, 8), (4, 5, 8)),
  "four axes": ((2, 3, 4, 5, 16), 8, (2, 1, 4, 1, 8), (3, 1, 5, 1)),
  "five axes": ((2, 3, 2, 3, 2, 16), 8, (2, 1, 2, 1, 2, 8), (3, 1, 3, 1, 8)),
}


def _cases():
  cases = [
    made(f"{name}, {dtype}", RESIDUAL_RELU, dtype, a, n) for name, (a, n) in GEOMETRIES.items() for dtype in FLOATING
  ]
  cases += [
    made(f"{name}, {dtype}", text, dtype, (2, 37, 32), 24) for name, text in EPILOGUES.items() for dtype in FLOATING
  ]
  cases += [
    made(f"inside: {name}, {dtype}", TWO, dtype, a, n, {"u": u, "v": v})
    for name, (a, n, u, v) in INSIDE.items()
    for dtype in FLOATING
  ]
  cases += [
    made(f"{values}, {dtype}", BIAS_RELU, dtype, (70, 24), 40, values=values)
    for values in ("special", "large", "denormal", "negative zero", "ones")
    for dtype in FLOATING
  ]
  cases += [transposed(case) for case in cases]
  chosen = ("aligned", "bias, Relu", "odd", "few rows", "no sums")
  constant = [case for case in cases if case.name.startswith(chosen)]
  return cases + [replace(case, name=f"constant weights: {case.name}", constant=True) for case in constant]


CASES = tuple(_cases())

by_name = named(CASES)
