"""Which passes make a model slower than the original, and are taken back: the clock's answer to bisection's question.

Judged is the result as a whole: it must not be slower than the original, in a CUDA graph where both can be captured,
nor in plain runs. What loses by itself and makes room for a larger gain may stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ortplugin.check.verify import Verifier
from ortplugin.errors import OrtPluginError
from ortplugin.model.inline import NAME as INLINE_FUNCTIONS
from ortplugin.optimizer.bisection import find_guilty
from ortplugin.optimizer.loop import PassError
from ortplugin.optimizer.options import Options
from ortplugin.optimizer.verification import Attempt
from ortplugin.report import ProviderVerification, Report, TakenBack, Timing
from ortplugin.session import CUDA

MOST_TRIALS = 32  # optimizations that one search times

Left = frozenset[str]
"""Passes that are left out."""


@dataclass(frozen=True)
class Trial:
    """What is made without some passes.

    Attributes:
        kinds: the passes that rewrote something, in the order in which they first did.
        loses: whether it is slower than the original, or could not be timed.
        relative: its time over the original's, in the first mode; what it is compared by with other trials.
    """

    kinds: tuple[str, ...]
    loses: bool
    relative: float = 1.0


class _Enough(Exception):  # noqa: N818, it is an answer
    """There is no more to ask."""


def find_losing(names: Sequence[str], first: Trial, ask: Callable[[Left], Trial], most: int = MOST_TRIALS) -> Left:
    """The passes without which the result loses no more; none where even without all of `names` it loses.

    Bisection as for wrong rewrites (`find_guilty`), over kinds: with the first of them alone, and no other pass, does
    the result lose? The one that begins it is left out, and so on until the result does not lose. Then what was left
    out before the last is put back where that loses nothing. What is returned was asked, and did not lose.

    Args:
        names: all passes that can be left out.
        first: with none of them left out; it loses.
        ask: times what is made without some passes; is asked at most once for the same ones.
        most: trials. When there have been so many, the fastest that does not lose is the answer.
    """
    everything = frozenset(names)
    known: dict[Left, Trial] = {frozenset(): first}

    def trial(left: Left) -> Trial:
        if left not in known:
            if len(known) > most:
                raise _Enough
            known[left] = ask(left)
        return known[left]

    taken: Left = frozenset()
    last = ""
    try:
        if trial(everything).loses:
            return frozenset()
        while trial(taken).loses:
            kinds = trial(taken).kinds
            left = [everything.difference(kinds[:count]) for count in range(len(kinds) + 1)]
            number = find_guilty(len(kinds), lambda count, left=left: not trial(left[count]).loses)  # type: ignore[misc]
            if not number:  # it can't be made
                raise _Enough
            last = kinds[number - 1]
            taken |= {last}
        for name in sorted(taken - {last}):
            if not trial(taken - {name}).loses:
                taken -= {name}
        return taken
    except _Enough:
        right = [(each.relative, len(left), sorted(left)) for left, each in known.items() if not each.loses]
        return frozenset(min(right)[2])


def take_back(attempt: Attempt, verifier: Verifier, report: Report) -> Left:
    """The passes to leave out in the next attempt, which `report.taken_back` then names; none where the result stays.

    The provider that decides is CUDA, or with keep_faster=True the CPU where there is no other. A loss is timed twice
    before it counts.
    """
    options = attempt.options
    for index, result in enumerate(report.verification):
        if not result.loses:
            continue
        reason = _why_it_stays(options, result, report.verification)
        if not reason:
            timings = verifier.times(attempt.optimized, result.provider)
            result = replace(result, timings=timings or result.timings)
            names = tuple(name for name in attempt.names if name != INLINE_FUNCTIONS or report.functions)
            kinds = _kinds(report, names)
            left = _search(attempt, verifier, report, result, names) if result.loses and kinds else frozenset()
            if left:
                taken = tuple(name for name in kinds if name in left)
                report.taken_back = [TakenBack(taken, result.provider, result.timings)]
                return left
            if result.loses:
                reason = "what was asked for costs that, without any rewrite too"
        if reason and result.loses:
            result = replace(result, notes=(*result.notes, f"slower than the original; {reason}"))
        report.verification[index] = result
    return frozenset()


def _search(
    attempt: Attempt, verifier: Verifier, report: Report, result: ProviderVerification, names: Sequence[str]
) -> Left:
    options = attempt.options
    asked = 0

    def ask(left: Left) -> Trial:
        nonlocal asked
        asked += 1
        text = f"without {len(left)} of {len(names)} passes, trial {asked} of at most {MOST_TRIALS}"
        options.tell(f"looking for the rewrites that lose, {text}")
        try:
            candidate, made = attempt.again(tuple(sorted(left)))
        except (PassError, OrtPluginError):  # a set of passes that nobody asked for; it is not taken
            return Trial((), True)
        if not made.changes and not options.input_shapes:
            return Trial((), False)  # the original
        return _trial(_kinds(made, names), verifier.times(candidate, result.provider))

    if attempt.is_last:
        return frozenset(names) if not ask(frozenset(names)).loses else frozenset()
    return find_losing(names, _trial(_kinds(report, names), result.timings), ask)


def _trial(kinds: tuple[str, ...], timings: Sequence[Timing]) -> Trial:
    if not timings:
        return Trial(kinds, True)
    relative = timings[0].optimized_ms / max(timings[0].original_ms, 1e-9)
    return Trial(kinds, any(timing.loses for timing in timings), relative)


def _kinds(report: Report, names: Sequence[str]) -> tuple[str, ...]:
    """The kinds of rewrite that there were and that can be left out, which conversions can't."""
    inlined = (INLINE_FUNCTIONS,) if report.functions else ()
    return tuple(name for name in (*inlined, *report.rewrites) if name in names)


def _why_it_stays(options: Options, result: ProviderVerification, results: Sequence[ProviderVerification]) -> str:
    """Why a result that loses on one provider is left as it is; empty where it is not."""
    compared = {each.provider for each in results if not each.skipped}
    if options.keep_faster is False:
        return "taking rewrites back is switched off"
    if CUDA in compared:
        return "" if result.provider == CUDA else "what the GPU says decides, choose --provider cpu for a CPU"
    return "" if options.keep_faster else "--keep-faster takes back the rewrites that make it so"
