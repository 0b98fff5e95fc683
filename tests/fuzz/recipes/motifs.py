"""What passes look for, as exporters write it: blocks of convolutional networks and transformers, sums, gradients."""

from __future__ import annotations

import numpy as np

from ..evaluate import OURS, to_onnx
from ..graph import INT, Graph, UnfitError, Value
from .networks import batch_norm, convolve, image, new_image, picked, pooled, reduce, resized, transposed
from .pointwise import two
from .table import motif

ACTIVATIONS = ["Relu", "Relu", "Sigmoid", "Tanh", "HardSwish", "Clip", "LeakyRelu", "swish"]


def activate(g: Graph, x: Value) -> Value:
    """One of the usual activations."""
    kind = g.choice(ACTIVATIONS)
    if kind == "swish":
        return g.op("Mul", *([x, g.op("Sigmoid", x)] if g.chance(0.5) else [g.op("Sigmoid", x), x]))
    if kind == "Clip":
        if g.opset < 11:
            return g.op("Clip", x, min=0.0, max=6.0)
        return g.op("Clip", x, g.constant(0.0, x.dtype), g.constant(6.0, x.dtype))
    return g.op(kind, x)


def same_conv(g: Graph, x: Value, filters: int, kernel: int = 3, group: int = 1, bias: bool | None = None) -> Value:
    """A Conv that keeps the places."""
    count = x.rank - 2
    attributes = {"kernel_shape": [kernel] * count, "pads": [kernel // 2] * (2 * count)}
    return convolve(g, x, filters, bias, **attributes, **({"group": group} if group > 1 else {}))


def padded(g: Graph, x: Value) -> Value:
    """A Pad of the places with zeros, the same on both sides or not."""
    count = x.rank - 2
    pads = [g.choice([0, 1, 2]) for _ in range(2 * count)] if g.chance(0.5) else [1] * (2 * count)
    if g.opset >= 18 and g.chance(0.3):
        return g.op("Pad", x, g.ints(pads), None, g.ints(range(2, x.rank)))
    whole = [0, 0, *pads[:count], 0, 0, *pads[count:]]
    return g.op("Pad", x, g.ints(whole)) if g.opset >= 11 else g.op("Pad", x, pads=whole)


@motif(4)
def conv_block(g: Graph) -> object:
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
def residual(g: Graph) -> object:
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
def squeeze_excite(g: Graph) -> object:
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
def inverted_bottleneck(g: Graph) -> object:
    """1x1, depthwise, 1x1, residual."""
    x = image(g)
    channels = x.shape[1]
    y = activate(g, same_conv(g, x, 2 * channels, 1))
    y = activate(g, same_conv(g, y, 2 * channels, 3, group=2 * channels))
    y = same_conv(g, y, channels, 1)
    return g.op("Add", y, x)


@motif(1.5)
def shuffle(g: Graph) -> object:
    """A channel shuffle, with what a ShuffleNet has around it."""
    x = image(g, (4, 4, 3))
    channels = x.shape[1]
    groups = g.choice([d for d in range(1, channels + 1) if channels % d == 0])
    split = g.op("Reshape", x, g.ints([x.shape[0], groups, channels // groups, *x.shape[2:]]))
    swapped = g.op("Transpose", split, perm=[0, 2, 1, *range(3, x.rank + 1)])
    return g.op("Reshape", swapped, g.ints([g.choice([x.shape[0], -1]), channels, *x.shape[2:]]))


@motif(2)
def branches(g: Graph) -> object:
    """Several convolutions and pools of one image, concatenated."""
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
def up(g: Graph) -> object:
    """The end of a U-Net: enlarged, with what was there before."""
    x = image(g)
    small = pooled(g, x)
    large = resized(g, small) if g.chance(0.5) else transposed(g, small)
    if large.shape == x.shape:
        large = g.op(g.choice(["Add", "Mul"]), large, x)
    return activate(g, same_conv(g, large, g.choice([1, 2, 4])))


@motif(1)
def classifier(g: Graph) -> object:
    """A pool, a view, a linear layer or two."""
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
def heads(g: Graph) -> object:
    """A detector's head: boxes with the coordinates last, as a sequence."""
    x = image(g, (4,))
    anchors = g.choice([1, 2, 3])
    y = same_conv(g, x, anchors * 2, g.choice([1, 3]))
    turned = g.op("Transpose", y, perm=[0, 2, 3, 1])
    return g.op("Reshape", turned, g.ints([g.choice([0, x.shape[0]]), -1, 2]))


@motif(1)
def tokens(g: Graph) -> object:
    """An image as tokens, a linear layer, a norm, and back."""
    x = image(g, (4,))
    n, c, h, w = x.shape
    y = g.op("Transpose", g.op("Reshape", x, g.ints([n, c, h * w])), perm=[0, 2, 1])
    y = normalised(g, y) if g.chance(0.6) else y
    y = activate(g, g.op("Add", g.op("MatMul", y, g.weights(c, c)), g.weights(c)))
    return g.op("Reshape", g.op("Transpose", y, perm=[0, 2, 1]), g.ints([n, c, h, w]))


@motif(1)
def channels_last_norm(g: Graph) -> object:
    """A norm over channels, between two Transposes, as in ConvNeXt."""
    x = image(g, (4,))
    y = normalised(g, g.op("Transpose", x, perm=[0, 2, 3, 1]))
    if g.chance(0.5):
        y = gelu(g, g.op("Add", g.op("MatMul", y, g.weights(x.shape[1], 4)), g.weights(4)))
    return g.op("Transpose", y, perm=[0, 3, 1, 2])


# ------------------------------------------------------------------------------------------------------- transformers


def normalised(g: Graph, x: Value) -> Value:
    """A norm over trailing axes, as operators or written out."""
    if 0 in x.shape or not x.rank:
        raise UnfitError("nothing to normalise")
    count = g.choice([1, 1, 1, min(2, x.rank)])
    axes = list(range(-count, 0)) if g.chance(0.6) else list(range(x.rank - count, x.rank))
    shape = x.shape[x.rank - count :]
    epsilon = g.choice([1e-5, 1e-6, 1e-2])
    if g.opset >= 17 and g.chance(0.3):
        return g.op("LayerNormalization", x, g.weights(*shape), g.weights(*shape), axis=-count, epsilon=epsilon)
    if g.style.dtype != "fp32":
        epsilon = max(epsilon, 1e-3)
    y, rms = x, g.chance(0.4)
    widened = x.dtype == np.float32 and g.style.dtype != "fp64" and g.chance(0.15)
    if widened:
        y = g.op("Cast", x, to=to_onnx(g.style.other))
    negative = axes if g.opset >= 11 else [axis % x.rank for axis in axes]
    centred = y if rms else g.op("Sub", y, reduce(g, "ReduceMean", y, negative, g.choice([None, 1])))
    square = g.op("Pow", centred, g.constant(2, y.dtype)) if g.chance(0.6) else g.op("Mul", centred, centred)
    variance = reduce(g, "ReduceMean", square, negative, g.choice([None, 1]))
    total = [variance, g.constant(epsilon, y.dtype)]
    root = g.op("Sqrt", g.op("Add", *(total if g.chance(0.7) else total[::-1])))
    made = g.op("Mul", centred, g.op("Reciprocal", root)) if g.chance(0.2) else g.op("Div", centred, root)
    if widened:
        made = g.op("Cast", made, to=to_onnx(x.dtype))
    if g.chance(0.8):
        made = g.op("Mul", *([made, g.weights(*shape)] if g.chance(0.7) else [g.weights(*shape), made]))
    return g.op("Add", made, g.weights(*shape)) if not rms and g.chance(0.8) else made


def sequence(g: Graph) -> Value:
    """A value of rank 2 or 3 whose rows are worth normalising."""
    try:
        if g.chance(0.85):
            return g.pick(ranks=[2, 3, 3, 4], where=lambda value: 0 not in value.shape and value.shape[-1] > 1)
    except UnfitError:
        pass
    return g.input(g.numbers([g.choice([1, 2]), g.rng.randint(1, 5), g.choice([2, 4, 8, 7, 16])]))


@motif(3)
def norm_block(g: Graph) -> object:
    """Residual and bias, norm, what is pointwise after it."""
    x = sequence(g)
    for _ in range(g.choice([0, 1, 1, 2])):
        x = g.op("Add", *two(g, x))
    y = normalised(g, x)
    for _ in range(g.choice([0, 0, 1, 2])):
        y = g.op(g.choice(["Add", "Mul", "Sub"]), *two(g, y)) if g.chance(0.6) else activate(g, y)
    return g.op("Add", x, y) if x.shape == y.shape and g.chance(0.3) else y


def gelu(g: Graph, x: Value) -> Value:
    """Gelu written out, by erf or tanh."""
    half, one = g.constant(0.5, x.dtype), g.constant(1.0, x.dtype)
    if g.chance(0.6):
        scaled = (
            g.op("Div", x, g.constant(np.sqrt(2.0), x.dtype))
            if g.chance(0.6)
            else g.op("Mul", x, g.constant(np.sqrt(0.5), x.dtype))
        )
        inner = g.op("Add", g.op("Erf", scaled), one)
    else:
        cube = g.op("Mul", g.op("Mul", x, x), x) if g.chance(0.5) else g.op("Pow", x, g.constant(3.0, x.dtype))
        total = g.op("Add", x, g.op("Mul", cube, g.constant(0.044715, x.dtype)))
        inner = g.op("Add", g.op("Tanh", g.op("Mul", total, g.constant(0.7978846, x.dtype))), one)
    if g.chance(0.5):
        return g.op("Mul", g.op("Mul", x, inner), half)
    return g.op("Mul", g.op("Mul", half, x), inner)


@motif(1.5)
def gelu_block(g: Graph) -> object:
    x = g.pick()
    return gelu(g, g.op("Add", *two(g, x)) if g.chance(0.5) else x)


@motif(1)
def attention(g: Graph) -> object:
    """Attention written out, with one or two heads and a mask."""
    x = sequence(g)
    if x.rank != 3:
        raise UnfitError("no sequence")
    n, length, width = x.shape
    heads = 2 if width % 2 == 0 and g.chance(0.6) else 1
    parts = []
    for _ in range(3):
        y = g.op("Add", g.op("MatMul", x, g.weights(width, width)), g.weights(width))
        y = g.op("Reshape", y, g.ints([g.choice([0, n]), g.choice([length, -1]), heads, width // heads]))
        parts.append(g.op("Transpose", y, perm=[0, 2, 1, 3]))
    q, k, v = parts
    scores = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2]))
    scores = g.op("Div", scores, g.constant(np.sqrt(width // heads), x.dtype))
    if g.chance(0.5):
        mask = g.input(g.numbers([n, 1, 1, length], dtype=np.dtype(np.bool_)))
        low = g.constant(-1e4, x.dtype)
        scores = g.op("Where", mask, scores, low)
    y = g.op("MatMul", g.op("Softmax", scores, axis=-1 if g.opset >= 11 else 3), v)
    y = g.op("Reshape", g.op("Transpose", y, perm=[0, 2, 1, 3]), g.ints([n, length, width]))
    return g.op("Add", x, y)


# ------------------------------------------------------------------------------------------------- sums and gradients


@motif(3)
def sums(g: Graph) -> object:
    """Sums of what broadcasts: the gradients of Add, Mul and lerp, over equal and other axes."""
    x = g.pick(ranks=range(1, 6))
    other = g.fitting(x.shape)
    product = g.op(g.choice(["Mul", "Mul", "Add", "Sub"]), *([x, other] if g.chance(0.5) else [other, x]))
    if g.chance(0.4):
        product = g.op(g.choice(["Mul", "Sub"]), *two(g, product))
    made = []
    for _ in range(g.choice([1, 2, 2])):
        source = g.choice([product, product, x, other])
        if not source.rank:
            source = product
        axes = sorted(g.rng.sample(range(source.rank), g.rng.randint(1, source.rank)))
        made.append(reduce(g, "ReduceSum", source, axes, g.choice([None, 0, 1])))
    if g.chance(0.3):
        return g.op("Mul", made[0], g.scalar(0.5))
    return made


@motif(1)
def lerp(g: Graph) -> object:
    """torch.lerp: Where(w < 0.5, x + w (y - x), y - (y - x) (1 - w))."""
    x = g.pick()
    y, w = g.fitting(x.shape), g.fitting(x.shape)
    difference = g.op("Sub", y, x)
    low = g.op("Add", x, g.op("Mul", w, difference))
    high = g.op("Sub", y, g.op("Mul", difference, g.op("Sub", g.constant(1.0, x.dtype), w)))
    near = g.op("Less", g.op("Abs", w) if g.chance(0.5) else w, g.constant(0.5, x.dtype))
    return g.op("Where", near, low, high)


@motif(3)
def pointwise_block(g: Graph) -> object:
    """A few pointwise operators on values of one shape and what broadcasts to it."""
    x = g.pick()
    for _ in range(g.rng.randint(2, 5)):
        if g.chance(0.5):
            x = g.op(g.choice(["Add", "Sub", "Mul", "Max", "Min"]), *two(g, x))
        else:
            x = g.op(g.choice(["Relu", "Tanh", "Sigmoid", "Neg", "Abs", "Erf"]), x)
    return x


@motif(1)
def pointwise_views(g: Graph) -> object:
    """Views between pointwise operators."""
    x = g.pick(ranks=range(1, 6))
    y = g.op("Relu", x)
    kind = g.choice(["reshape", "unsqueeze", "flatten"])
    if kind == "reshape":
        y = g.op("Reshape", y, g.ints([-1]) if 0 not in x.shape else g.ints([x.array.size]))
    elif kind == "unsqueeze":
        y = g.op("Unsqueeze", y, g.ints([0])) if g.opset >= 13 else g.op("Unsqueeze", y, axes=[0])
    else:
        y = g.op("Flatten", y, axis=g.rng.randrange(x.rank + 1))
    y = g.op("Mul", y, g.scalar(2.0)) if g.chance(0.5) else g.op("Add", *two(g, y))
    return g.op("Reshape", y, g.ints(x.shape)) if y.array.size == x.array.size and 0 not in x.shape else y


@motif(1.2)
def conv_gradients(g: Graph) -> object:
    """Our ConvGrad after the gradient of Relu, as ortplugin.torch_export writes it."""
    if g.opset < 11:
        raise UnfitError("ours are for opset 11")
    x = new_image(g, g.choice([3, 4, 4, 5]))
    count, filters = x.rank - 2, g.choice([1, 2, 4])
    w = g.weights(filters, x.shape[1], *[3] * count)
    y = g.op("Relu", g.op("Conv", x, w, pads=[1] * (2 * count), kernel_shape=[3] * count))
    dy = g.fitting(y.shape)
    if dy.shape != y.shape:
        dy = g.op("Mul", dy, y)
    positive = g.op("Greater", y, g.constant(0.0, y.dtype))
    dz = g.op("Where", positive, dy, g.constant(0.0, y.dtype))
    if g.chance(0.3):
        dz = g.op("Mul", *two(g, dz))
    program = {"fp32": "float", "fp64": "double", "fp16": "float16", "bf16": "bfloat16"}[g.style.dtype]
    if g.style.dtype in ("fp16", "bf16"):
        raise UnfitError("its program names the dtype")
    gradients = g.choice(["dX dW dB", "dX dW", "dW dB", "dB dZ"])
    return g.op("ConvGrad", x, w, dz, outputs=len(gradients.split()), domain=OURS, operands="X W",
                program=f"({program} dz) => ({program} dz) {{}}", gradients=gradients,
                kernel_shape=[3] * count, pads=[1] * (2 * count))  # fmt: skip


@motif(0.7)
def vector_image(g: Graph) -> object:
    """A generator's beginning: a vector becomes an image by a transposed convolution."""
    x = picked(g, 2)
    count = g.choice([1, 2, 2, 3])
    view = g.op("Reshape", x, g.ints([*x.shape, *[1] * count]))
    y = transposed(g, view, kernel_shape=[g.choice([2, 4])] * count, strides=[g.choice([1, 2])] * count)
    return activate(g, batch_norm(g, y))


@motif(0.7)
def repeated(g: Graph) -> object:
    """The same subexpression twice."""
    x = g.pick()
    other = g.fitting(x.shape)
    op = g.choice(["Add", "Sub", "Mul"])
    first, second = (g.op("Tanh", g.op(op, x, other)) for _ in range(2))
    return g.op(g.choice(["Mul", "Add"]), first, g.op("Neg", second))


@motif(0.7)
def halves_between(g: Graph) -> object:
    """A pool between Casts, in the wider dtype."""
    x = image(g)
    if g.style.dtype == "fp64":
        raise UnfitError("nothing is wider")
    wide = g.op("Cast", x, to=to_onnx(g.style.other))
    y = g.op(g.choice(["MaxPool", "AveragePool"]), wide, kernel_shape=[2] * (x.rank - 2))
    return g.op("Cast", y, to=to_onnx(x.dtype))


@motif(0.7)
def scaled_images(g: Graph) -> object:
    """What is known of a Resize whose sizes come from another value's shape."""
    x = image(g, (4,))
    small = g.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    if g.opset < 13:
        raise UnfitError("its sizes are an input of later opsets")
    shape = g.op("Slice", g.op("Shape", x), g.ints([2]), g.ints([4]), g.ints([0]))
    front = g.op("Slice", g.op("Shape", small), g.ints([0]), g.ints([2]), g.ints([0]))
    sizes = g.op("Concat", front, g.op("Cast", shape, to=to_onnx(INT)), axis=0)
    return g.op("Add", x, g.op("Resize", small, None, None, sizes, mode=g.choice(["nearest", "linear"])))
