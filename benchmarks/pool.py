"""Pools and resizing of images, as convolutional networks have them.

Measures, in one run: FusedPool and FusedResize on tensors with channels last (or first, where a case says so) inside
ONNX Runtime, ONNX Runtime's own operators with channels first, PyTorch with channels last, and a device copy of as
many bytes as the operator must move. Every step has tensors of its own; a network finds a small one in the cache, and
so do all contenders here. Checks the outputs against float64 in the same run.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import helper

import timing
from ortplugin.graph import DOMAIN
from ortplugin.ops import find

STEPS = 11  # each on tensors of its own
ROUNDS = 9
COLUMNS = {
  "ort": "ORT's operators",
  "torch": "torch, channels last",
  "ortplugin": "**ortplugin**",
  "copy": "device copy of the bytes",
}


@dataclass(frozen=True)
class Case:
  """One operator on a tensor [batch, height, width, channels], or [batch, channels, height, width] if `nchw`."""

  name: str
  op: str
  given: dict[str, Any]
  sizes: tuple[int, int, int, int]  # batch, height, width, channels
  dtype: str = "float16"
  nchw: bool = False

  def shape(self, nchw):
    n, h, w, c = self.sizes
    return (n, c, h, w) if nchw else (n, h, w, c)

  def node(self, nchw):
    layout = "NCHW" if nchw else "NHWC"
    return helper.make_node(self.op, ["x"], ["y"], "node", domain=DOMAIN, layout=layout, **self.given)

  def reference(self, x):
    return find(DOMAIN, self.op).reference(self.node(self.nchw), [x.astype(np.float64)])[0]

  def model(self, count, *, fused):
    """A model of `count` steps that share nothing: ours, or ONNX's with channels first."""
    operator, dtype = find(DOMAIN, self.op), timing.DTYPES[self.dtype]
    nodes, inputs, outputs = [], [], []
    shape = self.shape(self.nchw if fused else True)
    for step in range(count):
      made = [self.node(self.nchw)] if fused else operator.decompose(self.node(True), 19)
      for node in made:
        for names in (node.input, node.output):
          names[:] = [f"{name}{step}" if name else "" for name in names]
        node.name = f"{node.name}/{step}"
      nodes += made
      inputs.append((f"x{step}", dtype, shape))
      outputs.append((f"y{step}", dtype, None))
    return timing.model_of(nodes, inputs, outputs, opset=19)

  def torch_step(self):
    from torch.nn import functional

    kind = self.given.get("kind", "resize")
    if kind.startswith("global"):
      return lambda x: x.mean((2, 3), keepdim=True) if kind == "global_average" else x.amax((2, 3), keepdim=True)
    if kind == "resize":
      size = self.given.get("sizes") or [int(n * s) for n, s in zip(self.sizes[1:3], self.given["scales"], strict=True)]
      if self.given.get("mode") == "linear":
        return lambda x: functional.interpolate(x, size, mode="bilinear", align_corners=False)
      return lambda x: functional.interpolate(x, size, mode="nearest")
    pool = functional.max_pool2d if kind == "max" else functional.avg_pool2d
    pads = self.given.get("pads", [0])[:1] * 2
    return lambda x: pool(x, self.given["kernel_shape"], self.given.get("strides", [1, 1]), pads)


