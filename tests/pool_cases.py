"""The cases on which FusedPool and FusedResize must equal their references, on every provider.

A case is one node, the shape of its input and what stands in it.
"""

import math
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from node_cases import OPSET, UNIT_ROUNDOFF, VALUES, Shape, compare, model_with, named, planar, same_kind
from onnx import helper

from ortplugin.graph import DOMAIN
from ortplugin.ops import find
from ortplugin.program import DTYPE_NAMES, FLOATING, NUMPY_DTYPES


@dataclass(frozen=True)
class Case:
  """One node with its input. `values` is the row of VALUES that makes floats; integers span their dtype."""

  name: str
  op: str
  dtype: str
  shape: Shape
  attributes: tuple[tuple[str, Any], ...]
  values: str = "normal"

  @property
  def shapes(self):
    return (self.shape,)

  @property
  def is_exact(self):
    """Whether a result is an element of the input."""
    given = dict(self.attributes)
    return given.get("kind", "").endswith("max") or (self.op == "FusedResize" and given.get("mode") != "linear")

  def inputs(self):
    rng = np.random.default_rng(zlib.crc32(self.name.encode()))
    numpy = NUMPY_DTYPES[self.dtype]
    if self.dtype not in FLOATING:
      info = np.iinfo(numpy)
      return [np.asarray(rng.integers(info.min, info.max, self.shape, dtype=numpy, endpoint=True))]
    with np.errstate(over="ignore"):
      return [np.asarray(VALUES[self.values](rng, self.shape), np.float64).astype(numpy)]

  def feeds(self):
    return {"x": self.inputs()[0]}

  def node(self, name="image"):
    return helper.make_node(self.op, ["x"], ["y"], name, domain=DOMAIN, **dict(self.attributes))

  def model(self, shape="its own"):
    return self.model_of([self.node()], self.shape if shape == "its own" else shape)

  def model_of(self, nodes, shape=None, opset=OPSET):
    """A model of nodes that read x and write y."""
    return model_with(nodes, [("x", self.dtype, shape)], [("y", self.dtype)], opset=opset)

  def reference(self, x, rounded=True):
    return find(DOMAIN, self.op).reference(self.node(), [x], rounded)[0]


# ---- comparison

# What an average or what lies between elements may be off by, in units of the arithmetic's roundoff times the size of
# what it is made of: a tree of additions, the weights and their products.
UNITS = 6.0


def check(case, output, unit=None, x=None):
  """Compares a kernel's output with the reference.

  Shape and dtype are equal, so are the masks of NaN and the signed infinities. Maxima and nearest elements are equal,
  but for the sign of a zero. Otherwise

      |got - wanted| <= u |wanted| + smallest / 2 + UNITS c size

  where `wanted` is the reference before its rounding, u the unit roundoff of the dtype, `smallest` its smallest
  subnormal number, c the unit roundoff of the arithmetic (`unit`, where that is not the kernel's) and `size` the same
  average of absolute values. One element that is left out or taken twice shows.
  """
  x = case.inputs()[0] if x is None else x
  wanted = case.reference(x)
  same_kind(case.name, output, wanted)
  if case.is_exact:
    np.testing.assert_array_equal(output.astype(np.float64), wanted.astype(np.float64), err_msg=case.name)
    return
  compute = UNIT_ROUNDOFF["double" if DTYPE_NAMES[output.dtype] == "double" else "float"] if unit is None else unit
  wide, size = case.reference(x, rounded=False), case.reference(np.abs(x), rounded=False)
  compare(case.name, output, wanted, wide, UNITS * compute * size)


# ---- cases

