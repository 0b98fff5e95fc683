"""The cheapest division against every division there is."""

import itertools

from hypothesis import given, settings, strategies as st
from sample import examples

from ortplugin.graph.min_cut import INFINITE, min_cut


def cost(edges, sides):
  return sum(capacity for a, b, capacity in edges if sides[a] and not sides[b])


def test_the_largest_side_of_those_that_cost_the_same():
  assert min_cut(4, [(0, 2, 3), (2, 3, 3), (3, 1, 3)], 0, 1) == [True, False, True, True]


def test_nothing_connects_the_two():
  assert min_cut(4, [(0, 2, 5), (3, 1, 5)], 0, 1) == [True, False, True, False]


def test_what_must_not_be_cut():
  assert min_cut(4, [(0, 2, INFINITE), (2, 3, 7), (3, 1, INFINITE)], 0, 1) == [True, False, True, False]


@settings(max_examples=examples(150), deadline=None)
@given(st.integers(2, 7), st.data())
def test_as_cheap_as_the_best(count, data):
  nodes = st.integers(0, count - 1)
  edges = data.draw(st.lists(st.tuples(nodes, nodes, st.sampled_from([0, 1, 2, 3, 10])), max_size=18))
  sides = min_cut(count, edges, 0, 1)
  assert sides[0]
  assert not sides[1]
  divisions = [[True, False, *rest] for rest in itertools.product([False, True], repeat=count - 2)]
  best = min(cost(edges, each) for each in divisions)
  assert cost(edges, sides) == best
  assert all(sum(each) <= sum(sides) for each in divisions if cost(edges, each) == best)
