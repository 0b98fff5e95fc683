"""Sets of nodes of an acyclic graph that become one node each, so that the graph stays acyclic.

Two sets may become one if no path leads from the one to the other through a third: such a path would make a cycle. To
find paths fast, the sets keep a topological order, and a search stays between the places of the two sets in it; after
a merge only what was searched moves within that stretch, as in D. J. Pearce and P. H. J. Kelly, A dynamic topological
sort algorithm for directed acyclic graphs, 2006. A search gives up after BUDGET edges, and the two stay apart, so that
all merges together take time in proportion to the number of attempts, whatever the graph.
"""

from collections.abc import Sequence

BUDGET = 1024
CYCLE = "what is between the two depends on the one and is needed by the other"
FAR = f"whether a path between the two makes a cycle is not known after {BUDGET} steps"


class Merging:
  """Nodes 0, 1, ... in topological order, each a set of its own at first. A set goes by one of its nodes."""

  def __init__(self, predecessors: Sequence[Sequence[int]]) -> None:
    count = len(predecessors)
    self._parent = list(range(count))
    self._order = list(range(count))
    self._before = [list(each) for each in predecessors]
    self._after: list[list[int]] = [[] for _ in range(count)]
    for node, each in enumerate(predecessors):
      for before in each:
        self._after[before].append(node)

  def find(self, node: int) -> int:
    """The set that the node is in."""
    while self._parent[node] != node:
      self._parent[node] = self._parent[self._parent[node]]
      node = self._parent[node]
    return node

  def merge(self, a: int, b: int) -> str | None:
    """Makes the sets of the nodes `a` and `b` one; else says why not: a cycle, or a search that gave up."""
    a, b = self.find(a), self.find(b)
    first, last = (a, b) if self._order[a] < self._order[b] else (b, a)
    low, high = self._order[first], self._order[last]
    left = BUDGET
    found: list[list[int]] = []
    for start, goal, edges in ((first, last, self._after), (last, first, self._before)):
      seen: set[int] = set()
      stack = [start]
      while stack:
        here = stack.pop()
        left -= len(edges[here])
        if left < 0:
          return FAR
        for each in edges[here]:
          there = self.find(each)
          if there == goal and here != start:
            return CYCLE
          if low < self._order[there] < high and there not in seen:
            seen.add(there)
            stack.append(there)
      found.append(sorted(seen, key=self._order.__getitem__))
    after, before = found
    places = sorted([low, high, *(self._order[each] for each in (*before, *after))])
    self._join(first, last)
    for place, each in zip(places, [*before, last], strict=False):
      self._order[each] = place
    for place, each in zip(reversed(places), reversed(after), strict=False):
      self._order[each] = place
    return None

  def _join(self, first: int, last: int) -> None:
    self._parent[first] = last
    for edges in (self._before, self._after):
      ends = {self.find(each) for each in (*edges[first], *edges[last])}
      edges[first], edges[last] = [], sorted(ends - {last})
