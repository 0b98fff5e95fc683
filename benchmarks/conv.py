"""FusedConv: convolutions alone and with what follows them, on cuDNN and on kernels of our own.

Four tables, each of microseconds of one convolution, all columns measured in one run:

    few      float32, channels first, few channels (Flux issue 558): alone, and with bias and Relu
    resnet   every convolution of ResNet-50 at batch 8, float16, channels last: alone, with bias, Relu and residual, and
             with the fastest of the algorithms that --tune would try
    small    the same at batch 1, on cuDNN and as they are done by default
    own      depthwise convolutions and stems, float16, channels last: our kernels against cuDNN

Beside them stand PyTorch's convolution, alone and with the operators after it (channels last where ours are, cuDNN's
search on), and in the first table ONNX Runtime's own operators, all without TF32. Every step has tensors of its own,
weights too, so that caches hold no more than they do in a network. Every output is compared with ONNX Runtime's float32
convolution on the CPU.

    python benchmarks/conv.py --only few      one table
"""

import ctypes
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
from onnx import helper

import timing

STEPS = 9  # each on tensors of its own
ROUNDS = 9
# What follows the convolution c: the program, and the operands that it takes.
EPILOGUES = {
  "": ("(T c) => (T c) {}", ""),
  "bias": ("(T c, T b) => (T y) { y = Add(c, b) }", "b"),
  "bias, Relu": ("(T c, T b) => (T y) { v = Add(c, b) y = Relu(v) }", "b"),
  "bias, residual, Relu": ("(T c, T b, T z) => (T y) { v = Add(c, b) s = Add(v, z) y = Relu(s) }", "bz"),
  "bias, HardSwish": ("(T c, T b) => (T y) { v = Add(c, b) y = HardSwish(v) }", "b"),
  "bias, SiLU": ("(T c, T b) => (T y) { v = Add(c, b) g = Sigmoid(v) y = Mul(v, g) }", "b"),
}


