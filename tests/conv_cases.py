"""The cases on which FusedConv must equal its reference, on every provider.

A case is a geometry, an epilogue, a layout and a dtype. `expect` says by how much a convolution may be off.
"""

import itertools
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pointwise_cases
from node_cases import (
  UNIT_ROUNDOFF,
  VALUES,
  Expectation,
  ProductCase,
  Shape,
  check_results,
  named,
  output_name,
  planar,
  typed,
)
from onnx import helper

from ortplugin.graph.conv_geometry import last, read_attributes
from ortplugin.ops import pointwise_reference
from ortplugin.ops.conv import OPERATOR
from ortplugin.ops.conv.reference import convolution
from ortplugin.program import FLOATING, INTEGERS, NUMPY_DTYPES, parse

__all__ = ["CASES", "Case", "Expectation", "by_name", "check", "expect"]

Attributes = Mapping[str, Any]


class RandomProduct(ProductCase):
  """A product whose inputs are drawn; the subclass has `products`, how many a sum has, and `is_gated` of two products.

  `values`: what stands in the first factor, a row of VALUES or "special"; the second is normal, scaled so that sums are
  of the order of one.
  """

  is_gated = False

  def inputs(self):
    rng = np.random.default_rng(zlib.crc32(self.name.encode()))
    scales = [1 / np.sqrt(max(1, self.products))] * (1 + self.is_gated)
    scales += [1] * (len(self.shapes) - 1 - len(scales))
    others = zip(self.dtypes[1:], self.shapes[1:], scales, strict=True)
    first = made_array(rng, self.dtypes[0], self.shapes[0], self.values)
    return [first, *(made_array(rng, dtype, shape, "normal", scale) for dtype, shape, scale in others)]


@dataclass(frozen=True)
class Case(RandomProduct):
  """One node with its inputs. `shapes`: of X, W and the operands, in the node's layout."""

  name: str
  text: str
  shapes: tuple[Shape, ...]
  attributes: Attributes = field(default_factory=dict)
  values: str = "normal"
  constant: bool = False
  exact: tuple[str, ...] = ()

  @property
  def products(self):
    return int(np.prod(self.shapes[1][1:]))

  def node(self, name="convolution"):
    program = self.program
    outputs = [output_name(program, result) for result in program.results]
    return helper.make_node(
      OPERATOR.name, self.names, outputs, name, domain=OPERATOR.domain, program=self.text, **self.attributes
    )

  def with_layout(self, layout):
    """The same in the other layout, of a case in NCHW."""
    if layout == "NCHW":
      return self
    x, w, *operands = self.shapes
    rank = len(x)
    moved = tuple(
      last(each) if len(each) == rank else last((1, *each))[1:] if len(each) == rank - 1 else each for each in operands
    )
    attributes = {"kernel_shape": list(w[2:]), **self.attributes, "layout": layout}
    return replace(self, name=f"{self.name}, {layout}", shapes=(last(x), last(w), *moved), attributes=attributes)

  def with_image_first(self):
    """The same with the layout NHWC, but for X, which stays as it is."""
    moved = self.with_layout("NHWC")
    attributes = {**moved.attributes, "input_layout": "NCHW"}
    return replace(moved, name=f"{moved.name} but X", shapes=(self.shapes[0], *moved.shapes[1:]), attributes=attributes)


