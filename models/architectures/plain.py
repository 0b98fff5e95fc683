"""Networks of torch alone: recurrent ones, generators, decoders of images, detection heads, graphs, points, tables."""

import torch
from torch import nn
from torch.nn import functional

from models.architectures.networks import Input, Network, image

Tensor = torch.Tensor


class Tagger(nn.Module):
  """Embedded tokens through a recurrent layer of any kind; also its last state."""

  def __init__(self, recurrent, **given):
    super().__init__()
    self.embed, self.recurrent = nn.Embedding(20, 6), recurrent(6, 8, batch_first=True, **given)
    self.out = nn.Linear(8 * (2 if given.get("bidirectional") else 1), 5)

  def forward(self, tokens):
    """Logits [batch, length, 5] and the state."""
    values, state = self.recurrent(self.embed(tokens))
    return functional.log_softmax(self.out(torch.relu(values)), -1), state[0] if isinstance(state, tuple) else state


def block(channels, out):
  """Convolution, norm, activation."""
  return nn.Sequential(nn.Conv2d(channels, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU())


class SuperResolution(nn.Module):
  """Residual blocks, PReLU, and two sub-pixel shuffles; the image, resized, is added."""

  def __init__(self):
    super().__init__()
    self.head, self.act = nn.Conv2d(3, 8, 5, padding=2), nn.PReLU(8)
    self.block = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.PReLU(), nn.Conv2d(8, 8, 3, padding=1))
    self.up = nn.Sequential(nn.Conv2d(8, 32, 3, padding=1), nn.PixelShuffle(2), nn.PReLU(8),
                            nn.Conv2d(8, 12, 3, padding=1), nn.PixelShuffle(2))  # fmt: skip

  def forward(self, image):
    """The image, four times as large."""
    x = self.act(self.head(image))
    resized = functional.interpolate(image, scale_factor=4.0, mode="bicubic", align_corners=False)
    return torch.tanh(self.up(x + 0.5 * self.block(x)) + resized)


class Discriminator(nn.Module):
  """Strided convolutions with LeakyReLU and instance norms, as CycleGAN's, on a reflected border."""

  def __init__(self):
    super().__init__()
    self.body = nn.Sequential(nn.ReflectionPad2d(1), nn.Conv2d(3, 8, 4, 2), nn.LeakyReLU(0.2),
                              nn.Conv2d(8, 16, 4, 2, 1), nn.InstanceNorm2d(16, affine=True), nn.LeakyReLU(0.2),
                              nn.Conv2d(16, 1, 4, 1, 1))  # fmt: skip

  def forward(self, image):
    """A score a patch."""
    return self.body(image)


class Detector(nn.Module):
  """A feature pyramid and a head without anchors, as FCOS: scores and boxes of the best places of each image."""

  def __init__(self):
    super().__init__()
    self.c1, self.c2 = block(3, 8), block(8, 16)
    self.lateral1, self.lateral2 = nn.Conv2d(8, 8, 1), nn.Conv2d(16, 8, 1)
    self.tower = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU())
    self.scores, self.boxes = nn.Conv2d(8, 3, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)

  def forward(self, image):
    """Scores [batch, 5] and boxes [batch, 5, 4]."""
    one = functional.max_pool2d(self.c1(image), 2)
    two = functional.max_pool2d(self.c2(one), 2)
    top = self.lateral2(two)
    low = self.lateral1(one) + functional.interpolate(top, size=one.shape[-2:], mode="nearest")
    scores, boxes = [], []
    for level in (low, top):
      x = self.tower(level)
      scores.append(self.scores(x).permute(0, 2, 3, 1).flatten(1, 2))
      boxes.append(functional.softplus(self.boxes(x)).permute(0, 2, 3, 1).flatten(1, 2))
    best, places = torch.topk(torch.cat(scores, 1).sigmoid().amax(-1), 5, dim=1)
    return best, torch.gather(torch.cat(boxes, 1), 1, places[:, :, None].expand(-1, -1, 4))