@dataclass(frozen=True)
class Case:
  """A square two-dimensional convolution and what follows it."""

  table: str
  name: str
  dtype: str
  batch: int
  channels: int
  size: int
  filters: int
  kernel: int
  stride: int
  epilogue: str
  group: int = 1
  count: int = 1  # how often it is in the network

  @property
  def pad(self):
    return (self.kernel - 1) // 2

  @property
  def window(self):
    """The attributes of a Conv."""
    kernel, strides = [self.kernel] * 2, [self.stride] * 2
    return {"kernel_shape": kernel, "pads": [self.pad] * 4, "strides": strides, "group": self.group}

  @property
  def out(self):
    return (self.size + 2 * self.pad - self.kernel) // self.stride + 1

  @property
  def channels_last(self):
    return self.dtype == "float16"

  def image(self, channels, size):
    """The shape of an activation, as it lies in memory."""
    if self.channels_last:
      return (self.batch, size, size, channels)
    return (self.batch, channels, size, size)

  def draw(self, steps):
    """Random device arrays x and z, and host arrays w and b, of each step."""
    import cupy

    rng = np.random.default_rng(self.channels + self.size)
    numpy = timing.DTYPES[self.dtype]
    inside = self.channels // self.group
    shape = (self.filters, self.kernel, self.kernel, inside)
    scale = 1 / np.sqrt(inside * self.kernel**2)
    feeds, weights = [], []
    for _ in range(steps):
      images = {"x": self.image(self.channels, self.size)}
      if "z" in EPILOGUES[self.epilogue][1]:
        images["z"] = self.image(self.filters, self.out)
      feeds.append({k: cupy.random.standard_normal(s, np.float32).astype(numpy) for k, s in images.items()})
      w = (rng.standard_normal(shape, np.float32) * scale).astype(numpy)
      if not self.channels_last:
        w = np.ascontiguousarray(w.transpose(0, 3, 1, 2))
      weights.append({"w": w, "b": rng.standard_normal(self.filters, np.float32).astype(numpy)})
    cupy.cuda.Device().synchronize()
    return feeds, weights

  def model(self, count, weights, *, algorithm):
    """A model of `count` steps that share nothing. `algorithm` None: ONNX's own operators."""
    dtype = timing.DTYPES[self.dtype]
    program, operands = EPILOGUES[self.epilogue]
    bias_shape = (-1,) if self.channels_last else (-1, 1, 1)
    nodes, inputs, outputs, constants = [], [], [], {}
    for step in range(count):
      inputs.append((f"x{step}", dtype, self.image(self.channels, self.size)))
      shape = self.image(self.filters, self.out)
      outputs.append((f"y{step}", dtype, shape))
      if "z" in operands:
        inputs.append((f"z{step}", dtype, shape))
      constants[f"w{step}"] = weights[step]["w"]
      bias = weights[step]["b"]
      names = [f"x{step}", f"w{step}", *(f"{operand}{step}" for operand in operands)]
      if algorithm is not None:
        if operands:
          constants[f"b{step}"] = bias.reshape(bias_shape)
        attributes = {
          **self.window,
          "layout": "NHWC" if self.channels_last else "NCHW",
          "algorithm": algorithm,
          "program": program.replace("T ", f"{self.dtype} "),
        }
        nodes.append(
          helper.make_node("FusedConv", names, [f"y{step}"], f"conv{step}", domain="ortplugin", **attributes)
        )
        continue
      if self.epilogue not in ("", "bias, Relu"):
        raise ValueError(self.epilogue)
      result = f"c{step}" if operands else f"y{step}"
      if operands:
        constants[f"b{step}"] = bias
        nodes.append(helper.make_node("Relu", [result], [f"y{step}"]))
      nodes.insert(len(nodes) - bool(operands), helper.make_node("Conv", names, [result], f"conv{step}", **self.window))
    return timing.model_of(nodes, inputs, outputs, constants)

  def expect(self, feed, weights):
    """The result of a step in float32, from the CPU, as it would lie on the device."""
    import cupy
    import onnxruntime

    first = (lambda a: a.transpose(0, 3, 1, 2)) if self.channels_last else (lambda a: a)
    x, w = (np.ascontiguousarray(first(a).astype(np.float32)) for a in (cupy.asnumpy(feed["x"]), weights["w"]))
    node = helper.make_node("Conv", ["x", "w"], ["y"], **self.window)
    model = timing.model_of([node], [("x", np.float32, None), ("w", np.float32, None)], [("y", np.float32, None)])
    y = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x, "w": w})[0]
    if self.channels_last:
      y = np.ascontiguousarray(y.transpose(0, 2, 3, 1))
    bias = weights["b"].astype(np.float32)
    if "bias" in self.epilogue:
      y = y + (bias if self.channels_last else bias[:, None, None])
    if "residual" in self.epilogue:
      y = y + cupy.asnumpy(feed["z"]).astype(np.float32)
    if "Relu" in self.epilogue:
      y = np.maximum(y, 0)
    if "HardSwish" in self.epilogue:
      y = y * np.clip(y / 6 + 0.5, 0, 1)
    if "SiLU" in self.epilogue:
      y = y / (1 + np.exp(-y))
    return y

  def check(self, name, result, expected):
    """Ends the program where a result is off by more than roundings to its dtype explain; TF32 would be."""
    import cupy

    found = cupy.asnumpy(cupy.asarray(result)).astype(np.float32)
    if name.startswith("torch") and self.channels_last:
      found = found.transpose(0, 2, 3, 1)
    error = float(np.abs(found - expected).max() / np.abs(expected).max())
    bound = 4e-3 if self.dtype == "float16" else 2e-5
    if found.shape != expected.shape or not error < bound:
      raise SystemExit(f"{self.name}, {self.epilogue}: {name} is off by {error:.1e}")


