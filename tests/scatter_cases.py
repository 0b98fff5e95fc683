"""The cases on which the scatter operators must equal their reference, on every provider.

A case is one node with the shapes of its inputs and what stands in them. Inputs come from a seed; the expectation is
the reference, whose order of operations every kernel keeps, so `check` compares bits.
"""

import itertools
import math
import zlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from node_cases import OPSET, UNIT_ROUNDOFF, Shape, bits, model_with, named, same_kind
from onnx import TensorProto, helper

from ortplugin.graph import DOMAIN
from ortplugin.ops import find
from ortplugin.ops.scatter import attributes_of, reference
from ortplugin.program import FLOATING

ARITHMETIC = (*FLOATING, "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
ONNX_DTYPES = {
  name: (kind := TensorProto.DataType.Value(name.upper()), np.dtype(helper.tensor_dtype_to_np_dtype(kind)))
  for name in (*ARITHMETIC, "bool", "float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz")
}

INPUTS = {
  "ScatterND": ("data", "indices", "updates"),
  "ScatterElements": ("data", "indices", "updates"),
  "UpdateSlice": ("data", "updates", "starts"),
}


@dataclass(frozen=True)
class Case:
  """One node with its inputs.

  `shapes` has those of the node's inputs, in order. `indices` is the row of INDICES that makes ScatterND's and
  ScatterElements' indices, or UpdateSlice's starts themselves. `values`: "bits" are random bytes, "special" holds
  NaN, infinities and zeros of both signs, "spread" numbers whose sum depends on the order.
  """

  name: str
  op: str
  dtype: str
  shapes: tuple[Shape, Shape, Shape]
  indices: str | tuple[int, ...] = "mixed"
  attributes: tuple[tuple[str, Any], ...] = ()
  values: str = "bits"
  index_dtype: str = "int64"

  def attribute(self, name, absent):
    return dict(self.attributes).get(name, absent)

  @property
  def reduction(self):
    return str(self.attribute("reduction", "none"))

  @property
  def dtypes(self):
    kinds = {"data": self.dtype, "updates": self.dtype, "indices": self.index_dtype, "starts": self.index_dtype}
    return tuple(kinds[name] for name in INPUTS[self.op])

  def inputs(self):
    rng = np.random.default_rng(zlib.crc32(self.name.encode()))
    arrays = []
    for name, shape in zip(INPUTS[self.op], self.shapes, strict=True):
      if name == "starts":
        arrays.append(np.array(self.indices, np.int64).reshape(shape))
      elif name == "indices":
        arrays.append(self._indices(rng, shape))
      else:
        arrays.append(VALUES[self.values](rng, shape, ONNX_DTYPES[self.dtype][1]))
    return arrays

  def _indices(self, rng, shape):
    data = self.shapes[0]
    if self.op == "ScatterND":
      limits = np.array(data[: shape[-1]], np.int64)
      made = INDICES[self.indices](rng, math.prod(shape[:-1]), limits).reshape(shape)
    else:
      axis = self.attribute("axis", 0)
      # One line of indices after another, each along the axis: unique ones are unique within their line.
      moved = np.moveaxis(np.empty(shape, np.int64), axis, -1)
      lines = [
        INDICES[self.indices](rng, moved.shape[-1], np.array([data[axis]], np.int64))[:, 0]
        for _ in range(math.prod(moved.shape[:-1]))
      ]
      moved = np.array(lines, np.int64).reshape(moved.shape)
      made = np.moveaxis(moved, -1, axis)
    return np.ascontiguousarray(made).reshape(shape).astype(ONNX_DTYPES[self.index_dtype][1])

  def feeds(self):
    return dict(zip(INPUTS[self.op], self.inputs(), strict=True))

  def node(self, name="scatter"):
    return helper.make_node(self.op, INPUTS[self.op], ["y"], name, domain=DOMAIN, **dict(self.attributes))

  def with_attributes(self, **attributes):
    return replace(self, attributes=tuple({**dict(self.attributes), **attributes}.items()))

  def model(self, shapes=None, nodes=None, opset=OPSET):
    """A model of this one node, or of `nodes` in its place, with the case's shapes or those given.

    The output leaves its shape to inference.
    """
    inputs = zip(INPUTS[self.op], self.dtypes, shapes or self.shapes, strict=True)
    outputs = [("y", self.dtype)]
    return model_with([self.node()] if nodes is None else nodes, inputs, outputs, opset=opset, ir_version=10)


# ---- comparison


def expect(case, inputs=None, skip_invalid=False):
  """The reference's output. `skip_invalid`: as on a GPU, where updates out of range are left out."""
  arrays = case.inputs() if inputs is None else list(inputs)
  return reference(case.node(), arrays, skip_invalid=skip_invalid)[0]


def check(case, output, expected=None):
  """Compares a kernel's output with the reference.

  Shape, dtype and bits are equal; only where a sum or product is NaN, any NaN will do.
  """
  wanted = expect(case) if expected is None else expected
  same_kind(case.name, output, wanted)
  same = bits(output) == bits(wanted)
  if case.reduction in ("add", "mul") and case.dtype in FLOATING:
    same |= np.isnan(output.astype(np.float64)) & np.isnan(wanted.astype(np.float64))
  assert same.all(), (
    f"{case.name}: {int((~same).sum())} of {same.size} elements differ, the first at "
    f"{[int(i) for i in np.argwhere(~same)[0]]}: {output[~same][0]} instead of {wanted[~same][0]}"
  )


def check_any_order(case, output, inputs=None):
  """Compares the floating sums of a kernel that may take them in any order (deterministic = 0).

  n terms summed in any order with a unit roundoff c differ from the exact sum by at most n c sum|terms|, to first
  order. The kernel may round to the dtype after each addition, so that c is the dtype's own.
  """
  assert case.reduction == "add"
  data, indices, updates = case.inputs() if inputs is None else list(inputs)
  node = case.node()
  exact = reference(node, [data, indices, updates], wide=True)[0].astype(np.float64)
  wide_inputs = [np.abs(data.astype(np.float64)), indices, np.abs(updates.astype(np.float64))]
  magnitude = reference(node, wide_inputs)[0].astype(np.float64)
  terms = reference(node, [np.ones(data.shape), indices, np.ones(updates.shape)])[0].astype(np.float64)
  assert output.dtype == data.dtype
  assert output.shape == data.shape
  error = np.abs(output.astype(np.float64) - exact)
  allowed = (terms + 1) * UNIT_ROUNDOFF[case.dtype] * magnitude
  bad = ~(error <= allowed)
  assert not bad.any(), f"{case.name}: {int(bad.sum())} elements differ too much, the first at {np.argwhere(bad)[0]}"
  untouched = terms == 1
  assert (bits(output)[untouched] == bits(data)[untouched]).all(), f"{case.name}: an element without update changed"


# ---- values


def _bits(rng, shape, dtype):
  """Random bytes; bools are 0 and 1."""
  if dtype == np.dtype(np.bool_):
    return np.asarray(rng.random(shape) < 0.5)
  raw = rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8)
  return raw.view(dtype).reshape(shape)


