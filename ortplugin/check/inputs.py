"""Inputs to verify a model on: generated ones that the model can digest, and the user's.

Generated inputs respect dtypes and shapes, and the meaning of integers as far as the graph shows it: what ends up as
an index into a table is kept within the table, other integers are masks of ones and zeros. A dynamic dimension gets
one small size per symbol, the same in all inputs. The same model and seed give the same inputs.
"""

from __future__ import annotations

import ast
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import AttributeProto, ModelProto, NodeProto, TypeProto, ValueInfoProto, helper, numpy_helper

from ..arrays import Array
from ..errors import UsageError, near_names, one_line
from ..graph import walk_graphs
from ..graph.messages import without_initializers
from ..model.checks import HEAVY, byte_count, skeleton
from ..model.inline import inlined
from ..model.input_shapes import Shapes
from .child import free_memory
from .open_rows import settle_open_rows

MAX_BYTES = 2**31  # of all generated inputs together
_SHARE = 0.25  # of the free memory, for the user's


@dataclass(frozen=True)
class Sizes:
  """What a dynamic dimension becomes, by what its name or place says that it counts."""

  batch: int
  sequence: int
  past: int
  image: int
  other: int


# Tried in order until the model runs; the first two that do are used, so that shapes matter less.
CANDIDATES = (
  Sizes(batch=2, sequence=16, past=3, image=64, other=4),
  Sizes(batch=1, sequence=9, past=5, image=96, other=3),
  Sizes(batch=1, sequence=16, past=16, image=224, other=1),
  Sizes(batch=1, sequence=1, past=1, image=32, other=1),
)


@dataclass(frozen=True)
class Case:
  """Inputs for one comparison, with the name under which the report shows them."""

  name: str
  feeds: dict[str, Any]


def generate(model: ModelProto, sizes: Sizes, shapes: Shapes | None = None, seed: int = 0) -> Case:
  """Inputs for every input of `model` that must be given.

  Args:
      model: may be of any size; its weights are not read.
      sizes: of the dynamic dimensions.
      shapes: input name to shape, where the caller knows better.
      seed: of the random numbers.
  """
  needed = required_inputs(model)
  for name in shapes or {}:
    if name not in {value.name for value in needed}:
      raise UsageError(f"the model has no input '{name}'{near_names(name, [value.name for value in needed])}")
  resolved, dynamic = _resolve_shapes(needed, sizes, shapes or {})
  light = _inlined(model)
  feeds: dict[str, Any] = {}
  total = 0
  for value in needed:
    rng = np.random.default_rng([seed, zlib.crc32(value.name.encode())])
    kind = value.type.WhichOneof("value")
    if kind == "optional_type":
      continue  # an optional value may be absent
    if kind not in ("tensor_type", "sequence_type"):
      raise UsageError(f"no values can be generated for input '{value.name}' of {kind}; give --inputs data.npz")
    dtype, shape = _dtype(value), resolved[value.name]
    total += int(np.prod(shape, dtype=object)) * dtype.itemsize
    if total > MAX_BYTES:
      raise UsageError(
        f"input '{value.name}' of shape {list(shape)} is too large to generate; "
        f"give a smaller shape with --input-shape {value.name}:..."
      )
    array = _values(value.name, dtype, shape, _index_range(light, value.name), rng)
    feeds[value.name] = [array, array.copy()] if kind == "sequence_type" else array
  settle_open_rows(light, feeds)
  name = "generated" + "".join(f", {symbol}={size}" for symbol, size in dynamic.items())
  return Case(name, feeds)


def without_weights(model: ModelProto) -> ModelProto:
  """A copy whose large initializers have no data: all that `generate` needs, cheap to send to another process."""
  result = without_initializers(model)
  for tensor in model.graph.initializer:
    if byte_count(tensor, f"initializer '{tensor.name}'") < HEAVY:
      result.graph.initializer.append(tensor)
    else:
      result.graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
  return result


