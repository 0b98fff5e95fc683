"""FusedMatMul beside cuBLASLt as PyTorch calls it, float16, or float32 with TF32: a linear layer and what follows it.

    y = program(x W)        x is [M, K], W a constant that lies as [N, K], as passes leave it; sums in float32

Two tables, all columns of a row measured in one run, each under a CUDA graph that repeats the step on tensors of its
own, weights too:

    networks   the products of transformers, with what follows each of them
    sweep      M from 1 to 16384 by the weights of those networks, with --epilogues (a bias, if left out)

Columns are microseconds of FusedMatMul inside ONNX Runtime, alone and with all of the program, and with --tuned the
fastest of the algorithms that --tune would try; of PyTorch's F.linear without a bias, with all that follows as its own
operators, and, where cuBLASLt has that in its epilogue, by one call. Every output is compared with float64. Rows
of the results replace earlier ones of their case.

    python benchmarks/matmul.py                                                 # both tables
    python benchmarks/matmul.py --only networks --tuned 12
    python benchmarks/matmul.py --dtype float --tuned 1                         # our engine, whatever auto takes
    python benchmarks/matmul.py --only sweep --rows 1 1024 --weights 3072x768 --epilogues none "bias, Gelu"
"""

import re
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from onnx import helper

import timing

ROUNDS = 9
BYTES = 2**30  # of all steps' tensors, about
WEIGHT_BYTES = 2**29  # of those, what may be weights, which the model holds
TOLERANCE = 4e-3  # of the largest magnitude: the output's rounding to float16, or the factors' to TF32
# What follows the product c: the program, and the operands that it takes.
EPILOGUES = {
  "none": ("(float16 c) => (float16 c) {}", ""),
  "bias": ("(float16 c, float16 b) => (float16 y) { y = Add(c, b) }", "b"),
  "bias, Gelu": ("(float16 c, float16 b) => (float16 y) { v = Add(c, b) y = Gelu(v) }", "b"),
  "bias, residual": ("(float16 c, float16 b, float16 z) => (float16 y) { v = Add(c, b) y = Add(v, z) }", "bz"),
  "residual": ("(float16 c, float16 z) => (float16 y) { y = Add(c, z) }", "z"),
}
ROWS = (1, 4, 16, 64, 256, 1024, 4096, 16384)
WEIGHTS = ("768x768", "2304x768", "3072x768", "768x3072", "5632x1024", "512x512", "384x96")
COLUMNS = {
  "torch bare": "torch, alone",
  "torch": "torch, all",
  "lt": "cuBLASLt, all in one",
  "bare": "ours, alone",
  "ortplugin": "**ours, all**",
  "tuned": "**ours, tuned**",
}


