"""Registering, choosing providers and running, with stand-ins for ONNX Runtime and CuPy; tests/ort and tests/gpu have
the real ones."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper
from threads import in_threads

import ortplugin
from ortplugin.errors import RuntimeMissingError, UsageError
from ortplugin.session import core, device, elements, streams


@pytest.fixture
def library_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
  """A file that stands for the built library, in a package folder of its own."""
  (tmp_path / "libortplugin.so").write_bytes(b"")
  monkeypatch.setattr(ortplugin, "__path__", [str(tmp_path / "nowhere"), str(tmp_path)])
  return tmp_path / "libortplugin.so"


class Options:
  """onnxruntime.SessionOptions: refuses a second registration, as ONNX Runtime does."""

  def __init__(self) -> None:
    self.libraries: list[str] = []
    self.entries: dict[str, str] = {}

  def register_custom_ops_library(self, path: str) -> None:
    if self.libraries:
      raise RuntimeError("domain ortplugin already exists")
    self.libraries.append(path)
    self.entries["ortplugin.registered"] = "1"  # as the library does

  def add_session_config_entry(self, key: str, value: str) -> None:
    self.entries[key] = value

  def get_session_config_entry(self, key: str) -> str:
    if key not in self.entries:
      raise RuntimeError(f"SessionOptions does not have configuration with key: {key}")
    return self.entries[key]


def use_runtime(monkeypatch: pytest.MonkeyPatch, providers: list[str], gpus: int, **more: Any) -> SimpleNamespace:
  module = SimpleNamespace(__version__="1.0", get_available_providers=lambda: providers, SessionOptions=Options, **more)
  monkeypatch.setattr(core, "onnxruntime", lambda: module)
  monkeypatch.setattr(core, "gpu_count", lambda: gpus)
  return module


def test_importing_is_cheap_and_needs_nothing() -> None:
  program = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in ('onnx', 'onnxruntime', 'cupy', 'torch', 'onnx_graphsurgeon', 'rich', 'click'):
            raise ImportError(name)
sys.meta_path.insert(0, Absent())
import ortplugin, types
assert all(isinstance(getattr(ortplugin, n), types.FunctionType) for n in ('restore', 'register', 'session', 'run'))
try:
    ortplugin.session('model.onnx')
except Exception as error:
    print(error)
"""
  environment = {"PYTHONPATH": str(Path(ortplugin.__file__).parent.parent)}
  done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment)
  assert done.returncode == 0, done.stderr
  assert "ortplugin[gpu]" in done.stdout
  assert "ortplugin[cpu]" in done.stdout


def test_the_public_names_stay_functions() -> None:
  import ortplugin.model.restore
  import ortplugin.optimizer
  import ortplugin.session

  for name in ortplugin.__all__:
    assert name == "__version__" or callable(getattr(ortplugin, name)), name
  assert set(dir(ortplugin)) == set(ortplugin.__all__)
  with pytest.raises(AttributeError, match="nothing"):
    _ = ortplugin.nothing


