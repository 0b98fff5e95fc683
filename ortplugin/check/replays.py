"""What a session gives under a CUDA graph: many replays, queued without waiting, each with its outputs kept.

Kernels of a captured graph overlap in another way than in plain runs, and another one in each replay, so one replay
that agrees says little. Here a session with `enable_cuda_graph` works on a stream of ours; replay after replay is
queued on it, and the outputs of each are copied on the stream to memory of their own. What varies from replay to
replay, so that what overlaps does too:

- the inputs: a kernel that reads too early finds what the replay before left, which is wrong only if inputs differed;
- other kernels, which occupy a part of the GPU on a second stream and fill its caches, and some on the stream itself;
- the outputs' memory, which is overwritten before every other replay.

verify.py, tune.py and benchmarks/timing.py judge by what this returns.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import one_line
from ..report import OutputComparison
from ..session import element_type, host_inputs, host_outputs, onnxruntime, to_numpy
from ..session.cuda_driver import CudaError, Gpu
from .compare import Tolerance, compare, compare_form

REPLAYS = 40
_LEAST = 8  # replays, however long one takes
_SECONDS = 4.0  # of replays of one case, about
_KEPT_BYTES = 2**30  # of outputs that wait on the GPU for the host
_PLAIN_RUNS = 3
_KINDS = 6  # of different results of a case that are kept
_LONGEST = 2000.0  # microseconds of one kernel that disturbs
_GARBAGE = 0xFF  # NaN in every floating dtype, -1 in integers

Arrays = dict[str, Any]
MakeSession = Callable[[Mapping[str, str]], Any]
"""Options of the CUDA provider -> a session."""


class NotCaptured(Exception):  # noqa: N818, it is an answer
  """The model can't be captured in a CUDA graph; the message says why, in one line."""


@dataclass(frozen=True)
class Result:
  """Outputs, to the bit, and how many replays gave them, of which this was the first (from 0)."""

  outputs: Arrays
  first: int
  count: int


@dataclass(frozen=True)
class Replayed:
  """What replays of one captured graph gave.

  Attributes:
      count: of replays, those of all cases together.
      queued: whether the session returned before the GPU was done: ONNX Runtime before 1.20 waits for each replay.
      results: for each case the different results, the earliest first; at most `_KINDS` of them.
      others: for each case, how many replays gave yet other results.
      plain: for each case, what a run of the same session without a graph gave.
      unsteady: outputs whose bits differ between runs of the same session without a graph.
  """

  count: int
  queued: bool
  results: tuple[tuple[Result, ...], ...]
  others: tuple[int, ...]
  plain: tuple[Arrays, ...]
  unsteady: frozenset[str]

  def differing(self, name: str) -> int:
    """How many replays gave other bits for this output than the first one of their case."""
    return sum(
      sum(result.count for result in results[1:] if not _same_bits(result.outputs[name], results[0].outputs[name]))
      + others
      for results, others in zip(self.results, self.others, strict=True)
    )


@dataclass
class _Bound:
  """The memory of one captured graph."""

  inputs: dict[str, tuple[int, int]]  # address and bytes
  outputs: dict[str, tuple[int, int]]
  forms: dict[str, tuple[tuple[int, ...], np.dtype[Any]]]  # of the outputs
  binding: Any
  milliseconds: float = 0.0  # of one replay, when nothing else runs


