"""Networks of torch alone: recurrent ones, generators, decoders of images, detection heads, graphs, points, tables."""

import torch
from torch import nn
from torch.nn import functional

from models.architectures.networks import Input, Network, image

Tensor = torch.Tensor


class Tagger(nn.Module):
  """Embedded tokens through a recurrent layer of any kind; also its last state."""

  def __init__(self, recurrent: type[nn.Module], **given: object) -> None:
    super().__init__()
    self.embed, self.recurrent = nn.Embedding(20, 6), recurrent(6, 8, batch_first=True, **given)
    self.out = nn.Linear(8 * (2 if given.get("bidirectional") else 1), 5)

  def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Logits [batch, length, 5] and the state."""
    values, state = self.recurrent(self.embed(tokens))
    return functional.log_softmax(self.out(torch.relu(values)), -1), state[0] if isinstance(state, tuple) else state


class UNet(nn.Module):
  """Down twice and up twice, by transposed convolution and by resizing, with what lies beside concatenated."""

  def __init__(self) -> None:
    super().__init__()
    self.down1, self.down2, self.middle = self.block(3, 8), self.block(8, 12), self.block(12, 16)
    self.up2, self.merge2 = nn.ConvTranspose2d(16, 12, 2, 2), self.block(24, 8)
    self.merge1, self.out = self.block(16, 8), nn.Conv2d(8, 2, 1)

  @staticmethod
  def block(channels: int, out: int) -> nn.Sequential:
    """Convolution, norm, activation."""
    return nn.Sequential(nn.Conv2d(channels, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU())

  def forward(self, image: Tensor) -> Tensor:
    """Two probabilities a pixel."""
    one = self.down1(image)
    two = self.down2(functional.max_pool2d(one, 2))
    three = self.middle(functional.max_pool2d(two, 2))
    two = self.merge2(torch.cat([two, self.up2(three)], 1))
    up = functional.interpolate(two, scale_factor=2.0, mode="bilinear", align_corners=False)
    return torch.sigmoid(self.out(self.merge1(torch.cat([one, up], 1))))


class SuperResolution(nn.Module):
  """Residual blocks, PReLU, and two sub-pixel shuffles; the image, resized, is added."""

  def __init__(self) -> None:
    super().__init__()
    self.head, self.act = nn.Conv2d(3, 8, 5, padding=2), nn.PReLU(8)
    self.block = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.PReLU(), nn.Conv2d(8, 8, 3, padding=1))
    self.up = nn.Sequential(nn.Conv2d(8, 32, 3, padding=1), nn.PixelShuffle(2), nn.PReLU(8),
                            nn.Conv2d(8, 12, 3, padding=1), nn.PixelShuffle(2))  # fmt: skip

  def forward(self, image: Tensor) -> Tensor:
    """The image, four times as large."""
    x = self.act(self.head(image))
    resized = functional.interpolate(image, scale_factor=4.0, mode="bicubic", align_corners=False)
    return torch.tanh(self.up(x + 0.5 * self.block(x)) + resized)


class Discriminator(nn.Module):
  """Strided convolutions with LeakyReLU and instance norms, as CycleGAN's, on a reflected border."""

  def __init__(self) -> None:
    super().__init__()
    self.body = nn.Sequential(nn.ReflectionPad2d(1), nn.Conv2d(3, 8, 4, 2), nn.LeakyReLU(0.2),
                              nn.Conv2d(8, 16, 4, 2, 1), nn.InstanceNorm2d(16, affine=True), nn.LeakyReLU(0.2),
                              nn.Conv2d(16, 1, 4, 1, 1))  # fmt: skip

  def forward(self, image: Tensor) -> Tensor:
    """A score a patch."""
    return self.body(image)


