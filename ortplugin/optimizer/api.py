"""`optimize`: load, prepare, passes in order until nothing changes, check, tune, verify, report."""

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from onnx import ModelProto

from ..check.inputs import load_inputs
from ..errors import ModelError, UsageError, VerificationError
from ..graph.messages import copied, standard_opset
from ..model.checks import check_structure, check_tensors
from ..model.inline import NAME as INLINE_FUNCTIONS, inline_functions
from ..model.input_shapes import Shapes, fix_input_shapes
from ..model.normalise import normalised
from ..model.storage import PathLike, StoredModel, load
from ..model.upgrade import BFLOAT16_OPSET, upgrade
from ..passes.base import NearMiss, Pass
from ..precision import BFLOAT16, FLOAT16, Precision
from ..precision.plan import Request
from ..precision.ranges import measure
from ..report import CONVERSION, Dropped, Report, TakenBack, count_operators, node_labels, weigh
from .keep_faster import Left, take_back
from .loop import run_stages
from .options import Options, Progress
from .pipeline import Stage, make_stages, select_passes, stage_of
from .tuning import tune_model
from .verification import Attempt, verify_rewrites

_SEARCHES = 2  # for what makes a model slower; what loses after so many goes whole


def optimize(
  model_or_path: ModelProto | PathLike | StoredModel,
  *,
  only: Iterable[str] | None = None,
  skip: Iterable[str] | None = None,
  layout: str = "auto",
  input_shapes: Shapes | None = None,
  verify: bool = False,
  drop_guilty: bool = False,
  keep_faster: bool = False,
  tune: bool = False,
  profile: bool = False,
  providers: Sequence[str] | None = None,
  device_id: int = 0,
  inputs: Mapping[str, object] | PathLike | None = None,
  rtol: float | None = None,
  atol: float | None = None,
  limit: int | None = None,
  precision: str | None = None,
  precision_io: bool = False,
  precision_skip: Iterable[str] | None = None,
  progress: Progress | None = None,
) -> tuple[ModelProto, Report]:
  """The model with fused operators in it, and what was done.

  Args:
      model_or_path: a model (not changed), the path of one, or one that `ortplugin.model.storage.load` has read.
      only: names of the passes to run; None runs all. `ortplugin.optimizer.PIPELINE` lists them.
      skip: names of passes to leave out.
      layout: of convolutions: "auto" (channels last in float16, bfloat16, and float32 that may round to TF32; of
          that what is slow so on a CPU, groups above all, where CUDA is among the providers, or, if none are given,
          where this machine has a GPU), "nchw" or "nhwc" (in every dtype).
      input_shapes: input name to shape, to fix dynamic dimensions before the passes run.
      verify: run original and optimized in ONNX Runtime and compare.
      drop_guilty: where outputs differ then, leave out the pass that is to blame and do everything again, tuning
          too, until they agree. `report.dropped` names what was left out. Conversions of precision are not.
      keep_faster: where the verified model is slower than the original, in a CUDA graph or in plain runs, leave out
          the passes that make it so, or all of them, and do everything again. `report.taken_back` names them. By
          times on CUDA, or on the CPU where nothing is verified on CUDA.
      tune: time each fused node on this machine and keep what is fastest (`ortplugin.check.tune`).
      profile: where outputs agree, time the operators of both on the CPU (`report.profile`).
      providers: execution providers to verify on; None takes the CPU, and CUDA where it is present. `tune` measures
          on the first one; None takes CUDA.
      device_id: the number of the GPU, in this process, to verify and tune on.
      inputs: arrays by input name, or the path of an .npz file, to verify on besides generated ones. `tune` measures
          on them; without them on generated ones. `precision` keeps operators in float32 whose values on them are too
          large.
      rtol: relative tolerance of the verification; None takes the dtype's own.
      atol: absolute tolerance of the verification; None takes the dtype's own, scaled by the output's magnitude.
      limit: the most changes to make; None makes all.
      precision: "fp16", "bf16", "fp32" or "tf32": what floating operators compute in (`ortplugin.precision`). The
          verification allows for that dtype's rounding.
      precision_io: the dtypes of inputs and outputs change too.
      precision_skip: names and types of operators that keep their dtype.
      progress: called with a few words at each step.

  Raises:
      UsageError: an argument is wrong. ModelError: the model is invalid.
      VerificationError: outputs differ; `report` on the error holds the report with the guilty change.
  """
  return optimize_with(model_or_path, Options(
      only=None if only is None else tuple(only), skip=tuple(skip or ()), layout=layout, input_shapes=input_shapes,
      verify=verify, drop_guilty=drop_guilty, keep_faster=keep_faster, tune=tune, profile=profile,
      providers=providers, device_id=device_id, inputs=inputs, rtol=rtol, atol=atol, limit=limit, precision=precision,
      precision_io=precision_io, precision_skip=tuple(precision_skip or ()), tell=progress or (lambda _: None),
  ))  # fmt: skip


