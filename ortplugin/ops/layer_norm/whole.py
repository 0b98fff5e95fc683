"""A FusedLayerNorm as standard ONNX with LayerNormalization in it, for which ONNX Runtime has a kernel on the CPU."""

from collections.abc import Collection
from dataclasses import replace

import onnx

from ...program import Program, Statement
from ..decompose import Builder, to_onnx
from . import program_of


def with_layer_normalization(node: onnx.NodeProto, opset: int, vectors: Collection[str]) -> list[onnx.NodeProto] | None:
  """Nodes that do the same; None unless it is in float, over the last axis, scaled and shifted by two of `vectors`.

  `vectors`: the inputs that are known to have one dimension, of more than one element.
  """
  program = program_of(node)
  core, inputs = program.core, dict(zip((each.name for each in program.parameters), node.input, strict=True))
  if core is None or core.op != "LayerNormalization" or core.number("axis") != -1 or len(node.attribute) > 1:
    return None
  if core.attribute("axes") or core.number("groups") or set(program.dtypes.values()) != {"float"}:
    return None
  known = {name for name, value in inputs.items() if value in vectors}
  scaled = _applied(program, core.name, "Mul", known)
  shifted = None if scaled is None else _applied(program, scaled[0], "Add", known - {scaled[1]})
  if scaled is None or shifted is None:
    return None
  gamma, beta = inputs.pop(scaled[1]), inputs.pop(shifted[1])
  gone = {core.name: None, scaled[0]: None, shifted[0]: replace(core, name=shifted[0])}
  statements = [gone.get(each.name, each) for each in program.statements]
  parameters = tuple(each for each in program.parameters if each.name in inputs)
  rest = Program(parameters, program.results, tuple(each for each in statements if each is not None))
  attributes = {"axis": -1, "epsilon": core.number("epsilon")}

  def normalise(builder: Builder, _: Statement, __: str, x: str, y: str) -> None:
    builder.op("LayerNormalization", x, gamma, beta, output=y, **attributes)

  return to_onnx(rest, list(inputs.values()), node.output, opset, f"{node.output[0]}/unfused", normalise)


def _applied(program: Program, value: str, op: str, parameters: Collection[str]) -> tuple[str, str] | None:
  """What alone is made of a value, by this operator and one of the parameters, which nothing else reads."""
  users = [each for each in program.statements if value in each.names]
  if len(users) != 1 or users[0].op != op or any(each.name == value for each in program.results):
    return None
  others = [name for name in users[0].names if name != value]
  if len(others) != 1 or others[0] not in parameters or sum(others[0] in s.names for s in program.statements) > 1:
    return None
  return users[0].name, others[0]
