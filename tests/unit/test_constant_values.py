"""What ONNX Runtime computes as it loads a model stays its own."""

import numpy as np
import onnx
from onnx_models import add_weights, annotated, parametrize

from ortplugin.graph.constant_values import constant_values
from ortplugin.optimizer.pipeline import (
  FUSE_LAYER_NORM,
  FUSE_POINTWISE,
  FUSE_SUM_TO,
  LONE_POINTWISE,
  MATMUL_FLOAT32,
  MATMUL_TO_FUSED,
)


def graph(dtype, more=""):
  model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
    g ({dtype}[2,3,9,9] x) => ({dtype}[2,8,7,7] y) {{
      m = ReduceMean<axes=[1], keepdims=1>(w)  d = Sub(w, m)  e = Mul(d, d)  v = ReduceMean<axes=[1]>(e)
      s = Sqrt(v)  n = Div(d, s)  k = Reshape(n, shape)  c = Conv(x, k)  {more}  y = Relu(c) }}""")
  rng = np.random.default_rng(0)
  half = np.float16 if dtype == "float16" else np.float32
  add_weights(model, w=rng.standard_normal((8, 27)).astype(half), shape=[8, 3, 3, 3])
  return model


def test_of_constants_alone():
  graph_ = annotated(graph("float"))
  found = constant_values(graph_)
  names = {tensor.name for node in graph_.nodes for tensor in node.outputs if id(tensor) in found}
  assert names == {"m", "d", "e", "v", "s", "n", "k"}


@parametrize("dtype", ["float", "float16"])
def test_normalised_weights_stay_but_in_half_precision(dtype):
  graph_ = annotated(graph(dtype))
  changes = [change for each in (FUSE_SUM_TO, FUSE_POINTWISE, LONE_POINTWISE) for change in each(graph_).changes]
  fused = [name for change in changes for name in change.nodes]
  assert any("Sub" in name for name in fused) is (dtype == "float16")
  assert any("Relu" in name for name in fused)


@parametrize("dtype", ["float", "float16"])
def test_projected_positions_stay_but_in_half_precision(dtype):
  model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
    g ({dtype}[4,16] x) => ({dtype}[4,8] y) {{
      n = LayerNormalization(table, gamma)  p = MatMul(n, w)  t = Transpose<perm=[1,0]>(p)
      a = LayerNormalization(x, gamma)  b = MatMul(a, w)  y = MatMul(b, t) }}""")
  rng = np.random.default_rng(0)
  half = np.float16 if dtype == "float16" else np.float32
  shapes = {"table": (8, 16), "gamma": 16, "w": (16, 16)}
  add_weights(model, **{name: rng.standard_normal(shape).astype(half) for name, shape in shapes.items()})
  graph_ = annotated(model)
  for each in (FUSE_LAYER_NORM, MATMUL_TO_FUSED, MATMUL_FLOAT32):
    each(graph_)
  left = {node.outputs[0].name for node in graph_.nodes if node.domain == ""}
  assert left == ({"n", "p", "t", "y"} if dtype == "float" else {"t", "y"})
