"""The cases on which FusedConvTranspose must equal its reference, on every provider, and how they are compared."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from node_cases import UNIT_ROUNDOFF, ProductCase, Shape, compare, named, normal_inputs, output_name, planar, typed
from onnx import helper

from ortplugin.graph import TensorType
from ortplugin.ops.conv_transpose import OPERATOR, attributes_of
from ortplugin.ops.conv_transpose.reference import transposed_convolution
from ortplugin.ops.pointwise_reference import values
from ortplugin.program import FLOATING


@dataclass(frozen=True)
class Case(ProductCase):
  """One FusedConvTranspose with its inputs. `x` and `w`: channels first; `operands`: shapes of the program's others,
  as they broadcast to a result channels first; None stands for the whole result."""

  name: str
  text: str
  x: Shape
  w: Shape
  operands: tuple[Shape | None, ...] = ()
  layout: str = "NCHW"
  attributes: dict[str, Any] = field(default_factory=dict, hash=False)
  constant_weights: bool = False

  @property
  def shapes(self):
    """Those of the inputs, in the node's layout."""
    given = [self.laid(self.x), self.laid(self.w)]
    for shape in self.operands:
      if shape is None:
        known = [self.laid(self.x), self.laid(self.w), *[None] * len(self.operands)]
        types = [TensorType(None, each) for each in known]
        whole = OPERATOR.infer_shapes(self.node(), types)[0].shape
        sizes = tuple(int(size) for size in whole if size is not None)
        shape = sizes if self.is_turned else self.unlaid(sizes)
      given.append(self.laid((1,) * (len(self.x) - len(shape)) + shape))
    return tuple(given)

  def laid(self, shape):
    return shape if self.layout == "NCHW" else (shape[0], *shape[2:], shape[1])

  def unlaid(self, shape):
    return shape if self.layout == "NCHW" else (shape[0], shape[-1], *shape[1:-1])

  @property
  def is_turned(self):
    """Whether the outputs have another layout than the node."""
    return "output_layout" in self.attributes

  @property
  def constant(self):
    return self.constant_weights

  def inputs(self):
    return normal_inputs(self.name, self.shapes, self.dtypes)

  def node(self):
    attributes = {"kernel_shape": list(self.w[2:]), **self.attributes}
    program = self.program
    return helper.make_node(
        OPERATOR.name, self.names, [output_name(program, each) for each in program.results], "up",
        domain=OPERATOR.domain, program=self.text, layout=self.layout,
        **{name: value for name, value in attributes.items() if value is not None},
    )  # fmt: skip


# ---- comparison

UNITS = 4.0  # as in conv_grad_cases.py
SLOPE = 4.0  # what an activation may multiply an error by


def check(case, outputs, inputs=None, unit=0, split=False):
  """Compares a kernel's outputs with the reference, as `compare` does, with the slack SLOPE (UNITS u + sqrt(n) c) size.

  c is the unit roundoff of sums, u that of factors and value (`unit`, if that is larger), n the most terms of a sum and
  `size` the sum of their sizes, or the largest value that the program makes of it. `split`: the value may have been
  stored in its dtype before the program, where a library could not take that in, which adds a rounding of SLOPE times
  the largest of the values.
  """
  arrays = case.inputs() if inputs is None else list(inputs)
  node, program = case.node(), case.program
  wide = OPERATOR.reference(node, arrays, rounded=False)
  wanted_all = OPERATOR.reference(node, arrays)
  absolute = [np.abs(each.astype(np.float64)) for each in arrays[:2]]
  size = transposed_convolution(attributes_of(node), absolute[0], absolute[1])
  steps = values(program, [size, *arrays[2:]])
  for each in steps.values():
    size = np.maximum(size, np.abs(np.broadcast_to(each, size.shape).astype(np.float64)))
  compute = UNIT_ROUNDOFF["double" if case.dtypes[0] == "double" else "float"]
  slack = SLOPE * (UNITS * max(compute, unit) + math.sqrt(math.prod(case.w) / case.w[1]) * compute) * size
  if split and program.statements:
    value = transposed_convolution(attributes_of(node), *arrays[:2])
    steps = values(program, [value, *arrays[2:]])
    largest = np.abs(value)
    for each in steps.values():
      largest = np.maximum(largest, np.abs(np.broadcast_to(each, value.shape).astype(np.float64)))
    slack = slack + SLOPE * UNIT_ROUNDOFF[case.dtypes[0]] * largest
  if case.is_turned:
    slack = np.moveaxis(slack, -1, 1)
  assert len(outputs) == len(wide)
  for result, got, exact, wanted in zip(program.results, outputs, wide, wanted_all, strict=True):
    compare(f"{case.name}: {result.name}", got, wanted, exact, slack)


# ---- cases
# T stands for the dtype at hand.

BARE = "(T c) => (T c) {}"
BIAS_RELU = "(T c, T b) => (T y) { s = Add(c, b) y = Relu(s) }"
RESIDUAL = "(T c, T b, T r) => (T y, T s) { a = Add(c, b) s = Add(a, r) y = Tanh(s) }"

