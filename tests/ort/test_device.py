import sys
import weakref
from contextlib import nullcontext
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from fake_cupy import DeviceSession, FakeCupy
from onnx_models import ones, parametrize, parsed, raises, zeros

import ortplugin
from ort.host import CPU_ONLY
from ortplugin.errors import RuntimeMissingError, UsageError
from ortplugin.session import core, device

MODEL = """(float[2,6] x, int64[K] shape) => (float[?,?] y) { d = Add(x, x)  y = Reshape(d, shape) }"""
X = np.arange(12, dtype=np.float32).reshape(2, 6)
UP, DOWN = ("upload", (2, 6)), ("download", (2,))


@pytest.fixture
def cupy(patch):
  made = FakeCupy()
  patch(device, "cupy_module", lambda: made)
  return made


def session(graph):
  model = parsed(MODEL, 18).SerializeToString()
  return DeviceSession(onnxruntime.InferenceSession(model, providers=CPU_ONLY), {"shape"}, graph)


def shape(*sizes):
  return np.array(sizes, np.int64)


@parametrize("graph", [False, True])
def test_a_target_shape_of_numpy_does_not_come_back_from_the_device(cupy, graph):
  made = session(graph)
  for number, sizes in enumerate([(3, 4), (3, 4), (4, 3), (3, 4)]):
    cupy.log.clear()
    found = ortplugin.run(made, {"x": X + number, "shape": shape(*sizes)})["y"]
    assert np.array_equal(found.array, 2 * (X + number).reshape(sizes))
    assert "download" not in dict(cupy.log)
    if not graph or number in (1, 3):  # no graph, or one that is there already and whose buffer holds the shape
      assert cupy.log == [UP]
  assert len(made.kept) == (2 if graph else 0)


def test_one_on_the_device_is_read_once_a_run(cupy):
  made = session(True)
  for number, sizes in enumerate([(3, 4), (3, 4), (4, 3), (3, 4)]):
    given = cupy.asarray(shape(*sizes))
    cupy.log.clear()
    found = ortplugin.run(made, {"x": X + number, "shape": given})["y"]
    assert np.array_equal(found.array, 2 * (X + number).reshape(sizes))
    assert cupy.log.count(DOWN) == 1
  assert len(made.kept) == 2


def test_a_plain_run_takes_device_arrays_where_they_are(cupy):
  made = session(False)
  feeds = {"x": cupy.asarray(X), "shape": cupy.asarray(shape(12))}
  cupy.log.clear()
  found = ortplugin.run(made, feeds)["y"]
  assert np.array_equal(found.array, 2 * X.ravel())
  assert cupy.log == []
  assert next(cupy.waits) > 0
  value, owner = found.owner  # which free the memory that it lies in
  assert value.data_ptr() == found.data.ptr
  assert owner is made


class Foreign:
  def __init__(self, array, place):
    self.array, self.place = array, place

  def __dlpack_device__(self):
    return self.place, 0

  def __dlpack__(self, **options):
    return self.array.__dlpack__(**options)

  def __array__(self, dtype=None, copy=None):
    assert self.place == 1, "read from the host though it is on the device"
    return self.array


def test_strided_arrays_and_those_of_other_libraries(cupy):
  turned = np.ascontiguousarray(X.T).T
  for given, log in ((turned, [UP]), (Foreign(X, 1), [UP]), (cupy.ndarray.wrap(turned), []), (Foreign(X, 2), [])):
    cupy.log.clear()
    assert np.array_equal(ortplugin.run(session(False), {"x": given, "shape": shape(12)})["y"].array, 2 * X.ravel())
    assert cupy.log == log


def identity(kind="float[n]", graph=False):
  model = parsed(f"({kind} x) => (y) {{ y = Identity(x) }}").SerializeToString()
  return DeviceSession(onnxruntime.InferenceSession(model, providers=CPU_ONLY), (), graph)


def test_bfloat16_and_empty_arrays(cupy):
  for size in (4, 0):
    given = np.arange(size).astype(ml_dtypes.bfloat16)
    found = ortplugin.run(identity("bfloat16[n]"), {"x": cupy.asarray(given)})["y"].array
    assert found.dtype == given.dtype
    assert np.array_equal(found, given)


def test_an_array_of_another_gpu_or_what_is_no_tensor_is_refused(cupy):
  elsewhere = cupy.asarray(X[0])
  elsewhere.device.id = 1
  with raises(UsageError, "on GPU 1, the session runs on GPU 0"):
    ortplugin.run(identity(), {"x": elsewhere})
  with raises(UsageError, "is int32"):
    ortplugin.run(identity(), {"x": cupy.asarray(X[0].astype(np.int32))})
  with raises(UsageError, "no dense tensor"):
    ortplugin.run(identity("seq(float[n])"), {"x": [X]})


def test_without_cupy(monkeypatch):
  monkeypatch.setitem(sys.modules, "cupy", None)
  with raises(RuntimeMissingError, r"CuPy.*ortplugin\[gpu\]"):
    ortplugin.run(identity(), {"x": X[0]})


