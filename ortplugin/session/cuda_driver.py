"""A GPU through the CUDA driver alone: streams, memory, copies, and work that disturbs what else runs.

Verification and sessions that capture CUDA graphs need these where CuPy is not installed. All of it is libcuda.so.1,
which every machine with a GPU has.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import numpy as np

_NOT_READY = 600
_NON_BLOCKING = 1
_THREADS = 128  # of a block of `disturb`
_SCRATCH = 2**25  # bytes that `disturb` writes to: what an L2 cache holds
_CYCLES = 1500  # of a GPU's clock in a microsecond, about

_handle, _address, _size = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t
_out = ctypes.POINTER
# Function to argument types. The suffix belongs to the name: functions without it take 32-bit sizes.
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
  "cuInit": (ctypes.c_uint,),
  "cuGetErrorName": (ctypes.c_int, _out(ctypes.c_char_p)),
  "cuDeviceGet": (_out(ctypes.c_int), ctypes.c_int),
  "cuDevicePrimaryCtxRetain": (_out(_handle), ctypes.c_int),
  "cuDevicePrimaryCtxRelease_v2": (ctypes.c_int,),
  "cuCtxPushCurrent_v2": (_handle,),
  "cuCtxPopCurrent_v2": (_out(_handle),),
  "cuCtxSynchronize": (),
  "cuMemGetInfo_v2": (_out(_size), _out(_size)),
  "cuMemAlloc_v2": (_out(_address), _size),
  "cuMemFree_v2": (_address,),
  "cuMemcpyHtoD_v2": (_address, _handle, _size),
  "cuMemcpyDtoH_v2": (_handle, _address, _size),
  "cuMemcpyDtoDAsync_v2": (_address, _address, _size, _handle),
  "cuMemsetD8Async": (_address, ctypes.c_ubyte, _size, _handle),
  "cuStreamCreate": (_out(_handle), ctypes.c_uint),
  "cuStreamDestroy_v2": (_handle,),
  "cuStreamSynchronize": (_handle,),
  "cuStreamQuery": (_handle,),
  "cuStreamIsCapturing": (_handle, _out(ctypes.c_int)),
  "cuStreamEndCapture": (_handle, _out(_handle)),
  "cuGraphDestroy": (_handle,),
  "cuModuleLoadData": (_out(_handle), ctypes.c_char_p),
  "cuModuleUnload": (_handle,),
  "cuModuleGetFunction": (_out(_handle), _handle, ctypes.c_char_p),
  "cuLaunchKernel": (_handle, *[ctypes.c_uint] * 7, _handle, _out(_handle), _out(_handle)),
}

# Every thread adds 1 to words of `memory`, until so many cycles of its clock are over. In PTX, which any driver
# compiles for any GPU, so that neither NVRTC nor CuPy is needed.
_DISTURB = b"""
.version 6.0
.target sm_52
.address_size 64
.visible .entry disturb(.param .u64 memory, .param .u32 mask, .param .u64 cycles)
{
  .reg .pred %more;
  .reg .b32 %index, %block, %width, %thread, %mask, %word, %value;
  .reg .b64 %memory, %offset, %address, %cycles, %start, %now;
  ld.param.u64 %memory, [memory];
  ld.param.u32 %mask, [mask];
  ld.param.u64 %cycles, [cycles];
  cvta.to.global.u64 %memory, %memory;
  mov.u32 %block, %ctaid.x;
  mov.u32 %width, %ntid.x;
  mov.u32 %thread, %tid.x;
  mad.lo.u32 %index, %block, %width, %thread;
  mov.u64 %start, %clock64;
again:
  and.b32 %word, %index, %mask;
  mul.wide.u32 %offset, %word, 4;
  add.u64 %address, %memory, %offset;
  ld.global.u32 %value, [%address];
  add.u32 %value, %value, 1;
  st.global.u32 [%address], %value;
  add.u32 %index, %index, 4099;
  mov.u64 %now, %clock64;
  sub.u64 %now, %now, %start;
  setp.lt.u64 %more, %now, %cycles;
  @%more bra again;
  ret;
}
"""


class CudaError(Exception):
  """The driver refused a call; the message names the call and the driver's error."""


@lru_cache(maxsize=1)
def _driver() -> Any:
  """libcuda.so.1 with the types of the functions that are used here."""
  try:
    library = ctypes.CDLL("libcuda.so.1")
  except OSError as error:
    raise CudaError(f"the NVIDIA driver can't be loaded: {error}") from error
  for name, types in _FUNCTIONS.items():
    function = getattr(library, name)
    function.argtypes = list(types)
    function.restype = ctypes.c_int
  return library


