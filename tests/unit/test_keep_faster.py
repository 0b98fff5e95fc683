"""Which passes are taken back, by times that are given."""

import pytest
from hypothesis import given, strategies as st

from ortplugin.optimizer.keep_faster import MOST_TRIALS, Trial, find_losing

NAMES = "abcdefghijklmnopqrst"


class Clock:
  """The original takes 1; `costs` are what sets of passes add, `hidden` what fires only without another pass."""

  def __init__(self, costs, hidden=None):
    self.costs, self.hidden = costs, hidden or {}
    self.asked = []

  def trial(self, left):
    used = set("".join(self.costs)) - left
    kinds = tuple(each for each in NAMES if each in used and self.hidden.get(each, each) in {each, *left})
    time = 1 + sum(cost for names, cost in self.costs.items() if set(names) <= set(kinds))
    return Trial(kinds, time > 1.02, time)

  def answer(self, most=MOST_TRIALS):
    return find_losing(NAMES, self.trial(frozenset()), lambda left: self.asked.append(left) or self.trial(left), most)


@pytest.mark.parametrize(
  "costs, hidden, taken",
  [
    ({"a": -0.2, "c": 0.5, "f": -0.1}, {}, "c"),
    ({"a": 0.5, "d": 0.5, "m": -0.3, "t": 0.3}, {}, "ad"),  # the whole counts: t loses less than m gains
    ({"b": 0.5, "h": -0.1, "bh": -0.7, "k": 0.5}, {}, "k"),  # b, left out first, is put back: it gains with h
    ({"a": -0.1, "c": 0.5, "d": 0.7}, {"d": "c"}, "cd"),
    ({"": 0.5, "a": 0.5}, {}, ""),  # nothing helps, as where a conversion that was asked for is slow
  ],
)
def test_what_loses_is_found(costs, hidden, taken):
  assert Clock(costs, hidden).answer() == Clock(costs, hidden).answer() == set(taken)


def test_after_so_many_trials_the_fastest_is_the_answer():
  clock = Clock({"a": -0.2, **dict.fromkeys("bcdefghij", 0.5)})
  assert clock.trial(clock.answer(most=5)).kinds == ("a",)


@given(
  st.dictionaries(st.text(NAMES, min_size=1, max_size=3), st.floats(-0.3, 0.6), min_size=1, max_size=25),
  st.dictionaries(st.sampled_from(NAMES), st.sampled_from(NAMES), max_size=4),
  st.integers(1, MOST_TRIALS),
)
def test_the_result_is_never_slower_by_the_given_times(costs, hidden, most):
  clock = Clock(costs, hidden)
  if clock.trial(frozenset()).loses:
    left = clock.answer(most)
    assert left in clock.asked
    assert not clock.trial(left).loses
    assert len(clock.asked) == len(set(clock.asked)) <= most
