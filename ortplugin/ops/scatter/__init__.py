"""Scatter: some elements of a tensor replaced, or combined with others. Three operators with data's dtype and shape.

    ScatterND(data, indices, updates)          ONNX's: out[indices[i, .., :]] = fold(.., updates[i, .., ...])
    ScatterElements(data, indices, updates)    ONNX's: out[i, .., indices[i, j], .., k] = fold(.., updates[i, j, k])
    UpdateSlice(data, updates, starts)         out[.., start : start + step * n : step, ..] = updates, n elements of it

docs/operators.md has the meaning in full; reference.py the formula.
Errors: attributes, dtypes and shapes other than there; on the CPU an index out of range.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import AttributeProto

from ...arrays import Array
from ...errors import ModelError
from ...graph import TensorType
from .. import node_attributes as nodes
from ..base import Operator
from ..decompose import MINIMUM_OPSET, Builder
from . import reference as formulas

REDUCTIONS = ("none", "add", "mul", "min", "max")
ALGORITHMS = ("auto", "sequential", "parallel", "sorting")

_HALVES = (np.float16, ml_dtypes.bfloat16)
_INTEGERS = (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)
_FLOAT8 = (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2, ml_dtypes.float8_e5m2fnuz)
ARITHMETIC: tuple[np.dtype[np.generic], ...] = tuple(map(np.dtype, (*_HALVES, np.float32, np.float64, *_INTEGERS)))
"""The dtypes that have reductions."""
DTYPES = (*ARITHMETIC, *map(np.dtype, (np.bool_, np.complex64, np.complex128, *_FLOAT8)))
"""The dtypes of data and updates."""

_SCATTER: dict[str, int] = {
  "reduction": AttributeProto.STRING,
  "algorithm": AttributeProto.STRING,
  "unique": AttributeProto.INT,
  "deterministic": AttributeProto.INT,
}
_ATTRIBUTES: dict[str, dict[str, int]] = {
  "ScatterND": _SCATTER,
  "ScatterElements": {**_SCATTER, "axis": AttributeProto.INT},
  "UpdateSlice": {"axes": AttributeProto.INTS, "steps": AttributeProto.INTS},
}
_INPUTS = {
  "ScatterND": ("data", "indices", "updates"),
  "ScatterElements": ("data", "indices", "updates"),
  "UpdateSlice": ("data", "updates", "starts"),
}


@dataclass(frozen=True)
class Scatter:
  """A node's attributes, checked and complete."""

  reduction: str = "none"
  algorithm: str = "auto"
  unique: bool = False
  deterministic: bool = True
  axis: int = 0
  axes: tuple[int, ...] = ()
  steps: tuple[int, ...] = ()


def attributes_of(node: onnx.NodeProto) -> Scatter:
  """The attributes of a scatter node. Raises ModelError that names the node where they or its inputs are wrong."""
  where = nodes.where_is(node)
  names = _INPUTS[node.op_type]
  if len(node.input) != len(names) or not all(node.input) or len(node.output) != 1:
    raise ModelError(
      f"{where}: it has {len(node.input)} inputs and {len(node.output)} outputs, but needs the inputs "
      f"{', '.join(names)} and one output"
    )
  given = nodes.read(node, _ATTRIBUTES[node.op_type])
  for name, words in (("reduction", REDUCTIONS), ("algorithm", ALGORITHMS)):
    nodes.check_word(where, given, name, words)
  given |= {name: nodes.check_flag(where, given, name) for name in ("unique", "deterministic") if name in given}
  if node.op_type == "UpdateSlice":
    given.setdefault("axes", ())
    given.setdefault("steps", (1,) * len(given["axes"]))
    _check_slice(where, given["axes"], given["steps"])
  return Scatter(**given)


def _check_slice(where: str, axes: tuple[int, ...], steps: tuple[int, ...]) -> None:
  if not axes:
    raise ModelError(f"{where}: the attribute 'axes' is missing or empty")
  if min(axes) < 0 or len(set(axes)) != len(axes):
    raise ModelError(f"{where}: axes are {list(axes)}, but must be distinct and counted from the front")
  if len(steps) != len(axes) or 0 in steps:
    raise ModelError(f"{where}: steps are {list(steps)}, but must be {len(axes)} numbers other than 0")


