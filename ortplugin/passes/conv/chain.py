"""Which pointwise operators after a convolution become its epilogue.

A set of operators that follow from the convolution's value, in the graph's order, as long as it leaves one value for
the others: HardSwish written as x * Clip(x + 3, 0, 6) / 6 reads the value twice, and only whole is it one value again.
So a convolution does not join one neighbour after another: passes/absorb.py has the walk.
Every result has the shape S of the convolution, so no operand may enlarge it; and what else an operator reads must not
depend on the convolution: a squeeze-excite's gate does. A view of one pixel, [N, 1, 1, M] to [N, M], is passed.
"""

import onnx_graphsurgeon as gs

from ...graph import NotPointwiseError, Scope
from ...program import Parameter, Program
from ..absorb import DTYPES, Chain, chain_of, drawn, needed
from ..members import Member
from .extents import same_lengths
from .fused import CONV, is_channels_last

VIEWS = ("Reshape", "Flatten", "Squeeze")


def conv_chain(scope: Scope, conv: gs.Node) -> Chain:
  """The convolution and what it draws in, in order; what they make for others; why there is no more."""
  if (first := CONV.read(scope, conv)) is None:
    return [], [], []
  allowed = max(1, len(needed(scope, [first])))
  return chain_of(
    scope,
    first,
    lambda node, members: _view(scope, node, conv) or _drawable(scope, node, conv, members),
    lambda left, _: len(left) <= allowed,
  )


def _view(scope: Scope, node: gs.Node, conv: gs.Node) -> Member | None:
  """A view of the convolution's value [N, 1, .., M] as [N, M]: a member that computes nothing. None if it is none."""
  if scope.op(node) not in VIEWS or not is_channels_last(conv):
    return None
  x, y = node.inputs[0], node.outputs[0]
  shape, dtype = scope.shape(x), scope.dtype(x)
  if shape is None or dtype not in DTYPES or len(shape) < 3 or not isinstance(shape[-1], int) or shape[-1] < 1:
    return None
  if any(dim != 1 for dim in shape[1:-1]) or scope.rank(y) != 2 or (scope.shape(y) or ())[-1:] != shape[-1:]:
    return None
  value = Parameter(dtype, "x")
  return Member(node, Program((value,), (value,), ()), (x,), (y,))


def flat_of(scope: Scope, members: list[Member]) -> set[int]:
  """The ids of what the members make after a view of one pixel."""
  found: set[int] = set()
  for member in members[1:]:
    if not member.program.statements or any(id(tensor) in found for tensor in member.inputs):
      found.update(id(tensor) for tensor in member.outputs)
  return found


def _drawable(scope: Scope, node: gs.Node, conv: gs.Node, members: list[Member]) -> Member | None:
  """The node as one more member of the chain; None if it is not pointwise.

  Raises NotPointwiseError or ProgramError with the reason why it can't be one.
  """
  whole, flat = conv.outputs[0], flat_of(scope, members)

  def fit(tensor: gs.Tensor, inside: list[gs.Tensor]) -> tuple[bool, bool]:
    same = scope.same_shape(tensor, whole) or same_lengths(scope, tensor, whole)
    flattens = any(id(each) in flat for each in inside) and scope.rank(tensor) not in (0, 1)
    return (same or scope.broadcasts_to(tensor, whole)) and not flattens, same

  if (member := drawn(scope, CONV, node, members, fit)) is not None:
    made = {id(tensor) for each in members for tensor in each.outputs}
    flattened = {id(tensor) in flat for tensor in member.inputs if id(tensor) in made}
    if len(flattened) > 1:
      raise NotPointwiseError("it reads the convolution's value and a view of it")
  return member
