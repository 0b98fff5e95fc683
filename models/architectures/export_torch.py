"""Writes the networks of images.py, language.py and plain.py by both of PyTorch's ONNX exporters."""

import argparse
import contextlib
import io
import logging
import os
import sys
import tempfile
import traceback
import warnings
import zlib
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # configurations are built here; nothing is downloaded

import onnx
import torch

from models.architectures import archive, images, language, plain
from models.architectures.networks import Network, Picked, randomize

NETWORKS: dict[str, Network] = {**images.NETWORKS, **language.NETWORKS, **plain.NETWORKS}
OPSETS = {"torchscript": (17, 14, 18, 16, 15, 20), "dynamo": (20, 18, 21, 23)}
PACKAGES = ("torch", "torchvision", "timm", "transformers")


@dataclass(frozen=True)
class Case:
  """One file: a network by one exporter."""

  network: str
  exporter: str
  opset: int
  dynamic: bool

  @property
  def name(self):
    """The file's name without suffix."""
    return f"{self.network}_{self.exporter}" + "_dynamic" * self.dynamic


def cases():
  """Each network by each exporter that writes it; one of its files has open axes where an exporter can do that.

  Opsets, and which exporter leaves axes open, follow from the name alone: the other networks don't matter.
  """
  for name, network in NETWORKS.items():
    number = zlib.crc32(name.encode())
    turn = network.dynamic[number % len(network.dynamic)] if network.dynamic else ""
    for exporter in network.exporters:
      several = OPSETS[exporter]
      opset = max(several[number // 2 % len(several)], network.opset if exporter == "torchscript" else 0)
      yield Case(name, exporter, opset, exporter == turn)


def make_inputs(network, second):
  """Random tensors; with `second` of the other sizes."""
  made = []
  for name, each in network.inputs.items():
    shape = [each.sizes.get(axis, size) if second else size for axis, size in enumerate(each.shape)]
    tensor = torch.randint(0, each.high, shape) if each.high else torch.randn(shape)
    if name.endswith("attention_mask"):
      tensor[:, ::2] = 1  # a window that is masked as a whole has no defined attention
    made.append(tensor)
  return tuple(made)


def export(case, model, inputs):
  """The model as the exporter writes it."""
  network = NETWORKS[case.network]
  names = list(network.inputs)
  options = {"input_names": names, "opset_version": case.opset}
  with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), \
          contextlib.redirect_stdout(io.StringIO()):  # fmt: skip
    warnings.simplefilter("ignore")
    path = Path(folder) / "model.onnx"
    if case.exporter == "dynamo":
      if case.dynamic:
        axes = [{axis: torch.export.Dim.DYNAMIC for axis in each.sizes} for each in network.inputs.values()]
        options["dynamic_shapes"] = (tuple(axes),) if isinstance(model, Picked) else tuple(axes)
      torch.onnx.export(model, inputs, path, dynamo=True, external_data=False, verbose=False, **options)
    else:
      if case.dynamic:
        options["dynamic_axes"] = {
          name: {axis: f"{name}_{axis}" for axis in each.sizes} for name, each in network.inputs.items()
        }
      torch.onnx.export(model, inputs, path, dynamo=False, **options)
    return onnx.load(path)


def make(case):
  """Builds, exports and checks one case; returns the model and what is said of it."""
  network = NETWORKS[case.network]
  torch.manual_seed(archive.SEED)
  model = network.build().eval()
  randomize(model)
  runs = [make_inputs(network, second) for second in ((False, True) if case.dynamic else (False,))]
  proto = archive.finished(export(case, model, runs[0]))
  feeds, checks = [], []
  for run in runs:
    with torch.no_grad():
      outputs = model(*run)
    found = [each.numpy() for each in (outputs if isinstance(outputs, (tuple, list)) else (outputs,))]
    feeds.append({name: tensor.numpy() for name, tensor in zip(network.inputs, run, strict=True)})
    checks.append((feeds[-1], found))
  archive.check(proto, checks, case.name)
  return proto, archive.entry(
      case.network, case.exporter, proto, feeds, PACKAGES, {name: each.high for name, each in network.inputs.items()},
      dynamic=case.dynamic, chooses=network.chooses,
  )  # fmt: skip


def main(arguments=None):
  """Writes the chosen models; says of each that fails why, and writes the others."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--only", default="", help="only the files whose name contains this text")
  parser.add_argument("--debug", action="store_true", help="show tracebacks")
  options = parser.parse_args(arguments)
  logging.disable(logging.WARNING)
  made, failed = {}, 0
  every = list(cases())
  for case in every:
    if options.only not in case.name:
      continue
    try:
      made[case.name] = make(case)
    except Exception as error:  # of any exporter: the next network is another matter
      failed += 1
      print(f"{case.name} (opset {case.opset}): {type(error).__name__}: {str(error)[:400]}", flush=True)
      if options.debug:
        traceback.print_exc()
      continue
    print(f"{case.name:36s} opset {case.opset} {made[case.name][0].ByteSize():7d} B", flush=True)
  archive.write(made, {case.name for case in every}, set(OPSETS))
  return 1 if failed else 0


if __name__ == "__main__":
  sys.exit(main())
