"""Lerp, its gradients, and sums over axes: the workload of Paddle PR 45946, and gradients of biases.

    z = x + w (y - x)        dx = sum_to(x, (1 - w) dout)        dy = sum_to(y, w dout)        db = sum(dout)

Measures, in one run: FusedPointwise or FusedSumTo inside ONNX Runtime, ONNX Runtime's own operators, and where PyTorch
is there torch.lerp (for gradients what its autograd computes: (grad * (1 - w)).sum_to_size(x) and
(grad * w).sum_to_size(y)), the same under `torch.compile`, and a device copy, scaled to the bytes that must be moved.
Every step has tensors of its own, so that nothing is found in a cache. Checks every output against float64 in the same
run.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import helper

import timing

STEPS = 11  # each on tensors of its own
ROUNDS = 9
LAUNCH = 3.0  # microseconds that a small operation may take beyond the time of its bytes
COLUMNS = {
  "ort": "ORT's operators",
  "eager": "torch",
  "compile": "torch.compile",
  "ortplugin": "**ortplugin**",
  "copy": "device copy of the bytes",
}
Shape = tuple[int, ...]
Node = tuple[str, str, tuple[str, ...]]  # result, operator, operands; "1" is the number; ReduceSum's are Case.axes


@dataclass(frozen=True)
class Case:
  """One row: named inputs, ONNX's nodes, the same in PyTorch or CuPy, and the axes of each sum."""

  name: str
  dtype: str
  shapes: dict[str, Shape]
  nodes: tuple[Node, ...]
  results: tuple[str, ...]
  formula: Callable[..., tuple[Any, ...]]
  axes: tuple[int, ...] = ()
  keepdims: int = 1

  @property
  def shape(self):
    return tuple(np.broadcast_shapes(*self.shapes.values()))

  def result_shape(self, result):
    if not any(name == result and op == "ReduceSum" for name, op, _ in self.nodes):
      return self.shape
    kept = [1 if axis in self.axes else size for axis, size in enumerate(self.shape)]
    return tuple(kept if self.keepdims else (size for axis, size in enumerate(kept) if axis not in self.axes))

  @property
  def bytes(self):
    """What has to be moved at least."""
    shapes = [*self.shapes.values(), *map(self.result_shape, self.results)]
    return sum(map(math.prod, shapes)) * np.dtype(timing.DTYPES[self.dtype]).itemsize

  def program(self):
    parameters = ", ".join(f"{self.dtype} {name}" for name in self.shapes)
    results = ", ".join(f"{self.dtype} {name}" for name in self.results)
    axes = " ".join(map(str, self.axes))
    sums = f'SumTo<axes="{axes}", keepdims={self.keepdims}>'
    body = "\n".join(f"  {name} = {op.replace('ReduceSum', sums)}({', '.join(e)})" for name, op, e in self.nodes)
    return f"({parameters}) => ({results}) {{\n{body}\n}}"

  def model(self, count, *, fused):
    """A model of `count` steps that share nothing."""
    dtype = timing.DTYPES[self.dtype]
    nodes, inputs, outputs = [], [], []
    for step in range(count):
      inputs += [(f"{name}{step}", dtype, each) for name, each in self.shapes.items()]
      outputs += [(f"{result}{step}", dtype, self.result_shape(result)) for result in self.results]
      if fused:
        op = "FusedSumTo" if self.axes else "FusedPointwise"
        names = [[f"{name}{step}" for name in each] for each in (self.shapes, self.results)]
        nodes.append(helper.make_node(op, *names, f"node{step}", domain="ortplugin", program=self.program()))
        continue
      for name, op, operands in self.nodes:
        given = ["one" if each == "1" else f"{each}{step}" for each in operands]
        attributes = {"axes": list(self.axes), "keepdims": self.keepdims} if op == "ReduceSum" else {}
        nodes.append(helper.make_node(op, given, [f"{name}{step}"], **attributes))
    constants = {"one": np.asarray(1, dtype)} if any("one" in node.input for node in nodes) else {}
    return timing.model_of(nodes, inputs, outputs, constants, opset=12)


FORWARD = (("d", "Sub", ("y", "x")), ("p", "Mul", ("w", "d")), ("z", "Add", ("x", "p")))
GRADIENTS = (("a", "Sub", ("1", "w")), ("dx", "Mul", ("a", "dout")), ("dy", "Mul", ("w", "dout")))
SUMMED = (
  ("a", "Sub", ("1", "w")),
  ("g", "Mul", ("a", "dout")),
  ("dx", "ReduceSum", ("g",)),
  ("dy", "Mul", ("w", "dout")),
)


def gradients(dout, w):
  return dout * (1 - w), dout * w


