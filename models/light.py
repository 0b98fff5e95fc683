"""The convolutional networks of the ONNX package's own tests, `light_*.onnx`, with random weights.

The files (opsets 8 and 9, IR version 3) hold no weights: each is a ConstantOfShape of 0.02, so that all channels of a
layer are equal, most outputs are 1/1000 and little could go wrong unseen. `randomized` gives the weights values of a
trained network's magnitude instead.
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

NAMES = (
  "bvlc_alexnet",
  "densenet121",
  "inception_v1",
  "inception_v2",
  "resnet50",
  "shufflenet",
  "squeezenet",
  "vgg19",
  "zfnet512",
)


def path(name):
  """Where the installed onnx package has the model."""
  return Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / f"light_{name}.onnx"


def randomized(name, seed=0, logits=False):
  """The model with random weights in place of the constants.

  Weights of convolutions and matrix products are normal with a variance of 1 or 2 / (inputs of one output), so
  that activations neither vanish nor explode; scales and variances lie between 0.5 and 1.5, the rest around 0.
  `logits` leaves out the Softmax at the end, which hides how far the values before it are off.
  """
  model = onnx.load(path(name))
  generator = np.random.default_rng(seed)
  shapes = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
  made = {node.output[0]: node for node in model.graph.node if node.op_type == "ConstantOfShape"}
  positive = _positive(model)
  gain = 1 if positive else 2  # with normalisation, residual connections add up
  for output, node in made.items():
    shape = tuple(int(length) for length in shapes[node.input[0]])
    if output in positive:
      values = generator.uniform(0.5, 1.5, shape)
    elif len(shape) > 1:
      values = generator.standard_normal(shape) * np.sqrt(gain / np.prod(shape[1:]))
    else:
      values = generator.standard_normal(shape) * 0.1
    model.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), output))
    model.graph.input.append(onnx.helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, shape))
  kept = [node for node in model.graph.node if node.op_type != "ConstantOfShape"]
  unused = {node.input[0] for node in made.values()} - {name for node in kept for name in node.input}
  for field, items in (
    (model.graph.node, kept),
    (model.graph.initializer, [t for t in model.graph.initializer if t.name not in unused]),
    (model.graph.input, [i for i in model.graph.input if i.name not in unused]),
  ):
    copies = [type(each).FromString(each.SerializeToString()) for each in items]
    del field[:]
    field.extend(copies)
  if logits and model.graph.node[-1].op_type == "Softmax":
    model.graph.node[-1].op_type = "Identity"
    del model.graph.node[-1].attribute[:]
  return model


def _positive(model):
  """The names of what scales: of a BatchNormalization's scale and variance, and of what a Mul reads unsqueezed."""
  makers = {node.output[0]: node for node in model.graph.node}
  found = {node.input[i] for node in model.graph.node if node.op_type == "BatchNormalization" for i in (1, 4)}
  for node in model.graph.node:
    for name in node.input if node.op_type == "Mul" else ():
      while name in makers and makers[name].op_type == "Unsqueeze":
        name = makers[name].input[0]
      found.add(name)
  return found
