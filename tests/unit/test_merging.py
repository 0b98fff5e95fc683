"""Merging sets of nodes of an acyclic graph: it stays one, and a merge is refused only where it would not."""

import time

from hypothesis import given, settings, strategies as st
from sample import examples

from ortplugin.graph.merging import BUDGET, CYCLE, FAR, Merging


@st.composite
def graphs(draw):
  count = draw(st.integers(2, 14))
  edges = [sorted(draw(st.sets(st.integers(0, node - 1), max_size=3))) if node else [] for node in range(count)]
  node = st.integers(0, count - 1)
  return edges, draw(st.lists(st.tuples(node, node).filter(lambda pair: pair[0] != pair[1]), max_size=25))


def has_cycle(edges, names):
  needs = {name: set[int]() for name in names}
  for node, before in enumerate(edges):
    needs[names[node]].update(names[each] for each in before if names[each] != names[node])
  while ready := [name for name, each in needs.items() if not each]:
    for name in ready:
      del needs[name]
    for each in needs.values():
      each.difference_update(ready)
  return bool(needs)


@settings(max_examples=examples(400), deadline=None, derandomize=True)
@given(graphs())
def test_a_merge_is_made_exactly_where_it_makes_no_cycle(case):
  edges, pairs = case
  merging = Merging(edges)
  for a, b in pairs:
    names = [merging.find(node) for node in range(len(edges))]
    if names[a] == names[b]:
      continue
    merged = [names[b] if name == names[a] else name for name in names]
    reason = merging.merge(a, b)
    assert reason == (CYCLE if has_cycle(edges, merged) else None)
    after = [merging.find(node) for node in range(len(edges))]
    assert not has_cycle(edges, after)
    assert (after[a] == after[b]) == (reason is None)
    assert [x == y for x in after for y in after] == [
      x == y for x in (names if reason else merged) for y in (names if reason else merged)
    ]


def test_a_search_gives_up_in_the_end():
  """A node with very many readers is searched for each of them no further than the budget."""
  count = 20 * BUDGET
  merging = Merging([[], *([0] for _ in range(count)), [0]])
  start = time.process_time()
  for _ in range(100):
    assert merging.merge(0, count + 1) == FAR
  assert time.process_time() - start < 1
