import numpy as np
from pass_helpers import assert_same_values, model, operators, parametrize, random_feeds, run, run_pass, run_same, stays

from ortplugin.optimizer.pipeline import DEAD_NODES, SHAPE_ARITHMETIC


@parametrize(
  "nodes, value",
  [
    ("s = Shape(k)", [3, 4]),
    ("s = Shape<start=1>(k)", [4]),
    ("s = Shape<start=-1, end=2>(k)", [4]),
    ("t = Size(k)  a = {0}  s = Unsqueeze(t, a)", [12]),
    ("t = Shape(x)  i = {-1}  s = Gather(t, i)", [4]),
    (
      """t = Shape(x)  b = {1}  e = {9}
          s = Slice(t, b, e)""",
      [4],
    ),
  ],
)
def test_known(nodes, value, rng):
  original = model(f"(float[3,4] k, float[N,4] x) => (int64[R] y) {{ {nodes}  y = Neg(s) }}")
  optimized, result = run_same(original, SHAPE_ARITHMETIC, DEAD_NODES)
  assert operators(optimized)[-1] == "Neg"
  assert "Shape" not in operators(optimized)
  assert "Size" not in operators(optimized)
  assert len(result.changes) >= 1
  np.testing.assert_array_equal(run(optimized, random_feeds(original, rng))[0], [-each for each in value])


@parametrize(
  "nodes",
  [
    "s = Shape(x)",
    "t = Shape(x)  i = {0}  s = Gather(t, i)",
    "t = Shape(x)  i = {5}  s = Gather(t, i)",  # invalid: ONNX Runtime says so
    "t = Size(x)  a = {0}  s = Unsqueeze(t, a)",
    """t = Shape(x)  b = {0}  e = {1}
      s = Slice(t, b, e)""",
  ],
)
def test_unknown_stays(nodes):
  stays(f"(float[N,4] x) => (int64[R] y) {{ {nodes}  y = Neg(s) }}", SHAPE_ARITHMETIC)


@parametrize("nodes", ["s = Shape(x)", "c = Concat<axis=0>(x, x)  s = Shape(c)", "s = Shape(v)"])
@parametrize("lengths", [(-1, 4), (3, -2), (-1, -1)])
def test_a_negative_length_is_an_open_one(nodes, lengths, rng):
  """As ONNX Runtime has it; exporters write -1 for a length that they do not know."""
  original = model(f"(float[3,4] x) => (int64[R] y) <float[3,4] v> {{ v = Relu(x)  {nodes}  y = Neg(s) }}")
  feeds = random_feeds(original, rng)
  for info in (*original.graph.input, *original.graph.value_info):
    for dim, length in zip(info.type.tensor_type.shape.dim, lengths, strict=True):
      dim.dim_value = length
  optimized, _ = run_pass(original, SHAPE_ARITHMETIC, changes=0)
  assert optimized == original
  assert_same_values(original, optimized, feeds)


def test_a_graph_output_stays():
  stays("(float[3,4] x) => (int64[2] y) { y = Shape(x) }", SHAPE_ARITHMETIC)


def test_a_size_that_overflows_stays():
  stays("(float[4294967296,4294967296] x) => (int64 y) { s = Size(x)  y = Neg(s) }", SHAPE_ARITHMETIC)
