"""Writes lerp/ in the archive of tests/data: torch.lerp and its gradients, by both of PyTorch's ONNX exporters.

    pip install torch onnxscript
    python -m models.export_lerp

Both write Where(Less(w, 0.5), x + w (y - x), y - (y - x)(1 - w)), with a constant condition where the weight is a
number. The gradients are what torch.autograd computes of lerp (derivatives.yaml), summed to the shapes of x and y. Doc
strings and metadata are removed.
"""

import io
import shutil
import tempfile
import warnings
from pathlib import Path

import onnx
import torch

from models.names import shorten_names
from models.packed import pack, unpack

OPSET = 17  # of the TorchScript exporter


class Lerp(torch.nn.Module):
  """With a tensor for a weight."""

  def forward(self, x, y, w):
    """x + w (y - x)."""
    return torch.lerp(x, y, w)


class ScalarLerp(torch.nn.Module):
  """With a number for a weight."""

  def __init__(self, weight):
    super().__init__()
    self.weight = weight

  def forward(self, x, y):
    """x + weight (y - x)."""
    return torch.lerp(x, y, self.weight)


class Gradients(torch.nn.Module):
  """Of x: [4, 1, 1, 1] and y: [1, 3, 6, 8]."""

  def forward(self, dout, w):
    """dx and dy, each summed to its shape."""
    return (dout * (1 - w)).sum((1, 2, 3), keepdim=True), (dout * w).sum(0).reshape(1, 3, 6, 8)


MODULES: dict[str, tuple[torch.nn.Module, tuple[tuple[int, ...], ...]]] = {
  "tensor_weight": (Lerp(), ((4, 1, 1, 1), (4, 3, 6, 8), (3, 1, 8))),
  "one_weight": (Lerp(), ((5, 40), (5, 40), (1,))),
  "low_weight": (ScalarLerp(0.25), ((5, 40), (40,))),
  "high_weight": (ScalarLerp(0.75), ((5, 40), (5, 40))),
  "gradients": (Gradients(), ((4, 3, 6, 8), (3, 1, 8))),
}


def export(module, shapes, dynamo):
  """The module as a model, stripped."""
  inputs = tuple(torch.randn(shape) for shape in shapes)
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    if dynamo:
      with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lerp.onnx"
        torch.onnx.export(module.eval(), inputs, str(path), dynamo=True, external_data=False, verbose=False)
        model = onnx.load(path)
    else:
      stream = io.BytesIO()
      torch.onnx.export(module.eval(), inputs, stream, dynamo=False, opset_version=OPSET)
      model = onnx.load_model_from_string(stream.getvalue())
  for node in model.graph.node:
    node.doc_string = ""
    del node.metadata_props[:]
  for value in (*model.graph.input, *model.graph.output, *model.graph.value_info, *model.graph.initializer):
    del value.metadata_props[:]
  del model.metadata_props[:]
  del model.graph.metadata_props[:]
  model.graph.doc_string = model.doc_string = ""
  return model


def main():
  """Writes every file."""
  folder = Path(tempfile.mkdtemp(prefix="ortplugin-models-"))
  unpack(folder)
  for name, (module, shapes) in MODULES.items():
    for exporter in ("torchscript", "dynamo"):
      model = export(module, shapes, exporter == "dynamo")
      onnx.checker.check_model(model)
      shorten_names(model, nodes=True)
      (folder / "lerp" / f"{name}_{exporter}.onnx").write_bytes(model.SerializeToString(deterministic=True))
  pack(folder)
  shutil.rmtree(folder)


if __name__ == "__main__":
  main()
