"""Builds one training step of the MNIST network of Flux's model zoo as an ONNX graph: forward, gradients, SGD.

    image [N, 1, 28, 28] -> Conv 3x3 to 16, Relu, MaxPool -> to 32, Relu, MaxPool -> to 32, Relu, MaxPool
    -> dense 288 to 10 -> softmax cross-entropy, mean over the batch

The model's inputs are image, label and the parameters, its outputs the loss before the step and each parameter after it
(`<name>.next`), so that sessions alone train: what comes out goes in again. Everything is standard ONNX but the
gradients of convolutions, `ortplugin.ConvGrad`; run `optimize-model` on it to fuse the rest.

    python -m models.mnist_training --batch 100 --out step.onnx
"""

import argparse
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 18
LAYERS = ((1, 28, 16), (16, 14, 32), (32, 7, 32))  # channels, size, filters
CLASSES, FEATURES = 10, 288
PARAMETERS = {
  **{
    f"conv{i}.{kind}": shape
    for i, (channels, _, filters) in enumerate(LAYERS)
    for kind, shape in (("weight", (filters, channels, 3, 3)), ("bias", (filters,)))
  },
  "dense.weight": (CLASSES, FEATURES),
  "dense.bias": (CLASSES,),
}
RELU_GRADIENT = """(float dy, float y) => (float dz) {
  p = Greater(y, 0)
  dz = Where(p, dy, 0)
}"""


class _Builder:
  """Collects nodes and constants; values are named after what makes them."""

  def __init__(self):
    self.nodes = []
    self.constants = {}

  def op(self, op, *inputs, outputs=(), domain="", **attributes):
    names = list(outputs) or [f"{op}_{len(self.nodes)}"]
    self.nodes.append(helper.make_node(op, inputs, names, f"{op}/{names[0]}", domain=domain, **attributes))
    return names[0]

  def constant(self, value, dtype):
    array = np.asarray(value, dtype)
    name = f"{array.dtype}{list(array.shape)}{array.tobytes().hex()[:48]}"
    self.constants[name] = numpy_helper.from_array(array, name)
    return name

  def shape(self, *sizes):
    return self.constant(sizes, np.int64)


