"""The cases on which ConvGrad must equal its reference, on every provider, and how they are compared.

A case is a geometry, a program and a dtype.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from node_cases import UNIT_ROUNDOFF, ProductCase, Shape, compare, named, normal_inputs, typed
from onnx import helper

from ortplugin.ops.conv_grad import OPERATOR
from ortplugin.ops.conv_grad.gradient import gradient_of
from ortplugin.program import FLOATING


@dataclass(frozen=True)
class Geometry:
  """A convolution: X is [batch, channels, *size], of `filters` output channels; `rest` makes sizes not divide.

  A number for `kernel`, `strides`, `dilations` or `pads` stands for each axis.
  """

  batch: int
  channels: int
  size: Shape
  filters: int
  kernel: Shape
  strides: Shape = ()
  dilations: Shape = ()
  pads: Shape = ()
  group: int = 1
  rest: Shape = ()

  def __post_init__(self):
    for name, ends in (("kernel", 1), ("strides", 1), ("dilations", 1), ("pads", 2)):
      if isinstance(value := getattr(self, name), int):
        object.__setattr__(self, name, (value,) * (ends * len(self.size)))

  def attributes(self):
    given = {"strides": self.strides, "dilations": self.dilations, "pads": self.pads}
    named = {name: list(value) for name, value in given.items() if value}
    return {**named, "kernel_shape": list(self.kernel), **({"group": self.group} if self.group > 1 else {})}

  def shapes(self, transposed):
    """X, W and S, channels first."""
    rank = len(self.size)
    strides, dilations, rest = self.strides or (1,) * rank, self.dilations or (1,) * rank, self.rest or (0,) * rank
    pads = self.pads or (0,) * (2 * rank)
    extents = [(k - 1) * d + 1 for k, d in zip(self.kernel, dilations, strict=True)]
    around = [pads[i] + pads[i + rank] for i in range(rank)]
    if transposed:
      made = [(i - 1) * s + e - p + r for i, s, e, p, r in zip(self.size, strides, extents, around, rest, strict=True)]
      w = (self.channels, self.filters // self.group, *self.kernel)
    else:
      made = [(i + p - e) // s + 1 for i, s, e, p in zip(self.size, strides, extents, around, strict=True)]
      w = (self.filters, self.channels // self.group, *self.kernel)
    return (self.batch, self.channels, *self.size), w, (self.batch, self.filters, *made)


def last(shape):
  return (shape[0], *shape[2:], shape[1])


@dataclass(frozen=True)
class Case(ProductCase):
  """One ConvGrad with its inputs. `text`: the program; its parameters have the shape S, or `extra` by name."""

  name: str
  geometry: Geometry
  text: str
  gradients: str = "dX dW dB"
  operands: str = "X W"
  transposed: bool = False
  layout: str = "NCHW"
  attributes: dict[str, Any] = field(default_factory=dict, hash=False)
  extra: dict[str, Shape] = field(default_factory=dict, hash=False)

  @property
  def gradient(self):
    return gradient_of(self.node())

  @property
  def shapes(self):
    x, w, whole = self.geometry.shapes(self.transposed)
    if self.layout == "NHWC":
      x, w, whole = last(x), last(w), last(whole)
    named = {"X": x, "W": w}
    parameters = [self.extra.get(each.name, whole) for each in self.program.parameters]
    return (*(named[name] for name in self.operands.split()), *parameters)

  @property
  def names(self):
    return [*self.operands.split(), *(each.name for each in self.program.parameters)]

  @property
  def dtypes(self):
    program = self.program
    return [program.results[0].dtype] * len(self.operands.split()) + [each.dtype for each in program.parameters]

  def inputs(self):
    return normal_inputs(self.name, self.shapes, self.dtypes)

  def outputs(self):
    return [*self.gradients.split(), *(f"{each.name}_out" for each in self.program.results[1:])]

  @property
  def results(self):
    first, *others = self.program.results
    weight = self.attributes.get("weight_dtype", first.dtype)
    given = {"dW": weight, "dB": weight}
    dtypes = [given.get(name, first.dtype) for name in self.gradients.split()] + [each.dtype for each in others]
    return list(zip(self.outputs(), dtypes, strict=True))

  def node(self):
    attributes = {**self.geometry.attributes(), **self.attributes}
    return helper.make_node(
        OPERATOR.name, self.names, self.outputs(), "gradient", domain=OPERATOR.domain, program=self.text,
        gradients=self.gradients, operands=self.operands, transposed=int(self.transposed), layout=self.layout,
        **{name: value for name, value in attributes.items() if value is not None},
    )  # fmt: skip


# ---- comparison

# What a value may be off by, in units of its factors' and its own roundoff times the sum of its terms' sizes.
UNITS = 4.0
EXACT = ("Greater", "Where", "Cast", "Mul", "Neg")  # statements that round at most once, from operands that do not


def check(case, outputs, inputs=None, unit=0):
  """Compares a kernel's outputs with the reference, as `compare` does, with the slack (UNITS u + sqrt(n) c) size.

  c is the unit roundoff of sums, u that of factors and value (`unit`, if that is larger; T's own where the program may
  round dZ another way than float64), n the most terms of a sum and `size` the sum of their sizes: terms that are added
  one after another are off by some sqrt(n) units, what their factors are off by does not grow. A term left out or taken
  twice shows.
  """
  arrays = case.inputs() if inputs is None else list(inputs)
  node, program = case.node(), case.program
  wide = OPERATOR.reference(node, arrays, rounded=False)
  sizes = sizes_of(case, arrays)
  rounded = OPERATOR.reference(node, arrays)
  dtype = program.results[0].dtype
  compute = UNIT_ROUNDOFF["double" if dtype == "double" else "float"]
  unit = max(unit, compute)
  if any(each.op not in EXACT for each in program.statements):
    unit = max(unit, UNIT_ROUNDOFF[dtype])
  x, w, whole = case.geometry.shapes(case.transposed)
  terms = max(math.prod(w) // case.geometry.group, math.prod(x) // x[1], math.prod(whole) // whole[1])
  share = UNITS * unit + math.sqrt(terms) * compute
  assert len(outputs) == len(wide)
  for name, got, exact, wanted, size in zip(case.outputs(), outputs, wide, rounded, sizes, strict=True):
    compare(f"{case.name}: {name}", got, wanted, exact, share * size)


def sizes_of(case, arrays):
  """For each output the sum of its terms' sizes: the same gradients of absolute values."""
  dtype = case.program.results[0].dtype
  dz_case = replace(case, gradients="dZ", operands="")
  count = len(case.operands.split())
  (dz, *others) = OPERATOR.reference(dz_case.node(), arrays[count:], rounded=False)
  bare = replace(case, text=typed("(T dz) => (T dz) {}", dtype), extra={})
  wide = [np.abs(np.asarray(each).astype(np.float64)) for each in (*arrays[:count], dz)]
  sums = OPERATOR.reference(bare.node(), wide, rounded=False)
  return [*sums, *(np.abs(each.astype(np.float64)) for each in others)]


