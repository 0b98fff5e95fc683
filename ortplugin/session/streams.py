"""Streams on which sessions capture CUDA graphs: of ours, so that a capture that fails can be ended.

ONNX Runtime (1.31) leaves it open, on a stream that only it knows, and until that is gone CUDA refuses calls of the
whole process: other sessions fail, and one that frees pinned memory ends the process.
"""

import threading
from collections import defaultdict

from ..errors import RuntimeMissingError
from .cuda_driver import CudaError, Gpu

_idle: defaultdict[int, list[int]] = defaultdict(list)  # by GPU
_lock = threading.RLock()  # garbage may be collected, a stream among it, while this thread holds it


class Stream:
  """A stream for one session, which keeps it. What is left of a session may refer to its stream still, so that it goes
  to the next one and is never destroyed.

  `address`: what ONNX Runtime takes. RuntimeMissingError where the GPU gives none.
  """

  def __init__(self, device_id: int) -> None:
    self.address = 0
    self.device_id = device_id
    with _lock:
      if _idle[device_id]:
        self.address = _idle[device_id].pop()
        return
    try:
      gpu = Gpu(device_id).__enter__()
      try:
        self.address = gpu.stream()
      finally:
        gpu.leave()
    except CudaError as error:
      raise RuntimeMissingError(f"GPU {device_id} gives no stream for CUDA graphs: {error}") from error

  def __del__(self) -> None:
    if self.address:
      Gpu.give_up_capture(self.address)
      with _lock:
        _idle[self.device_id].append(self.address)
