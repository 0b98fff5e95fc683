"""Where optimized models run: the CPU provider, CUDA, CUDA under a graph, one after the other, or CUDA with memory
that is NaN where nothing was written."""

import gc
from dataclasses import dataclass
from functools import partial
from typing import Any

import ortplugin

from .doubles import in_double
from .emulate import emulated
from .evaluate import make_session, run

NAMES = ("cpu", "cuda", "cuda-graph", "cuda-both", "cuda-poison")


class LostError(BaseException):
  """No later call of this process can succeed on the GPU. Not an Exception: nothing but the process answers it."""


class NotCapturedError(Exception):
  """ONNX Runtime can't capture the model in a CUDA graph."""


class Provider:
  """The CPU."""

  name = "cpu"
  is_cpu = True
  where = "on the CPU"
  captured = False  # whether the last run was that of a CUDA graph

  def session(self, model, optimize):
    """A session of a model. UnfitError where this provider can't have one for a reason of its own."""
    form = in_double(model)
    if form is not model:
      make_session(emulated(model), optimize=optimize)
    return make_session(emulated(form), optimize=optimize)

  def run(self, session, feeds):
    """The outputs by name, as NumPy arrays."""
    return run(session, feeds)

  def modes(self):
    """In which of them a case is judged, one after the other."""
    return (self,)

  def plain(self):
    """The same without a CUDA graph; None if this one has none."""
    return None

  def unoptimized(self):
    """The same without ONNX Runtime's own graph optimizations; None if this one has none."""
    return None


class Cuda(Provider):
  """CUDA; `graph`: what `ortplugin.run` runs is captured and replayed, where ONNX Runtime can capture the model.

  Where it can't, the model runs without a graph, or, with `strict`, NotCapturedError is raised. `poisoned`: memory is
  NaN where nothing was written, and no graph can be captured. fp32 products are not rounded to TF32. LostError where
  the GPU is lost to this process.
  """

  is_cpu = False

  def __init__(self, graph=False, optimize=True, strict=False, poisoned=False):
    self.graph = graph
    self.optimize = optimize
    self.strict = strict
    self.poisoned = poisoned
    self.name = "cuda-graph" if graph else "cuda-poison" if poisoned else "cuda"
    self.where = "under a CUDA graph" if graph else "on CUDA" + " with poisoned memory" * poisoned

  def plain(self):
    return Cuda(optimize=self.optimize) if self.graph else None

  def unoptimized(self):
    return Cuda(self.graph, optimize=False, poisoned=self.poisoned) if self.optimize else None

  def session(self, model, optimize):
    """A session on the GPU, silent, with the model, for one without a graph."""
    form = in_double(model)
    data = form.SerializeToString()
    if form is not model:
      self._plain(model.SerializeToString())
    if self.graph:
      try:
        return _Session(data, _cuda_session(data, True, self.optimize), True)
      except Exception as error:
        _check_gpu(error)
        if self.strict:
          raise NotCapturedError from error
    return self._plain(data)

  def _plain(self, data):
    try:
      return _Session(data, _cuda_session(data, False, self.optimize, self.poisoned), False)
    except Exception as error:
      _check_gpu(error)
      raise

  def run(self, session, feeds):
    """The outputs on the host; under a graph those of a second run, which replays what the first captured."""
    self.captured = session.graph
    try:
      return _on_gpu(session.ort, feeds, 2 if session.graph else 1)
    except Exception as error:  # as above
      _check_gpu(error)
      if not session.graph or "ortplugin" in str(error):
        raise
    # A capture that failed stays open until its stream goes, which its session owns, and while it is open CUDA
    # refuses calls of others.
    self.captured = session.graph = False
    session.ort = None
    gc.collect()
    try:
      session.ort = _cuda_session(session.data, False, self.optimize)
      made = _on_gpu(session.ort, feeds, 1)
    except Exception as error:  # as above
      _check_gpu(error)
      if "when stream is capturing" in str(error):
        raise LostError(f"a capture that failed is open still: {error}") from error
      raise
    if self.strict:
      raise NotCapturedError
    return made


class Both(Provider):
  """CUDA, and then CUDA under a graph where ONNX Runtime can capture the model; optimized and compiled once."""

  name = "cuda-both"
  is_cpu = False
  where = "on CUDA"

  def modes(self):
    return Cuda(), Cuda(graph=True, strict=True)


def provider_of(name):
  made = {
    "cpu": Provider,
    "cuda": Cuda,
    "cuda-graph": partial(Cuda, graph=True),
    "cuda-both": Both,
    "cuda-poison": partial(Cuda, poisoned=True),
  }
  return made[name]()


@dataclass
class _Session:
  data: bytes
  ort: Any
  graph: bool


LOST = (
  "illegal memory access",
  "cudaErrorIllegalAddress",
  "unspecified launch failure",
  "misaligned address",
  "device-side assert",
  "CUDNN_STATUS_EXECUTION_FAILED",
  "CUBLAS_STATUS_EXECUTION_FAILED",
  "CUDA_ERROR_ILLEGAL_ADDRESS",
  "CUDA error 700",
  "CUDA failure 700",
)


def _check_gpu(error):
  """Raises LostError if no later call could succeed; whoever asked sees a crash, and starts another process."""
  if any(words in str(error) for words in LOST):
    raise LostError(str(error)) from error


def _cuda_session(model, graph, optimize, poisoned=False):
  import onnxruntime

  options = onnxruntime.SessionOptions()
  options.log_severity_level = 4
  if not optimize:
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
  options.intra_op_num_threads = options.inter_op_num_threads = 1
  # Not "arena_extend_strategy": "kSameAsRequested", with which ONNX Runtime frees pinned memory in a callback of
  # CUDA, where no call of CUDA is allowed.
  settings = {"use_tf32": "0", "cudnn_conv_algo_search": "HEURISTIC"}
  if poisoned:
    import poison  # needs CuPy

    settings |= poison.provider_options()
  return ortplugin.session(model, [("cuda", settings)], cuda_graph=graph, session_options=options)


def _on_gpu(session, feeds, times):
  import cupy

  taken = {each.name for each in [*session.get_inputs(), *session.get_overridable_initializers()]}
  given = {name: value for name, value in feeds.items() if name in taken}
  for _ in range(times):
    made = ortplugin.run(session, given, copy=True)
  return {name: cupy.asnumpy(value) if isinstance(value, cupy.ndarray) else value for name, value in made.items()}
