"""Nodes of every operator with one thing wrong in each: what a model from anywhere may hold.

A seed is a node that runs. Each of its attributes and inputs is made wrong in turn: missing, of another type, dtype or
rank, of size 0, huge, negative, overflowing, no UTF-8, text of 10 MB. `nodes` lists them all, always in one order.

As a program it runs those from a number on, and prints a line of JSON before and after each: whoever starts it learns
from a missing line which node ended the process. ::

    python tests/hostile_nodes.py FIRST STEP
"""

import itertools
import json
import os
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import numpy as np
import sample
from node_cases import planar
from onnx import AttributeProto, TensorProto, helper
from onnx_models import built

Shape = tuple[int, ...]
Mode = Literal["known", "open", "constant"]  # what the model says of its inputs: their shapes, nothing, all of them

MODES = ("known", "open", "constant")
NODE = "culprit"
LONG = 10_000_000  # characters
MEMORY = 1 << 30  # bytes that a tensor may have: what takes more is refused, on any machine
HUGE = (2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63))


@dataclass(frozen=True)
class Input:
  dtype: str
  shape: Shape
  value: float = 1
  declared: Shape | None = None  # in the model, where it is another one than at the run

  def array(self):
    if self.dtype == "string":
      return np.full(self.shape, "text", object)
    return np.full(self.shape, self.value).astype(helper.tensor_dtype_to_np_dtype(_type(self.dtype)))


@dataclass(frozen=True)
class Node:
  """A model of one node. `wrong`: the attribute or input that is, which a refusal must name."""

  name: str
  op: str
  attributes: dict[str, Any]
  inputs: tuple[Input | None, ...]
  outputs: tuple[str, ...]  # dtypes
  wrong: str = ""
  mode: Mode = "known"
  called: str = NODE

  def node(self):
    names = ["" if each is None else f"x{i}" for i, each in enumerate(self.inputs)]
    outputs = [f"y{i}" for i in range(len(self.outputs))]
    made = helper.make_node(self.op, names, outputs, self.called, domain="ortplugin")
    made.attribute.extend(_attribute(name, value) for name, value in self.attributes.items())
    return made

  def model(self):
    given = [(f"x{i}", each) for i, each in enumerate(self.inputs) if each is not None]
    inputs, weights = {}, {}
    for name, each in given:
      if self.mode == "constant" and each.declared is None:
        weights[name] = each.array()
      else:
        inputs[name] = each.dtype, None if self.mode == "open" else each.declared or each.shape
    outputs = {f"y{i}": (each, None) for i, each in enumerate(self.outputs)}
    return built([self.node()], inputs, outputs, 18, 9, domains=["ortplugin"], weights=weights).SerializeToString()

  def feeds(self):
    if self.mode == "constant":
      return {f"x{i}": x.array() for i, x in enumerate(self.inputs) if x is not None and x.declared is not None}
    return {f"x{i}": each.array() for i, each in enumerate(self.inputs) if each is not None}


def _type(dtype):
  return TensorProto.DataType.Value(dtype.upper())


def _attribute(name, value):
  if isinstance(value, list) and not value:
    return AttributeProto(name=name, type=AttributeProto.INTS)
  return helper.make_attribute(name, value)


# ---- seeds


def _floats(*shapes, dtype="float"):
  return tuple(Input(dtype, shape) for shape in shapes)


CONV = planar(
  kernel_shape=3, strides=[1, 2], dilations=1, pads=1, group=1, auto_pad="NOTSET", algorithm="auto", allow_tf32=0
)
PRODUCT = {"trans_b": 1, "algorithm": "auto", "allow_tf32": 1}
GRAD = planar(
  kernel_shape=3,
  strides=[1, 2],
  dilations=1,
  pads=1,
  group=1,
  output_padding=0,
  transposed=0,
  allow_tf32=0,
  data_algorithm="auto",
  weight_algorithm="auto",
  weight_dtype="float",
  gradients="dX dW dB",
  operands="X W",
  program="(float g) => (float g) {}",
)
POOL = planar(
  kernel_shape=3, strides=[2, 1], dilations=1, pads=[1, 0, 1, 1], auto_pad="NOTSET", ceil_mode=0, count_include_pad=0
)
RESIZE = {"mode": "linear", "coordinate_transformation_mode": "half_pixel", "nearest_mode": "floor"}
ATTENTION = {
  "heads": 4,
  "kv_heads": 2,
  "scale": 0.5,
  "softcap": 20.0,
  "causal": "lower_right",
  "window": 3,
  "masked_rows": "zero",
  "allow_tf32": 1,
}
SCATTER = {"reduction": "add", "algorithm": "auto", "unique": 0, "deterministic": 1}


