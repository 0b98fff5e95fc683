"""Runs original and optimized in ONNX Runtime and compares outputs: what verify.py asks, provider by provider.

Both sides run with ONNX Runtime's default graph optimizations, on the same inputs: generated ones in two sets of sizes
if there are dynamic dimensions, and the user's. On CUDA, sessions that are compared run without TF32, whose rounding
of fp32 products to 10 bits would hide errors; sessions that are timed run as a user's would.

On CUDA each case comes a second time with its values shifted, and after the plain runs the model is captured in a CUDA
graph and replayed on both (replays.py), with TF32 too where it has float32 weights: docs/architecture.md says what must
agree with what.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from ..errors import OrtPluginError, RuntimeMissingError, VerificationError, one_line
from ..model.input_shapes import Shapes
from ..report import (
  GRAPH,
  GRAPH_TF32,
  PLAIN,
  TF32,
  InputComparison,
  OutputComparison,
  ProviderVerification,
  Timeline,
  Timing,
)
from ..session import CPU, CUDA, element_type, library_path, onnxruntime, register, run_on_host
from ..session.cuda_driver import CudaError, Gpu
from ..standard import standard_on_cpu
from .compare import Tolerance, compare, compare_form
from .inputs import CANDIDATES, Case, cast_floating, generate, shifted
from .profile import profile
from .replays import Arrays, GraphSession, NotCaptured, Replayed, compare_replays
from .timing import time_in_turns

_SILENT = 4  # ONNX Runtime's log level that shows fatal errors only; its errors are reported as ours
_MOST_ROUNDING = 2  # times the original's own error with TF32: two roundings of the same values differ by as much


@dataclass(frozen=True)
class Step:
  """What is done next.

  Attributes:
      text: in a few words.
      of_original: whether the original runs, so that nothing of it is the optimized model's fault.
      mode: how it runs, as in InputComparison.
      is_timing: whether both run, to be timed.
  """

  text: str
  of_original: bool = False
  mode: str = PLAIN
  is_timing: bool = False


Tell = Callable[[Step], None]


@dataclass(frozen=True)
class Side:
  """A model on disk.

  Attributes:
      path: of the file.
      plugin: whether it needs the library.
      float_weights: whether it has weights that TF32 rounds.
  """

  path: Path
  plugin: bool
  float_weights: bool = False


@dataclass(frozen=True)
class Question:
  """What all comparisons of one verification share.

  Attributes:
      original: the model to compare with.
      light: the same without its large weights (inputs.without_weights), serialized, to generate inputs from.
      user_case: the user's inputs, or None.
      shapes: input name to shape, for the generated inputs.
      tolerance: the user's.
      device_id: of the GPU, on CUDA.
      original_refused: why the original is not to be captured in CUDA graphs; empty to try.
  """

  original: Side
  light: bytes
  user_case: Case | None = None
  shapes: Shapes | None = None
  tolerance: Tolerance = field(default_factory=Tolerance)
  device_id: int = 0
  original_refused: str = ""


@dataclass(frozen=True)
class _Reference:
  """The original on one provider: each case with its outputs, and the outputs that differ from run to run."""

  session: Any
  cases: tuple[tuple[Case, Arrays], ...]
  random_outputs: frozenset[str]

  @property
  def names(self) -> list[str]:
    """The outputs."""
    return list(self.cases[0][1])

  def pairs(self) -> list[list[tuple[Case, Arrays]]]:
    """The cases, those of the same shapes together: what one captured graph can be replayed on."""
    found: dict[tuple[Any, ...], list[tuple[Case, Arrays]]] = {}
    for case, outputs in self.cases:
      key = tuple((name, np.shape(value)) for arrays in (case.feeds, outputs) for name, value in arrays.items())
      found.setdefault(key, []).append((case, outputs))
    return list(found.values())


class Judge:
  """Compares models with one original. It keeps the sessions of the original.

  Args:
      question: what is compared.
      tell: called before each step.

  Attributes:
      is_lost: whether a CUDA error left the GPU unusable to this process.
  """

  def __init__(self, question: Question, tell: Tell = lambda _: None) -> None:
    self._question = question
    self._original = ModelProto.FromString(question.light)
    self._tell = tell
    self.is_lost = False
    self._references: dict[str, _Reference] = {}
    self._graphs: tuple[list[Replayed], str] | None = None
    self._rounded: dict[str, Arrays] = {}  # by case: what the original gives with TF32

  def load_original(self, provider: str) -> None:
    """Runs the original on `provider`, once; VerificationError where that can't be done."""
    try:
      self._reference(provider)
    except VerificationError:
      self._check_gpu(provider)
      raise

  def lacking_kernels(self, provider: str, side: Side) -> str:
    """Why a model converted to bfloat16 can't be compared here: ONNX Runtime has few such kernels on the CPU."""
    if self._question.tolerance.precision != "bf16" or provider != CPU:
      return ""
    self._tell(Step(f"loading the optimized model on {short(provider)}"))
    try:
      make_session(side, provider)
    except OrtPluginError:
      raise
    except Exception as error:  # as below
      if "NOT_IMPLEMENTED" in str(error):
        return (
          f"ONNX Runtime lacks bfloat16 kernels on the CPU ({one_line(error)[-160:]}); "
          "verify where there is a GPU, or skip the check with --no-verify"
        )
    return ""

  def verify(self, provider: str, side: Side, timed: bool) -> ProviderVerification:
    """The comparison on one provider, plain and under CUDA graphs, and times if they are wanted and it passed."""
    comparisons, session = self._compare_plain(provider, side)
    result = ProviderVerification(provider, tuple(comparisons))
    if result.passed and provider == CUDA:
      session = None  # graphs need its memory
      result = self._verify_graphs(result, side)
    if timed and result.passed:
      result = self._time(result, side, session)
    if not result.passed:
      self._check_gpu(provider)
    return result

  def agrees(self, provider: str, side: Side) -> bool:
    """Whether a model agrees with the original on every case, plain and, where it can be captured, in graphs."""
    return self.verify(provider, side, timed=False).passed

  def profile(self, side: Side | None, folder: Path) -> tuple[str, Timeline]:
    """The name of the inputs and where a model spends its time on the CPU; None is the original."""
    case, outputs = self._reference(CPU).cases[0]
    what, chosen = ("original", self._question.original) if side is None else ("optimized model", side)
    self._tell(Step(f"profiling the {what}", of_original=side is None))

    def run(session: Any) -> object:
      return run_on_host(session, _as_taken(case.feeds, session), list(outputs))

    return case.name, profile(chosen.path, folder, _options(chosen), run)

  def times(self, provider: str, side: Side) -> tuple[Timing, ...]:
    """Original and `side` in turns, in each mode in which both run: CUDA graphs first."""
    is_captured = provider == CUDA and bool(self._original_graphs()[0])
    timings, notes = self._timings(provider, side, None, is_captured)
    if notes:
      self._check_gpu(provider)
    return timings

  def _check_gpu(self, provider: str) -> None:
    if provider == CUDA:
      try:
        with Gpu(self._question.device_id) as gpu:
          gpu.check()
      except CudaError:
        self.is_lost = True

  # ---- the original

  def _reference(self, provider: str) -> _Reference:
    if provider not in self._references:
      self._references[provider] = self._make_reference(provider)
    return self._references[provider]

  def _make_reference(self, provider: str) -> _Reference:
    self._tell(Step(f"loading the original on {short(provider)}", of_original=True))
    try:
      session = self._make(self._question.original, provider)
    except OrtPluginError:
      raise
    except Exception as error:  # ONNX Runtime's own classes have no common base
      raise VerificationError(
        f"the original can't be loaded on {short(provider)}: {one_line(error)}; "
        "choose another --provider, or skip the check with --no-verify"
      ) from error
    self._tell(Step(f"running the original on {short(provider)}", of_original=True))
    names = [value.name for value in session.get_outputs()]
    cases: list[tuple[Case, Arrays]] = []
    if (user_case := self._question.user_case) is not None:
      try:
        cases.append((user_case, run_on_host(session, user_case.feeds, names)))
      except Exception as error:  # as above
        raise VerificationError(f"the original does not run on {user_case.name}: {one_line(error)}") from error
    cases += self._generated_cases(session, names, needed=user_case is None)
    first, outputs = cases[0]
    again = run_on_host(session, first.feeds, names)
    random_outputs = frozenset(name for name in names if not _same(outputs[name], again[name]))
    if provider == CUDA:
      cases = [each for case in cases for each in (case, *self._shifted(session, names, *case))]
    return _Reference(session, tuple(cases), random_outputs)

  def _generated_cases(self, session: Any, names: Sequence[str], needed: bool) -> list[tuple[Case, Arrays]]:
    """Up to two generated cases on which the original runs; `needed`: an error if there is none."""
    found: list[tuple[Case, Arrays]] = []
    failure: BaseException | None = None
    for sizes in CANDIDATES:
      try:
        case = generate(self._original, sizes, self._question.shapes)
        if all(case.name != other.name for other, _ in found):
          found.append((case, run_on_host(session, case.feeds, names)))
      except Exception as error:  # as above
        failure = failure or error
      if len(found) == 2 or (found and found[0][0].name == "generated"):
        break
    if not found and needed:
      raise VerificationError(
        f"the original does not run on generated inputs: {one_line(failure or '')}; "
        "give its inputs with --inputs data.npz, their shapes with --input-shape, or --no-verify"
      ) from failure
    return found

  def _shifted(self, session: Any, names: Sequence[str], case: Case, outputs: Arrays) -> list[tuple[Case, Arrays]]:
    """The case with its values shifted, if that gives outputs of the same shapes."""
    other = Case(f"{case.name}, shifted", shifted(case.feeds))
    try:
      found = run_on_host(session, other.feeds, names)
    except Exception:  # what a model takes, it need not take in another order: there is one case less
      return []
    same = all(np.shape(outputs[name]) == np.shape(found[name]) for name in names)
    return [(other, found)] if same else []

  # ---- comparisons

  def _make(self, side: Side, provider: str, tf32: bool = False, **options: str) -> Any:
    device = {"device_id": str(self._question.device_id)} if provider == CUDA else {}
    return make_session(side, provider, tf32, {**device, **options})

  def _compare_plain(self, provider: str, side: Side) -> tuple[list[InputComparison], Any]:
    """(the comparison of each case, the session of `side` or None if it could not be made)."""
    reference = self._reference(provider)
    self._tell(Step(f"loading the optimized model on {short(provider)}"))
    try:
      session = self._make(side, provider)
    except RuntimeMissingError:
      raise
    except Exception as error:  # as above
      return [_failure("loading", f"the optimized model can't be loaded: {one_line(error)}")], None
    self._tell(Step(f"running the optimized model on {short(provider)}"))
    results = []
    for case, expected in reference.cases:
      try:
        actual = run_on_host(session, _as_taken(case.feeds, session), reference.names)
      except Exception as error:  # as above
        results.append(_failure(case.name, f"the optimized model does not run: {one_line(error)}"))
        continue
      outputs = tuple(
        compare_form(name, expected[name], actual[name])
        if name in reference.random_outputs
        else compare(name, expected[name], actual[name], self._question.tolerance)
        for name in reference.names
      )
      results.append(InputComparison(case.name, outputs))
    return results, session

  def _graph_session(self, side: Side, tf32: bool) -> GraphSession:
    return GraphSession(lambda options: self._make(side, CUDA, tf32, **options), self._question.device_id)

  def _replay(self, side: Side, tf32: bool = False) -> tuple[list[Replayed], str]:
    """Replays of one model on each pair of cases, as far as it can be captured, and why not on the others.

    Raises the error of a run.
    """
    found: list[Replayed] = []
    try:
      with self._graph_session(side, tf32) as graphs:
        for pair in self._reference(CUDA).pairs():
          found.append(graphs.replay([_as_taken(case.feeds, graphs) for case, _ in pair]))
    except NotCaptured as error:
      return found, str(error)
    return found, ""

  def _original_graphs(self) -> tuple[list[Replayed], str]:
    if self._graphs is None and self._question.original_refused:
      self._graphs = [], self._question.original_refused
    if self._graphs is None:
      self._tell(Step("replaying the original in a CUDA graph", of_original=True, mode=GRAPH))
      try:
        self._graphs = self._replay(self._question.original)
      except Exception as error:  # what the original can't do is no fault of the optimized model
        self._graphs = [], one_line(error)
    return self._graphs

  def _verify_graphs(self, plain: ProviderVerification, side: Side) -> ProviderVerification:
    """The result of the plain runs with that of replays added, or with the reason why there are none."""
    pairs = self._reference(CUDA).pairs()
    originals, original_refused = self._original_graphs()
    rows: list[InputComparison] = []
    notes: list[str] = []
    made: list[Replayed] = []
    skipped, with_tf32 = "", 0
    for mode in (GRAPH, GRAPH_TF32) if side.float_weights else (GRAPH,):
      self._tell(Step(f"replaying the optimized model in a CUDA {mode}", mode=mode))
      try:
        replayed, refused = self._replay(side, tf32=mode == GRAPH_TF32)
      except Exception as error:  # as above
        rows.append(_failure("replays", f"the optimized model does not run: {one_line(error)}", mode))
        break
      made += replayed
      with_tf32 = len(replayed) if mode == GRAPH_TF32 else 0
      for number, found in enumerate(replayed):
        before = originals[number] if number < len(originals) else None
        for index, (case, expected) in enumerate(pairs[number]):
          row = self._compare_graph(mode, case.name, index, found, before, expected)
          if mode == GRAPH_TF32:
            row = self._compare_tf32(row, case, found.plain[index], expected)
          rows.append(row)
      if refused:
        where = f" on {pairs[len(replayed)][0][0].name}" if replayed else ""
        skipped = f"the optimized model can't be captured{where}: {refused}"
        if len(originals) > len(replayed):
          notes.append(f"the original can be captured in a CUDA graph, {skipped}")
        elif original_refused:
          skipped += "; nor can the original"
        break
    if skipped and side.float_weights and all(row.passed for row in rows):
      rows += self._run_tf32(side, [each for pair in pairs[with_tf32:] for each in pair])
    if not all(each.queued for each in made):
      notes.append("this ONNX Runtime waits for each replay, so none was queued behind another")
    return replace(
      plain,
      inputs=(*plain.inputs, *rows),
      replays=sum(each.count for each in made),
      graph_skipped=skipped,
      notes=tuple(notes),
    )

  def _compare_graph(
    self, mode: str, name: str, index: int, found: Replayed, before: Replayed | None, expected: Arrays
  ) -> InputComparison:
    """One case's replays; `before` are those of the original."""
    reference, tolerance = self._reference(CUDA), self._question.tolerance
    free, unsteady = set(reference.random_outputs), set()
    if before is not None:
      unsteady = {output for output in expected if before.differing(output)}
      own = compare_replays(before, index, expected, tolerance, reference.random_outputs, frozenset(unsteady))
      free |= {output.name for output in own if not output.passed}
    if mode == GRAPH_TF32:
      expected = {output: found.plain[index][output] for output in expected}
      free = set(reference.random_outputs)
    outputs = compare_replays(found, index, expected, tolerance, frozenset(free), frozenset(unsteady))
    return InputComparison(name, outputs, mode)

  def _run_tf32(self, side: Side, cases: Sequence[tuple[Case, Arrays]]) -> list[InputComparison]:
    """Plain runs with TF32 of cases for which nothing was captured."""
    self._tell(Step("running the optimized model with TF32", mode=TF32))
    rows: list[InputComparison] = []
    try:
      session = self._make(side, CUDA, tf32=True)
      for case, expected in cases:
        found = run_on_host(session, _as_taken(case.feeds, session), list(expected))
        floats = [name for name, wanted in expected.items() if self._is_rounded(name, wanted)]
        row = InputComparison(case.name, tuple(OutputComparison(name, True) for name in floats), TF32)
        rows.append(self._compare_tf32(row, case, found, expected))
    except Exception as error:  # as above
      rows.append(_failure("runs", f"the optimized model does not run: {one_line(error)}", TF32))
    return rows

  def _is_rounded(self, name: str, wanted: Any) -> bool:
    """Of an output whether it holds floats, and the same in every run."""
    is_float = isinstance(wanted, np.ndarray) and wanted.dtype.kind not in "biuOUST"
    return is_float and name not in self._reference(CUDA).random_outputs

  def _compare_tf32(self, row: InputComparison, case: Case, found: Arrays, expected: Arrays) -> InputComparison:
    """The row, failed where the values with TF32 are further from the original's than rounding explains.

    Only floats are asked: an index of two values that are nearly equal is another one by rounding alone.
    """
    outputs = []
    for output in row.outputs:
      wanted, name = expected[output.name], output.name
      if output.passed and self._is_rounded(name, wanted):
        reason = self._why_not_rounding(case, name, wanted, found[name])
        if reason:
          output = replace(output, passed=False, message=f"with TF32, without a graph: {reason}")
      outputs.append(output)
    return replace(row, outputs=tuple(outputs))

  def _why_not_rounding(self, case: Case, name: str, expected: Any, found: Any) -> str:
    given = self._question.tolerance
    tolerance = replace(given, computed=given.computed or "tf32")
    judged = compare(name, expected, found, tolerance)
    if judged.passed:
      return ""
    if case.name not in self._rounded:
      session = self._make(self._question.original, CUDA, tf32=True)
      self._rounded[case.name] = run_on_host(session, _as_taken(case.feeds, session), self._reference(CUDA).names)
    own = self._rounded[case.name][name]
    error, far = compare(name, expected, own, tolerance).max_abs_error, judged.max_abs_error
    if compare(name, own, found, tolerance).passed or error is None:
      return ""
    return "" if far is not None and far <= _MOST_ROUNDING * error else judged.message

  # ---- time

  def _time(self, result: ProviderVerification, side: Side, session: Any) -> ProviderVerification:
    is_captured = result.provider == CUDA and bool(result.replays and self._original_graphs()[0])
    timings, notes = self._timings(result.provider, side, session, is_captured)
    return replace(result, timings=timings, notes=(*result.notes, *notes))

  def _timings(
    self, provider: str, side: Side, session: Any, is_captured: bool
  ) -> tuple[tuple[Timing, ...], list[str]]:
    """(times in each mode, why there are none of a mode). `session`: of `side`, or None."""
    found: list[Timing] = []
    notes: list[str] = []
    for mode in (GRAPH, PLAIN) if is_captured else (PLAIN,):
      where = f"{short(provider)}{', in a CUDA graph' if mode == GRAPH else ''}"
      self._tell(Step(f"timing on {where}", mode=mode, is_timing=True))
      try:
        found.append(self._time_graphs(side) if mode == GRAPH else self._time_plain(provider, side, session))
      except Exception as error:  # memory for two more sessions may lack; times are not the verdict
        notes.append(f"not timed on {where}: {one_line(error)}")
    return tuple(found), notes

  def _time_plain(self, provider: str, side: Side, session: Any) -> Timing:
    reference = self._reference(provider)
    case, outputs = reference.cases[0]
    sessions = [reference.session, session]
    if provider == CUDA:
      sessions = [self._make(each, provider, self._timed_with_tf32) for each in (self._question.original, side)]
    elif (standard := standard_on_cpu(side.path)) is not None:  # what `ortplugin.session` runs there
      sessions[1] = onnxruntime().InferenceSession(standard, _options(side), [CPU], enable_fallback=0)
    elif session is None:
      sessions[1] = self._make(side, provider)
    original, optimized = (
      _runner(each, provider, self._question.device_id, _as_taken(case.feeds, each), list(outputs)) for each in sessions
    )
    return time_in_turns(_repeated(original), _repeated(optimized))

  def _time_graphs(self, side: Side) -> Timing:
    case, _ = self._reference(CUDA).cases[0]
    with ExitStack() as both:
      replays = []
      for each in (self._question.original, side):
        graphs = both.enter_context(self._graph_session(each, self._timed_with_tf32))
        replays.append(both.enter_context(graphs.captured(_as_taken(case.feeds, graphs))))
      return time_in_turns(replays[0], replays[1], GRAPH)

  @property
  def _timed_with_tf32(self) -> bool:
    """As in a user's session, but after a conversion that forbids it."""
    return self._question.tolerance.precision != "fp32"