# name: x, w, attributes
GEOMETRIES = {
  "3x3": ((2, 3, 7, 9), (3, 4, 3, 3), planar(pads=1)),
  "1x1": ((2, 5, 6, 7), (5, 3, 1, 1), {}),
  "strided": ((2, 3, 5, 4), (3, 4, 3, 3), planar(strides=2, pads=1)),
  "output_padding": ((2, 3, 5, 4), (3, 4, 3, 3), planar(strides=[2, 3], pads=1, output_padding=[1, 2])),
  "output_shape": ((2, 3, 5, 4), (3, 2, 3, 3), {"strides": [2, 3], "output_shape": [10, 12]}),
  "output_shape, SAME_UPPER": (
    (1, 3, 5, 4),
    (3, 2, 4, 3),
    planar(strides=2, output_shape=[11, 8], auto_pad="SAME_UPPER"),
  ),
  "SAME_UPPER": ((2, 2, 5, 4), (2, 3, 3, 4), {"strides": [2, 3], "auto_pad": "SAME_UPPER"}),
  "SAME_LOWER": ((2, 2, 5, 4), (2, 3, 4, 4), {"strides": [2, 3], "auto_pad": "SAME_LOWER"}),
  "VALID": ((2, 2, 5, 4), (2, 3, 3, 2), {"strides": [1, 2], "auto_pad": "VALID"}),
  "asymmetric pads": ((1, 3, 6, 5), (3, 2, 3, 4), {"pads": [0, 2, 2, 1]}),
  "dilated": ((2, 2, 6, 5), (2, 3, 3, 2), {"dilations": [2, 3], "pads": [2, 1, 1, 2]}),
  "groups": ((2, 6, 5, 5), (6, 3, 3, 3), planar(pads=1, group=3)),
  "depthwise": ((2, 8, 5, 4), (8, 1, 3, 3), planar(strides=2, pads=1, group=8, output_padding=1)),
  "kernel is stride": ((2, 3, 4, 6), (3, 5, 2, 2), {"strides": [2, 2]}),
  "DCGAN": ((2, 24, 4, 4), (24, 16, 4, 4), planar(strides=2, pads=1)),
  "gaps": ((1, 2, 4, 3), (2, 2, 2, 1), {"strides": [3, 2], "output_padding": [1, 1]}),
  "1-D": ((3, 4, 11), (4, 2, 5), {"strides": [2], "pads": [2, 1]}),
  "3-D": ((2, 2, 4, 3, 3), (2, 3, 3, 2, 3), {"strides": [1, 2, 1], "pads": [1, 0, 1, 1, 1, 1]}),
  "aligned": ((2, 16, 6, 6), (16, 32, 3, 3), planar(strides=2, pads=1, output_padding=1)),
  "1x1 of one row": ((1, 5, 1, 7), (5, 3, 1, 1), {}),
}


def _grid():
  cases = []
  for number, (name, (x, w, attributes)) in enumerate(GEOMETRIES.items()):
    filters = w[1] * attributes.get("group", 1)
    spatial = (1,) * (len(x) - 2)
    for layout in ("NCHW", "NHWC"):
      for dtype in FLOATING:
        text, operands = ((BARE, ()), (BIAS_RELU, ((filters, *spatial),)))[number % 2]
        title = f"{name}, {layout}, {dtype}"
        cases.append(Case(title, typed(text, dtype), x, w, operands, layout, attributes))
  return cases


def _others():
  x, w, attributes = GEOMETRIES["strided"]
  cases = []
  for dtype in FLOATING:
    for layout in ("NCHW", "NHWC"):
      cases += [
          Case(f"residual, {layout}, {dtype}", typed(RESIDUAL, dtype), x, w, ((4, 1, 1), None), layout,
               attributes),
          Case(f"constant weights, {layout}, {dtype}", typed(BIAS_RELU, dtype), x, w, ((4, 1, 1),), layout,
               attributes, True),
          Case(f"a result of another dtype, {layout}, {dtype}",
               typed("(T c) => (bool p, T n, double d) { p = Greater(c, 0) n = Neg(c) d = Cast<to=double>(c) }",
                     dtype), x, w, (), layout, attributes),
      ]  # fmt: skip
    cases.append(Case(f"no images, {dtype}", typed(BARE, dtype), (0, *x[1:]), w, (), "NCHW", attributes))
  return cases


def _turned():
  """The layout NHWC, but the outputs have their channels first."""
  cases = []
  first = {"output_layout": "NCHW"}
  for dtype in FLOATING:
    for name in ("strided", "output_shape", "groups", "1-D", "3-D", "1x1 of one row"):
      x, w, attributes = GEOMETRIES[name]
      filters, spatial = w[1] * attributes.get("group", 1), (1,) * (len(x) - 2)
      cases.append(
        Case(
          f"{name}, turned, {dtype}", typed(BIAS_RELU, dtype), x, w, ((filters, *spatial),), "NHWC", attributes | first
        )
      )
    x, w, attributes = GEOMETRIES["strided"]
    cases += [
        Case(f"bare, turned, {dtype}", typed(BARE, dtype), x, w, (), "NHWC", attributes | first),
        Case(f"residual, turned, {dtype}", typed(RESIDUAL, dtype), x, w, ((4, 1, 1), None), "NHWC",
             attributes | first, True),
        Case(f"results of other dtypes, turned, {dtype}",
             typed("(T c) => (bool p, T n, double d) { p = Greater(c, 0) n = Neg(c) d = Cast<to=double>(c) }",
                   dtype), x, w, (), "NHWC", attributes | first),
        Case(f"no pixels, turned, {dtype}", typed(BARE, dtype), (2, 3, 0, 4), w, (), "NHWC",
             {"output_shape": [3, 7], "output_layout": "NCHW"}),
    ]  # fmt: skip
  return cases


CASES = (*_grid(), *_others(), *_turned())
by_name = named(CASES)
