"""Convolutions, pools, norms, products and what else networks are made of, one operator at a time."""

import numpy as np

from ..evaluate import CONTRIB
from ..graph import UnfitError
from .table import glue
from .views import axis_of

_REDUCTIONS = """
    ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceSumSquare
"""
REDUCTIONS = _REDUCTIONS.split()


def image(g, ranks=(4, 4, 4, 3, 5)):
  """A value with batch, channels and places; a new input where there is none."""
  rank = g.choice(ranks)
  if g.chance(0.88):
    try:
      return g.pick(ranks=[rank], where=lambda value: 0 not in value.shape[1:])
    except UnfitError:
      pass
  return new_image(g, rank)


def new_image(g, rank):
  sizes = [g.rng.randint(1, 8 if rank == 4 else 6) for _ in range(rank - 2)]
  if g.chance(0.2):
    sizes = [1] * (rank - 2)
  channels = g.choice([1, 2, 3, 4, 4, 6, 8, 8, 12, 16])
  return g.input(g.numbers([g.choice([1, 2, 2, 3]), channels, *sizes]))


def window(g, x, largest=3):
  """Attributes of a convolution or pool that fit the places."""
  count = x.rank - 2
  kernel = [g.choice([1, 1, 2, largest, largest]) for _ in range(count)]
  if g.chance(0.7):
    kernel = [kernel[0]] * count
  strides = [g.choice([1, 1, 1, 2, 3])] * count if g.chance(0.8) else [g.choice([1, 2]) for _ in range(count)]
  dilations = [g.choice([1, 1, 1, 1, 2])] * count
  result = {"kernel_shape": kernel}
  if g.chance(0.12):
    result["auto_pad"] = g.choice(["SAME_UPPER", "SAME_LOWER", "VALID"])
    dilations = [1] * count
  elif g.chance(0.7):
    same = [(k - 1) * d // 2 for k, d in zip(kernel, dilations, strict=True)]
    pads = [*same, *same] if g.chance(0.7) else [g.rng.randint(0, k // 2) for k in kernel * 2]
    result["pads"] = pads
  if any(each > 1 for each in strides) or g.chance(0.4):
    result["strides"] = strides
  if any(each > 1 for each in dilations):
    result["dilations"] = dilations
  return result


def convolve(g, x, filters=None, bias=None, **given):
  attributes = dict(given or window(g, x))
  channels = x.shape[1]
  groups = int(attributes.get("group", 0) or g.choice([1, 1, 1, channels, *(d for d in (2, 3) if channels % d == 0)]))
  filters = g.choice([1, 2, 3, 4, 8, 16]) if filters is None else filters
  if groups > 1:
    filters = groups * g.choice([1, 1, 2]) if not given else max(groups, filters // groups * groups)
    attributes["group"] = groups
  kernel = attributes["kernel_shape"]
  w = g.weights(filters, channels // groups, *kernel)
  if g.chance(0.15):
    del attributes["kernel_shape"]
  has_bias = g.chance(0.5) if bias is None else bias
  return g.op("Conv", x, w, g.weights(filters) if has_bias else None, **attributes)


def transposed(g, x, **given):
  attributes = dict(given or window(g, x))
  channels, count = x.shape[1], x.rank - 2
  groups = g.choice([1, 1, channels, *(d for d in (2,) if channels % d == 0)])
  if groups > 1:
    attributes["group"] = groups
  strides = attributes.get("strides", [1] * count)
  if not given and g.chance(0.2):
    attributes["output_padding"] = [g.rng.randrange(max(1, s)) for s in strides]
  filters = g.choice([1, 2, 3, 4, 8])
  w = g.weights(channels, filters, *attributes["kernel_shape"])
  return g.op("ConvTranspose", x, w, g.weights(filters * groups) if g.chance(0.5) else None, **attributes)


@glue(2)
def conv(g):
  return convolve(g, image(g))


@glue(1)
def conv_transpose(g):
  return transposed(g, image(g))


def pooled(g, x):
  kind = g.choice(
    ["MaxPool", "MaxPool", "AveragePool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"]
  )
  if kind.startswith("Global"):
    return g.op(kind, x)
  attributes = window(g, x)
  if "dilations" in attributes and (kind == "LpPool" or g.opset < (10 if kind == "MaxPool" else 19)):
    del attributes["dilations"]
  if kind != "LpPool" and g.opset >= 10 and g.chance(0.3):
    attributes["ceil_mode"] = 1
  if kind == "AveragePool" and g.chance(0.4):
    attributes["count_include_pad"] = g.choice([0, 1])
  if kind == "MaxPool" and g.chance(0.1):
    return g.op(kind, x, outputs=2, **attributes)[0]
  return g.op(kind, x, **attributes)


@glue(2)
def pool(g):
  return pooled(g, image(g))


def batch_norm(g, x):
  channels = x.shape[1]
  scale, bias, mean = (g.weights(channels) for _ in range(3))
  variance = g.constant(g.rounded(np.asarray(0.3 + g.data.random(channels), x.dtype)))
  epsilon = g.choice([None, 1e-5, 1e-3])
  return g.op("BatchNormalization", x, scale, bias, mean, variance, epsilon=epsilon)


@glue(1.5)
def norms(g):
  kind = g.choice(["batch", "instance", "group", "torch's group", "lrn", "lp", "mean variance", "batch"])
  x = image(g)
  channels = x.shape[1]
  if kind == "batch":
    return batch_norm(g, x)
  if kind == "instance":
    return g.op("InstanceNormalization", x, g.weights(channels), g.weights(channels), epsilon=g.choice([None, 0.1]))
  if kind == "group":
    groups = g.choice([1, channels, *(d for d in (2, 4) if channels % d == 0)])
    size = channels if g.opset >= 21 else groups
    return g.op("GroupNormalization", x, g.weights(size), g.weights(size), num_groups=groups)
  if kind == "torch's group":  # as its exporters write it
    groups = g.choice([d for d in (1, 2, 4, channels) if channels % d == 0])
    ones, zeros = (g.constant(np.full(groups, value, x.dtype)) for value in (1, 0))
    split = g.op("Reshape", x, g.constant(np.int64([0, groups, -1])))
    normal = g.op("InstanceNormalization", split, ones, zeros, epsilon=g.choice([None, 0.1]))
    whole = g.op("Reshape", normal, g.constant(np.array(x.shape, np.int64)))
    scale, bias = (g.weights(channels, *[1] * (len(x.shape) - 2)) for _ in range(2))
    return g.op("Add", g.op("Mul", whole, scale), bias)
  if kind == "lrn":
    return g.op("LRN", x, size=g.choice([1, 3]), alpha=g.choice([None, 0.1]))
  if kind == "lp":
    return g.op("LpNormalization", x, axis=axis_of(g, x), p=g.choice([1, 2]))
  return g.op("MeanVarianceNormalization", x, axes=g.choice([None, [0, 2, 3][: x.rank - 1], [1]]))


@glue(2)
def layer_norm(g):
  x = g.pick(ranks=range(1, 6), where=lambda value: 0 not in value.shape)
  axis = axis_of(g, x)
  shape = x.shape[axis % x.rank :]
  kind = g.choice(["layer", "layer", "rms", "simplified", "skip"])
  epsilon = g.choice([None, 1e-5, 1e-2])
  if kind == "layer":
    outputs = g.choice([1, 1, 1, 3]) if g.style.dtype == "fp32" else 1
    bias = g.weights(*shape) if g.chance(0.7) else None
    return g.op("LayerNormalization", x, g.weights(*shape), bias, outputs=outputs, axis=axis, epsilon=epsilon)
  if kind == "rms":
    return g.op("RMSNormalization", x, g.weights(*shape), axis=axis, epsilon=epsilon)
  last = x.shape[-1:]
  if kind == "simplified" or x.rank not in (2, 3):
    return g.op("SimplifiedLayerNormalization", x, g.weights(*last), axis=-1, epsilon=epsilon, domain="")
  skip = g.fitting(x.shape)
  if skip.shape != x.shape:
    skip = g.op("Add", skip, x)
  op = g.choice(["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
  beta = [g.weights(*last)] if op == "SkipLayerNormalization" else []
  return g.op(op, x, skip, g.weights(*last), *beta, *([g.weights(*last)] if g.chance(0.5) else []),
              domain=CONTRIB, epsilon=epsilon)  # fmt: skip


@glue(1.5)
def softmax(g):
  x = g.pick(ranks=range(1, 6))
  op, axis = g.choice(["Softmax", "Softmax", "LogSoftmax", "Hardmax"]), g.choice([None, axis_of(g, x)])
  if axis is None and x.rank == 1 and g.opset < 13:
    axis = 0  # the default is 1, an axis that ONNX Runtime misses only where there are elements
  return g.op(op, x, axis=axis)


def reduce(g, op, x, axes, keepdims=None):
  if g.opset >= (13 if op == "ReduceSum" else 18):
    return g.op(op, x, None if axes is None else g.ints(axes), keepdims=keepdims)
  return g.op(op, x, axes=None if axes is None else list(axes), keepdims=keepdims)


@glue(4)
def reduction(g):
  x = g.pick(ranks=range(1, 7))
  axes = sorted(g.rng.sample(range(x.rank), g.rng.randint(1, x.rank)))
  if g.opset >= 11 and g.chance(0.3):
    axes = [axis - x.rank for axis in axes or ()]
  if g.chance(0.1):
    axes = None
  op = g.choice([*REDUCTIONS, "ReduceSum", "ReduceSum", "ReduceMean", "ReduceMean"])
  if op == "ReduceLogSum":
    x = g.op("Abs", x)
  return reduce(g, op, x, axes, g.choice([None, 0, 1]))


def picked(g, rank):
  """A value of that rank without an empty axis; a new input where there is none."""
  try:
    return g.pick(ranks=[rank], where=lambda value: 0 not in value.shape)
  except UnfitError:
    return g.input(g.numbers([g.choice([1, 2, 3, 4, 8]) for _ in range(rank)]))


@glue(2)
def matmul(g):
  x = g.pick(ranks=range(1, 5), where=lambda value: 0 not in value.shape)
  if g.chance(0.3):
    others = [v for v in g.values if v.dtype == x.dtype and v.rank >= 1 and v.shape[-2:][0] == x.shape[-1]]
    if others:
      return g.op("MatMul", x, g.rng.choice(others))
  return g.op("MatMul", x, g.weights(x.shape[-1], g.choice([1, 2, 4, 8])))


@glue(1.5)
def gemm(g):
  x = picked(g, 2)
  turned, flipped, width = g.chance(0.3), g.chance(0.5), g.choice([1, 3, 4, 8])
  inner, rows = (x.shape[0], x.shape[1]) if turned else (x.shape[1], x.shape[0])
  w = g.weights(width, inner) if flipped else g.weights(inner, width)
  bias = g.weights(*g.choice([(width,), (1,), (rows, 1), (rows, width), (1, width)])) if g.chance(0.7) else None
  if bias is None and g.opset < 11:
    bias = g.weights(width)
  return g.op("Gemm", x, w, bias, transA=int(turned) or None, transB=int(flipped) or None,
              alpha=g.choice([None, None, 0.5]), beta=g.choice([None, None, 2.0]))  # fmt: skip


@glue(0.7)
def einsum(g):
  x = g.pick(ranks=[2, 3, 4])
  letters = "bcde"[: x.rank]
  if g.chance(0.4):
    return g.op("Einsum", x, equation=f"{letters}->{''.join(reversed(letters))}")
  return g.op("Einsum", x, g.weights(x.shape[-1], 3), equation=f"{letters},{letters[-1]}z->{letters[:-1]}z")


def resized(g, x):
  mode = g.choice(["nearest", "nearest", "linear", "linear", *(["cubic"] if g.opset >= 11 else [])])
  scales = np.asarray([1, 1, *(g.choice([1, 2, 2, 3, 0.5, 1.5]) for _ in range(x.rank - 2))], np.float32)
  if g.chance(0.6):
    scales[2:] = scales[-1]
  if g.opset < 11:
    scales = np.maximum(scales, 1) if g.opset < 10 else scales
    if g.opset < 9:
      return g.op("Upsample", x, mode=mode, scales=[float(each) for each in scales])
    return g.op("Upsample" if g.opset == 9 else "Resize", x, g.kept_constant(scales), mode=mode)
  coordinates = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]
  attributes = {"mode": mode, "coordinate_transformation_mode": g.choice([None, *coordinates])}
  if mode == "nearest":
    attributes["nearest_mode"] = g.choice([None, "floor", "ceil", "round_prefer_ceil"])
  roi = None if g.opset >= 13 else g.kept_constant(np.zeros(0))
  if g.chance(0.4):
    wanted = [*x.shape[:2], *(max(1, round(s * f)) for s, f in zip(x.shape[2:], scales[2:], strict=True))]
    empty = None if g.opset >= 13 else g.kept_constant(np.zeros(0))
    return g.op("Resize", x, roi, empty, g.ints(wanted), **attributes)
  if g.opset >= 18 and g.chance(0.3):
    own = g.kept_constant(scales[2:])
    return g.op("Resize", x, roi, own, axes=list(range(2, x.rank)), **attributes)
  return g.op("Resize", x, roi, g.kept_constant(scales), **attributes)


@glue(1.5)
def resize(g):
  return resized(g, image(g))


@glue(0.7)
def samples(g):
  x = image(g, (4,))
  kind = g.choice(["grid", "affine", "roi", "det", "unpool"])
  if kind == "grid":
    grid = g.constant(g.numbers([x.shape[0], 3, 2, 2], 0.5))
    mode = g.choice([None, "nearest" if g.opset >= 16 else None])
    return g.op("GridSample", x, grid, mode=mode, align_corners=g.choice([None, 1]))
  if kind == "affine":
    theta = g.constant(g.numbers([x.shape[0], 2, 3]))
    return g.op("AffineGrid", theta, g.ints(x.shape), align_corners=g.choice([None, 1]))
  if kind == "roi":
    rois = g.constant([[0, 0, 2, 2], [1, 0, 3, 2]], x.dtype)
    return g.op("RoiAlign", x, rois, g.ints([0, x.shape[0] - 1]), output_height=2, output_width=2)
  if kind == "unpool":
    values, places = g.op("MaxPool", x, outputs=2, kernel_shape=[2, 2], strides=[2, 2])
    return g.op("MaxUnpool", values, places, kernel_shape=[2, 2], strides=[2, 2])
  return g.op("Det", g.input(g.numbers([2, 3, 3])))


@glue(0.7)
def quantized(g):
  x = g.pick(ranks=range(1, 5), where=lambda value: 0 not in value.shape and value.source != "constant")
  scale, zero = g.constant(0.05, np.float32), g.constant(128, np.uint8)
  if x.dtype != np.float32 or g.style.dtype != "fp32":
    raise UnfitError("quantisation is in float32")
  kind = g.choice(["pair", "dynamic", "conv", "product"])
  if kind == "pair":
    return g.op("DequantizeLinear", g.op("QuantizeLinear", x, scale, zero), scale, zero)
  if kind == "dynamic":
    return g.op("DequantizeLinear", *g.op("DynamicQuantizeLinear", x, outputs=3))
  q = g.op("QuantizeLinear", x, scale, zero)
  if kind == "conv" and x.rank == 4:
    w = g.constant(g.data.integers(0, 255, (2, x.shape[1], 1, 1)), np.uint8)
    return g.op("QLinearConv", q, scale, zero, w, scale, zero, scale, zero)
  w = g.constant(g.data.integers(0, 255, (x.shape[-1], 3)), np.uint8)
  return g.op("MatMulInteger", q, w, zero, zero)


@glue(0.7)
def recurrent(g):
  x = picked(g, 3)
  op, hidden = g.choice(["LSTM", "GRU", "RNN"]), g.choice([1, 2, 3])
  gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
  w, r = g.weights(1, gates * hidden, x.shape[2]), g.weights(1, gates * hidden, hidden)
  return g.op(op, x, w, r, g.weights(1, 2 * gates * hidden) if g.chance(0.5) else None, outputs=2, hidden_size=hidden)


@glue(0.7)
def attention_operator(g):
  """Attention and rotary embeddings as operators of opset 23."""
  if g.opset < 23:
    raise UnfitError("they came later")
  x = g.input(g.numbers([g.choice([1, 2]), g.rng.randint(1, 5), 8]))
  if g.chance(0.5):
    return g.op("Attention", x, x, x, q_num_heads=2, kv_num_heads=2)
  half = 2
  cos, sin = g.weights(x.shape[0], x.shape[1], half), g.weights(x.shape[0], x.shape[1], half)
  return g.op("RotaryEmbedding", x, cos, sin, None, num_heads=2)


@glue(0.5)
def random_numbers(g):
  """Random numbers with a seed: the same in each session, whatever stands around them."""
  x = g.pick()
  op = g.choice(["RandomNormalLike", "RandomUniformLike"])
  made = g.op(op, x, seed=float(g.rng.randint(1, 99)))
  g.random = True
  return g.op("Add", x, made)
