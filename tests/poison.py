"""Memory of a CUDA session that is NaN wherever nothing was written: what reads it is found by the first run.

Otherwise such a kernel is right for as long as it gets memory that is fresh from the driver or holds numbers.
"""

import ctypes

import cupy

# 0xFF bytes are a NaN in every floating dtype, -1 in every integer.
BYTE = 0xFF
LEAST = 256


@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)
def _allocate(size):
  runtime, taken = cupy.cuda.runtime, max(size, LEAST)
  try:
    address = runtime.malloc(taken)
    runtime.memset(address, BYTE, taken)
    runtime.deviceSynchronize()
  except runtime.CUDARuntimeError:
    return None
  return address


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _free(address):
  if address is not None:
    cupy.cuda.runtime.deviceSynchronize()
    cupy.cuda.runtime.free(address)


def provider_options():
  """Options of the CUDA provider that make it take such memory. Nothing can be captured in a CUDA graph with them."""
  cupy.cuda.Device().use()
  functions = {"gpu_external_alloc": _allocate, "gpu_external_free": _free}
  return {name: str(ctypes.cast(each, ctypes.c_void_p).value) for name, each in functions.items()}
