"""Original against optimized on the CPU provider: networks with random weights, float32, batch 1.

    python benchmarks/cpu.py --readme

Both run as `ortplugin.session` makes them, in turn, on one thread and on two; milliseconds of the fastest of at least
RUNS runs and SECONDS.
Needs torch, torchvision and transformers.
"""

import io
import time

import onnx
import onnxruntime

import ortplugin
import timing
import zoo_networks

RUNS, SECONDS = 25, 6.0
THREADS = (1, 2)


def networks():
  """By name, how to build each module, and its inputs."""
  import torch
  import torchvision
  import transformers as t

  image = {"pixel_values": torch.randn(1, 3, 224, 224)}
  tokens = torch.randint(0, 1000, (1, 128))
  text = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
  mini = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
  return {
    "ResNet-50": (lambda: t.ResNetForImageClassification(t.ResNetConfig()), image),
    "MobileNet-v2": (lambda: t.MobileNetV2ForImageClassification(t.MobileNetV2Config()), image),
    "MobileNet-v3": (torchvision.models.mobilenet_v3_large, image),
    "ConvNeXt-tiny": (lambda: t.ConvNextForImageClassification(t.ConvNextConfig()), image),
    "RegNet-Y-4GF": (lambda: t.RegNetForImageClassification(t.RegNetConfig()), image),
    "EfficientNet-B0": (
      lambda: t.EfficientNetForImageClassification(
        t.EfficientNetConfig(width_coefficient=1.0, depth_coefficient=1.0, image_size=224, hidden_dim=1280)
      ),
      image,
    ),
    "SegFormer-B0": (lambda: t.SegformerForSemanticSegmentation(t.SegformerConfig()), image),
    "MiniLM, 128 tokens": (lambda: t.BertModel(t.BertConfig(**mini)), text),
    "BERT-base, 128 tokens": (lambda: t.BertModel(t.BertConfig()), text),
  }


def network(name):
  """The module and its inputs."""
  import torch

  build, inputs = networks()[name]
  torch.manual_seed(0)
  module = build().eval()
  with torch.no_grad():  # else a network of so many layers comes to numbers that are no normal ones
    zoo_networks.settle(module, lambda: tuple(inputs.values()))
  return module.eval(), inputs


def exported(name):
  """The network as TorchScript's exporter writes it, and inputs."""
  import torch

  module, inputs = network(name)

  class First(torch.nn.Module):
    """Its first output."""

    def __init__(self):
      super().__init__()
      self.module = module

    def forward(self, *given):
      if not hasattr(module, "config"):
        return self.module(*given)
      return self.module(**dict(zip(inputs, given, strict=True)), return_dict=True)[0]

  file = io.BytesIO()
  torch.onnx.export(First(), tuple(inputs.values()), file, dynamo=False, input_names=list(inputs), opset_version=17)
  return onnx.load_from_string(file.getvalue()), {key: value.numpy() for key, value in inputs.items()}


def row_of(name):
  """What is measured of a network."""
  model, feeds = exported(name)
  optimized, _ = ortplugin.optimize(model)
  row = {"case": name, "before": len(model.graph.node), "after": len(optimized.graph.node)}
  for threads in THREADS:
    options = [onnxruntime.SessionOptions() for _ in range(2)]
    for each in options:
      each.intra_op_num_threads = threads
      # Threads that spin after a run would take a core from the other session.
      each.add_session_config_entry("session.force_spinning_stop", "1")
    original = onnxruntime.InferenceSession(model.SerializeToString(), options[0], ["CPUExecutionProvider"])
    ours = ortplugin.session(optimized.SerializeToString(), ["cpu"], session_options=options[1])
    times = {"original": [], "ours": []}
    found = {}
    start = time.perf_counter()
    while len(times["ours"]) < RUNS or time.perf_counter() - start < SECONDS:
      for key, session in (("original", original), ("ours", ours)):
        begun = time.perf_counter()
        found[key] = session.run(None, feeds)[0]
        times[key].append(time.perf_counter() - begun)
    row["error"] = timing.relative_error(found["ours"], found["original"])
    row |= {f"{key}_{threads}": min(each) * 1e3 for key, each in times.items()}
  return row


def measure(args, record):
  """A row for each network."""
  for name in [each for each in networks() if any(part in each for part in args.networks or [""])]:
    record["rows"].append(row_of(name))
    yield str(record["rows"][-1])


def table(record):
  """One line for each network."""
  lines = [
    "| network | nodes | one thread: original | ours | times | two threads: original | ours | times | error |",
    "|---|---:|" + "---:|" * 7,
  ]
  for row in record["rows"]:
    cells = [row["case"], f"{row['before']} → {row['after']}"]
    for threads in THREADS:
      original, ours = row[f"original_{threads}"], row[f"ours_{threads}"]
      cells += [f"{original:.1f}", f"{ours:.1f}", f"{original / ours:.2f}"]
    lines.append(f"| {' | '.join([*cells, format(row['error'], '.1e')])} |")
  return timing.page(lines, "cpu", record["environment"], unit="Milliseconds")


if __name__ == "__main__":
  options = {"--networks": {"nargs": "*", "help": "parts of names; default: all"}}
  timing.run("cpu", __doc__, measure, table, options, on_gpu=False)
