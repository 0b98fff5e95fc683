"""Operators as functions of which onnx infers the same shapes but keeps no values, and which do not abort it."""

from collections.abc import Sequence

from onnx import AttributeProto, FunctionProto, helper

DOMAIN = "ortplugin.shapes_only"  # of the functions
OPAQUE = "ortplugin.opaque"  # no operator of this domain is known


def shapes_only(name: str, op: str, count: int, attributes: Sequence[str]) -> FunctionProto:
  """The operator in a version in which onnx does not keep its values."""
  inputs = [f"x{index}" for index in range(count)]
  if op == "Gather":  # it has none, but of a table of two dimensions or more no values are kept
    table = helper.make_node("Unsqueeze", ["x0"], ["table"], axes=[-1])
    gather = helper.make_node("Gather", ["table", *inputs[1:]], ["found"])
    nodes = [table, gather, helper.make_node("Squeeze", ["found"], ["y"], axes=[-1])]
  else:
    nodes = [helper.make_node(op, inputs, ["y"])]
  target = next(node for node in nodes if node.op_type == op)
  for attribute in attributes:
    kind = AttributeProto.INTS if attribute == "axes" else AttributeProto.INT
    target.attribute.add(name=attribute, ref_attr_name=attribute, type=kind)
  version = 13 if op in ("Add", "Sub", "Mul") else 9 if op == "Cast" else 11
  imports = [helper.make_opsetid("", version)]
  return helper.make_function(DOMAIN, name, inputs, ["y"], nodes, imports, list(attributes))


def guarded_slice(name: str, count: int, inner: str) -> FunctionProto:
  """A Slice of something of the data's shape, of which onnx knows nothing where a length of it is negative.

  Convolutions and pools whose windows are larger than their images have such lengths, and onnx's Slice, given one,
  aborts the process.
  """
  inputs = [f"x{index}" for index in range(count)]
  nodes = [
    helper.make_node("Shape", ["x0"], ["lengths"]),
    helper.make_node("ConstantOfShape", ["lengths"], ["data"]),
    helper.make_node(inner, ["data", *inputs[1:]], ["part"], domain=DOMAIN),
    helper.make_node("CastLike", ["part", "x0"], ["y"]),
  ]
  imports = [helper.make_opsetid("", 15), helper.make_opsetid(DOMAIN, 1)]
  return helper.make_function(DOMAIN, name, inputs, ["y"], nodes, imports)


def dtype_only(name: str) -> FunctionProto:
  """Something of the data's dtype, of whose shape onnx knows nothing.

  Where a shape cannot be told the dtype still must be: without it onnx infers nothing of what comes after.
  """
  nodes = [
    helper.make_node("Unknown", ["x1"], ["lengths"], domain=OPAQUE),
    helper.make_node("Reshape", ["x0", "lengths"], ["y"]),
  ]
  imports = [helper.make_opsetid("", 14), helper.make_opsetid(OPAQUE, 1)]
  return helper.make_function(DOMAIN, name, ["x0", "x1"], ["y"], nodes, imports)