def optimize_with(model_or_path: ModelProto | PathLike | StoredModel, options: Options) -> tuple[ModelProto, Report]:
  """`optimize` with its arguments in a record; repeats it without what is to blame for differences and losses."""
  options.check()
  dropped: list[Dropped] = []
  taken_back: list[TakenBack] = []
  while True:
    try:
      model, report, losing = _optimize_once(model_or_path, options)
    except VerificationError as error:
      if error.report is None:
        raise
      error.report.dropped, error.report.taken_back = dropped, taken_back
      guilty = error.report.guilty
      if not options.drop_guilty or guilty is None or guilty.rewrite in (CONVERSION, *options.skip):
        raise
      reason = str(error).rpartition("; ")[0]  # without the remedy, which is taken here
      dropped.append(Dropped(guilty.rewrite, guilty.nodes, reason))
      options = replace(options, skip=(*options.skip, guilty.rewrite))
    else:
      taken_back += report.taken_back
      if not losing:
        report.dropped, report.taken_back = dropped, taken_back
        return model, report
      only = options.only if len(taken_back) <= _SEARCHES else ()
      options = replace(options, only=only, skip=(*options.skip, *sorted(losing)))


def _optimize_once(
  model_or_path: ModelProto | PathLike | StoredModel, options: Options
) -> tuple[ModelProto, Report, Left]:
  """(the result, what was done, the passes to leave out because the result is slower)."""
  report, tell = Report(), options.tell
  with _timed(report, "load"):
    tell("loading")
    original, path = _original(model_or_path)
  report.input = None if path is None else str(path)
  report.before, report.weights_before = count_operators(original), weigh(original)
  report.labels_before = node_labels(original)
  with _timed(report, "passes"):
    rewritten, start, stages, names = _rewrite(original, options, report)
  optimized = rewritten
  with _timed(report, "check"):
    tell("checking the result")
    check_result(optimized)
  if options.tune:
    with _timed(report, "tune"):
      optimized, report.tuning = tune_model(original, optimized, options)
      check_result(optimized)
  report.after, report.weights_after = count_operators(optimized), weigh(optimized)
  report.labels_after = node_labels(optimized)
  if options.verify and (report.changes or options.input_shapes or report.tuned):

    def again(left: Sequence[str]) -> tuple[ModelProto, Report]:
      made = Report()
      return _rewrite(original, replace(options, skip=(*options.skip, *left)), made)[0], made

    attempt = Attempt(original, path, start, stages, rewritten, optimized, options, names, again)
    losing: list[Left] = []
    with _timed(report, "verify"):
      verify_rewrites(attempt, report, lambda verifier: losing.append(take_back(attempt, verifier, report)))
    return optimized, report, losing[0]
  return optimized, report, frozenset()


