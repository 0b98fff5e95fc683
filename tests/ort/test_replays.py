from functools import partial
from types import SimpleNamespace
from typing import ClassVar

import ml_dtypes
import numpy as np
import pytest
from fake_gpu import CapturingSession, FakeGpu
from onnx import TensorProto, helper
from onnx_models import parametrize, parsed, raises

from ort.host import plain as session_of
from ortplugin.check.replays import REPLAYS, GraphSession, NotCaptured, Replayed, Result, compare_replays

TWO_SUMS = """(float[4,8] a, float[8] b) => (float[4,8] y, z) { y = Add(a, b) z = Mul(a, b) }"""


def cases():
  rng = np.random.default_rng(0)
  a, b = rng.standard_normal((4, 8)).astype(np.float32), rng.standard_normal(8).astype(np.float32)
  return [{"a": a, "b": b}, {"a": np.roll(a, 1, 0), "b": np.roll(b, 1)}]


def wanted(case):
  return {"y": case["a"] + case["b"], "z": case["a"] * case["b"]}


def replay(gpu=None, spoil=None, given=None, **more):
  gpu = gpu or FakeGpu()
  make = partial(CapturingSession, session_of(parsed(TWO_SUMS)), spoil=spoil, gpu=gpu, **more)
  try:
    with GraphSession(make, gpu.ordinal, gpu) as graphs:
      return graphs.replay(given or cases())
  finally:
    assert not gpu.is_open
    assert not gpu.held, "memory was not given back"


def verdict(replayed, case=0, **more):
  judged = compare_replays(replayed, case, wanted(cases()[case]), **more)
  return {output.name: output.message for output in judged if not output.passed}


