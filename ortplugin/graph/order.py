"""Topological order of nodes, without recursion, keeping the given order wherever it may."""

import heapq
from collections.abc import Iterator, Sequence

import onnx_graphsurgeon as gs

from ..errors import ModelError


def tensors_read(node: gs.Node) -> Iterator[gs.Tensor]:
  """The tensors that a node needs: its inputs and what the graphs in its attributes read, their own included."""
  yield from node.inputs
  for value in node.attrs.values():
    if isinstance(value, gs.Graph):
      yield from value.outputs
      for inner in value.nodes:
        yield from tensors_read(inner)


def topological_order(nodes: Sequence[gs.Node]) -> list[gs.Node]:
  """The nodes with every producer before its consumers; among those that are ready, the one given first.

  Raises ModelError if there is a cycle.
  """
  position = {id(node): index for index, node in enumerate(nodes)}
  consumers: list[list[int]] = [[] for _ in nodes]
  waiting = [0] * len(nodes)
  for index, node in enumerate(nodes):
    producers = {position[id(p)] for t in tensors_read(node) for p in t.inputs if id(p) in position}
    waiting[index] = len(producers)
    for producer in producers:
      consumers[producer].append(index)
  ready = [index for index, count in enumerate(waiting) if count == 0]
  order = []
  while ready:
    index = heapq.heappop(ready)
    order.append(nodes[index])
    for consumer in consumers[index]:
      waiting[consumer] -= 1
      if waiting[consumer] == 0:
        heapq.heappush(ready, consumer)
  if len(order) != len(nodes):
    stuck = next(node for node, count in zip(nodes, waiting, strict=True) if count)
    raise ModelError(f"node '{stuck.name}' ({stuck.op}) is part of a cycle")
  return order