def _bias(dtype):
  return f"({dtype} c, {dtype} b) => ({dtype} y) {{ y = Add(c, b) }}"


def seeds():
  first, last = {"layout": "NCHW"}, {"layout": "NHWC"}
  index = Input("int64", (3, 1), 0)
  made = [
    Node("norm", "FusedLayerNorm",
         {"program": "(float x, float g) => (float y) { n = LayerNormalization<axis=-1, epsilon=1e-05>(x) "
                     "y = Mul(n, g) }"}, _floats((2, 3, 8), (8,)), ("float",)),
    Node("rms", "FusedLayerNorm",
         {"program": "(float16 x, float16 r) => (float16 y, float16 s) { s = Add(x, r) "
                     "y = RMSNormalization<axis=1, epsilon=1e-05>(s) }"},
         _floats((2, 3, 8), (3, 8), dtype="float16"), ("float16", "float16")),
    Node("pointwise", "FusedPointwise",
         {"program": "(float a, float b) => (float y, bool m) { y = Add(a, b) m = Greater(y, 0) }"},
         _floats((2, 3, 4), (3, 1)), ("float", "bool")),
    Node("sum", "FusedSumTo",
         {"program": '(float a, float b) => (float y, float s) { y = Mul(a, b) s = SumTo<axes="0 2", '
                     "keepdims=1>(y) }"}, _floats((2, 3, 4), (3, 1)), ("float", "float")),
    Node("norm, ordered", "FusedLayerNorm",
         {"program": "(float x) => (float y) { y = LayerNormalization<axis=-1>(x) }", "ordered": [0],
          "order": [1, 0, 0, 2], "image": [2, 1]}, _floats((2, 3, 8)), ("float",)),
    Node("scatter nd", "ScatterND", SCATTER, (*_floats((4, 5)), index, *_floats((3, 5))), ("float",)),
    Node("scatter nd, half", "ScatterND", {**SCATTER, "reduction": "mul"},
         (*_floats((4, 5), dtype="float16"), index, *_floats((3, 5), dtype="float16")), ("float16",)),
    Node("scatter elements", "ScatterElements", {**SCATTER, "axis": 1, "reduction": "none"},
         (*_floats((4, 5)), Input("int64", (2, 3), -1), *_floats((2, 3))), ("float",)),
    Node("slice", "UpdateSlice", {"axes": [0, 2], "steps": [1, -2]},
         (*_floats((6, 3, 5), (2, 1, 2)), Input("int64", (2,), 3)), ("float",)),
    Node("max, NCHW", "FusedPool", {**POOL, **first, "kind": "max"}, _floats((1, 2, 6, 7)), ("float",)),
    Node("max, NHWC, bytes", "FusedPool", {**POOL, **last, "kind": "max"},
         _floats((1, 6, 7, 2), dtype="uint8"), ("uint8",)),
    Node("average, NCHW, half", "FusedPool", {**POOL, **first, "kind": "average", "count_include_pad": 1},
         _floats((1, 2, 6, 7), dtype="float16"), ("float16",)),
    Node("average, NHWC", "FusedPool", {**POOL, **last, "kind": "average", "ceil_mode": 1},
         _floats((1, 6, 7, 2)), ("float",)),
    Node("SAME_UPPER", "FusedPool",
         {"kernel_shape": [3], "auto_pad": "SAME_UPPER", "kind": "average", **last}, _floats((1, 6, 2)),
         ("float",)),
    Node("global", "FusedPool", {"kind": "global_average", **last}, _floats((1, 6, 7, 2)), ("float",)),
    Node("linear, sizes", "FusedResize", {**RESIZE, **first, "sizes": [9, 5]}, _floats((1, 2, 6, 7)), ("float",)),
    Node("linear, scales, half", "FusedResize", {**RESIZE, **last, "scales": [1.5, 0.5, 1.0]},
         _floats((1, 2, 6, 7, 2), dtype="float16"), ("float16",)),
    Node("nearest, scales", "FusedResize", {**RESIZE, **last, "mode": "nearest", "scales": [2.0]},
         _floats((1, 6, 2), dtype="uint8"), ("uint8",)),
  ]  # fmt: skip
  made += [
    Node("attention", "FusedAttention",
         {**ATTENTION, "qkv_dtype": "float", "mask_dtype": "bool", "q_layout": "b h s d", "k_layout": "b h:2/4 s d",
          "v_layout": "b h s 0/2 d", "y_layout": "b s (h d)"},
         (*_floats((2, 4, 5, 8), (2, 4, 7, 8), (2, 2, 7, 2, 6)), Input("bool", (5, 7))), ("float",)),
    Node("attention, half", "FusedAttention",
         {"qkv_dtype": "float16", "mask_dtype": "float16", "heads": 3, "kv_heads": 3, "q_layout": "b s (0/3 h d)",
          "k_layout": "b s (1/3 h d)", "v_layout": "b s (2/3 h d)", "y_layout": "(b s) (h d)"},
         _floats((2, 5, 72), (2, 5, 72), (2, 5, 72), (2, 1, 1, 5), dtype="float16"), ("float16",)),
    Node("attention, rotated", "FusedAttention",
         {"qkv_dtype": "float16", "mask_dtype": "bool", "heads": 4, "kv_heads": 2, "rotary": "half",
          "rotary_dtype": "float", "q_layout": "b s (h d)", "y_layout": "b s (h d)"},
         (*_floats((2, 5, 32), (2, 2, 5, 8), (2, 2, 5, 6), dtype="float16"), Input("bool", (5, 5)),
          *_floats((5, 3), (5, 3))), ("float16",)),
    Node("attention, rotated, double", "FusedAttention",
         {"qkv_dtype": "double", "heads": 2, "kv_heads": 2, "rotary": "interleaved"},
         _floats((2, 2, 5, 8), (2, 2, 5, 8), (2, 2, 5, 8), (2, 5, 4), (2, 5, 4), dtype="double"), ("double",)),
    Node("attention, cache", "FusedAttention",
         {"qkv_dtype": "float16", "mask_dtype": "bool", "heads": 4, "kv_heads": 2, "rotary": "interleaved",
          "q_layout": "b s (h d)", "past_layout": "b s h d", "causal": "lower_right"},
         (*_floats((2, 3, 32), (2, 2, 3, 8), (2, 2, 3, 6), dtype="float16"), Input("bool", (3, 8)),
          *_floats((3, 4), (3, 4), (2, 5, 2, 8), (2, 5, 2, 6), dtype="float16")), ("float16",) * 3),
    Node("attention, double", "FusedAttention",
         {"qkv_dtype": "double", "heads": 4, "kv_heads": 1, "q_layout": "s b (h d)", "k_layout": "b h d s"},
         _floats((5, 2, 32), (2, 1, 8, 7), (2, 1, 7, 8), dtype="double"), ("double",)),
  ]  # fmt: skip
  made += [
    Node("transposed window", "FusedTranspose",
         {"perm": [0, 2, 1], "starts": [0, 1, -3], "ends": [9, -1, 4]}, _floats((2, 3, 4), dtype="float16"),
         ("float16",)),
    Node("transposed bytes", "FusedTranspose", {"perm": [1, 2, 0]}, _floats((2, 3, 4), dtype="uint8"), ("uint8",)),
    Node("product and norm", "FusedMatMulNorm",
         {"program": "(float16 c, float16 b) => (float16 y) { y = Add(c, b) }", "keeps_product": 1,
          "algorithm": "whole",
          "norm": "(float16 x, float16 g) => (float16 y) { n = RMSNormalization(x) y = Mul(n, g) }"},
         _floats((3, 5, 32), (32, 64), (64,), (64,), dtype="float16"), ("float16",) * 2),
    Node("recurrence", "FusedLSTM",
         {"hidden_size": 4, "dtype": "float", "direction": "bidirectional", "batch_first": 1, "allow_tf32": 1},
         _floats((3, 5, 32), (2, 16, 4), (2, 3, 4), (2, 3, 4)), ("float",) * 3),
    Node("recurrence, half", "FusedLSTM", {"hidden_size": 16, "dtype": "float16", "direction": "reverse"},
         _floats((5, 3, 64), (1, 64, 16), dtype="float16"), ("float16",)),
  ]  # fmt: skip
  for dtype in ("float", "float16", "double"):
    program = {"program": _bias(dtype)}
    made += [
      Node(f"conv, NCHW, {dtype}", "FusedConv", {**CONV, **first, **program},
           _floats((1, 4, 6, 7), (6, 4, 3, 3), (6, 1, 1), dtype=dtype), (dtype,)),
      Node(f"conv, NHWC, {dtype}", "FusedConv", {**CONV, **last, "input_layout": "NHWC", **program},
           _floats((1, 6, 7, 4), (6, 3, 3, 4), (6,), dtype=dtype), (dtype,)),
      Node(f"transposed, NCHW, {dtype}", "FusedConvTranspose",
           {**CONV, **first, "output_padding": [0, 1], **program},
           _floats((1, 6, 4, 5), (6, 4, 3, 3), (4, 1, 1), dtype=dtype), (dtype,)),
      Node(f"transposed, NHWC, {dtype}", "FusedConvTranspose",
           {**CONV, **last, "output_layout": "NHWC", "output_shape": [5, 9], "pads": [], **program},
           _floats((1, 4, 5, 6), (6, 3, 3, 4), (4,), dtype=dtype), (dtype,)),
      Node(f"product, {dtype}", "FusedMatMul", {**PRODUCT, **program},
           _floats((2, 5, 6), (8, 6), (8,), dtype=dtype), (dtype,)),
    ]  # fmt: skip
  made += [
    Node("grad, NCHW", "ConvGrad", {**GRAD, **first}, _floats((1, 4, 6, 7), (6, 4, 3, 3), (1, 6, 6, 4)),
         ("float",) * 3),
    Node("grad, NHWC, half", "ConvGrad",
         {**GRAD, **last, "program": "(float16 g, float16 y) => (float16 z) { m = Greater(y, 0) "
                                     "z = Where(m, g, 0) }", "gradients": "dX dW dB dZ"},
         _floats((1, 6, 7, 4), (6, 3, 3, 4), (1, 6, 4, 6), (1, 6, 4, 6), dtype="float16"),
         ("float16", "float", "float", "float16")),
    Node("grad, transposed, double", "ConvGrad",
         {**GRAD, **first, "transposed": 1, "program": "(double g) => (double g) {}", "weight_dtype": "double"},
         _floats((1, 6, 6, 4), (6, 4, 3, 3), (1, 4, 6, 7), dtype="double"), ("double",) * 3),
    Node("grad of X alone", "ConvGrad", {**GRAD, **first, "gradients": "dX", "operands": "W"},
         _floats((6, 4, 3, 3), (1, 6, 6, 4)), ("float",)),
  ]  # fmt: skip
  return made


