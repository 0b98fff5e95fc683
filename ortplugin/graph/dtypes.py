"""Dtypes that an operator's definition gives its outputs, for nodes that onnx's inference was kept from.

graph/inference.py keeps it from those that might have a rank without a bound: their dtype is known all the same.
"""

from functools import cache

import onnx
import onnx_graphsurgeon as gs


def infer_dtypes(node: gs.Node, opset: int) -> None:
  """Gives outputs of unknown dtype that of an input of the same type variable, where the node is of ai.onnx."""
  for output, inputs in zip(node.outputs, same_types(node.op, opset), strict=False):
    if output.dtype is None and not output.is_empty():
      given = (node.inputs[at] for at in inputs if at < len(node.inputs))
      output.dtype = next((each.dtype for each in given if each.dtype is not None), None)


@cache
def same_types(op: str, opset: int) -> tuple[tuple[int, ...], ...]:
  """For each output the inputs of its type variable; none for an operator that onnx does not know."""
  try:
    schema = onnx.defs.get_schema(op, max(opset, 1), "")
  except onnx.defs.SchemaError:
    return ()
  variables = {each.type_param_str for each in schema.type_constraints}
  return tuple(
    tuple(at for at, given in enumerate(schema.inputs) if given.type_str == made.type_str in variables)
    if made.option != onnx.defs.OpSchema.FormalParameterOption.Variadic
    else ()
    for made in schema.outputs
  )
