"""What a network of the tables is: how to build it, what it takes, and which of its inputs' axes can be open."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn


@dataclass(frozen=True)
class Input:
  """Normal values, or with `high` integers below it. `sizes`: of axes that can be open, another size that works."""

  shape: tuple[int, ...]
  high: int = 0
  sizes: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Network:
  """A module from tensors to a tensor or a tuple of them, and its inputs by name.

  `exporters`: those that write it; `dynamic`: those that write it with open axes. A comment in the table says why not
  both. `chooses`: it takes the best of several values, which may be others where they are rounded.
  """

  build: Callable[[], nn.Module]
  inputs: dict[str, Input]
  exporters: tuple[str, ...] = ("torchscript", "dynamo")
  dynamic: tuple[str, ...] = ("torchscript", "dynamo")
  chooses: bool = False
  opset: int = 0  # the lowest that TorchScript writes it in


def image(size=32, other=None, batch=2):
  """One input of three channels; height and width can be open where there is an `other`."""
  height, width = (size, size) if isinstance(size, int) else size
  sizes = {0: 3} if other is None else {0: 3, 2: other[0], 3: other[1]}
  return {"image": Input((batch, 3, height, width), sizes=sizes)}


def randomize(model):
  """Gives every parameter, and the statistics of batch norms, random values with which activations keep their scale.

  No value is trivial: a rewrite that drops or swaps one must show in the outputs. They have two significant bits,
  so that the archive is small.
  """
  with torch.no_grad():
    for module in model.modules():
      for name, parameter in module.named_parameters(recurse=False):
        if not parameter.is_floating_point():
          continue
        noise = torch.randn_like(parameter)
        if "norm" in type(module).__name__.lower() and name == "weight":
          values = 1 + 0.3 * noise
        elif name in ("A_log", "dt_bias"):  # of state spaces, which decay by them
          values = 0.5 * noise - 1
        elif parameter.ndim > 1:
          values = noise / max(1.0, parameter[0].numel() ** 0.5)
        else:
          values = 0.3 * noise
        parameter.copy_(coarse(values))
      if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
        module.running_mean.copy_(coarse(0.3 * torch.randn_like(module.running_mean)))
        module.running_var.copy_(coarse(0.5 + torch.rand_like(module.running_var)))


def coarse(values):
  """The values with two significant bits."""
  mantissa, exponent = torch.frexp(values)
  return torch.ldexp(torch.round(mantissa * 4) / 4, exponent)


class Picked(nn.Module):
  """Calls a module with tensors by name, and returns what `pick` makes of the result."""

  def __init__(self, model, names, pick, given):
    super().__init__()
    self.model, self.names, self.pick, self.given = model, names, pick, given

  def forward(self, *tensors):
    """What was picked: a tensor, or a tuple of them."""
    return self.pick(self.model(**dict(zip(self.names, tensors, strict=True)), **self.given))