# ---- wrong

TEXTS = ("", "?", b"\xff\xfe\x80", "auto\0", "\x1b[2Jred", "a" * LONG, "ä" * 300, 7, 1.5, [1, 2])
NUMBERS = (-1, 0, 2, 3, *HUGE, "text", 1.5, [1], [])


def _wrong_lists(right):
  is_float = isinstance(right[0], float) if right else False
  bad = (
    (-1.0, 0.0, 1e-30, 1e30, 3e38, float("nan"), float("inf"), 100000.0) if is_float else (-1, 0, 2, 5, 32768, *HUGE)
  )
  yield []
  yield list(right)[:-1]
  yield [*right, right[0] if right else 1]
  yield list(right) * 40
  yield [1] * 100_000
  yield "text"
  yield 1
  yield [int(each) for each in right] if is_float else [float(each) for each in right]
  yield ["a", "b"]
  for value in bad:
    yield [value] * len(right)
    for place in range(len(right)):
      yield [value if i == place else each for i, each in enumerate(right)]


def _wrong_programs(right):
  yield from TEXTS
  yield right.replace("=>", "=> (")
  yield right.replace("float", "int32").replace("int3216", "int16")
  yield right.replace("float", "double")
  yield right + " " * LONG
  yield right.replace("(", "(" * 1000, 1)
  yield right.replace(" {", "".join(f", float p{i}" for i in range(40)) + " {", 1)
  for number in ("1024", "-1024", "1025", "1" * 400, "1e400", "9" * LONG, "63", "nan", "-0"):
    for key in ("axis=", "epsilon=", 'axes="'):
      if key in right:
        head, tail = right.split(key, 1)
        yield head + key + number + tail[min(i for i, c in enumerate(tail) if c in ',>"') :]