def build(batch, learning_rate=0.1, bias_gradients=True):
  """The step for batches of this size. `bias_gradients`: False leaves biases as they are, for measuring."""
  b = _Builder()
  x, kept = "image", []
  for i, (_, size, filters) in enumerate(LAYERS):
    window = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    y = b.op("Relu", b.op("Conv", x, f"conv{i}.weight", f"conv{i}.bias", **window), outputs=[f"y{i}"])
    pooled = b.op("MaxPool", y, outputs=[f"pooled{i}", f"index{i}"], kernel_shape=[2, 2], strides=[2, 2])
    kept.append((x, y, pooled, size, filters))
    x = pooled
  flat = b.op("Reshape", x, b.shape(batch, FEATURES))
  logits = b.op("Gemm", flat, "dense.weight", "dense.bias", transB=1)

  # The loss, and its gradient by the logits: (softmax - one at the label) / N.
  logs = b.op("LogSoftmax", logits, axis=1)
  labels = b.op("Reshape", "label", b.shape(batch, 1))
  chosen = b.op("Cast", b.op("Equal", labels, b.constant(range(CLASSES), np.int64)), to=TensorProto.FLOAT)
  parts = b.op("Mul", b.op("Mul", logs, chosen), b.constant(-1 / batch, np.float32))
  b.op("ReduceSum", parts, b.shape(0, 1), outputs=["loss"], keepdims=0)
  difference = b.op("Sub", b.op("Exp", logs), chosen)
  gradient = b.op("Mul", difference, b.constant(1 / batch, np.float32))

  gradients = {"dense.weight": b.op("Gemm", gradient, flat, transA=1)}
  gradients["dense.bias"] = b.op("ReduceSum", gradient, b.shape(0), keepdims=0)
  flat_gradient = b.op("Gemm", gradient, "dense.weight")
  upper = b.op("Reshape", flat_gradient, b.shape(batch, LAYERS[-1][2], LAYERS[-1][1] // 2, LAYERS[-1][1] // 2))
  for i in reversed(range(len(LAYERS))):
    x, y, _, size, filters = kept[i]
    dy = _pool_gradient(b, upper, f"index{i}", batch, filters, size)
    wanted = ["dX"] * (i > 0) + ["dW"] + ["dB"] * bias_gradients
    made = [f"{each}{i}" for each in wanted]
    operands = [x, f"conv{i}.weight"] if i > 0 else [x]
    b.op("ConvGrad", *operands, dy, y, outputs=made, domain="ortplugin", program=RELU_GRADIENT,
         gradients=" ".join(wanted), operands="X W" if i > 0 else "X", kernel_shape=[3, 3],
         pads=[1, 1, 1, 1])  # fmt: skip
    upper = f"dX{i}"
    gradients[f"conv{i}.weight"] = f"dW{i}"
    if bias_gradients:
      gradients[f"conv{i}.bias"] = f"dB{i}"

  rate = b.constant(learning_rate, np.float32)
  for name in PARAMETERS:
    if name in gradients:
      b.op("Sub", name, b.op("Mul", gradients[name], rate), outputs=[f"{name}.next"])
  inputs = {"image": (batch, 1, 28, 28), **PARAMETERS}
  graph = helper.make_graph(
    b.nodes,
    "mnist_step",
    [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    + [helper.make_tensor_value_info("label", TensorProto.INT64, (batch,))],
    [helper.make_tensor_value_info("loss", TensorProto.FLOAT, ())]
    + [
      helper.make_tensor_value_info(f"{name}.next", TensorProto.FLOAT, shape)
      for name, shape in PARAMETERS.items()
      if name in gradients
    ],
    list(b.constants.values()),
  )
  opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ortplugin", 1)]
  return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def _pool_gradient(b, gradient, index, batch, channels, size):
  """The gradient of what a 2x2 MaxPool of stride 2 read: its own where the index points to, else 0.

  Windows do not overlap, so an element gets at most one gradient, and where it is in its window says which.
  """
  half = size // 2
  even = 2 * half
  flat = b.op("Cast", index, to=TensorProto.INT32)
  column = b.op("Mod", flat, b.constant(size, np.int32))
  row = b.op("Mod", b.op("Div", flat, b.constant(size, np.int32)), b.constant(size, np.int32))
  two = b.constant(2, np.int32)
  place = b.op("Add", b.op("Mul", b.op("Mod", row, two), two), b.op("Mod", column, two))
  apart = b.shape(batch, channels, half, 1, half, 1)
  places = b.constant([[[0, 1]], [[2, 3]]], np.int32)  # of the elements of a window, [2, 1, 2]
  here = b.op("Equal", b.op("Reshape", place, apart), places)
  spread = b.op("Where", here, b.op("Reshape", gradient, apart), b.constant(0, np.float32))
  joined = b.op("Reshape", spread, b.shape(batch, channels, even, even))
  if even == size:
    return joined
  return b.op("Pad", joined, b.shape(0, 0, 0, 0, 0, 0, size - even, size - even))


def initial(seed=0):
  """Random parameters by name."""
  rng = np.random.default_rng(seed)
  made = {}
  for name, shape in PARAMETERS.items():
    scale = 0.1 if len(shape) == 1 else np.sqrt(2 / np.prod(shape[1:]))
    made[name] = (rng.standard_normal(shape) * scale).astype(np.float32)
  return made


def data(batch, seed=0):
  """Random images, mostly black as digits are, and labels that a part of the image tells."""
  rng = np.random.default_rng(seed)
  label = rng.integers(0, CLASSES, batch)
  image = np.zeros((batch, 1, 28, 28), np.float32)
  for number, digit in enumerate(label):
    top, left = 4 + 10 * (digit // 5), 2 + 5 * (digit % 5)
    image[number, 0, top : top + 8, left : left + 4] = rng.random((8, 4)) * 0.9 + 0.1
  return image, label.astype(np.int64)


def train(session, batch, steps, parameters, seed=1):
  """The loss before each of so many steps, all of them runs of the session; `parameters` become the trained ones."""
  losses = []
  names = [output.name for output in session.get_outputs()]
  for step in range(steps):
    image, label = data(batch, seed + step)
    results = dict(zip(names, session.run(names, {"image": image, "label": label, **parameters}), strict=True))
    losses.append(float(results.pop("loss")))
    parameters.update({name.removesuffix(".next"): value for name, value in results.items()})
  return losses


if __name__ == "__main__":
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--batch", type=int, default=100)
  parser.add_argument("--out", type=Path, required=True, help="where the model goes")
  given = parser.parse_args()
  onnx.save(build(given.batch), given.out)