class Diffusion(nn.Module):
  """A step of denoising: sinusoids of the time step, group norms, Silu, attention over pixels, up and down."""

  def __init__(self, width: int = 8) -> None:
    super().__init__()
    self.time = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, width))
    self.stem, self.down = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, width, 3, 2, 1)
    self.norm1, self.conv1 = nn.GroupNorm(4, width), nn.Conv2d(width, width, 3, padding=1)
    self.norm2, self.conv2 = nn.GroupNorm(4, width), nn.Conv2d(width, width, 3, padding=1)
    self.norm3, self.qkv, self.proj = nn.GroupNorm(2, width), nn.Linear(width, 3 * width), nn.Linear(width, width)
    self.out = nn.Conv2d(2 * width, 3, 3, padding=1)

  def forward(self, image: Tensor, step: Tensor) -> Tensor:
    """The noise in the image [batch, 3, height, width] at step [batch]."""
    angles = step.float()[:, None] * torch.exp(torch.arange(4) * -1.5)
    time = self.time(torch.cat([angles.sin(), angles.cos()], -1))
    skip = self.stem(image)
    x = self.down(skip)
    inner = self.conv1(functional.silu(self.norm1(x))) + time[:, :, None, None]
    x = x + self.conv2(functional.silu(self.norm2(inner)))
    pixels = self.norm3(x).flatten(2).transpose(1, 2)
    query, key, value = self.qkv(pixels).chunk(3, -1)
    mixed = torch.softmax(query @ key.transpose(1, 2) * query.shape[-1] ** -0.5, -1) @ value
    x = x + self.proj(mixed).transpose(1, 2).reshape(x.shape)
    return self.out(torch.cat([functional.interpolate(x, scale_factor=2.0, mode="nearest"), skip], 1))


class Detector(nn.Module):
  """A feature pyramid and a head without anchors, as FCOS: scores and boxes of the best places of each image."""

  def __init__(self) -> None:
    super().__init__()
    self.c1, self.c2 = UNet.block(3, 8), UNet.block(8, 16)
    self.lateral1, self.lateral2 = nn.Conv2d(8, 8, 1), nn.Conv2d(16, 8, 1)
    self.tower = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU())
    self.scores, self.boxes = nn.Conv2d(8, 3, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)

  def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
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

  def __init__(self) -> None:
    super().__init__()
    self.stem = nn.Conv2d(3, 8, 3, 2, 1)
    self.branches = nn.ModuleList(nn.Conv2d(8, 6, 3, padding=rate, dilation=rate) for rate in (1, 2, 3))
    self.mean = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 6, 1), nn.ReLU())
    self.out = nn.Sequential(nn.Conv2d(24, 8, 1), nn.BatchNorm2d(8), nn.Hardswish(), nn.Conv2d(8, 4, 1))

  def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
    """Logits of four classes, and the best one, a pixel."""
    x = functional.relu6(self.stem(image))
    mean = functional.interpolate(self.mean(x), size=x.shape[-2:], mode="bilinear", align_corners=False)
    logits = self.out(torch.cat([*(branch(x) for branch in self.branches), mean], 1))
    logits = functional.interpolate(logits, size=image.shape[-2:], mode="bilinear", align_corners=True)
    return logits, logits.argmax(1)


class Graph(nn.Module):
  """Two steps of messages along edges: summed with index_add, then attention of each node over its edges."""

  def __init__(self) -> None:
    super().__init__()
    self.first, self.second, self.score, self.out = (
        nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(16, 1), nn.Linear(8, 3)
    )  # fmt: skip

  def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
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


class Points(nn.Module):
  """PointNet: a network on each point, the maximum over them; its transform is a matrix that it computes."""

  def __init__(self) -> None:
    super().__init__()
    self.turn = nn.Sequential(nn.Conv1d(3, 8, 1), nn.BatchNorm1d(8), nn.ReLU())
    self.matrix, self.each = nn.Linear(8, 9), nn.Sequential(nn.Conv1d(3, 12, 1), nn.BatchNorm1d(12), nn.ReLU())
    self.out = nn.Linear(12, 4)

  def forward(self, points: Tensor) -> Tensor:
    """Points [batch, 3, count]; [batch, 4]."""
    matrix = self.matrix(self.turn(points).amax(-1)).view(-1, 3, 3) + torch.eye(3)
    return functional.log_softmax(self.out(self.each(torch.bmm(matrix, points)).max(dim=2)[0]), -1)


