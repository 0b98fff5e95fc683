"""The cheapest way to divide the nodes of a directed graph in two: Dinic's algorithm (1970), without recursion.

    sides = min_cut(count, [(a, b, capacity), ...], source, sink)

A cut costs the capacities of the edges that lead from the source's side to the sink's.
"""

from __future__ import annotations

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
    ends: list[int] = []  # of the edges; edge i and its way back, i ^ 1
    left: list[int] = []
    of: list[list[int]] = [[] for _ in range(count)]
    for a, b, capacity in edges:
        of[a].append(len(ends))
        of[b].append(len(ends) + 1)
        ends += (b, a)
        left += (capacity, 0)
    while True:
        levels = _levels(of, ends, left, source)
        if levels[sink] < 0:
            break
        _saturate(of, ends, left, levels, source, sink)
    return _beyond(of, ends, left, sink)


def _levels(of: list[list[int]], ends: list[int], left: list[int], source: int) -> list[int]:
    """The fewest edges with something left from the source to each node; -1 where none lead."""
    levels = [-1] * len(of)
    levels[source] = 0
    queue = [source]
    for node in queue:
        for edge in of[node]:
            if left[edge] and levels[ends[edge]] < 0:
                levels[ends[edge]] = levels[node] + 1
                queue.append(ends[edge])
    return levels


def _saturate(of: list[list[int]], ends: list[int], left: list[int], levels: list[int], source: int, sink: int) -> None:
    """Sends what it can from source to sink along edges that go up one level."""
    tried = [0] * len(of)
    path: list[int] = []
    node = source
    while True:
        if node == sink:
            amount = min(left[edge] for edge in path)
            for edge in path:
                left[edge] -= amount
                left[edge ^ 1] += amount
            first = next(index for index, edge in enumerate(path) if not left[edge])
            node = ends[path[first] ^ 1]
            del path[first:]
            continue
        while tried[node] < len(of[node]):
            edge = of[node][tried[node]]
            if left[edge] and levels[ends[edge]] == levels[node] + 1:
                break
            tried[node] += 1
        else:
            if node == source:
                return
            levels[node] = -1
            node = ends[path.pop() ^ 1]
            continue
        path.append(edge)
        node = ends[edge]


def _beyond(of: list[list[int]], ends: list[int], left: list[int], sink: int) -> list[bool]:
    """Whether nothing more can flow from the node to the sink."""
    reaches = [False] * len(of)
    reaches[sink] = True
    queue = [sink]
    for node in queue:
        for edge in of[node]:
            if left[edge ^ 1] and not reaches[ends[edge]]:
                reaches[ends[edge]] = True
                queue.append(ends[edge])
    return [not each for each in reaches]