def test_every_replay_is_kept_and_the_host_waits_for_none():
  gpu = FakeGpu(ordinal=1)
  replayed = replay(gpu)
  assert replayed.count == REPLAYS
  assert replayed.queued
  assert [sum(result.count for result in results) for results in replayed.results] == [
    sum((number // 2 + number // 5) % 2 == case for number in range(REPLAYS)) for case in range(2)
  ]
  assert not verdict(replayed, 0)
  assert not verdict(replayed, 1)
  assert replayed.differing("y") == 0
  queue = "".join({"wait": "w", "replay": "r"}.get(word, "") for word in gpu.log)
  assert sorted(len(part) for part in queue.split("w"))[-2:] == [REPLAYS // 2, REPLAYS // 2]
  assert gpu.log.count("disturb") > REPLAYS // 2
  assert gpu.log.count("fill") == REPLAYS // 2 * 2, "every other replay, two outputs"


class HostOutput(CapturingSession):
  """Makes z on the host; `trials`: where each run without a graph has its outputs."""

  trials: ClassVar[list[dict[str, str]]] = []

  def get_providers(self):
    return ["CUDAExecutionProvider", "CPUExecutionProvider"]

  def get_input_memory_infos(self):
    return [SimpleNamespace(name="Cuda") for _ in self.get_inputs()]

  def get_output_memory_infos(self):
    return [SimpleNamespace(name={"y": "Cuda", "z": "Cpu"}[each.name]) for each in self.get_outputs()]

  def run_with_iobinding(self, binding, options):
    if options.get_run_config_entry("gpu_graph_id") == "-1":
      self.trials.append(dict(binding.devices))
    super().run_with_iobinding(binding, options)


def test_runs_without_a_graph_have_on_the_host_what_is_made_there():
  """Bound to the GPU it may be copied into memory that a kernel uses still."""
  HostOutput.trials.clear()
  gpu = FakeGpu()
  with GraphSession(partial(HostOutput, session_of(parsed(TWO_SUMS)), gpu=gpu), 0, gpu) as graphs:
    replayed = graphs.replay(cases())
  assert HostOutput.trials
  assert all(each == {"y": "cuda", "z": "cpu"} for each in HostOutput.trials)
  assert not verdict(replayed, 0)
  assert not verdict(replayed, 1)


@parametrize("number", [0, 1, 19, 20, REPLAYS - 1])
def test_one_wrong_element_in_one_replay_is_found(number):
  def spoil(replay, feeds, outputs):
    if replay == number + 1:  # one goes first, to see whether runs are queued
      outputs["z"][1, 2] += 5
    return outputs

  replayed = replay(spoil=spoil)
  case = (number // 2 + number // 5) % 2
  found = verdict(replayed, case)
  assert list(found) == ["z"]
  assert f"1 of {sum(r.count for r in replayed.results[case])} replays, replay {number + 1} first" in found["z"]
  assert not verdict(replayed, 1 - case)
  assert replayed.differing("z") > 0
  assert replayed.differing("y") == 0


def test_other_bits_are_a_difference_where_plain_runs_have_none():
  """What is within the tolerance, but not the same each time, was computed from what should not have been read."""

  def spoil(replay, feeds, outputs):
    if replay in (9, 10):
      outputs["y"][0, 0] = np.nextafter(outputs["y"][0, 0], np.float32(10))
    return outputs

  replayed = replay(spoil=spoil)
  found = {**verdict(replayed, 0), **verdict(replayed, 1)}
  assert list(found) == ["y"]
  assert "give other bits than the first, by up to" in found["y"]
  assert "though runs without a graph all give the same" in found["y"]
  assert not verdict(replayed, 0, unsteady=frozenset("y"))
  assert not verdict(replayed, 0, free=frozenset("y"))


def test_what_is_left_of_the_replay_before_is_found():
  """A kernel that reads too early finds the values of the replay before: equal ones, were it not for other inputs."""
  last = []

  def spoil(replay, feeds, outputs):
    last.append(outputs)
    return last[-2] if len(last) > 1 else outputs

  replayed = replay(spoil=spoil)
  assert set(verdict(replayed, 0)) | set(verdict(replayed, 1)) == {"y", "z"}
  last.clear()
  assert not verdict(replay(spoil=spoil, given=cases()[:1])), "one case alone can't show it"


def test_the_same_wrong_values_in_every_replay_are_found():
  def spoil(replay, feeds, outputs):
    return {**outputs, "y": outputs["y"] * 1.5}

  assert "replay 1 first" in verdict(replay(spoil=spoil))["y"]


def test_many_different_results_are_counted():
  def spoil(replay, feeds, outputs):
    outputs["y"][0, 0] += replay * 1e-6
    return outputs

  replayed = replay(spoil=spoil)
  assert sum(replayed.others) > 0
  total = sum(result.count for results in replayed.results for result in results) + sum(replayed.others)
  assert total == replayed.count
  assert f"{replayed.others[0] + len(replayed.results[0]) - 1} of" in verdict(replayed)["y"]


def test_a_refused_capture_gives_its_reason_and_is_given_up():
  gpu = FakeGpu()
  with pytest.raises(NotCaptured) as caught:
    replay(gpu, refuse="operation not permitted when stream is capturing")
  assert str(caught.value) == "1 : FAIL : operation not permitted when stream is capturing"
  assert gpu.captures_given_up


def test_a_refused_session_gives_its_reason():
  def refuse(options):
    raise RuntimeError("[ONNXRuntimeError] : 1 : FAIL : the model has control flow nodes")

  gpu = FakeGpu()
  with raises(NotCaptured, "control flow nodes"), GraphSession(refuse, 0, gpu):
    pass
  assert not gpu.is_open


def test_little_memory_makes_small_batches_and_too_little_is_a_reason():
  size = 4 * 8 * 4
  gpu = FakeGpu(memory=20 * 256)
  assert not verdict(replay(gpu))
  assert gpu.log.count("replay") >= REPLAYS
  with raises(NotCaptured, "out of memory"):
    replay(FakeGpu(memory=size * 5))


def test_strings_are_a_reason():
  make = partial(CapturingSession, session_of(parsed("(string[2] a) => (y) { y = Identity(a) }")))
  with GraphSession(make, 0, FakeGpu()) as graphs, raises(NotCaptured, r"'a' is a tensor\(string\)"):
    graphs.replay([{"a": np.array(["x", "y"], dtype=object)}])


@parametrize("kind", ["FLOAT16", "BFLOAT16", "DOUBLE", "INT64", "BOOL", "UINT8"])
@parametrize("shape", [(), (0, 3), (5, 3)])
def test_dtypes_and_shapes(kind, shape):
  number = TensorProto.DataType.Value(kind)
  value = f"{kind.lower()}[{','.join(map(str, shape))}]" if shape else kind.lower()
  model = parsed(f"({value} x) => ({value} y) {{ y = Identity(x) }}")
  x = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(helper.tensor_dtype_to_np_dtype(number))
  with GraphSession(partial(CapturingSession, session_of(model)), 0, FakeGpu()) as graphs:
    replayed = graphs.replay([{"x": x}])
  (output,) = compare_replays(replayed, 0, {"y": x})
  assert output.passed
  assert replayed.results[0][0].outputs["y"].dtype == x.dtype


def test_several_graphs_of_one_session():
  make = partial(CapturingSession, session_of(parsed(TWO_SUMS.replace("[4,8]", "[n,8]"))))
  with GraphSession(make, 0, FakeGpu()) as graphs:
    for rows in (4, 2):
      given = [{"a": case["a"][:rows], "b": case["b"]} for case in cases()]
      replayed = graphs.replay(given)
      for number, case in enumerate(given):
        assert all(each.passed for each in compare_replays(replayed, number, wanted(case)))
  with GraphSession(make, 0, FakeGpu()) as graphs, raises(ValueError, "different shapes"):
    graphs.replay([cases()[0], {"a": cases()[0]["a"][:2], "b": cases()[0]["b"]}])


def test_plain_runs_that_vary_excuse_bits_but_not_values():
  one = np.float32([1, 2])
  near, far = np.nextafter(one, np.float32(9)), one + 1

  def replayed(*results, unsteady=""):
    found = tuple(Result({"y": each}, number, 1) for number, each in enumerate(results))
    return Replayed(len(results), True, (found,), (0,), ({"y": one},), frozenset(unsteady))

  expected = {"y": one}
  assert not compare_replays(replayed(one, near), 0, expected)[0].passed
  (remark,) = compare_replays(replayed(one, near, unsteady="y"), 0, expected)
  assert remark.passed
  assert "as runs without a graph do" in remark.message
  assert not compare_replays(replayed(one, far, unsteady="y"), 0, expected)[0].passed
  nan = np.array([np.nan, 1], ml_dtypes.bfloat16)
  assert replayed(nan, nan.copy()).differing("y") == 0, "the same NaN is the same bits"