def test_library_path(library_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  assert ortplugin.library_path() == str(library_file)
  library_file.unlink()
  with pytest.raises(RuntimeMissingError, match="make dev"):
    ortplugin.library_path()


def test_registering_twice_is_harmless(library_file: Path) -> None:
  options = Options()
  ortplugin.register(options)
  ortplugin.register(options)
  assert options.libraries == [str(library_file)]


def test_threads_register_once(library_file: Path) -> None:
  options = Options()
  in_threads(16, lambda number: ortplugin.register(options))
  assert len(options.libraries) == 1


def test_a_failed_registration_says_with_what(library_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  use_runtime(monkeypatch, ["CPUExecutionProvider"], 0)
  options = Options()
  options.libraries.append("another")
  with pytest.raises(RuntimeMissingError, match=r"onnxruntime 1.0 can't register .*libortplugin.so: domain"):
    ortplugin.register(options)


def test_threads_that_load_the_runtime_leave_stdout_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
  loads: list[int] = []

  def preload_dlls() -> None:
    loads.append(1)
    time.sleep(0.02)

  module = SimpleNamespace(get_available_providers=lambda: ["CUDAExecutionProvider"], preload_dlls=preload_dlls)
  monkeypatch.setitem(sys.modules, "onnxruntime", module)
  monkeypatch.setattr(core, "gpu_count", lambda: 1)
  before = sys.stdout
  core._load.cache_clear()
  try:
    with ThreadPoolExecutor(8) as pool:
      assert all(found is module for found in pool.map(lambda _: core.onnxruntime(), range(8)))
  finally:
    core._load.cache_clear()
  assert loads == [1]
  assert sys.stdout is before


def test_providers(monkeypatch: pytest.MonkeyPatch) -> None:
  both = ["CUDAExecutionProvider", "CPUExecutionProvider"]
  use_runtime(monkeypatch, both, 1)
  assert core.available_providers() == tuple(both)
  assert core.resolve_provider("CUDA") == "CUDAExecutionProvider"
  with pytest.raises(UsageError, match="no execution provider 'CPUExecutionProvidr'; did you mean CPU"):
    core.resolve_provider("CPUExecutionProvidr")
  use_runtime(monkeypatch, both, 0)
  assert core.available_providers() == ("CPUExecutionProvider",)
  with pytest.raises(RuntimeMissingError, match="NVIDIA GPU"):
    core.resolve_provider("cuda")
  use_runtime(monkeypatch, ["CPUExecutionProvider"], 1)
  with pytest.raises(RuntimeMissingError, match="onnxruntime-gpu"):
    core.resolve_provider("cuda")


def test_sessions_never_fall_back_silently(library_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  made: list[SimpleNamespace] = []

  def make(path: str, options: Options, providers: list[str], provider_options: list[Any], enable_fallback: int) -> Any:
    assert enable_fallback == 0
    made.append(SimpleNamespace(providers=providers, settings=provider_options, options=options))
    return SimpleNamespace(get_providers=lambda: ["CPUExecutionProvider"])  # CUDA did not start

  both = ["CUDAExecutionProvider", "CPUExecutionProvider"]
  use_runtime(monkeypatch, both, 1, InferenceSession=make)
  monkeypatch.setattr(streams, "Stream", lambda device_id: SimpleNamespace(address=64 + device_id))
  with pytest.raises(RuntimeMissingError, match="could not start CUDAExecutionProvider"):
    ortplugin.session("m.onnx", cuda_graph=True)
  assert made[0].providers == both
  assert made[0].settings == [{"enable_cuda_graph": "1", "user_compute_stream": "64"}, {}]
  assert made[0].options.libraries
  ortplugin.session(b"bytes", providers=["cpu"])
  assert made[1].providers == ["CPUExecutionProvider"]
  with pytest.raises(RuntimeMissingError):
    ortplugin.session("m.onnx", providers=[("cuda", {"device_id": 1})])
  assert made[2].settings == [{"device_id": "1"}, {}]
  for arguments, words in (
    ({"providers": ["cpu"], "cuda_graph": True}, "add 'cuda'"),
    ({"providers": "cpu"}, r"\['cpu'\]"),
    ({"providers": ["cpu"], "provider_options": []}, "one for each"),
  ):
    with pytest.raises(UsageError, match=words):
      ortplugin.session("m.onnx", **arguments)  # type: ignore[arg-type]


def test_element_types_are_onnxs() -> None:
  for name, (number, dtype) in elements._ELEMENTS.items():
    assert TensorProto.DataType.Name(number) == name.upper()
    assert np.dtype(helper.tensor_dtype_to_np_dtype(number)) == dtype
  assert elements.element_type("seq(tensor(float))") is None
  assert elements.element_type("tensor(unheard)") is None


# ---- device arrays, with a CuPy of NumPy


class Array:
  """cupy.ndarray: a NumPy array with a device."""

  def __init__(self, shape: Any, dtype: Any = np.float32, memory: Any = None, device_id: int = 0) -> None:
    if isinstance(shape, np.ndarray):
      self.host = shape
    elif memory is None:
      self.host = np.empty(shape, dtype)
    else:
      buffer = (ctypes.c_char * memory.memory.size).from_address(memory.memory.pointer)
      self.host = np.frombuffer(buffer, dtype).reshape(shape)
      self.memory = memory.memory
    self.device = SimpleNamespace(id=device_id)

  shape = property(lambda self: self.host.shape)
  dtype = property(lambda self: self.host.dtype)
  flags = property(lambda self: SimpleNamespace(c_contiguous=self.host.flags.c_contiguous))
  data = property(lambda self: SimpleNamespace(ptr=self.host.ctypes.data))

  def copy(self) -> Array:
    return Array(self.host.copy())


class Memory:
  def __init__(self, pointer: int, size: int, owner: object, device_id: int) -> None:
    self.pointer, self.size, self.owner, self.device_id = pointer, size, owner, device_id


class Device:
  def __init__(self, device_id: int) -> None:
    self.id = device_id

  def __enter__(self) -> Device:
    return self

  def __exit__(self, *_: object) -> None:
    pass


def copy_to(target: Array, source: Array) -> None:
  target.host[...] = source.host


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
  waits: list[int] = []
  module = SimpleNamespace(
    ndarray=Array,
    waits=waits,
    asarray=lambda a: Array(np.array(a)),
    ascontiguousarray=lambda a: Array(np.ascontiguousarray(a.host)),
    from_dlpack=lambda a: Array(np.asarray(a.array)),
    empty=Array,
    empty_like=lambda a: Array(a.shape, a.dtype),
    copyto=copy_to,
    cuda=SimpleNamespace(
      Device=Device,
      UnownedMemory=Memory,
      MemoryPointer=lambda memory, offset: SimpleNamespace(memory=memory),
      get_current_stream=lambda: SimpleNamespace(synchronize=lambda: waits.append(1)),
    ),
  )
  monkeypatch.setattr(device, "cupy_module", lambda: module)

  class RunOptions:
    def __init__(self) -> None:
      self.entries: dict[str, str] = {}

    def add_run_config_entry(self, key: str, value: str) -> None:
      self.entries[key] = value

  monkeypatch.setattr(device, "onnxruntime", lambda: SimpleNamespace(RunOptions=RunOptions))
  return module


class Value:
  """OrtValue of ONNX Runtime's own memory."""

  def __init__(self, array: np.ndarray) -> None:
    self.array = array

  def shape(self) -> tuple[int, ...]:
    return self.array.shape

  def data_ptr(self) -> int:
    return self.array.ctypes.data


class Session:
  """y = x + 1 on a device; remembers which graph each run asked for and which addresses it saw."""

  def __init__(self, graph: bool = False, dtype: str = "float") -> None:
    self.graph = graph
    self.dtype = elements._ELEMENTS[dtype][1]
    self.type = f"tensor({dtype})"
    self.runs: list[tuple[str | None, int, int]] = []

  def get_inputs(self) -> list[Any]:
    return [SimpleNamespace(name="x", type=self.type)]

  def get_overridable_initializers(self) -> list[Any]:
    return []

  def get_outputs(self) -> list[Any]:
    return [SimpleNamespace(name="y", type=self.type)]

  def get_providers(self) -> list[str]:
    return ["CUDAExecutionProvider", "CPUExecutionProvider"]

  def get_provider_options(self) -> dict[str, dict[str, str]]:
    return {"CUDAExecutionProvider": {"device_id": "0", "enable_cuda_graph": str(int(self.graph))}}

  def io_binding(self) -> SimpleNamespace:
    binding = SimpleNamespace(inputs={}, outputs={}, values=[])
    binding.bind_input = lambda name, *rest: binding.inputs.__setitem__(name, rest)
    binding.bind_output = lambda name, *rest: binding.outputs.__setitem__(name, rest)
    binding.get_outputs = lambda: binding.values
    return binding

  def run_with_iobinding(self, binding: Any, options: Any = None) -> None:
    kind, device_id, _, shape, pointer = binding.inputs["x"]
    assert (kind, device_id) == ("cuda", 0)
    size = int(np.prod(shape)) * self.dtype.itemsize
    held = (ctypes.c_char * size).from_address(pointer)
    result = (np.frombuffer(held, self.dtype).reshape(shape) + np.asarray(1, self.dtype)).astype(self.dtype)
    bound = binding.outputs["y"]
    target = bound[4] if len(bound) > 2 else 0
    if target:
      ctypes.memmove(target, result.ctypes.data, size)
    else:
      binding.values = [Value(result)]
    self.runs.append((options.entries["gpu_graph_id"] if options else None, pointer, target))


def test_device_arrays_are_bound_without_a_copy(cupy: SimpleNamespace) -> None:
  session, x = Session(), Array(np.arange(6, dtype=np.float32).reshape(2, 3))
  y = ortplugin.run(session, {"x": x})["y"]
  assert isinstance(y, Array)
  assert (y.host == x.host + 1).all()
  assert session.runs == [(None, x.host.ctypes.data, 0)]
  assert y.memory.owner[0].array.ctypes.data == y.data.ptr
  assert y.memory.owner[1] is session
  assert cupy.waits


def test_strided_and_host_arrays_are_copied(cupy: SimpleNamespace) -> None:
  session, x = Session(), np.arange(12, dtype=np.float32).reshape(3, 4)
  assert (ortplugin.run(session, {"x": Array(x.T)})["y"].host == x.T + 1).all()
  assert (ortplugin.run(session, {"x": x})["y"].host == x + 1).all()
  assert (ortplugin.run(session, {"x": x[:, ::2]})["y"].host == x[:, ::2] + 1).all()
  assert all(pointer != x.ctypes.data for _, pointer, _ in session.runs)


class Foreign:
  """A tensor of another library."""

  def __init__(self, array: np.ndarray, place: int) -> None:
    self.array, self.place = array, place

  def __dlpack_device__(self) -> tuple[int, int]:
    return self.place, 0

  def __dlpack__(self, **options: Any) -> Any:
    return self.array.__dlpack__(**options)

  def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
    assert self.place == 1, "read from the host though it is on the device"
    return self.array


def test_dlpack_arrays_of_device_and_host(cupy: SimpleNamespace) -> None:
  session, x = Session(), np.arange(6, dtype=np.float32)
  assert (ortplugin.run(session, {"x": Foreign(x, 2)})["y"].host == x + 1).all()
  assert session.runs[0][1] == x.ctypes.data
  assert (ortplugin.run(session, {"x": Foreign(x, 1)})["y"].host == x + 1).all()


def test_bfloat16_goes_in_and_out(cupy: SimpleNamespace) -> None:
  x = np.arange(4).astype(ml_dtypes.bfloat16)
  y = ortplugin.run(Session(dtype="bfloat16"), {"x": Array(x)})["y"]
  assert y.dtype == x.dtype
  assert y.host.astype(float).tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
  ("feeds", "words"),
  [
    ({"x": np.ones(3)}, "input 'x' is float64, the model wants float32"),
    ({"xx": np.ones(3, np.float32)}, "no input 'xx'; did you mean x"),
    ({}, "inputs x are missing"),
    ({"x": Array(np.ones(3, np.float32), device_id=1)}, "on GPU 1, the session runs on GPU 0"),
    ({"x": Array(np.ones(3, np.int32))}, "is int32"),
  ],
)
def test_wrong_feeds(cupy: SimpleNamespace, feeds: dict[str, Any], words: str) -> None:
  with pytest.raises(UsageError, match=words):
    ortplugin.run(Session(), feeds)
  with pytest.raises(UsageError, match="no output 'z'"):
    ortplugin.run(Session(), {"x": np.ones(3, np.float32)}, ["z"])


def test_empty_arrays(cupy: SimpleNamespace) -> None:
  assert ortplugin.run(Session(), {"x": np.ones((0, 4), np.float32)})["y"].shape == (0, 4)


def test_a_graph_is_captured_once_per_shape_and_replayed(cupy: SimpleNamespace) -> None:
  session = Session(graph=True)
  small, large = Array(np.zeros(3, np.float32)), Array(np.zeros(5, np.float32))
  first = ortplugin.run(session, {"x": small})["y"]
  other = ortplugin.run(session, {"x": large})["y"]
  small.host[...] = 7
  again = ortplugin.run(session, {"x": small})["y"]
  assert [run[0] for run in session.runs] == ["-1", "1", "-1", "2", "1"]
  assert session.runs[1][1:] == session.runs[4][1:]  # the same addresses
  assert session.runs[1][1] != small.data.ptr
  assert again is first
  assert first.host.tolist() == [8, 8, 8]
  assert other.host.tolist() == [1] * 5


def test_graph_results_can_be_copied(cupy: SimpleNamespace) -> None:
  session = Session(graph=True)
  kept = ortplugin.run(session, {"x": np.zeros(3, np.float32)}, copy=True)["y"]
  ortplugin.run(session, {"x": np.ones(3, np.float32)})
  assert kept.host.tolist() == [1, 1, 1]


def test_state_goes_with_its_session(cupy: SimpleNamespace) -> None:
  session = Session(graph=True)
  ortplugin.run(session, {"x": np.zeros(3, np.float32)})
  assert session in device._states
  gone = weakref.ref(session)
  del session
  assert gone() is None


def test_without_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.setitem(sys.modules, "cupy", None)
  with pytest.raises(RuntimeMissingError, match=r"CuPy.*ortplugin\[gpu\]"):
    ortplugin.run(Session(), {"x": np.zeros(3, np.float32)})


def test_what_is_no_tensor_is_refused(cupy: SimpleNamespace) -> None:
  session = Session()
  session.type = "seq(tensor(float))"
  with pytest.raises(UsageError, match="no dense tensor"):
    ortplugin.run(session, {"x": [np.zeros(3, np.float32)]})
