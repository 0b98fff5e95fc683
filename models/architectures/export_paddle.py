"""Writes small Paddle networks by paddle2onnx.

Version 2.1.0 writes whatever memory holds as the slopes of leaky_relu and elu and the epsilon of
group norms, and fails at the scale_factor of interpolate: none of them is used here.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import paddle
import paddle2onnx
from paddle import nn
from paddle.nn import functional

from models.architectures import archive


class Convolutions(nn.Layer):
  """A residual block with squeeze and excitation, pools, and hard activations."""

  def __init__(self):
    super().__init__()
    self.stem, self.norm = nn.Conv2D(3, 8, 3, 2, 1, bias_attr=False), nn.BatchNorm2D(8)
    self.depthwise, self.gate = nn.Conv2D(8, 8, 3, padding=1, groups=8), nn.Conv2D(8, 8, 1)
    self.out = nn.Linear(8, 4)

  def forward(self, image):
    """Logits."""
    x = functional.hardswish(self.norm(self.stem(image)))
    y = functional.relu6(self.depthwise(functional.max_pool2d(x, 3, 1, 1)))
    y = x + y * functional.hardsigmoid(self.gate(functional.adaptive_avg_pool2d(y, 1)))
    return self.out(paddle.flatten(functional.adaptive_avg_pool2d(y, 1), 1))


class Segmentation(nn.Layer):
  """Down, then up by a transposed convolution and by resizing."""

  def __init__(self):
    super().__init__()
    self.one, self.two = nn.Conv2D(3, 8, 3, padding=1), nn.Conv2D(8, 12, 3, 2, 1)
    self.up, self.norm, self.out = nn.Conv2DTranspose(12, 8, 2, 2), nn.BatchNorm2D(8), nn.Conv2D(16, 2, 1)

  def forward(self, image):
    """Probabilities at twice the size."""
    one = functional.relu(self.one(image))
    two = functional.silu(self.norm(self.up(functional.gelu(self.two(one)))))
    x = self.out(paddle.concat([one, two], 1))
    return functional.softmax(functional.interpolate(x, size=[32, 32], mode="bilinear"), 1)


class Attention(nn.Layer):
  """Words through a transformer's layer."""

  def __init__(self):
    super().__init__()
    self.embed = nn.Embedding(20, 8)
    self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, activation="gelu")
    self.out = nn.Linear(8, 3)

  def forward(self, tokens):
    """Logits of the mean."""
    return self.out(self.layer(self.embed(tokens)).mean(1))


class Recurrent(nn.Layer):
  """A recurrent layer in both directions, as text recognition ends with."""

  def __init__(self):
    super().__init__()
    self.stem, self.recurrent = nn.Conv1D(3, 6, 3, padding=1), nn.LSTM(6, 5, direction="bidirect")
    self.out = nn.Linear(10, 4)

  def forward(self, sound):
    """Probabilities at each step."""
    x = functional.relu(self.stem(sound)).transpose([0, 2, 1])
    return functional.softmax(self.out(self.recurrent(x)[0]), -1)


# Name: network, shape of the input behind the batch, and the upper bound of integers.
NETWORKS: dict[str, tuple[type[nn.Layer], tuple[int, ...], int]] = {
  "convolutions": (Convolutions, (3, 16, 16), 0),
  "segmentation": (Segmentation, (3, 16, 16), 0),
  "attention": (Attention, (7,), 20),
  "recurrent": (Recurrent, (3, 9), 0),
}


def randomize(model, rng):
  """Random weights with few bits; variances and scales of norms near one."""
  for name, value in model.state_dict().items():
    noise = rng.standard_normal(value.shape).astype(np.float32)
    if "variance" in name or ("norm" in name and name.endswith("weight")):
      values = 1 + 0.2 * np.tanh(noise)
    else:
      values = noise / max(1.0, float(np.prod(value.shape[1:])) ** 0.5) if noise.ndim > 1 else 0.3 * noise
    mantissa, exponent = np.frexp(values)
    value.set_value(np.ldexp(np.round(mantissa * 4) / 4, exponent))


def make(name):
  """The model, of which the batch is open, and what is said of it."""
  build, shape, high = NETWORKS[name]
  rng = np.random.default_rng(archive.SEED)
  paddle.seed(archive.SEED)
  model = build()
  randomize(model, rng)
  model.eval()
  dtype = "int64" if high else "float32"
  with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "model"
    paddle.jit.save(model, str(path), [paddle.static.InputSpec([None, *shape], dtype, "x")])
    # without its optimizer, Polygraphy, which installs packages
    paddle2onnx.export(f"{path}.json", f"{path}.pdiparams", f"{path}.onnx", 16, optimize_tool=None)
    proto = onnx.load(f"{path}.onnx")
  shapes = [(2, *shape), (3, *shape)]
  feeds = [{"x": (rng.integers(0, high, each) if high else rng.standard_normal(each)).astype(dtype)} for each in shapes]
  runs = [(feed, [model(paddle.to_tensor(feed["x"])).numpy()]) for feed in feeds]
  archive.check(archive.finished(proto), runs, name)
  said = archive.entry(f"paddle_{name}", "paddle2onnx", proto, feeds, ("paddlepaddle", "paddle2onnx"), {"x": high})
  return proto, said | {"dynamic": True, "chooses": False}


def main():
  """Writes them all."""
  made = {f"paddle_{name}": make(name) for name in NETWORKS}
  archive.write(made, set(made), {"paddle2onnx"})
  return 0


if __name__ == "__main__":
  sys.exit(main())