def shifted(feeds: Mapping[str, Any]) -> dict[str, Any]:
  """The same values in another place: each array rolled by one along its first axis of several elements.

  What held for single values still does: indices are in their tables and as distinct as before.
  """

  def rolled(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
      return [rolled(each) for each in value]
    if not isinstance(value, np.ndarray):
      return value
    axis = next((axis for axis, size in enumerate(value.shape) if size > 1), None)
    return value if axis is None else np.roll(value, 1, axis)

  return {name: rolled(value) for name, value in feeds.items()}


def as_wanted(feeds: Mapping[str, Any], model: ModelProto) -> dict[str, Any]:
  """The feeds in the dtypes of the inputs of `model`, which a conversion may have changed."""
  wanted = {value.name: _dtype(value) for value in model.graph.input if value.type.HasField("tensor_type")}
  return {name: cast_floating(value, wanted.get(name)) for name, value in feeds.items()}


def cast_floating(value: Any, dtype: np.dtype[Any] | None) -> Any:
  """A floating array in another floating dtype; anything else as it is."""
  floating = isinstance(value, np.ndarray) and (value.dtype.kind == "f" or value.dtype.name == "bfloat16")
  return value.astype(dtype) if floating and dtype is not None and value.dtype != dtype else value


def required_inputs(model: ModelProto) -> list[ValueInfoProto]:
  """The graph's inputs that no initializer gives a default."""
  given = {tensor.name for tensor in model.graph.initializer}
  given |= {sparse.values.name for sparse in model.graph.sparse_initializer}
  return [value for value in model.graph.input if value.name not in given]


def _tensor_type(value: ValueInfoProto) -> TypeProto.Tensor:
  if value.type.WhichOneof("value") == "sequence_type":
    return value.type.sequence_type.elem_type.tensor_type
  return value.type.tensor_type


def _dtype(value: ValueInfoProto) -> np.dtype[Any]:
  try:
    return np.dtype(helper.tensor_dtype_to_np_dtype(_tensor_type(value).elem_type))
  except KeyError as error:
    raise UsageError(
      f"no values can be generated for input '{value.name}' of an unknown dtype; give --inputs data.npz"
    ) from error


# ---- shapes


def _resolve_shapes(
  values: list[ValueInfoProto], sizes: Sizes, shapes: Shapes
) -> tuple[dict[str, tuple[int, ...]], dict[str, int]]:
  """Each input's shape, and the size that each dynamic dimension got, by its symbol."""
  symbols: dict[str, int] = {}
  for value in values:  # what the caller says comes first, and holds for the symbol everywhere
    for dim, size in zip(_tensor_type(value).shape.dim, shapes.get(value.name, ()), strict=False):
      if dim.dim_param:
        symbols.setdefault(dim.dim_param, size)
  result: dict[str, tuple[int, ...]] = {}
  dynamic: dict[str, int] = {}
  compound: list[tuple[ValueInfoProto, int]] = []
  for value in values:
    if value.name in shapes:
      result[value.name] = tuple(shapes[value.name])
      continue
    if value.type.WhichOneof("value") not in ("tensor_type", "sequence_type"):
      continue
    if not _tensor_type(value).HasField("shape"):
      raise UsageError(f"input '{value.name}' has no shape in the model; give --input-shape {value.name}:1,...")
    for index, dim in enumerate(_tensor_type(value).shape.dim):
      if dim.dim_param and not dim.dim_param.isidentifier():
        compound.append((value, index))
      elif not dim.HasField("dim_value") or dim.dim_value < 0:
        symbol = dim.dim_param or f"{value.name}[{index}]"
        symbols.setdefault(symbol, _size(value, index, sizes))
  for value, index in compound:  # such as 'past_sequence_length + 1', once its terms are known
    text = _tensor_type(value).shape.dim[index].dim_param
    symbols.setdefault(text, _evaluate(text, symbols) or _size(value, index, sizes))
  for value in values:
    if value.name not in result and value.type.WhichOneof("value") in ("tensor_type", "sequence_type"):
      shape = []
      for index, dim in enumerate(_tensor_type(value).shape.dim):
        symbol = dim.dim_param or f"{value.name}[{index}]"
        if symbol in symbols:
          dynamic[symbol] = symbols[symbol]
        shape.append(symbols.get(symbol, dim.dim_value))
      result[value.name] = tuple(shape)
  return result, dynamic


def _size(value: ValueInfoProto, index: int, sizes: Sizes) -> int:
  """The size of a dynamic dimension, by its name if that says something, else by its place."""
  tensor = _tensor_type(value)
  name = tensor.shape.dim[index].dim_param.lower()
  rank = len(tensor.shape.dim)
  if "past" in name:
    return sizes.past
  if "batch" in name or name in ("b", "n", "bs"):
    return sizes.batch
  if any(word in name for word in ("seq", "len", "token", "time", "frame")):
    return sizes.sequence
  if any(word in name for word in ("height", "width")) or name in ("h", "w"):
    return sizes.image
  if index == 0:
    return sizes.batch
  if rank == 4 and index >= 2:
    return sizes.image
  return sizes.sequence if index == 1 and rank in (2, 3) else sizes.other


def _evaluate(text: str, symbols: Mapping[str, int]) -> int | None:
  """The value of a sum or product of symbols and integers; None if it is something else or not positive."""

  def value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
      return node.value
    if isinstance(node, ast.Name):
      return symbols[node.id]
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv)):
      left, right = value(node.left), value(node.right)
      if isinstance(node.op, ast.Add):
        return left + right
      if isinstance(node.op, ast.Sub):
        return left - right
      return left * right if isinstance(node.op, ast.Mult) else left // right
    raise ValueError

  try:
    result = value(ast.parse(text, mode="eval").body)
  except (SyntaxError, ValueError, KeyError, ZeroDivisionError, RecursionError):
    return None
  return result if result > 0 else None