def _as_taken(feeds: Mapping[str, Any], session: Any) -> dict[str, Any]:
  """The feeds in the dtypes that the session takes, which a conversion may have changed."""
  taken = {value.name: element_type(value.type) for value in session.get_inputs()}
  dtypes = {name: element[1] for name, element in taken.items() if element is not None}
  return {name: cast_floating(value, dtypes.get(name)) for name, value in feeds.items()}


def short(provider: str) -> str:
  """'CUDA' for 'CUDAExecutionProvider'."""
  return provider.removesuffix("ExecutionProvider")


def _failure(case: str, message: str, mode: str = "plain") -> InputComparison:
  return InputComparison(case, (OutputComparison("", False, message=message),), mode)


def make_session(side: Side, provider: str, tf32: bool = False, options: Mapping[str, str] | None = None) -> Any:
  """A silent session on one provider, with the CPU behind it.

  Args:
      side: the model; where it does not need the library, that is registered if it is there.
      provider: full name.
      tf32: on CUDA, let fp32 products round to TF32, which is ONNX Runtime's default.
      options: more options of the provider.
  """
  ort = onnxruntime()
  settings = [{**({"use_tf32": "1" if tf32 else "0"} if provider == CUDA else {}), **(options or {})}]
  providers = [provider]
  if provider != CPU:
    providers.append(CPU)
    settings.append({})
  session = ort.InferenceSession(
    str(side.path), _options(side), providers=providers, provider_options=settings, enable_fallback=0
  )
  if provider not in session.get_providers():
    raise RuntimeMissingError(
      f"ONNX Runtime could not start {provider}; install its libraries (`pip install ortplugin[gpu]`) "
      "or choose another --provider"
    )
  return session


