"""The cases on which FusedMatMul and FusedMatMulNorm must equal their references, on every provider.

A case is the shapes of A and B, an epilogue and a dtype. The slack is that of conv_cases.py: a product is a
convolution of one element.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from conv_cases import BARE, BIAS, BIAS_RELU, EPILOGUES, RESIDUAL_RELU, RandomProduct, expect_of
from node_cases import (
  UNIT_ROUNDOFF,
  Shape,
  check_results,
  compare,
  named,
  normal_inputs,
  output_name,
  results_of,
  typed,
)
from onnx import helper

from ortplugin.ops import layer_norm
from ortplugin.ops.matmul import OPERATOR, norm as matmul_norm
from ortplugin.ops.matmul.reference import product
from ortplugin.program import FLOATING, parse

__all__ = ["BARE", "BIAS", "BIAS_RELU", "CASES", "NORMS", "PRODUCTS", "RESIDUAL_RELU", "Case", "NormCase", "by_name",
           "check", "expect", "made", "typed"]  # fmt: skip


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

  @property
  def is_gated(self):
    return bool(self.attributes.get("gated"))

  @property
  def constants(self):
    return tuple(self.names[1 : 2 + self.is_gated]) if self.constant else ()

  def node(self):
    program = self.program
    outputs = [output_name(program, result) for result in program.results]
    return helper.make_node(
      OPERATOR.name, self.names, outputs, "product", domain=OPERATOR.domain, program=self.text,
      trans_b=int(self.trans_b), **self.attributes,
    )  # fmt: skip


def expect(case, inputs=None, unit=None):
  a, b, *operands = case.inputs() if inputs is None else inputs
  sized = lambda x: np.nan_to_num(np.abs(x.astype(np.float64)), posinf=0)  # noqa: E731
  size_with = lambda w: product(case.trans_b, sized(a), sized(w))  # noqa: E731
  gate_size = size_with(operands[0]) if case.is_gated else None
  if case.is_gated:
    operands[0] = product(case.trans_b, a, operands[0])
  return expect_of(case, product(case.trans_b, a, b), size_with(b), a.shape[-1], operands, unit, gate_size)


def check(case, outputs, expected=None):
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
  a, *others = case.shapes
  turned = 1 + case.is_gated
  shapes = (a, *(each[::-1] for each in others[:turned]), *others[turned:])
  return replace(case, name=f"{case.name}, trans_b", shapes=shapes, trans_b=True)


# v: the gate, of which the node has the weights.
GATES = {
  "SwiGLU": "(T c, T v) => (T y) { s = Sigmoid(v) g = Mul(v, s) y = Mul(g, c) }",
  "GEGLU with biases": "(T c, T v, T b, T b2) => (T y) { d = Add(v, b2) g = Gelu(d) a = Add(c, b) y = Mul(a, g) }",
  "two results": "(T c, T v, T r) => (T s, T y) { s = Add(c, r) y = Mul(s, v) }",
}


def gated(name, text, dtype, a, n, **more):
  """`made`, of one of GATES."""
  attributes = {"gated": 1, **more.pop("attributes", {})}
  return made(name, text, dtype, a, n, {"v": (a[-1], n)}, attributes=attributes, **more)


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
TWO_GATED = "(T y) { a = Mul(c, u) g = Mul(a, v) y = Add(g, p) }"
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
  cases += [
    gated(f"gate: {name}, {kind}, {dtype}", text, dtype, *GEOMETRIES[name], values=values)
    for kind, text in GATES.items()
    for dtype in FLOATING
    for name, values in (("odd", "normal"), ("aligned", "normal"), ("six axes", "normal"), ("few rows", "special"),
                         ("no rows", "normal"), ("no sums", "normal"))
  ]  # fmt: skip
  cases += [
    replace(gated(f"gate inside: {name}, {dtype}", f"(T c, T v, T u, T p) => {TWO_GATED}", dtype, a, n),
            shapes=(a, (a[-1], n), (a[-1], n), u, v))
    for name, (a, n, u, v) in INSIDE.items()
    for dtype in ("float16", "float")
  ]  # fmt: skip
  cases += [transposed(case) for case in cases]
  chosen = ("aligned", "bias, Relu", "odd", "few rows", "no sums", "gate: ")
  constant = [case for case in cases if case.name.startswith(chosen)]
  return cases + [replace(case, name=f"constant weights: {case.name}", constant=True) for case in constant]


@dataclass(frozen=True)
class NormCase(Case):
  """A product and a norm of its rows, in one node; `shapes` has the norm's operands behind the product's."""

  norm: str = ""
  keeps: bool = False

  @property
  def product(self):
    count = len(self.program.parameters) + 1
    return Case(self.name, self.text, self.shapes[:count], self.trans_b, self.values, self.constant)

  @property
  def norm_program(self):
    return parse(self.norm)

  @property
  def operands(self):
    """The norm's parameters that are inputs."""
    return self.norm_program.parameters[len(self.program.results) :]

  @property
  def names(self):
    return [*super().names, *(f"norm_{each.name}" for each in self.operands)]

  @property
  def dtypes(self):
    return [*super().dtypes, *(each.dtype for each in self.operands)]

  @property
  def results(self):
    kept = results_of(self.program) if self.keeps else []
    return kept + [(f"norm_{name}", dtype) for name, dtype in results_of(self.norm_program)]

  def inputs(self):
    shapes, dtypes = self.shapes[-len(self.operands) :], [each.dtype for each in self.operands]
    return [*self.product.inputs(), *(normal_inputs(self.name, shapes, dtypes) if self.operands else [])]

  def node(self):
    return helper.make_node(
      matmul_norm.NAME, self.names, [name for name, _ in self.results], "product", domain=OPERATOR.domain,
      program=self.text, norm=self.norm, trans_b=int(self.trans_b), keeps_product=int(self.keeps), **self.attributes,
    )  # fmt: skip

  def check(self, outputs, unit=None):
    """Compares outputs with the reference. `unit`: as for `expect`.

    What a value is off by, divided by its row's deviation, is what its normalised element is off by. To that come the
    mean's error and the deviation's, which moves an element the more, the further it lies from the mean.
    """
    inputs, node = self.inputs(), self.node()
    count = len(self.product.shapes)
    values = expect(self.product, inputs[:count], unit)
    outputs, kept = list(outputs), len(values.outputs) if self.keeps else 0
    if kept:
      check_results(self.product, outputs[:kept], values)
    wide = matmul_norm.reference(node, inputs, rounded=False)[kept:]
    rounded = matmul_norm.reference(node, inputs)[kept:]
    core, dtype = self.norm_program.core, self.program.results[0].dtype
    given = {each.name: array.astype(np.float64) for each, array in zip(self.operands, inputs[count:], strict=True)}
    step, is_layer = UNIT_ROUNDOFF["double" if dtype == "double" else "float"], core.op == "LayerNormalization"
    with np.errstate(all="ignore"):
      s = values.wide[0] + given.get("r", 0)
      off = (2 * UNIT_ROUNDOFF[dtype] + 8 * step) * np.abs(values.wide[0]) + values.slack[0] + 8 * step * np.abs(s)
      mean = lambda x: x.mean(-1, keepdims=True) if x.shape[-1] else x  # noqa: E731
      centred = s - mean(s) if is_layer else s
      deviation = np.sqrt(mean(centred**2) + core.number("epsilon"))
      n = np.abs(centred / deviation)
      slack = (off + (mean(off) if is_layer else 0) + n * mean(off * n)) / deviation + 64 * step * (1 + n)
      slack = slack * np.abs(given.get("g", 1.0)) + off * ("x)" in self.norm.partition("Add(n")[2])
    for result, got, wanted, exact in zip(self.norm_program.results, outputs[kept:], rounded, wide, strict=True):
      coarse = [
        2 * UNIT_ROUNDOFF[str(each.attribute("to"))] for each in self.norm_program.statements if each.op == "Cast"
      ]
      unit = max([UNIT_ROUNDOFF[result.dtype], *coarse])
      compare(f"{self.name}: {result.name}", got, wanted, exact, slack + 8 * step * np.abs(exact), unit)


