"""Sessions, arrays and processes on the GPU, for the tests of every operator."""

import os
import subprocess
import sys

import numpy as np
import pytest
from node_cases import bits

import ortplugin
from ortplugin.session import CUDA, element_type, onnxruntime

cupy = pytest.importorskip("cupy")
poison = pytest.importorskip("poison")  # needs CuPy


def make(model, **provider):
  """A session in which every node must run on the GPU, and float32 is not rounded to TF32.

  With ``--poison`` its memory is NaN where nothing was written, but for sessions whose runs are captured.
  """
  if "ORTPLUGIN_POISON" in os.environ and "enable_cuda_graph" not in provider:
    provider = {**poison.provider_options(), **provider}
  ort = onnxruntime()
  options = ort.SessionOptions()
  options.log_severity_level = 4
  options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
  ortplugin.register(options)
  return ort.InferenceSession(model, options, providers=[(CUDA, {"use_tf32": "0", **provider})], enable_fallback=0)


def host(results):
  return [cupy.asnumpy(array) for array in results.values()]


def run(session, case):
  return host(ortplugin.run(session, case.feeds()))


def run_case(case):
  """The outputs in a session of its own."""
  return run(make(case.model()), case)


def same_bits(got, wanted):
  return all((bits(a) == bits(b)).all() for a, b in zip(got, wanted, strict=True))


def python(code, **environment):
  """Runs Python code in a process of its own that imports what this one does."""
  start = f"import sys; sys.path[:] = {sys.path!r}\n"
  return subprocess.run(
    [sys.executable, "-c", start + code], capture_output=True, text=True, timeout=300, env={**os.environ, **environment}
  )


def need_memory(gib):
  """Skips the test where the GPU has less free memory."""
  free = (cupy.cuda.runtime.memGetInfo()[0] + cupy.get_default_memory_pool().free_bytes()) >> 30
  if free < gib:
    pytest.skip(f"the GPU has {free} GiB of free memory, this takes {gib}")


def at_offset(array, elements):
  """The array on the device, so many elements behind an address that is a multiple of 256."""
  raw = cupy.empty(array.nbytes + (elements + 1) * array.itemsize, np.uint8)
  start = elements * array.itemsize
  raw[start : start + array.nbytes] = cupy.asarray(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
  return cupy.ndarray(array.shape, array.dtype, memptr=raw.data + start)


def before_nan(array):
  """The array on the device, with NaN behind its end."""
  behind = cupy.full(array.nbytes + 4096, 0xFF, np.uint8)
  behind[: array.nbytes] = cupy.asarray(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
  return cupy.ndarray(array.shape, array.dtype, memptr=behind.data)


def keep_busy(times):
  """Gives CuPy's current stream work for some 0.1 ms, so many times; the array that it writes last."""
  busy = cupy.full(1 << 26, 0.5, "float32")
  for _ in range(times):
    cupy.sin(busy, out=busy)
  return busy


def bind(session, inputs, outputs):
  """A binding of device arrays to a session's inputs and outputs, in their order."""
  binding = session.io_binding()
  for put, values, arrays in (
    (binding.bind_input, session.get_inputs(), inputs),
    (binding.bind_output, session.get_outputs(), outputs),
  ):
    for value, array in zip(values, arrays, strict=True):
      put(value.name, "cuda", 0, element_type(value.type)[0], list(array.shape), array.data.ptr)
  return binding


def run_bound(session, inputs, outputs):
  """Runs a session on device arrays, after all that CuPy's stream holds."""
  cupy.cuda.get_current_stream().synchronize()
  session.run_with_iobinding(bind(session, inputs, outputs))
