"""Chains of pointwise operators over tensors of 64 MiB.

    v = Mul(x, b)  v = Add(v, b)  v = Relu(v)  v = Sub(v, x)  ...      2, 4, 8 or 16 operators; x: 64 MiB

b has the shape of x, or is a row, a column, a scalar or [N, 1, H, W] beside [N, C, H, W]. Measures, in one run:
FusedPointwise inside ONNX Runtime, ONNX Runtime's own operators, and where PyTorch is there its eager mode,
`torch.compile` and a device copy, scaled to the bytes that the program must move. Every step has tensors of its own, so
that nothing is found in a cache. Checks every output against float64 in the same run.
"""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import helper

import timing

STEPS = 11  # each on tensors of its own
ROUNDS = 9
LENGTHS = (2, 4, 8, 16)
COLUMNS = {
  "ort": "ORT's operators",
  "eager": "torch eager",
  "compile": "torch.compile",
  "ortplugin": "**ortplugin**",
  "copy": "device copy of the bytes",
}
# One turn of the chain: an operator and what stands beside the value at hand. Bounded, and nothing cancels.
TURN = (
  ("Mul", "b"),
  ("Add", "b"),
  ("Relu", None),
  ("Sub", "x"),
  ("Mul", 0.5),
  ("Max", "b"),
  ("Add", "x"),
  ("Min", 4.0),
)

# x sigmoid(x) of a scaled and shifted tensor, as after a folded batch normalisation.
SILU = (("v0", "Mul", ("x", "b")), ("v1", "Add", ("v0", "b")), ("v2", "Sigmoid", ("v1",)), ("y", "Mul", ("v1", "v2")))

Statement = tuple[str, str, Sequence[str | float]]  # result, operator, operands


@dataclass(frozen=True)
class Case:
  """A program of ONNX operators on named inputs, whose last statement is the result y."""

  name: str
  dtype: str
  shapes: dict[str, tuple[int, ...]]
  statements: tuple[Statement, ...]
  length: int  # operators, for the table

  @property
  def shape(self):
    return tuple(np.broadcast_shapes(*self.shapes.values()))

  @property
  def bytes(self):
    """What has to be moved at least."""
    sizes = [math.prod(shape) for shape in self.shapes.values()]
    return (sum(sizes) + math.prod(self.shape)) * np.dtype(timing.DTYPES[self.dtype]).itemsize

  def program(self):
    parameters = ", ".join(f"{self.dtype} {name}" for name in self.shapes)
    body = "\n".join(f"  {name} = {op}({', '.join(map(str, each))})" for name, op, each in self.statements)
    return f"({parameters}) => ({self.dtype} y) {{\n{body}\n}}"

  def model(self, count, *, fused):
    """A model of `count` steps that share nothing."""
    dtype = timing.DTYPES[self.dtype]
    nodes, inputs, outputs, constants = [], [], [], {}
    for step in range(count):
      inputs += [(f"{name}{step}", dtype, each) for name, each in self.shapes.items()]
      outputs.append((f"y{step}", dtype, self.shape))
      if fused:
        names = [f"{name}{step}" for name in self.shapes]
        nodes.append(
          helper.make_node(
            "FusedPointwise", names, [f"y{step}"], f"node{step}", domain="ortplugin", program=self.program()
          )
        )
        continue
      for name, op, operands in self.statements:
        given = []
        for operand in operands:
          if isinstance(operand, str):
            given.append(operand + str(step) if operand in self.shapes else f"{operand}_{step}")
            continue
          constants[f"c{operand}"] = np.asarray(operand, dtype)
          given.append(f"c{operand}")
        nodes.append(helper.make_node(op, given, [f"y{step}" if name == "y" else f"{name}_{step}"]))
    return timing.model_of(nodes, inputs, outputs, constants)

  def evaluate(self, functions, feed):
    values = dict(feed)
    for name, op, operands in self.statements:
      values[name] = functions[op](*(values[x] if isinstance(x, str) else x for x in operands))
    return values["y"]


