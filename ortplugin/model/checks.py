"""What a model must satisfy before and after the passes, checked without copying its weights.

`onnx.checker` serialises the whole model, which takes seconds for one of 400 MB and fails beyond 2 GiB. So the
checks are split: `check_tensors` looks at every tensor's dtype, shape and data with Python's unbounded integers;
`check_structure` gives `onnx.checker` a *skeleton*, the model with its large initializers turned into graph inputs,
which answers the same questions about names (SSA form, order), attributes, IR version and opsets.
"""

import math
from collections.abc import Iterable, Iterator, Mapping

import onnx
import onnx.checker
import onnx.defs
from onnx import ModelProto, TensorProto, ValueInfoProto

from ..errors import ModelError, one_line
from ..graph import walk_graphs, walk_nodes
from ..graph.messages import walk_tensors, without_initializers

# Bits per element in raw_data, by ONNX dtype. Strings have no fixed size and are never raw.
BITS: dict[int, int] = {
  TensorProto.FLOAT: 32,
  TensorProto.UINT8: 8,
  TensorProto.INT8: 8,
  TensorProto.UINT16: 16,
  TensorProto.INT16: 16,
  TensorProto.INT32: 32,
  TensorProto.INT64: 64,
  TensorProto.BOOL: 8,
  TensorProto.FLOAT16: 16,
  TensorProto.DOUBLE: 64,
  TensorProto.UINT32: 32,
  TensorProto.UINT64: 64,
  TensorProto.COMPLEX64: 64,
  TensorProto.COMPLEX128: 128,
  TensorProto.BFLOAT16: 16,
  TensorProto.FLOAT8E4M3FN: 8,
  TensorProto.FLOAT8E4M3FNUZ: 8,
  TensorProto.FLOAT8E5M2: 8,
  TensorProto.FLOAT8E5M2FNUZ: 8,
}
for _name, _bits in (("FLOAT8E8M0", 8), ("UINT4", 4), ("INT4", 4), ("FLOAT4E2M1", 4), ("UINT2", 2), ("INT2", 2)):
  if _name in dict(TensorProto.DataType.items()):  # dtypes that older onnx releases do not know
    BITS[TensorProto.DataType.Value(_name)] = _bits

# The typed field that holds a dtype's values when raw_data does not.
_FIELD: dict[int, str] = {
  TensorProto.FLOAT: "float_data",
  TensorProto.COMPLEX64: "float_data",
  TensorProto.DOUBLE: "double_data",
  TensorProto.COMPLEX128: "double_data",
  TensorProto.INT64: "int64_data",
  TensorProto.UINT32: "uint64_data",
  TensorProto.UINT64: "uint64_data",
  TensorProto.STRING: "string_data",
}

MAX_ELEMENTS = 2**63 - 1
HEAVY = 1024  # bytes from which an initializer is left out of the skeleton
MIN_IR_VERSION = 3  # before it a model had no opset imports
# Of what onnx deprecates at some opset; Scatter and Upsample are refused from then on.
RUN_THOUGH_DEPRECATED = ("GroupNormalization",)
UNIMPORTED = ("ai.onnx.ml",)  # what ONNX Runtime takes its newest version of where a model imports none


def element_count(dims: Iterable[int], what: str) -> int:
  """The product of `dims`; ModelError when one is negative or the product does not fit 63 bits."""
  sizes = list(dims)
  for size in sizes:
    if size < 0:
      raise ModelError(f"{what} has the negative dimension {size} in its shape {sizes}; export the model again")
  count = math.prod(sizes)
  if count > MAX_ELEMENTS:
    raise ModelError(f"{what} has the shape {sizes}, whose product overflows 63 bits; export the model again")
  return count


def byte_count(tensor: TensorProto, what: str) -> int:
  """Bytes that the raw data of `tensor` takes by its dtype and shape; 0 for strings."""
  count = element_count(tensor.dims, what)
  if tensor.data_type == TensorProto.STRING:
    return 0
  if tensor.data_type not in BITS:
    raise ModelError(f"{what} has the unknown dtype {tensor.data_type}; upgrade onnx ({onnx.__version__})")
  return (count * BITS[tensor.data_type] + 7) // 8