def resnet50(table, batch):
  """The 53 convolutions, those that are equal once, with what follows them."""
  found = {}

  def add(channels, size, filters, kernel, stride, epilogue):
    name = f"{channels}x{size}x{size} to {filters}, {kernel}x{kernel}" + (f" / {stride}" if stride > 1 else "")
    case = Case(table, name, "float16", batch, channels, size, filters, kernel, stride, epilogue)
    found[case] = found.get(case, 0) + 1

  add(3, 224, 64, 7, 2, "bias, Relu")
  channels, size = 64, 56
  for width, blocks, first in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
    for block in range(blocks):
      stride = first if block == 0 else 1
      add(channels, size, width, 1, 1, "bias, Relu")
      add(width, size, width, 3, stride, "bias, Relu")
      if block == 0:
        add(channels, size, 4 * width, 1, stride, "bias")
      size //= stride
      add(width, size, 4 * width, 1, 1, "bias, residual, Relu")
      channels = 4 * width
  return [replace(case, count=count) for case, count in found.items()]


def cases():
  """Every row of the tables."""
  made = []
  for batch in (100, 1000):
    for channels, size, filters in ((1, 28, 16), (16, 14, 32), (32, 7, 32)):
      name = f"{channels} to {filters}, {size}x{size}, batch {batch}"
      made.append(Case("few", name, "float", batch, channels, size, filters, 3, 1, "bias, Relu"))
  made += resnet50("resnet", 8) + resnet50("small", 1)
  # MobileNet-v3, EfficientNet-B0 and ConvNeXt-tiny: depthwise; ResNet's and EfficientNet's stems.
  for channels, size, kernel, stride, epilogue in (
    (16, 112, 3, 1, "bias, Relu"),
    (64, 112, 3, 2, "bias, Relu"),
    (96, 112, 3, 2, "bias, SiLU"),
    (144, 56, 5, 2, "bias, SiLU"),
    (240, 28, 3, 2, "bias, HardSwish"),
    (480, 14, 5, 1, "bias, SiLU"),
    (672, 14, 5, 1, "bias, HardSwish"),
    (1152, 7, 3, 1, "bias, SiLU"),
    (96, 56, 7, 1, "bias"),
    (384, 14, 7, 1, "bias"),
  ):
    name = f"depthwise {channels}x{size}x{size}, {kernel}x{kernel}" + (f" / {stride}" if stride > 1 else "")
    made.append(Case("own", name, "float16", 8, channels, size, channels, kernel, stride, epilogue, channels))
  # ShuffleNet-v1, ResNeXt-50 32x4d, RegNetY-8GF and RegNetX-1.6GF; the last is beyond target/'s limit.
  for group, channels, filters, size, kernel, stride in (
    (4, 136, 272, 28, 1, 1),
    (4, 544, 544, 7, 1, 1),
    (32, 128, 128, 56, 3, 1),
    (32, 512, 512, 28, 3, 2),
    (4, 224, 224, 56, 3, 1),
    (16, 896, 896, 28, 3, 2),
    (7, 168, 168, 28, 3, 1),
    (6, 1392, 1392, 14, 3, 1),
  ):
    name = f"{group} groups, {channels}x{size}x{size} to {filters}, {kernel}x{kernel}" + (" / 2" if stride > 1 else "")
    made.append(Case("own", name, "float16", 8, channels, size, filters, kernel, stride, "bias, Relu", group))
  for filters, kernel, epilogue in ((64, 7, "bias, Relu"), (32, 3, "bias, SiLU"), (16, 3, "bias, HardSwish")):
    name = f"stem 3x224x224 to {filters}, {kernel}x{kernel} / 2"
    made.append(Case("own", name, "float16", 8, 3, 224, filters, kernel, 2, epilogue))
  return made


def torch_step(case):
  """What PyTorch does for the case."""
  import torch
  from torch.nn import functional

  torch.backends.cudnn.benchmark = True
  torch.backends.cudnn.allow_tf32 = False

  def step(x, w, b, z=None):
    y = functional.conv2d(x, w, b if case.epilogue else None, case.stride, case.pad, 1, case.group)
    if z is not None:
      y = y + z
    if "Relu" in case.epilogue:
      y = functional.relu(y)
    if "HardSwish" in case.epilogue:
      y = functional.hardswish(y)
    if "SiLU" in case.epilogue:
      y = functional.silu(y)
    return y

  return step


