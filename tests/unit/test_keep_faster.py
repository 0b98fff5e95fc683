"""Which passes are taken back, by times that are given: what is returned was timed and did not lose."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortplugin.optimizer.keep_faster import MOST_TRIALS, Left, Trial, find_losing

NAMES = tuple("abcdefghijklmnopqrst")


class Clock:
    """What a result without some passes takes, where the original takes 1.

    Args:
        costs: what each set of passes adds where all of it rewrites something.
        hidden: a pass to the one that must be left out for it to rewrite anything.
    """

    def __init__(self, costs: Mapping[str, float], hidden: Mapping[str, str] | None = None) -> None:
        self.costs, self.hidden = costs, hidden or {}
        self.asked: list[Left] = []

    def trial(self, left: Left) -> Trial:
        used = {name for names in self.costs for name in names}
        kinds = [
            name for name in NAMES if name in used - left and (name not in self.hidden or self.hidden[name] in left)
        ]
        time = 1 + sum(cost for names, cost in self.costs.items() if set(names) <= set(kinds))
        return Trial(tuple(kinds), time > 1.02, time)

    def ask(self, left: Left) -> Trial:
        assert left not in self.asked
        self.asked.append(left)
        return self.trial(left)

    def answer(self, most: int = MOST_TRIALS) -> Left:
        return find_losing(NAMES, self.trial(frozenset()), self.ask, most)


@pytest.mark.parametrize(
    ("costs", "taken"),
    [
        ({"a": -0.2, "c": 0.5, "f": -0.1}, "c"),
        ({"a": 0.5}, "a"),
        ({"t": 0.5, "a": -0.1}, "t"),
        ({"a": 0.5, "d": 0.5, "m": -0.3, "t": 0.3}, "ad"),
        ({"b": 0.5, "h": -0.1, "bh": -0.7, "k": 0.5}, "k"),  # b loses alone, and is put back: with h it gains
        ({"a": 0.3, "b": -0.4, "k": 0.4}, "a"),  # k would do as well: the whole is what counts
    ],
)
def test_what_loses_is_found(costs: dict[str, float], taken: str) -> None:
    clock = Clock(costs)
    assert clock.answer() == frozenset(taken)


def test_a_pass_that_comes_forward_is_found_too() -> None:
    """Without c, d has something to rewrite, and loses more."""
    clock = Clock({"a": -0.1, "c": 0.5, "d": 0.7}, hidden={"d": "c"})
    assert clock.answer() == {"c", "d"}


def test_where_nothing_helps_nothing_is_taken() -> None:
    """As where a conversion that was asked for makes it slower."""
    assert Clock({"": 0.5, "a": 0.5}).answer() == frozenset()


def test_where_everything_loses_everything_is_taken() -> None:
    clock = Clock(dict.fromkeys(NAMES, 0.5))
    left = clock.answer()
    assert clock.trial(left).kinds == ()
    assert len(clock.asked) <= MOST_TRIALS


def test_the_fastest_that_was_timed_is_the_answer_after_so_many_trials() -> None:
    clock = Clock({"a": -0.2, **dict.fromkeys("bcdefghij", 0.5)})
    left = clock.answer(most=5)
    assert len(clock.asked) == 5
    assert clock.trial(left).kinds == ("a",)


def test_what_can_not_be_made_is_not_taken() -> None:
    clock = Clock({"a": -0.2, "c": 0.5, "f": 0.1})
    ask = lambda left: Trial((), True) if left == {"c"} else clock.ask(left)  # noqa: E731
    left = find_losing(NAMES, clock.trial(frozenset()), ask)
    assert clock.trial(left).kinds == ("a",)


@given(
    costs=st.dictionaries(
        st.sets(st.sampled_from(NAMES), min_size=1, max_size=3).map(lambda names: "".join(sorted(names))),
        st.floats(-0.3, 0.6),
        min_size=1,
        max_size=25,
    ),
    hidden=st.dictionaries(st.sampled_from(NAMES), st.sampled_from(NAMES), max_size=4),
    most=st.integers(1, MOST_TRIALS),
)
def test_the_result_is_never_slower_by_the_given_times(
    costs: dict[str, float], hidden: dict[str, str], most: int
) -> None:
    clock = Clock(costs, hidden)
    if clock.trial(frozenset()).loses:
        left = clock.answer(most)
        assert left, "something is taken back"
        assert left in clock.asked
        assert not clock.trial(left).loses
        assert len(clock.asked) <= most
