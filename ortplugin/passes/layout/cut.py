"""Which operators of a region have channels last: the division of the region that moves the fewest bytes."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx_graphsurgeon as gs

from ...graph import DOMAIN, Dim, Scope, is_pointwise
from ...graph.min_cut import INFINITE, min_cut
from ..conv.fused import is_fused_conv
from ..pointwise.cost import LAUNCH_BYTES
from .plan import Plan, is_perm, is_vector, to_first, to_last

GUESS = 64  # for a length that is not known


@dataclass
class Region:
  """Operators that may have channels last, with their plans, connected through tensors; by place, in order."""

  plans: dict[int, Plan] = field(default_factory=dict)
  seeds: list[int] = field(default_factory=list)  # the convolutions that shall


def cheapest(scope: Scope, region: Region) -> list[int]:
  """The places of the operators of the region that have channels last in its cheapest division, in order.

  A tensor that an operator with channels last makes costs a Transpose if anything reads it with channels first, and
  the other way round; however many read it.
  """
  source, sink = 0, 1
  number = {place: index for index, place in enumerate(region.plans, 2)}
  count = len(number) + 2
  edges = [(source, number[place], INFINITE) for place in region.seeds]
  tensors = {
    id(tensor): tensor
    for place, plan in region.plans.items()
    if (node := scope.slots[place]) is not None
    for tensor in (*(node.inputs[i] for i in plan.reads), *(node.outputs[i] for i in plan.makes))
  }
  for tensor in tensors.values():
    maker, readers = _ends(scope, region, number, tensor)
    price = _price(scope, tensor) * (1 + _one_kernel(scope, tensor))
    to, back = count, count + 1  # whether it is needed with channels last, and whether never with channels first
    count += 2
    edges += [(to, maker, price), (maker, back, price)]
    for reader in readers:
      edges += [(reader, to, INFINITE), (back, reader, INFINITE)]
  last = min_cut(count, edges, source, sink)
  return [place for place, index in number.items() if last[index]]


def _ends(scope: Scope, region: Region, number: dict[int, int], tensor: gs.Tensor) -> tuple[int, list[int]]:
  """The nodes of the cut's graph that stand for what makes the tensor and for what reads it."""
  source, sink = 0, 1

  def node_for(node: gs.Node | None, ports: str) -> int:
    place = -1 if node is None else scope.position.get(id(node), -1)
    if node is None or place not in number:
      return sink
    plan = region.plans[place]
    held, chosen = (node.outputs, plan.makes) if ports == "makes" else (node.inputs, plan.reads)
    whole = all(index in chosen for index, each in enumerate(held) if each is tensor)
    return number[place] if whole else sink

  producer = scope.producer(tensor)
  maker = node_for(producer, "makes")
  if producer is not None and maker == sink and is_perm(scope, producer, to_first):
    maker = source
  readers = [source if is_perm(scope, node, to_last) else node_for(node, "reads") for node in tensor.outputs]
  return maker, readers + [sink] * scope.is_output(tensor)


def _one_kernel(scope: Scope, tensor: gs.Tensor) -> bool:
  """Whether what makes the tensor may be one kernel with what reads it, as long as both have one order.

  Else one more reads and writes about as much as a Transpose does.
  """
  maker = scope.producer(tensor)
  return (
    maker is not None
    and (is_fused_conv(scope, maker) or _is_pointwise(scope, maker))
    and any(_is_pointwise(scope, reader) for reader in scope.consumers(tensor))
  )


def _is_pointwise(scope: Scope, node: gs.Node) -> bool:
  return is_pointwise(scope, node) or scope.op(node) == f"{DOMAIN}::FusedPointwise"


def _price(scope: Scope, tensor: gs.Tensor) -> int:
  """What the Transpose of the tensor costs, in bytes that the GPU could have moved in its time."""
  shape = scope.shape(tensor)
  return 1 if is_vector(shape) else price_of(shape, tensor)


def price_of(shape: Sequence[Dim] | None, like: gs.Tensor) -> int:
  """What it costs to move a tensor of this shape, and of another's dtype, in bytes; a negative length is not known."""
  size = 2 if like.dtype is None else int(like.dtype.itemsize)
  for dim in shape or ():
    size *= dim if isinstance(dim, int) and dim >= 0 else GUESS
  return min(LAUNCH_BYTES + 2 * size, INFINITE >> 24)