# Windows: the attributes and the spatial shape. An average also counts its padding where it has any.
WINDOWS = {
  "ResNet's stem": (planar(kernel_shape=3, strides=2, pads=1), (13, 18)),
  "even halves": (planar(kernel_shape=2, strides=2), (12, 10)),
  "odd halves": (planar(kernel_shape=2, strides=2), (7, 9)),
  "odd halves, rounded up": (planar(kernel_shape=2, strides=2, ceil_mode=1), (7, 9)),
  "three of four, rounded up": (
      planar(kernel_shape=3, strides=2, pads=[1, 1, 0, 0], ceil_mode=1), (5, 6)),
  "rounded up, but not into the padding": (
      planar(kernel_shape=[2, 3], strides=3, pads=[0, 0, 1, 2], ceil_mode=1), (4, 7)),
  "every pixel": (planar(kernel_shape=3, pads=1), (5, 6)),
  "uneven pads": ({"kernel_shape": [3, 4], "strides": [1, 2], "pads": [1, 0, 2, 3]}, (5, 8)),
  "one pixel": ({"kernel_shape": [1, 1], "strides": [2, 3]}, (5, 8)),
  "SAME_UPPER": ({"kernel_shape": [3, 2], "strides": [2, 1], "auto_pad": "SAME_UPPER"}, (8, 7)),
  "SAME_LOWER": ({"kernel_shape": [3, 2], "strides": [2, 1], "auto_pad": "SAME_LOWER"}, (8, 7)),
  "VALID": (planar(kernel_shape=3, strides=2, auto_pad="VALID"), (8, 7)),
  "VALID, rounded up": (planar(kernel_shape=2, strides=3, auto_pad="VALID", ceil_mode=1), (7, 8)),
  "the whole image": ({"kernel_shape": [7, 7]}, (7, 7)),
  "a large window": ({"kernel_shape": [9, 11], "pads": [4, 5, 4, 5], "strides": [2, 3]}, (14, 17)),
  "dilated": (planar(kernel_shape=3, dilations=[2, 3], pads=2), (9, 11)),
  "dilated over nothing": (planar(kernel_shape=2, dilations=2, pads=1), (1, 3)),
  "a line": ({"kernel_shape": [3], "strides": [2], "pads": [1, 1]}, (17,)),
  "a dilated line": ({"kernel_shape": [5], "dilations": [3]}, (29,)),
  "a volume": ({"kernel_shape": [2, 2, 2], "strides": [2, 2, 2]}, (6, 5, 4)),
  "a padded volume": (
      {"kernel_shape": [3, 2, 3], "pads": [1, 0, 1, 1, 1, 1], "strides": [1, 1, 2], "ceil_mode": 1}, (3, 4, 6)),
}  # fmt: skip
SHORT = ("ResNet's stem", "odd halves, rounded up", "dilated over nothing", "a padded volume")
CHANNELS = (3, 8, 40, 12)


def frozen(attributes):
  return tuple(attributes.items())


def in_layout(layout, batch, channels, spatial):
  return (batch, *spatial, channels) if layout == "NHWC" else (batch, channels, *spatial)


def _windows():
  made = []
  for number, (name, (window, spatial)) in enumerate(WINDOWS.items()):
    dtypes = (*FLOATING, "int8", "uint8") if name in SHORT else ("float16", "float")
    for kind in ("max", "average"):
      for layout in ("NCHW", "NHWC"):
        for dtype in dtypes if kind == "max" else [each for each in dtypes if each in FLOATING]:
          shape = in_layout(layout, 2, CHANNELS[number % len(CHANNELS)], spatial)
          given = frozen({"kind": kind, "layout": layout, **window})
          made.append(Case(f"{kind}, {name}, {layout}, {dtype}", "FusedPool", dtype, shape, given))
          if kind == "average" and ("pads" in window or "auto_pad" in window or "ceil_mode" in window):
            given = (*given, ("count_include_pad", 1))
            title = f"{kind} with its padding, {name}, {layout}, {dtype}"
            made.append(Case(title, "FusedPool", dtype, shape, given))
  return made


def _global():
  return [
    Case(
      f"{kind} of {'x'.join(map(str, spatial))}x{channels}, {layout}, {dtype}",
      "FusedPool",
      dtype,
      in_layout(layout, batch, channels, spatial),
      frozen({"kind": kind, "layout": layout}),
    )
    for kind in ("global_average", "global_max")
    for layout in ("NCHW", "NHWC")
    for batch, channels, spatial, dtypes in (
      (2, 96, (7, 7), FLOATING),
      (1, 1280, (1, 1), ("float16",)),
      (3, 5, (13,), ("float16", "float")),
      (2, 16, (3, 4, 6), ("float16", "double")),
      (1, 24, (56, 56), ("float16", "float")),
    )
    for dtype in dtypes
  ]


def _values():
  window = planar(kernel_shape=3, strides=2, pads=1)
  return [
    Case(f"{values}, {kind}, {layout}, {dtype}", "FusedPool", dtype, in_layout(layout, 2, 16, (12, 11)),
         frozen({"kind": kind, "layout": layout, **({} if kind.startswith("global") else window)}), values)
    for dtype in ("float16", "bfloat16")
    for kind in ("max", "average", "global_average", "global_max")
    for layout in ("NCHW", "NHWC")
    for values in ("special rows", "large", "denormal", "offset", "negative zero")
  ]  # fmt: skip