def test_a_graph_is_captured_once_per_shape_and_replayed(cupy):
  made = identity(graph=True)
  small, large = cupy.asarray(zeros(3)), cupy.asarray(ones(5))
  first, other = (ortplugin.run(made, {"x": given})["y"] for given in (small, large))
  small.array[...] = 7
  kept = ortplugin.run(made, {"x": small}, copy=True)["y"]
  small.array[...] = 8
  assert ortplugin.run(made, {"x": small})["y"] is first
  assert [graph for graph, _ in made.runs] == ["-1", "1", "-1", "2", "1", "1"]
  assert made.runs[1][1] is made.runs[4][1] is made.runs[5][1]  # the same addresses
  assert made.runs[1][1].inputs["x"][-1] != small.data.ptr
  assert [each.array.tolist() for each in (first, kept, other)] == [[8] * 3, [7] * 3, [1] * 5]


def test_an_older_runtime_does_not_tell_what_it_reads_on_the_host():
  older = SimpleNamespace(get_providers=lambda: [core.CUDA])
  assert core.host_inputs(older) == core.host_outputs(older) == frozenset()


def test_state_goes_with_its_session(cupy):
  made = identity(graph=True)
  ortplugin.run(made, {"x": X[0]})
  assert made in device._states
  gone = weakref.ref(made)
  del made
  assert gone() is None


@parametrize("graph", [False, True])
def test_dtypes_are_checked_wherever_the_array_is(cupy, graph):
  for wrong in ({"x": X, "shape": shape(3, 4).astype(np.int32)}, {"x": X.astype(np.float64), "shape": shape(3, 4)}):
    with raises(UsageError, "convert it with"):
      ortplugin.run(session(graph), wrong)


def test_what_the_host_makes_is_bound_there(cupy):
  """On a GPU ONNX Runtime copies it into memory that kernels in flight use still."""
  model = parsed(
    """(float[2,6] x) => (y, z, float[0] e) <int64[1] none = {0}, float zero = {0}>
        { y = Add(x, x)  z = Hardmax(x)  e = Expand(zero, none) }""",
    18,
  )
  made = DeviceSession(onnxruntime.InferenceSession(model.SerializeToString(), providers=CPU_ONLY), {"z", "e"}, False)
  found = ortplugin.run(made, {"x": X}, ["z", "e", "y"])
  assert made.bound == {"z": "cpu", "e": "cpu", "y": "cuda"}
  assert all(isinstance(each, cupy.ndarray) for each in found.values())
  assert np.array_equal(found["z"].array, np.eye(6, dtype=np.float32)[[5, 5]])
  assert found["e"].array.shape == (0,)
  assert np.array_equal(found["y"].array, 2 * X)


def test_a_replay_holds_its_feeds(cupy):
  replayed = device.replay(session(True), {"x": X, "shape": shape(3, 4)})
  cupy.log.clear()
  replayed()
  assert cupy.log == []


def test_a_capture_that_failed_is_made_again(cupy, patch):
  made = session(True)
  whole, failures = made.run_with_iobinding, [RuntimeError("not while a stream is captured")]

  def run(binding, options):
    if options.get_run_config_entry("gpu_graph_id") != "-1" and failures:
      raise failures.pop()
    whole(binding, options)

  patch(made, "run_with_iobinding", run)
  with raises(RuntimeError, "captured"):
    ortplugin.run(made, {"x": X, "shape": shape(3, 4)})
  assert not device._states[made].graphs
  assert np.array_equal(ortplugin.run(made, {"x": X, "shape": shape(3, 4)})["y"].array, 2 * X.reshape(3, 4))


COUNTING = """(float[N] x, bool[N] m) => (float[K] y, float[N] z)
    { %s z = Neg(x) }"""


def recorded(nodes):
  options = onnxruntime.SessionOptions()
  core.record_nodes(options)
  return onnxruntime.InferenceSession(parsed(COUNTING % nodes, 18).SerializeToString(), options, providers=CPU_ONLY)


@parametrize(
  "nodes, words",
  [
    ("[chosen] y = Compress(x, m)", r"node 'chosen' \(Compress\) reads on the host.*; make the session without"),
    ("i = NonZero(m)  r = Squeeze(i)  y = Gather(x, r)", "a NonZero without a name reads"),
    ("y = Neg(x)", None),
  ],
)
def test_what_counts_on_the_host_is_not_captured(nodes, words, patch):
  session = recorded(nodes)
  core.check_captured(session)  # nothing runs on a GPU
  patch(core, "CUDA", core.CPU)
  with raises(UsageError, words) if words else nullcontext():
    core.check_captured(session)


def test_random_numbers_that_a_graph_repeats(patch):
  session = recorded("[noise] y = RandomNormalLike(x)")
  patch(core, "CUDA", core.CPU)
  with pytest.warns(UserWarning, match=r"node 'noise' \(RandomNormalLike\) draws the same numbers in each replay"):
    core.check_captured(session)
