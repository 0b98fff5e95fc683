import numpy as np
import onnx
import onnx.reference
from pass_helpers import all_attributes, model, operators, parametrize, reasons, run_pass

from ortplugin.ops.pool.resize import OPERATOR
from ortplugin.optimizer.pipeline import FUSE_RESIZE

SCALES = "float[4] scales = {1,1,2,1.5}"


def graph(nodes, constants=SCALES, dtype="float"):
  return f"({dtype}[N,4,6,8] x) => ({dtype}[A,B,C,D] y) <{constants}> {{ {nodes} }}"


@parametrize(
  "nodes, constants, attributes",
  [
      ('y = Resize<mode="linear">(x, , scales)', SCALES, {"mode": b"linear", "scales": [2.0, 1.5]}),
      ('y = Resize<mode="linear", coordinate_transformation_mode="align_corners">(x, , , sizes)',
       "int64[4] sizes = {3,4,5,9}",
       {"mode": b"linear", "coordinate_transformation_mode": b"align_corners", "sizes": [5, 9]}),
      ('y = Resize<mode="linear", axes=[2,3]>(x, , , sizes)', "int64[2] sizes = {5,9}",
       {"mode": b"linear", "sizes": [5, 9]}),
  ],
)  # fmt: skip
def test_it_is_ours(nodes, constants, attributes, rng):
  original = model(graph(nodes, constants).replace("[N,4", "[3,4"), 18)
  optimized, _ = run_pass(original, FUSE_RESIZE, into="FusedResize", changes=1)
  node = optimized.graph.node[0]
  assert all_attributes(node) == attributes
  assert list(node.input) == ["x"]
  x = rng.standard_normal((3, 4, 6, 8)).astype(np.float32)
  (wanted,) = onnx.reference.ReferenceEvaluator(original).run(None, {"x": x})
  (found,) = OPERATOR.reference(node, [x])
  np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
  assert not run_pass(optimized, FUSE_RESIZE)[1].changes


@parametrize(
  "nodes, constants, reason",
  [
      ('y = Resize<mode="cubic">(x, , scales)', SCALES, None),
      ('y = Resize<mode="nearest">(x, , scales)', SCALES, None),
      ('y = Resize<mode="linear", antialias=1>(x, , scales)', SCALES, "without more attributes"),
      ('y = Resize<mode="linear">(x, , scales)', "float[4] scales = {1,2,2,2}", "spatial axes alone"),
      ('y = Resize<mode="linear">(x, , scales)', "float[4] scales = {1,1,1.1,1.1}", "spatial axes alone"),
      ('z = Unsqueeze(x, one)  y = Resize<mode="linear", axes=[3]>(z, , scales)',
       "float[1] scales = {1.1}, int64[1] one = {1}", "spatial axes alone"),
      ('s = Relu(scales)  y = Resize<mode="linear">(x, , s)', SCALES, "by constants"),
      ('y = Resize<mode="linear", coordinate_transformation_mode="tf_crop_and_resize">(x, roi, scales)',
       f"float[8] roi = {{0,0,0,0,1,1,1,1}}, {SCALES}", "coordinate_transformation_mode"),
  ],
)  # fmt: skip
def test_near_misses(nodes, constants, reason):
  optimized, result = run_pass(model(graph(nodes, constants), 18), FUSE_RESIZE)
  assert "Resize" in operators(optimized)
  assert not result.changes
  assert [reason in each for each in reasons(result)] == [True] if reason else not reasons(result)
