"""The gradients of a convolution with channels last: data, gradients and weights alike, but for the bias's."""

import onnx_graphsurgeon as gs

from ...graph import DOMAIN, Scope
from ...ops.conv_grad.gradient import NAME
from ...program import ProgramError, parse
from ..conv.fused import is_channels_last
from .axes import split_operands
from .plan import Layouts, Plan, Rule


def gradient_dtype(scope: Scope, node: gs.Node) -> str | None:
  """The dtype of a ConvGrad's data and weights; None if the node is none, or invalid."""
  if scope.op(node) != f"{DOMAIN}::{NAME}":
    return None
  try:
    return parse(str(node.attrs.get("program", ""))).results[0].dtype
  except ProgramError:
    return None  # the runtime names the fault


def gradients(scope: Scope, node: gs.Node) -> Plan | None:
  """A ConvGrad; weights have [rows, columns, spatial..], which changes to [rows, spatial.., columns] as data do."""
  kernel = node.attrs.get("kernel_shape")
  if is_channels_last(node) or not kernel:
    return None
  rank = len(kernel) + 2
  own = len(str(node.attrs.get("operands", "")).split())
  if (operands := split_operands(scope, node, rank, range(len(node.inputs)))) is None:
    return None
  reads, others = operands
  if any(scope.rank(node.inputs[index]) != rank for index in range(own)):
    return None
  wanted = str(node.attrs.get("gradients", "")).split()
  makes = tuple(i for i in range(len(node.outputs)) if i >= len(wanted) or wanted[i] != "dB")

  def edit(layouts: Layouts, node: gs.Node) -> None:
    for index in others:
      tensor = node.inputs[index]
      node.inputs[index] = layouts.weights(tensor, node) if index < own else layouts.operand(tensor, rank, node)
    node.attrs["layout"] = "NHWC"

  return Plan(reads, makes, edit)


CONV_GRAD_RULES: dict[str, Rule] = {f"{DOMAIN}::{NAME}": gradients}
