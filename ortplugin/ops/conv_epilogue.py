"""What convolutions and transposed convolutions share around their core: the program, its checks, its decomposition."""

from collections.abc import Callable, Collection, Sequence

import onnx

from ..errors import ModelError
from ..graph import Shape, TensorType, show
from ..graph.conv_geometry import ConvAttributes
from ..program import FLOATING, NUMPY_DTYPES, Program
from .decompose import Builder, to_onnx
from .node_attributes import where_is
from .node_program import read_program

BFLOAT16_OPSET = 22  # from which Conv and ConvTranspose take it


def read_epilogue(node: onnx.NodeProto, own_inputs: int = 2) -> Program:
  """The node's program, whose first parameter is what the operator makes of its first `own_inputs` inputs.

  Raises ModelError that names the node.
  """
  program = read_program(node, own_inputs)
  where = where_is(node)
  if program.core is not None:
    raise ModelError(f"{where}: the program holds a {program.core.op}; it must be pointwise")
  if program.parameters[0].dtype not in FLOATING:
    raise ModelError(
      f"{where}: the program's first parameter is {program.parameters[0].dtype}; it must be of a floating dtype"
    )
  return program


def check_attributes(node: onnx.NodeProto) -> None:
  """Checks `allow_tf32` and `algorithm`. Raises ModelError that names the node."""
  for each in node.attribute:
    if each.name == "allow_tf32" and (each.type != onnx.AttributeProto.INT or each.i not in (0, 1)):
      raise ModelError(f"{where_is(node)}: allow_tf32 must be 0 or 1")
    if each.name == "algorithm" and each.type != onnx.AttributeProto.STRING:
      raise ModelError(f'{where_is(node)}: algorithm must be a string, such as "auto"')


def infer_results(
  node: onnx.NodeProto,
  program: Program,
  inputs: Sequence[TensorType],
  shape_of: Callable[[Shape | None, Shape | None], Shape | None],
) -> list[TensorType]:
  """The outputs' types; `shape_of` gives S of the shapes of X and W.

  Raises ModelError where X or W has another dtype than the program says, or an operand surely does not broadcast.
  """
  where = where_is(node)
  dtypes = [program.parameters[0].dtype] * 2 + [each.dtype for each in program.parameters[1:]]
  for index, (tensor, dtype) in enumerate(zip(inputs, dtypes, strict=True)):
    if tensor.dtype not in (None, NUMPY_DTYPES[dtype]):
      raise ModelError(f"{where}: input {index} is {tensor.dtype}, the program declares {dtype}")
  shape = shape_of(inputs[0].shape, inputs[1].shape)
  for parameter, tensor in zip(program.parameters[1:], inputs[2:], strict=True):
    if shape is None or tensor.shape is None:
      continue
    pairs = zip(reversed(tensor.shape), reversed(shape), strict=False)
    if len(tensor.shape) > len(shape) or any(
      isinstance(dim, int) and isinstance(goal, int) and dim not in (1, goal) for dim, goal in pairs
    ):
      raise ModelError(f"{where}: '{parameter.name}' of shape {show(tensor.shape)} does not broadcast to {show(shape)}")
  return [TensorType(NUMPY_DTYPES[result.dtype], shape) for result in program.results]


def decompose_around(
  node: onnx.NodeProto, attributes: ConvAttributes, program: Program, opset: int, op: str, kept: Collection[str]
) -> list[onnx.NodeProto]:
  """Standard nodes: X and W transposed and cast as need be, `op`, all of that back, the program.

  `op`: "Conv" or "ConvTranspose", channels first, in float for bfloat16 before opset 22, which lacks it; `kept`: which
  of the node's attributes it has.
  """
  given = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute if each.name in kept}
  prefix = f"{node.output[0]}/unfused"
  builder = Builder(opset, f"{prefix}/conv")
  value, dtype = program.parameters[0], program.parameters[0].dtype
  x, w = node.input[:2]
  outputs = {each.name: output for each, output in zip(program.results, node.output, strict=True)}
  if attributes.output_layout != attributes.layout:
    outputs = {}  # turned at the end
  result = outputs.get(value.name, f"{prefix}/value")
  channels_last = attributes.layout == "NHWC"
  narrow = dtype == "bfloat16" and opset < BFLOAT16_OPSET
  if channels_last:
    assert attributes.spatial is not None  # or its attributes would have been refused
    rank = attributes.spatial + 2
    to_first, to_last = [0, rank - 1, *range(1, rank - 1)], [0, *range(2, rank), 1]
    w = builder.op("Transpose", w, perm=to_first)
    if attributes.input_layout == "NHWC":
      x = builder.op("Transpose", x, perm=to_first)
  if narrow:
    x, w = builder.cast(x, "float"), builder.cast(w, "float")
  made = f"{prefix}/convolution" if narrow or channels_last else result
  builder.op(op, x, w, output=made, **given)
  if narrow:
    made = builder.cast(made, dtype, "" if channels_last else result)
  if channels_last:
    builder.op("Transpose", made, output=result, perm=to_last)
  names = [result, *node.input[2:]]
  if attributes.output_layout == attributes.layout:
    return builder.nodes + to_onnx(program, names, node.output, opset, prefix, whole=value.name)
  last = [f"{output}/unfused/last" for output in node.output]
  nodes = builder.nodes + to_onnx(program, names, last, opset, prefix, whole=value.name)
  turns = Builder(opset, f"{prefix}/turned")
  for each, output in zip(last, node.output, strict=True):
    turns.op("Transpose", each, output=output, perm=to_first)
  return nodes + turns.nodes
