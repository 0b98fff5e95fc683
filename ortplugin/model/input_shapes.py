"""Fixing the shapes of a model's inputs, and shape inference that does not copy the weights."""

import math
from collections.abc import Mapping, Sequence

from onnx import ModelProto, ValueInfoProto

from ..errors import UsageError, near_names, one_line
from ..graph import walk_graphs
from ..graph.inference import infer_shapes as bounded_inference
from .checks import MAX_ELEMENTS, skeleton

Shapes = Mapping[str, Sequence[int]]


def fix_input_shapes(model: ModelProto, shapes: Shapes) -> None:
  """Gives inputs of `model` fixed shapes, in place, and infers the shapes that follow.

  A symbolic dimension that gets a size gets it everywhere in the model. Raises UsageError when an input is unknown,
  its rank or a fixed dimension differs, or one symbol would get two sizes.

  Args:
      model: changed in place.
      shapes: input name to shape, each size positive or 0.
  """
  initializers = {tensor.name for tensor in model.graph.initializer}
  inputs = {value.name: value for value in model.graph.input if value.name not in initializers}
  symbols: dict[str, tuple[int, str]] = {}
  for name, shape in shapes.items():
    if name not in inputs:
      raise UsageError(f"the model has no input '{name}'{near_names(name, inputs)}")
    _fix(inputs[name], shape, symbols)
  _replace_symbols(model, {symbol: size for symbol, (size, _) in symbols.items()})
  infer_shapes(model)


def _fix(value: ValueInfoProto, shape: Sequence[int], symbols: dict[str, tuple[int, str]]) -> None:
  if value.type.WhichOneof("value") != "tensor_type":
    raise UsageError(f"input '{value.name}' is not a tensor, so it has no shape to fix")
  sizes = list(shape)
  if any(size < 0 for size in sizes):
    raise UsageError(f"the shape {sizes} for input '{value.name}' has a negative size; give sizes of 0 or more")
  if math.prod(max(size, 1) for size in sizes) > MAX_ELEMENTS:
    raise UsageError(f"the shape {sizes} for input '{value.name}' overflows 63 bits; give smaller sizes")
  tensor = value.type.tensor_type
  if tensor.HasField("shape") and len(tensor.shape.dim) != len(sizes):
    wanted = [dim.dim_param or (dim.dim_value if dim.HasField("dim_value") else "?") for dim in tensor.shape.dim]
    raise UsageError(f"input '{value.name}' has {len(wanted)} dimensions {wanted}, the given shape is {sizes}")
  if not tensor.HasField("shape"):
    tensor.shape.SetInParent()
    for _ in sizes:
      tensor.shape.dim.add()
  for index, (dim, size) in enumerate(zip(tensor.shape.dim, sizes, strict=True)):
    if dim.HasField("dim_value") and dim.dim_value != size:
      raise UsageError(
        f"dimension {index} of input '{value.name}' is {dim.dim_value} in the model, the given shape {sizes} "
        f"says {size}; only dynamic dimensions can be fixed"
      )
    if dim.dim_param:
      known, where = symbols.setdefault(dim.dim_param, (size, value.name))
      if known != size:
        raise UsageError(
          f"the dimension '{dim.dim_param}' would be {known} by input '{where}' and {size} by "
          f"input '{value.name}'; give both the same size"
        )
    dim.dim_value = size


def _replace_symbols(model: ModelProto, sizes: Mapping[str, int]) -> None:
  for graph in walk_graphs(model.graph):
    for value in [*graph.input, *graph.output, *graph.value_info]:
      if value.type.WhichOneof("value") == "tensor_type":
        for dim in value.type.tensor_type.shape.dim:
          if dim.dim_param in sizes:
            dim.dim_value = sizes[dim.dim_param]


def infer_shapes(model: ModelProto) -> None:
  """Adds the shapes that ONNX's inference finds to the graph's value_info and outputs, in place.

  Values of operators that onnx does not know stay without a shape. Bodies of If, Loop and Scan are left as they are.
  """
  try:
    inferred = bounded_inference(skeleton(model))
  except Exception as error:  # onnx raises several classes here
    raise UsageError(f"the given input shapes do not fit the model: {one_line(error)}") from error
  known = {value.name: value for value in model.graph.value_info}
  for value in inferred.graph.value_info:
    if value.name in known:
      known[value.name].CopyFrom(value)
    else:
      model.graph.value_info.add().CopyFrom(value)
  for value, found in zip(model.graph.output, inferred.graph.output, strict=True):
    value.CopyFrom(found)