class Radiance(nn.Module):
  """Sines and cosines of places, a network with a skip, and the light along each ray."""

  def __init__(self) -> None:
    super().__init__()
    self.first, self.second, self.out = nn.Linear(27, 16), nn.Linear(43, 16), nn.Linear(16, 4)

  def forward(self, places: Tensor) -> Tensor:
    """Places [rays, samples, 3]; colours [rays, 3]."""
    angles = places[..., None] * (2.0 ** torch.arange(4))
    code = torch.cat([places, angles.sin().flatten(-2), angles.cos().flatten(-2)], -1)
    x = torch.relu(self.first(code))
    out = self.out(torch.relu(self.second(torch.cat([x, code], -1))))
    depth = functional.softplus(out[..., 3]) * 0.3
    left = torch.exp(depth - torch.cumsum(depth, -1))
    return (((1 - torch.exp(-depth)) * left)[..., None] * out[..., :3].sigmoid()).sum(1)


class WaveNet(nn.Module):
  """Causal dilated convolutions with gates, residual and skip sums."""

  def __init__(self) -> None:
    super().__init__()
    self.stem, self.out = nn.Conv1d(1, 8, 1), nn.Conv1d(8, 4, 1)
    self.gates = nn.ModuleList(nn.Conv1d(8, 16, 2, dilation=2**step) for step in range(3))
    self.mixes = nn.ModuleList(nn.Conv1d(8, 16, 1) for _ in range(3))

  def forward(self, sound: Tensor) -> Tensor:
    """Sound [batch, 1, length]; [batch, 4, length]."""
    x, total = self.stem(sound), 0.0
    for step, (gate, mix) in enumerate(zip(self.gates, self.mixes, strict=True)):
      one, two = gate(functional.pad(x, (2**step, 0))).chunk(2, 1)
      residual, skip = mix(torch.tanh(one) * torch.sigmoid(two)).chunk(2, 1)
      x, total = x + residual, total + skip
    return self.out(torch.relu(total))


