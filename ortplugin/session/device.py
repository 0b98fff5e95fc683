"""Running a CUDA session on device arrays without copies, and replaying its CUDA graph. Needs CuPy."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import RuntimeMissingError, UsageError, one_line
from .core import CUDA, host_inputs, host_outputs, is_captured, onnxruntime
from .cuda_driver import Gpu
from .elements import check_dtype, element_type, foreign
from .host import to_numpy

_DLPACK_CPU = 1
_NO_GRAPH = "-1"  # the graph id with which ONNX Runtime neither captures nor replays


@dataclass(frozen=True)
class _Captured:
  """One CUDA graph with the memory that it reads and writes."""

  inputs: dict[str, Any]  # CuPy arrays
  outputs: dict[str, Any]
  binding: Any
  run_options: Any


class _State:
  """What this module keeps for one session."""

  def __init__(self, session: Any) -> None:
    options = session.get_provider_options()[CUDA]
    self.device_id = int(options.get("device_id", "0"))
    self.stream = int(options.get("user_compute_stream", "0"))
    self.uses_graph = is_captured(options)
    inputs = [*session.get_inputs(), *session.get_overridable_initializers()]
    self.inputs = {value.name: element_type(value.type) for value in inputs}
    self.outputs = {value.name: element_type(value.type) for value in session.get_outputs()}
    self.host_inputs = host_inputs(session)
    self.host_outputs = host_outputs(session)
    self.lock = threading.Lock()
    self.graphs: dict[tuple[Any, ...], _Captured] = {}


# Keyed by the session, which a state never refers to, so that both go together.
_states: weakref.WeakKeyDictionary[Any, _State] = weakref.WeakKeyDictionary()
_states_lock = threading.Lock()


def _state(session: Any) -> _State:
  with _states_lock:
    if session not in _states:
      _states[session] = _State(session)
    return _states[session]


def cupy_module() -> Any:
  """CuPy; RuntimeMissingError where it can't be imported."""
  try:
    import cupy
  except ImportError as error:
    raise RuntimeMissingError(
      f"running on device arrays needs CuPy ({one_line(error)}); install it with `pip install ortplugin[gpu]`"
    ) from error
  return cupy


def run(session: Any, feeds: Mapping[str, Any], names: Sequence[str], copy: bool) -> dict[str, Any]:
  """`session.run` for a session with the CUDA provider; names of feeds and outputs are checked already."""
  cupy = cupy_module()
  state = _state(session)
  for kind, elements, used in (("input", state.inputs, feeds), ("output", state.outputs, names)):
    for name in used:
      if elements[name] is None:
        raise UsageError(f"{kind} '{name}' is no dense tensor; call the session's own run() for this model")
  with cupy.cuda.Device(state.device_id):
    if state.uses_graph:
      with state.lock:
        return _run_graph(cupy, session, state, feeds, names, copy)
    arrays = {name: _array(cupy, state, name, value) for name, value in feeds.items()}
    arrays = {name: array if _stays(state, name, array) else _device(cupy, array) for name, array in arrays.items()}
    binding = _bind(cupy, session, state, arrays, names)
    session.run_with_iobinding(binding)
    return _results(cupy, session, state, names, binding)


def replay(session: Any, feeds: Mapping[str, Any]) -> Callable[[], None]:
  """A function that replays the session's CUDA graph for these feeds, which are copied in once, here.

  The graph is captured first. The function returns when the GPU is done.
  """
  cupy = cupy_module()
  state = _state(session)
  with cupy.cuda.Device(state.device_id), state.lock:
    arrays = {name: _array(cupy, state, name, value) for name, value in feeds.items()}
    captured = _capture(cupy, session, state, arrays, list(state.outputs))
    _run(session, state, captured)
    # The graph's number must not be given to another one.
    state.graphs[("replay", len(state.graphs))] = captured

  def run_once() -> None:
    with cupy.cuda.Device(state.device_id):  # ONNX Runtime leaves its GPU the thread's current one
      session.run_with_iobinding(captured.binding, captured.run_options)

  return run_once


def _settle(cupy: Any) -> None:
  """Waits for CuPy's current stream: ONNX Runtime works on a stream of its own, which knows nothing of it.

  To be called before inputs are bound, for binding copies those that the session reads on the host. The other
  direction needs nothing: a run returns after its stream is done.
  """
  cupy.cuda.get_current_stream().synchronize()