class GraphSession:
  """A session with `enable_cuda_graph` on a stream of ours, within `with`. One thread must do it all: ONNX Runtime
  keeps a graph for the thread that captured it.

  Args:
      make: makes the session with the options of the CUDA provider that it is given.
      device_id: of the GPU.
      gpu: what stands for the GPU; None is the GPU itself.
  """

  def __init__(self, make: MakeSession, device_id: int = 0, gpu: Gpu | None = None) -> None:
    self._make = make
    self._device_id = device_id
    self._gpu = gpu if gpu is not None else Gpu(device_id)
    self._session: Any = None
    self._stream = self._other = 0
    self._graphs = 0

  def __enter__(self) -> GraphSession:
    """Raises NotCaptured where ONNX Runtime refuses the session."""
    try:
      self._gpu.__enter__()
    except CudaError as error:
      raise NotCaptured(one_line(error)) from error
    try:
      self._stream, self._other = self._gpu.stream(), self._gpu.stream()
      self._session = self._make(
        {"device_id": str(self._device_id), "enable_cuda_graph": "1", "user_compute_stream": str(self._stream)}
      )
    except CudaError:
      self._close()
      raise
    except Exception as error:  # ONNX Runtime's own classes have no common base
      self._close()
      raise NotCaptured(reason(error)) from error
    return self

  def __exit__(self, *_: object) -> None:
    self._close()

  def _close(self) -> None:
    if self._stream:
      self._gpu.give_up_capture(self._stream)
    self._session = None  # before its stream
    self._gpu.__exit__(None, None, None)

  def get_inputs(self) -> Any:
    """Those of the session."""
    return self._session.get_inputs()

  def replay(self, cases: Sequence[Mapping[str, Any]], replays: int = REPLAYS) -> Replayed:
    """Captures the model for these inputs and replays it on them.

    Args:
        cases: host arrays by input name, of the same shapes and giving outputs of the same shapes.
        replays: the most to make; fewer where one takes long.

    Raises NotCaptured where capturing fails, an input or output is no dense tensor, or memory lacks. Any other
    error is that of a run.
    """
    gpu, session = self._gpu, self._session
    with self._memory() as allocate:
      held = self._upload(cases, allocate)
      bound, plain, unsteady = self._capture(held, cases, allocate)
      started = time.perf_counter()
      session.run_with_iobinding(bound.binding, self._options())
      gpu.synchronize(self._stream)
      bound.milliseconds = (time.perf_counter() - started) * 1e3
      count = min(replays, max(_LEAST, int(_SECONDS * 1e3 / max(bound.milliseconds, 1e-3))))
      results, others, queued = self._queue(bound, held, count, allocate)
      return Replayed(count, queued, results, others, plain, unsteady)

  @contextlib.contextmanager
  def captured(self, feeds: Mapping[str, Any]) -> Iterator[Callable[[int], None]]:
    """A function that replays the model so many times on these inputs and waits. Raises as `replay`."""
    with self._memory() as allocate:
      bound, _, _ = self._capture(self._upload([feeds], allocate), [feeds], allocate)
      options = self._options()

      def replay(count: int) -> None:
        for _ in range(count):
          self._session.run_with_iobinding(bound.binding, options)
        self._gpu.synchronize(self._stream)

      yield replay

  # ---- the parts

  @contextlib.contextmanager
  def _memory(self) -> Iterator[Callable[[int], int]]:
    """A function that allocates what is freed at the end, when the streams are at rest."""
    owned: list[int] = []

    def allocate(size: int) -> int:
      owned.append(self._gpu.allocate(size))
      return owned[-1]

    try:
      yield allocate
    except Exception as error:
      if "out of memory" in str(error).lower() or "failed to allocate memory" in str(error).lower():
        raise NotCaptured(reason(error)) from error
      raise
    finally:
      for stream in (self._stream, self._other):
        _quietly(self._gpu.synchronize, stream)
      for address in owned:
        _quietly(self._gpu.release, address)

  def _elements(self, values: Sequence[Any]) -> dict[str, tuple[int, np.dtype[Any]]]:
    found = {}
    for value in values:
      if (element := element_type(value.type)) is None or element[1] == np.dtype(np.object_):
        raise NotCaptured(f"'{value.name}' is a {value.type}, which no CUDA graph reads or writes")
      found[value.name] = element
    return found

  def _upload(self, cases: Sequence[Mapping[str, Any]], allocate: Callable[[int], int]) -> list[dict[str, int]]:
    """Each case's inputs on the GPU: name to address."""
    self._elements([value for value in self._session.get_inputs() if value.name in cases[0]])
    for name in host_inputs(self._session) & cases[0].keys():
      if any(not np.array_equal(case[name], cases[0][name]) for case in cases):
        raise NotCaptured(f"input '{name}' is read on the host, where replays keep the value of the capture")
    held: list[dict[str, int]] = []
    for case in cases:
      shapes = {name: np.shape(array) for name, array in case.items()}
      if shapes != {name: np.shape(array) for name, array in cases[0].items()}:
        raise ValueError(f"the cases of one graph have different shapes: {shapes}")
      held.append({})
      for name, array in case.items():
        held[-1][name] = allocate(array.nbytes)
        self._gpu.upload(held[-1][name], np.ascontiguousarray(array))
    return held

  def _capture(
    self, held: Sequence[Mapping[str, int]], cases: Sequence[Mapping[str, Any]], allocate: Callable[[int], int]
  ) -> tuple[_Bound, tuple[Arrays, ...], frozenset[str]]:
    """Runs the cases without a graph, then captures one: (it, outputs without, those that vary without)."""
    gpu, session = self._gpu, self._session
    taken = self._elements([*session.get_inputs(), *session.get_overridable_initializers()])
    given = self._elements(session.get_outputs())
    shapes = {name: list(np.shape(array)) for name, array in cases[0].items()}
    on_host = host_outputs(session)
    unsteady: set[str] = set()
    sizes: dict[str, int] = {}
    forms: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
    plain: list[Arrays] = []
    for addresses in held:
      runs = []
      for number in range(_PLAIN_RUNS):
        trial = session.io_binding()
        for name, address in addresses.items():
          trial.bind_input(name, "cuda", self._device_id, taken[name][0], shapes[name], address)
        for name in given:
          trial.bind_output(name, *(("cpu",) if name in on_host else ("cuda", self._device_id)))
        if number:
          gpu.disturb(self._other, 64 * number, _LONGEST)
        session.run_with_iobinding(trial, self._options("-1", wait=True))
        gpu.synchronize(self._stream)
        values = dict(zip(given, trial.get_outputs(), strict=True))
        found = {name: (tuple(value.shape()), given[name][1]) for name, value in values.items()}
        if forms and found != forms:
          raise NotCaptured("the outputs' shapes depend on the values of the inputs")
        forms = found
        sizes = {name: _bytes(*form) for name, form in forms.items()}
        runs.append(
          {
            name: np.frombuffer(to_numpy(value, given[name]).tobytes(), np.uint8)
            if name in on_host
            else gpu.download(value.data_ptr(), sizes[name])
            for name, value in values.items()
          }
        )
      unsteady |= {name for name in given for run in runs if not np.array_equal(run[name], runs[0][name])}
      plain.append(_typed(runs[0], forms))
    gpu.synchronize(self._other)  # the capture begins on a GPU at rest
    bound = _Bound({}, {}, forms, session.io_binding())
    for name, array in cases[0].items():
      bound.inputs[name] = (allocate(array.nbytes), array.nbytes)
      gpu.copy(bound.inputs[name][0], held[0][name], array.nbytes, self._stream)
    gpu.synchronize(self._stream)  # binding copies what the session reads on the host
    for name in cases[0]:
      bound.binding.bind_input(name, "cuda", self._device_id, taken[name][0], shapes[name], bound.inputs[name][0])
    for name, (element, _) in given.items():
      bound.outputs[name] = (allocate(sizes[name]), sizes[name])
      shape = list(forms[name][0])
      bound.binding.bind_output(name, "cuda", self._device_id, element, shape, bound.outputs[name][0])
    self._graphs += 1
    try:
      session.run_with_iobinding(bound.binding, self._options(wait=True))
    except Exception as error:
      gpu.give_up_capture(self._stream)
      raise NotCaptured(reason(error)) from error
    return bound, tuple(plain), frozenset(unsteady)

  def _options(self, graph: str = "", wait: bool = False) -> Any:
    """Options of a run: of the newest graph, or of `graph`, where "-1" is none.

    `wait`: needed where kernels run one by one. What they keep on the host is freed by a run that waits, or else as
    the session ends; ONNX Runtime 1.31 does that in a callback of CUDA, where CUDA refuses it: the process dies.
    """
    options = onnxruntime().RunOptions()
    options.add_run_config_entry("gpu_graph_id", graph or str(self._graphs))
    if not wait:
      options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    return options

  def _queue(
    self, bound: _Bound, held: Sequence[Mapping[str, int]], count: int, allocate: Callable[[int], int]
  ) -> tuple[tuple[tuple[Result, ...], ...], tuple[int, ...], bool]:
    """Replays in batches whose outputs fit in memory: undisturbed ones and disturbed ones take turns."""
    gpu, session = self._gpu, self._session
    each = sum(-(-size // 256) * 256 for _, size in bound.outputs.values()) or 1
    batch = max(1, min(-(-count // 2), min(_KEPT_BYTES, gpu.free_bytes() // 2) // each))
    kept = [{name: allocate(size) for name, (_, size) in bound.outputs.items()} for _ in range(batch)]
    options = self._options()
    rng = random.Random(0)
    queued = self._is_queued(bound, options)
    found: list[list[Result]] = [[] for _ in held]
    others = [0 for _ in held]
    done, disturbed, loaded = 0, False, -1
    while done < count:
      size = min(batch, count - done)
      order = []
      for number in range(done, done + size):
        case = (number // 2 + number // 5) % len(held)  # now the same as before, now another
        order.append(case)
        if disturbed:
          self._disturb(rng, bound.milliseconds * 1e3)
        if number % 2:
          for address, length in bound.outputs.values():
            gpu.fill(address, _GARBAGE, length, self._stream)
        if case != loaded:
          for name, (address, length) in bound.inputs.items():
            gpu.copy(address, held[case][name], length, self._stream)
          loaded = case
        session.run_with_iobinding(bound.binding, options)
        for name, (address, length) in bound.outputs.items():
          gpu.copy(kept[number - done][name], address, length, self._stream)
      gpu.synchronize(self._stream)
      gpu.synchronize(self._other)
      for number, case in enumerate(order):
        raw = {name: gpu.download(kept[number][name], length) for name, (_, length) in bound.outputs.items()}
        others[case] += not _count_in(found[case], _typed(raw, bound.forms), done + number)
      done += size
      disturbed = not disturbed
    return tuple(tuple(results) for results in found), tuple(others), queued

  def _is_queued(self, bound: _Bound, options: Any) -> bool:
    """Whether a run returns while the GPU still has the kernel before it to do."""
    self._gpu.disturb(self._stream, 1, 10 * _LONGEST)
    self._session.run_with_iobinding(bound.binding, options)
    queued = self._gpu.is_busy(self._stream)
    self._gpu.synchronize(self._stream)
    return queued

  def _disturb(self, rng: random.Random, microseconds: float) -> None:
    """Work of others for about as long as one replay takes."""
    left = microseconds * rng.uniform(0.2, 1.5)
    for _ in range(4):
      self._gpu.disturb(self._other, rng.choice((1, 8, 33, 66, 132, 264)), min(left, _LONGEST))
      left -= _LONGEST
      if left <= 0:
        break
    if rng.random() < 0.5:
      self._gpu.disturb(self._stream, rng.choice((1, 132)), rng.uniform(1, 50))


def _typed(raw: Mapping[str, Any], forms: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]) -> Arrays:
  """Bytes as arrays of these shapes and dtypes."""
  return {name: data.view(forms[name][1]).reshape(forms[name][0]) for name, data in raw.items()}


def _count_in(results: list[Result], outputs: Arrays, number: int) -> bool:
  """Adds replay `number` to these results; False where there are too many different ones already."""
  for index, known in enumerate(results):
    if all(_same_bits(array, known.outputs[name]) for name, array in outputs.items()):
      results[index] = Result(known.outputs, known.first, known.count + 1)
      return True
  if len(results) < _KINDS:
    results.append(Result(outputs, number, 1))
    return True
  return False


def _same_bits(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
  return bool(np.array_equal(one.reshape(-1).view(np.uint8), other.reshape(-1).view(np.uint8)))


def _bytes(shape: Sequence[int], dtype: np.dtype[Any]) -> int:
  return int(np.prod(shape, dtype=np.int64)) * dtype.itemsize


def _quietly(function: Callable[..., object], *arguments: object) -> None:
  """For what cleans up after a GPU that may be lost: the error that counts is raised already."""
  with contextlib.suppress(CudaError):
    function(*arguments)


def reason(error: BaseException | str) -> str:
  """ONNX Runtime's message in one line, without its prefix."""
  text = one_line(error)
  return text.rpartition("[ONNXRuntimeError] : ")[2] if "[ONNXRuntimeError] : " in text else text


def compare_replays(
  replayed: Replayed,
  case: int,
  expected: Mapping[str, Any],
  tolerance: Tolerance | None = None,
  free: frozenset[str] = frozenset(),
  unsteady: frozenset[str] = frozenset(),
) -> tuple[OutputComparison, ...]:
  """The replays of one case against what they should give: each result within the tolerance, all the same to the bit.

  Args:
      replayed: what `GraphSession.replay` gave.
      case: which of its cases.
      expected: output name to array.
      tolerance: as of a plain run.
      free: outputs of which only shape and dtype count, as those of random operators.
      unsteady: outputs whose bits may differ from replay to replay, besides those that do without a graph.
  """
  results = replayed.results[case]
  total = sum(result.count for result in results) + replayed.others[case]
  judged = []
  for name, wanted in expected.items():
    if name in free:
      judged.append(compare_form(name, wanted, results[0].outputs[name]))
      continue
    compared = [compare(name, wanted, result.outputs[name], tolerance) for result in results]
    wrong = [(result, each) for result, each in zip(results, compared, strict=True) if not each.passed]
    changed = [result for result in results if not _same_bits(result.outputs[name], results[0].outputs[name])]
    message = compared[0].message
    passed = not wrong
    if wrong:
      count = sum(result.count for result, _ in wrong)
      message = f"{count} of {total} replays, replay {wrong[0][0].first + 1} first: {wrong[0][1].message}"
    elif changed:
      count = sum(result.count for result in changed) + replayed.others[case]
      apart = compare(name, results[0].outputs[name], changed[0].outputs[name], tolerance).max_abs_error
      by = "" if apart is None else f", by up to {apart:.2g} in replay {changed[0].first + 1}"
      message = f"{count} of {total} replays give other bits than the first{by}"
      passed = name in replayed.unsteady | unsteady
      message += ", as runs without a graph do" if passed else ", though runs without a graph all give the same"
    judged.append(
      OutputComparison(
        name,
        passed,
        max((each.max_abs_error for each in compared if each.max_abs_error is not None), default=None),
        max((each.max_rel_error for each in compared if each.max_rel_error is not None), default=None),
        message,
      )
    )
  return tuple(judged)
