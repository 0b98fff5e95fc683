"""Networks on images: a family a line, of torchvision and timm, as small as its constructor makes it.

One that is told the size of its images takes no other; of the rest height and width are open where the batch is.
"""

from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

from torch import nn

from models.architectures.networks import Network, image

# Name: module of timm.models, class, arguments.
TIMM: dict[str, tuple[str, dict[str, Any]]] = {
    "poolformer": ("metaformer.MetaFormer", {"depths": (1, 1), "dims": (8, 16)}),
    "xcit": ("xcit.Xcit", {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2,
                           "cls_attn_layers": 1, "mlp_ratio": 2.0, "eta": 1.0, "tokens_norm": True}),
    "pvt": ("pvt_v2.PyramidVisionTransformerV2", {"depths": (1, 1, 1, 1), "embed_dims": (8, 8, 16, 16),
                                                  "num_heads": (1, 2, 2, 2), "mlp_ratios": (2, 2, 2, 2)}),
    "cait": ("cait.Cait", {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2,
                           "mlp_ratio": 2.0, "depth_token_only": 1}),
    "gcvit": ("gcvit.GlobalContextVit", {"img_size": (32, 32), "window_ratio": (8, 8), "embed_dim": 8,
                                         "depths": (2, 1), "num_heads": (2, 2), "mlp_ratio": 2.0}),
    "tnt": ("tnt.TNT", {"img_size": 32, "patch_size": 8, "embed_dim": 16, "inner_dim": 8, "depth": 1,
                        "num_heads_inner": 2, "num_heads_outer": 2, "mlp_ratio": 2.0}),
    "eva": ("eva.Eva", {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, "mlp_ratio": 2.0,
                        "swiglu_mlp": True, "use_rot_pos_emb": True, "qkv_fused": False}),
    "beit": ("beit.Beit", {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2,
                           "mlp_ratio": 2.0, "use_rel_pos_bias": True, "init_values": 0.1}),
    "volo": ("volo.VOLO", {"layers": (1, 1), "img_size": 32, "patch_size": 8, "stem_hidden_dim": 8,
                           "embed_dims": (8, 16), "num_heads": (2, 2), "mlp_ratio": 2.0,
                           "downsamples": (True, False), "use_aux_head": False, "outlook_attention": (True, False)}),
}  # fmt: skip
SPELLED_OUT = ("Beit", "Eva")


def timm_network(module, name, arguments):
  """A network of timm with five classes. Neither exporter writes torch's own attention in every rank."""
  import_module("timm.layers").set_fused_attn(name not in SPELLED_OUT)
  found = import_module(f"timm.models.{module}")
  blocks = {"basic": "BasicBlock", "bottleneck": "Bottleneck"}
  if "block" in arguments:
    arguments = arguments | {"block": getattr(found, blocks[arguments["block"]])}
  return getattr(found, name)(**arguments, num_classes=5)


def timm_configured(module, name, config, **arguments):
  """A network of timm that takes its structure as an object of class `config`."""
  found = import_module(f"timm.models.{module}")
  given = {"img_size": arguments.pop("img_size")} if "img_size" in arguments else {}
  return getattr(found, name)(getattr(found, config)(**arguments), num_classes=5, **given)


def nfnet():
  """Standardised weights, no norms; squeeze and excitation."""
  return timm_configured("nfnet", "NormFreeNet", "NfCfg", depths=(1, 1), channels=(8, 16), stem_chs=8, group_size=4,
                         attn_layer="se", attn_kwargs={"rd_ratio": 0.5}, num_features=16)  # fmt: skip


def coatnet():
  """Blocks of convolutions, then of attention with relative positions."""
  from timm.models.maxxvit import MaxxVitConvCfg, MaxxVitTransformerCfg

  return timm_configured(
      "maxxvit", "MaxxVit", "MaxxVitCfg", img_size=32, embed_dim=(8, 16), depths=(1, 1), block_type=("C", "T"),
      stem_width=8, conv_cfg=MaxxVitConvCfg(expand_ratio=2.0), transformer_cfg=MaxxVitTransformerCfg(dim_head=8),
  )  # fmt: skip