def _spread(rng, shape, dtype):
  """Both signs and four orders of magnitude: a sum in another order, or rounded in between, has other bits."""
  return np.asarray(rng.standard_normal(shape) * 10.0 ** rng.integers(-2, 2, shape)).astype(dtype)


def _near_one(rng, shape, dtype):
  """Products of many stay finite."""
  return np.asarray(rng.uniform(0.8, 1.25, shape) * rng.choice([-1.0, 1.0], shape)).astype(dtype)


def _special(rng, shape, dtype):
  return np.asarray(rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 6e-8], shape)).astype(dtype)


def _zeros(rng, shape, dtype):
  return np.asarray(rng.choice([0.0, -0.0], shape)).astype(dtype)


VALUES = {"bits": _bits, "spread": _spread, "near one": _near_one, "special": _special, "zeros": _zeros}


def _mixed(rng, count, limits):
  """Any valid index, negative ones and duplicates included: [count, len(limits)]."""
  return rng.integers(-limits, limits, (count, len(limits))) if limits.size and limits.all() else _none(count, limits)


def _positive(rng, count, limits):
  return rng.integers(0, limits, (count, len(limits))) if limits.size and limits.all() else _none(count, limits)


def _unique(rng, count, limits):
  """No index twice, in any order; half of them negative."""
  total = math.prod(int(limit) for limit in limits)
  flat = rng.permutation(total)[:count]
  rows = np.array(np.unravel_index(flat, limits), np.int64).T.reshape(count, len(limits))
  return np.where(rng.random(rows.shape) < 0.5, rows, rows - limits)


