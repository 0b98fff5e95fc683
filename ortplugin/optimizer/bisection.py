"""Which change is to blame for outputs that differ."""

from collections.abc import Callable


def find_guilty(count: int, passes_with: Callable[[int], bool]) -> int | None:
  """The number (from 1) of the change that makes the comparison fail, given that it fails with all `count`.

  Bisection over the number of changes made: it keeps one number that passes and one that fails until they are
  neighbours. None when the comparison fails with no change at all.
  """
  if not passes_with(0):
    return None
  good, bad = 0, count
  while bad - good > 1:
    middle = (good + bad) // 2
    if passes_with(middle):
      good = middle
    else:
      bad = middle
  return bad
