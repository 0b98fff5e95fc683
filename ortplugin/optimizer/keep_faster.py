"""Which passes make the result slower than the original, as bisection.py asks which change makes it wrong."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from ..check.verify import Verifier
from ..errors import OrtPluginError
from ..model.inline import NAME as INLINE_FUNCTIONS
from ..report import ProviderVerification, Report, TakenBack, Timing
from ..session import CUDA
from .bisection import find_guilty
from .loop import PassError
from .verification import Attempt

MOST_TRIALS = 32  # of one search

Left = frozenset[str]
"""Passes that are left out."""


class Trial(NamedTuple):
  """What is made without some passes."""

  kinds: tuple[str, ...]  # the passes that rewrote something, in the order in which they first did
  loses: bool  # or can't be timed
  relative: float = 1.0  # its time over the original's


class _Enough(Exception):  # noqa: N818, it is an answer
  """There is no more to ask."""


def find_losing(names: Sequence[str], first: Trial, ask: Callable[[Left], Trial], most: int = MOST_TRIALS) -> Left:
  """The passes without which the result does not lose, as `ask` said; none where it does even without all `names`.

  With the first of its kinds alone, does it lose? The kind that begins it is left out, and so on until the whole does
  not lose; then those before the last are put back where that loses nothing. After `most` trials the fastest that
  does not lose is the answer. `first`: with all passes, which loses.
  """
  everything = frozenset(names)
  known: dict[Left, Trial] = {frozenset(): first}

  def trial(left: Left) -> Trial:
    if left not in known:
      if len(known) > most:
        raise _Enough
      known[left] = ask(left)
    return known[left]

  taken: list[str] = []
  try:
    if trial(everything).loses:
      return frozenset()
    while (whole := trial(frozenset(taken))).loses:
      starts = [everything.difference(whole.kinds[:count]) for count in range(len(whole.kinds) + 1)]
      number = find_guilty(len(whole.kinds), lambda count, starts=starts: not trial(starts[count]).loses)  # type: ignore[misc]
      if not number:  # it can't be made
        raise _Enough
      taken.append(whole.kinds[number - 1])
    for name in taken[:-1]:
      fewer = [other for other in taken if other != name]
      taken = taken if trial(frozenset(fewer)).loses else fewer
    return frozenset(taken)
  except _Enough:
    return min((each.relative, len(left), sorted(left), left) for left, each in known.items() if not each.loses)[3]


def take_back(attempt: Attempt, verifier: Verifier, report: Report) -> Left:
  """The passes to leave out in the next attempt, which `report.taken_back` names; none where the result stays."""
  on_gpu = any(result.provider == CUDA and not result.skipped for result in report.verification)
  for index, result in enumerate(report.verification):
    if not result.loses:
      continue
    place = result.provider.removesuffix("ExecutionProvider").lower()
    remedy = f"--keep-faster --provider {place} takes back what makes it so"
    if attempt.options.keep_faster and (
      result.provider == CUDA or not on_gpu
    ):  # a loss is one if it is one twice, here and in trials
      result = replace(result, timings=verifier.times(attempt.optimized, result.provider) or result.timings)
      left = _search(attempt, verifier, report, result) if result.loses else frozenset()
      if left:
        taken = tuple(name for name in _kinds(report, attempt.names) if name in left)
        report.taken_back = [TakenBack(taken, result.provider, result.timings)]
        return left
      remedy = "what was asked for makes it so, without any rewrite too"
    notes = (f"slower than the original; {remedy}",) if result.loses else ()
    report.verification[index] = replace(result, notes=(*result.notes, *notes))
  return frozenset()


def _search(attempt: Attempt, verifier: Verifier, report: Report, result: ProviderVerification) -> Left:
  names = [name for name in attempt.names if name != INLINE_FUNCTIONS or report.functions]
  asked = 0

  def trial(made: Report, timings: Sequence[Timing]) -> Trial:
    loses = not timings or any(timing.loses for timing in timings)
    relative = timings[0].optimized_ms / max(timings[0].original_ms, 1e-9) if timings else 1.0
    return Trial(_kinds(made, names), loses, relative)

  def ask(left: Left) -> Trial:
    nonlocal asked
    asked += 1
    text = f"looking for the rewrites that lose, trial {asked} of at most {MOST_TRIALS}"
    attempt.options.tell(f"{text}, without {len(left)} of {len(names)} passes")
    try:
      candidate, made = attempt.again(tuple(left))
    except (PassError, OrtPluginError):  # a choice of passes that nobody asked for
      return Trial((), True)
    if not made.changes and not attempt.options.input_shapes:
      return Trial((), False)  # the original
    once = trial(made, verifier.times(candidate, result.provider))
    return trial(made, verifier.times(candidate, result.provider)) if once.loses else once

  first = trial(report, result.timings)
  return find_losing(names, first, ask) if first.kinds else frozenset()


def _kinds(report: Report, names: Sequence[str]) -> tuple[str, ...]:
  """The kinds of rewrite that there were, of those that can be left out: conversions can't."""
  inlined = (INLINE_FUNCTIONS,) if report.functions else ()
  return tuple(name for name in (*inlined, *report.rewrites) if name in names)
