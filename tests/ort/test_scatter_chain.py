import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from numpy.testing import assert_array_equal
from onnx_models import add_weights, parametrize, parsed

import ortplugin

ROWS, WIDTH, RUNS = 2048, 1024, 7
APART = ("lone-pointwise",)  # the Neg that is the measure is ONNX Runtime's own
IN_PLACE = 0.25  # a copy takes about as long as the Neg of the same tensor, an update of one row some microseconds


def model(graph):
  made = parsed(graph, 18)
  used = {name for node in made.graph.node for name in node.input}
  add_weights(made, **{f"i{number}": [[number * 7]] for number in range(4) if f"i{number}" in used})
  return made


def run(model, feeds, folder):
  """The outputs, and the median time of each node that made a value, by the value's name."""
  options = onnxruntime.SessionOptions()
  ortplugin.register(options)
  options.enable_profiling = True
  options.profile_file_prefix = str(folder / "profile")
  for node in model.graph.node:
    node.name = node.output[0]
  session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
  for _ in range(RUNS):
    outputs = session.run(None, dict(feeds))
  times = {}
  for event in json.loads(Path(session.end_profiling()).read_text()):
    if event["name"].endswith("_kernel_time"):
      times.setdefault(event["name"].removesuffix("_kernel_time"), []).append(event["dur"])
  return outputs, {name: float(np.median(found)) for name, found in times.items()}


@pytest.fixture
def feeds(rng):
  return {
    "x": rng.standard_normal((ROWS, WIDTH)).astype(np.float32),
    "u": rng.standard_normal((1, WIDTH)).astype(np.float32),
    "shape": np.array([ROWS, WIDTH]),
  }


def expected(feeds, count):
  a = -feeds["x"]
  for number in range(count):
    a[number * 7] = feeds["u"]
  return a


CHAIN = "  ".join(f"a{number + 1} = ScatterND(a{number}, i{number}, u)" for number in range(4)) + "  y = Neg(a4)"
SHAPES = {
  "known": f"(float[{ROWS},{WIDTH}] x, float[1,{WIDTH}] u) => (float[{ROWS},{WIDTH}] y) {{ a0 = Neg(x)  {CHAIN} }}",
  "named": f"(float[N,M] x, float[1,M] u) => (float[N,M] y) {{ a0 = Neg(x)  {CHAIN} }}",
  "computed": "(float[N,M] x, float[1,M] u, int64[2] shape) => (float[A,B] y) "
  f"{{ b = Reshape(x, shape)  a0 = Neg(b)  {CHAIN} }}",
}


@parametrize("skip", [[], ["update-slice"]])
@parametrize("shapes", SHAPES)
def test_a_chain_stays_in_place(shapes, skip, feeds, tmp_path):
  original = model(SHAPES[shapes])
  optimized, _ = ortplugin.optimize(original, skip=[*skip, *APART])
  kind = "ScatterND" if skip else "UpdateSlice"
  assert [node.op_type for node in optimized.graph.node if node.domain == "ortplugin"] == [kind] * 4
  outputs, times = run(optimized, {each.name: feeds[each.name] for each in original.graph.input}, tmp_path)
  assert_array_equal(outputs[0], -expected(feeds, 4))
  for number in range(1, 5):
    assert times[f"a{number}"] < IN_PLACE * times["a0"], times


def test_data_that_is_needed_later_is_copied(feeds, tmp_path):
  del feeds["shape"]
  original = model("""(float[N,M] x, float[1,M] u) => (float[N,M] y, z, w) {
        a0 = Neg(x)  a1 = ScatterND(a0, i0, u)  a2 = ScatterND(a0, i1, u)  y = Neg(a1)  z = Neg(a2)
        w = ScatterND(x, i2, u) }""")
  optimized, _ = ortplugin.optimize(original, skip=APART)
  before = feeds["x"].copy()
  outputs, _ = run(optimized, feeds, tmp_path)
  assert_array_equal(feeds["x"], before)
  # Whichever of the two runs last may take a0's memory; the other may not, or its row would be in both.
  a = -before
  for output, row in zip(outputs[:2], (0, 7), strict=True):
    b = a.copy()
    b[row] = feeds["u"]
    assert_array_equal(output, -b)
  before[14] = feeds["u"]
  assert_array_equal(outputs[2], before)


def test_updates_that_are_the_data_too(tmp_path):
  original = model("(float[1,M] x) => (y) { a = Neg(x)  b = ScatterND(a, i0, a)  y = Neg(b) }")
  x = np.arange(8, dtype=np.float32).reshape(1, 8)
  outputs, _ = run(ortplugin.optimize(original, skip=APART)[0], {"x": x}, tmp_path)
  assert_array_equal(outputs[0], x)