def _few(rng, count, limits):
  """At most three different indices: many duplicates."""
  return _mixed(rng, 3, limits)[rng.integers(0, 3, count)]


def _one(rng, count, limits):
  """The same index every time, now counted from the front and now from the end."""
  front = np.broadcast_to(rng.integers(0, limits), (count, len(limits)))
  return np.where(rng.random((count, 1)) < 0.5, front, front - limits)


def _ends(rng, count, limits):
  """The first and the last valid index, written in both ways."""
  return rng.choice(np.array([0, 1, 2, 3]), (count, len(limits))).choose(
    [np.zeros_like(limits), limits - 1, -limits, -np.ones_like(limits)]
  )


def _none(count, limits):
  return np.zeros((count, len(limits)), np.int64)


INDICES = {"mixed": _mixed, "positive": _positive, "unique": _unique, "few": _few, "one": _one, "ends": _ends}


# ---- cases


def nd(name, data, indices, dtype="float", kind="mixed", values="bits", **given):
  """A ScatterND; updates have the shape that follows."""
  updates = (*indices[:-1], *data[indices[-1] :])
  return Case(f"nd {name}, {dtype}", "ScatterND", dtype, (data, indices, updates), kind, tuple(given.items()), values)


def elements(
  name, data, updates, dtype="float", kind="mixed", values="bits", indices=None, index_dtype="int64", **given
):
  """A ScatterElements; indices have updates' shape unless they broadcast to it."""
  shapes = (data, updates if indices is None else indices, updates)
  return Case(
    f"elements {name}, {dtype}", "ScatterElements", dtype, shapes, kind, tuple(given.items()), values, index_dtype
  )


def window(name, data, updates, starts, dtype="float", scalar=False, **given):
  """An UpdateSlice; `scalar`: its only start has no dimension."""
  shapes = (data, updates, () if scalar else (len(starts),))
  return Case(f"slice {name}, {dtype}", "UpdateSlice", dtype, shapes, starts, tuple(given.items()))