def infer_shapes(node: onnx.NodeProto, inputs: Sequence[TensorType]) -> list[TensorType]:
  """The output has data's dtype and shape. Raises ModelError where dtypes or ranks are known not to fit."""
  scatter = attributes_of(node)
  where = nodes.where_is(node)
  given = dict(zip(_INPUTS[node.op_type], inputs, strict=True))
  data, updates = given["data"], given["updates"]
  dtype = updates.dtype if data.dtype is None else data.dtype
  if dtype is not None and dtype not in DTYPES:
    raise ModelError(f"{where}: data is {dtype}, which the operator lacks; leave it to ai.onnx's {node.op_type}")
  if updates.dtype not in (None, dtype):
    raise ModelError(f"{where}: data is {dtype}, but updates are {updates.dtype}; cast one of them")
  if scatter.reduction != "none" and dtype is not None and dtype not in ARITHMETIC:
    raise ModelError(f"{where}: {dtype} has no reduction '{scatter.reduction}'; cast data and updates")
  name = "starts" if "starts" in given else "indices"
  integers = ("int64", "int32") if node.op_type == "ScatterElements" else ("int64",)
  if given[name].dtype is not None and str(given[name].dtype) not in integers:
    raise ModelError(f"{where}: {name} are {given[name].dtype}, but must be {' or '.join(integers)}; cast them")
  rank = None if data.shape is None else len(data.shape)
  if rank == 0:
    raise ModelError(f"{where}: data is a scalar, but must have an axis; reshape it to [1]")
  if rank is not None and node.op_type == "ScatterElements" and not -rank <= scatter.axis < rank:
    raise ModelError(f"{where}: axis {scatter.axis} is out of range for data of rank {rank}")
  if rank is not None and max(scatter.axes, default=-1) >= rank:
    raise ModelError(f"{where}: axes are {list(scatter.axes)}, but data has rank {rank}")
  return [TensorType(dtype, data.shape)]


def decompose(node: onnx.NodeProto, opset: int) -> list[onnx.NodeProto]:
  """The node as standard ONNX.

  Standard scatters leave it open which of several updates of one element stays; ONNX Runtime's CPU provider takes
  the last one. Raises ModelError below opset 11 (of ScatterElements without a reduction, 9), and for a reduction that
  the opset lacks.
  """
  scatter = attributes_of(node)
  # Scatter is what ScatterElements was called in opsets 9 and 10.
  renamed = node.op_type == "ScatterElements" and scatter.reduction == "none" and opset in (9, 10)
  builder = Builder(MINIMUM_OPSET if renamed else opset, f"{node.output[0]}/unfused")
  if node.op_type == "UpdateSlice":
    _slice_to_onnx(builder, node, scatter)
    return builder.nodes
  needed = {"none": 11, "add": 16, "mul": 16, "min": 18, "max": 18}[scatter.reduction]
  if opset < needed and not renamed:
    raise ModelError(
      f"{nodes.where_is(node)}: reduction '{scatter.reduction}' needs opset {needed} or later of "
      f"ai.onnx, the model has {opset}; convert it with onnx.version_converter"
    )
  data, indices, updates = node.input
  attributes: dict[str, Any] = {} if scatter.reduction == "none" else {"reduction": scatter.reduction}
  if node.op_type == "ScatterElements":
    attributes["axis"] = scatter.axis
    indices = builder.op("Expand", indices, builder.op("Shape", updates))
  op = "Scatter" if renamed else node.op_type
  builder.op(op, data, indices, updates, output=node.output[0], **attributes)
  return builder.nodes


