"""Which of two models is faster: both in turns, in one process, so that they meet the same clocks."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence

from ortplugin.report import PLAIN, Timing

_WARM_UP, _WARM_UP_SECONDS = 2, 0.1  # at least: a GPU at rest has a slow clock
_MIN_TURNS, _MAX_TURNS, _SECONDS = 7, 50, 1.0
_TURN_SECONDS, _MOST_RUNS = 2e-3, 1000  # of one turn: long beside what a wait costs
_MARGIN = 0.02  # of the original's time: clocks of a GPU move by as much
_SLOWER = 0.75  # of the turns must say so, or it is the measurements' spread

Run = Callable[[int], object]
"""Runs a model so many times, and waits for the last."""


def time_in_turns(original: Run, optimized: Run, mode: str = PLAIN) -> Timing:
    """Medians of one run, over turns of as many runs of each; who begins changes from turn to turn."""
    both = (original, optimized)
    begun = time.perf_counter()
    count = 0
    while count < _WARM_UP or time.perf_counter() - begun < _WARM_UP_SECONDS:
        for run in both:
            run(1)
        count += 1
    longest = max(_seconds(run, 1) for run in both)
    runs = max(1, min(_MOST_RUNS, math.ceil(_TURN_SECONDS / max(longest, 1e-9))))
    turns: list[tuple[float, float]] = []
    begun = time.perf_counter()
    while len(turns) < _MIN_TURNS or (len(turns) < _MAX_TURNS and time.perf_counter() - begun < _SECONDS):
        if len(turns) % 2:
            second = _seconds(optimized, runs)
            turns.append((_seconds(original, runs), second))
        else:
            turns.append((_seconds(original, runs), _seconds(optimized, runs)))
    first, second = (statistics.median(times) * 1e3 / runs for times in zip(*turns, strict=True))
    return Timing(mode, first, second, is_loss(turns))


def is_loss(turns: Sequence[tuple[float, float]]) -> bool:
    """Of (original, optimized): whether the median is beyond the margin, and most turns say slower."""
    original, optimized = (statistics.median(times) for times in zip(*turns, strict=True))
    slower = sum(after > before for before, after in turns)
    return optimized > (1 + _MARGIN) * original and slower >= _SLOWER * len(turns)


def _seconds(run: Run, count: int) -> float:
    begun = time.perf_counter()
    run(count)
    return time.perf_counter() - begun
