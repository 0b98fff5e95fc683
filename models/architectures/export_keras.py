"""Writes small Keras models by tf2onnx: convolutions with channels last, recurrent layers, attention."""

import os
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
import tf2onnx
from tensorflow import keras

from models.architectures import archive

layers = keras.layers
IMAGE, SERIES, TOKENS = (16, 16, 3), (10, 4), (9,)
WORDS = 20


def gelu(x):
  """By a tanh: tf2onnx does not write the exact one's Erfc."""
  return keras.activations.gelu(x, approximate=True)


def dense(x):
  """Layers of several activations, a batch norm, a softmax."""
  x = layers.BatchNormalization()(layers.Dense(12, gelu)(x))
  x = layers.Dense(8, "selu")(layers.Dense(12, "elu")(x))
  return layers.Dense(4, "softmax")(x)


def conv(x):
  """Convolutions, batch norms, pools of both kinds."""
  x = layers.Conv2D(8, 3, padding="same", use_bias=False)(x)
  x = layers.MaxPooling2D(3, 2, "same")(layers.ReLU()(layers.BatchNormalization()(x)))
  x = layers.AveragePooling2D(2, 2, "same")(layers.Conv2D(8, 3, 2, "same", activation="swish")(x))
  return layers.Dense(4)(layers.Flatten()(x))


def separable(x):
  """MobileNet's and Xception's blocks: depthwise, pointwise, an expanded one with a residual."""
  x = layers.SeparableConv2D(8, 3, 2, "same", activation="relu6")(layers.ZeroPadding2D(1)(x))
  y = layers.DepthwiseConv2D(3, padding="same", activation="hard_silu")(layers.Conv2D(16, 1)(x))
  y = layers.BatchNormalization()(layers.Conv2D(8, 1)(y))
  gate = layers.Dense(8, "sigmoid")(layers.Dense(4, "relu")(layers.GlobalAveragePooling2D(keepdims=True)(y)))
  return layers.Dense(3)(layers.GlobalMaxPooling2D()(layers.Add()([x, layers.Multiply()([y, gate])])))


def unet(x):
  """Down, and up by a transposed convolution and by resizing, concatenated."""
  one = layers.Conv2D(8, 3, padding="same", activation="relu")(x)
  two = layers.Conv2D(12, 3, 2, "same", activation=layers.LeakyReLU(0.1))(one)
  three = layers.Conv2D(12, 3, 2, "same", dilation_rate=1, activation="tanh")(two)
  two = layers.Concatenate()([two, layers.Conv2DTranspose(8, 3, 2, "same", activation="relu")(three)])
  up = layers.UpSampling2D(2, interpolation="bilinear")(layers.LayerNormalization()(two))
  return layers.Conv2D(2, 1, activation="sigmoid")(layers.Concatenate()([one, up]))


def lstm(x):
  """A recurrent layer in both directions, then one more."""
  return layers.Dense(3)(layers.LSTM(5)(layers.Bidirectional(layers.LSTM(4, return_sequences=True))(x)))


def gru(x):
  """Causal convolutions before a recurrent layer."""
  x = layers.Conv1D(6, 3, padding="causal", dilation_rate=2, activation="relu")(x)
  return layers.TimeDistributed(layers.Dense(2))(layers.GRU(5, return_sequences=True, reset_after=True)(x))


def transformer(x):
  """A transformer's block on embedded words and places."""
  x = layers.Embedding(WORDS, 8)(x) + layers.Embedding(TOKENS[0], 8)(keras.ops.cumsum(keras.ops.ones_like(x), 1) - 1)
  x = layers.LayerNormalization(epsilon=1e-6)(x + layers.MultiHeadAttention(2, 4)(x, x))
  x = layers.LayerNormalization(epsilon=1e-6)(x + layers.Dense(8)(layers.Dense(16, gelu)(x)))
  return layers.Dense(3, "softmax")(layers.GlobalAveragePooling1D()(x))


def norms(x):
  """Norms of groups and units, with a PReLU."""
  x = layers.GroupNormalization(2)(layers.Conv2D(8, 5, 2)(x))
  x = layers.PReLU(shared_axes=[1, 2])(layers.Conv2D(8, 3, padding="same")(x))
  return layers.UnitNormalization()(layers.Flatten()(layers.Cropping2D(1)(x)))


def video(x):
  """Convolutions in three dimensions."""
  x = layers.MaxPooling3D(2)(layers.Conv3D(6, 3, padding="same", activation="relu")(x))
  return layers.Dense(3)(layers.GlobalAveragePooling3D()(x))


BUILDERS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
  "dense": (dense, (6,)),
  "conv": (conv, IMAGE),
  "separable": (separable, IMAGE),
  "unet": (unet, IMAGE),
  "lstm": (lstm, SERIES),
  "gru": (gru, SERIES),
  "transformer": (transformer, TOKENS),
  "norms": (norms, IMAGE),
  "video": (video, (4, 8, 8, 2)),
}
OPSETS = (15, 17, 18)


def randomize(model, rng):
  """Random weights with few bits; variances and scales of norms near one."""
  for weight in model.weights:
    noise = rng.standard_normal(weight.shape).astype(np.float32)
    if any(word in weight.path for word in ("variance", "gamma")):
      values = 1 + 0.2 * np.tanh(noise)
    else:
      values = noise / max(1.0, float(np.prod(weight.shape[:-1])) ** 0.5) if noise.ndim > 1 else 0.3 * noise
    mantissa, exponent = np.frexp(values)
    weight.assign(np.ldexp(np.round(mantissa * 4) / 4, exponent))


def make(number, name):
  """The model, of which the batch is open, and what is said of it."""
  build, shape = BUILDERS[name]
  rng = np.random.default_rng(archive.SEED)
  dtype = "int32" if shape == TOKENS else "float32"
  given = keras.Input(shape, dtype=dtype)
  model = keras.Model(given, build(given))
  randomize(model, rng)

  @tf.function(input_signature=[tf.TensorSpec((None, *shape), dtype, name="x")])
  def function(x):
    return model(x, training=False)

  proto, _ = tf2onnx.convert.from_function(
    function, input_signature=function.input_signature, opset=OPSETS[number % len(OPSETS)]
  )
  shapes = [(2, *shape), (3, *shape)]
  values = [rng.integers(0, WORDS, each) if dtype == "int32" else rng.standard_normal(each) for each in shapes]
  feeds = [{proto.graph.input[0].name: value.astype(dtype)} for value in values]
  runs = [(feed, [np.asarray(model(next(iter(feed.values())), training=False))]) for feed in feeds]
  archive.check(archive.finished(proto), runs, name)
  high = {proto.graph.input[0].name: WORDS if dtype == "int32" else 0}
  said = archive.entry(f"keras_{name}", "tf2onnx", proto, feeds, ("tensorflow-cpu", "keras", "tf2onnx"), high)
  return proto, said | {"dynamic": True, "chooses": False}


def main():
  """Writes them all."""
  made = {f"keras_{name}": make(number, name) for number, name in enumerate(BUILDERS)}
  archive.write(made, set(made), {"tf2onnx"})
  return 0


if __name__ == "__main__":
  sys.exit(main())
