"""The recurrence of LSTMs: those of Sequencer2D-S on batch 8, and others.

Measures, in one run: FusedLSTM inside ONNX Runtime, ONNX Runtime's LSTM and PyTorch's, both on inputs of one element
for each sequence, so that what they multiply besides the recurrence is next to nothing. Every step has tensors of its
own. Checks the outputs in the same run. Writes results/lstm.json.xz.

    python benchmarks/lstm.py                  measure, write, print
    python benchmarks/lstm.py --from benchmarks/results/lstm.json.xz    no measuring
"""

from dataclasses import dataclass

import numpy as np
from onnx import helper

import timing
from ortplugin.graph.domains import DOMAIN
from ortplugin.ops.lstm import OPERATOR

STEPS = 5  # each on tensors of its own
ROUNDS = 9
COLUMNS = {"ort": "ORT's LSTM", "torch": "torch", "ortplugin": "**ortplugin**"}


@dataclass(frozen=True)
class Case:
  """One bidirectional LSTM."""

  steps: int
  batch: int
  hidden: int
  dtype: str = "float16"

  def arrays(self, rng):
    """x [T, B, 1], W [2, 4H, 1] and R; G is x W in FusedLSTM's order."""
    numpy, h = timing.DTYPES[self.dtype], self.hidden
    x = rng.standard_normal((self.steps, self.batch, 1)).astype(numpy)
    w, r = (rng.uniform(-(h**-0.5), h**-0.5, (2, 4 * h, last)).astype(numpy) for last in (1, h))
    of_unit = w.reshape(2, 4, h).transpose(0, 2, 1).reshape(-1)
    return {"x": x, "W": w, "R": r, "G": x * of_unit}

  def model(self, count, arrays, *, fused):
    """A model of `count` steps that share nothing but weights: ours, or ONNX's."""
    nodes, inputs, outputs = [], [], []
    kind, name = timing.DTYPES[self.dtype], "G" if fused else "x"
    for step in range(count):
      given = ([f"{name}{step}", "R"] if fused else [f"{name}{step}", "W", "R"]), [f"y{step}"]
      more = {"domain": DOMAIN, "dtype": self.dtype} if fused else {}
      nodes.append(
        helper.make_node(
          "FusedLSTM" if fused else "LSTM", *given, f"lstm{step}", hidden_size=self.hidden,
          direction="bidirectional", **more,
        )
      )  # fmt: skip
      inputs.append((f"{name}{step}", kind, arrays[name].shape))
      outputs.append((f"y{step}", kind, None))
    weights = {each: arrays[each] for each in (("R",) if fused else ("W", "R"))}
    return timing.model_of(nodes, inputs, outputs, weights, opset=19)

  def of_torch(self, arrays):
    """PyTorch's module with these weights; its gates are in another order."""
    import torch

    module = torch.nn.LSTM(1, self.hidden, bidirectional=True, bias=False).cuda().to(getattr(torch, self.dtype))
    for d, suffix in enumerate(("", "_reverse")):
      for name, key in (("weight_ih_l0", "W"), ("weight_hh_l0", "R")):
        i, o, f, c = np.split(arrays[key][d], 4)
        getattr(module, name + suffix).data.copy_(torch.from_numpy(np.concatenate([i, f, c, o])))
    module.flatten_parameters()
    return lambda x: module(x)[0]


CASES = (
  Case(32, 256, 48),
  Case(16, 128, 96),
  Case(14, 112, 96),
  Case(100, 8, 128),
  Case(33, 4096, 64),
)


def measure(case):
  """One row of the table: microseconds of each contender. Raises SystemExit where a result is wrong."""
  import cupy
  import torch

  arrays = case.arrays(np.random.default_rng(0))
  feeds = {name: [cupy.asarray(arrays[name]) for _ in range(STEPS)] for name in ("G", "x")}
  contenders, results = {}, {}
  for name, fused, given in (("ortplugin", True, "G"), ("ort", False, "x")):
    contenders[name], results[name] = timing.session_steps(
      lambda count, fused=fused: case.model(count, arrays, fused=fused), [{given: a} for a in feeds[given]],
      plugin=fused,
    )  # fmt: skip
  with torch.no_grad():
    contenders["torch"], results["torch"] = timing.torch_steps(
      case.of_torch(arrays), [{"x": torch.from_dlpack(a)} for a in feeds["x"]]
    )
  times = timing.microseconds(contenders, STEPS, ROUNDS)
  node = helper.make_node("FusedLSTM", ["G", "R"], ["y"], domain=DOMAIN, hidden_size=case.hidden, dtype=case.dtype,
                          direction="bidirectional")  # fmt: skip
  (wanted,) = OPERATOR.reference(node, [arrays["G"], arrays["R"]])
  for name, found in results.items():
    y = cupy.asnumpy(cupy.asarray(found)).astype(np.float64)
    y = y.transpose(0, 2, 1, 3).reshape(wanted.shape) if y.ndim == 4 else y
    if np.abs(y - wanted).max() > 0.02:
      raise SystemExit(f"{case}: {name} is wrong")
  row = {"steps": case.steps, "batch": case.batch, "hidden": case.hidden, "dtype": case.dtype, "microseconds": times}
  del contenders, results, feeds
  timing.free_memory()
  return row


def table(record):
  """The record as a Markdown table."""
  lines = timing.table(
      record, COLUMNS, "| bidirectional LSTM", "|---",
      lambda row: f"| {row['steps']} steps of {row['batch']} sequences, H {row['hidden']}, {row['dtype']}",
  )  # fmt: skip
  lines += ["", timing.footer("lstm", "Microseconds of all steps, medians", record["environment"])]
  return "\n".join(lines)


def measure_all(args, record):
  for case in CASES:
    record["rows"].append(measure(case))
    yield f"{case}: {timing.shown(record['rows'][-1])}"


if __name__ == "__main__":
  timing.run("lstm", __doc__, measure_all, table)