def _empty():
  window = planar(kernel_shape=2, strides=2)
  made = []
  for layout in ("NCHW", "NHWC"):
    for batch, channels in ((0, 3), (2, 0)):
      shape = in_layout(layout, batch, channels, (4, 6))
      for kind, given in (("max", window), ("average", window), ("global_average", {}), ("global_max", {})):
        attributes = frozen({"kind": kind, "layout": layout, **given})
        made.append(Case(f"{kind}, nothing, {shape}", "FusedPool", "float", shape, attributes))
    shape = in_layout(layout, 0, 3, (4, 0))  # a spatial dimension may be 0 where the batch is
    for kind in ("max", "average"):
      attributes = frozen(planar(kind=kind, layout=layout, kernel_shape=3, pads=1))
      made.append(Case(f"{kind}, nothing, {shape}", "FusedPool", "float", shape, attributes))
    for batch, channels in ((0, 3), (2, 0)):
      shape = in_layout(layout, batch, channels, (4, 6))
      attributes = frozen({"sizes": [3, 3], "mode": "linear", "layout": layout})
      made.append(Case(f"resize, nothing, {shape}", "FusedResize", "float", shape, attributes))
    for kind in ("global_average", "global_max"):  # of images without pixels
      for spatial in ((0,), (3, 0), (0, 4), (0, 0), (2, 0, 3)):
        for dtype in (*FLOATING, "int8", "uint8") if kind == "global_max" else FLOATING:
          shape = in_layout(layout, 2, 5, spatial)
          attributes = frozen({"kind": kind, "layout": layout})
          made.append(Case(f"{kind} of no pixels, {shape}, {dtype}", "FusedPool", dtype, shape, attributes))
  # Kernels that are larger than the padded image: no windows, or with ceil_mode one that reaches beyond.
  for name, given, spatial in (
    ("no windows", {"kernel_shape": [3, 2], "strides": [2, 1]}, (1, 6)),
    ("no windows at all", {"kernel_shape": [2, 5], "strides": [1, 3], "pads": [0, 1, 0, 0]}, (1, 2)),
    ("no windows, rounded up", planar(kernel_shape=[3, 2], strides=2, ceil_mode=1), (1, 5)),
    ("a window beyond the image", {"kernel_shape": [5, 4], "strides": [4, 3], "ceil_mode": 1}, (2, 6)),
    ("a window beyond the image by less than a stride", {"kernel_shape": [5, 4], "strides": [4, 3]}, (2, 6)),
    ("no windows of a line", {"kernel_shape": [2], "dilations": [3]}, (3,)),
  ):
    for kind in ("max", "average"):
      for layout in ("NCHW", "NHWC"):
        shape, attributes = in_layout(layout, 2, 8, spatial), frozen({"kind": kind, "layout": layout, **given})
        made.append(Case(f"{kind}, {name}, {layout}", "FusedPool", "float", shape, attributes))
        if kind == "average":
          attributes = (*attributes, ("count_include_pad", 1))
          made.append(Case(f"padded {kind}, {name}, {layout}", "FusedPool", "float", shape, attributes))
  return made


COORDINATES = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")
NEAREST_MODES = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
# Input and output sizes, or scales.
RESIZES = (
  ((5, 7), (10, 14)),
  ((5, 7), (13, 9)),
  ((9, 8), (3, 1)),
  ((1, 6), (4, 6)),
  ((6, 5), (2.0, 2.0)),
  ((7, 10), (1.5, 0.6)),
  ((11,), (23,)),
  ((3, 4, 5), (5, 2, 12)),
  ((3, 4, 5), (2.0, 1.0, 1.7)),
  ((7, 20), (4, 6)),  # places in the middle of two elements, but for the rounding of the scales
)