@dataclass(frozen=True)
class FirstCase(NormCase):
  """A norm of the factor A in front of a product, in one node."""

  @property
  def product(self):
    count = len(self.program.parameters) + 1
    return Case(self.name, self.text, self.shapes[:count], self.trans_b, attributes=self.attributes)

  @property
  def operands(self):
    return self.norm_program.parameters[1:]

  @property
  def results(self):
    return results_of(self.program)

  def node(self):
    node = super().node()
    node.attribute.append(helper.make_attribute("norm_first", 1))
    return node

  def check(self, outputs, unit=None):
    """Compares outputs with the reference. `unit`: as for `expect`; the factor is rounded once it is normalised."""
    inputs, count = self.inputs(), len(self.product.shapes)
    (a,) = layer_norm.reference(matmul_norm.parts(self.node())[1], [inputs[0], *inputs[count:]], rounded=False)
    unit = max(unit or 0, 4 * UNIT_ROUNDOFF[self.program.parameters[0].dtype])
    check_results(self.product, outputs, expect(self.product, [a, *inputs[1:count]], unit))


LAYER_NORM = "(T x, T g, T h) => (T y) { n = LayerNormalization<epsilon=1e-5>(x) m = Mul(n, g) y = Add(m, h) }"
RMS_NORM = "(T x, T g) => (T y) { n = RMSNormalization<epsilon=1e-5>(x) y = Mul(n, g) }"
WIDE_NORM = (
  "(T x, T g) => (T y) { s = Cast<to=float>(x) n = RMSNormalization<epsilon=1e-5>(s) c = Cast<to=T>(n) y = Mul(g, c) }"
)
NORM_TEXTS = {
  "layer norm": (LAYER_NORM, {}),
  "RMS norm": (RMS_NORM, {}),
  "no operand": ("(T x) => (T y) { n = LayerNormalization<epsilon=1e-5>(x) y = Relu(n) }", {}),
  "two results": ("(T x, T g) => (T y, T n) { n = LayerNormalization<epsilon=1e-5>(x) y = Mul(n, g) }", {}),
  "an operand of rows": (LAYER_NORM, {"g": "rows"}),
  "an operand of all": (LAYER_NORM, {"h": "whole"}),
  "one of one element": (RMS_NORM, {"g": "one"}),
  "a sum before it": ("(T x, T r, T g) => (T y) { s = Add(x, r) n = RMSNormalization<epsilon=1e-5>(s) y = Mul(n, g) }",
                      {"r": "whole"}),
  "the value behind it": ("(T x) => (T y) { n = LayerNormalization<epsilon=1e-5>(x) y = Add(n, x) }", {}),
}  # fmt: skip
# A, N: in a cluster of one block to eight, and in none; rows that fill no tile.
NORM_GEOMETRIES = {
  "a vector": ((24,), 64),
  "one row": ((1, 40), 96),
  "seven rows": ((7, 32), 256),
  "49 rows": ((49, 16), 768),
  "two images": ((2, 65, 64), 320),
  "197 rows": ((197, 24), 1024),
  "many rows": ((1100, 64), 512),
  "odd": ((37, 13), 27),
  "no whole columns": ((2, 9, 16), 80),
  "no rows": ((2, 0, 8), 64),
  "no sums": ((2, 3, 0), 64),
}