def made_array(rng, dtype, shape, values, scale=1.0):
  if dtype == "bool":
    return np.asarray(rng.random(shape) < 0.5)
  if dtype in INTEGERS:
    return np.asarray(rng.integers(1, 5, shape), NUMPY_DTYPES[dtype])
  if values == "special":
    made = rng.standard_normal(shape)
    at = rng.permutation(made.size)[: 1 + made.size // 40]
    made.reshape(-1)[at] = rng.choice([np.nan, np.inf, -np.inf], len(at))
  else:
    made = VALUES[values](rng, shape or (1,)).reshape(shape)
  with np.errstate(over="ignore"):
    return np.asarray(np.asarray(made, np.float64) * scale).astype(NUMPY_DTYPES[dtype])


# ---- comparison

UNITS = 8.0


def expect(case, inputs=None, unit=None):
  """What `check` compares with. `unit`: the unit roundoff of factors and value, where it is not that of sums.

  A convolution's value may be off by

      (UNITS u + 2 sqrt(K) c) sum |x| |w|

  where u is that unit, c the one of sums, in float32 or double, and K the number of products in a sum. Errors of c in
  each addition add up like a random walk, sqrt(K) of them; those of the factors do not grow with K. A product that is
  missing or taken twice is about 1/K of the sum and shows. Where the program
  computes with the value, results may be off by what that error makes of them, beside what each statement adds.
  """
  x, w, *operands = case.inputs() if inputs is None else inputs
  attributes = read_attributes(case.node())
  value = convolution(attributes, x, w)
  with np.errstate(invalid="ignore"):
    size = convolution(attributes, *(np.nan_to_num(np.abs(each.astype(np.float64)), posinf=0) for each in (x, w)))
  return expect_of(case, value, size, int(np.prod(w.shape)) // max(1, w.shape[0]), operands, unit)


def expect_of(case, value, size, products, operands, unit=None, gate_size=None):
  """`expect` of any product: its value, the sum of its terms' sizes, and how many they are.

  `gate_size`: the same sum of the first operand's terms, where that is a product, too.
  """
  program = case.program
  arrays = [value, *operands]
  given = pointwise_cases.Case(case.name, case.text, tuple(each.shape for each in arrays))
  expected = pointwise_cases.expect(given, arrays, unit)
  in_double = program.parameters[0].dtype == "double"
  compute = UNIT_ROUNDOFF["double" if in_double else "float"]  # of sums; factors and value may have fewer bits
  share = UNITS * max(unit or 0, compute) + 2 * np.sqrt(products) * compute
  exact = pointwise_reference.values(program, arrays)
  slack = list(expected.slack)
  sizes = [size] if gate_size is None else [size, gate_size]
  for (at, each), sign in itertools.product(enumerate(sizes), (-1, 1)):
    others = list(arrays)
    others[at] = arrays[at] + sign * share * each
    moved = pointwise_reference.values(program, others)
    for number, result in enumerate(program.results):
      if result.dtype in FLOATING:
        with np.errstate(invalid="ignore"):
          made = np.abs(moved[result.name] - exact[result.name])
        slack[number] = slack[number] + np.where(np.isfinite(made), made, 0)
  return Expectation(expected.wide, expected.outputs, slack)


def check(case, outputs, expected=None):
  """Compares a kernel's outputs with the reference, as pointwise_cases.check does, with the slack of `expect`."""
  expected = expect(case) if expected is None else expected
  check_results(case, outputs, expected)


# ---- epilogues
# T stands for the dtype at hand. Operands: b a number a channel, r of the result's shape, s a number a channel and
# image, p one a position, one a single number, all with channels first.

BARE = "(T c) => (T c) {}"
BIAS = "(T c, T b) => (T y) { y = Add(c, b) }"
BIAS_RELU = "(T c, T b) => (T y) { a = Add(c, b) y = Relu(a) }"
RESIDUAL_RELU = "(T c, T b, T r) => (T y) { a = Add(c, b) s = Add(a, r) y = Relu(s) }"

EPILOGUES = {
  "bare": BARE,
  "bias": BIAS,
  "bias from the left": "(T c, T b) => (T y) { y = Add(b, c) }",
  "bias, Relu": BIAS_RELU,
  "Relu": "(T c) => (T y) { y = Relu(c) }",
  "LeakyRelu": "(T c, T b) => (T y) { a = Add(c, b) y = LeakyRelu<alpha=0.25>(a) }",
  "Relu6": "(T c, T b) => (T y) { a = Add(c, b) y = Clip(a, 0, 6) }",
  "bounds that are operands": "(T c, T one) => (T y) { y = Clip(c, -0.25, one) }",
  "SiLU": "(T c, T b) => (T y) { a = Add(c, b) s = Sigmoid(a) y = Mul(a, s) }",
  "HardSwish": "(T c, T b) => (T y) { a = Add(c, b) y = HardSwish(a) }",
  "Gelu": "(T c, T b) => (T y) { a = Add(c, b) y = Gelu(a) }",
  "PRelu": "(T c, T b) => (T y) { y = PRelu(c, b) }",
  "residual, Relu": RESIDUAL_RELU,
  "residual without bias": "(T c, T r) => (T y) { s = Add(r, c) y = Relu(s) }",
  "residual after the activation": "(T c, T b, T r) => (T y) { a = Add(c, b) h = Relu(a) y = Add(h, r) }",
  "two residuals": "(T c, T r, T r2) => (T y) { s = Add(c, r) y = Add(s, r2) }",
  "layer scale": "(T c, T b, T b2, T r) => (T y) { a = Add(c, b) g = Mul(a, b2) y = Add(g, r) }",
  "gate of each image": "(T c, T s) => (T y) { g = Sigmoid(s) y = Mul(c, g) }",
  "one for each position": "(T c, T p) => (T y) { y = Add(c, p) }",
  "one for all": "(T c, T one) => (T y) { a = Add(c, one) y = Relu(a) }",
  "before and after the activation": "(T c, T b) => (T a, T y) { a = Add(c, b) y = Relu(a) }",
  "the value itself too": "(T c, T b) => (T y, T c) { a = Add(c, b) y = Relu(a) }",
  "the value itself and an operand": "(T c, T r) => (T r, T c) {}",
  "the value twice": "(T c) => (T y) { y = Mul(c, c) }",
  "a result without the value": "(T c, T b) => (T y, T z) { y = Relu(c) z = Neg(b) }",
  "results of other dtypes": """(T c, T b) => (float16 h, float f, bool t, T y) {
      a = Add(c, b) h = Cast<to=float16>(a) f = Cast<to=float>(a) t = Greater(a, 0) y = Relu(a)
    }""",
  "operands of other dtypes": """(T c, float b, bool m) => (T y) {
      w = Cast<to=float>(c) a = Add(w, b) n = Cast<to=T>(a) y = Where(m, n, 0)
    }""",
}

# The value itself in a wider dtype beside another result.
BESIDE = {
  "value first": "(T c) => (float y, float n) { m = Neg(c) y = Cast<to=float>(c) n = Cast<to=float>(m) }",
  "value last": "(T c) => (float n, float y) { m = Neg(c) y = Cast<to=float>(c) n = Cast<to=float>(m) }",
  "value in its dtype": "(T c) => (T c, float n) { m = Neg(c) n = Cast<to=float>(m) }",
  "value alone is wide": "(T c) => (float y, T n) { n = Neg(c) y = Cast<to=float>(c) }",
  "read again": "(T c) => (T s, T y) { s = Relu(c) y = Neg(s) }",
  "read again, last": "(T c) => (T y, T s) { s = Relu(c) y = Neg(s) }",
  "read again, in float": "(T c) => (float s, T y) { a = Cast<to=float>(c) s = Neg(a) y = Cast<to=T>(s) }",
}
# In float32, in TF32 and not, what has no Cast.
BESIDE_CASES = [(name, dtype, {}) for name in BESIDE for dtype in ("float16", "bfloat16")]
BESIDE_CASES += [
  (name, "float", {"allow_tf32": tf32}) for name in BESIDE if "Cast" not in BESIDE[name] for tf32 in (0, 1)
]


def operand_shape(name, result):
  """The shape of an operand of EPILOGUES, with channels first."""
  batch, channels, *sizes = result
  ones = (1,) * len(sizes)
  shapes = {"b": (channels, *ones), "r": result, "s": (batch, channels, *ones), "p": (1, *sizes), "one": (1,)}
  return result if name == "m" else shapes[name.rstrip("2")]


def made(name, epilogue, dtype, x, w, values="normal", **attributes):
  """A case in NCHW; `name` ends with what tells it from others."""
  bare = Case(name, typed(BARE, dtype), (x, w), attributes)
  result = OPERATOR.infer_shapes(bare.node(), [pointwise_type(x), pointwise_type(w)])[0].shape
  whole = tuple(int(dim) for dim in result if isinstance(dim, int))
  text = typed(epilogue, dtype)
  operands = tuple(operand_shape(parameter.name, whole) for parameter in parse(text).parameters[1:])
  return replace(bare, text=text, shapes=(x, w, *operands), values=values)


def pointwise_type(shape):
  """A type of this shape whose dtype is left open."""
  from ortplugin.ops import TensorType

  return TensorType(None, shape)


# ---- geometries
# With channels first: X, W, attributes.

GEOMETRIES = {
  "3x3": ((2, 6, 9, 11), (8, 6, 3, 3), planar(pads=1)),
  "3x3, not padded": ((2, 5, 9, 11), (7, 5, 3, 3), {}),
  "1x1": ((2, 12, 7, 9), (16, 12, 1, 1), {}),
  "1x1 with strides": ((2, 12, 8, 9), (16, 12, 1, 1), {"strides": [2, 2]}),
  "1x1, padded": ((2, 12, 5, 4), (16, 12, 1, 1), {"pads": [1, 0, 0, 2]}),
  "1x1 of vectors": ((3, 24, 1, 1), (10, 24, 1, 1), {}),
  "1x1 of one row": ((1, 3, 1, 9), (16, 3, 1, 1), {}),
  "1x1 of one row, groups": ((1, 6, 1, 9), (4, 3, 1, 1), {"group": 2}),
  "strides and pads that differ": (
    (2, 6, 13, 10),
    (8, 6, 3, 5),
    {"strides": [2, 3], "pads": [0, 2, 1, 3], "dilations": [2, 1]},
  ),
  "an even kernel": ((1, 4, 8, 8), (6, 4, 2, 4), {"pads": [0, 1, 1, 2]}),
  "pads larger than the kernel": ((1, 3, 4, 5), (4, 3, 2, 2), {"pads": [3, 4, 2, 5], "strides": [2, 1]}),
  "dilations": ((1, 8, 12, 12), (8, 8, 3, 3), {"dilations": [2, 3], "pads": [2, 3, 2, 3]}),
  "groups": ((2, 8, 9, 7), (12, 2, 3, 3), planar(group=4, pads=1)),
  "groups of one row": ((2, 8, 9, 7), (4, 2, 3, 3), {"group": 4, "strides": [2, 2]}),
  "depthwise": ((2, 16, 10, 9), (16, 1, 3, 3), planar(group=16, pads=1)),
  "depthwise 5x5 with strides": ((2, 24, 11, 12), (24, 1, 5, 5), planar(group=24, pads=2, strides=2)),
  "depthwise 7x7": ((1, 8, 9, 9), (8, 1, 7, 7), planar(group=8, pads=3)),
  "depthwise, two rows each": ((2, 6, 8, 8), (12, 1, 3, 3), {"group": 6}),
  "stem": ((2, 3, 20, 18), (16, 3, 7, 7), planar(strides=2, pads=3)),
  "one channel to one": ((1, 1, 6, 7), (1, 1, 3, 3), planar(pads=1)),
  "the kernel covers all": ((2, 5, 4, 6), (7, 5, 4, 6), {}),
  "one pixel": ((1, 5, 1, 1), (7, 5, 3, 3), planar(pads=1)),
  "many channels": ((1, 64, 6, 6), (96, 64, 3, 3), planar(pads=1)),
  "sizes given": ((1, 4, 6, 6), (8, 4, 3, 3), planar(kernel_shape=3, strides=1, dilations=1)),
  "VALID": ((2, 4, 9, 8), (6, 4, 3, 2), {"auto_pad": "VALID", "strides": [2, 1]}),
  "SAME_UPPER": ((2, 4, 9, 8), (6, 4, 4, 2), {"auto_pad": "SAME_UPPER"}),
  "SAME_UPPER with strides": ((2, 4, 9, 8), (6, 4, 3, 4), {"auto_pad": "SAME_UPPER", "strides": [2, 3]}),
  "SAME_LOWER with strides": ((2, 4, 9, 8), (6, 4, 3, 4), {"auto_pad": "SAME_LOWER", "strides": [2, 3]}),
  "SAME_LOWER, dilated": ((1, 4, 9, 8), (6, 4, 3, 2), {"auto_pad": "SAME_LOWER", "dilations": [2, 3]}),
  "1-D": ((2, 6, 33), (8, 6, 5), {"pads": [2, 2]}),
  "1-D, causal and dilated": ((2, 6, 33), (6, 6, 3), {"pads": [8, 0], "dilations": [4]}),
  "1-D depthwise": ((2, 16, 20), (16, 1, 4), {"group": 16, "pads": [3, 0]}),
  "3-D": ((1, 3, 5, 7, 6), (4, 3, 3, 3, 3), {"pads": [1, 1, 1, 1, 1, 1]}),
  "3-D with strides and groups": (
    (2, 4, 6, 7, 5),
    (6, 2, 1, 3, 2),
    {"group": 2, "strides": [1, 2, 2], "pads": [0, 1, 1, 0, 0, 1], "dilations": [1, 2, 1]},
  ),
  "1-D, one element with strides": ((2, 6, 20), (8, 6, 1), {"strides": [3]}),
  "3-D, one element with strides": ((2, 5, 5, 6, 7), (6, 5, 1, 1, 1), {"strides": [2, 3, 2]}),
  "no images": ((0, 6, 9, 11), (8, 6, 3, 3), planar(pads=1)),
  "no rows": ((2, 6, 9, 11), (0, 6, 3, 3), {}),
  "no channels": ((2, 0, 5, 5), (4, 0, 3, 3), planar(pads=1)),
  "nothing but padding": ((2, 3, 0, 4), (4, 3, 3, 3), {"pads": [2, 1, 2, 1]}),
}


def _cases():
  cases = [
    made(f"{name}, {dtype}", RESIDUAL_RELU, dtype, x, w, **attributes)
    for name, (x, w, attributes) in GEOMETRIES.items()
    for dtype in FLOATING
  ]
  x, w, attributes = GEOMETRIES["3x3"]
  cases += [
    made(f"{name}, {dtype}", epilogue, dtype, x, w, **attributes)
    for name, epilogue in EPILOGUES.items()
    for dtype in FLOATING
  ]
  cases += [
    made(f"{values}, {name}, {dtype}", BIAS_RELU, dtype, *GEOMETRIES[name][:2], values, **GEOMETRIES[name][2])
    for values in ("special", "large", "denormal", "negative zero", "ones")
    for name in ("3x3", "1x1", "depthwise")
    for dtype in FLOATING
  ]
  images = (
    "3x3",
    "1x1",
    "1x1 of one row",
    "stem",
    "depthwise",
    "SAME_UPPER with strides",
    "Relu",
    "no rows",
    "nothing but padding",
    "1-D",
  )
  first = [case.with_image_first() for case in cases if case.name.split(", ")[0] in images]
  cases = [case.with_layout(layout) for case in cases for layout in ("NCHW", "NHWC")] + first
  constant = [case for case in cases if case.name.startswith(("3x3, ", "1x1, ", "groups, ", "SiLU, "))]
  # What ONNX Runtime's CPU does in blocks of 8 or 16 channels.
  blocks = [
    made(f"{values}, {name}, {dtype}", BIAS_RELU, dtype, *GEOMETRIES[name][:2], values, **GEOMETRIES[name][2])
    for name in ("many channels", "stem", "depthwise", "depthwise 5x5 with strides")
    for values in ("normal", "special", "large")
    for dtype in FLOATING
  ]
  blocks += [
      made(f"{name}, {epilogue}, {dtype}", EPILOGUES[epilogue], dtype, *GEOMETRIES[name][:2], **GEOMETRIES[name][2])
      for name in ("many channels", "depthwise")
      for epilogue in ("bare", "bias from the left", "Relu", "LeakyRelu", "Relu6", "residual without bias", "Gelu",
                       "layer scale", "one for all", "the value itself too", "results of other dtypes")
      for dtype in ("float", "float16")
  ]  # fmt: skip
  constant += [case.with_layout(layout) for case in blocks for layout in ("NCHW", "NHWC")]
  constant += [case.with_image_first() for case in blocks]
  return cases + [replace(case, name=f"constant weights: {case.name}", constant=True) for case in constant]


CASES = tuple(_cases())

# Input, filters, kernel, strides and pads.
ONE_SIDED = [
  ((1, 8, 2), 8, (3,), [1], [1, 0]),
  ((1, 8, 2), 8, (3,), [1], [0, 1]),
  ((2, 8, 40), 8, (4,), [1], [3, 0]),
  ((2, 32, 9), 32, (2,), [2], [0, 1]),
  ((1, 8, 2, 2), 8, (3, 3), [1, 1], [1, 0, 0, 1]),
  ((2, 16, 7, 9), 16, (2, 2), [1, 1], [0, 0, 1, 1]),
  ((2, 16, 8, 8), 16, (3, 3), [2, 2], [0, 0, 1, 1]),
  ((2, 32, 9, 5), 32, (5, 3), [1, 2], [4, 2, 0, 0]),
  ((1, 4, 3, 4, 3), 4, (2, 2, 2), [1, 1, 1], [1, 1, 1, 0, 0, 0]),
]

# x, filters, kernel, groups: channels and groups that no tile divides.
GROUPED = [
  ((1, 12, 1, 1), 12, (1, 1), 3),
  ((4, 12, 1, 1), 24, (3, 3), 2),
  ((1, 20, 1), 20, (1,), 5),
  ((1, 12, 1, 1, 1), 12, (1, 1, 1), 3),
  ((1, 12, 3, 3), 12, (3, 3), 3),
  ((2, 12, 7, 5), 12, (1, 1), 3),
  ((1, 6, 4, 4), 6, (1, 1), 3),
  ((2, 16, 5, 5), 32, (1, 1), 4),
]

by_name = named(CASES)