class Gpu:
  """One GPU, by its number in this process. Within `with` its context is current; at the end all it gave is freed.

  Addresses are those of device memory, streams are handles of the driver, both integers, as ONNX Runtime takes them.
  Any method raises CudaError.
  """

  def __init__(self, ordinal: int) -> None:
    self.ordinal = ordinal
    self._device = ctypes.c_int()
    self._streams: list[int] = []
    self._memory: list[int] = []
    self._module = _handle()
    self._kernel = _handle()
    self._scratch = 0

  def __enter__(self) -> Gpu:
    self._call("cuInit", 0)
    self._call("cuDeviceGet", ctypes.byref(self._device), self.ordinal)
    context = _handle()
    self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
    try:
      self._call("cuCtxPushCurrent_v2", context)
    except CudaError:
      _driver().cuDevicePrimaryCtxRelease_v2(self._device)
      raise
    return self

  def __exit__(self, *_: object) -> None:
    driver = _driver()  # after an error everything here may fail, too, and that error is the one to show
    for stream in self._streams:
      driver.cuStreamSynchronize(stream)
      driver.cuStreamDestroy_v2(stream)
    for address in self._memory:
      driver.cuMemFree_v2(address)
    if self._module:
      driver.cuModuleUnload(self._module)
    self._streams, self._memory, self._module, self._kernel, self._scratch = [], [], _handle(), _handle(), 0
    driver.cuCtxPopCurrent_v2(ctypes.byref(_handle()))
    driver.cuDevicePrimaryCtxRelease_v2(self._device)

  def _call(self, name: str, *arguments: Any) -> None:
    result = getattr(_driver(), name)(*arguments)
    if result != 0:
      raise CudaError(f"{name} failed on GPU {self.ordinal}: {_error_name(result)}")

  # ---- streams and memory

  def stream(self) -> int:
    """A new stream that no other stream waits for."""
    made = _handle()
    self._call("cuStreamCreate", ctypes.byref(made), _NON_BLOCKING)
    assert made.value is not None
    self._streams.append(made.value)
    return made.value

  def synchronize(self, stream: int) -> None:
    """Waits for all that the stream holds."""
    self._call("cuStreamSynchronize", stream)

  def is_busy(self, stream: int) -> bool:
    """Whether the stream holds work that is not done."""
    result = _driver().cuStreamQuery(stream)
    if result not in (0, _NOT_READY):
      raise CudaError(f"cuStreamQuery failed on GPU {self.ordinal}: {_error_name(result)}")
    return bool(result == _NOT_READY)

  def leave(self) -> None:
    """Instead of the end of a `with`: what it gave stays until the process ends."""
    _driver().cuCtxPopCurrent_v2(ctypes.byref(_handle()))

  @staticmethod
  def give_up_capture(stream: int) -> None:
    """Ends a capture that failed, so that other work of this process is not refused because of it."""
    status, graph = ctypes.c_int(), _handle()
    driver = _driver()
    if driver.cuStreamIsCapturing(stream, ctypes.byref(status)) == 0 and status.value != 0:
      driver.cuStreamEndCapture(stream, ctypes.byref(graph))
      if graph:
        driver.cuGraphDestroy(graph)

  def check(self) -> None:
    """Waits for the GPU; raises CudaError where it is lost to this process, as after an illegal address."""
    self._call("cuCtxSynchronize")

  def free_bytes(self) -> int:
    """How much memory is free."""
    free, total = _size(), _size()
    self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value

  def allocate(self, size: int) -> int:
    """The address of new memory of so many bytes, also where these are none."""
    made = _address()
    self._call("cuMemAlloc_v2", ctypes.byref(made), max(size, 1))
    self._memory.append(made.value)
    return made.value

  def release(self, address: int) -> None:
    """Frees what `allocate` gave."""
    self._memory.remove(address)
    self._call("cuMemFree_v2", address)

  def upload(self, address: int, array: np.ndarray[Any, Any]) -> None:
    """Copies a contiguous array to the GPU and waits until it is there."""
    if array.nbytes:
      self._call("cuMemcpyHtoD_v2", address, array.ctypes.data, array.nbytes)
      self._call("cuCtxSynchronize")  # the copy returns once the host's memory is free, which is earlier

  def download(self, address: int, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """So many bytes of the GPU's memory."""
    array = np.empty(size, np.uint8)
    if size:
      self._call("cuMemcpyDtoH_v2", array.ctypes.data, address, size)
    return array

  # ---- work on a stream

  def copy(self, target: int, source: int, size: int, stream: int) -> None:
    """Queues a copy within the GPU."""
    if size:
      self._call("cuMemcpyDtoDAsync_v2", target, source, size, stream)

  def fill(self, address: int, byte: int, size: int, stream: int) -> None:
    """Queues setting each byte."""
    if size:
      self._call("cuMemsetD8Async", address, byte, size, stream)

  def disturb(self, stream: int, blocks: int, microseconds: float) -> None:
    """Queues a kernel of so many blocks that keeps caches, memory and as many of the GPU's places busy."""
    if not self._kernel:
      self._call("cuModuleLoadData", ctypes.byref(self._module), _DISTURB)
      self._call("cuModuleGetFunction", ctypes.byref(self._kernel), self._module, b"disturb")
      self._scratch = self.allocate(_SCRATCH)
    given = (
      ctypes.c_uint64(self._scratch),
      ctypes.c_uint32(_SCRATCH // 4 - 1),
      ctypes.c_uint64(int(microseconds * _CYCLES)),
    )
    pointers = (_handle * 3)(*(ctypes.cast(ctypes.byref(each), _handle) for each in given))
    self._call("cuLaunchKernel", self._kernel, blocks, 1, 1, _THREADS, 1, 1, 0, stream, pointers, None)


def _error_name(result: int) -> str:
  text = ctypes.c_char_p()
  if _driver().cuGetErrorName(result, ctypes.byref(text)) == 0 and text.value is not None:
    return text.value.decode()
  return f"error {result}"