# ---- values


def _values(
  name: str, dtype: np.dtype[Any], shape: tuple[int, ...], index: tuple[int, int] | None, rng: np.random.Generator
) -> Array:
  mask = "mask" in name.lower()
  if dtype.kind in "iu" and index is not None:
    return _indices(*index, shape, rng).astype(dtype)
  if dtype == np.dtype(np.uint8) and len(shape) >= 3:  # an image
    return rng.integers(0, 256, shape).astype(dtype)
  if dtype.kind in "iub" or mask:
    return _mask(shape, rng).astype(dtype)
  if dtype.kind in "OUST":
    return np.array([f"text {i}" for i in range(int(np.prod(shape)))], dtype=np.object_).reshape(shape)
  if dtype.kind == "c":
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
  return np.asarray(rng.standard_normal(shape)).astype(dtype)


def _indices(low: int, high: int, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
  """Numbers in [low, high): all distinct if there are enough of them, else along each line that is short enough.

  What scatters that meet an element twice give, ONNX leaves open, and ONNX Runtime's CUDA kernels differ from theirs
  on the CPU: such a case would say nothing about a rewrite.
  """
  span, count = max(high - low, 1), int(np.prod(shape))
  if count <= span:
    return low + rng.choice(span, count, replace=False).reshape(shape)
  diagonals = np.indices(shape, sparse=True)
  return low + rng.permutation(span)[sum(diagonals) % span]


def _mask(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
  """Ones, then zeros, along the last axis, as padding makes them; at least half are ones, so no row is empty."""
  if not shape or 0 in shape:
    return np.ones(shape)
  lengths = rng.integers((shape[-1] + 1) // 2, shape[-1] + 1, shape[:-1])
  lengths.flat[:1] = shape[-1]  # one full row
  return (np.arange(shape[-1]) < np.asarray(lengths)[..., None]).astype(np.int64)


# Inputs through which a value goes unchanged: what is an index after them was one before.
_CARRIED = {
  **dict.fromkeys(("Identity", "Cast", "CastLike", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose"), (0,)),
  **dict.fromkeys(("Expand", "Slice", "Tile", "Split", "Clip", "Pad", "Gather", "GatherND", "GatherElements"), (0,)),
  "Where": (1, 2),
}


def _index_range(model: ModelProto, name: str) -> tuple[int, int] | None:
  """The range [low, high) in which an integer input indexes every table that it reaches; None if it reaches none."""
  shapes, constants = _known(model)
  consumers = _consumers(model)
  low, high, found = 0, 2**31, False
  pending, seen = [(name, 0)], {(name, 0)}
  while pending:
    value, offset = pending.pop()  # the tensor `value` is the input plus `offset`
    for node, index in consumers.get(value, ()):
      if (length := _table_length(node, index, shapes)) is not None:
        low, high, found = max(low, -offset), min(high, length - offset), True
      for output, shift in _carried(node, index, constants):
        step = (output, offset + shift)
        if step not in seen and len(seen) < 10_000:
          seen.add(step)
          pending.append(step)
  return (low, high) if found else None


def _carried(node: NodeProto, index: int, constants: Mapping[str, int]) -> Iterator[tuple[str, int]]:
  """Outputs of `node` that hold its input number `index` plus a constant."""
  if node.op_type == "Concat" or index in _CARRIED.get(node.op_type, ()):
    for output in node.output:
      yield output, 0
  elif node.op_type in ("Add", "Sub") and len(node.input) == 2:
    other = node.input[1 - index]
    if other in constants and (node.op_type == "Add" or index == 0):
      yield node.output[0], constants[other] if node.op_type == "Add" else -constants[other]


def _table_length(node: NodeProto, index: int, shapes: Mapping[str, tuple[int, ...]]) -> int | None:
  """How many entries the table has that input number `index` of `node` indexes; None if it is no index."""
  table, axis = {
    **{(op, 1): (0, _attribute(node, "axis", 0)) for op in ("Gather", "GatherElements", "ScatterElements")},
    ("GatherND", 1): (0, 0),
    ("ScatterND", 1): (0, 0),
    ("EmbedLayerNormalization", 0): (2, 0),
    ("EmbedLayerNormalization", 1): (4, 0),
  }.get((node.op_type, index), (None, 0))
  if table is None or table >= len(node.input):
    return None
  shape = shapes.get(node.input[table])
  if shape is None or not -len(shape) <= axis < len(shape) or shape[axis] < 1:
    return 1  # of unknown length: only the first entry is certain to be there
  return shape[axis]


def _attribute(node: NodeProto, name: str, default: int) -> int:
  return next((attribute.i for attribute in node.attribute if attribute.name == name), default)


def _inlined(model: ModelProto) -> ModelProto:
  """The model's skeleton with calls of local functions replaced by their bodies."""
  light = skeleton(model)
  if light.functions:
    try:
      return inlined(light)
    except Exception:  # then indices inside functions are not seen, and --inputs remains
      return light
  return light


def _known(model: ModelProto) -> tuple[dict[str, tuple[int, ...]], dict[str, int]]:
  """(shapes of values, -1 for a dynamic dimension; values of integer constants of one element)."""
  shapes: dict[str, tuple[int, ...]] = {}
  constants: dict[str, int] = {}
  for graph in walk_graphs(model.graph):
    for value in [*graph.value_info, *graph.input, *graph.output]:
      if value.type.tensor_type.HasField("shape"):
        dims = value.type.tensor_type.shape.dim
        shapes[value.name] = tuple(dim.dim_value if dim.HasField("dim_value") else -1 for dim in dims)
    tensors = [(tensor.name, tensor) for tensor in graph.initializer]
    for node in graph.node:
      if node.op_type == "Constant":
        tensors += [(node.output[0], a.t) for a in node.attribute if a.type == AttributeProto.TENSOR]
    for name, tensor in tensors:
      shapes[name] = tuple(tensor.dims)
      if int(np.prod(tensor.dims, dtype=object)) == 1 and np.issubdtype(
        np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type)), np.integer
      ):
        constants[name] = int(numpy_helper.to_array(tensor).item())
  return shapes, constants


def _consumers(model: ModelProto) -> dict[str, list[tuple[NodeProto, int]]]:
  """Value name to the nodes that read it, with the number of the input; bodies read outer values by name."""
  result: dict[str, list[tuple[NodeProto, int]]] = {}
  for graph in walk_graphs(model.graph):
    for node in graph.node:
      for index, name in enumerate(node.input):
        if name:
          result.setdefault(name, []).append((node, index))
  return result


# ---- the user's inputs


def load_inputs(source: Mapping[str, Any] | str | os.PathLike[str], model: ModelProto) -> Case:
  """The user's arrays, from a mapping or an .npz file, checked against the model's inputs."""
  if isinstance(source, Mapping):
    return _checked("given inputs", dict(source), model)
  path = Path(source)
  if path.exists() and not path.is_file():
    raise UsageError(f"'{path}' is no regular file; give --inputs an .npz file")
  try:
    if zipfile.is_zipfile(path):  # a small one may hold much
      with zipfile.ZipFile(path) as members:
        size = sum(member.file_size for member in members.infolist())
      if size > free_memory() * _SHARE:
        raise UsageError(f"'{path}' holds {size / 1e9:.1f} GB of arrays, too much for this machine's memory")
    archive = np.load(path, allow_pickle=False)
    if isinstance(archive, np.ndarray):
      raise UsageError(f"'{path}' holds one array without a name; save it with numpy.savez(path, name=array)")
    with archive:
      arrays = {name: archive[name] for name in archive.files}
  except FileNotFoundError as error:
    raise UsageError(f"'{path}' does not exist; check the path given to --inputs") from error
  except (OSError, ValueError, EOFError, zipfile.BadZipFile, MemoryError) as error:
    raise UsageError(
      f"'{path}' can't be read as .npz ({one_line(error)}); write it with numpy.savez, without Python objects"
    ) from error
  return _checked(str(path), arrays, model)


def _checked(name: str, arrays: dict[str, Any], model: ModelProto) -> Case:
  needed = {value.name: value for value in required_inputs(model)}
  overridable = {value.name: value for value in model.graph.input}
  for key in arrays:
    if key not in overridable:
      raise UsageError(f"{name}: the model has no input '{key}'{near_names(key, needed)}")
  for key, value in needed.items():
    kind = value.type.WhichOneof("value")
    if key not in arrays and kind != "optional_type":
      raise UsageError(f"{name}: the input '{key}' is missing; the model needs {', '.join(needed)}")
    if kind == "tensor_type":
      arrays[key] = _check_array(name, value, np.asarray(arrays[key]))
  return Case(name, arrays)


def _check_array(source: str, value: ValueInfoProto, array: Array) -> Array:
  wanted = _dtype(value)
  if array.dtype != wanted and array.dtype.kind == "V" and array.itemsize == wanted.itemsize:
    array = array.view(wanted)  # .npz keeps the bytes of bfloat16 and float8, but not their names
  if array.dtype != wanted and not (wanted.kind == "O" and array.dtype.kind in "OUST"):
    raise UsageError(f"{source}: input '{value.name}' is {array.dtype}, the model wants {wanted}")
  if value.type.tensor_type.HasField("shape"):
    dims = value.type.tensor_type.shape.dim
    fits = len(dims) == array.ndim and all(
      not dim.HasField("dim_value") or dim.dim_value == size for dim, size in zip(dims, array.shape, strict=True)
    )
    if not fits:
      shape = [dim.dim_param or (dim.dim_value if dim.HasField("dim_value") else "?") for dim in dims]
      raise UsageError(f"{source}: input '{value.name}' has the shape {list(array.shape)}, the model wants {shape}")
  return array
