"""CuPy in host memory, as far as ortplugin/session/device.py uses it, and a session that says it is one on CUDA."""

import contextlib
import ctypes
import itertools
from types import SimpleNamespace

import numpy as np
from fake_gpu import Binding, CapturingSession

from ortplugin.session import CUDA, element_type, run_on_host


class Array:
  """An array on the device, which NumPy functions must not take for one of theirs."""

  def __init__(self, array):
    self.array = array
    self.device = SimpleNamespace(id=0)
    self.data = SimpleNamespace(ptr=array.ctypes.data)

  def __getattr__(self, name):
    return getattr(self.array, name)

  def copy(self):
    return Array(self.array.copy())


class FakeCupy:
  """The module. `log`: (what, shape) of each copy between host and device, in order; `waits`: for the stream."""

  def __init__(self):
    self.log = []
    self.waits = itertools.count()
    stream = SimpleNamespace(synchronize=lambda: next(self.waits))
    self.cuda = SimpleNamespace(
      Device=lambda number: contextlib.nullcontext(),
      get_current_stream=lambda: stream,
      UnownedMemory=lambda address, size, owner, device: (address, size, owner),
      MemoryPointer=lambda memory, offset: memory,
    )

    class ndarray(Array):  # noqa: N801, CuPy's name
      def __init__(self, shape, dtype, memory):
        address, size, self.owner = memory
        held = (ctypes.c_char * size).from_address(address)
        super().__init__(np.frombuffer(held, dtype).reshape(shape))

      @classmethod
      def wrap(cls, array):
        made = cls.__new__(cls)
        Array.__init__(made, array)
        return made

    self.ndarray = ndarray
    self.empty = lambda shape, dtype: ndarray.wrap(np.zeros(shape, dtype))
    self.empty_like = lambda array: ndarray.wrap(np.zeros(array.shape, array.dtype))
    self.ascontiguousarray = lambda array: ndarray.wrap(np.ascontiguousarray(array.array))
    self.from_dlpack = lambda tensor: ndarray.wrap(tensor.array)

  def asarray(self, array):
    assert isinstance(array, np.ndarray)
    self.log.append(("upload", array.shape))
    return self.ndarray.wrap(array.copy())

  def asnumpy(self, array):
    self.log.append(("download", array.shape))
    return array.array.copy()

  def copyto(self, target, source):
    target.array[...] = source.array


class _Binding(Binding):
  """Takes inputs and outputs on the host, too."""

  def __init__(self, bound):
    super().__init__(0)
    self.bound = bound

  def bind_output(self, name, device, number=0, *rest):
    self.bound[name] = device
    self.outputs[name] = rest or None

  def bind_cpu_input(self, name, array):
    assert isinstance(array, np.ndarray)
    self.inputs[name] = array


class DeviceSession(CapturingSession):
  """A session on the CPU that says it is one on CUDA, and reads inputs and makes outputs `on_host` on the host.

  What a graph reads there keeps the value of its capture. What such an output is bound to is in `bound`, the graph and
  the binding of each run in `runs`.
  """

  def __init__(self, session, on_host, graph):
    super().__init__(session, {"enable_cuda_graph": "1", "user_compute_stream": "1", "device_id": "0"})
    self.on_host, self.graph = on_host, graph
    self.kept = {}
    self.bound = {}
    self.runs = []

  def get_providers(self):
    return [CUDA, "CPUExecutionProvider"]

  def get_provider_options(self):
    return {CUDA: {"device_id": "0", "enable_cuda_graph": str(int(self.graph))}}

  def get_input_memory_infos(self):
    return self._infos(self.get_inputs())

  def get_output_memory_infos(self):
    return self._infos(self.get_outputs())

  def _infos(self, values):
    return [SimpleNamespace(name="Cpu" if each.name in self.on_host else "Cuda") for each in values]

  def io_binding(self):
    return _Binding(self.bound)

  def run_with_iobinding(self, binding, options=None):
    graph = "-1" if options is None else options.get_run_config_entry("gpu_graph_id")
    self.runs.append((graph, binding))
    feeds = {name: self._read(name, bound) for name, bound in binding.inputs.items()}
    if graph != "-1":
      feeds |= self.kept.setdefault(graph, {name: feeds[name] for name in self.on_host})
    self._answer(binding, run_on_host(self.session, feeds, list(binding.outputs)))

  def _read(self, name, bound):
    if isinstance(bound, np.ndarray):
      return bound
    dtypes = {each.name: element_type(each.type)[1] for each in self.session.get_inputs()}
    dtype, (_, shape, address) = dtypes[name], bound
    size = int(np.prod(shape)) * dtype.itemsize
    return np.frombuffer(ctypes.string_at(address, size), dtype).reshape(shape)
