import numpy as np
from onnx import numpy_helper
from pass_helpers import assert_close, lines, model, parametrize, programs, restore, run, run_pass, stays

from ortplugin.optimizer.pipeline import FUSE_L2_NORM

CLIPPED = "c = Clip(n, low)  y = Div(x, c)"


def graph(nodes=CLIPPED, low=0.0, axes="-1", dtype="float16", x="N,3,7,7"):
  original = model(f"({dtype}[{x}] x) => (y) {{ n = ReduceL2<axes=[{axes}]>(x)  {nodes} }}")
  low_ = np.array(low, np.float16 if dtype == "float16" else np.float32)
  original.graph.initializer.append(numpy_helper.from_array(low_, "low"))
  return original


@parametrize("nodes", [CLIPPED, CLIPPED.replace("Clip", "Max"), "y = Div(x, n)"])
def test_rows_of_zeros_and_of_the_smallest_numbers(nodes):
  optimized, _ = run_pass(graph(nodes, axes="2, 3"), FUSE_L2_NORM, into="FusedLayerNorm", changes=1)
  scale = 1 / 7
  assert lines(programs(optimized)[0]) == ["n = RMSNormalization<axis=-2, epsilon=0>(x)", f"y = Mul(n, {scale})"]
  x = np.random.default_rng(0).standard_normal((2, 3, 7, 7)).astype(np.float16)
  x[0], x[0, 1, 2, 3], x[0, 2] = 0, 2.0**-24, 60000
  with np.errstate(invalid="ignore"):
    expected = x / np.sqrt((x.astype(np.float64) ** 2).sum((2, 3), keepdims=True))
  assert np.isnan(expected[0, 0]).all()
  assert_close(expected.astype(np.float16), run(restore(optimized), {"x": x})[0])


@parametrize("original, reason", [
  (graph(low=1e-6), "may be more than a row's norm"),
  (graph(CLIPPED.replace("low", "n")), "at least inf"),
  (graph(low=1e-12, dtype="float"), ""),
  (graph("y = Div(x, n)", axes="1"), "are not the trailing ones"),
  (graph(CLIPPED.replace("y", "d") + "  y = Mul(d, n)"), "is also used by"),
  (graph("r = Relu(x)  y = Div(r, n)"), ""),
  (graph(x="N,M"), "normalised is unknown"),
])  # fmt: skip
def test_stays(original, reason):
  stays(original, FUSE_L2_NORM, *filter(None, [reason]))