@dataclass(frozen=True)
class Case:
  """A product [M, K] by [K, N] and what follows it."""

  table: str
  name: str
  m: int
  n: int
  k: int
  epilogue: str
  dtype: str = "float16"

  def __str__(self):
    dtype = "" if self.dtype == "float16" else f"{self.dtype}, "
    return f"{self.name}{', ' if self.name else ''}{self.m} x {self.k} x {self.n}, {dtype}{self.epilogue}"

  @property
  def numpy(self):
    return np.dtype(np.float16 if self.dtype == "float16" else np.float32)

  @property
  def operands(self):
    return EPILOGUES[self.epilogue][1]

  @property
  def steps(self):
    """How many a long graph has."""
    size = self.numpy.itemsize
    weights, rest = size * self.n * self.k, size * self.m * (self.k + 2 * self.n)
    return min(25, max(4, min(WEIGHT_BYTES // weights, BYTES // (weights + rest))))

  def draw(self):
    """Random device arrays x and z, and host arrays w, [N, K], and b, of each step."""
    import cupy

    cupy.random.seed(self.m + self.n)
    rng = np.random.default_rng(self.n + self.k)
    shapes = {"x": (self.m, self.k), **({"z": (self.m, self.n)} if "z" in self.operands else {})}
    feeds, weights = [], []
    for _ in range(self.steps):
      feeds.append(
        {name: cupy.random.standard_normal(each, np.float32).astype(self.numpy) for name, each in shapes.items()}
      )
      w = rng.standard_normal((self.n, self.k), np.float32) * self.k**-0.5
      b = rng.standard_normal(self.n, np.float32)
      weights.append({"w": w.astype(self.numpy), "b": b.astype(self.numpy)})
    cupy.cuda.Device().synchronize()
    return feeds, weights

  def model(self, count, weights, algorithm="auto"):
    """A model of `count` steps that share nothing."""
    nodes, inputs, outputs, constants = [], [], [], {}
    program = EPILOGUES[self.epilogue][0].replace("float16", self.dtype)
    attributes = {"program": program, "trans_b": 1, "algorithm": algorithm, "allow_tf32": 1}
    for step in range(count):
      constants[f"w{step}"] = weights[step]["w"]
      inputs.append((f"x{step}", self.numpy, (self.m, self.k)))
      outputs.append((f"y{step}", self.numpy, (self.m, self.n)))
      if "b" in self.operands:
        constants[f"b{step}"] = weights[step]["b"]
      if "z" in self.operands:
        inputs.append((f"z{step}", self.numpy, (self.m, self.n)))
      names = [f"x{step}", f"w{step}", *(f"{operand}{step}" for operand in self.operands)]
      nodes.append(
        helper.make_node("FusedMatMul", names, [f"y{step}"], f"matmul{step}", domain="ortplugin", **attributes)
      )
    return timing.model_of(nodes, inputs, outputs, constants)

  def torch_steps(self):
    """What PyTorch does for the case, by column; each takes the tensors x, w, b and, if it is there, z."""
    import torch
    from torch.nn import functional

    def one_by_one(x, w, b, z=None):
      y = functional.linear(x, w, b if "b" in self.operands else None)
      if "Gelu" in self.epilogue:
        y = functional.gelu(y)
      return y if z is None else y + z

    found = {"torch": one_by_one}
    if self.epilogue == "bias, Gelu":  # by tanh, which cuBLASLt computes
      found["lt"] = lambda x, w, b: torch._addmm_activation(b, x, w.T, use_gelu=True)
    elif self.epilogue == "residual":
      found["lt"] = lambda x, w, b, z: torch.addmm(z, x, w.T)
    return found

  def expected(self, x, w, b, z=None):
    """The output in float64."""
    import torch

    y = x.double() @ w.double().T
    if "b" in self.operands:
      y += b
    if "Gelu" in self.epilogue:
      y = torch.nn.functional.gelu(y)
    return y if z is None else y + z


def network_cases():
  """The products of transformers at the sizes of benchmarks/models.py, Q, K and V's as one where a network has it."""

  def block(name, m, width, inner, *, merged, after="bias, Gelu"):
    residual = "bias, residual" if "bias" in after else "residual"
    first = 3 * width if merged else width
    yield Case("networks", name, m, first, width, "bias" if "bias" in after else "none")
    yield Case("networks", name, m, width, width, residual)
    yield Case("networks", name, m, inner, width, after)
    yield Case("networks", name, m, width, inner, residual)

  yield from block("BERT-base", 128, 768, 3072, merged=False)
  yield from block("BERT-base", 1024, 768, 3072, merged=False)
  yield Case("networks", "BERT-base", 1024, 2304, 768, "bias")
  yield from block("ViT-B/16", 8 * 197, 768, 3072, merged=True)
  for stage, tokens in enumerate((25088, 6272, 1568, 392)):
    yield from block(f"Swin-T {stage + 1}", tokens, 96 << stage, 384 << stage, merged=True)
  yield from block("GPT-2", 256, 768, 3072, merged=True)
  yield Case("networks", "GPT-2, head", 256, 50257, 768, "none")
  yield from block("GPT-2, a step", 1, 768, 3072, merged=True)
  yield from block("T5-small", 1024, 512, 2048, merged=True, after="none")
  yield from block("Whisper-tiny", 1500, 384, 1536, merged=False)
  for name, m in (("Llama form", 256), ("Llama form, a step", 1)):
    yield Case("networks", name, m, 1536, 1024, "none")
    yield Case("networks", name, m, 1024, 1024, "residual")
    yield Case("networks", name, m, 5632, 1024, "none")
    yield Case("networks", name, m, 1024, 2816, "residual")
    yield Case("networks", f"{name}, head", m, 32000, 1024, "none")


def sweep_cases(rows, weights, epilogues):
  """Every M by every weight, given as NxK, by every epilogue."""
  for weight in weights:
    n, k = map(int, weight.split("x"))
    for epilogue in epilogues:
      for m in rows:
        yield Case("sweep", "", m, n, k, epilogue)


def measure(case, tuned):
  """One row: microseconds of each contender, and what failed. `tuned`: how many algorithms are tried."""
  import torch

  torch.backends.cuda.matmul.allow_tf32 = case.dtype == "float"
  feeds, weights = case.draw()
  tensors = [
    {
      **{name: torch.from_dlpack(array) for name, array in feed.items()},
      **{name: torch.from_numpy(array).cuda() for name, array in weight.items()},
    }
    for feed, weight in zip(feeds, weights, strict=True)
  ]
  bare = replace(case, epilogue="none")
  only_x = [{"x": feed["x"]} for feed in feeds]
  without_z = [{name: each for name, each in feed.items() if name != "z"} for feed in tensors]
  makers = {
    "torch bare": partial(timing.torch_steps, bare.torch_steps()["torch"], without_z),
    "bare": partial(timing.session_steps, lambda count: bare.model(count, weights), only_x, plugin=True),
  }
  if case.epilogue != "none":
    makers |= {name: partial(timing.torch_steps, step, tensors) for name, step in case.torch_steps().items()}
    makers["ortplugin"] = partial(timing.session_steps, lambda count: case.model(count, weights), feeds, plugin=True)
  given = feeds if case.operands else only_x
  for each in timing.algorithms(case.model(1, weights))[:tuned] if tuned else ():
    model = partial(case.model, weights=weights, algorithm=each)
    makers[f"tuned {each}"] = partial(timing.session_steps, model, given, plugin=True)
  contenders = {}
  results, failures = {}, {}
  for name, make in makers.items():
    try:
      contenders[name], results[name] = make()
    except Exception as error:
      failures[name] = f"{type(error).__name__}: {error}"[:200]
  times = timing.microseconds(contenders, case.steps, ROUNDS)
  for name, result in results.items():
    measured, first = (bare, without_z[0]) if name.endswith("bare") else (case, tensors[0])
    expected = measured.expected(**first)
    error = float((torch.as_tensor(result, device="cuda").float() - expected).abs().max() / expected.abs().max())
    if not error < TOLERANCE:
      failures[name] = f"off by {error:.1e}"
      del times[name]
  row = {"case": str(case), "table": case.table}
  return {**row, **best_of(times), **({"failures": failures} if failures else {})}


def best_of(times):
  """A row's times, with the fastest algorithm instead of all, and that algorithm."""
  named = {name: time for name, time in times.items() if not name.startswith("tuned ")}
  tried = {name.removeprefix("tuned "): time for name, time in times.items() if name not in named}
  if not tried:
    return {"microseconds": named}
  fastest = min(tried, key=lambda name: tried[name])
  return {"microseconds": {**named, "tuned": tried[fastest]}, "algorithm": fastest}


def compared(row):
  """Our time and the fastest of PyTorch's, of the product alone where nothing follows it; None where there is none."""
  times, alone = row["microseconds"], row["case"].endswith(", none")
  found = (("bare" if alone else "ortplugin", "tuned"), ("torch bare",) if alone else ("torch", "lt"))
  return [min((times[each] for each in names if each in times), default=None) for names in found]


def speed(row):
  ours, theirs = compared(row)
  return theirs / ours if ours and theirs else None


def table(record):
  """Both tables of the record, in Markdown; of long ones the ends."""
  lines = []
  for name in ("networks", "sweep"):
    rows = [row for row in record["rows"] if row["table"] == name]
    columns = [each for each in COLUMNS if any(each in row["microseconds"] for row in rows)]
    if not rows:
      continue
    rows, line = timing.ends(rows, speed)
    titles = [*(COLUMNS[each] for each in columns), "TFLOP/s", "times the fastest of PyTorch's"]
    lines += [line, ""] if line else []
    lines += ["| M x K x N, what follows | " + " | ".join(titles) + " |", "|---|" + "---:|" * len(titles)]
    for row in rows:
      times, (ours, _) = row["microseconds"], compared(row)
      cells = [f"{times[each]:.1f}" if each in times else "" for each in columns]
      m, k, n = map(int, re.search(r"(\d+) x (\d+) x (\d+)", row["case"]).groups())
      cells.append(f"{2 * m * n * k / ours * 1e-6:.1f}" if ours else "")
      cells.append(f"{speed(row):.2f}" if speed(row) else "")
      lines.append(f"| {row['case']} | " + " | ".join(cells) + " |")
    lines.append("")
  note = timing.older(record["rows"], [row["case"] for row in record["rows"]])
  return timing.page(lines[:-1], "matmul", record["environment"], note, "Microseconds of one, medians")


def measure_all(args, record):
  cases = [case for case in network_cases() if "networks" in args.only]
  cases += [case for case in sweep_cases(args.rows, args.weights, args.epilogues) if "sweep" in args.only]
  rows = []
  for case in dict.fromkeys(replace(each, dtype=args.dtype) for each in cases):
    rows.append(measure(case, args.tuned))
    timing.free_memory()
    record["rows"] = timing.merged(rows, args.out / "matmul.json.xz", record["environment"], "case")
    yield f"{case}: {timing.shown(rows[-1])} {rows[-1].get('failures', '')}"


if __name__ == "__main__":
  options = {
    "--only": {"nargs": "+", "default": ["networks", "sweep"], "choices": ["networks", "sweep"], "help": "tables"},
    "--rows": {"type": int, "nargs": "+", "default": ROWS, "help": "M of the sweep"},
    "--weights": {"nargs": "+", "default": WEIGHTS, "metavar": "NxK", "help": "N and K of the sweep"},
    "--epilogues": {"nargs": "+", "default": ["bias"], "choices": EPILOGUES, "help": "of the sweep"},
    "--dtype": {"default": "float16", "choices": ["float16", "float"], "help": "of all tensors"},
    "--tuned": {"type": int, "default": 0, "help": "algorithms to try for each product"},
  }
  timing.run("matmul", __doc__, measure_all, table, options)