def _array(cupy: Any, state: _State, name: str, value: Any) -> Any:
  """The feed as a contiguous array of the input's dtype: of NumPy, or of CuPy on the session's device."""
  element = state.inputs[name]
  assert element is not None  # checked by run
  if element[1] == np.dtype(np.object_):
    return np.asarray(value, dtype=np.object_)
  array = value if isinstance(value, cupy.ndarray) else _import_array(cupy, name, value)
  check_dtype(name, np.dtype(array.dtype), element[1])
  if isinstance(array, np.ndarray):
    return np.asarray(array, order="C")  # np.ascontiguousarray would give a scalar an axis
  if array.device.id != state.device_id:
    raise UsageError(
      f"input '{name}' is on GPU {array.device.id}, the session runs on GPU {state.device_id}; copy it there"
    )
  return array if array.flags.c_contiguous else cupy.ascontiguousarray(array)


def _device(cupy: Any, array: Any) -> Any:
  """The array on the current device; one of NumPy is copied there."""
  return cupy.asarray(array) if isinstance(array, np.ndarray) else array


def _stays(state: _State, name: str, array: Any) -> bool:
  """Whether a run takes the array from the host: strings, and what the session reads there anyway.

  Of a dtype that NumPy lacks, ONNX Runtime binds nothing on the host.
  """
  if not isinstance(array, np.ndarray):
    return False
  return array.dtype == np.object_ or (name in state.host_inputs and not foreign(array.dtype))


def _import_array(cupy: Any, name: str, value: Any) -> Any:
  """A NumPy array for what lies on the host, a CuPy array over the same memory for what lies on a GPU."""
  try:
    if isinstance(value, (np.ndarray, np.generic)):
      return np.asarray(value)
    if hasattr(value, "__dlpack__") and value.__dlpack_device__()[0] != _DLPACK_CPU:
      return cupy.from_dlpack(value)  # makes the producer's stream precede CuPy's current one
    if hasattr(value, "__cuda_array_interface__"):
      return cupy.asarray(value)
    return np.asarray(value)
  except Exception as error:  # whatever the other library raises
    raise UsageError(
      f"input '{name}' is a {type(value).__name__} that CuPy can't read ({one_line(error)}); "
      "give a CuPy or NumPy array, or one with __dlpack__"
    ) from error


def _bind(cupy: Any, session: Any, state: _State, arrays: Mapping[str, Any], names: Sequence[str]) -> Any:
  """A binding of these inputs, when the GPU is done with them, and of outputs that the run allocates."""
  binding = session.io_binding()
  _settle(cupy)
  for name, array in arrays.items():
    _bind_input(binding, name, array, state)
  for name in names:
    _bind_output(binding, name, state)
  return binding


def _bind_input(binding: Any, name: str, array: Any, state: _State) -> None:
  if isinstance(array, np.ndarray):
    binding.bind_cpu_input(name, array)
    return
  element = state.inputs[name]
  assert element is not None  # checked by run
  binding.bind_input(name, "cuda", state.device_id, element[0], list(array.shape), array.data.ptr)


def _bind_output(binding: Any, name: str, state: _State) -> None:
  """Lets ONNX Runtime allocate the output on the device, or on the host what is made there, strings among it."""
  element = state.outputs[name]
  if name in state.host_outputs or (element is not None and element[1] == np.dtype(np.object_)):
    binding.bind_output(name, "cpu")
  else:
    binding.bind_output(name, "cuda", state.device_id)


def _results(cupy: Any, session: Any, state: _State, names: Sequence[str], binding: Any) -> dict[str, Any]:
  """Output name to a CuPy array over the memory that ONNX Runtime allocated for it, or a copy of what lies on the
  host; strings stay there.
  """
  results: dict[str, Any] = {}
  for name, value in zip(names, binding.get_outputs(), strict=True):
    element = state.outputs[name]
    assert element is not None  # checked by run
    shape = tuple(value.shape())
    if element[1] == np.dtype(np.object_):
      results[name] = value.numpy()
    elif 0 in shape:
      results[name] = cupy.empty(shape, element[1])
    elif name in state.host_outputs:
      results[name] = _device(cupy, to_numpy(value, element))
    else:
      # The array keeps the value alive, and the session, whose allocator owns the memory.
      size = element[1].itemsize * int(np.prod(shape, dtype=np.int64))
      memory = cupy.cuda.UnownedMemory(value.data_ptr(), size, (value, session), state.device_id)
      results[name] = cupy.ndarray(shape, element[1], cupy.cuda.MemoryPointer(memory, 0))
  return results


