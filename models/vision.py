"""Exports torchvision's ViT, Swin, ConvNeXt, EfficientNet and MobileNet-v3; counts what the optimizer fuses in them.

The architectures are the published ones, at 224 x 224 and batch 1; the weights are random, batch norms' statistics too.
Nothing is downloaded. Needs ``pip install torch torchvision onnxscript``.

    python -m models.vision --out folder                        # all of them, through both exporters
    python -m models.vision --out folder --only vit --exporter dynamo
    python -m models.vision --count folder/*.onnx               # operators before and after, and what is left and why
"""

import argparse
import sys
import warnings
from collections import Counter
from pathlib import Path

import onnx

MODELS = {
  "vit": "vit_b_16",
  "swin": "swin_t",
  "convnext": "convnext_tiny",
  "efficientnet": "efficientnet_b0",
  "mobilenet": "mobilenet_v3_large",
}
EXPORTERS = ("dynamo", "torchscript")
SEED = 20240701


def export(name, exporter, path, size=224):
  """Writes the model `name` of MODELS to `path`, as the exporter makes it."""
  import torch
  import torchvision

  torch.manual_seed(SEED)
  model = torchvision.models.get_model(MODELS[name], weights=None).eval()
  with torch.no_grad():
    for module in model.modules():
      if isinstance(module, torch.nn.BatchNorm2d):
        module.running_mean.normal_(0, 0.1)
        module.running_var.uniform_(0.5, 1.5)
      if isinstance(module, torch.nn.Linear) and not module.weight.any():  # ViT's head before training
        module.weight.normal_(0, module.in_features**-0.5)
      if type(module).__name__ == "CNBlock":  # ConvNeXt scales its blocks by 1e-6 before training
        module.layer_scale.normal_(0, 0.3)
  inputs = (torch.randn(1, 3, size, size),)
  names = {"input_names": ["image"], "output_names": ["logits"]}
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    if exporter == "dynamo":
      torch.onnx.export(model, inputs, path, dynamo=True, external_data=False, verbose=False, **names)
    else:
      torch.onnx.export(model, inputs, path, dynamo=False, opset_version=17, **names)


def nodes_of(graph):
  """Every node that is no Constant, bodies included."""
  for node in graph.node:
    if node.op_type != "Constant":
      yield node
    for attribute in node.attribute:
      if attribute.type == onnx.AttributeProto.GRAPH:
        yield from nodes_of(attribute.g)


def pointwise_left(model):
  """The pointwise operators outside fused ones, as 'name (operator)', those with a pointwise neighbour marked."""
  from ortplugin.graph.convert import import_model
  from ortplugin.graph.facts import scopes
  from ortplugin.graph.labels import label
  from ortplugin.graph.pointwise import is_pointwise

  left = []
  for scope in scopes(import_model(model)):
    for node in [each for each in scope.slots if each is not None and is_pointwise(scope, each)]:
      makers = [scope.producer(tensor) for tensor in node.inputs]
      beside = [*(m for m in makers if m is not None), *scope.consumers(node.outputs[0])]
      alone = not any(is_pointwise(scope, each) or each.op == "FusedPointwise" for each in beside)
      left.append(label(node) if alone else f"{label(node)}, beside another")
  return left


def count(path):
  """Prints one line: operators before and after, fused ones, pointwise ones left."""
  import ortplugin

  before = onnx.load(path)
  after, report = ortplugin.optimize(before)
  fused = Counter(node.op_type for node in nodes_of(after.graph) if node.domain == "ortplugin")
  left = pointwise_left(after)
  beside = [each for each in left if each.endswith("beside another")]
  print(
    f"{path.stem:26s} {sum(1 for _ in nodes_of(before.graph)):5d} -> {sum(1 for _ in nodes_of(after.graph)):4d}"
    f"  pointwise {len(pointwise_left(before)):4d} -> {len(left):3d} alone, {len(beside)} beside another"
    f"  {dict(fused)}  {report.seconds['passes']:.1f} s"
  )
  for each in beside:
    names = [
      each.split(" (")[0],
      *(name for n in after.graph.node if n.name == each.split(" (")[0] for name in n.output),
    ]
    said = (m.reason for m in report.near_misses if m.node in each or any(f"'{n}'" in m.reason for n in names))
    print(f"    {each}: {next(said, 'no reason given')}")


def main(arguments=None):
  """Writes or counts models."""
  parser = argparse.ArgumentParser(description="Exports torchvision's models and counts what is fused in them.")
  parser.add_argument("--out", type=Path, help="the folder to write to")
  parser.add_argument("--only", choices=MODELS, help="one model")
  parser.add_argument("--exporter", choices=EXPORTERS, help="one exporter")
  parser.add_argument("--size", type=int, default=224, help="height and width of the image")
  parser.add_argument("--count", type=Path, nargs="+", default=[], help="models to optimize and count")
  options = parser.parse_args(arguments)
  if options.out is None and not options.count:
    parser.error("give --out or --count")
  if options.out is not None:
    options.out.mkdir(parents=True, exist_ok=True)
    for name in [options.only] if options.only else MODELS:
      for exporter in [options.exporter] if options.exporter else EXPORTERS:
        export(name, exporter, options.out / f"{name}_{exporter}.onnx", options.size)
        print(f"wrote {options.out / f'{name}_{exporter}.onnx'}")
  for path in options.count:
    count(path)
  return 0


if __name__ == "__main__":
  sys.exit(main())
