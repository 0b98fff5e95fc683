"""A tiny model of images, in ONNX's text form, and its outputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MODEL = """<ir_version: 10, opset_import: ["" : 18]>
  g (float[N,3,4,4] image) => (float[N,3] mean, float[N] largest) <float[3,1,1] s = {1, 0.5, 2}, float b = {3}> {
    scaled = Mul (image, s)  moved = Sub (scaled, b)  squashed = Tanh (moved)
    inner = Constant <value_ints = [2, 3]> ()  mean = ReduceMean <keepdims = 0> (squashed, inner)
    last = Constant <value_ints = [1]> ()  largest = ReduceMax <keepdims = 0> (mean, last) }"""


def reference(images: NDArray[np.generic]) -> NDArray[np.float64]:
  """What MODEL says, in float64."""
  scaled = images.astype(np.float64) * np.array([1, 0.5, 2])[:, None, None]
  return np.asarray(np.tanh(scaled - 3).mean((2, 3)))