def torch_tensors(case, feeds, weights):
  """The same arrays as PyTorch takes them: channels first by name, in memory as ours."""
  import torch

  made = []
  for feed, weight in zip(feeds, weights, strict=True):
    tensors = {name: torch.from_dlpack(array) for name, array in feed.items()}
    tensors["w"] = torch.from_numpy(weight["w"]).cuda()
    if case.channels_last:
      tensors = {name: tensor.permute(0, 3, 1, 2) for name, tensor in tensors.items()}
    tensors["b"] = torch.from_numpy(weight["b"]).cuda()
    made.append(tensors)
  return made


def measure(case, tuned):
  """One row: microseconds of each contender. `tuned`: how many algorithms are tried for the last column."""
  feeds, weights = case.draw(STEPS)
  bare = replace(case, epilogue="")
  bare_feeds = [{"x": feed["x"]} for feed in feeds]
  contenders, checks = {}, []

  def ours(name, measured, algorithm):
    given = feeds if measured is case else bare_feeds
    contenders[name], result = timing.session_steps(
      lambda count: measured.model(count, weights, algorithm=algorithm),
      given,
      plugin=algorithm is not None,
      provider_options={"use_tf32": "0"},
    )
    checks.append((name, measured, result))

  if case.table == "few":
    for algorithm in ("own", "fused"):
      ours(f"{algorithm} bare", bare, algorithm)
      ours(algorithm, case, algorithm)
    ours("ort", case, None)
  elif case.table == "own":
    ours("own", case, "own")
    ours("fused", case, "fused")
  elif case.table == "small":
    ours("cudnn", case, "fused")
    ours("fused", case, "auto")
  else:
    ours("bare", bare, "auto")
    ours("fused", case, "auto")
  tried = []
  if tuned and case.table == "resnet":
    for algorithm in timing.algorithms(case.model(1, weights, algorithm="auto"))[:tuned]:
      tried.append(f"tuned {algorithm}")
      ours(tried[-1], case, algorithm)
  if torch := timing.pytorch():
    torch.cuda.empty_cache()
    tensors = torch_tensors(case, feeds, weights)
    contenders["torch"], result = timing.torch_steps(torch_step(case), tensors)
    checks.append(("torch", case, result))
    without = [{name: tensor for name, tensor in each.items() if name != "z"} for each in tensors]
    contenders["torch bare"], result = timing.torch_steps(torch_step(bare), without)
    checks.append(("torch bare", bare, result))
  times = timing.microseconds(contenders, STEPS, ROUNDS)
  expected = {measured.epilogue: measured.expect(feeds[0], weights[0]) for measured in (bare, case)}
  for name, measured, result in checks:
    measured.check(name, result, expected[measured.epilogue])
  best = min(["fused", *tried], key=lambda name: times[name])
  row = {
    "case": case.name,
    "epilogue": case.epilogue,
    "count": case.count,
    "microseconds": {name: value for name, value in times.items() if not name.startswith("tuned ")},
  }
  if tried:
    row["microseconds"]["tuned"] = times[best]
    row["algorithm"] = best.removeprefix("tuned ") if best != "fused" else "auto"
    row["tried"] = {name.removeprefix("tuned "): times[name] for name in tried}
  return row


def cudnn_version():
  """ "cuDNN 9.19.0", of the library that the session has loaded."""
  number = ctypes.CDLL("libcudnn.so.9").cudnnGetVersion()
  return f"cuDNN {number // 10000}.{number // 100 % 100}.{number % 100}"


