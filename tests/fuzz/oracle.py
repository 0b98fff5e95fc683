"""Whether an optimized model's outputs are right: near the original's, or as far off as rounding explains.

An output agrees at once where

    |got - wanted| <= t (|wanted| + scale)

with t of a few roundings of the dtype and `scale` the largest finite magnitude of the output, as in
ortplugin/check/compare.py. `wanted` is the original's with ONNX Runtime's optimizations off; for fp16 and bf16 that
of the graph one precision wider.

Where that fails, the condition of each element is measured: the original runs some times with every value that it
computes or is given off by up to two units in the last place, at random (Monte Carlo arithmetic: Parker, 1997; values
on one side of a sum stand for the rounding within it). In fp16 and bf16 half of these runs round each value too, and
the first does only that. What
moves the original by d may move any correct implementation by some d: the bound gains SPREAD times the largest move,
and an element that turns infinite, NaN or another integer in some of them may do so. So a row of nearly equal numbers
that is normalised has wide bounds, and its neighbour narrow ones. No such move makes a number 0, as rounding does with
a sum whose terms cancel, and 0 / 0 is NaN: where that matters, some runs have 0 for sums that are less than a rounding
of the largest. Nor does it make numbers equal that are computed in double of narrow ones which rounding has made equal:
some runs move what is narrow alone.
"""

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper
from onnx_models import initializers

from ortplugin.graph import walk_nodes

from .emulate import spelled
from .evaluate import make_session, run
from .graph import DOUBLE, FLOAT

