"""ConvTranspose: the input gradients of ResNet-50's convolutions, alone and with bias and Relu.

The layers of TVM's PR 10110, float16 with float32 sums, channels last, batch 8 and 256: a transposed convolution from
the convolution's output back to its input, stride 2 included. Ours is what `optimize-model` makes of ONNX's
ConvTranspose (with bias and Relu), for data that has its channels last: one node of ours. Columns, measured in one run:

    torch, torch gradient   PyTorch's transposed convolution and its input gradient (channels last, cuDNN's search on)
    bare, bare tuned        ours alone, as it is optimized and as `--tune` would choose
    torch fused             PyTorch's transposed convolution with bias, then Relu
    fused, fused tuned      ours with bias and Relu
    tuned / torch           bare tuned over torch in the same round, median and quartiles; below 1 ours is faster

Tuned: of what `--tune` times, the first --tuned algorithms (a third of them with bias and Relu) are timed one after
another, and the best of them is a contender of the row beside the default; where it is no faster, the default stands
for it. Some rows have one kernel of cuDNN's on both sides, and in one process either is ahead by some 1%, in the next
one the other, which seems to depend on where the tensors lie. So for the last column, ours alone and tuned over
PyTorch's transposed convolution, all tensors of these two are allocated anew, PLACES times: median and quartiles of the
ratios in all rounds. Every step has tensors of its own. The outputs of the first place are compared with PyTorch's in
float32 without TF32.

    python benchmarks/conv_transpose.py --layers 5 8    some; their rows replace earlier ones
"""

import itertools
import math
import statistics
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper

import timing

ROUNDS = 15
PLACES = 4  # where the tensors of the two that are compared round by round lie
REPLAYS = 5  # of each of the algorithms that are tried
TOLERANCE = 4e-3  # of errors, as a share of the greatest value
# Channels and size of the gradient, channels of what it comes from, kernel, stride.
LAYERS = (
    (64, 56, 64, 1, 1), (64, 56, 64, 3, 1), (64, 56, 256, 1, 1), (256, 56, 512, 1, 2), (256, 56, 128, 1, 1),
    (128, 56, 128, 3, 2), (128, 28, 128, 3, 1), (512, 28, 256, 1, 1), (256, 28, 256, 3, 2), (256, 14, 256, 3, 1),
    (1024, 14, 512, 1, 1), (512, 14, 512, 3, 2), (512, 7, 512, 3, 1),
)  # fmt: skip


