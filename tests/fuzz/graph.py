"""A random graph under construction: every value is computed as soon as its node is there, so shapes are known."""

import random
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import onnx
from onnx import defs, helper, numpy_helper

from .evaluate import CONTRIB, OURS, Array, Evaluator, UnfitError, to_onnx

FLOAT, DOUBLE, INT, BOOL = np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.int64), np.dtype(np.bool_)
HALVES = {"fp16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}
MOST_ELEMENTS = 1 << 14
LARGEST = {"fp32": 1e4, "fp64": 1e4, "fp16": 500.0, "bf16": 1e4}


@dataclass(frozen=True)
class Style:
  """What the whole graph has in common.

  `dtype`: fp32, fp64, or fp16 and bf16, in which case the graph is made in float32, with double for what stays wide,
  and narrowed at the end: so the wide graph is there as its oracle.
  """

  opset: int
  dtype: str
  special: bool  # NaN and infinity among the inputs
  largest: int  # dimension

  @property
  def main(self):
    return DOUBLE if self.dtype == "fp64" else FLOAT

  @property
  def other(self):
    """Another floating dtype that some have."""
    return FLOAT if self.dtype == "fp64" else DOUBLE


@dataclass(eq=False)
class Value:
  """A value of the graph and what it is for the first feeds. `source`: input, constant or node."""

  name: str
  array: Array
  source: str

  @property
  def shape(self):
    return tuple(self.array.shape)

  @property
  def rank(self):
    return int(self.array.ndim)

  @property
  def dtype(self):
    return self.array.dtype

  @property
  def is_float(self):
    return self.dtype.kind == "f"


@dataclass
class Graph:
  """The graph. `rng` decides what is made, `data` the numbers in it."""

  style: Style
  rng: random.Random
  data: np.random.Generator
  evaluator: Evaluator
  values: list[Value] = field(default_factory=list)
  nodes: list[onnx.NodeProto] = field(default_factory=list)
  constants: dict[str, Array] = field(default_factory=dict)
  inputs: dict[str, Array] = field(default_factory=dict)
  functions: list[onnx.FunctionProto] = field(default_factory=list)
  kept: set[str] = field(default_factory=set)  # constants that stay float32 in a narrow graph, such as scales
  random: bool = False  # whether some node makes random numbers
  has_loose_ranks: bool = False  # after a Squeeze without axes: with other sizes it gives another rank
  _number: int = 0

  @property
  def opset(self):
    """The version of the standard domain."""
    return self.style.opset

  # ---- chances

  def chance(self, share):
    """True in this share of the cases."""
    return self.rng.random() < share

  def choice(self, options):
    return self.rng.choice(list(options))

  def fresh(self, prefix="v"):
    """A name that nothing has. The last step gives all values other names."""
    self._number += 1
    return f"{prefix}{self._number}"

  def dim(self):
    """A size, small and often 1; rarely 0."""
    if self.chance(0.02):
      return 0
    return int(self.choice([1, 1, 2, 3, 4, 5, 8, self.rng.randint(1, self.style.largest)]))

  # ---- leaves

  def rounded(self, array):
    """The numbers as the graph's dtype can hold them."""
    half = HALVES.get(self.style.dtype)
    if array.dtype == self.style.main and half is not None:
      with np.errstate(over="ignore"):
        return np.asarray(array.astype(half).astype(array.dtype))
    if array.dtype == DOUBLE and half is not None:
      return np.asarray(array.astype(FLOAT).astype(DOUBLE))
    return array

  def numbers(self, shape, scale=1.0, dtype=None):
    dtype = self.style.main if dtype is None else dtype
    if dtype.kind == "b":
      return np.asarray(self.data.random(tuple(shape)) < 0.5)
    if dtype.kind in "iu":
      low = 0 if dtype.kind == "u" else -4
      return np.asarray(self.data.integers(low, 7, tuple(shape)), dtype)
    made = np.asarray(self.data.standard_normal(tuple(shape)) * scale)
    kind = self.rng.random()
    if kind < 0.08:
      made = np.round(made)  # equal numbers, zeros and negative zeros
    elif kind < 0.11:
      made = np.full(made.shape, float(self.rng.choice([0.0, 1.0, -1.0, 0.5, 2.0])))
    elif kind < 0.14:
      made = made + 3
    return self.rounded(np.asarray(made, dtype))

  def input(self, array):
    name = self.fresh("x")
    if self.style.special and array.dtype.kind == "f" and array.size:
      array = array.copy()
      at = self.data.integers(0, array.size, 1 + array.size // 30)
      array.reshape(-1)[at] = self.data.choice([np.nan, np.inf, -np.inf, 0.0, -0.0], len(at))
    self.inputs[name] = array
    return self.add(name, array, "input")

  def constant(self, array, dtype=None):
    array = np.asarray(array, dtype)
    if self.style.dtype in HALVES and array.dtype.kind == "f":
      array = self.rounded(array)
    shared = [(name, other) for name, other in self.constants.items() if name not in self.kept]
    for name, other in shared:  # as exporters share them
      same = other.dtype == array.dtype and other.shape == array.shape and other.tobytes() == array.tobytes()
      if same and self.chance(0.5):
        return Value(name, other, "constant")
    name = self.fresh("c")
    if self.chance(0.8):
      self.constants[name] = array
    else:
      self.nodes.append(helper.make_node("Constant", [], [name], **self._constant_form(array)))
    return self.add(name, array, "constant", listed=False)

  def kept_constant(self, array):
    """A float32 constant of which the operator takes no other dtype."""
    name = self.fresh("k")
    self.constants[name] = np.asarray(array, FLOAT)
    self.kept.add(name)
    return self.add(name, self.constants[name], "constant", listed=False)

  def _constant_form(self, array):
    forms = [{"value": numpy_helper.from_array(array)}]
    if self.opset >= 12 and array.dtype == FLOAT and self.style.dtype not in HALVES:
      if array.ndim == 0:
        forms.append({"value_float": float(array)})
      if array.ndim == 1 and array.size:
        forms.append({"value_floats": [float(each) for each in array]})
    if self.opset >= 12 and array.dtype == INT:
      if array.ndim == 0:
        forms.append({"value_int": int(array)})
      if array.ndim == 1 and array.size:
        forms.append({"value_ints": [int(each) for each in array]})
    return dict(self.choice(forms))

  def weights(self, *shape):
    """Constant floats, scaled so that a sum over all but the first axis is of the order of one."""
    scale = 1 / max(1.0, float(np.sqrt(np.prod(shape[1:])))) if len(shape) > 1 else 1.0
    array = self.numbers(shape, scale)
    return self.input(array) if self.chance(0.04) else self.constant(array)

  def ints(self, values):
    return self.constant(np.asarray(list(values), INT))

  def scalar(self, value, like=None):
    dtype = self.style.main if like is None else like.dtype
    shape = self.choice([(), (), (), (1,), (1, 1)]) if like is None or like.rank >= 2 else ()
    return self.constant(np.full(shape, value), dtype)

  # ---- values

  def add(self, name, array, source, listed=True):
    """Makes a value known."""
    value = Value(name, array, source)
    if listed:
      self.values.append(value)
    return value

  def pick(self, kind="main", ranks=None, where=lambda value: True):
    """A value, as a rule a late one. `kind`: main, float, int, index (int64), bool, number or any."""
    tests = {
      "main": lambda value: value.dtype == self.style.main,
      "float": lambda value: value.is_float,
      "int": lambda value: value.dtype.kind in "iu",
      "index": lambda value: value.dtype == INT,
      "bool": lambda value: value.dtype == BOOL,
      "number": lambda value: value.dtype != BOOL,
      "any": lambda value: True,
    }
    wanted = None if ranks is None else set(ranks)
    fits = [v for v in self.values if tests[kind](v) and (wanted is None or v.rank in wanted) and where(v)]
    if not fits:
      raise UnfitError("no such value")
    recent = fits[-4:] if self.chance(0.7) else fits
    return self.rng.choice(recent)

  def fitting(self, shape, dtype=None):
    """An operand that broadcasts to the shape: a value, a constant or an input."""
    dtype = self.style.main if dtype is None else dtype
    if self.chance(0.55):
      fits = [v for v in self.values if v.dtype == dtype and broadcasts(v.shape, shape)]
      if fits:
        return self.rng.choice(fits[-5:])
    own = self.broadcast_shape(shape)
    array = self.numbers(own, dtype=dtype)
    return self.input(array) if self.chance(0.25) else self.constant(array)

  def broadcast_shape(self, shape):
    """A shape that broadcasts to this one."""
    kind = self.rng.random()
    own = list(shape)
    if kind < 0.2:
      return ()
    if kind < 0.55:
      own = [size if self.chance(0.5) else 1 for size in own]
    if kind < 0.75 and own:
      own = own[self.rng.randrange(len(own) + 1) :]
    if 0.75 <= kind < 0.85 and len(own) >= 3:
      own = [own[1], *[1] * (len(own) - 2)]
    return tuple(own)

  # ---- nodes

  def op(self, op, *inputs, outputs=1, domain="", **attributes):
    """Adds a node and returns its value, or a list of them. UnfitError where it or its values do not do."""
    attributes = {name: value for name, value in attributes.items() if value is not None}
    given = list(inputs)
    while given and given[-1] is None:
      given.pop()
    self._check_dtypes(op, domain, given)
    arrays = self.evaluator.node(
      op, domain, [None if each is None else each.array for each in given], outputs, attributes, self.opset
    )
    names = [self.fresh() for _ in range(outputs)]
    self._check(arrays)
    node = helper.make_node(
      op, ["" if each is None else each.name for each in given], names, domain=domain, **attributes
    )
    self.nodes.append(node)
    made = [self.add(name, array, "node") for name, array in zip(names, arrays, strict=True)]
    return made[0] if outputs == 1 else made

  def block(self, nodes, inputs, outputs, functions=()):
    """Adds nodes that were made elsewhere, and makes values of `outputs`."""
    arrays = self.evaluator.nodes(nodes, {each.name: each.array for each in inputs}, outputs, self.opset, functions)
    self._check(arrays)
    self.nodes += nodes
    self.functions += [each for each in functions if all(each.name != own.name for own in self.functions)]
    return [self.add(name, array, "node") for name, array in zip(outputs, arrays, strict=True)]

  def _check_dtypes(self, op, domain, inputs):
    """Whether a graph that will be narrowed may have this node: the schema must allow the narrow dtype."""
    half = self.style.dtype
    if half not in HALVES or domain == OURS:
      return
    if domain == CONTRIB:
      if half == "bf16":
        raise UnfitError("ONNX Runtime's operators are left out in bfloat16")
      return
    if not allows(
      op,
      self.opset,
      {"fp16": "tensor(float16)", "bf16": "tensor(bfloat16)"}[half],
      [each is not None and each.dtype == self.style.main and each.name not in self.kept for each in inputs],
    ):
      raise UnfitError(f"{op} has no {half} at opset {self.opset}")

  def _check(self, arrays):
    for array in arrays:
      if array.size > MOST_ELEMENTS or array.ndim > 8:
        raise UnfitError("too large")
      if array.dtype.kind != "f" or not array.size:
        continue
      finite = np.isfinite(array)
      if not finite.any() or (not finite.all() and not self.style.special and not self.chance(0.04)):
        raise UnfitError("its values are not finite")
      if np.abs(array[finite]).max() > LARGEST[self.style.dtype]:
        raise UnfitError("its values are large")

  def mark(self):
    """Where the graph stands, for `rollback`."""
    return len(self.nodes), len(self.values), len(self.functions)

  def rollback(self, mark):
    """Takes back nodes and values since `mark`; inputs and constants that nothing reads go at the end."""
    del self.nodes[mark[0] :], self.functions[mark[2] :]
    kept = {name for node in self.nodes for name in node.output}
    late = [value for value in self.values[mark[1] :] if value.source == "input"]
    self.values[mark[1] :] = [value for value in late if value.name not in kept]


def broadcasts(shape, to):
  return len(shape) <= len(to) and all(
    a in (b, 1) for a, b in zip(reversed(list(shape)), reversed(list(to)), strict=False)
  )


_ALLOWED = {}


def allows(op, opset, dtype, main):
  """Whether the operator takes a dtype for the inputs marked in `main`; without any, for its outputs."""
  key = (op, opset, dtype, tuple(main))
  if key not in _ALLOWED:
    _ALLOWED[key] = _find(op, opset, dtype, main)
  return _ALLOWED[key]


def _find(op, opset, dtype, main):
  try:
    schema = defs.get_schema(op, opset, "")
  except defs.SchemaError:
    return False
  constraints = {each.type_param_str: set(each.allowed_type_strs) for each in schema.type_constraints}

  def has(formal):
    return dtype in constraints.get(formal.type_str, {formal.type_str})

  formals = list(schema.inputs)
  marked = [formals[min(index, len(formals) - 1)] for index, each in enumerate(main) if each]
  names = {each.type_str for each in marked}
  follows = [each for each in schema.outputs if each.type_str in names or not marked]
  return all(has(each) for each in marked) and all(
    has(each) for each in follows if "float" in str(constraints.get(each.type_str, ""))
  )


def outputs_of(nodes):
  return {name: node for node in nodes for name in node.output if name}


__all__ = ["Graph", "Style", "UnfitError", "Value", "allows", "broadcasts", "outputs_of", "to_onnx"]