def check_tensors(model: ModelProto) -> int:
  """Checks that each tensor holds exactly the data that its dtype and shape ask for; returns their bytes in all.

  A tensor whose data lie in another file is an error: `storage.load_model` has read those by then.
  """
  total = 0
  for tensor, what in walk_tensors(model):
    if tensor.data_location == TensorProto.EXTERNAL:
      raise ModelError(f"{what} lies in another file and was not loaded; pass the model's path, not the model")
    expected = byte_count(tensor, what)
    if tensor.HasField("raw_data"):
      held = len(tensor.raw_data)
      if held != expected or tensor.data_type == TensorProto.STRING:
        raise ModelError(
          f"{what} of shape {list(tensor.dims)} needs {expected} bytes and holds {held}; "
          "the file is damaged, export the model again"
        )
      total += held
    else:
      total += _check_typed_data(tensor, what)
  return total


def _check_typed_data(tensor: TensorProto, what: str) -> int:
  """Checks the length of the typed data field of `tensor`; returns the bytes that they take."""
  wanted = element_count(tensor.dims, what)
  if tensor.data_type in (TensorProto.COMPLEX64, TensorProto.COMPLEX128):
    wanted *= 2
  elif BITS.get(tensor.data_type, 8) < 8:
    wanted = (wanted * BITS[tensor.data_type] + 7) // 8
  held = len(getattr(tensor, _FIELD.get(tensor.data_type, "int32_data")))
  if held != wanted:
    raise ModelError(
      f"{what} of shape {list(tensor.dims)} needs {wanted} values and holds {held}; "
      "the file is damaged, export the model again"
    )
  return held * 8


def skeleton(model: ModelProto) -> ModelProto:
  """A copy of `model` in which each initializer of `HEAVY` bytes or more is a graph input of its dtype and shape.

  Cheap to copy, serialise, check and infer shapes on, whatever the weights weigh.
  """
  result = without_initializers(model)
  inputs = {value.name for value in model.graph.input}
  for tensor in model.graph.initializer:
    if byte_count(tensor, f"initializer '{tensor.name}'") < HEAVY:
      result.graph.initializer.append(tensor)
    elif tensor.name not in inputs:
      result.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
  return result


def check_structure(model: ModelProto) -> None:
  """Checks IR version, opset imports, names in SSA form and in order, and attributes; ModelError says what is off.

  An operator that is unknown to onnx (another domain, or one that ONNX Runtime adds to the standard domain, such as
  SimplifiedLayerNormalization) is no error: passes leave what they don't know as it is.
  """
  if not model.HasField("graph"):
    raise ModelError("it holds no graph: it is truncated or not an ONNX model")
  if model.ir_version > onnx.IR_VERSION:
    raise ModelError(
      f"its IR version {model.ir_version} is newer than {onnx.IR_VERSION}, the newest known; upgrade onnx"
    )
  if model.ir_version < MIN_IR_VERSION:
    raise ModelError(
      f"its IR version {model.ir_version} is unknown or older than {MIN_IR_VERSION}; export the model again"
    )
  if not model.opset_import:
    raise ModelError("it imports no opset: it is truncated or not an ONNX model")
  versions: dict[str, int] = {}
  for entry in model.opset_import:
    domain = "" if entry.domain == "ai.onnx" else entry.domain
    if versions.setdefault(domain, entry.version) != entry.version:
      raise ModelError(f"it imports domain '{domain}' as version {versions[domain]} and {entry.version}")
  if any(isinstance(text, bytes) for text in _texts(model)):
    raise ModelError("it holds a name that is not UTF-8: it is damaged, export it again")
  newest = onnx.defs.onnx_opset_version()
  if not 1 <= versions.get("", 1) <= newest:
    raise ModelError(f"its opset {versions['']} is not between 1 and {newest}, which the installed onnx knows")
  known_domains = {*UNIMPORTED, *versions, *(function.domain for function in model.functions)}
  for node in walk_nodes(model):
    if node.domain not in known_domains:
      remedy = "it is truncated, or export it again"
      if not node.domain:
        remedy = "ONNX Runtime takes its newest opset, whichever that is: export it again with an opset"
      raise ModelError(
        f"node '{node.name}' ({node.op_type}) is of domain '{node.domain}', which the model does not import; {remedy}"
      )
  for values, what in ((model.graph.input, "input"), (model.graph.output, "output")):
    for value in values:
      _check_type(value, what)
  light = skeleton(model)
  _complete_types(light)
  _set_unknown_apart(light, versions)
  try:
    onnx.checker.check_model(light)
  except onnx.checker.ValidationError as error:
    raise ModelError(f"it is not valid ONNX: {one_line(error)}") from error