@dataclass(frozen=True)
class Case:
  """One layer. `channels`, `size`: of the result."""

  batch: int
  channels: int
  size: int
  given: int
  kernel: int
  stride: int

  @property
  def name(self):
    stride = f" / {self.stride}" if self.stride > 1 else ""
    return f"{self.given} to {self.channels}x{self.size}x{self.size}, {self.kernel}x{self.kernel}{stride}"

  @property
  def pad(self):
    return self.kernel // 2

  @property
  def small(self):
    return (self.size + 2 * self.pad - self.kernel) // self.stride + 1

  @property
  def steps(self):
    """So many that caches hold no step's tensors until the next, and memory is enough."""
    return 9 if self.batch < 64 else 5

  def weights(self):
    """Host arrays w and b of the first step, as ONNX has them."""
    rng = np.random.default_rng(self.channels + self.size)
    scale = 1 / math.sqrt(self.given * self.kernel**2 / self.stride**2)
    w = rng.standard_normal((self.given, self.channels, self.kernel, self.kernel), np.float32) * scale
    return {"w": w.astype(np.float16), "b": rng.standard_normal(self.channels, np.float32).astype(np.float16)}

  def feeds(self):
    """Device arrays x of each step."""
    import cupy

    feeds = []
    for _ in range(self.steps):
      x = cupy.random.standard_normal((self.batch, self.small, self.small, self.given), np.float32)
      feeds.append({"x": x.astype(np.float16)})
    cupy.cuda.Device().synchronize()
    return feeds

  def tensors(self, feeds):
    """PyTorch's x (those of the feeds), w and b of each step, channels last."""
    import torch

    weights = self.weights()
    w, tensors = torch.from_numpy(weights["w"]).cuda(), []
    for step, feed in enumerate(feeds):
      x = torch.from_dlpack(feed["x"]).permute(0, 3, 1, 2)
      moved = torch.roll(w, step).contiguous(memory_format=torch.channels_last)
      tensors.append({"x": x, "w": moved, "b": torch.from_numpy(weights["b"]).cuda()})
    return tensors

  def alone(self, x, w, b):
    """PyTorch's transposed convolution; b is not added."""
    from torch.nn import functional

    return functional.conv_transpose2d(x, w, None, self.stride, self.pad, self.stride - 1)

  def followed(self, x, w, b):
    """Relu of PyTorch's transposed convolution with bias."""
    from torch.nn import functional

    return functional.relu(functional.conv_transpose2d(x, w, b, self.stride, self.pad, self.stride - 1))

  def value(self, name, size, channels):
    return name, np.float16, (self.batch, size, size, channels)

  def optimized(self, weights, *, fused):
    """What the optimizer makes of the layer: one node, which reads x and makes y, and its constants."""
    import ortplugin

    operands = ["w", "b"] if fused else ["w"]
    window = {"pads": [self.pad] * 4, "strides": [self.stride] * 2, "output_padding": [self.stride - 1] * 2}
    nodes = [
      helper.make_node("Transpose", ["x"], ["first"], perm=[0, 3, 1, 2]),
      helper.make_node("ConvTranspose", ["first", *operands], ["c"], "up", **window),
      *([helper.make_node("Relu", ["c"], ["r"])] if fused else []),
      helper.make_node("Transpose", ["r" if fused else "c"], ["y"], perm=[0, 2, 3, 1]),
    ]
    given, made = self.value("x", self.small, self.given), self.value("y", self.size, self.channels)
    model = timing.model_of(nodes, [given], [made], {name: weights[name] for name in operands})
    result, _ = ortplugin.optimize(onnx.load_from_string(model))
    (node,) = result.graph.node
    return node, {each.name: numpy_helper.to_array(each) for each in result.graph.initializer}

  def steps_model(self, count, node, constants, algorithm):
    """A model of `count` steps that share nothing. Constants of the later ones are the first's, moved along."""
    nodes, inputs, outputs, initializers = [], [], [], {}
    for step in range(count):
      inputs.append(self.value(f"x{step}", self.small, self.given))
      outputs.append(self.value(f"y{step}", self.size, self.channels))
      copy = onnx.NodeProto()
      copy.CopyFrom(node)
      copy.name = f"{node.name}{step}"
      copy.input[:] = [f"{name}{step}" for name in node.input]
      copy.output[:] = [f"y{step}"]
      if algorithm != "auto":
        copy.attribute.append(helper.make_attribute("algorithm", algorithm))
      nodes.append(copy)
      for name, array in constants.items():
        initializers[f"{name}{step}"] = np.roll(array, step)
    return timing.model_of(nodes, inputs, outputs, initializers)


def variants(case, node, constants):
  """The algorithms that --tune would time for the node, the first of each kind before the second ones."""
  kinds = {}
  for algorithm in timing.algorithms(case.steps_model(1, node, constants, "auto")):
    kinds.setdefault(algorithm.partition(":")[0], []).append(algorithm)
  return [each for rank in itertools.zip_longest(*kinds.values()) for each in rank if each is not None]


def ratios(case, algorithm, place):
  """Our time over PyTorch's in each round, alone, with all tensors in other places than before."""
  import cupy
  import torch

  gap = place * 99_000_000  # of which no tensor's size is a multiple
  kept = cupy.empty(gap, np.uint8), torch.empty(gap, dtype=torch.uint8, device="cuda")
  feeds = case.feeds()
  node, constants = case.optimized(case.weights(), fused=False)

  def model(count):
    return case.steps_model(count, node, constants, algorithm)

  contenders = {
    "ours": timing.session_steps(model, feeds, plugin=True)[0],
    "torch": timing.torch_steps(case.alone, case.tensors(feeds))[0],
  }
  rounds = timing.by_round(contenders, case.steps, ROUNDS)
  del kept
  return [ours / theirs for ours, theirs in zip(rounds["ours"], rounds["torch"], strict=True)]


