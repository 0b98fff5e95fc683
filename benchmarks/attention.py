"""FusedAttention beside the backends of PyTorch's scaled_dot_product_attention, float16.

    Y = softmax(Q K^T / sqrt(head size) + mask) V        for each head; Q is [batch, queries, heads * head size]

Two tables, all columns of a row measured in one run, each under a CUDA graph that repeats the step on tensors of its
own:

    networks   the attention of transformers, with the masks that they have
    sweep      lengths by head sizes, causal and not, of about as many tokens each

Columns are microseconds of FusedAttention inside ONNX Runtime and of PyTorch's flash, cuDNN and memory-efficient
backends, of which one that does not take the case has none. Tensors lie as linear layers write them, heads inside rows,
on both sides. FLOPs are those of the two products, of pairs that causal attention sees only. Every output is compared
with float32. Rows of the results replace those of their case.

    python benchmarks/attention.py                                         # both tables
    python benchmarks/attention.py --only networks
    python benchmarks/attention.py --only sweep --sequences 197 1024 --head-sizes 64 128
"""

import warnings
from dataclasses import dataclass

import numpy as np
from onnx import helper

import timing

ROUNDS = 9
BYTES = 2**30  # of all steps' tensors, about
TOLERANCE = 4e-3  # of the largest magnitude: roundings of p and of the output to float16
TOKENS, WIDTH = 16384, 768  # of the sweep
SEQUENCES = (49, 64, 128, 197, 256, 512, 1024, 1500, 2048, 4096, 16384)
HEAD_SIZES = (32, 64, 80, 128)
BACKENDS = {"flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION", "efficient": "EFFICIENT_ATTENTION"}
COLUMNS = {"flash": "flash", "cudnn": "cuDNN", "efficient": "efficient", "ortplugin": "**ortplugin**"}