def _rewrite(
  original: ModelProto, options: Options, report: Report
) -> tuple[ModelProto, ModelProto, tuple[tuple[Pass, ...], ...], tuple[str, ...]]:
  """(what the passes make, of what, the stages, the names of what could be left out); `report` has the changes."""
  target = options.target()
  tf32 = {"tf32": True, "fp32": False}.get(target.name) if target is not None else None
  narrow = target is not None and target.narrows
  passes = select_passes(options.only, options.skip, options.layout, tf32, options.is_for_gpu(narrow or tf32 is True))
  prepared = _prepare(original, options, target)
  start = prepared.model
  stages: tuple[tuple[Pass, ...], ...] = (tuple(passes),)
  if target is not None:
    report.precision = target.name
    peaks = _peaks(target, original, start, options)
    request = Request(target, frozenset(options.precision_skip), peaks, frozenset(step.name for step in passes))
    stages = make_stages(passes, request, options.precision_io)
  optimized, report.changes, report.near_misses = run_stages(start, stages, options.limit, options.tell)
  report.near_misses = [*prepared.near_misses, *report.near_misses]
  if report.changes or options.input_shapes:
    report.functions, report.opset = prepared.functions, prepared.opset
  elif prepared.differs:  # nothing to do is nothing changed
    optimized = copied(original)
  asked_for = Stage.TF32 | Stage.EXACT
  names = [step.name for step in passes if not stage_of(step) & asked_for]
  return optimized, start, stages, (INLINE_FUNCTIONS, *names)


@dataclass(frozen=True)
class _Prepared:
  """What the passes begin with."""

  model: ModelProto
  differs: bool  # whether functions were inlined or the opset upgraded
  functions: dict[str, int]  # calls that became bodies
  opset: tuple[int, int] | None  # before and after an upgrade
  near_misses: list[NearMiss]


def _prepare(original: ModelProto, options: Options, target: Precision | None) -> _Prepared:
  """The model with the bodies of local functions in it, of an opset that passes know, and of fixed input shapes."""
  options.tell("preparing")
  inlined: ModelProto = original
  functions: dict[str, int] = {}
  misses: list[NearMiss] = []
  if INLINE_FUNCTIONS not in options.skip:
    inlined, functions, misses = inline_functions(original)
  start = upgraded = upgrade(inlined)
  if target is not None and target.dtype == BFLOAT16:
    start = upgraded = upgrade(inlined, BFLOAT16_OPSET, "which bfloat16 needs")
  if options.input_shapes:
    start = copied(upgraded)
    fix_input_shapes(start, options.input_shapes)
  versions = None if upgraded is inlined else (standard_opset(inlined), standard_opset(upgraded))
  return _Prepared(start, upgraded is not original, functions, versions, misses)


def _peaks(target: Precision, original: ModelProto, start: ModelProto, options: Options) -> Mapping[str, float]:
  """The largest magnitude of each value on the user's inputs, where that matters."""
  if options.inputs is None or target.dtype != FLOAT16:
    return {}
  options.tell("measuring the range of activations")
  return measure(start, load_inputs(options.inputs, original).feeds)


def check_result(model: ModelProto) -> None:
  """Checks what the passes made; an error here is a defect of this package."""
  try:
    check_tensors(model)
    check_structure(model)
  except ModelError as error:
    raise RuntimeError(f"the rewritten model is invalid, which is a defect of ortplugin: {error}") from error


def _original(model_or_path: ModelProto | PathLike | StoredModel) -> tuple[ModelProto, Path | None]:
  if isinstance(model_or_path, StoredModel):
    return model_or_path.proto, model_or_path.path
  if isinstance(model_or_path, ModelProto):
    check_tensors(model_or_path)
    model = normalised(model_or_path)
    check_structure(model)
    return model, None
  if not isinstance(model_or_path, (str, os.PathLike)):
    raise UsageError(f"optimize takes an onnx.ModelProto or a path, not {type(model_or_path).__name__}")
  stored = load(model_or_path)
  return stored.proto, stored.path


@contextmanager
def _timed(report: Report, step: str) -> Iterator[None]:
  start = time.perf_counter()
  try:
    yield
  finally:
    report.seconds[step] = time.perf_counter() - start