def _options(side: Side) -> Any:
  options = onnxruntime().SessionOptions()
  options.log_severity_level = _SILENT
  # Threads that spin after a run would take a core from the other session, whose turn it is to be timed.
  options.add_session_config_entry("session.force_spinning_stop", "1")
  if side.plugin or _library_present():
    register(options)
  return options


def _library_present() -> bool:
  try:
    library_path()
  except RuntimeMissingError:
    return False
  return True


def _same(first: Any, second: Any) -> bool:
  """Whether two runs of one session gave the same, up to the noise of a parallel sum."""
  return compare("", first, second).passed


def _runner(
  session: Any, provider: str, device_id: int, feeds: Mapping[str, Any], names: Sequence[str]
) -> Callable[[], object]:
  """A function that runs the session once; on CUDA, with inputs and outputs on the device."""
  plain = all(isinstance(array, np.ndarray) and array.dtype.kind in "fiub" for array in feeds.values())
  plain = plain and all(array.dtype.isnative and array.dtype.num < 24 for array in feeds.values())
  if provider != CUDA or not plain:
    return lambda: run_on_host(session, feeds, names)
  ort = onnxruntime()
  binding = session.io_binding()
  values = {
    name: ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), "cuda", device_id)
    for name, array in feeds.items()
  }
  for name, value in values.items():
    binding.bind_ortvalue_input(name, value)
  for name in names:
    binding.bind_output(name, "cuda", device_id)
  return lambda: session.run_with_iobinding(binding)


def _repeated(run: Callable[[], object]) -> Callable[[int], object]:
  return lambda count: [run() for _ in range(count)]