def _wrong_attributes(seed):
  def with_value(name, value, what):
    return replace(seed, name=f"{seed.name}: {name} {what}", attributes={**seed.attributes, name: value}, wrong=name)

  for name, right in seed.attributes.items():
    without = {key: value for key, value in seed.attributes.items() if key != name}
    yield replace(seed, name=f"{seed.name}: no {name}", attributes=without, wrong=name)
    values: Iterator[Any]
    if name == "program":
      values = _wrong_programs(right)
    elif isinstance(right, list):
      values = _wrong_lists(right or [1, 1, 1, 1])
    else:
      values = iter(TEXTS if isinstance(right, str) else NUMBERS)
    for number, value in enumerate(values):
      yield with_value(name, value, f"{number}: {str(value)[:40]!r}")


DTYPES = ("float", "float16", "double", "bfloat16", "int32", "int64", "uint8", "bool", "string", "complex64")


def _wrong_shapes(right):
  yield from ((), (1,), (0,), right[:-1], (*right, 1), (1, *right), (1,) * 8, (1,) * 64, (1,) * len(right))
  yield (0,) * len(right)
  for axis, size in enumerate(right):
    for other in (0, 1, size - 1, size + 1, 2 * size, 1000):
      if other != size:
        yield (*right[:axis], other, *right[axis + 1 :])
    # Nothing, of a size that nobody has: products and strides must not overflow.
    for other in (2**31, 2**40, 2**57):
      zero = 0 if axis else 1
      if zero < len(right):
        nothing = [*right]
        nothing[axis], nothing[zero] = other, 0
        yield tuple(nothing)