def measure_table(name, tuned, commit):
  """The rows of a table, and where they were measured."""

  rows = []
  for case in cases():
    if case.table != name:
      continue
    rows.append(measure(case, tuned))
    timing.free_memory()
    print(f"{case.name} ({case.epilogue}): {timing.shown(rows[-1])} {rows[-1].get('algorithm', '')}", flush=True)
  return {"environment": {**timing.environment(commit), "cudnn": cudnn_version()}, "rows": rows}


COLUMNS = {
  "few": {
    "ort": "ORT's operators",
    "torch bare": "torch, bare",
    "torch": "torch, bias, Relu",
    "fused bare": "cuDNN, bare",
    "fused": "**cuDNN, fused**",
    "own bare": "our kernel, bare",
    "own": "**our kernel, fused**",
  },
  "resnet": {
    "torch bare": "torch, bare",
    "torch": "torch, all",
    "bare": "bare",
    "fused": "**fused**",
    "tuned": "**fused, tuned**",
  },
  "small": {"torch bare": "torch, bare", "torch": "torch, all", "cudnn": "cuDNN", "fused": "**ours**"},
  "own": {"torch": "torch", "fused": "cuDNN, fused", "own": "**our kernel**"},
}


def kinds(rows):
  """A row for the convolutions of each kernel, stride and program, with the time of all of them."""
  found = {}
  for row in rows:
    kernel = row["case"].rpartition(", ")[2]
    kind = {"case": kernel, "epilogue": row["epilogue"], "count": 0, "microseconds": Counter()}
    kind = found.setdefault((kernel, row["epilogue"]), kind)
    kind["count"] += row["count"]
    kind["microseconds"].update({key: row["count"] * time for key, time in row["microseconds"].items()})
  return list(found.values())


def gain(row):
  """The least of the others' times over that of our kernel with the epilogue; None where it has none."""
  times = row["microseconds"]
  others = [time for name, time in times.items() if not name.startswith("own") and not name.endswith("bare")]
  return min(others) / times["own"] if "own" in times else None


def table(record, name, summed=False):
  """One table of the record, in Markdown. `summed`: of a whole network by kinds."""
  if not (rows := record.get(name, {}).get("rows")):
    return ""
  network = name in ("resnet", "small")
  total = {key: sum(row["count"] * row["microseconds"][key] for row in rows) for key in rows[0]["microseconds"]}
  if network and summed:
    rows = kinds(rows)
  line = ""
  if not network:
    rows, line = timing.ends(rows, gain)
  columns = {key: title for key, title in COLUMNS[name].items() if key in rows[0]["microseconds"]}
  lines = [
    *([line, ""] if line else []),
    "| convolution | after it | times | " + " | ".join(columns.values()) + " |",
    "|---|---|---:|" + "---:|" * len(columns),
  ]
  for row in rows:
    cells = " | ".join(f"{row['microseconds'][key]:.1f}" for key in columns)
    lines.append(f"| {row['case']} | {row['epilogue']} | {row['count']} | {cells} |")
  if network:
    cells = " | ".join(f"{total[key]:.0f}" for key in columns)
    lines.append(f"| all | | {sum(row['count'] for row in rows)} | {cells} |")
  unit = f"Microseconds of {'all of a kind' if network and summed else 'one'}, medians"
  libraries = "cudnn onnxruntime torch"
  return timing.page(lines, "conv", record[name]["environment"], unit=unit, libraries=libraries)


def main():
  tables = list(COLUMNS)
  options = {
    "--only": {"nargs": "+", "default": tables, "choices": tables, "help": "tables"},
    "--tuned": {"type": int, "default": 12, "help": "algorithms to try for each convolution of ResNet-50"},
  }
  args = timing.arguments(__doc__, options)
  path = args.source or args.out / "conv.json.xz"
  record = timing.read(path) if path.exists() else {}
  for name in () if args.source else args.only:
    record[name] = measure_table(name, args.tuned, args.commit)
    timing.write("conv", record, args.out)
  for name in COLUMNS:
    print(table(record, name))
    if args.readme and table(record, name):
      timing.fill_readme(f"conv-{name}", table(record, name, summed=True))


if __name__ == "__main__":
  main()