def normed(name, norm, dtype, a, n, text=RESIDUAL_RELU, operands=None, **more):
  """A NormCase: of the norm's operands each is [n] unless `operands` has it "rows", "whole" or "one"."""
  norm = typed(norm, dtype)
  case = made(name, text, dtype, a, n)
  kinds = {"rows": (*a[:-1], 1), "whole": (*a[:-1], n), "one": (1,)}
  names = [each.name for each in parse(norm).parameters[len(case.program.results) :]]
  shapes = [kinds.get((operands or {}).get(each, ""), (n,)) for each in names]
  return NormCase(name, case.text, (*case.shapes, *shapes), norm=norm, **more)


def first(name, norm, dtype, a, n, text=BIAS, operands=None, **more):
  """A FirstCase: of the norm's operands each is of A's last length unless `operands` has another shape."""
  case = (gated if "T v" in text else made)(name, text, dtype, a, n, **more)
  names = [each.name for each in parse(typed(norm, dtype)).parameters[1:]]
  shapes = [(operands or {}).get(each, a[-1:]) for each in names]
  return FirstCase(
    name, case.text, (*case.shapes, *shapes), norm=typed(norm, dtype), attributes=case.attributes, **more
  )


# Each thread's part in one step and in several, rows of one warp and of several, of one and of many rows.
FIRST_GEOMETRIES = (((24,), 16), ((1, 40), 24), ((2, 1, 768), 96), ((4, 1024), 70), ((1, 4104), 33), ((3, 2060), 9),
                    ((7, 32), 48), ((49, 13), 27), ((2, 0, 8), 16), ((2, 3, 0), 16))  # fmt: skip