def _nd_cases():
  rows = [
    # name, data, indices, kind of indices
    ("one row", (10, 7, 5), (1, 1), "mixed"),
    ("one element", (256,), (1, 1), "mixed"),
    ("three elements", (1024,), (3, 1), "mixed"),
    ("four elements alike", (24,), (4, 1), "one"),
    ("five elements alike", (24,), (5, 1), "one"),
    ("elements of few", (1000,), (60, 1), "few"),
    ("one of one", (1,), (1, 1), "mixed"),
    ("rows", (100, 33), (7, 1), "mixed"),
    ("rows, unique", (100, 33), (49, 1), "unique"),
    ("every row", (64, 5), (64, 1), "unique"),
    ("rows all alike", (50, 17), (23, 1), "one"),
    ("rows with duplicates", (1000, 3), (64, 1), "few"),
    ("many rows", (37, 129), (300, 1), "mixed"),
    ("both ends", (9, 8, 3), (40, 2), "ends"),
    ("elements", (13, 11), (29, 2), "mixed"),
    ("elements of four axes", (5, 3, 7, 2), (50, 4), "mixed"),
    ("two of four axes", (5, 3, 7, 9), (20, 2), "few"),
    ("indices of rank 3", (6, 5, 4), (2, 3, 2), "mixed"),
    ("indices of rank 5", (6, 5), (2, 1, 3, 1, 1), "mixed"),
    ("a single tuple", (4, 3, 2), (2,), "mixed"),
    ("updates of no dimension", (4, 3), (2,), "mixed"),
    ("no updates", (4, 3), (0, 1), "positive"),
    ("no updates of rank 3", (4, 3), (2, 0, 1), "positive"),
    ("no data", (0, 3), (0, 1), "positive"),
    ("slices of nothing", (4, 0), (3, 1), "positive"),
    ("slices of nothing in a row", (4, 2, 0, 3), (3, 2), "mixed"),
    ("one large slice", (1, 3, 1023, 17), (1, 1), "mixed"),
    ("wide slices, duplicates", (4, 70001), (3, 1), "few"),
    ("wide slices all alike", (2, 40000), (5, 1), "one"),
    ("odd width", (257, 1023), (65, 1), "unique"),
    ("a thousand elements", (3001,), (1000, 1), "mixed"),
    ("a thousand of few", (3001,), (1000, 1), "few"),
    ("more updates than elements", (100,), (5000, 1), "mixed"),
    ("more than a block's worth", (5003,), (20011, 1), "mixed"),
    ("large, unique", (70001,), (30011, 1), "unique"),
  ]
  cases = [nd(name, data, indices, dtype, kind) for name, data, indices, kind in rows for dtype in ("float16", "float")]
  for dtype in ONNX_DTYPES:
    cases.append(nd("every dtype", (19, 7, 3), (31, 2), dtype))
    cases.append(nd("every dtype, slices", (19, 2, 17), (9, 1), dtype))
  return cases


def _elements_cases():
  rows = [
    # name, data, updates, axis
    ("one", (10,), (1,), 0),
    ("a line", (50,), (20,), 0),
    ("a line, from the end", (50,), (20,), -1),
    ("axis 0", (5, 7), (9, 7), 0),
    ("axis 1", (5, 7), (5, 9), 1),
    ("axis -1", (5, 7), (3, 4), -1),
    ("axis -2", (5, 7), (3, 4), -2),
    ("updates in a corner", (9, 8, 7), (2, 3, 4), 1),
    ("a middle axis", (6, 33, 17), (6, 65, 17), 1),
    ("four axes", (3, 5, 7, 9), (3, 4, 7, 9), 1),
    ("four axes, the last", (3, 5, 7, 9), (2, 5, 6, 31), 3),
    ("six axes", (2, 3, 1, 2, 5, 3), (2, 2, 1, 2, 7, 3), -2),
    ("no updates", (5, 7), (0, 7), 0),
    ("no updates beside", (5, 7), (5, 0), 0),
    ("no data", (0, 7), (0, 7), 0),
    ("no data beside", (5, 0), (5, 0), 0),
    ("a thousand", (3001,), (1000,), 0),
    ("more updates than elements", (11,), (5000,), 0),
    ("many", (70001,), (30011,), 0),
    ("many columns", (17, 1023), (29, 1023), 0),
  ]
  cases = [
    elements(name, data, updates, dtype, axis=axis)
    for name, data, updates, axis in rows
    for dtype in ("float16", "float")
  ]
  for kind in ("unique", "few", "one", "ends", "positive"):
    cases.append(elements(f"{kind} indices", (23, 9), (19, 9), "float", kind))
  broadcast = [
    # name, data, updates, indices, axis
    ("one index for a row", (10, 33), (4, 33), (4, 1), 0),
    ("one index for all", (10, 33), (1, 33), (1, 1), 0),
    ("one index for all, and duplicates", (10, 33), (7, 33), (1, 1), 0),
    ("one index for a column", (10, 33), (10, 5), (1, 5), 1),
    ("one index for a plane", (5, 6, 7), (5, 3, 7), (1, 3, 1), 1),
    ("a plane of indices", (5, 6, 7), (5, 3, 7), (5, 3, 1), 1),
    ("indices broadcast to nothing", (5, 6, 7), (5, 0, 7), (1, 0, 1), 1),
    ("many rows by one index each", (300, 129), (100, 129), (100, 1), 0),
    ("a last axis", (3, 4, 50), (3, 4, 20), (1, 1, 20), -1),
  ]
  for name, data, updates, indices, axis in broadcast:
    for dtype in ("bfloat16", "double"):
      cases.append(elements(name, data, updates, dtype, indices=indices, axis=axis))
  for index_dtype in ("int32", "int64"):
    cases.append(elements(f"{index_dtype} indices", (9, 31), (5, 31), "float", index_dtype=index_dtype))
    wide = elements(f"{index_dtype} indices, broadcast", (9, 31), (5, 31), "int8", indices=(5, 1))
    cases.append(replace(wide, index_dtype=index_dtype))
  for dtype in ONNX_DTYPES:
    cases.append(elements("every dtype", (19, 7), (31, 5), dtype))
    cases.append(elements("every dtype, axis 1", (19, 7), (11, 30), dtype, axis=1))
  return cases


