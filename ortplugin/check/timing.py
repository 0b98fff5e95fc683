"""Which of two models is faster: both in turns, so that they meet the same clocks."""

import math
import time
from collections.abc import Callable, Sequence
from statistics import median

from ..report import PLAIN, Timing

_WARM_UP, _WARM_UP_SECONDS = 2, 0.1  # at least: a GPU at rest has a slow clock
_MIN_TURNS, _MAX_TURNS, _SECONDS = 7, 50, 1.0
_TURN_SECONDS, _MOST_RUNS = 2e-3, 1000  # of one turn: long beside what a wait costs
_MARGIN = 0.02  # of the original's time: clocks of a GPU move by as much
_SLOWER = 0.75  # of the turns must say so, or it is the measurements' spread
_ATTEMPTS = 3  # where the median says slower and the turns do not

Run = Callable[[int], object]
"""Runs a model so many times, and waits for the last."""


def time_in_turns(original: Run, optimized: Run, mode: str = PLAIN) -> Timing:
  """Medians of one run; a turn is as many runs of each, and who begins changes from turn to turn."""
  both = original, optimized
  begun, count = time.perf_counter(), 0
  while count < _WARM_UP or time.perf_counter() - begun < _WARM_UP_SECONDS:
    longest = max(_seconds(run, 1) for run in both)
    count += 1
  runs = max(1, min(_MOST_RUNS, math.ceil(_TURN_SECONDS / max(longest, 1e-9))))
  for _ in range(_ATTEMPTS):
    turns: list[tuple[float, float]] = []
    begun = time.perf_counter()
    while len(turns) < _MIN_TURNS or (len(turns) < _MAX_TURNS and time.perf_counter() - begun < _SECONDS):
      order = (0, 1) if len(turns) % 2 else (1, 0)
      taken = {side: _seconds(both[side], runs) * 1e3 / runs for side in order}
      turns.append((taken[0], taken[1]))
    first, second = map(median, zip(*turns, strict=True))
    if (loses := is_loss(turns)) or second <= (1 + _MARGIN) * first:
      break
  return Timing(mode, first, second, loses)


def is_loss(turns: Sequence[tuple[float, float]]) -> bool:
  """Of (original, optimized): whether the median is beyond the margin, and most turns say slower."""
  original, optimized = map(median, zip(*turns, strict=True))
  slower = sum(after > before for before, after in turns)
  return optimized > (1 + _MARGIN) * original and slower >= _SLOWER * len(turns)


def _seconds(run: Run, count: int) -> float:
  begun = time.perf_counter()
  run(count)
  return time.perf_counter() - begun
