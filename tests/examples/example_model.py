"""A tiny model of images, and its outputs."""

from pathlib import Path

import numpy as np

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MODEL = """<ir_version: 10, opset_import: ["" : 18]>
  g (float[N,3,4,4] image) => (float[N,3] mean, float[N] top) <float[3,1,1] s = {1,0.5,2}, float b = {3}> {
    scaled = Mul(image, s)  moved = Sub(scaled, b)  squashed = Tanh(moved)
    inner = Constant <value_ints=[2,3]>()  mean = ReduceMean <keepdims=0>(squashed, inner)
    last = Constant <value_ints=[1]>()  top = ReduceMax <keepdims=0>(mean, last) }"""


def check(outputs, images):
  mean = np.tanh(images.astype(np.float64) * np.array([1, 0.5, 2])[:, None, None] - 3).mean((2, 3))
  np.testing.assert_allclose(outputs["mean"], mean, rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(outputs["top"], mean.max(1), rtol=1e-5, atol=1e-6)
