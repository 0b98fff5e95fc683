"""Fixtures of all tests, and the rule for tests that need a GPU.

unit/ needs no library, ort/ runs sessions on the CPU provider with it, gpu/ needs a GPU and carries the marker
``gpu``. Without a GPU these are skipped and the report's header says why; ``--require-gpu`` (what ``make test-gpu``
passes) turns that into an error. With ORTPLUGIN_SAMPLE=1 a sample of the large families runs (sample.py).
"""

import ctypes
import importlib.util
import json
import os
import sys
import zlib
from functools import cache
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent

# Makes `models` importable. Appended, so that an installed ortplugin comes before the source folder.
sys.path.append(str(ROOT))

import sample  # noqa: E402, which needs it
from exported import DATA  # noqa: E402

LEFT_OUT = pytest.StashKey[int]()


@cache
def why_no_gpu():
  """What is missing for the tests in gpu/, or None if they can run."""
  try:
    cuda = ctypes.CDLL("libcuda.so.1")
  except OSError:
    return "there is no NVIDIA driver (libcuda.so.1)"
  devices = ctypes.c_int(0)
  if cuda.cuInit(0) != 0 or cuda.cuDeviceGetCount(ctypes.byref(devices)) != 0 or devices.value == 0:
    return "the NVIDIA driver finds no GPU"
  import onnxruntime

  if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
    return "this onnxruntime has no CUDA provider; install the extra 'gpu'"
  if importlib.util.find_spec("cupy") is None:
    return "CuPy is not installed; install the extra 'gpu'"
  return None


def pytest_addoption(parser):
  parser.addoption("--require-gpu", action="store_true", help="fail, instead of skipping, where there is no GPU")
  parser.addoption("--poison", action="store_true", help="give CUDA sessions memory that is NaN until it is written")


def pytest_configure(config):
  reason = why_no_gpu()
  if reason and config.getoption("--require-gpu"):
    raise pytest.UsageError(f"--require-gpu: {reason}")
  if config.getoption("--poison"):
    os.environ["ORTPLUGIN_POISON"] = "1"  # gpu/device.py reads it, and processes that tests start do


def pytest_report_header():
  reason = why_no_gpu()
  return f"GPU tests: skipped, because {reason}" if reason else "GPU tests: run"


def pytest_make_parametrize_id(val, argname):
  """Cases have names."""
  return str(getattr(val, "name", "")) or None if argname == "case" else None


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks for groups
def pytest_collection_modifyitems(config, items):
  if sample.SAMPLING:
    thin = {item.nodeid: marker.args[0] for item in items if (marker := item.get_closest_marker("one_in"))}
    taken = sample.taken({item.nodeid: thin.get(item.nodeid, 1) for item in items})
    config.stash[LEFT_OUT] = getattr(config, "workeroutput", {})["left_out"] = len(items) - len(taken)
    items[:] = [item for item in items if item.nodeid in taken]
  reason = why_no_gpu()
  for item in items:
    if (ROOT / "tests" / "gpu") in item.path.parents:
      item.add_marker(pytest.mark.gpu)
    if reason and item.get_closest_marker("gpu"):
      item.add_marker(pytest.mark.skip(reason=f"needs a GPU: {reason}"))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
  """What a worker of pytest-xdist left out: each collects all."""
  node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", 0)


def pytest_terminal_summary(terminalreporter, config):
  if sample.SAMPLING:
    terminalreporter.write_line(f"ORTPLUGIN_SAMPLE: {config.stash.get(LEFT_OUT, 0)} cases are left to make test-all")


@pytest.fixture(scope="session", autouse=True)
def idle_threads_sleep():
  """ONNX Runtime's threads, too, which would spin on the core that another test has a use for."""
  import onnxruntime

  make = onnxruntime.InferenceSession.__init__

  def without_spinning(self, path_or_bytes, sess_options=None, *rest, **named):
    options = sess_options or onnxruntime.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    make(self, path_or_bytes, options, *rest, **named)

  onnxruntime.InferenceSession.__init__ = without_spinning


@pytest.fixture
def rng(request):
  """A generator seeded by the test's name and parameters: the same numbers in every run and order."""
  return np.random.default_rng(zlib.crc32(request.node.name.encode()))


@pytest.fixture
def patch(monkeypatch):
  """Sets an attribute, until the test ends."""
  return monkeypatch.setattr


@pytest.fixture(scope="session")
def library():
  """The path of libortplugin.so. A test that needs it fails without it."""
  import ortplugin

  return Path(ortplugin.library_path())


@pytest.fixture(scope="session")
def exported():
  """The entries of expected.json by model name."""
  entries = json.loads((DATA / "expected.json").read_text())
  return entries


@pytest.fixture
def run(capsys):
  """Runs optimize-model: (exit status, stdout, stderr)."""

  from ortplugin.cli import main

  def call(*arguments):
    capsys.readouterr()
    status = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err + captured.out
    return status, captured.out, captured.err

  return call