def _firsts():
  cases = [
    first(f"of A: {a}, {kind}, {dtype}", NORM_TEXTS[kind][0], dtype, a, n, text)
    for a, n in FIRST_GEOMETRIES
    for kind, text in (("layer norm", BIAS), ("RMS norm", GATES["SwiGLU"]), ("no operand", RESIDUAL_RELU))
    for dtype in FLOATING
  ]
  cases += [
    first(f"of A: {name}, {dtype}", NORM_TEXTS[kind][0], dtype, (2, 1, 64), 48, operands=operands)
    for name, kind, operands in (
      ("rows", "layer norm", {"g": (2, 1, 1)}), ("whole", "layer norm", {"h": (2, 1, 64)}),
      ("one", "RMS norm", {"g": (1,)}), ("sum", "a sum before it", {"r": (2, 1, 64)}),
      ("value", "the value behind it", {}),
    )
    for dtype in ("float16", "float")
  ]  # fmt: skip
  cases += [first(f"of A: in float, {dtype}", WIDE_NORM, dtype, (1, 64), 48, BARE) for dtype in ("float16", "bfloat16")]
  return cases + [transposed(each) for each in cases]


def _norms():
  cases = [
    normed(f"{name}, {kind}, {dtype}", NORM_TEXTS[kind][0], dtype, a, n, keeps=kind == "RMS norm")
    for name, (a, n) in NORM_GEOMETRIES.items()
    for kind in ("layer norm", "RMS norm")
    for dtype in FLOATING
  ]
  cases += [
    normed(f"{name}, {dtype}", text, dtype, (3, 37, 32), 192, BIAS, operands, keeps=dtype != "float")
    for name, (text, operands) in NORM_TEXTS.items()
    for dtype in FLOATING
  ]
  cases += [
    normed(f"in float: {a}, {dtype}", WIDE_NORM, dtype, a, n, BARE, keeps=True)
    for a, n in (((37, 64), 512), ((5, 24), 64))
    for dtype in ("float16", "bfloat16")
  ]
  cases += [
    normed(f"{values} {kind}, {dtype}", NORM_TEXTS[kind][0], dtype, (70, 24), 128, BIAS, values=values)
    for values in ("special rows", "large", "denormal", "ones")
    for kind in ("layer norm", "RMS norm")
    for dtype in FLOATING
  ]
  return cases + [transposed(each) for each in cases if "layer norm" in each.name]


PRODUCTS = tuple(_cases())
NORMS = tuple(_norms() + _firsts())
CASES = PRODUCTS + NORMS

by_name = named(CASES)
