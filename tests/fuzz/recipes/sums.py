"""Sums of what broadcasts, gradients, and sets of pointwise operators."""

from ..evaluate import OURS
from ..graph import UnfitError
from .networks import new_image, reduce
from .pointwise import two
from .table import motif


@motif(3)
def sums(g):
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
def lerp(g):
  """torch.lerp: Where(w < 0.5, x + w (y - x), y - (y - x) (1 - w))."""
  x = g.pick()
  y, w = g.fitting(x.shape), g.fitting(x.shape)
  difference = g.op("Sub", y, x)
  low = g.op("Add", x, g.op("Mul", w, difference))
  high = g.op("Sub", y, g.op("Mul", difference, g.op("Sub", g.constant(1.0, x.dtype), w)))
  near = g.op("Less", g.op("Abs", w) if g.chance(0.5) else w, g.constant(0.5, x.dtype))
  return g.op("Where", near, low, high)


@motif(3)
def pointwise_block(g):
  """A few pointwise operators on values of one shape and what broadcasts to it."""
  x = g.pick()
  for _ in range(g.rng.randint(2, 5)):
    if g.chance(0.5):
      x = g.op(g.choice(["Add", "Sub", "Mul", "Max", "Min"]), *two(g, x))
    else:
      x = g.op(g.choice(["Relu", "Tanh", "Sigmoid", "Neg", "Abs", "Erf"]), x)
  return x


@motif(1)
def pointwise_views(g):
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
def conv_gradients(g):
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
def repeated(g):
  x = g.pick()
  other = g.fitting(x.shape)
  op = g.choice(["Add", "Sub", "Mul"])
  first, second = (g.op("Tanh", g.op(op, x, other)) for _ in range(2))
  return g.op(g.choice(["Mul", "Add"]), first, g.op("Neg", second))
