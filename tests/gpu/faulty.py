"""Sessions whose CUDA graphs go wrong on purpose, on a real GPU, for the tests of what looks for that."""

import numpy as np


class Binding:
  """An IOBinding that remembers where outputs go."""

  def __init__(self, binding):
    self.binding = binding
    self.outputs = {}  # element, shape, address

  def __getattr__(self, name):
    return getattr(self.binding, name)

  def bind_output(self, name, device, number, *rest):
    self.binding.bind_output(name, device, number, *rest)
    if rest:
      self.outputs[name] = rest


class Faulty:
  """A session in which a fault befalls some replays of its graphs; runs without a graph are right.

  Args:
      session: with `enable_cuda_graph` on a stream of the caller's.
      fault: "late" replays are left out, so that results are those of the replay before; "bit" changes the last bit
          of a float32 output's first element, behind the replay, on its stream; "value" adds to it.
      options: those of the CUDA provider.
  """

  def __init__(self, session, fault, options):
    import cupy

    self.session, self.fault, self.cupy = session, fault, cupy
    self.stream = cupy.cuda.ExternalStream(int(options["user_compute_stream"]), int(options["device_id"]))
    self.replays = 0

  def __getattr__(self, name):
    return getattr(self.session, name)

  def io_binding(self):
    return Binding(self.session.io_binding())

  def run_with_iobinding(self, binding, options):
    replayed = options.get_run_config_entry("gpu_graph_id") != "-1"
    self.replays += replayed
    # The first one captures; replays that are multiples of 7 go wrong.
    wrong = replayed and self.replays > 3 and self.replays % 7 == 0
    if wrong and self.fault == "late":
      return
    self.session.run_with_iobinding(binding.binding, options)
    if wrong:
      _, _, address = next(iter(binding.outputs.values()))
      cupy = self.cupy
      with cupy.cuda.Device(), self.stream:
        memory = cupy.cuda.UnownedMemory(address, 4, self)
        if self.fault == "bit":
          cupy.ndarray((1,), np.uint32, cupy.cuda.MemoryPointer(memory, 0))[...] ^= np.uint32(1)
        else:
          cupy.ndarray((1,), np.float32, cupy.cuda.MemoryPointer(memory, 0))[...] += np.float32(100)


def planting(make, fault, is_guilty=lambda *given: True):
  """judge.make_session that makes faulty sessions of the models that `is_guilty` of its arguments."""

  def planted(side, provider, tf32=False, options=None):
    session = make(side, provider, tf32, options)
    if "enable_cuda_graph" not in (options or {}) or not is_guilty(side):
      return session
    return Faulty(session, fault, options or {})

  return planted
