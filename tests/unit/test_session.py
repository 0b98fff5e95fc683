import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx_models import raises
from threads import in_threads

import ortplugin
from ortplugin import library_path, register, session
from ortplugin.errors import RuntimeMissingError, UsageError
from ortplugin.session import core, elements, streams


@pytest.fixture
def library_file(tmp_path, patch):
  (tmp_path / "libortplugin.so").write_bytes(b"")
  patch(ortplugin, "__path__", [str(tmp_path / "nowhere"), str(tmp_path)])
  return tmp_path / "libortplugin.so"


class Options:
  """onnxruntime.SessionOptions: refuses a second registration, as ONNX Runtime does."""

  def __init__(self):
    self.libraries = []
    self.entries = {}

  def register_custom_ops_library(self, path):
    if self.libraries:
      raise RuntimeError("domain ortplugin already exists")
    self.libraries.append(path)
    self.entries["ortplugin.registered"] = "1"  # as the library does

  def add_session_config_entry(self, key, value):
    self.entries[key] = value

  def get_session_config_entry(self, key):
    if key not in self.entries:
      raise RuntimeError(f"SessionOptions does not have configuration with key: {key}")
    return self.entries[key]


def use_runtime(patch, providers, gpus, **more):
  module = SimpleNamespace(__version__="1.0", get_available_providers=lambda: providers, SessionOptions=Options, **more)
  patch(core, "onnxruntime", lambda: module)
  patch(core, "gpu_count", lambda: gpus)
  return module


def test_importing_is_cheap_and_needs_nothing():
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


def test_the_public_names_stay_functions():
  import ortplugin.model.restore
  import ortplugin.optimizer
  import ortplugin.session

  for name in ortplugin.__all__:
    assert name == "__version__" or callable(getattr(ortplugin, name)), name
  assert set(dir(ortplugin)) == set(ortplugin.__all__)
  with raises(AttributeError, "nothing"):
    _ = ortplugin.nothing


def test_library_path(library_file, patch):
  assert library_path() == str(library_file)
  library_file.unlink()
  with raises(RuntimeMissingError, "make dev"):
    library_path()


def test_threads_register_once(library_file):
  options = Options()
  in_threads(16, lambda number: register(options))
  assert len(options.libraries) == 1


def test_a_failed_registration_says_with_what(library_file, patch):
  use_runtime(patch, ["CPUExecutionProvider"], 0)
  options = Options()
  options.libraries.append("another")
  with raises(RuntimeMissingError, r"onnxruntime 1.0 can't register .*libortplugin.so: domain"):
    register(options)


def test_threads_that_load_the_runtime_leave_stdout_as_it_was(monkeypatch):
  loads = []

  def preload_dlls():
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


def test_providers(patch):
  both = ["CUDAExecutionProvider", "CPUExecutionProvider"]
  use_runtime(patch, both, 1)
  assert core.available_providers() == tuple(both)
  assert core.resolve_provider("CUDA") == "CUDAExecutionProvider"
  with raises(UsageError, "no execution provider 'CPUExecutionProvidr'; did you mean CPU"):
    core.resolve_provider("CPUExecutionProvidr")
  use_runtime(patch, both, 0)
  assert core.available_providers() == ("CPUExecutionProvider",)
  with raises(RuntimeMissingError, "NVIDIA GPU"):
    core.resolve_provider("cuda")
  use_runtime(patch, ["CPUExecutionProvider"], 1)
  with raises(RuntimeMissingError, "onnxruntime-gpu"):
    core.resolve_provider("cuda")


def test_sessions_never_fall_back_silently(library_file, patch):
  made = []

  def make(path, options, providers, provider_options, enable_fallback):
    assert enable_fallback == 0
    made.append(SimpleNamespace(providers=providers, settings=provider_options, options=options))
    return SimpleNamespace(get_providers=lambda: ["CPUExecutionProvider"])  # CUDA did not start

  both = ["CUDAExecutionProvider", "CPUExecutionProvider"]
  use_runtime(patch, both, 1, InferenceSession=make)
  patch(streams, "Stream", lambda device_id: SimpleNamespace(address=64 + device_id))
  with raises(RuntimeMissingError, "could not start CUDAExecutionProvider"):
    session("m.onnx", cuda_graph=True)
  assert made[0].providers == both
  assert made[0].settings == [{"enable_cuda_graph": "1", "user_compute_stream": "64"}, {}]
  assert made[0].options.libraries
  session(b"bytes", providers=["cpu"])
  assert made[1].providers == ["CPUExecutionProvider"]
  with pytest.raises(RuntimeMissingError):
    session("m.onnx", providers=[("cuda", {"device_id": 1})])
  assert made[2].settings == [{"device_id": "1"}, {}]
  for arguments, words in (
    ({"providers": ["cpu"], "cuda_graph": True}, "add 'cuda'"),
    ({"providers": "cpu"}, r"\['cpu'\]"),
    ({"providers": ["cpu"], "provider_options": []}, "one for each"),
  ):
    with raises(UsageError, words):
      session("m.onnx", **arguments)


def test_element_types_are_onnxs():
  for name, (number, dtype) in elements._ELEMENTS.items():
    assert TensorProto.DataType.Name(number) == name.upper()
    assert np.dtype(helper.tensor_dtype_to_np_dtype(number)) == dtype
  assert elements.element_type("seq(tensor(float))") is None
  assert elements.element_type("tensor(unheard)") is None