def _wrong_inputs(seed):
  def with_input(number, value, what):
    inputs = tuple(value if i == number else each for i, each in enumerate(seed.inputs))
    return replace(seed, name=f"{seed.name}: input {number} {what}", inputs=inputs, wrong=f"input {number}")

  for count in range(len(seed.inputs)):
    yield replace(seed, name=f"{seed.name}: {count} inputs", inputs=seed.inputs[:count], wrong="inputs")
  for extra in (seed.inputs[-1], None):
    yield replace(seed, name=f"{seed.name}: an input more", inputs=(*seed.inputs, extra), wrong="inputs")
  yield replace(seed, name=f"{seed.name}: 300 inputs", inputs=seed.inputs[:1] * 300, wrong="inputs")
  for outputs in (seed.outputs[:-1], (*seed.outputs, seed.outputs[-1]), ("int32",) * len(seed.outputs)):
    yield replace(seed, name=f"{seed.name}: outputs {len(outputs)}", outputs=outputs, wrong="outputs")
  for number, right in enumerate(seed.inputs):
    yield with_input(number, None, "missing")
    for dtype in DTYPES:
      if dtype != right.dtype:
        yield with_input(number, replace(right, dtype=dtype, value=1), f"is {dtype}")
    for shape in _wrong_shapes(right.shape):
      yield with_input(number, replace(right, shape=shape), f"has the shape {shape}")
    if right.dtype == "int64":
      for value in (-4, 4, 1000, *HUGE):
        yield with_input(number, replace(right, value=value), f"is {value}")
    for value in (float("nan"), float("inf"), -float("inf"), 3e38):
      if right.dtype in ("float", "double"):
        yield with_input(number, replace(right, value=value), f"is {value}")
    for axis in range(len(right.shape)):  # what shape inference gets to see
      for size in (2**31, 2**48, 2**62, 2**63 - 1):
        declared = tuple(size if i == axis else each for i, each in enumerate(right.shape))
        yield with_input(number, replace(right, declared=declared), f"is declared {declared}")
  for mode in ("empty", "long", "control"):
    called = {"empty": "", "long": "n" * LONG, "control": f"\x1b[2J\r{NODE}\n"}[mode]
    yield replace(seed, name=f"{seed.name}: a name that is {mode}", called=called, outputs=(*seed.outputs, "float"))


