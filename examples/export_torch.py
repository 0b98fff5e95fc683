"""From a PyTorch module to an optimized session in three lines.

A function with `torch.autograd.grad` inside goes through `ortplugin.torch_export.export` in place of torch.onnx.export.
"""

from typing import Any

import torch
from torch import nn

import ortplugin

OPEN_BATCH = ({0: torch.export.Dim("batch")},)


def optimized_session(module: nn.Module, arguments: tuple[Any, ...], **options: Any) -> Any:
  """The onnxruntime.InferenceSession of a module; options are those of torch.onnx.export."""
  program = torch.onnx.export(module.eval(), arguments, dynamo=True, verbose=False, **options)
  model, _ = ortplugin.optimize(program.model_proto)
  return ortplugin.session(model.SerializeToString())


if __name__ == "__main__":
  network = nn.Sequential(nn.Conv2d(3, 16, 3), nn.GELU(), nn.Flatten(2), nn.LayerNorm(900))
  fast = optimized_session(network, (torch.rand(2, 3, 32, 32),), input_names=["image"], dynamic_shapes=OPEN_BATCH)
  image = torch.rand(5, 3, 32, 32)
  (y,) = fast.run(None, {"image": image.numpy()})
  print("largest difference from PyTorch:", (network(image) - torch.from_numpy(y)).abs().max().item())
