"""Transposes as exporters of vision transformers leave them.

Measures, in one run: FusedTranspose inside ONNX Runtime, ONNX Runtime's own Slice and Transpose, PyTorch, and a device
copy of as many bytes. Every step has tensors of its own. Checks the outputs in the same run. Writes
results/transpose.json.xz.

    python benchmarks/transpose.py                  measure, write, print
    python benchmarks/transpose.py --from benchmarks/results/transpose.json.xz    no measuring
"""

from dataclasses import dataclass

import numpy as np
from onnx import helper

import timing
from ortplugin.graph.domains import DOMAIN
from ortplugin.ops.transpose import OPERATOR, TO_THE_END

STEPS = 11  # each on tensors of its own
ROUNDS = 9
COLUMNS = {
  "ort": "ORT's operators",
  "torch": "torch",
  "ortplugin": "**ortplugin**",
  "copy": "device copy of the bytes",
}


@dataclass(frozen=True)
class Case:
  """One node; `part`: of x's third axis the one index that is taken, where not all are."""

  name: str
  shape: tuple[int, ...]
  perm: tuple[int, ...]
  part: int | None = None
  dtype: str = "float16"

  def node(self):
    starts, ends = [0] * len(self.shape), [TO_THE_END] * len(self.shape)
    if self.part is not None:
      starts[2], ends[2] = self.part, self.part + 1
    return helper.make_node(
      "FusedTranspose", ["x"], ["y"], "node", domain=DOMAIN, perm=self.perm, starts=starts, ends=ends
    )

  def model(self, count, *, fused):
    """A model of `count` steps that share nothing: ours, or ONNX's."""
    nodes, inputs, outputs = [], [], []
    for step in range(count):
      made = [self.node()] if fused else OPERATOR.decompose(self.node(), 19)
      for node in made:
        for names in (node.input, node.output):
          names[:] = [f"{name}{step}" for name in names]
        node.name = f"{node.name}/{step}"
      nodes += made
      inputs.append((f"x{step}", timing.DTYPES[self.dtype], self.shape))
      outputs.append((f"y{step}", timing.DTYPES[self.dtype], None))
    return timing.model_of(nodes, inputs, outputs, opset=19)

  def of_torch(self, x):
    window = x if self.part is None else x[:, :, self.part : self.part + 1]
    return window.permute(self.perm).contiguous()


CASES = (
  Case("to channels first", (8, 56, 56, 96), (0, 3, 1, 2)),
  Case("to channels first", (32, 14, 14, 96), (0, 3, 1, 2)),
  Case("to channels last", (8, 320, 14, 14), (0, 2, 3, 1)),
  Case("heads", (8, 8, 3137, 8), (0, 2, 1, 3)),
  Case("heads", (8, 128, 12, 64), (0, 2, 1, 3)),
  Case("K of Q, K, V", (8, 3136, 3, 2, 96), (2, 0, 3, 1, 4), 1),
  Case("K of Q, K, V", (8, 3137, 3, 8, 8), (2, 0, 3, 1, 4), 1),
  Case("K transposed", (8, 8, 3137, 8), (0, 1, 3, 2)),
  Case("talking heads", (8, 8, 196, 196), (0, 2, 3, 1)),
  Case("talking heads, back", (8, 196, 196, 8), (0, 3, 1, 2)),
  Case("windows", (2, 3, 14, 3, 14, 768), (0, 1, 3, 2, 4, 5)),
  Case("unfolded", (8, 192, 3, 14, 3, 14), (0, 1, 2, 4, 3, 5)),
  Case("outlooker", (8, 6, 32, 9, 196), (0, 1, 4, 3, 2)),
  Case("relative places", (32, 16, 16, 16, 16), (0, 3, 1, 4, 2)),
  Case("tokens", (8, 196, 768), (0, 2, 1)),
  Case("tokens", (8, 196, 768), (0, 2, 1), dtype="float32"),
)


def measure(case):
  """One row of the table: microseconds of each contender. Raises SystemExit where a result is wrong."""
  import cupy
  import torch

  numpy = timing.DTYPES[case.dtype]
  arrays = [cupy.random.standard_normal(case.shape, np.float32).astype(numpy) for _ in range(STEPS)]
  cupy.cuda.Device().synchronize()
  contenders, results = {}, {}
  for name, fused in (("ortplugin", True), ("ort", False)):
    contenders[name], results[name] = timing.session_steps(
      lambda count, fused=fused: case.model(count, fused=fused), [{"x": a} for a in arrays], plugin=fused
    )
  tensors = [{"x": torch.from_dlpack(a)} for a in arrays]
  contenders["torch"], _ = timing.torch_steps(case.of_torch, tensors)
  result = results["ortplugin"]
  copies = [{"x": tensors[0]["x"].new_empty(result.size).normal_()} for _ in arrays]  # read and written
  contenders["copy"], _ = timing.torch_steps(lambda x: x.clone(), copies)
  times = timing.microseconds(contenders, STEPS, ROUNDS)
  wanted = OPERATOR.reference(case.node(), [cupy.asnumpy(arrays[0])])[0]
  for name, found in results.items():
    if not np.array_equal(cupy.asnumpy(cupy.asarray(found)), wanted):
      raise SystemExit(f"{case.name} {case.shape}: {name} is wrong")
  row = {"case": case.name, "dtype": case.dtype, "shape": list(case.shape), "perm": list(case.perm),
         "bytes": 2 * wanted.nbytes, "microseconds": times}  # fmt: skip
  del contenders, results, arrays, tensors, copies
  timing.free_memory()
  return row


def table(record):
  """The record as a Markdown table."""
  lines = timing.table(
      record, COLUMNS, "| transpose | shape | perm", "|---|---|---|",
      lambda row: f"| {row['case']}, {row['dtype']} | {', '.join(map(str, row['shape']))} "
                  f"| {' '.join(map(str, row['perm']))}",
  )  # fmt: skip
  lines += ["", timing.footer("transpose", "Microseconds of a step, medians", record["environment"])]
  return "\n".join(lines)


def measure_all(args, record):
  for case in CASES:
    record["rows"].append(measure(case))
    yield f"{case.name}: {timing.shown(record['rows'][-1])}"


if __name__ == "__main__":
  timing.run("transpose", __doc__, measure_all, table)