def chain(length):
  statements = []
  value = "x"
  for number in range(length):
    op, beside = TURN[number % len(TURN)]
    result = "y" if number == length - 1 else f"v{number}"
    statements.append((result, op, (value,) if beside is None else (value, beside)))
    value = result
  return tuple(statements)


def cases():
  """Every row of the table."""
  made = []
  for dtype, rows in (("float16", 8192), ("float", 4096)):
    matrix, image = (rows, 4096), (rows // 256, 64, 128, 128)
    for name, x, b in (
      ("contiguous", matrix, matrix),
      ("row", matrix, (4096,)),
      ("column", matrix, (rows, 1)),
      ("scalar", matrix, (1,)),
      ("middle", image, (image[0], 1, *image[2:])),
    ):
      made += [Case(name, dtype, {"x": x, "b": b}, chain(length), length) for length in LENGTHS]
    made.append(Case("SiLU, row", dtype, {"x": matrix, "b": (4096,)}, SILU, 4))
  return made


def functions_of(library):
  """The operators in CuPy or PyTorch."""
  common = {"Mul": operator.mul, "Add": operator.add, "Sub": operator.sub, "Max": library.maximum}
  if library.__name__ == "torch":
    return common | {
      "Relu": library.relu,
      "Sigmoid": library.sigmoid,
      "Min": lambda a, b: library.clamp(a, max=b) if isinstance(b, float) else library.minimum(a, b),
    }
  return common | {
    "Relu": lambda a: library.maximum(a, 0),
    "Sigmoid": lambda a: 1 / (1 + library.exp(-a)),
    "Min": library.minimum,
  }


def check(case, feed, results):
  """Largest difference of each contender's first step from float64, in units of the output's largest value."""
  import cupy

  expected = case.evaluate(functions_of(cupy), {name: each.astype(cupy.float64) for name, each in feed.items()})
  scale = float(cupy.abs(expected).max())
  unit = float(np.finfo(timing.DTYPES[case.dtype]).eps)
  errors = {}
  for name, result in results.items():
    error = float(cupy.abs(cupy.asarray(result).astype(cupy.float64) - expected).max()) / scale
    # Fused there is one rounding to the dtype; operators by themselves round after each.
    roundings = 2 if name == "ortplugin" and case.dtype == "float16" else 2 * case.length
    if not error <= unit * roundings:
      raise SystemExit(f"{case.name}, {case.length} operators, {case.dtype}: {name} is off by {error:.1e}")
    errors[name] = error
  return errors


def in_torch(case):
  """The case's step, given PyTorch."""

  def make(torch):
    ops = functions_of(torch)
    return lambda **feed: case.evaluate(ops, feed)

  return make


def measure(case):
  """One row of the table: microseconds of each contender and its error."""
  import cupy

  cupy.random.seed(len(case.name) + case.length)
  numpy = timing.DTYPES[case.dtype]
  feeds = [
    {name: cupy.random.standard_normal(each, np.float32).astype(numpy) for name, each in case.shapes.items()}
    for _ in range(STEPS)
  ]
  cupy.cuda.Device().synchronize()
  contenders, results = {}, {}
  for name, fused in (("ortplugin", True), ("ort", False)):
    contenders[name], results[name] = timing.session_steps(
      lambda count, fused=fused: case.model(count, fused=fused), feeds, plugin=fused
    )
  row = timing.beside_torch(case, feeds, contenders, results, in_torch(case), check, ROUNDS)
  return {**row, "operators": case.length}


def table(record):
  """The record as a Markdown table."""
  lines = timing.table(
    record,
    COLUMNS,
    "| tensors | operators",
    "|---|---:|",
    lambda row: f"| {row['case']}, {row['dtype']} | {row['operators']}",
    ("/ copy", timing.to_copy),
  )
  return timing.page(lines, "pointwise", record["environment"])


def measure_all(args, record):
  for case in cases():
    if not args.only or case.name in args.only:
      record["rows"].append(row := measure(case))
      timing.free_memory()
      yield f"{case.name} {case.length} {case.dtype}: {timing.shown(row)}"


if __name__ == "__main__":
  only = {"nargs": "+", "default": [], "help": "names of cases"}
  timing.run("pointwise", __doc__, measure_all, table, {"--only": only})
