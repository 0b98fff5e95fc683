"""Convolutional networks of torchvision, a DCGAN generator and a U-Net, as PyTorch modules with random weights.

The architectures are the published ones. Their own initialisation gives the weights; scales and shifts of the batch
norms are random, and their statistics those of random images, moved a little, so that activations neither vanish nor
grow and no norm is trivial.
Nothing is downloaded. Needs PyTorch and torchvision.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

SEED = 20240701
OPSETS = {"dynamo": 20, "torchscript": 17}
Tensors = dict[str, Any]


@dataclass(frozen=True)
class Network:
  """A model and its inputs.

  Attributes:
      title: its name in tables.
      build: makes the module, which takes the inputs in order and returns one tensor, or several.
      inputs: makes random inputs by name, floating ones in float32, from the sizes that a case says.
      sizes: what those are, such as "BATCHxLENGTH".
      channels_last: whether this layout makes sense for it.
      exporter: the one that is tried first.
      settle: changes parameters of the module that say nothing as they are initialised.
      in_place: the outputs behind the first are its last inputs, which it writes to, in their order.
  """

  title: str
  build: Callable[[], Any]
  inputs: Callable[[tuple[int, ...]], Tensors]
  sizes: str = "BATCH"
  channels_last: bool = True
  exporter: str = "torchscript"
  settle: Callable[[Any], None] | None = None
  in_place: bool = False


def images(shape):
  """Inputs of a network of images of this shape."""

  def make(sizes):
    import torch

    return {"image": torch.randn(*sizes, *shape)}

  return make


def _torchvision(name):
  def build():
    import torchvision

    return torchvision.models.get_model(name, weights=None)

  return build


def _fcn():
  import torch
  import torchvision

  class Mask(torch.nn.Module):
    """The model's main output instead of its dictionary."""

    def __init__(self):
      super().__init__()
      self.model = torchvision.models.segmentation.fcn_resnet50(weights=None, weights_backbone=None)

    def forward(self, image):
      return self.model(image)["out"]

  return Mask()


def _generator():
  """DCGAN's generator of 64 x 64 images: Radford, Metz and Chintala, 2016, figure 1, with 64 features."""
  from torch import nn

  widths = (100, 512, 256, 128, 64, 3)
  layers = []
  for index, (inputs, outputs) in enumerate(pairwise(widths)):
    first, last = index == 0, index == len(widths) - 2
    stride, padding = (1, 0) if first else (2, 1)
    layers.append(nn.ConvTranspose2d(inputs, outputs, 4, stride, padding, bias=False))
    layers += [nn.Tanh()] if last else [nn.BatchNorm2d(outputs), nn.ReLU()]
  return nn.Sequential(*layers)


def _unet(*, transposed=False):
  """A U-Net (Ronneberger, Fischer and Brox, 2015) with batch norms and padded convolutions.

  `transposed`: its decoder has the paper's up-convolutions of 2x2, which halve the channels; else nearest upsampling.
  """
  import torch
  from torch import nn

  widths = (32, 64, 128, 256, 512)

  def stage(inputs, outputs):
    layers = []
    for channels in (inputs, outputs):
      layers += [nn.Conv2d(channels, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)

  class UNet(torch.nn.Module):
    def __init__(self):
      super().__init__()
      self.down = nn.ModuleList(stage(*pair) for pair in pairwise((3, *widths)))
      pairs = list(pairwise(widths))
      self.up = nn.ModuleList(stage(2 * narrow if transposed else wide + narrow, narrow) for narrow, wide in pairs)
      self.grow = nn.ModuleList(
        nn.ConvTranspose2d(wide, narrow, 2, 2) if transposed else nn.Upsample(scale_factor=2, mode="nearest")
        for narrow, wide in pairs
      )
      self.pool = nn.MaxPool2d(2)
      self.head = nn.Conv2d(widths[0], 2, 1)

    def forward(self, x):
      skips = []
      for number, stage in enumerate(self.down):
        x = stage(self.pool(x) if number else x)
        skips.append(x)
      for skip, grow, stage in zip(reversed(skips[:-1]), reversed(self.grow), reversed(self.up), strict=True):
        x = stage(torch.cat([grow(x), skip], 1))
      return self.head(x)

  return UNet()


def _image(title, build, shape=(3, 224, 224)):
  return Network(title, build, images(shape))


NETWORKS = {
  "resnet50": _image("ResNet-50", _torchvision("resnet50")),
  "densenet121": _image("DenseNet-121", _torchvision("densenet121")),
  "efficientnet_b0": _image("EfficientNet-B0", _torchvision("efficientnet_b0")),
  "mobilenet_v3_large": _image("MobileNet-v3 large", _torchvision("mobilenet_v3_large")),
  "convnext_tiny": _image("ConvNeXt-tiny", _torchvision("convnext_tiny")),
  "fcn_resnet50": _image("FCN-ResNet50", _fcn),
  "dcgan": _image("DCGAN generator", _generator, (100, 1, 1)),
  "unet": _image("U-Net 256 x 256", _unet, (3, 256, 256)),
  "unet_up": _image("U-Net with up-convolutions", partial(_unet, transposed=True), (3, 256, 256)),
}


def module(network, device="cpu"):
  """The network in float32, for inference, on the device. The same weights in every run on one device."""
  import torch

  torch.manual_seed(SEED)
  model = network.build().to(device)
  norms = [each for each in model.modules() if isinstance(each, torch.nn.BatchNorm2d)]
  with torch.no_grad():
    for each in model.modules():
      if type(each).__name__ == "CNBlock":  # ConvNeXt scales its blocks by 1e-6 before training
        each.layer_scale.normal_(0, 0.3)
      if isinstance(each, torch.nn.Dropout):
        each.p = 0.0
    model.eval()  # whole blocks are left out at random in training
    if network.settle is not None:
      network.settle(model)
    for norm in norms:
      norm.weight.uniform_(0.8, 1.25)
      norm.bias.normal_(0, 0.1)
      norm.reset_running_stats()
      norm.momentum = None  # averages what it sees
      norm.train()
    if norms:
      model(*draw(network, (8,), device).values())
    for norm in norms:
      norm.running_mean += 0.02 * torch.randn_like(norm.running_mean) * norm.running_var.sqrt()
      norm.running_var *= torch.empty_like(norm.running_var).uniform_(0.95, 1.05)
  return model.eval()


def draw(network, sizes, device="cpu", dtype=None):
  """Random inputs on the device, floating ones in the dtype."""
  import torch

  with torch.device(device):
    made = network.inputs(sizes)
  return {name: each.to(dtype) if each.is_floating_point() else each for name, each in made.items()}


def export(model, inputs, path, exporter):
  """Writes the module to `path` with one of PyTorch's exporters, for inputs of these names, shapes and dtypes."""
  import torch

  with warnings.catch_warnings(), torch.no_grad():
    warnings.simplefilter("ignore")
    given = {"input_names": list(inputs), "opset_version": OPSETS[exporter]}
    if exporter == "dynamo":
      given |= {"external_data": False, "verbose": False}
    torch.onnx.export(model, tuple(inputs.values()), path, dynamo=exporter == "dynamo", **given)