STEM = {"kind": "max", "kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
HALF = {"kind": "average", "kernel_shape": [2, 2], "strides": [2, 2]}
SMOOTH = {"kind": "average", "kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}
MEAN = {"kind": "global_average"}
TWICE = {"mode": "linear", "scales": [2.0, 2.0]}
NEAREST = {"scales": [2.0, 2.0], "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}

CASES = (
  *(Case("max 3x3 by 2", "FusedPool", STEM, (n, 112, 112, 64)) for n in (1, 8, 64)),
  Case("max 3x3 by 2, NCHW", "FusedPool", STEM, (8, 112, 112, 64), "float", nchw=True),
  Case("average 2x2 by 2", "FusedPool", HALF, (8, 56, 56, 128)),
  Case("average 2x2 by 2", "FusedPool", HALF, (8, 14, 14, 512)),
  Case("average 3x3", "FusedPool", SMOOTH, (8, 35, 35, 192)),
  Case("global average", "FusedPool", MEAN, (1, 112, 112, 32)),
  Case("global average", "FusedPool", MEAN, (8, 112, 112, 32)),
  Case("global average", "FusedPool", MEAN, (8, 56, 56, 96)),
  Case("global average", "FusedPool", MEAN, (8, 28, 28, 240)),
  Case("global average", "FusedPool", MEAN, (8, 14, 14, 672)),
  Case("global average", "FusedPool", MEAN, (8, 7, 7, 1152)),
  Case("global average", "FusedPool", MEAN, (1, 7, 7, 2048)),
  Case("global average", "FusedPool", MEAN, (64, 7, 7, 2048)),
  Case("global average, NCHW", "FusedPool", MEAN, (8, 56, 56, 96), nchw=True),
  Case("linear, twice", "FusedResize", TWICE, (4, 112, 112, 64)),
  Case("linear, 8 times", "FusedResize", {"mode": "linear", "sizes": [224, 224]}, (4, 28, 28, 21)),
  Case("linear, 8 times, NCHW", "FusedResize", {"mode": "linear", "sizes": [224, 224]}, (4, 28, 28, 21), nchw=True),
  Case("nearest, twice", "FusedResize", NEAREST, (4, 112, 112, 64)),
)


def check(case, x, results):
  """Raises SystemExit where a result is off by more than its dtype's rounding and the arithmetic's."""
  import cupy

  wanted = case.reference(cupy.asnumpy(x[:1]))
  wanted = wanted if not case.nchw else np.moveaxis(wanted, 1, -1)
  unit = float(np.finfo(timing.DTYPES[case.dtype]).eps)
  for name, result in results.items():
    first = cupy.asnumpy(cupy.asarray(result)[:1]).astype(np.float64)
    first = first if name == "ortplugin" and not case.nchw else np.moveaxis(first, 1, -1)
    error = float(np.abs(first - wanted).max()) / float(np.abs(wanted).max())
    if not error <= 2 * unit + 1e-6:
      raise SystemExit(f"{case.name} {case.sizes}: {name} is off by {error:.1e}")


def measure(case):
  """One row of the table: microseconds of each contender."""
  import cupy

  cupy.random.seed(case.sizes[0] + case.sizes[1])
  numpy = timing.DTYPES[case.dtype]
  arrays = [
    cupy.random.standard_normal(case.shape(case.nchw), np.float32).astype(numpy) for _ in range(STEPS)
  ]  # in the layout that ours has
  first = [a if case.nchw else cupy.ascontiguousarray(cupy.moveaxis(a, -1, 1)) for a in arrays]
  cupy.cuda.Device().synchronize()
  contenders, results = {}, {}
  for name, fused, feeds in (("ortplugin", True, arrays), ("ort", False, first)):
    contenders[name], results[name] = timing.session_steps(
      lambda count, fused=fused: case.model(count, fused=fused), [{"x": a} for a in feeds], plugin=fused
    )
  elements = math.prod(case.sizes) + results["ortplugin"].size
  if torch := timing.pytorch():
    last = arrays if not case.nchw else [cupy.ascontiguousarray(cupy.moveaxis(a, 1, -1)) for a in arrays]
    tensors = [{"x": torch.from_dlpack(a).permute(0, 3, 1, 2)} for a in last]
    contenders["torch"], results["torch"] = timing.torch_steps(case.torch_step(), tensors)
    copies = [{"x": tensors[0]["x"].new_empty(elements // 2).normal_()} for _ in arrays]  # read and written
    contenders["copy"], _ = timing.torch_steps(lambda x: x.clone(), copies)
  times = timing.microseconds(contenders, STEPS, ROUNDS)
  check(case, arrays[0], results)
  return {"case": case.name, "dtype": case.dtype, "sizes": list(case.sizes),
          "bytes": elements * np.dtype(numpy).itemsize, "microseconds": times}  # fmt: skip


def table(record):
  """The record as a Markdown table."""
  lines = timing.table(
    record,
    COLUMNS,
    "| operator | N, H, W, C",
    "|---|---|",
    lambda row: f"| {row['case']}, {row['dtype']} | {', '.join(map(str, row['sizes']))}",
  )
  return timing.page(lines, "pool", record["environment"])


def measure_all(args, record):
  for case in CASES:
    record["rows"].append(row := measure(case))
    timing.free_memory()
    yield f"{case.name}: {timing.shown(row)}"


if __name__ == "__main__":
  timing.run("pool", __doc__, measure_all, table)