def _large():
  """Results that no machine has, made of small inputs."""
  by_name = {seed.name: seed for seed in seeds()}
  wide = (Input("float", (2**20, 1)), Input("float", (1, 2**20)))
  yield replace(by_name["pointwise"], name="pointwise: 2^40 elements", inputs=wide, wrong="program")
  yield replace(by_name["norm"], name="norm: 2^40 elements", inputs=wide, wrong="program", attributes={
    "program": "(float x, float r) => (float y) { s = Add(x, r) y = LayerNormalization<axis=-1, epsilon=1e-05>(s) }"
  })  # fmt: skip
  nothing = (Input("float", (0, 2**40)), Input("float", (1, 1)))
  summed = '(float a, float b) => (float y, float s) { y = Mul(a, b) s = SumTo<axes="0">(y) }'
  for name, inputs in (("2^40 elements", wide), ("of nothing, 2^40 times", nothing)):
    yield replace(by_name["sum"], name=f"sum: {name}", inputs=inputs, wrong="program", attributes={"program": summed})
  given = {**GRAD, "gradients": "dX", "operands": "W", "strides": [32768, 32768]}
  yield replace(by_name["grad of X alone"], name="grad: strides of 32768", attributes=given, wrong="strides")


@cache
def nodes():
  """All or a sample: the seeds, which run, then each wrong node, with shapes in the model, without, and constant."""
  made = list(seeds())
  for each in _large():
    made += [replace(each, name=f"{each.name} ({mode})", mode=mode) for mode in MODES]
  for seed in seeds():
    for number, each in enumerate(itertools.chain(_wrong_attributes(seed), _wrong_inputs(seed))):
      # Of FusedResize few wrong nodes ask for more memory than there is, which a test wants to see.
      if seed.op != "FusedResize" and not sample.is_taken(f"{seed.op} {each.name}", 24):
        continue
      # Of attributes it matters little whether shapes are known, so it is one or the other.
      modes = (MODES[number % 2],)
      if each.wrong.startswith("input "):
        modes = (MODES[number % 2], "constant")
      if any(x is not None and x.declared is not None for x in each.inputs):
        modes = ("known",)
      made += [replace(each, name=f"{each.name} ({mode})", mode=mode) for mode in modes]
  return tuple(made)


# ---- a process


def _spec(node):
  """The outputs' shapes as the operator's specification has them, or why it refuses the node."""
  from ortplugin.errors import ModelError
  from ortplugin.ops import TensorType, find

  operator = find("ortplugin", node.op)
  types = [TensorType(helper.tensor_dtype_to_np_dtype(_type(x.dtype)), x.shape) for x in node.inputs if x is not None]
  try:
    return [
      [d if isinstance(d, int) else None for d in y.shape or ()] for y in operator.infer_shapes(node.node(), types)
    ]
  except ModelError as error:
    return f"refused: {error}"


def _use(node, options):
  import onnxruntime

  try:
    session = onnxruntime.InferenceSession(
      node.model(), options, providers=["CPUExecutionProvider"], enable_fallback=False
    )
    found = session.run(None, node.feeds())
  except Exception as error:  # each of ONNX Runtime's errors has a class of its own
    return {"refused": str(error)[:5000], "length": len(str(error))}
  return {"shapes": [list(each.shape) for each in found], "spec": _spec(node)}


def main(numbers):
  import onnxruntime

  import ortplugin

  options = onnxruntime.SessionOptions()
  options.log_severity_level = 4
  options.intra_op_num_threads = 1
  ortplugin.register(options)
  for number in numbers:
    print(json.dumps({"begins": number}), flush=True)
    print(json.dumps({"ends": number, **_use(nodes()[number], options)}), flush=True)


if __name__ == "__main__":
  os.environ["ORTPLUGIN_MEMORY_LIMIT"] = str(MEMORY)
  if "asan" not in os.environ.get("LD_PRELOAD", ""):  # which reserves terabytes
    resource.setrlimit(resource.RLIMIT_AS, (8 * MEMORY, 8 * MEMORY))
  main(range(int(sys.argv[1]), len(nodes()), int(sys.argv[2])))
