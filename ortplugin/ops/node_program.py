"""The `program` attribute of a node of a fused operator, read and checked against the node."""

import onnx

from ..errors import ModelError
from ..program import Program, parse


def read_program(node: onnx.NodeProto, own_inputs: int = 0) -> Program:
  """The node's program, with as many parameters and results as the node has inputs and outputs.

  `own_inputs`: the first so many inputs are the operator's own, which makes the program's first parameter of them.
  Raises ModelError that names the node and its operator.
  """
  where = f"node '{node.name}' ({node.op_type})"
  texts = [attribute.s for attribute in node.attribute if attribute.name == "program"]
  if len(texts) != 1:
    raise ModelError(f"{where}: the attribute 'program' is missing")
  try:
    program = parse(texts[0].decode("ascii"))
  except UnicodeDecodeError as error:
    raise ModelError(f"{where}: the program holds a character beyond ASCII") from error
  except ModelError as error:
    raise ModelError(f"{where}: {error}") from error
  if own_inputs and not program.parameters:
    raise ModelError(f"{where}: the program has no parameters; the first is the operator's own value")
  for what, given, needed in (
    ("inputs", len(node.input), len(program.parameters) + max(own_inputs - 1, 0)),
    ("outputs", len(node.output), len(program.results)),
  ):
    if given != needed:
      raise ModelError(f"{where}: {given} {what}, but its program has {needed}")
  return program
