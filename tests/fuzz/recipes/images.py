"""Blocks of convolutional networks, as exporters write them."""

from ..evaluate import to_onnx
from ..graph import INT, UnfitError
from .networks import batch_norm, convolve, image, picked, pooled, reduce, resized, transposed
from .pointwise import two
from .table import motif

ACTIVATIONS = ["Relu", "Relu", "Sigmoid", "Tanh", "HardSwish", "Clip", "LeakyRelu", "swish"]


def activate(g, x):
  kind = g.choice(ACTIVATIONS)
  if kind == "swish":
    return g.op("Mul", *([x, g.op("Sigmoid", x)] if g.chance(0.5) else [g.op("Sigmoid", x), x]))
  if kind == "Clip":
    if g.opset < 11:
      return g.op("Clip", x, min=0.0, max=6.0)
    return g.op("Clip", x, g.constant(0.0, x.dtype), g.constant(6.0, x.dtype))
  return g.op(kind, x)


def same_conv(g, x, filters, kernel=3, group=1, bias=None):
  count = x.rank - 2
  attributes = {"kernel_shape": [kernel] * count, "pads": [kernel // 2] * (2 * count)}
  return convolve(g, x, filters, bias, **attributes, **({"group": group} if group > 1 else {}))


def padded(g, x):
  """A Pad of the places with zeros, the same on both sides or not."""
  count = x.rank - 2
  pads = [g.choice([0, 1, 2]) for _ in range(2 * count)] if g.chance(0.5) else [1] * (2 * count)
  if g.opset >= 18 and g.chance(0.3):
    return g.op("Pad", x, g.ints(pads), None, g.ints(range(2, x.rank)))
  whole = [0, 0, *pads[:count], 0, 0, *pads[count:]]
  return g.op("Pad", x, g.ints(whole)) if g.opset >= 11 else g.op("Pad", x, pads=whole)


@motif(4)
def conv_block(g):
  """Pad, Conv, BatchNormalization, activation; some of them left out."""
  x = image(g)
  if g.chance(0.2):
    x = padded(g, x)
    if g.chance(0.3):
      return pooled(g, x)
  if g.chance(0.15):
    x = batch_norm(g, x)
  y = transposed(g, x) if g.chance(0.2) else convolve(g, x)
  if g.chance(0.5):
    y = batch_norm(g, y)
  if g.chance(0.25):
    y = g.op(g.choice(["Mul", "Add"]), *two(g, y))
  return activate(g, y) if g.chance(0.75) else y


@motif(3)
def residual(g):
  """y = activation(f(x) + x), the sum's sides in either order, a projection where channels differ."""
  x = image(g)
  filters = x.shape[1] if g.chance(0.6) else g.choice([2, 4, 8])
  y = activate(g, same_conv(g, x, filters))
  y = same_conv(g, y, filters, g.choice([1, 3]))
  if g.chance(0.4):
    y = batch_norm(g, y)
  shortcut = x if x.shape[1] == filters else same_conv(g, x, filters, 1)
  operands = [y, shortcut] if g.chance(0.5) else [shortcut, y]
  total = g.op(g.choice(["Add", "Add", "Sum", "Sub"]), *operands)
  return activate(g, total) if g.chance(0.8) else total


@motif(2.5)
def squeeze_excite(g):
  """x * sigmoid(conv(relu(conv(pool(x))))), by convolutions or linear layers."""
  x = image(g)
  count, channels, narrow = x.rank - 2, x.shape[1], g.choice([1, 2, 4])
  kind = g.choice(["GlobalAveragePool", "ReduceMean", "flat"])
  axes = list(range(2, x.rank)) if g.chance(0.5) or g.opset < 11 else list(range(-count, 0))
  if kind == "GlobalAveragePool":
    pool = g.op(kind, x)
  else:
    pool = reduce(g, "ReduceMean", x, axes, 1 if kind == "ReduceMean" else 0)
  if kind == "flat" or g.chance(0.2):
    flat = g.op("Flatten", pool) if pool.rank > 2 and g.chance(0.5) else g.op("Reshape", pool, g.ints([0, -1]))
    hidden = activate(g, g.op("MatMul", flat, g.weights(channels, narrow)))
    gate = g.op("Sigmoid", g.op("Gemm", hidden, g.weights(channels, narrow), g.weights(channels), transB=1))
    gate = g.op("Reshape", gate, g.ints([g.choice([0, -1]), channels, *[1] * count]))
  else:
    hidden = activate(g, same_conv(g, pool, narrow, 1))
    gate = g.op(g.choice(["Sigmoid", "HardSigmoid"]), same_conv(g, hidden, channels, 1))
  return g.op("Mul", *([x, gate] if g.chance(0.5) else [gate, x]))


@motif(1.5)
def inverted_bottleneck(g):
  """1x1, depthwise, 1x1, residual."""
  x = image(g)
  channels = x.shape[1]
  y = activate(g, same_conv(g, x, 2 * channels, 1))
  y = activate(g, same_conv(g, y, 2 * channels, 3, group=2 * channels))
  y = same_conv(g, y, channels, 1)
  return g.op("Add", y, x)


@motif(1.5)
def shuffle(g):
  x = image(g, (4, 4, 3))
  channels = x.shape[1]
  groups = g.choice([d for d in range(1, channels + 1) if channels % d == 0])
  split = g.op("Reshape", x, g.ints([x.shape[0], groups, channels // groups, *x.shape[2:]]))
  swapped = g.op("Transpose", split, perm=[0, 2, 1, *range(3, x.rank + 1)])
  return g.op("Reshape", swapped, g.ints([g.choice([x.shape[0], -1]), channels, *x.shape[2:]]))


@motif(2)
def branches(g):
  x = image(g)
  parts = [same_conv(g, x, g.choice([1, 2, 4]), g.choice([1, 3])) for _ in range(g.choice([1, 2, 2]))]
  if g.chance(0.4):
    count = x.rank - 2
    kind = g.choice(["MaxPool", "AveragePool"])
    parts.append(g.op(kind, x, kernel_shape=[3] * count, pads=[1] * (2 * count), strides=[1] * count))
  if g.chance(0.4):
    parts.append(x)
  g.rng.shuffle(parts)
  return g.op("Concat", *parts, axis=1 if g.chance(0.7) or g.opset < 11 else 1 - x.rank)


@motif(1.5)
def up(g):
  """The end of a U-Net: enlarged, with what was there before."""
  x = image(g)
  small = pooled(g, x)
  large = resized(g, small) if g.chance(0.5) else transposed(g, small)
  if large.shape == x.shape:
    large = g.op(g.choice(["Add", "Mul"]), large, x)
  return activate(g, same_conv(g, large, g.choice([1, 2, 4])))


@motif(1)
def classifier(g):
  x = image(g)
  pool = g.op(g.choice(["GlobalAveragePool", "GlobalMaxPool"]), x)
  view = g.choice(["Flatten", "Reshape", "Squeeze"])
  if view == "Squeeze":
    axes = list(range(2, x.rank))
    flat = g.op("Squeeze", pool, g.ints(axes)) if g.opset >= 13 else g.op("Squeeze", pool, axes=axes)
  else:
    flat = g.op("Flatten", pool) if view == "Flatten" else g.op("Reshape", pool, g.ints([0, -1]))
  width = g.choice([2, 4, 8])
  scales = {"alpha": g.choice([None, None, None, 0.5]), "beta": g.choice([None, None, None, 2.0])}
  y = g.op("Gemm", flat, g.weights(width, x.shape[1]), g.weights(width), transB=1, **scales)
  if g.chance(0.5):
    y = g.op("Gemm", activate(g, y), g.weights(width, 3), g.weights(3))
  return y


@motif(1)
def heads(g):
  """A detector's head: boxes with the coordinates last, as a sequence."""
  x = image(g, (4,))
  anchors = g.choice([1, 2, 3])
  turned = g.op("Transpose", same_conv(g, x, anchors * 2, g.choice([1, 3])), perm=[0, 2, 3, 1])
  return g.op("Reshape", turned, g.ints([g.choice([0, x.shape[0]]), -1, 2]))


@motif(0.7)
def vector_image(g):
  """A generator's beginning: a vector becomes an image by a transposed convolution."""
  x = picked(g, 2)
  count = g.choice([1, 2, 2, 3])
  view = g.op("Reshape", x, g.ints([*x.shape, *[1] * count]))
  y = transposed(g, view, kernel_shape=[g.choice([2, 4])] * count, strides=[g.choice([1, 2])] * count)
  return activate(g, batch_norm(g, y))


@motif(0.7)
def halves_between(g):
  """A pool between Casts, in the wider dtype."""
  x = image(g)
  if g.style.dtype == "fp64":
    raise UnfitError("nothing is wider")
  wide = g.op("Cast", x, to=to_onnx(g.style.other))
  y = g.op(g.choice(["MaxPool", "AveragePool"]), wide, kernel_shape=[2] * (x.rank - 2))
  return g.op("Cast", y, to=to_onnx(x.dtype))


@motif(0.7)
def scaled_images(g):
  """What is known of a Resize whose sizes come from another value's shape."""
  x = image(g, (4,))
  small = g.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
  if g.opset < 13:
    raise UnfitError("its sizes are an input of later opsets")
  shape = g.op("Slice", g.op("Shape", x), g.ints([2]), g.ints([4]), g.ints([0]))
  front = g.op("Slice", g.op("Shape", small), g.ints([0]), g.ints([2]), g.ints([0]))
  sizes = g.op("Concat", front, g.op("Cast", shape, to=to_onnx(INT)), axis=0)
  return g.op("Add", x, g.op("Resize", small, None, None, sizes, mode=g.choice(["nearest", "linear"])))
