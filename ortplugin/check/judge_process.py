"""A Judge in a process of its own: the same answers, and a verdict where ONNX Runtime dies, hangs or takes all memory.

A crash of ONNX Runtime, or of a kernel, while a session is made or run is the end of its process. Here that is a
failure of the model that was at work, so that it is named like any other, and the rewrite that is to blame with it.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import VerificationError, one_line
from ..report import GRAPH, InputComparison, OutputComparison, ProviderVerification, Timeline, Timing
from .child import Child, DiedError
from .judge import Judge, Question, Side, Step

ORIGINAL_SECONDS = 3600.0  # of one step of the original: whoever has such a model knows that it is slow
LEAST_SECONDS = 900.0  # of one step of the optimized model, which may have hundreds of kernels to compile
_TIMES = 50  # the slowest step of the original, if that is longer


class JudgeProcess:
  """See Judge. Close it at the end.

  Args:
      question: what is compared.
      tell: called before each step.
      judge: what makes the Judge there.
      seconds: the longest that a step of the optimized model may take; None derives it from the original's.
      memory: bytes that the process may take; None takes most of what is free.
  """

  def __init__(
    self,
    question: Question,
    tell: Callable[[Step], None] = lambda _: None,
    *,
    judge: Callable[..., Judge] = Judge,
    seconds: float | None = None,
    memory: int | None = None,
  ) -> None:
    self._question = question
    self._say = tell
    self._judge = judge
    self._seconds = seconds
    self._memory = memory
    self._slowest = 0.0
    self._step: tuple[Step | None, float] = (None, 0.0)
    self._child = self._make()

  def close(self) -> None:
    """Ends the process."""
    self._child.close()

  def load_original(self, provider: str) -> None:
    """See Judge."""
    self._call("load_original", provider)

  def lacking_kernels(self, provider: str, side: Side) -> str:
    """See Judge; where the model kills the process, `verify` says so."""
    try:
      return str(self._call("lacking_kernels", provider, side))
    except DiedError:
      return ""

  def verify(self, provider: str, side: Side, timed: bool) -> ProviderVerification:
    """See Judge; where the optimized model kills the process, that is a comparison that failed."""
    notes: tuple[str, ...] = ()
    while True:
      try:
        result: ProviderVerification = self._call("verify", provider, side, timed)
        return replace(result, notes=(*result.notes, *notes))
      except DiedError as error:
        step: Step = error.doing
        died = f"ONNX Runtime {error} while {step.text}"
        if step.of_original:  # in CUDA graphs; what it does in plain runs is an error of its own
          self._child.close()
          self._question = replace(self._question, original_refused=died)
          self._child = self._make()
        elif step.is_timing:
          timed, notes = False, (died,)
        else:
          output = OutputComparison("", False, message=died)
          return ProviderVerification(provider, (InputComparison("process", (output,), step.mode),))

  def profile(self, side: Side | None, folder: Path) -> tuple[str, Timeline]:
    """See Judge; VerificationError where it can't be done."""
    try:
      found: tuple[str, Timeline] = self._call("profile", side, folder)
    except VerificationError:
      raise
    except Exception as error:  # the process died, or an error of ONNX Runtime's own
      raise VerificationError(f"the model can't be profiled: {one_line(error)}") from error
    return found

  def agrees(self, provider: str, side: Side) -> bool:
    """See Judge."""
    return self.verify(provider, side, timed=False).passed

  def times(self, provider: str, side: Side) -> tuple[Timing, ...]:
    """See Judge; none where a process dies."""
    try:
      return tuple(self._call("times", provider, side))
    except (DiedError, VerificationError):
      return ()

  def _make(self) -> Child:
    return Child(self._judge, self._question, tell=self._tell, memory=self._memory)

  def _call(self, method: str, *arguments: Any) -> Any:
    """Raises DiedError with the step at which the process died, VerificationError where the original did it."""
    self._step = (None, time.monotonic())
    try:
      return self._child.call(method, *arguments, seconds=self._limit)
    except DiedError as error:
      step: Step | None = error.doing
      if step is None:
        raise VerificationError(f"the process of the verification {error}") from error
      if step.of_original and step.mode != GRAPH:
        raise VerificationError(
          f"ONNX Runtime {error} while {step.text}; "
          "choose another --provider or other --inputs, or skip the check with --no-verify"
        ) from error
      raise
    finally:
      self._tell(None)

  def _tell(self, step: Step | None) -> None:
    before, begun = self._step
    if before is not None and before.of_original:
      self._slowest = max(self._slowest, time.monotonic() - begun)
    self._step = (step, time.monotonic())
    if step is not None:
      self._say(step)

  def _limit(self, step: Step | None) -> float:
    if step is None or step.of_original:
      return ORIGINAL_SECONDS
    return self._seconds if self._seconds is not None else max(LEAST_SECONDS, _TIMES * self._slowest)