class Turned(nn.Module):
  """A spatial transformer: the image sampled on a grid that the network computes."""

  def __init__(self) -> None:
    super().__init__()
    self.look = nn.Sequential(nn.Conv2d(3, 8, 5, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    self.turn, self.out = nn.Linear(32, 6), nn.Conv2d(3, 4, 3)

  def forward(self, image: Tensor) -> Tensor:
    """The turned image's features."""
    turn = 0.2 * self.turn(self.look(image)).view(-1, 2, 3) + torch.eye(2, 3)
    grid = functional.affine_grid(turn, [image.shape[0], 3, 16, 16], align_corners=False)
    return self.out(functional.grid_sample(image, grid, align_corners=False))


class Recommender(nn.Module):
  """DLRM: embeddings of categories, a network of numbers, products of all pairs."""

  def __init__(self) -> None:
    super().__init__()
    self.tables = nn.ModuleList(nn.Embedding(10, 4) for _ in range(3))
    self.numbers, self.out = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 4)), nn.Linear(10, 1)
    self.register_buffer("pairs", torch.tril_indices(4, 4, -1))

  def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
    """Numbers [batch, 5], categories [batch, 3]; [batch]."""
    dense = self.numbers(numbers)
    each = torch.stack([dense, *(table(categories[:, at]) for at, table in enumerate(self.tables))], 1)
    products = torch.bmm(each, each.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
    return torch.sigmoid(self.out(torch.cat([dense, products], 1))).squeeze(-1)


class Autoencoder(nn.Module):
  """A variational autoencoder: mean and variance, transposed convolutions that need padding of the output."""

  def __init__(self) -> None:
    super().__init__()
    self.down = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.GELU(approximate="tanh"), nn.Conv2d(8, 8, 3, 2, 1))
    self.mean, self.spread = nn.Conv2d(8, 4, 1), nn.Conv2d(8, 4, 1)
    self.up = nn.Sequential(nn.ConvTranspose2d(4, 8, 3, 2, 1, 1), nn.Mish(),
                            nn.ConvTranspose2d(8, 3, 3, 2, 1, 1, groups=1))  # fmt: skip

  def forward(self, image: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """The image again, and how far the code is from normal. Noise: [batch, 4, height / 4, width / 4]."""
    x = functional.gelu(self.down(image))
    mean, spread = self.mean(x), self.spread(x).clamp(-4, 4)
    far = -0.5 * (1 + spread - mean.pow(2) - spread.exp()).sum(dim=(1, 2, 3))
    return torch.tanh(self.up(mean + noise * torch.exp(0.5 * spread))), far


class Quantized(nn.Module):
  """Activations and weights rounded to eight bits, as training with quantisation in mind exports them."""

  def __init__(self) -> None:
    super().__init__()
    self.one, self.two, self.out = nn.Conv2d(3, 8, 3, 2), nn.Conv2d(8, 8, 3), nn.Linear(8, 5)

  def forward(self, image: Tensor) -> Tensor:
    """Logits."""

    def rounded(x: Tensor, scale: float, zero: int, low: int) -> Tensor:
      return torch.fake_quantize_per_tensor_affine(x, scale, zero, low, low + 255)

    x = rounded(image, 1 / 32, 0, -128)
    x = functional.relu(functional.conv2d(x, rounded(self.one.weight, 1 / 64, 0, -128), self.one.bias, 2))
    x = rounded(x, 1 / 64, 3, 0)
    x = functional.relu(functional.conv2d(x, rounded(self.two.weight, 1 / 64, 0, -128), self.two.bias))
    return self.out(rounded(x, 1 / 64, 0, 0).mean((2, 3)))


def vgg() -> nn.Module:
  """Convolutions and pools, then linear layers."""

  def block(channels: int, out: int) -> list[nn.Module]:
    return [nn.Conv2d(channels, out, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)]

  return nn.Sequential(*block(3, 8), *block(8, 8), *block(8, 16), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
                       nn.Linear(64, 16), nn.ReLU(), nn.Dropout(), nn.Linear(16, 5))  # fmt: skip


def generator() -> nn.Module:
  """DCGAN: from a vector to an image, by transposed convolutions."""

  def block(channels: int, out: int, stride: int, padding: int) -> list[nn.Module]:
    return [nn.ConvTranspose2d(channels, out, 4, stride, padding, bias=False), nn.BatchNorm2d(out), nn.ReLU(True)]

  return nn.Sequential(*block(8, 12, 1, 0), *block(12, 8, 2, 1), nn.ConvTranspose2d(8, 3, 4, 2, 1), nn.Tanh())


WORDS = {"tokens": Input((2, 7), 20, {0: 3, 1: 9})}
ANY_SIZE = image(16, (24, 32))
EDGES = {"nodes": Input((6, 6), sizes={0: 8}), "edges": Input((2, 12), 6, {1: 15})}

NETWORKS: dict[str, Network] = {
    "lstm": Network(lambda: Tagger(nn.LSTM, bidirectional=True), WORDS),
    "gru": Network(lambda: Tagger(nn.GRU, num_layers=2), WORDS),
    "rnn": Network(lambda: Tagger(nn.RNN, nonlinearity="relu"), WORDS),
    "unet": Network(UNet, ANY_SIZE),
    "super_resolution": Network(SuperResolution, ANY_SIZE),
    "discriminator": Network(Discriminator, ANY_SIZE),
    "generator": Network(generator, {"noise": Input((2, 8, 1, 1), sizes={0: 3})}),
    "diffusion": Network(Diffusion, {**ANY_SIZE, "step": Input((2,), 1000, {0: 3})}),
    "detector": Network(Detector, ANY_SIZE, chooses=True),
    "atrous": Network(Atrous, ANY_SIZE, chooses=True),
    # TorchScript drops all but one of an index_add's summands
    "graph": Network(Graph, EDGES, exporters=("dynamo",), dynamic=("dynamo",)),
    "points": Network(Points, {"points": Input((2, 3, 10), sizes={0: 3, 2: 12})}),
    "radiance": Network(Radiance, {"places": Input((4, 6, 3), sizes={0: 5, 1: 8})}),
    "wavenet": Network(WaveNet, {"sound": Input((2, 1, 20), sizes={0: 3, 2: 24})}),
    "turned": Network(Turned, image(16), opset=20),
    "recommender": Network(Recommender, {"numbers": Input((3, 5), sizes={0: 4}),
                                         "categories": Input((3, 3), 10, {0: 4})}),
    "autoencoder": Network(Autoencoder, {**ANY_SIZE, "noise": Input((2, 4, 4, 4), sizes={0: 3, 2: 6, 3: 8})}),
    "quantized": Network(Quantized, ANY_SIZE, exporters=("torchscript",), dynamic=("torchscript",), chooses=True),
    "vgg": Network(vgg, image(16)),
}  # fmt: skip
