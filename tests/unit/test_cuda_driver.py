"""The calls of the CUDA driver: handles, addresses and sizes of 64 bits arrive whole, and everything is given back."""

import ctypes
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from onnx_models import raises

from ortplugin.errors import RuntimeMissingError
from ortplugin.session import cuda_driver, streams
from ortplugin.session.cuda_driver import CudaError, Gpu


@pytest.fixture
def driver(tmp_path, patch):
  compiler = shutil.which("cc") or shutil.which("c++")
  assert compiler is not None, "the library needs a compiler, too"
  path = tmp_path / "libfake.so"
  subprocess.run(
    [compiler, "-x", "c", "-shared", "-fPIC", "-o", path, Path(__file__).parents[1] / "fake_libcuda.c"], check=True
  )
  load = ctypes.CDLL
  patch(ctypes, "CDLL", lambda name: load(str(path) if name == "libcuda.so.1" else name))
  cuda_driver._driver.cache_clear()
  yield load(str(path))
  cuda_driver._driver.cache_clear()


def test_everything_arrives_and_is_given_back(driver):
  values = np.arange(1000, dtype=np.int32)
  with Gpu(1) as gpu:
    stream, other = gpu.stream(), gpu.stream()
    assert stream != other
    one, two = gpu.allocate(values.nbytes), gpu.allocate(values.nbytes)
    gpu.upload(one, values)
    gpu.fill(two, 0xFF, values.nbytes, stream)
    gpu.copy(two, one, 2000, stream)
    found = gpu.download(two, values.nbytes).view(np.int32)
    assert (found[:500] == values[:500]).all()
    assert (found[500:] == -1).all()
    assert gpu.free_bytes() == 2**34
    assert not gpu.is_busy(stream)
    gpu.disturb(other, 33, 100.0)
    assert gpu.is_busy(other)
    gpu.synchronize(other)
    memory, mask, cycles, blocks, threads = (ctypes.c_uint64 * 5).in_dll(driver, "launched")
    assert (memory, mask) == (gpu._scratch, 2**23 - 1)
    assert (cycles, blocks, threads) == (150_000, 33, 128)
    gpu.release(one)
    driver.set_capturing(1)
    gpu.give_up_capture(stream)
    gpu.give_up_capture(stream)
    gpu.check()
    assert driver.open_things() > 0
  assert driver.open_things() == 0


def test_errors_name_the_call_and_what_the_driver_says(driver):
  with raises(CudaError, "cuMemAlloc_v2 failed on GPU 0: CUDA_ERROR_OUT_OF_MEMORY"), Gpu(0) as gpu:
    gpu.allocate(2**40)
  with raises(CudaError, "cuDeviceGet failed on GPU 7: CUDA_ERROR_INVALID_DEVICE"), Gpu(7):
    pass
  assert driver.open_things() == 0


def test_a_stream_goes_from_session_to_session(driver, patch):
  patch(streams, "_idle", defaultdict(list))
  one, other, elsewhere = streams.Stream(0), streams.Stream(0), streams.Stream(1)
  address = one.address
  assert len({one.address, other.address, elsewhere.address, 0}) == 4
  driver.set_capturing(1)
  status = ctypes.c_int(1)
  del one
  assert driver.cuStreamIsCapturing(ctypes.c_void_p(address), ctypes.byref(status)) == status.value == 0
  assert streams.Stream(0).address == address
  with streams._lock:
    assert streams._lock.acquire(blocking=False)  # as a collection in between does
    streams._lock.release()
    del other
  assert len(streams._idle[0]) == 2
  with raises(RuntimeMissingError, r"GPU 7 gives no stream .*cuDeviceGet failed on GPU 7"):
    streams.Stream(7)


def test_without_a_driver_it_says_so(patch):
  def missing(name):
    raise OSError(f"{name}: cannot open shared object file")

  patch(ctypes, "CDLL", missing)
  cuda_driver._driver.cache_clear()
  with raises(CudaError, r"NVIDIA driver can't be loaded: libcuda\.so\.1"), Gpu(0):
    pass
  cuda_driver._driver.cache_clear()