class Atrous(nn.Module):
  """Pyramid of dilated convolutions and of the image's mean, as DeepLab's head; classes at the image's size."""

  def __init__(self):
    super().__init__()
    self.stem = nn.Conv2d(3, 8, 3, 2, 1)
    self.branches = nn.ModuleList(nn.Conv2d(8, 6, 3, padding=rate, dilation=rate) for rate in (1, 2, 3))
    self.mean = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 6, 1), nn.ReLU())
    self.out = nn.Sequential(nn.Conv2d(24, 8, 1), nn.BatchNorm2d(8), nn.Hardswish(), nn.Conv2d(8, 4, 1))

  def forward(self, image):
    """Logits of four classes, and the best one, a pixel."""
    x = functional.relu6(self.stem(image))
    mean = functional.interpolate(self.mean(x), size=x.shape[-2:], mode="bilinear", align_corners=False)
    logits = self.out(torch.cat([*(branch(x) for branch in self.branches), mean], 1))
    logits = functional.interpolate(logits, size=image.shape[-2:], mode="bilinear", align_corners=True)
    return logits, logits.argmax(1)


class Graph(nn.Module):
  """Two steps of messages along edges: summed with index_add, then attention of each node over its edges."""

  def __init__(self):
    super().__init__()
    self.first, self.second, self.score, self.out = (
        nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(16, 1), nn.Linear(8, 3)
    )  # fmt: skip

  def forward(self, nodes, edges):
    """Nodes [count, 6], edges [2, edges] from node to node; [count, 3]."""
    source, target = edges[0], edges[1]
    x = self.first(nodes)
    degree = torch.zeros(x.shape[0]).index_add(0, target, torch.ones_like(target, dtype=torch.float)) + 1
    x = torch.relu((x + torch.zeros_like(x).index_add(0, target, x[source])) / degree[:, None])
    x = self.second(x)
    score = functional.leaky_relu(self.score(torch.cat([x[source], x[target]], -1)), 0.2).squeeze(-1).exp()
    total = torch.zeros(x.shape[0]).scatter_add(0, target, score)
    weight = (score / total[target])[:, None]
    return self.out(functional.elu(torch.zeros_like(x).index_add(0, target, weight * x[source])))


class Radiance(nn.Module):
  """Sines and cosines of places, a network with a skip, and the light along each ray."""

  def __init__(self):
    super().__init__()
    self.first, self.second, self.out = nn.Linear(27, 16), nn.Linear(43, 16), nn.Linear(16, 4)

  def forward(self, places):
    """Places [rays, samples, 3]; colours [rays, 3]."""
    angles = places[..., None] * (2.0 ** torch.arange(4))
    code = torch.cat([places, angles.sin().flatten(-2), angles.cos().flatten(-2)], -1)
    x = torch.relu(self.first(code))
    out = self.out(torch.relu(self.second(torch.cat([x, code], -1))))
    depth = functional.softplus(out[..., 3]) * 0.3
    left = torch.exp(depth - torch.cumsum(depth, -1))
    return (((1 - torch.exp(-depth)) * left)[..., None] * out[..., :3].sigmoid()).sum(1)