TOLERANCE = {"float64": 1e-8, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
UNIT = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
ELEMENT = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
_FLOATING = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
NAMES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64", "tf32": "float16"}
SPREAD, TRIALS = 8.0, 8
POLE = 32.0  # a normal distribution of 256 has none 6 times as large as its median
MORE_TRIALS = 256  # for integers, truth values, shapes such as Unique's, and what is computed from them: what decides
# them may be rare
_DISCONTINUOUS = (
  *("ArgMax", "ArgMin", "Ceil", "DynamicQuantizeLinear", "Equal", "Floor", "Greater", "GreaterOrEqual", "GridSample"),
  *("Hardmax", "Less", "LessOrEqual", "MaxUnpool", "Mod", "NonZero", "QuantizeLinear", "Round", "Shrink", "Sign"),
  *("Tan", "ThresholdedRelu", "TopK", "Unique"),
)
_SUMS = (
  *("Add", "AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "Einsum", "Gemm", "GlobalAveragePool"),
  *("InstanceNormalization", "LayerNormalization", "MatMul", "ReduceMean", "ReduceSum", "Sub", "Sum"),
)


def quick(wanted, got, dtype):
  """Why the output does not agree at once; '' if it does. `dtype`: the name of the coarsest that it went through."""
  if wanted.shape != got.shape:
    return f"shape {list(got.shape)} for {list(wanted.shape)}"
  if not is_floating(wanted):
    return "" if np.array_equal(wanted, got) else _first(wanted, got, wanted != got)
  want, have = wanted.astype(np.float64), got.astype(np.float64)
  with np.errstate(invalid="ignore", over="ignore"):
    bad = ~((np.abs(have - want) <= _bound(want, dtype)) | (want == have) | (np.isnan(want) & np.isnan(have)))
  return _first(want, have, bad) if bad.any() else ""


def is_floating(array):
  return array.dtype.kind == "f" or "float" in array.dtype.name


def _bound(want, dtype):
  finite = np.isfinite(want)
  magnitude = np.where(finite, np.abs(want), 0)
  usual = magnitude[magnitude < 1e30]
  scale = max(float(usual.max()) if usual.size else 0.0, 1e-3)
  return np.asarray(TOLERANCE[dtype] * (magnitude + scale))


def _first(want, have, bad):
  at = tuple(int(i) for i in np.argwhere(bad)[0])
  return f"{int(bad.sum())} of {bad.size} differ, first at {list(at)}: {have[at]:.6g} for {want[at]:.6g}"


def explained(candidates, got, dtype):
  """Why the candidates, of which the first is wanted, do not explain the output; '' if they do."""
  shapes = {each.shape for each in [*candidates, got]}
  if len(shapes) > 1:
    decided = len({each.shape for each in candidates}) > 1 and len({len(each) for each in shapes}) == 1
    if decided and all(
      len({each[axis] for each in shapes}) == 1 or len({each.shape[axis] for each in candidates}) > 1
      for axis in range(got.ndim)
    ):
      return ""  # dims that rounding decides
    return f"shape {list(got.shape)} for {list(candidates[0].shape)}"
  if not is_floating(got) and not is_floating(candidates[0]):
    low, high = np.min(candidates, axis=0), np.max(candidates, axis=0)
    bad = (got < low) | (got > high) if got.dtype.kind != "b" else ~np.any([each == got for each in candidates], axis=0)
    return _first(candidates[0], got, bad) if bad.any() else ""
  have = got.astype(np.float64)
  good = _good(candidates, have, dtype)
  return "" if good.all() else _first(candidates[0].astype(np.float64), have, ~good)


def is_beside_pole(candidates, got, dtype):
  """Whether some of what the candidates do not explain may be beside a pole, which more of them would show."""
  if not is_floating(got) or any(each.shape != got.shape for each in candidates):
    return False
  sizes, low, high = _sizes(candidates)
  wide = (sizes.max(axis=0) > POLE / 4 * np.median(sizes, axis=0)) & (low < 0) & (high > 0)
  return bool((wide & ~_good(candidates, got.astype(np.float64), dtype)).any())


def _sizes(candidates):
  """The magnitudes of finite values, the least and the largest value."""
  all_of = np.stack([each.astype(np.float64) for each in candidates])
  return np.where(np.isfinite(all_of), np.abs(all_of), 0), all_of.min(axis=0), all_of.max(axis=0)


def _good(candidates, have, dtype):
  """Which elements of an output the candidates explain."""
  all_of = np.stack([each.astype(np.float64) for each in candidates])
  want = all_of[0]
  with np.errstate(invalid="ignore", over="ignore"):
    moves = np.where(np.isfinite(all_of), np.abs(all_of - want), 0)
    spread = np.where(np.isfinite(moves), moves, 0).max(axis=0)
    bound = _bound(want, dtype) + SPREAD * spread
    good = (want == have) | (np.abs(have - want) <= bound)
    good |= np.any((all_of == have) | (np.isnan(all_of) & np.isnan(have)), axis=0)
    # Infinite or NaN in some runs and not in others: it may be finite here, too.
    mixed = ~np.all(np.isfinite(all_of), axis=0) & np.any(np.isfinite(all_of), axis=0)
    good |= mixed
    if len(candidates) >= MORE_TRIALS:
      # Of both signs, and some far larger than most: a pole is among them, near which no size is the largest.
      sizes, low, high = _sizes(candidates)
      middle = np.median(sizes, axis=0)
      good |= (middle > 0) & (sizes.max(axis=0) > POLE * middle) & (low < 0) & (high > 0) & (abs(have) > middle)
  return good


def is_discontinuous(model):
  """Whether a node may turn a difference however small into a large one; a Cast does to integers and truth values."""
  return any(
    node.op_type in _DISCONTINUOUS or (node.op_type == "Cast" and node.attribute[0].i not in _FLOATING)
    for node in walk_nodes(model)
  )


def trials(model, feeds, dtype, names, seed, numbers=range(TRIALS)):
  """The outputs of the model in runs in which each value is off by a little; {} for those that fail.

  `dtype`: the name of the narrow one that float32 stands for, else "float32".
  """
  found = []
  values = all_values(model, feeds)
  for number in numbers:
    rng = np.random.default_rng([seed, number])
    try:
      size = 2.0 if number else 0.0  # the first only rounds
      cancels = number >= TRIALS and number % 8 == 7
      narrow_alone = dtype in ELEMENT and number >= TRIALS and number % 4 == 0
      size = 0.5 if narrow_alone and number % 8 else size  # steps of one rounding are the likeliest to make them equal
      noisy, given = _noisy(model, feeds, values, dtype, number % 2 == 0, size, rng, cancels, narrow_alone)
      found.append(run(make_session(noisy), given, names))
    except Exception:  # such as an index that lies outside
      found.append({})
  return found


def all_values(model, feeds):
  whole = onnx.ModelProto()
  whole.CopyFrom(model)
  known = {each.name for each in whole.graph.output}
  for node in whole.graph.node:
    whole.graph.output.extend(onnx.ValueInfoProto(name=name) for name in node.output if name and name not in known)
    known.update(node.output)
  found = run(make_session(whole), feeds)
  return {name: value for name, value in found.items() if isinstance(value, np.ndarray)}


def is_undefined(model, feeds, halves=False):
  """What in the original has no defined value; '' if nothing is known to. `halves`: float32 stands for float16.

  ONNX Runtime (1.31) leaves empty tensors out of Concat's check, and then sizes the result by the first: part of it
  is what was in memory before. It does not check either whether the batch of what SkipLayerNormalization adds is its
  input's. A float that no integer is, cast to one, is anything. A product of so many numbers that those above 1 alone
  are infinite and those below 1 alone are 0 is 0, infinite or NaN, by their order.
  """
  values = {**feeds, **initializers(model)}
  values.update(all_values(model, feeds))
  for node in model.graph.node:
    if node.op_type == "Concat":
      axis = next(each.i for each in node.attribute if each.name == "axis")
      if len({tuple(np.delete(np.shape(values[name]), axis)) for name in node.input if name in values}) > 1:
        return "the original joins empty tensors that do not fit"
    if node.op_type in ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"):
      x, skip = (np.shape(values.get(name)) for name in node.input[:2])
      if len(x) == len(skip) == 3 and skip[0] not in (1, x[0]):
        return "the original adds another batch before a layer norm"
    if node.op_type == "ReduceProd" and is_floating(np.asarray(values.get(node.input[0], 0))):
      given = np.asarray(values[node.input[0]])
      sizes = np.log2(np.abs(given[np.isfinite(given) & (given != 0)].astype(np.float64)))
      most = 16 if halves or given.dtype.itemsize == 2 else 128 if given.dtype == FLOAT else 1024
      if sizes[sizes > 0].sum() >= most and -sizes[sizes < 0].sum() >= most:
        return "the original multiplies numbers whose order decides"
    if node.op_type in ("Cast", "CastLike") and {node.input[0], node.output[0]} <= values.keys():
      given, made = np.asarray(values[node.input[0]]), np.asarray(values[node.output[0]])
      if is_floating(given) and made.dtype.kind in "iu":
        limits = np.iinfo(made.dtype)
        with np.errstate(over="ignore"):
          wide = given.astype(np.float16 if halves and given.dtype == FLOAT else given.dtype).astype(np.float64)
        if not np.all((wide > limits.min - 1.0) & (wide < limits.max + 1.0)):
          return "the original casts floats that no integer is"
  return ""


def _noisy(model, feeds, values, dtype, rounds, size, rng, cancels, narrow_alone):
  result = onnx.ModelProto()
  result.CopyFrom(model)
  graph = result.graph
  nodes = list(graph.node)
  del graph.node[:]
  given = dict(feeds)
  number = iter(range(10**9))
  opset = next((each.version for each in model.opset_import if not each.domain), 0)

  def noise(source, target, array, is_sum=False):
    name = f"noise/{next(number)}"
    unit = UNIT[dtype] if array.dtype == FLOAT else UNIT["float32"] if dtype in ELEMENT else UNIT["float64"]
    moves = size if array.dtype == FLOAT or not narrow_alone else 0.0
    if is_sum and cancels:
      least = unit * np.max(np.abs(array), where=np.isfinite(array), initial=0)
      graph.initializer.append(numpy_helper.from_array(np.asarray(least, array.dtype), f"{name}/least"))
      text = f"""magnitude = Abs(x)  cancels = Less(magnitude, least)  stays = Not(cancels)
        unit = Cast<to={helper.np_dtype_to_tensor_dtype(array.dtype)}>(stays)  sum = Mul(x, unit)"""
      graph.node.extend(spelled(text, name, x=source))
      source = f"{name}/sum"
    if moves:  # of the value's shape, which another run may find to be another
      constants = {"size": moves * unit, "one": 1.0}
      graph.node.extend(_random(source, name, opset, float(rng.integers(1, 1 << 20)), array.dtype))
      for constant, value in constants.items():
        graph.initializer.append(numpy_helper.from_array(np.asarray(value, array.dtype), f"{name}/{constant}"))
      text = "small = Mul(random, size)  factor = Add(small, one)  moved = Mul(x, factor)"
      graph.node.extend(spelled(text, name, x=source))
      source = f"{name}/moved"
    if rounds and array.dtype == FLOAT and dtype == "bfloat16" and opset < 13:  # where no Cast makes it
      split = numpy_helper.from_array(np.asarray(2.0**16 + 1, array.dtype), f"{name}/split")
      graph.initializer.append(split)
      text = "large = Mul(x, split)  rest = Sub(large, x)  wide = Sub(large, rest)"
      graph.node.extend(spelled(text, name, x=source))
      source = f"{name}/wide"
    elif rounds and array.dtype == FLOAT and dtype in ELEMENT:
      text = f"rounded = Cast<to={ELEMENT[dtype]}>(x)  wide = Cast<to=1>(rounded)"
      graph.node.extend(spelled(text, name, x=source))
      source = f"{name}/wide"
    graph.node.append(helper.make_node("Identity", [source], [target]))

  defaults = {tensor.name for tensor in graph.initializer}
  for value in graph.input:
    array = feeds.get(value.name)
    if array is not None and array.dtype in (FLOAT, DOUBLE) and value.name not in defaults:
      own, value.name = value.name, f"{value.name}/given"
      given[value.name] = array
      noise(value.name, own, array)
  if dtype in ELEMENT:  # weights are rounded, too
    _move_weights(graph, nodes, dtype, noise)
  for node in nodes:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    fresh = []
    for index, name in enumerate(node.output):
      array = values.get(name)
      if array is not None and array.dtype in (FLOAT, DOUBLE) and not _is_exact(node):
        copy.output[index] = f"{name}/exact"
        fresh.append((copy.output[index], name, array, node.op_type in _SUMS))
    graph.node.append(copy)
    for each in fresh:
      noise(*each)
  del graph.value_info[:]
  return result, given


def _random(source, name, opset, seed, dtype):
  """Nodes that make `name`/random of numbers from -1 to 1, of the shape of `source` and of its dtype.

  ONNX Runtime (1.31) has no RandomUniformLike of opset 22: from there on the numbers are sines of large steps.
  """
  if opset < 22:
    return [helper.make_node("RandomUniformLike", [source], [f"{name}/random"], seed=seed, low=-1.0, high=1.0)]
  return spelled(
    f"""step = Constant<value_float=12345.678>()  first = Constant<value_int={int(seed) % 1000}>()
    next = Constant<value_int=1>()  count = Size(x)  end = Add(first, count)  numbers = Range(first, end, next)
    floats = Cast<to=1>(numbers)  angles = Mul(floats, step)  sines = Sin(angles)
    row = Cast<to={helper.np_dtype_to_tensor_dtype(dtype)}>(sines)  shape = Shape(x)
    random = Reshape<allowzero=1>(row, shape)""",
    name,
    x=source,
  )


def _move_weights(graph, nodes, dtype, noise):
  """Rounds and moves the initializers that only data is computed from and that a conversion to `dtype` rounds."""
  narrow = helper.tensor_dtype_to_np_dtype(ELEMENT[dtype])
  lists = {name for node in nodes if node.op_type in ("Resize", "Upsample", "Pad", "Clip") for name in node.input[1:]}
  given = {each.name for each in graph.input}
  for tensor in list(graph.initializer):  # noise adds some
    if tensor.data_type != TensorProto.FLOAT or tensor.name in lists | given:
      continue
    values = numpy_helper.to_array(tensor)
    with np.errstate(over="ignore"):
      exact = np.array_equal(values.astype(narrow).astype(np.float32), values, equal_nan=True)
    if not exact:
      own, tensor.name = tensor.name, f"{tensor.name}/given"
      noise(tensor.name, own, values)


def _is_exact(node):
  """Whether the node's values are no result of rounding: constants, and what only moves values."""
  moves = ("Constant", "ConstantOfShape", "Range", "EyeLike", "OneHot", "Identity", "Reshape", "Transpose", "Floor",
           "Ceil", "Round", "Sign")  # fmt: skip
  return node.op_type in moves or any(each.type == AttributeProto.TENSOR for each in node.attribute)
