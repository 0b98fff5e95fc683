"""The cheapest way to divide the nodes of a directed graph in two: Dinic's algorithm (1970), without recursion.

    sides = min_cut(count, [(a, b, capacity), ...], source, sink)

A cut costs the capacities of the edges that lead from the source's side to the sink's.
"""

from collections.abc import Iterable

INFINITE = 1 << 62  # more than all finite capacities together


def min_cut(count: int, edges: Iterable[tuple[int, int, int]], source: int, sink: int) -> list[bool]:
  """Whether each of the nodes 0, 1, ... is on the source's side of a cheapest cut; of those the largest side.

  Args:
      count: of the nodes, source and sink included.
      edges: from, to and capacity, an integer from 0 on.
      source: a node.
      sink: another node.
  """
  target: list[int] = []  # of the edges; edge i and its way back, i ^ 1
  left: list[int] = []
  edges_at: list[list[int]] = [[] for _ in range(count)]
  for a, b, capacity in edges:
    edges_at[a].append(len(target))
    edges_at[b].append(len(target) + 1)
    target += (b, a)
    left += (capacity, 0)
  while True:
    levels = _levels(edges_at, target, left, source)
    if levels[sink] < 0:
      break
    _saturate(edges_at, target, left, levels, source, sink)
  return _beyond(edges_at, target, left, sink)


def _levels(edges_at: list[list[int]], target: list[int], left: list[int], source: int) -> list[int]:
  """The fewest edges with something left from the source to each node; -1 where none lead."""
  levels = [-1] * len(edges_at)
  levels[source] = 0
  queue = [source]
  for node in queue:
    for edge in edges_at[node]:
      if left[edge] and levels[target[edge]] < 0:
        levels[target[edge]] = levels[node] + 1
        queue.append(target[edge])
  return levels


def _saturate(
  edges_at: list[list[int]], target: list[int], left: list[int], levels: list[int], source: int, sink: int
) -> None:
  """Sends what it can from source to sink along edges that go up one level."""
  tried = [0] * len(edges_at)
  path: list[int] = []
  node = source
  while True:
    if node == sink:
      amount = min(left[edge] for edge in path)
      for edge in path:
        left[edge] -= amount
        left[edge ^ 1] += amount
      first = next(index for index, edge in enumerate(path) if not left[edge])
      node = target[path[first] ^ 1]
      del path[first:]
      continue
    while tried[node] < len(edges_at[node]):
      edge = edges_at[node][tried[node]]
      if left[edge] and levels[target[edge]] == levels[node] + 1:
        break
      tried[node] += 1
    else:
      if node == source:
        return
      levels[node] = -1
      node = target[path.pop() ^ 1]
      continue
    path.append(edge)
    node = target[edge]


def _beyond(edges_at: list[list[int]], target: list[int], left: list[int], sink: int) -> list[bool]:
  """Whether nothing more can flow from the node to the sink."""
  reaches = [False] * len(edges_at)
  reaches[sink] = True
  queue = [sink]
  for node in queue:
    for edge in edges_at[node]:
      if left[edge ^ 1] and not reaches[target[edge]]:
        reaches[target[edge]] = True
        queue.append(target[edge])
  return [not each for each in reaches]