@dataclass(frozen=True)
class Case:
  """An attention. `mask`: "" for none, "bias" for float16 [1, heads, queries, keys], "padding" for bool
  [batch, 1, 1, keys] that lets all keys be seen."""

  table: str
  name: str
  batch: int
  queries: int
  heads: int
  head_size: int
  keys: int = 0  # 0: as many as queries
  kv_heads: int = 0  # 0: as many as heads
  causal: bool = False
  mask: str = ""

  @property
  def lengths(self):
    return self.queries, self.keys or self.queries

  @property
  def groups(self):
    return self.kv_heads or self.heads

  def __str__(self):
    queries, keys = self.lengths
    sizes = [self.batch, self.heads, queries, *([keys] if keys != queries else []), self.head_size]
    words = [f"{self.groups} kv heads"] * (self.groups != self.heads) + ["causal"] * self.causal
    return ", ".join([self.name, " x ".join(map(str, sizes)), *words, *([self.mask] if self.mask else [])])

  @property
  def flops(self):
    """Multiplications and additions of both products, without the pairs that are not seen."""
    queries, keys = self.lengths
    pairs = sum(min(i + 1, keys) for i in range(queries)) if self.causal else queries * keys
    return 4 * self.batch * self.heads * self.head_size * pairs

  def shapes(self):
    """Of the inputs, as they lie."""
    queries, keys = self.lengths
    shared = (self.batch, keys, self.groups * self.head_size)
    found = {"q": (self.batch, queries, self.heads * self.head_size), "k": shared, "v": shared}
    if self.mask:
      found["m"] = (1, self.heads, queries, keys) if self.mask == "bias" else (self.batch, 1, 1, keys)
    return found

  @property
  def steps(self):
    """How many a long graph has."""
    size = 2 * sum(int(np.prod(shape)) for shape in self.shapes().values())
    return min(25, max(5, BYTES // size))

  def draw(self):
    """Random device arrays of each step."""
    import cupy

    cupy.random.seed(self.queries + self.head_size)

    def tensor(name, shape):
      if name == "m" and self.mask == "padding":
        return cupy.ones(shape, np.bool_)
      return cupy.random.standard_normal(shape, np.float32).astype(np.float16)

    feeds = [{name: tensor(name, shape) for name, shape in self.shapes().items()} for _ in range(self.steps)]
    cupy.cuda.Device().synchronize()
    return feeds

  def model(self, count):
    """A model of `count` steps that share nothing."""
    shapes = self.shapes()
    rows = "b s (h d)"
    attributes = {
      "qkv_dtype": "float16",
      "heads": self.heads,
      "kv_heads": self.groups,
      "scale": self.head_size**-0.5,
      "causal": "upper_left" if self.causal else "none",
      **{f"{name}_layout": rows for name in "qkvy"},
    }
    if self.mask:
      attributes["mask_dtype"] = "bool" if self.mask == "padding" else "float16"
    dtypes = {"m": np.bool_} if self.mask == "padding" else {}
    nodes, inputs, outputs = [], [], []
    for step in range(count):
      names = [f"{name}{step}" for name in shapes]
      nodes.append(
        helper.make_node("FusedAttention", names, [f"y{step}"], f"attention{step}", domain="ortplugin", **attributes)
      )
      inputs += [(f"{name}{step}", dtypes.get(name, np.float16), shape) for name, shape in shapes.items()]
      outputs.append((f"y{step}", np.float16, shapes["q"]))
    return timing.model_of(nodes, inputs, outputs)

  def by_head(self, tensors):
    """Views of Q, K and V as [batch, heads, rows, head size]."""
    return {
      name: each.unflatten(-1, (-1, self.head_size)).transpose(1, 2) if name in "qkv" else each
      for name, each in tensors.items()
    }

  def torch_step(self, backend):
    """PyTorch's attention on one backend."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def step(**tensors):
      views = self.by_head(tensors)
      with sdpa_kernel([getattr(SDPBackend, BACKENDS[backend])]):
        return torch.nn.functional.scaled_dot_product_attention(
            views["q"], views["k"], views["v"], attn_mask=views.get("m"), is_causal=self.causal,
            enable_gqa=self.groups != self.heads,
        ).transpose(1, 2)  # fmt: skip

    return step

  def expected(self, tensors):
    """The output in float32, [batch, queries, heads, head size], a head at a time."""
    import torch

    views = self.by_head(tensors)
    queries, keys = self.lengths
    hidden = torch.ones(queries, keys, dtype=torch.bool, device="cuda").triu(1) if self.causal else None
    heads = []
    for head in range(self.heads):
      of = head * self.groups // self.heads
      k, v = views["k"][:, of].float(), views["v"][:, of].float()
      scores = views["q"][:, head].float() @ k.transpose(1, 2) * self.head_size**-0.5
      if self.mask == "bias":
        scores += views["m"][0, head].float()
      if hidden is not None:
        scores.masked_fill_(hidden, float("-inf"))
      heads.append(scores.softmax(-1) @ v)
    return torch.stack(heads, 2)


def network_cases():
  """The attention of transformers at the sizes of benchmarks/models.py."""
  for batch in (1, 8):
    yield Case("networks", "BERT-base", batch, 128, 12, 64, mask="padding")
  yield Case("networks", "BERT-base", 8, 128, 12, 64)
  yield Case("networks", "ViT-B/16", 8, 197, 12, 64)
  yield Case("networks", "Whisper-tiny", 1, 1500, 6, 64)
  yield Case("networks", "T5-small", 8, 128, 8, 64, mask="bias")
  for windows, heads in ((512, 3), (128, 6), (32, 12), (8, 24)):
    yield Case("networks", "Swin-T", windows, 49, heads, 32, mask="bias")
  for windows, heads in ((512, 2), (128, 4), (32, 8), (8, 16)):
    yield Case("networks", "MaxViT-T", windows, 49, heads, 32, mask="bias")
  yield Case("networks", "GPT-2", 1, 256, 12, 64, causal=True)
  yield Case("networks", "GPT-2, a step", 1, 1, 12, 64, keys=1025)
  yield Case("networks", "Llama form", 1, 256, 16, 64, kv_heads=4, causal=True)
  yield Case("networks", "Llama form, a step", 1, 1, 16, 64, keys=1025, kv_heads=4)


def sweep_cases():
  """About TOKENS tokens of about WIDTH numbers."""
  for head_size in HEAD_SIZES:
    for causal in (False, True):
      for length in SEQUENCES:
        batch, heads = max(1, round(TOKENS / length)), round(WIDTH / head_size)
        yield Case("sweep", f"{length} tokens", batch, length, heads, head_size, causal=causal)


CASES = (*network_cases(), *sweep_cases())


def measure(case):
  """One row: microseconds of each contender, and what failed."""
  import torch

  feeds = case.draw()
  tensors = [{name: torch.from_dlpack(array) for name, array in feed.items()} for feed in feeds]
  contenders = {}
  results, failures = {}, {}
  makers = {
    backend: lambda backend=backend: timing.torch_steps(case.torch_step(backend), tensors) for backend in BACKENDS
  }
  makers["ortplugin"] = lambda: timing.session_steps(case.model, feeds, plugin=True)
  for name, make in makers.items():
    try:
      with warnings.catch_warnings():  # a backend that can't says why in warnings
        warnings.simplefilter("ignore")
        contenders[name], results[name] = make()
    except Exception as error:
      said = f"{type(error).__name__}: {error}"[:200]
      print(f"  {case}: {name}: {said}", flush=True)
      if name == "ortplugin":  # the others just don't take every case
        failures[name] = said
  times = timing.microseconds(contenders, case.steps, ROUNDS)
  expected = case.expected(tensors[0])
  row = {"case": str(case), "table": case.table, "microseconds": times}
  for name, result in results.items():
    found = torch.as_tensor(result, device="cuda").reshape(expected.shape).float()
    error = float((found - expected).abs().max() / expected.abs().max())
    if not error < TOLERANCE:
      failures[name] = f"off by {error:.1e}"
      del times[name]
  return {**row, "failures": failures} if failures else row


def speed(row):
  """Ours over the fastest of PyTorch's; None where one was not measured."""
  times = row["microseconds"]
  best = min((times[each] for each in BACKENDS if each in times), default=None)
  return best / times["ortplugin"] if best and "ortplugin" in times else None


def table(record):
  """Both tables of the record, in Markdown; of long ones the ends."""
  lines = []
  flops = {str(case): case.flops for case in CASES}
  for name in dict.fromkeys(case.table for case in CASES):
    rows = [row for row in record["rows"] if row["table"] == name]
    if not rows:
      continue
    rows, line = timing.ends(rows, speed)
    lines += [line, ""] if line else []
    lines += [
      "| attention | " + " | ".join(COLUMNS.values()) + " | TFLOP/s | times the fastest of PyTorch's |",
      "|---|" + "---:|" * (len(COLUMNS) + 2),
    ]
    for row in rows:
      times = row["microseconds"]
      cells = [f"{times[each]:.1f}" if each in times else "" for each in COLUMNS]
      cells.append(f"{flops[row['case']] / times['ortplugin'] * 1e-6:.1f}" if "ortplugin" in times else "")
      cells.append(f"{speed(row):.2f}" if speed(row) else "")
      lines.append(f"| {row['case']} | " + " | ".join(cells) + " |")
    lines.append("")
  note = timing.older(record["rows"], [row["case"] for row in record["rows"]])
  return timing.page(lines[:-1], "attention", record["environment"], note, "Microseconds of one, medians")


def measure_all(args, record):
  order = [str(case) for case in CASES]
  rows = []
  for case in CASES:
    if case.table not in args.only:
      continue
    if case.table == "sweep" and (case.queries not in args.sequences or case.head_size not in args.head_sizes):
      continue
    rows.append(measure(case))
    timing.free_memory()
    known = timing.merged(rows, args.out / "attention.json.xz", record["environment"], "case")
    record["rows"] = sorted(known, key=lambda row: order.index(row["case"]))
    yield f"{case}: {timing.shown(rows[-1])} {rows[-1].get('failures', '')}"


if __name__ == "__main__":
  options = {
    "--only": {"nargs": "+", "default": ["networks", "sweep"], "choices": ["networks", "sweep"], "help": "tables"},
    "--sequences": {"type": int, "nargs": "+", "default": SEQUENCES, "help": "lengths of the sweep"},
    "--head-sizes": {"type": int, "nargs": "+", "default": HEAD_SIZES, "help": "head sizes of the sweep"},
  }
  timing.run("attention", __doc__, measure_all, table, options)