class Turned(nn.Module):
  """A spatial transformer: the image sampled on a grid that the network computes."""

  def __init__(self):
    super().__init__()
    self.look = nn.Sequential(nn.Conv2d(3, 8, 5, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    self.turn, self.out = nn.Linear(32, 6), nn.Conv2d(3, 4, 3)

  def forward(self, image):
    """The turned image's features."""
    turn = 0.2 * self.turn(self.look(image)).view(-1, 2, 3) + torch.eye(2, 3)
    grid = functional.affine_grid(turn, [image.shape[0], 3, 16, 16], align_corners=False)
    return self.out(functional.grid_sample(image, grid, align_corners=False))


class Autoencoder(nn.Module):
  """A variational autoencoder: mean and variance, transposed convolutions that need padding of the output."""

  def __init__(self):
    super().__init__()
    self.down = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.GELU(approximate="tanh"), nn.Conv2d(8, 8, 3, 2, 1))
    self.mean, self.spread = nn.Conv2d(8, 4, 1), nn.Conv2d(8, 4, 1)
    self.up = nn.Sequential(nn.ConvTranspose2d(4, 8, 3, 2, 1, 1), nn.Mish(),
                            nn.ConvTranspose2d(8, 3, 3, 2, 1, 1, groups=1))  # fmt: skip

  def forward(self, image, noise):
    """The image again, and how far the code is from normal. Noise: [batch, 4, height / 4, width / 4]."""
    x = functional.gelu(self.down(image))
    mean, spread = self.mean(x), self.spread(x).clamp(-4, 4)
    far = -0.5 * (1 + spread - mean.pow(2) - spread.exp()).sum(dim=(1, 2, 3))
    return torch.tanh(self.up(mean + noise * torch.exp(0.5 * spread))), far


class Quantized(nn.Module):
  """Activations and weights rounded to eight bits, as training with quantisation in mind exports them."""

  def __init__(self):
    super().__init__()
    self.one, self.two, self.out = nn.Conv2d(3, 8, 3, 2), nn.Conv2d(8, 8, 3), nn.Linear(8, 5)

  def forward(self, image):
    """Logits."""

    def rounded(x, scale, zero, low):
      return torch.fake_quantize_per_tensor_affine(x, scale, zero, low, low + 255)

    x = rounded(image, 1 / 32, 0, -128)
    x = functional.relu(functional.conv2d(x, rounded(self.one.weight, 1 / 64, 0, -128), self.one.bias, 2))
    x = rounded(x, 1 / 64, 3, 0)
    x = functional.relu(functional.conv2d(x, rounded(self.two.weight, 1 / 64, 0, -128), self.two.bias))
    return self.out(rounded(x, 1 / 64, 0, 0).mean((2, 3)))


def generator():
  """DCGAN: from a vector to an image, by transposed convolutions."""

  def block(channels, out, stride, padding):
    return [nn.ConvTranspose2d(channels, out, 4, stride, padding, bias=False), nn.BatchNorm2d(out), nn.ReLU(True)]

  return nn.Sequential(*block(8, 12, 1, 0), *block(12, 8, 2, 1), nn.ConvTranspose2d(8, 3, 4, 2, 1), nn.Tanh())


WORDS = {"tokens": Input((2, 7), 20, {0: 3, 1: 9})}
ANY_SIZE = image(16, (24, 32))
EDGES = {"nodes": Input((6, 6), sizes={0: 8}), "edges": Input((2, 12), 6, {1: 15})}

NETWORKS: dict[str, Network] = {
    "gru": Network(lambda: Tagger(nn.GRU, num_layers=2), WORDS),
    "rnn": Network(lambda: Tagger(nn.RNN, nonlinearity="relu"), WORDS),
    "super_resolution": Network(SuperResolution, ANY_SIZE),
    "discriminator": Network(Discriminator, ANY_SIZE),
    "generator": Network(generator, {"noise": Input((2, 8, 1, 1), sizes={0: 3})}),
    "detector": Network(Detector, ANY_SIZE, chooses=True),
    "atrous": Network(Atrous, ANY_SIZE, chooses=True),
    # TorchScript drops all but one of an index_add's summands
    "graph": Network(Graph, EDGES, exporters=("dynamo",), dynamic=("dynamo",)),
    "radiance": Network(Radiance, {"places": Input((4, 6, 3), sizes={0: 5, 1: 8})}),
    "turned": Network(Turned, image(16), opset=20),
    "autoencoder": Network(Autoencoder, {**ANY_SIZE, "noise": Input((2, 4, 4, 4), sizes={0: 3, 2: 6, 3: 8})}),
    "quantized": Network(Quantized, ANY_SIZE, exporters=("torchscript",), dynamic=("torchscript",), chooses=True),
}  # fmt: skip
