"""From a PyTorch module to an optimized session: three lines, in `optimized_session`.

    python examples/export_torch.py

A function with `torch.autograd.grad` inside goes through `ortplugin.torch_export.export` in place of torch.onnx.export.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

import ortplugin


class Classifier(nn.Module):
  """A small network: convolution, GELU, pool, norm, linear layer."""

  def __init__(self) -> None:
    super().__init__()
    self.conv, self.norm, self.linear = nn.Conv2d(3, 16, 3, padding=1), nn.LayerNorm(16), nn.Linear(16, 10)

  def forward(self, image: torch.Tensor) -> torch.Tensor:
    """Scores [batch, 10] of images [batch, 3, height, width]."""
    pooled = nn.functional.gelu(self.conv(image)).mean((2, 3))
    return self.linear(self.norm(pooled))


def optimized_session(module: nn.Module, arguments: tuple[Any, ...], **options: Any) -> Any:
  """The onnxruntime.InferenceSession of a module; options are those of torch.onnx.export."""
  program = torch.onnx.export(module.eval(), arguments, dynamo=True, **options)
  model, _ = ortplugin.optimize(program.model_proto)
  return ortplugin.session(model.SerializeToString())


def main() -> None:
  """Exports a network with an open batch, and shows how far its outputs are from PyTorch's."""
  module, batch = Classifier(), torch.export.Dim("batch")
  session = optimized_session(
    module, (torch.rand(2, 3, 32, 32),), input_names=["image"], dynamic_shapes={"image": {0: batch}}, verbose=False
  )
  image = torch.rand(5, 3, 32, 32)
  (scores,) = session.run(None, {"image": image.numpy()})
  with torch.no_grad():
    difference = np.abs(scores - module(image).numpy()).max()
  print(f"largest difference from PyTorch: {difference:.1e}")


if __name__ == "__main__":
  main()