def _run_graph(
  cupy: Any, session: Any, state: _State, feeds: Mapping[str, Any], names: Sequence[str], copy: bool
) -> dict[str, Any]:
  """Copies the feeds into the graph's buffers and replays it; the first run with these shapes, and these values of
  what is read on the host, captures it.
  """
  arrays = {name: _array(cupy, state, name, value) for name, value in feeds.items()}
  read = {name: _host(cupy, array).tobytes() for name, array in arrays.items() if name in state.host_inputs}
  forms = sorted((name, array.shape, read.get(name, b"")) for name, array in arrays.items())
  signature = (tuple(forms), tuple(names))
  if (captured := state.graphs.get(signature)) is None:
    captured = _capture(cupy, session, state, arrays, names)
    state.graphs[signature] = captured
  for name, array in arrays.items():
    if name in read:
      continue  # its bytes are in the signature, so the buffer holds them since the capture
    given, buffer = _device(cupy, array), captured.inputs[name]
    if buffer.data.ptr != given.data.ptr:
      cupy.copyto(buffer, given)
  _settle(cupy)
  try:
    _run(session, state, captured)  # captures, or replays
  except Exception:
    del state.graphs[signature]
    raise
  return {name: array.copy() if copy else array for name, array in captured.outputs.items()}


def _run(session: Any, state: _State, captured: _Captured) -> None:
  """A capture that fails is open still, and its error is with CUDA's runtime, where the first kernel of this thread's
  next run, of whatever session, would find it and take it for its own.
  """
  try:
    session.run_with_iobinding(captured.binding, captured.run_options)
  except Exception:  # ONNX Runtime's own classes have no common base
    if state.stream:
      Gpu.give_up_capture(state.stream)
    for name in ("libcudart.so.13", "libcudart.so.12"):
      with contextlib.suppress(OSError):  # not the one that ONNX Runtime has loaded
        ctypes.CDLL(name, os.RTLD_NOLOAD | os.RTLD_LAZY).cudaGetLastError()
    raise


def _host(cupy: Any, array: Any) -> Any:
  """The array as one of NumPy."""
  return array if isinstance(array, np.ndarray) else cupy.asnumpy(array)


def _capture(cupy: Any, session: Any, state: _State, arrays: Mapping[str, Any], names: Sequence[str]) -> _Captured:
  """Buffers and a binding for one set of shapes; the next run with them captures the graph.

  `arrays`: of NumPy or CuPy, which the buffers then hold.
  """
  strings = [name for name, array in arrays.items() if array.dtype == np.object_]
  strings += [name for name in names if (state.outputs[name] or (0, None))[1] == np.dtype(np.object_)]
  if strings:
    raise UsageError(f"'{strings[0]}' holds strings, which a CUDA graph can't; make the session without cuda_graph")
  ort = onnxruntime()
  inputs = {name: cupy.empty(array.shape, array.dtype) for name, array in arrays.items()}
  for name, array in arrays.items():
    cupy.copyto(inputs[name], _device(cupy, array))
  # A run without a graph tells the outputs' shapes, compiles kernels and warms allocators.
  trial = _bind(cupy, session, state, inputs, names)
  session.run_with_iobinding(trial, _run_options(ort, _NO_GRAPH))
  outputs = {name: cupy.empty_like(array) for name, array in _results(cupy, session, state, names, trial).items()}
  del trial
  binding = session.io_binding()
  for name, array in inputs.items():
    _bind_input(binding, name, array, state)
  for name, array in outputs.items():
    element = state.outputs[name]
    assert element is not None  # checked by run
    binding.bind_output(name, "cuda", state.device_id, element[0], list(array.shape), array.data.ptr)
  return _Captured(inputs, outputs, binding, _run_options(ort, str(len(state.graphs) + 1)))


def _run_options(ort: Any, graph: str) -> Any:
  options = ort.RunOptions()
  options.add_run_config_entry("gpu_graph_id", graph)
  return options