def cases():
  """Every row of the table."""
  made = []
  for dtype, x, y, w in (
    ("float", (16, 102400), (16, 102400), (1,)),
    ("double", (16, 204800), (16, 204800), (1,)),
    ("float", (16, 1, 1, 1), (16, 3, 244, 244), (3, 1, 244)),
  ):
    shape = "x".join(map(str, y))
    made.append(
      Case(f"lerp {shape}", dtype, {"x": x, "y": y, "w": w}, FORWARD, ("z",), lambda x, y, w: (x + w * (y - x),))
    )
    given = {"dout": y, "w": w}
    if x == y:
      made.append(Case(f"lerp {shape}, gradients", dtype, given, GRADIENTS, ("dx", "dy"), gradients))
      continue

    def summed(dout, w):
      dx, dy = gradients(dout, w)
      return dx.sum((1, 2, 3), keepdims=True), dy

    made.append(Case(f"lerp {shape}, gradients", dtype, given, SUMMED, ("dx", "dy"), summed, (1, 2, 3)))
  for name, dtype, shape, axes in (
    ("bias gradient, NCHW 1000x16x28x28", "float", (1000, 16, 28, 28), (0, 2, 3)),
    ("bias gradient, NHWC 1000x28x28x16", "float", (1000, 28, 28, 16), (0, 1, 2)),
    ("bias gradient, NCHW 64x256x56x56", "float16", (64, 256, 56, 56), (0, 2, 3)),
    ("bias gradient, NHWC 64x56x56x256", "float16", (64, 56, 56, 256), (0, 1, 2)),
    ("columns of 8192x4096", "float16", (8192, 4096), (0,)),
    ("rows of 8192x4096", "float16", (8192, 4096), (1,)),
    ("rows of 1048576x32", "float", (1048576, 32), (1,)),
    ("the middle of 64x256x1024", "float", (64, 256, 1024), (1,)),
    ("all of 16777216", "float", (16777216,), (0,)),
  ):
    nodes = (("db", "ReduceSum", ("dout",)),)

    def total(dout, axes=axes):
      return (dout.sum(axes),)

    made.append(Case(name, dtype, {"dout": shape}, nodes, ("db",), total, axes, 0))
  return made


def check(case, feed, results):
  """Largest difference of each contender's first step from float64, in units of the dtype's roundoff times the size
  of what is added up (a sum's terms by their absolute values)."""
  import cupy

  wide = {name: each.astype(cupy.float64) for name, each in feed.items()}
  expected = case.formula(**wide)
  sizes = case.formula(**{name: abs(each) if name != "w" else each for name, each in wide.items()})
  unit = float(np.finfo(timing.DTYPES[case.dtype]).eps)
  errors = {}
  for name, found in results.items():
    worst = 0.0
    for got, wanted, size in zip(found, expected, sizes, strict=True):
      difference = cupy.abs(cupy.asarray(got).astype(cupy.float64) - wanted)
      worst = max(worst, float((difference / (cupy.abs(size).max() * unit)).max()))
    if not worst <= 8:
      raise SystemExit(f"{case.name}: {name} is off by {worst:.1f} units")
    errors[name] = worst
  return errors


def in_torch(case):
  """The case's step, given PyTorch."""

  def make(torch):
    def eager(**feed):
      return (torch.lerp(feed["x"], feed["y"], feed["w"]),) if "x" in feed else case.formula(**feed)

    return eager

  return make


def measure(case):
  """One row of the table: microseconds of each contender and its error."""
  import cupy

  import ortplugin

  cupy.random.seed(len(case.name))
  numpy = timing.DTYPES[case.dtype]
  drawn = np.float64 if case.dtype == "double" else np.float32

  def fresh(name, shape):
    draw = cupy.random.random_sample if name == "w" else cupy.random.standard_normal
    return draw(shape, drawn).astype(numpy)

  feeds = [{name: fresh(name, shape) for name, shape in case.shapes.items()} for _ in range(STEPS)]
  cupy.cuda.Device().synchronize()
  contenders, results = {}, {}
  for name, fused in (("ortplugin", True), ("ort", False)):
    contenders[name], _ = timing.session_steps(
      lambda count, fused=fused: case.model(count, fused=fused), feeds, plugin=fused
    )
    session = ortplugin.session(case.model(1, fused=fused), providers=["CUDAExecutionProvider"])
    found = ortplugin.run(session, {f"{key}0": each for key, each in feeds[0].items()})
    results[name] = tuple(found[f"{result}0"] for result in case.results)
  return timing.beside_torch(case, feeds, contenders, results, in_torch(case), check, ROUNDS)


def copy_rate():
  """Bytes read and written in a microsecond by a device copy of 256 MiB; None without PyTorch."""
  if (torch := timing.pytorch()) is None:
    return None
  feeds = [{"x": torch.randn(1 << 26, device="cuda")} for _ in range(STEPS)]
  contender, _ = timing.torch_steps(lambda x: (x.clone(),), feeds)
  return (2 << 28) / timing.microseconds({"copy": contender}, STEPS, ROUNDS)["copy"]


def bound(row, rate):
  """What a row may take: 1.15 times its bytes at the copy's rate, and a launch."""
  return "" if rate is None else f"; may take {1.15 * row['bytes'] / rate + LAUNCH:.1f}"


def table(record):
  """The record as a Markdown table."""
  rate = record["copy_rate"]
  least = ("bytes at the copy's rate", lambda row: "" if rate is None else f"{row['bytes'] / rate:.1f}")
  lines = timing.table(record, COLUMNS, "| tensors", "|---|", lambda row: f"| {row['case']}, {row['dtype']}", least)
  copied = "" if rate is None else f"; a copy of 256 MiB moves {rate / 1e6:.2f} TB/s"
  return timing.page(lines, "lerp", record["environment"], unit=f"Microseconds of a step, medians{copied}")


def measure_all(args, record):
  record["copy_rate"] = copy_rate()
  for case in cases():
    if not args.only or any(case.name.startswith(word) for word in args.only):
      record["rows"].append(row := measure(case))
      timing.free_memory()
      yield f"{case.name} {case.dtype}: {timing.shown(row)}{bound(row, record['copy_rate'])}"


if __name__ == "__main__":
  only = {"nargs": "+", "default": [], "help": "words that the cases' names begin with"}
  timing.run("lerp", __doc__, measure_all, table, {"--only": only})