def contradiction(model: ModelProto) -> str:
  """What onnx's strict shape inference finds wrong with a node; "" if nothing, which is no proof.

  ONNX Runtime refuses most of it when it loads the model. It is asked for only where something else went wrong, since
  exporters write models that run and yet do not pass.
  """
  from ..graph.inference import (
    infer_shapes,  # it needs this module's errors only, but graph/ is heavy to import
  )

  try:
    infer_shapes(skeleton(model), strict=True)
  except Exception as error:  # onnx raises several classes here
    return one_line(error, 300)
  return ""


def _texts(model: ModelProto) -> Iterator[str | bytes]:
  """Every name in the model. Protobuf gives one that is not UTF-8 as bytes, against its type."""
  yield from (entry.domain for entry in model.opset_import)
  for node in walk_nodes(model):
    yield from (node.op_type, node.domain, node.name, *node.input, *node.output)
    yield from (attribute.name for attribute in node.attribute)
  for graph in walk_graphs(model.graph):
    yield from (graph.name, *(tensor.name for tensor in graph.initializer))
    for value in [*graph.input, *graph.output, *graph.value_info]:
      yield value.name
      yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)
  for function in model.functions:
    yield from (function.name, function.domain, *function.input, *function.output)


_UNCHECKED = "unchecked"  # a domain that onnx does not know, so that its checker asks for no schema


def _check_type(value: ValueInfoProto, what: str) -> None:
  """An output's type may be missing, and any shape: ONNX Runtime infers them. An input's type it has to be told."""
  if (kind := value.type.WhichOneof("value")) is None and what == "input":
    raise ModelError(f"its input '{value.name}' has no type; export the model again")
  if kind == "tensor_type" and value.type.tensor_type.elem_type not in TensorProto.DataType.values()[1:]:
    number = value.type.tensor_type.elem_type
    raise ModelError(f"its {what} '{value.name}' has the unknown dtype {number}; export the model again")


def _complete_types(model: ModelProto) -> None:
  """Gives inputs and outputs the types and shapes that onnx's checker, and only it, asks for."""
  for value in (*model.graph.input, *model.graph.output):
    if value.type.WhichOneof("value") is None:
      value.type.tensor_type.elem_type = TensorProto.FLOAT
    if value.type.HasField("tensor_type"):
      value.type.tensor_type.shape.SetInParent()


def _set_unknown_apart(model: ModelProto, versions: Mapping[str, int]) -> None:
  """Moves nodes that onnx has no schema for into a domain that its checker does not look at.

  They are of the standard domain, or of a domain that the model does not import. What ONNX Runtime runs although
  onnx deprecates it is one of them.
  """
  opset = versions.get("", 1)
  known: dict[str, bool] = {}
  moved = False
  for node in walk_nodes(model):
    if node.domain in UNIMPORTED and node.domain not in versions:
      node.domain = _UNCHECKED
      moved = True
    if node.domain in ("", "ai.onnx"):
      if node.op_type not in known:
        known[node.op_type] = onnx.defs.has(node.op_type, max_inclusive_version=opset, domain="") and not (
          node.op_type in RUN_THOUGH_DEPRECATED and onnx.defs.get_schema(node.op_type, opset, "").deprecated
        )
      if not known[node.op_type]:
        node.domain = _UNCHECKED
        moved = True
  if moved:
    model.opset_import.add(domain=_UNCHECKED, version=1)
    for function in model.functions:
      function.opset_import.add(domain=_UNCHECKED, version=1)