def _reduction_cases():
  cases = []
  for reduction, dtype in itertools.product(("add", "mul", "min", "max"), ARITHMETIC):
    values = {"add": "spread", "mul": "near one"}.get(reduction, "spread") if dtype in FLOATING else "bits"
    cases += [
      nd(f"{reduction} of few", (31, 5), (200, 1), dtype, "few", values, reduction=reduction),
      elements(f"{reduction}, axis 1", (7, 23), (7, 100), dtype, "mixed", values, axis=1, reduction=reduction),
    ]
  for reduction, dtype in itertools.product(("add", "mul", "min", "max"), FLOATING):
    cases += [
      nd(f"{reduction} of special numbers", (17,), (300, 1), dtype, "mixed", "special", reduction=reduction),
      nd(f"{reduction} of zeros", (64,), (99, 1), dtype, "mixed", "zeros", reduction=reduction),
    ]
  for reduction in ("add", "max"):
    for dtype in ("float16", "float"):
      for what, given in _reduction_shapes(dtype, reduction):
        cases.append(replace(given, name=f"{what}, {given.name}"))
  return cases


def _reduction_shapes(dtype, reduction):
  r = {"values": "spread", "reduction": reduction}
  return [
    ("wide", nd(f"{reduction}", (4, 70001), (3, 1), dtype, "few", **r)),
    ("one target", nd(f"{reduction}", (3,), (5000, 1), dtype, "one", **r)),
    ("one row", nd(f"{reduction}", (3, 257), (300, 1), dtype, "one", **r)),
    ("many", nd(f"{reduction}", (5003,), (20011, 1), dtype, "mixed", **r)),
    ("unique", nd(f"{reduction}", (70001,), (30011, 1), dtype, "unique", **r)),
    ("unique, said so", nd(f"{reduction} vouched", (301, 7), (49, 1), dtype, "unique", **r, unique=1)),
    ("no updates", nd(f"{reduction} of none", (5, 3), (0, 1), dtype, "positive", **r)),
    ("no data", nd(f"{reduction} of nothing", (4, 0), (3, 1), dtype, "positive", **r)),
    ("a single tuple", nd(f"{reduction} once", (5, 33), (2,), dtype, **r)),
    ("broadcast", elements(f"{reduction}", (10, 33), (70, 33), dtype, indices=(70, 1), axis=0, **r)),
    ("one index", elements(f"{reduction} one index", (10, 33), (70, 33), dtype, indices=(1, 1), axis=0, **r)),
    ("columns", elements(f"{reduction} columns", (17, 1023), (29, 1023), dtype, axis=0, **r)),
    ("int32", elements(f"{reduction} int32", (17, 5), (29, 5), dtype, axis=0, index_dtype="int32", **r)),
  ]


