"""Which passes are taken back, by times that are given: what is returned was timed and did not lose."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortplugin.optimizer.keep_faster import MOST_TRIALS, Left, Trial, find_losing

NAMES = tuple("abcdefghijklmnopqrst")


class Clock:
    """What a result without some passes costs, beside an original that takes 1.

    Args:
        costs: what each pass, where it rewrites something, adds to the time.
        together: what two of them add when both do.
        opened: a pass that has something to rewrite only where another, its value, is left out.
    """

    def __init__(
        self,
        costs: Mapping[str, float],
        together: Mapping[tuple[str, str], float] | None = None,
        opened: Mapping[str, str] | None = None,
    ) -> None:
        self.costs, self.together, self.opened = costs, together or {}, opened or {}
        self.asked: list[Left] = []

    def trial(self, left: Left) -> Trial:
        kinds = tuple(
            name for name in NAMES if name in self.costs and name not in left and self.opened.get(name, name) not in
            ({name} if name not in self.opened else set(NAMES) - left)
        ) if self.opened else tuple(name for name in NAMES if name in self.costs and name not in left)
        time = 1 + sum(self.costs[name] for name in kinds)
        time += sum(more for both, more in self.together.items() if set(both) <= set(kinds))
        return Trial(kinds, time > 1.02, time)

    def ask(self, left: Left) -> Trial:
        self.asked.append(left)
        return self.trial(left)

    def answer(self, most: int = MOST_TRIALS) -> Left:
        return find_losing(NAMES, self.trial(frozenset()), self.ask, most)
