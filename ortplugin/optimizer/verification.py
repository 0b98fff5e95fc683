"""Verification inside `optimize`: the comparison, and which rewrite is to blame where outputs differ."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto

from ..check.compare import Tolerance
from ..check.verify import Verifier
from ..errors import VerificationError, one_line
from ..model.inline import NAME as INLINE_FUNCTIONS
from ..passes.base import Change, Pass
from ..report import CONVERSION, PLAIN, ProviderVerification, Report
from .bisection import find_guilty
from .loop import run_stages
from .options import Options


@dataclass(frozen=True)
class Attempt:
  """One optimization, with all that it takes to repeat a part of it."""

  original: ModelProto
  path: Path | None  # of the original, if it has a file
  start: ModelProto  # what the passes began with: upgraded, inlined, of fixed input shapes
  stages: Sequence[Sequence[Pass]]
  untuned: ModelProto
  optimized: ModelProto
  options: Options
  names: tuple[str, ...]  # of the passes that can be left out
  again: Callable[[Sequence[str]], tuple[ModelProto, Report]]  # the rewrites alone, without some of those


def verify_rewrites(attempt: Attempt, report: Report, when_right: Callable[[Verifier], None] = lambda _: None) -> None:
  """Compares and, when outputs differ, finds the guilty change; raises VerificationError then.

  `when_right`: called where they agree, while the verifier is open.
  """
  options = attempt.options
  with closing(
    Verifier(
      attempt.original,
      path=attempt.path,
      providers=options.providers,
      device_id=options.device_id,
      inputs=options.inputs,
      input_shapes=options.input_shapes,
      tolerance=Tolerance(options.rtol, options.atol, report.precision),
      progress=options.tell,
    )
  ) as verifier:
    report.verification = verifier.verify(attempt.optimized)
    if report.passed:
      report.profile = verifier.profile() if options.profile else None
      when_right(verifier)
      return
    failed = next(result for result in report.verification if not result.passed)
    if attempt.untuned is not attempt.optimized and verifier.agrees(attempt.untuned, failed.provider):
      error = VerificationError(_verdict(failed, None, "from the tuning on"))
      error.report = report
      raise error

    def passes_with(limit: int) -> bool:
      options.tell(f"looking for the guilty rewrite, with {limit} of {len(report.changes)} changes")
      candidate, _, _ = run_stages(attempt.start, attempt.stages, limit)
      return verifier.agrees(candidate, failed.provider)

    if (guilty := find_guilty(len(report.changes), passes_with)) is not None:
      report.guilty = report.changes[guilty - 1]
    elif report.functions and report.opset is None:  # an upgrade may be to blame, too, and knows no functions
      report.guilty = Change(INLINE_FUNCTIONS, tuple(report.functions), "")
    otherwise, remedy = "even without a rewrite", ""
    if report.opset is not None:
      old, new = report.opset
      otherwise = f"from the upgrade of opset {old} to {new} on"
      remedy = f"; export the model again with opset {new} or later"
    error = VerificationError(_verdict(failed, report.guilty, otherwise, remedy))
    error.report = report
    raise error


def _verdict(failed: ProviderVerification, guilty: Change | None, otherwise: str, remedy: str = "") -> str:
  """One line that says which output differs, where, by how much, and which rewrite is to blame, or `otherwise`."""
  case, output = next(
    (comparison, output) for comparison in failed.inputs for output in comparison.outputs if not output.passed
  )
  how = "" if case.mode == PLAIN else f", replays of a CUDA {case.mode}"
  place = f"{failed.provider.removesuffix('ExecutionProvider')}, {case.name}{how}"
  what = f"output '{output.name}' differs ({place})" if output.name else f"the check failed ({place})"
  if guilty is None:
    return f"{what} {otherwise}: {one_line(output.message, 250)}{remedy}"
  nodes = ", ".join(guilty.nodes[:3]) + (f" and {len(guilty.nodes) - 3} more" if len(guilty.nodes) > 3 else "")
  return (
    f"{what} from the rewrite '{guilty.rewrite}' of {one_line(nodes, 200)} on: {one_line(output.message, 250)}; "
    f"{_remedy(guilty)}"
  )


def _remedy(guilty: Change) -> str:
  if guilty.rewrite != CONVERSION:
    return f"--skip {guilty.rewrite} leaves it out"
  name = guilty.nodes[0].split(" ")[0].strip("'")
  return f"--precision-skip {name} leaves it in its dtype, --inputs data.npz finds what does not fit"