def _resize():
  made = []
  for coordinates in COORDINATES:
    for mode in ("linear", *NEAREST_MODES):
      for number, (spatial, target) in enumerate(RESIZES):
        for layout in ("NCHW", "NHWC"):
          if mode not in ("linear", "round_prefer_floor") and (number + (layout == "NHWC")) % 3:
            continue
          all_dtypes = FLOATING if mode == "linear" else (*FLOATING, "int8", "uint8", "int32")
          dtypes = all_dtypes if (coordinates, number) == ("half_pixel", 1) else ("float16", "float")
          words = {"mode": "linear"} if mode == "linear" else {"nearest_mode": mode}
          name = "scales" if isinstance(target[0], float) else "sizes"
          given = {**words, "coordinate_transformation_mode": coordinates, name: target, "layout": layout}
          dtype = dtypes[number % 2]
          for each in dtypes if len(dtypes) > 2 else (dtype,):
            shape = in_layout(layout, 2, CHANNELS[number % len(CHANNELS)], spatial)
            title = f"{mode}, {coordinates}, {spatial} by {target}, {layout}, {each}"
            made.append(Case(title, "FusedResize", each, shape, frozen(given)))
  for values in ("special rows", "large", "denormal"):
    for layout in ("NCHW", "NHWC"):
      given = {"mode": "linear", "sizes": (9, 14), "layout": layout}
      shape = in_layout(layout, 2, 16, (5, 6))
      made.append(Case(f"linear, {values}, {layout}", "FusedResize", "float16", shape, frozen(given), values))
  # Elements that lie exactly on one of the input: its neighbours have weight 0, and their NaN and infinities count.
  for coordinates, sizes in (
      ("align_corners", (9, 11)), ("asymmetric", (10, 12)), ("asymmetric", (2, 3)), ("half_pixel", (5, 12)),
      ("half_pixel", (15, 6)), ("half_pixel", (5, 6)), ("align_corners", (5, 6)), ("pytorch_half_pixel", (1, 12)),
      ("asymmetric", (4, 5, 12)), ("half_pixel", (2, 10, 6)), ("align_corners", (3, 5, 6)),
  ):  # fmt: skip
    for layout in ("NCHW", "NHWC"):
      given = {"mode": "linear", "coordinate_transformation_mode": coordinates, "layout": layout, "sizes": sizes}
      shape = in_layout(layout, 2, 3, (2, 5, 6)[-len(sizes) :])
      title = f"linear, {coordinates}, special rows by {sizes}, {layout}"
      made.append(Case(title, "FusedResize", "float", shape, frozen(given), "special rows"))
  return made


def _empty_resize():
  made = []
  for name, scales, spatial in (
    ("of no rows", (2.0, 1.5), (0, 6)),
    ("to no columns", (2.0, 0.125), (3, 6)),
    ("of nothing to a copy", (1.0,), (0,)),
  ):
    for mode in ("linear", "nearest"):
      for layout in ("NCHW", "NHWC"):
        shape = in_layout(layout, 2, 8, spatial)
        attributes = frozen({"mode": mode, "scales": scales, "layout": layout})
        made.append(Case(f"resize {name}, {mode}, {layout}", "FusedResize", "float", shape, attributes))
  return made


CASES = (*_windows(), *_global(), *_values(), *_empty(), *_resize(), *_empty_resize())

_STEM = planar(kind="max", kernel_shape=3, strides=2, pads=1)
_HALF = planar(kind="average", kernel_shape=2, strides=2)
_TWICE = {"mode": "linear", "scales": (2.0, 2.0)}

# Enough elements for every core and every block.
LARGE_CASES = tuple(
  Case(
    f"large: {name}, {layout}, {dtype}",
    op,
    dtype,
    in_layout(layout, batch, channels, spatial),
    frozen({**given, "layout": layout}),
  )
  for name, op, given, batch, channels, spatial in (
    ("ResNet's stem", "FusedPool", _STEM, 8, 64, (112, 112)),
    ("DenseNet's halves", "FusedPool", _HALF, 4, 128, (56, 56)),
    ("squeeze", "FusedPool", {"kind": "global_average"}, 2, 32, (112, 112)),
    ("ResNet's end", "FusedPool", {"kind": "global_average"}, 8, 2048, (7, 7)),
    ("largest of an image", "FusedPool", {"kind": "global_max"}, 3, 72, (61, 67)),
    ("twice", "FusedResize", _TWICE, 2, 64, (64, 48)),
    ("eight times", "FusedResize", {"mode": "linear", "sizes": (224, 224)}, 2, 21, (28, 28)),
    (
      "nearest",
      "FusedResize",
      {"scales": (2.0, 2.0), "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"},
      2,
      64,
      (64, 48),
    ),
  )
  for layout in ("NCHW", "NHWC")
  for dtype in ("float16", "float")
)

by_name = named((*CASES, *LARGE_CASES))
assert all(math.prod(case.shape) > 0 for case in LARGE_CASES)