def _slice_cases():
  cases = []
  for dtype in ("float16", "float"):
    cases += [
      window("at the front", (10, 7), (3, 7), (0,), dtype, axes=[0]),
      window("in the middle", (10, 7), (3, 7), (4,), dtype, axes=[0]),
      window("at the end, from the end", (10, 7), (3, 7), (-3,), dtype, axes=[0]),
      window("by a scalar", (10, 7), (3, 7), (4,), dtype, scalar=True, axes=[0]),
      window("one row of many", (10, 7, 5), (1, 7, 5), (9,), dtype, axes=[0]),
      window("a cache", (2, 3, 40, 16), (2, 3, 1, 16), (17,), dtype, axes=[2]),
      window("columns", (13, 31), (13, 5), (7,), dtype, axes=[1]),
      window("every third", (40, 5), (9, 5), (2,), dtype, axes=[0], steps=[3]),
      window("backwards", (10, 7), (10, 7), (-1,), dtype, axes=[0], steps=[-1]),
      window("every second backwards", (10, 7), (4, 7), (8,), dtype, axes=[0], steps=[-2]),
      window("columns backwards", (5, 31), (5, 31), (30,), dtype, axes=[1], steps=[-1]),
      window("a box", (9, 8, 7), (2, 8, 3), (4, -4), dtype, axes=[0, 2]),
      window("axes in any order", (9, 8, 7), (2, 4, 3), (0, 5, 3), dtype, axes=[2, 0, 1], steps=[2, 2, -1]),
      window("all of it", (5, 3), (5, 3), (0, 0), dtype, axes=[0, 1]),
      window("one element", (5, 3, 2), (1, 1, 1), (3, -1, 0), dtype, axes=[0, 1, 2]),
      window("one number for all", (6, 33), (2, 1), (3,), dtype, axes=[0]),
      window("a row for all", (6, 5, 33), (2, 1, 33), (3,), dtype, axes=[0]),
      window("a column for all", (6, 5, 33), (1, 5, 4), (8,), dtype, axes=[2]),
      window("one number for a box", (6, 5, 33), (2, 1, 4), (3, 8), dtype, axes=[0, 2], steps=[1, 5]),
      window("nothing", (6, 5), (0, 5), (3,), dtype, axes=[0]),
      window("nothing, beyond the end", (6, 5), (0, 5), (17,), dtype, axes=[0]),
      window("no data", (6, 0), (2, 0), (3,), dtype, axes=[0]),
      window("no data on the axis", (0, 6), (0, 6), (3,), dtype, axes=[0]),
      window("no data, one for all", (6, 0), (2, 1), (3,), dtype, axes=[0]),
      window("a line", (1023,), (517,), (101,), dtype, axes=[0]),
      window("a line with gaps", (1023,), (100,), (-1023,), dtype, axes=[0], steps=[10]),
      window("a large slab", (7, 70001), (3, 70001), (2,), dtype, axes=[0]),
      window("large columns", (501, 1023), (501, 257), (-500,), dtype, axes=[1]),
      window("six axes", (2, 3, 4, 2, 3, 5), (2, 3, 2, 2, 1, 5), (1, -1), dtype, axes=[2, 4]),
    ]
  for dtype in ONNX_DTYPES:
    cases.append(window("every dtype", (19, 7), (5, 7), (9,), dtype, axes=[0]))
    cases.append(window("every dtype, gaps", (19, 17), (19, 4), (-2,), dtype, axes=[1], steps=[-3]))
  return cases


CASES = (*_nd_cases(), *_elements_cases(), *_reduction_cases(), *_slice_cases())

by_name = named(CASES)
for _case in CASES:
  assert find(DOMAIN, _case.op) is not None
  attributes_of(_case.node())