def byob(*blocks, **arguments):
  """A network of timm's blocks."""
  from timm.models.byobnet import ByoBlockCfg

  made = tuple(ByoBlockCfg(d=1, **block) for block in blocks)
  return timm_configured("byobnet", "ByobNet", "ByoModelCfg", blocks=made, stem_chs=8, **arguments)


def halonet():
  """Attention over neighbourhoods of blocks."""
  attention = {"block_size": 4, "halo_size": 1, "num_heads": 2}
  return byob({"type": "bottle", "c": 8, "s": 1}, {"type": "self_attn", "c": 16, "s": 1}, stem_pool="",
              self_attn_layer="halo", self_attn_kwargs=attention)  # fmt: skip


class Branches(nn.Module):
  """What HRNet's branches come to."""

  def __init__(self, config):
    super().__init__()
    self.body = import_module("timm.models.hrnet").HighResolutionNet(config, head="")

  def forward(self, image):
    """A tensor for each resolution."""
    return tuple(self.body.forward_features(image))


def hrnet():
  """Branches of several resolutions that add each other's resized values."""

  def stage(block, *channels):
    return {"num_modules": 1, "num_branches": len(channels), "num_blocks": (1,) * len(channels),
            "num_channels": channels, "block_type": block, "fuse_method": "SUM"}  # fmt: skip

  config = {"stem_width": 8, "stage1": stage("BOTTLENECK", 4), "stage2": stage("BASIC", 4, 8),
            "stage3": stage("BASIC", 4, 8, 8), "stage4": stage("BASIC", 4, 8, 8, 8)}  # fmt: skip
  return Branches(config)


def regnet():
  """Grouped convolutions with squeeze and excitation."""
  from torchvision.models.regnet import BlockParams, RegNet

  params = BlockParams([1, 1], [8, 16], [4, 8], [1.0, 1.0], [2, 2], 0.25)
  return RegNet(params, num_classes=5, stem_width=8)


def shufflenet():
  """Halves of channels that change places."""
  from torchvision.models import ShuffleNetV2

  return ShuffleNetV2([2, 1, 1], [8, 8, 16, 16, 16], num_classes=5)


def googlenet():
  """Branches of several filters, one of them behind a pool, concatenated."""
  from torchvision.models.googlenet import BasicConv2d, Inception

  return nn.Sequential(BasicConv2d(3, 8, kernel_size=7, stride=2, padding=3), nn.MaxPool2d(3, 2, ceil_mode=True),
                       nn.LocalResponseNorm(3), Inception(8, 4, 4, 8, 4, 8, 4), Inception(24, 4, 4, 8, 4, 8, 4),
                       nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 5))  # fmt: skip


ANY_SIZE = image(32, (48, 64))

NETWORKS: dict[str, Network] = {
  "hrnet": Network(hrnet, image(32, (64, 96))),
  "nfnet": Network(nfnet, ANY_SIZE),
  "coatnet": Network(coatnet, image(32)),
  "halonet": Network(halonet, image(32)),
  "regnet": Network(regnet, ANY_SIZE),
  "shufflenet": Network(shufflenet, ANY_SIZE),
  "googlenet": Network(googlenet, ANY_SIZE),
}
LIMITS: dict[str, dict[str, Any]] = {
  "halonet": {"exporters": ("dynamo",), "dynamic": ("dynamo",)},  # TorchScript: Unfold of a padded value
  "xcit": {"exporters": ("dynamo",), "dynamic": ("dynamo",)},  # TorchScript's file takes seconds to optimize
  "pvt": {"dynamic": ("torchscript",)},  # dynamo: at another size ORT's own fusion of MatMul and scale fails
  "volo": {"exporters": ("dynamo",), "dynamic": ("dynamo",)},  # TorchScript: Col2Im
}
for _name, (_where, _arguments) in TIMM.items():
  _module, _, _class = _where.partition(".")
  _inputs = image(_arguments["img_size"]) if "img_size" in _arguments else ANY_SIZE
  NETWORKS[_name] = Network(partial(timm_network, _module, _class, _arguments), _inputs)
for _name, _limits in LIMITS.items():
  NETWORKS[_name] = replace(NETWORKS[_name], **_limits)
