"""A GPU and sessions that capture, in host memory: what check/replays.py does with them, without either."""

import ctypes

import numpy as np

from ortplugin.session import element_type, run_on_host
from ortplugin.session.cuda_driver import CudaError, Gpu


class FakeGpu(Gpu):
  """Addresses are those of host memory; what is queued happens at once. `busy`: whether streams ever hold work."""

  def __init__(self, ordinal=0, memory=2**30, busy=True):
    super().__init__(ordinal)
    self.left, self.busy = memory, busy
    self.held = {}
    self.log = []
    self.captures_given_up = 0
    self.is_open = False

  def __enter__(self):
    self.is_open = True
    return self

  def __exit__(self, *rest):
    self.is_open = False

  def stream(self):
    self._streams.append(len(self._streams) + 1)
    return self._streams[-1]

  def synchronize(self, stream):
    assert stream in self._streams
    self.log.append("wait")

  def is_busy(self, stream):
    return self.busy

  def give_up_capture(self, stream):
    self.captures_given_up += 1

  def check(self):
    pass

  def free_bytes(self):
    return self.left

  def allocate(self, size):
    if size > self.left:
      raise CudaError("cuMemAlloc_v2 failed on GPU 0: CUDA_ERROR_OUT_OF_MEMORY, out of memory")
    self.left -= size
    memory = ctypes.create_string_buffer(max(size, 1))
    self.held[ctypes.addressof(memory)] = memory
    return ctypes.addressof(memory)

  def release(self, address):
    self.left += len(self.held.pop(address))

  def upload(self, address, array):
    ctypes.memmove(address, array.ctypes.data, array.nbytes)

  def download(self, address, size):
    return np.frombuffer(ctypes.string_at(address, size), np.uint8).copy()

  def copy(self, target, source, size, stream):
    ctypes.memmove(target, source, size)
    self.log.append("copy")

  def fill(self, address, byte, size, stream):
    ctypes.memset(address, byte, size)
    self.log.append("fill")

  def disturb(self, stream, blocks, microseconds):
    self.log.append("disturb")


class Value:
  def __init__(self, array):
    self.array = np.ascontiguousarray(array).reshape(array.shape)

  def shape(self):
    return list(self.array.shape)

  def data_ptr(self):
    return int(self.array.ctypes.data)

  def numpy(self):
    return self.array.copy()


class Binding:
  """What is bound: name to (element, shape, address), and for outputs also None."""

  def __init__(self, device_id):
    self.device_id = device_id
    self.inputs = {}
    self.outputs = {}
    self.devices = {}
    self.found = []

  def bind_input(self, name, device, number, *rest):
    assert (device, number) == ("cuda", self.device_id)
    self.inputs[name] = rest

  def bind_output(self, name, device, number=0, *rest):
    assert (device, number) in (("cuda", self.device_id), ("cpu", 0))
    assert device == "cuda" or not rest
    self.devices[name] = device
    self.outputs[name] = rest or None

  def get_outputs(self):
    return self.found


class CapturingSession:
  """A session on the CPU that says it is one on CUDA with `enable_cuda_graph`.

  Args:
      session: on the CPU.
      options: those of the CUDA provider.
      spoil: (number of the replay, from 0; its inputs; its outputs) -> what the graph gives instead.
      refuse: the message with which capturing fails; empty if it works.
      gpu: whose log tells of runs.
  """

  def __init__(self, session, options, spoil=None, refuse="", gpu=None):
    assert options["enable_cuda_graph"] == "1"
    assert int(options["user_compute_stream"]) > 0
    self.session, self.spoil, self.refuse, self.gpu = session, spoil, refuse, gpu
    self.device_id = int(options["device_id"])
    self.captured = {}
    self.replays = -2  # the first one is captured, the second one timed

  def __getattr__(self, name):
    return getattr(self.session, name)

  def io_binding(self):
    return Binding(self.device_id)

  def run_with_iobinding(self, binding, options):
    graph = options.get_run_config_entry("gpu_graph_id")
    if graph != "-1":
      if self.refuse and graph not in self.captured:
        raise RuntimeError(f"[ONNXRuntimeError] : 1 : FAIL : {self.refuse}")
      binding = self.captured.setdefault(graph, binding)  # a replay knows the addresses of its capture only
    elements = {value.name: element_type(value.type) for value in self.session.get_inputs()}
    feeds = {}
    for name, (element, shape, address) in binding.inputs.items():
      assert element == elements[name][0]
      size = int(np.prod(shape)) * elements[name][1].itemsize
      feeds[name] = np.frombuffer(ctypes.string_at(address, size), elements[name][1]).reshape(shape)
    outputs = run_on_host(self.session, feeds, list(binding.outputs))
    if graph != "-1":
      outputs = self.spoil(self.replays, feeds, outputs) if self.spoil else outputs
      self.replays += 1
      if self.gpu is not None:
        self.gpu.log.append("replay")
    self._answer(binding, outputs)

  def _answer(self, binding, outputs):
    binding.found = [Value(array) for array in outputs.values()]
    for bound, value in zip(binding.outputs.values(), binding.found, strict=True):
      if bound is not None:
        ctypes.memmove(bound[2], value.data_ptr(), value.array.nbytes)