def measure(case, tuned):
  """One row. `tuned`: how many algorithms are tried."""
  row = measure_contenders(case, tuned)
  timing.free_memory()
  if tuned:
    compared = []
    for place in range(PLACES):
      compared += ratios(case, row["algorithms"]["bare"], place)
      timing.free_memory()
    row["quartiles"] = statistics.quantiles(compared, n=4, method="inclusive")
  return row


def measure_contenders(case, tuned):
  """One row, microseconds of each contender in one place. `tuned`: how many algorithms are tried."""
  import torch

  torch.backends.cudnn.benchmark = True
  torch.backends.cudnn.allow_tf32 = False
  feeds, weights = case.feeds(), case.weights()
  contenders, results, algorithms = {}, {}, {}
  tensors = case.tensors(feeds)
  shape = (case.batch, case.channels, case.size, case.size)
  blank = torch.empty(shape, dtype=torch.float16, device="cuda", memory_format=torch.channels_last)
  first = {name: tensor.float() for name, tensor in tensors[0].items()}
  expected = {"bare": case.alone(**first)}
  expected["fused"] = torch.relu(expected["bare"] + first["b"][:, None, None])

  def error_of(name, result):
    """The greatest error, as a share of the greatest value."""
    found = torch.from_dlpack(result)
    found = (found if name.startswith("torch") else found.permute(0, 3, 1, 2)).float()
    wanted = expected["fused" if "fused" in name else "bare"]
    assert found.shape == wanted.shape
    return float((found - wanted).abs().max() / wanted.abs().max())

  for name in ("bare", "fused"):
    node, constants = case.optimized(weights, fused=name == "fused")

    def model(count, algorithm, node=node, constants=constants):
      return case.steps_model(count, node, constants, algorithm)

    took = {}
    for algorithm in variants(case, node, constants)[: tuned if name == "bare" else tuned // 3]:
      replay, result = timing.session_replay(model(case.steps, algorithm), feeds, plugin=True)
      took[algorithm] = statistics.median(replay() for _ in range(REPLAYS))
      if not (error := error_of(name, result)) < TOLERANCE:  # as --tune, which takes no such one
        print(f"  {case.name}, batch {case.batch}: {name} {algorithm} is off by {error:.1e}", flush=True)
        del took[algorithm]
    algorithms[name] = min(took, key=lambda each: took[each], default="auto")
    for column, algorithm in ((name, "auto"), (f"{name} tuned", algorithms[name])):
      if column == name or took:
        contenders[column], results[column] = timing.session_steps(
          lambda count, algorithm=algorithm, model=model: model(count, algorithm), feeds, plugin=True
        )

  def gradient(x, w, b):
    two = [case.stride] * 2, [case.pad] * 2, [1, 1]
    return torch.ops.aten.convolution_backward(x, blank, w, None, *two, False, [0, 0], 1, [True, False, False])[0]

  for name, step_of in (("torch", case.alone), ("torch gradient", gradient), ("torch fused", case.followed)):
    contenders[name], results[name] = timing.torch_steps(step_of, tensors)
  times = timing.microseconds(contenders, case.steps, ROUNDS)
  wrong = {name: error for name in results if not (error := error_of(name, results[name])) < TOLERANCE}
  for name in algorithms if tuned else ():
    if times.get(f"{name} tuned", math.inf) >= times[name]:
      times[f"{name} tuned"], algorithms[name] = times[name], "auto"
  row = {"case": case.name, "batch": case.batch, "microseconds": times, "algorithms": algorithms}
  return {**row, "wrong": wrong} if wrong else row


SHOWN = 6  # rows of many
COLUMNS = {
  "torch": "torch, transposed",
  "torch gradient": "torch, input gradient",
  "bare": "**ours**",
  "bare tuned": "**ours, tuned**",
  "torch fused": "torch, bias, Relu",
  "fused": "**ours, bias, Relu**",
  "fused tuned": "**ours, tuned**",
}


def table(record):
  """The rows of the record, in Markdown: those in which ours gain least."""
  columns = {key: COLUMNS[key] for key in COLUMNS if all(key in row["microseconds"] for row in record["rows"])}
  compares = all("quartiles" in row for row in record["rows"])
  titles = [*columns.values(), *(["tuned / torch"] if compares else [])]
  lines = ["| batch | transposed convolution | " + " | ".join(titles) + " |", "|---:|---|" + "---:|" * len(titles)]
  rows = record["rows"]
  if compares:
    least = sorted(rows, key=lambda row: row["quartiles"][1])[-SHOWN:]
    rows = [row for row in rows if row in least]
  for row in rows:
    cells = [f"{row['microseconds'][key]:.1f}" for key in columns]
    if compares:
      low, middle, high = row["quartiles"]
      cells.append(f"{middle:.3f} ({low:.3f} to {high:.3f})")
    lines.append(f"| {row['batch']} | {row['case']} | {' | '.join(cells)} |")

  def mean(ours, theirs):
    ratios = [math.log(row["microseconds"][theirs] / row["microseconds"][ours]) for row in record["rows"]]
    return math.exp(sum(ratios) / len(ratios))

  def compared(ours, theirs):
    tuned = f" ({mean(f'{ours} tuned', theirs):.2f} tuned)" if f"{ours} tuned" in columns else ""
    return f"{mean(ours, theirs):.2f}{tuned}"

  summary = f"Geometric means: {compared('bare', 'torch')} times PyTorch's speed alone, "
  summary += f"{compared('fused', 'torch fused')} times with bias and Relu"
  if compares:
    quartiles = [row["quartiles"] for row in record["rows"]]
    faster, slower = sum(high < 1 for _, _, high in quartiles), sum(low > 1 for low, _, _ in quartiles)
    same = len(quartiles) - faster - slower
    summary += f"; alone and tuned {faster} of {len(quartiles)} are faster than PyTorch's in three of four rounds, "
    summary += f"{slower} slower, {same} the same within what rounds differ"
  note = timing.older(record["rows"], [f"{row['case']}, batch {row['batch']}" for row in record["rows"]])
  unit = f"{summary}. Microseconds of one, medians"
  return timing.page(lines, "conv_transpose", record["environment"], note, unit)


def measure_all(args, record):
  cases = [Case(batch, *LAYERS[layer]) for batch in args.batch for layer in args.layers]
  if args.tuned:
    # cuDNN compiles what it lists, and keeps it for the process: all cores at once here, one by one below.
    with ThreadPoolExecutor() as pool:
      list(
        pool.map(
          lambda each: [variants(each, *each.optimized(each.weights(), fused=fused)) for fused in (False, True)], cases
        )
      )
  rows = []
  order = {Case(1, *layer).name: number for number, layer in enumerate(LAYERS)}
  for case in cases:
    rows.append(row := measure(case, args.tuned))
    known = timing.merged(rows, args.out / "conv_transpose.json.xz", record["environment"], "batch", "case")
    record["rows"] = sorted(known, key=lambda row: (row["batch"], order.get(row["case"], len(order))))
    yield f"{case.batch}: {case.name}: {timing.shown(row)} {row['algorithms']} {row.get('wrong', '')}"
  if wrong := [f"{row['case']}, batch {row['batch']}: {row['wrong']}" for row in rows if "wrong" in row]:
    raise SystemExit("wrong results, greatest errors as shares of the greatest value:\n" + "\n".join(wrong))


if __name__ == "__main__":
  several = {"nargs": "+", "type": int}
  options = {
    "--batch": {**several, "default": [8, 256], "help": "batch sizes"},
    "--layers": {**several, "default": list(range(len(LAYERS))), "help": "numbers of layers"},
    "--tuned": {
      "type": int,
      "default": 26,
      "help": "algorithms to try for each layer alone, a third with bias and Relu",
    },
  }
  timing.run("conv_transpose", __doc__, measure_all, table, options)