# ---- cases
# T stands for the dtype at hand.

BARE = "(T dz) => (T dz) {}"
RELU = "(T dy, T y) => (T dz) { p = Greater(y, 0) dz = Where(p, dy, 0) }"
SCALED = "(T dy, T s, T y) => (T dz, bool p) { p = Greater(y, 0) g = Where(p, dy, 0) dz = Mul(g, s) }"
WIDENED = "(float16 dy) => (float dz) { dz = Cast<to=float>(dy) }"
SIGMOID = "(T dy, T y) => (T dz, T r) { a = Sub(1, y) b = Mul(a, y) dz = Mul(b, dy) r = Neg(dy) }"

GEOMETRIES = {
  "3x3": Geometry(2, 3, (7, 9), 4, 3, pads=1),
  "1x1": Geometry(2, 5, (6, 7), 3, 1),
  "strided": Geometry(2, 3, (9, 7), 4, 3, strides=2, pads=1),
  "strided with a rest": Geometry(3, 4, (8, 11), 2, (3, 2), strides=(2, 3), pads=(1, 0, 1, 0), rest=(1, 2)),
  "wide strides": Geometry(2, 2, (9, 10), 3, 2, strides=(3, 4), rest=(2, 1)),
  "asymmetric pads": Geometry(1, 3, (6, 5), 2, (3, 4), pads=(0, 2, 2, 1)),
  "dilated": Geometry(2, 2, (9, 11), 3, (3, 2), dilations=(2, 3), pads=(2, 1, 1, 2)),
  "dilated and strided": Geometry(1, 4, (11, 9), 2, (2, 3), strides=(3, 2), dilations=(2, 3), pads=1, rest=(1, 1)),
  "groups": Geometry(2, 6, (7, 5), 9, 3, pads=1, group=3),
  "depthwise": Geometry(2, 8, (6, 6), 8, 3, strides=2, pads=1, group=8, rest=(1, 1)),
  "depth multiplier": Geometry(2, 3, (5, 6), 6, 3, pads=1, group=3),
  "kernel is stride": Geometry(2, 3, (4, 6), 5, 2, strides=2),
  "1-D": Geometry(3, 4, (19,), 2, (5,), strides=(2,), pads=(2, 1)),
  "3-D": Geometry(2, 2, (4, 5, 3), 3, (3, 2, 3), strides=(1, 2, 1), pads=(1, 0, 1, 1, 1, 1)),
  "many channels": Geometry(2, 24, (5, 5), 40, 3, pads=1),
  "large kernel": Geometry(1, 2, (5, 4), 2, (5, 4), pads=(4, 3, 4, 3)),
  "one pixel": Geometry(3, 8, (1, 1), 6, 1),
  "one pixel, padded": Geometry(3, 8, (1, 1), 6, 3, pads=1),
  "to one pixel": Geometry(2, 8, (3, 3), 6, 3),
}