def _slice_to_onnx(b: Builder, node: onnx.NodeProto, scatter: Scatter) -> None:
  """UpdateSlice axis by axis: the slab of the first axis, in it that of the second, and so on; then back outwards.

  A slab goes back by Concat where the step is 1, by ScatterElements otherwise. Nothing here needs data's rank.
  """
  data, updates, starts = node.input
  axes = b.int64(scatter.axes)
  counts = b.op("Gather", b.op("Shape", updates), axes)
  # What updates broadcast to: data's shape with their own size on the axes.
  full = b.op("ScatterElements", b.op("Shape", data), axes, counts, axis=0)
  values = b.op("Expand", updates, full)
  starts = b.op("Reshape", starts, b.int64([-1]))
  from_end = b.op("Add", starts, b.op("Gather", b.op("Shape", data), axes))
  starts = b.op("Where", b.op("Less", starts, b.int64(0)), from_end, starts)
  zero, most = b.int64([0]), b.int64([1 << 62])

  slabs = [data]
  places: list[list[str]] = []  # of each axis: start and end, or its positions where the step is not 1
  for number, (axis, step) in enumerate(zip(scatter.axes, scatter.steps, strict=True)):
    at = b.int64([number])
    start, count = b.op("Gather", starts, at), b.op("Gather", counts, at)
    if step == 1:
      places.append([start, b.op("Add", start, count)])
    else:
      scalar = b.op("Reshape", count, b.int64([]))
      numbers = b.op("Range", b.int64(0), scalar, b.int64(1))
      places.append([b.op("Add", b.op("Mul", numbers, b.int64(step)), start)])
    if number + 1 == len(scatter.axes):
      break
    if step == 1:
      slabs.append(b.op("Slice", slabs[-1], *places[-1], b.int64([axis])))
    else:
      slabs.append(b.op("Gather", slabs[-1], *places[-1], axis=axis))
  for number in reversed(range(len(scatter.axes))):
    axis, slab, output = scatter.axes[number], slabs[number], "" if number else node.output[0]
    if scatter.steps[number] == 1:
      on_axis = b.int64([axis])
      before = b.op("Slice", slab, zero, places[number][0], on_axis)
      after = b.op("Slice", slab, places[number][1], most, on_axis)
      values = b.op("Concat", before, values, after, output=output, axis=axis)
      continue
    # The positions stand on their axis, before dimensions of 1: [n, 1, ..] broadcasts from the right.
    behind = b.op("Slice", b.op("Shape", slab), b.int64([axis + 1]), most)
    ones = b.op("ConstantOfShape", b.op("Shape", behind), value=onnx.numpy_helper.from_array(np.ones(1, np.int64)))
    column = b.op("Reshape", places[number][0], b.op("Concat", b.int64([-1]), ones, axis=0))
    indices = b.op("Expand", column, b.op("Shape", values))
    values = b.op("ScatterElements", slab, indices, values, output=output, axis=axis)


def reference(
  node: onnx.NodeProto, inputs: Sequence[Array], wide: bool = False, skip_invalid: bool = False
) -> list[Array]:
  """The output in NumPy, the very bits of every kernel; `wide`: floating sums in float64. See reference.py."""
  scatter = attributes_of(node)
  if node.op_type == "UpdateSlice":
    data, updates, starts = inputs
    out = formulas.update_slice(data, updates, starts, scatter.axes, scatter.steps, skip_invalid)
    return [out]
  data, indices, updates = inputs
  if node.op_type == "ScatterND":
    return [formulas.scatter_nd(data, indices, updates, scatter.reduction, wide, skip_invalid)]
  return [formulas.scatter_elements(data, indices, updates, scatter.axis, scatter.reduction, wide, skip_invalid)]


def _variants(node: onnx.NodeProto) -> Sequence[Mapping[str, Any]]:
  """The other forms of the CUDA kernel; one that does not fit a node's inputs can't be measured there."""
  if node.op_type == "UpdateSlice":
    return ()
  current = attributes_of(node).algorithm
  return [{"algorithm": name} for name in ALGORITHMS if name != current]


def _operator(name: str, summary: str) -> Operator:
  run: Callable[[onnx.NodeProto, Sequence[Array]], list[Array]] = reference
  return Operator(name, summary, infer_shapes, decompose, run, variants=_variants)


SCATTER_ND = _operator("ScatterND", "slices of a tensor replaced or combined, by index tuples")
SCATTER_ELEMENTS = _operator("ScatterElements", "elements of a tensor replaced or combined, by indices on one axis")
UPDATE_SLICE = _operator("UpdateSlice", "a strided slice of a tensor replaced")
