"""How operators work with channels last: `rule_of`. Here are convolutions and pointwise operators; the others' rules
are in layout_axes.py, layout_views.py, layout_blocks.py and fuse_pool.py.
"""

from dataclasses import replace

import onnx_graphsurgeon as gs

from ...graph import DOMAIN, Scope, is_pointwise
from ...ops.layer_norm import NAME as NORM
from ...ops.layer_norm.reference import axes_of
from ...program import ProgramError, Statement, parse
from ..conv.fused import OWN_INPUTS, is_channels_last, is_fused_conv
from ..norm.fused import Over, over_axes
from .axes import AXIS_RULES, split_operands
from .blocks import BLOCK_RULES
from .conv_grad import CONV_GRAD_RULES
from .fuse_pool import POOL_RULES
from .plan import Layouts, Plan, Rule, axis_last
from .views import VIEW_RULES

# Those of ONNX Runtime whose second input is a bias for the last axis.
BIASED = ("com.microsoft::BiasGelu", "com.microsoft::FastGelu", "com.microsoft::BiasAdd")


def rule_of(scope: Scope, node: gs.Node) -> Plan | None:
  """How the node works with channels last; None if it does not."""
  if is_fused_conv(scope, node):
    return convolution(scope, node)
  op = scope.op(node)
  if op == f"{DOMAIN}::FusedPointwise" or (is_pointwise(scope, node) and op not in BIASED):
    return pointwise(scope, node)
  rule = RULES.get(op)
  return None if rule is None else rule(scope, node)


def convolution(scope: Scope, node: gs.Node) -> Plan | None:
  """A convolution of ours: X and what is added to its result; the weights' axes are in the same order."""
  rank = scope.rank(node.inputs[0])
  operands = split_operands(scope, node, rank, range(OWN_INPUTS, len(node.inputs)))
  if rank is None or operands is None or is_channels_last(node) or "kernel_shape" not in node.attrs:
    return None
  if scope.rank(node.inputs[1]) != rank:
    return None
  reads, others = operands

  def edit(layouts: Layouts, node: gs.Node) -> None:
    node.inputs[1] = layouts.weights(node.inputs[1], node)
    for index in others:
      node.inputs[index] = layouts.operand(node.inputs[index], rank, node)
    node.attrs["layout"] = "NHWC"

  return Plan((0, *reads), tuple(range(len(node.outputs))), edit)


def pointwise(scope: Scope, node: gs.Node) -> Plan | None:
  """What broadcasts its operands to one shape."""
  ranks = [scope.rank(tensor) for tensor in node.outputs if not tensor.is_empty()]
  rank = ranks[0] if ranks else None
  at = [
    index for index, tensor in enumerate(node.inputs) if not tensor.is_empty() and not _is_setting(scope, node, index)
  ]
  operands = split_operands(scope, node, rank, at)
  if rank is None or rank < 3 or operands is None or not operands[0] or set(ranks) != {rank}:
    return None
  reads, others = operands

  def edit(layouts: Layouts, node: gs.Node) -> None:
    for index in others:
      node.inputs[index] = layouts.operand(node.inputs[index], rank, node)

  return Plan(reads, tuple(i for i, tensor in enumerate(node.outputs) if not tensor.is_empty()), edit)


def norm(scope: Scope, node: gs.Node) -> Plan | None:
  """A norm of ours: the axes that it is over, and all else of its program as in what is pointwise."""
  plan, rank = pointwise(scope, node), scope.rank(node.outputs[0]) or 0
  try:
    program = parse(str(node.attrs.get("program", "")))
    core = program.core
    over = None if core is None else _over_last(core, rank)
  except (ProgramError, ValueError):
    return None
  if plan is None or core is None or over is None or "ordered" in node.attrs:
    return None
  new = Statement(core.name, core.op, core.operands, (("epsilon", core.number("epsilon")), *over.items()))
  changed = replace(program, statements=tuple(new if each is core else each for each in program.statements))

  def edit(layouts: Layouts, node: gs.Node) -> None:
    plan.edit(layouts, node)
    node.attrs["program"] = str(changed)

  return Plan(plan.reads, plan.makes, edit)


def _over_last(core: Statement, rank: int) -> Over | None:
  """The axes of a norm once channels are last. Raises ValueError if a value of this rank lacks one."""
  axes, groups = axes_of(core, rank), int(core.number("groups"))
  if not groups:
    return over_axes(sorted(axis_last(axis, rank) for axis in axes), rank)
  grouped = int(core.number("axis")) % rank
  others = sorted(axis_last(axis, rank) for axis in axes if axis != grouped)
  last = axis_last(grouped, rank)
  return {"axis": -1 if last == rank - 1 else last, "axes": " ".join(map(str, others)), "groups": groups}


def _is_setting(scope: Scope, node: gs.Node, index: int) -> bool:
  """Whether an input has no part in the result's shape: Dropout's ratio, the dtype of a CastLike."""
  return index > 0 and scope.op(node) in ("Dropout", "CastLike")


RULES: dict[str, Rule] = {
  **AXIS_RULES,
  **VIEW_RULES,
  **BLOCK_RULES,
  **POOL_RULES,
  **CONV_GRAD_RULES,
  f"{DOMAIN}::{NORM}": norm,
}