def _grid():
  programs = (BARE, RELU)
  return [
      Case(f"{name}, {'transposed, ' if transposed else ''}{layout}, {dtype}", geometry,
           typed(programs[number % 2], dtype), transposed=transposed, layout=layout)
      for number, (name, geometry) in enumerate(GEOMETRIES.items())
      for transposed in (False, True)
      for layout in ("NCHW", "NHWC")
      for dtype in FLOATING
  ]  # fmt: skip


def _others():
  some, strided = GEOMETRIES["3x3"], GEOMETRIES["strided with a rest"]
  cases = []
  for dtype in FLOATING:
    for gradients, operands in (
        ("dX", "W"), ("dX", "X W"), ("dW", "X"), ("dW", "X W"), ("dB", ""), ("dW dB dZ", "X"), ("dX dB", "W"),
        ("dZ", ""),
    ):  # fmt: skip
      name = f"only {gradients} from {operands or 'nothing'}, {dtype}"
      cases.append(Case(name, some, typed(RELU, dtype), gradients, operands))
    for transposed in (False, True):
      after = ", transposed" if transposed else ""
      cases += [
          Case(f"scaled{after}, {dtype}", some, typed(SCALED, dtype), transposed=transposed,
               extra={"s": (4, 1, 1)}),
          Case(f"Sigmoid, two results{after}, {dtype}", some, typed(SIGMOID, dtype), "dX dW dB dZ",
               transposed=transposed, layout="NHWC"),
          Case(f"weights in float{after}, {dtype}", some, typed(RELU, dtype), transposed=transposed,
               attributes={"weight_dtype": "float"}),
          Case(f"weights in double{after}, {dtype}", strided, typed(BARE, dtype), transposed=transposed,
               attributes={"weight_dtype": "double"}),
          Case(f"without X{after}, {dtype}", strided, typed(BARE, dtype), "dX", "W", transposed,
               attributes={"output_padding": [1, 2] if transposed else [0, 0]}),
      ]  # fmt: skip
    cases += [
      Case(f"no images, {dtype}", replace(some, batch=0), typed(RELU, dtype)),
      Case(f"no images, transposed, {dtype}", replace(some, batch=0), typed(BARE, dtype), transposed=True),
    ]
  cases += [
    Case(
      f"float16 gradient of float, only {gradients} from {operands or 'nothing'}", some, WIDENED, gradients, operands
    )
    for gradients, operands in (("dX dW dB", "X W"), ("dW dB", "X W"), ("dW", "X"), ("dX", "W"), ("dB", ""))
  ]
  return cases


CASES = (*_grid(), *_others())
by_name = named(CASES)
