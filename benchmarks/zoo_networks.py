"""The networks of benchmarks/zoo.py: architectures of torchvision, timm and transformers, with random weights.

Each family is there once small and once at its usual size. Nothing is downloaded. The libraries are imported where a
network is built, so that the list itself needs none of them.

A network keeps the initialisation of its library where that keeps the scale of activations. `settle` changes what would
hide errors: parameters that are all the same, as those of norms, scales that begin near 0 and switch a block off, and
weights so small that a bias is all that is left; batch norms get the statistics of random inputs.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

SEED = 20240701
CALIBRATION_BATCH = 8
VARIANTS = 2  # inputs on which each network runs


class NotThereError(Exception):
  """The installed library has no such architecture."""


@dataclass(frozen=True)
class Input:
  """A random tensor: normal values, or with `high` integers below it, or with `padded` a mask of ones and zeros."""

  shape: tuple[int, ...]
  high: int = 0
  padded: bool = False


@dataclass(frozen=True)
class Case:
  """A network as a module from tensors to one tensor. `scaled`: whether `settle` may scale its weights."""

  name: str
  library: str
  size: str  # "small" or "usual"
  build: Callable[[], Any] = field(repr=False)
  inputs: tuple[Input, ...]
  scaled: bool = True


# ---- tables

# A family a line: the small network, and the usual one. NAME@SIZE*BATCH: an image's height and width, and how many;
# the small ones are 4 images of 96, the usual ones 8 of 224. NAME! passes the size on to what builds the network.
TORCHVISION = """
resnet18 resnet50
vgg11@224*1 vgg16
alexnet@224*2 alexnet@224
densenet121 densenet201
mobilenet_v2 mobilenet_v2@224
mobilenet_v3_small mobilenet_v3_large
efficientnet_b0 efficientnet_v2_s
regnet_y_400mf regnet_y_8gf
shufflenet_v2_x0_5 shufflenet_v2_x1_0
squeezenet1_1 squeezenet1_0
mnasnet0_5 mnasnet1_0
googlenet googlenet@224
inception_v3@107 inception_v3@299
convnext_tiny convnext_small
vit_b_32! vit_b_16
swin_t swin_s
swin_v2_t swin_v2_s
maxvit_t@224*1 maxvit_t
lraspp_mobilenet_v3_large fcn_resnet50*4
deeplabv3_mobilenet_v3_large deeplabv3_resnet50*4
retinanet_resnet50_fpn*1 retinanet_resnet50_fpn@320*2
r3d_18@56*2 r2plus1d_18@112*2
mvit_v1_b@224*1 swin3d_t@112*1
"""
TIMM = """
coatnet_rmlp_nano_rw_224@224*1 coatnet_0_rw_224
maxxvit_rmlp_nano_rw_256@256*1 maxvit_rmlp_pico_rw_256@256
hrnet_w18_small hrnet_w18
resnest14d resnest50d
res2net50_26w_4s res2next50
ecaresnet26t ecaresnet50d
seresnet18 seresnext50_32x4d
nfnet_l0 nfnet_f0*4
mixer_s32_224@224*2 mixer_b16_224
gmlp_ti16_224@224*2 gmlp_s16_224
resmlp_12_224@224*2 resmlp_24_224
poolformer_s12 poolformerv2_s24
pvt_v2_b0 pvt_v2_b2
twins_pcpvt_small twins_svt_small
cait_xxs24_224@224*1 cait_s24_224
xcit_nano_12_p16_224 xcit_tiny_12_p8_224
deit3_small_patch16_224! deit3_base_patch16_224
beit_base_patch16_224@224*1 beitv2_base_patch16_224
eva02_tiny_patch14_224@224*1 eva02_small_patch14_224
levit_128s@224*2 levit_256
efficientformer_l1@224*2 efficientformerv2_s1
edgenext_xx_small edgenext_small
mobilevit_xxs mobilevit_s@256
fastvit_t8 fastvit_sa12
repvgg_a0 repvgg_b1g4
ghostnet_050 ghostnetv2_100
dla46_c dla60
ese_vovnet19b_dw ese_vovnet39b
cspresnet50 cspdarknet53
convmixer_768_32*1 convmixer_768_32*4
focalnet_tiny_srf focalnet_small_lrf
davit_tiny davit_small
gcvit_xxtiny@224*1 gcvit_tiny
hiera_tiny_224@224*1 hiera_small_224
volo_d1_224@224*1 volo_d1_224
crossvit_tiny_240@240*1 crossvit_small_240@240
tnt_s_patch16_224@224*1 tnt_s_patch16_224
inception_next_atto inception_next_tiny
mobileone_s0 mobileone_s1
tresnet_m tresnet_l@224*4
dpn48b dpn92
xception41p legacy_xception@299
resnetv2_50x1_bit resnetv2_50d_gn
coat_lite_tiny@224*1 coat_lite_small
mvitv2_tiny@224*1 mvitv2_small
convit_tiny@224*1 convit_small
mobilenetv4_conv_small mobilenetv4_hybrid_medium@256
starnet_s1 starnet_s4
sequencer2d_s@224*1 sequencer2d_s
rexnet_100 rexnetr_150
visformer_tiny@224*2 visformer_small
halonet26t@256*1 botnet26t_256@256
"""
SIZES = {"small": (96, 4), "usual": (224, 8)}


def _images(library, table):
  for line in table.split("\n"):
    for kind, text in zip(SIZES, line.split(), strict=False):
      yield image_case(library, kind, text)


def image_case(library, kind, text):
  """'resnet50@224*8' as a case; the tables above say what may be left out."""
  plain, _, batch_text = text.partition("*")
  plain, _, size_text = plain.partition("@")
  name = plain.rstrip("!")
  size, batch = int(size_text or SIZES[kind][0]), int(batch_text or SIZES[kind][1])
  frames = (16 if kind == "usual" or name.startswith("mvit_v1") else 8,) if name in VIDEO else ()
  build = partial(_torchvision if library == "torchvision" else _timm, name, size if "!" in plain else 0)
  return Case(
    f"{name}@{size}" + f"*{batch}" * (kind == "small"), library, kind, build, (Input((batch, 3, *frames, size, size)),)
  )


# ---- torchvision and timm

VIDEO = ("r3d_18", "r2plus1d_18", "mvit_v1_b", "swin3d_t")


def _torchvision(name, size):
  import torchvision

  given = {"weights": None}
  if name in ("googlenet", "inception_v3"):
    given |= {"aux_logits": False, "init_weights": False}
  if name.startswith(("fcn", "deeplab", "lraspp", "retinanet")):
    given["weights_backbone"] = None
  if size:
    given["image_size"] = size
  if name not in torchvision.models.list_models():
    raise NotThereError(f"torchvision {torchvision.__version__} has no {name}")
  model = torchvision.models.get_model(name, **given)
  if name.startswith(("fcn", "deeplab", "lraspp")):
    return picked(model, lambda found: found["out"])
  if name.startswith("retinanet"):  # what comes after that is no network: thresholds and suppression
    return picked(model.backbone, lambda found: model.head(list(found.values()))["cls_logits"], model.head)
  return model


def _timm(name, size):
  import timm

  if not timm.is_model(name):
    raise NotThereError(f"timm {timm.__version__} has no {name}")
  return timm.create_model(name, pretrained=False, **({"img_size": size} if size else {}))


def picked(model, pick, *more, **given):
  """A module that calls `model` with its inputs and `given`, and returns `pick` of the result.

  `more`: other modules that `pick` uses.
  """
  import torch

  class Picked(torch.nn.Module):
    def __init__(self):
      super().__init__()
      self.model = model
      self.more = torch.nn.ModuleList(more)

    def forward(self, *inputs):
      return pick(self.model(*inputs, **given))

  return Picked()


# ---- transformers

_SMALL = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
_TEXT = {**_SMALL, "vocab_size": 500}
_GROUPED = {**_TEXT, "num_key_value_heads": 2}
# Of the form of Llama, with a size that keeps a sweep short.
_LLAMA = {
  "hidden_size": 1024,
  "intermediate_size": 2816,
  "num_hidden_layers": 12,
  "num_attention_heads": 16,
  "num_key_value_heads": 4,
  "vocab_size": 8000,
}
_BASE = {
  "hidden_size": 768,
  "intermediate_size": 3072,
  "num_hidden_layers": 6,
  "num_attention_heads": 12,
  "vocab_size": 8000,
}
# What the models below take. Without a mask a decoder looks for packed sequences, which TorchScript can't write.
_MASKED, _TOKENS, _CAUSAL, _IMAGE = "ids, mask", "ids", "decoder's ids, mask", "image"

# Name: class of the model, what it takes, configuration when small and when usual: what differs from its defaults.
TRANSFORMERS = {
    "bert": ("BertModel", _MASKED, _TEXT, {}),
    "distilbert": ("DistilBertModel", _MASKED,
                   {"dim": 128, "n_layers": 2, "n_heads": 4, "hidden_dim": 256, "vocab_size": 500}, {}),
    "electra": ("ElectraModel", _MASKED, {**_TEXT, "embedding_size": 64}, {}),
    "albert": ("AlbertModel", _MASKED, {**_TEXT, "embedding_size": 64}, _BASE),
    "deberta-v2": ("DebertaV2Model", _MASKED,
                   {**_TEXT, "relative_attention": True, "position_buckets": 16, "norm_rel_ebd": "layer_norm",
                    "share_att_key": True, "pos_att_type": ["p2c", "c2p"]},
                   {**_BASE, "relative_attention": True, "position_buckets": 256, "norm_rel_ebd": "layer_norm",
                    "share_att_key": True, "pos_att_type": ["p2c", "c2p"]}),
    "mpnet": ("MPNetModel", _MASKED, _TEXT, {**_BASE}),
    "xlm-roberta": ("XLMRobertaModel", _MASKED, _TEXT, {"vocab_size": 8000}),
    "modernbert": ("ModernBertModel", _MASKED, {**_TEXT, "pad_token_id": 0}, {**_BASE, "pad_token_id": 0}),
    "squeezebert": ("SqueezeBertModel", _MASKED, {**_TEXT, "embedding_size": 128}, {"vocab_size": 8000}),
    "longformer": ("LongformerModel", _MASKED, {**_TEXT, "attention_window": 32}, {**_BASE, "attention_window": 64}),
    "gpt2": ("GPT2Model", _CAUSAL, {"n_embd": 128, "n_layer": 2, "n_head": 4, "vocab_size": 500}, {}),
    "gpt-neox": ("GPTNeoXModel", _CAUSAL, _TEXT, _BASE),
    "bloom": ("BloomModel", _TOKENS, {"hidden_size": 128, "n_layer": 2, "n_head": 4, "vocab_size": 500},
              {"hidden_size": 1024, "n_layer": 6, "n_head": 16, "vocab_size": 8000}),
    "llama": ("LlamaModel", _CAUSAL, _GROUPED, _LLAMA),
    "qwen2": ("Qwen2Model", _CAUSAL, _GROUPED, _LLAMA),
    "phi": ("PhiModel", _CAUSAL, _TEXT, _BASE),
    "gemma": ("GemmaModel", _CAUSAL, {**_GROUPED, "head_dim": 32}, {**_LLAMA, "head_dim": 64}),
    "t5-encoder": ("T5EncoderModel", _MASKED,
                   {"d_model": 128, "d_kv": 32, "d_ff": 256, "num_layers": 2, "num_heads": 4, "vocab_size": 500}, {}),
    "bart-encoder": ("BartModel", _MASKED,
                     {"d_model": 128, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 256,
                      "decoder_layers": 1, "decoder_ffn_dim": 64, "vocab_size": 500},
                     {"d_model": 768, "encoder_layers": 6, "encoder_attention_heads": 12, "encoder_ffn_dim": 3072,
                      "decoder_layers": 1, "decoder_ffn_dim": 64, "vocab_size": 8000}),
    "whisper-encoder": ("WhisperModel", "features",
                        {"d_model": 128, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 256,
                         "decoder_layers": 1, "decoder_attention_heads": 4, "decoder_ffn_dim": 64,
                         "max_source_positions": 100, "vocab_size": 500, "pad_token_id": 0}, {"decoder_layers": 1}),
    "wav2vec2": ("Wav2Vec2Model", "sound",
                 {**_SMALL, "conv_dim": [64] * 7, "num_conv_pos_embeddings": 16}, {}),
    "ast": ("ASTModel", "spectrogram", {**_SMALL, "max_length": 128}, {"max_length": 512}),
    "clip-vision": ("CLIPVisionModel", _IMAGE, {**_SMALL, "image_size": 96}, {}),
    "clip-text": ("CLIPTextModel", _TOKENS, {**_TEXT, "max_position_embeddings": 128},
                  {"max_position_embeddings": 128, "vocab_size": 8000}),
    "vit": ("ViTModel", _IMAGE, {**_SMALL, "image_size": 96}, {}),
    "dinov2": ("Dinov2Model", _IMAGE, {**_SMALL, "image_size": 98, "patch_size": 14}, {"patch_size": 14}),
    "swin": ("SwinModel", _IMAGE, {"image_size": 96, "window_size": 3, "embed_dim": 32, "depths": [1, 1, 2, 1],
                                      "num_heads": [2, 4, 8, 16]}, {}),
    "segformer": ("SegformerForSemanticSegmentation", _IMAGE, {"hidden_sizes": [16, 32, 64, 96], "num_labels": 20}, {}),
    "dpt": ("DPTForDepthEstimation", _IMAGE,
            {**_SMALL, "num_hidden_layers": 4, "image_size": 96, "backbone_out_indices": [0, 1, 2, 3],
             "neck_hidden_sizes": [16, 32, 64, 64],
             "fusion_hidden_size": 32}, {"image_size": 224}),
    "yolos": ("YolosModel", _IMAGE, {**_SMALL, "image_size": [96, 96], "num_detection_tokens": 10},
              {"image_size": [224, 224]}),
    "sam-vision": ("SamVisionModel", _IMAGE,
                   {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 256,
                    "window_size": 7, "global_attn_indexes": [1], "mlp_dim": 192, "output_channels": 32},
                   {"image_size": 512, "num_hidden_layers": 6, "global_attn_indexes": [2, 5]}),
}  # fmt: skip
_LENGTH = {"small": (2, 48), "usual": (8, 128)}  # tokens: batch and length
_DECODER_LENGTH = {"small": (1, 40), "usual": (1, 256)}
_ENCODER_ONLY = ("bart-encoder", "whisper-encoder")


def _hugging_face():
  for name, (model, takes, small, usual) in TRANSFORMERS.items():
    for kind, config in zip(SIZES, (small, usual), strict=True):
      inputs = _inputs(takes, kind, config, model)
      build = partial(_transformers, name, model, config, takes)
      yield Case(f"{name} ({kind})", "transformers", kind, build, inputs, scaled=not name.startswith("t5"))


def _inputs(takes, kind, config, model):
  batch, length = (_LENGTH if takes == _MASKED else _DECODER_LENGTH)[kind]
  tokens = Input((batch, min(length, config.get("max_position_embeddings", length))), 500)
  if takes in (_MASKED, _TOKENS, _CAUSAL):
    return (tokens,) if takes == _TOKENS else (tokens, Input(tokens.shape, padded=True))
  size = config.get("image_size", 224)
  size = size[0] if isinstance(size, list) else size
  few = 2 if kind == "small" else 8
  return {
    _IMAGE: (Input((2 if model.startswith("Sam") else few, 3, size, size)),),
    "features": (Input((1, 80, 2 * config.get("max_source_positions", 1500))),),
    "sound": (Input((1, 4000 if kind == "small" else 16000)),),
    "spectrogram": (Input((few // 2, config.get("max_length", 1024), 128)),),
  }[takes]


def _transformers(name, model, config, takes):
  import transformers

  if (made := getattr(transformers, model, None)) is None:
    raise NotThereError(f"transformers {transformers.__version__} has no {model}")
  network = made(made.config_class(**config))
  if name in _ENCODER_ONLY:
    network = network.get_encoder()
  with_mask = ("input_ids", "attention_mask")
  names = {_MASKED: with_mask, _CAUSAL: with_mask, _TOKENS: ("input_ids",)}.get(takes, ())
  more = {"use_cache": False} if takes == _CAUSAL or name == "bloom" else {}

  class Network(type(picked(network, _first))):
    def forward(self, *inputs):
      given = dict(zip(names, inputs, strict=True)) if names else {}
      return _first(self.model(*(() if names else inputs), **given, **more))

  return Network()


def _first(found):
  for key in ("logits", "predicted_depth", "last_hidden_state"):
    if getattr(found, key, None) is not None:
      return getattr(found, key)
  return found[0]


CASES = {case.name: case for case in (*_images("torchvision", TORCHVISION), *_images("timm", TIMM), *_hugging_face())}


# ---- weights and inputs


def inputs_of(case, variant, device, batch=None):
  """Random tensors, floating ones in float32; the same ones for the same variant."""
  import torch

  generator = torch.Generator().manual_seed(SEED + variant)
  made = []
  for each in case.inputs:
    shape = (batch or each.shape[0], *each.shape[1:])
    if each.padded:  # the first sequence is whole, the others end earlier
      tensor = torch.ones(shape, dtype=torch.int64)
      for row in range(1, shape[0]):
        tensor[row, int(torch.randint(shape[1] // 2, shape[1], (), generator=generator)) :] = 0
    elif each.high:
      tensor = torch.randint(3, each.high, shape, generator=generator)
    else:
      tensor = torch.randn(shape, generator=generator)
    made.append(tensor.to(device))
  return tuple(made)


def network(case, device):
  """The network in float32 for inference on the device. The same weights in every run on one kind of device."""
  import torch

  torch.manual_seed(SEED)
  model = case.build().eval().to(device)
  with torch.no_grad():
    settle(model, lambda: inputs_of(case, VARIANTS, device, CALIBRATION_BATCH), scaled=case.scaled)
  return model.eval()


def spell_out_attention(model):
  """Makes a model of transformers compute attention by products and a softmax, where it can.

  In float16 the TorchScript exporter writes scaled_dot_product_attention with a scale, as these models call it, as
  products of both float16 and float32, which no runtime takes.
  """
  for module in model.modules():
    if hasattr(module, "set_attn_implementation"):
      module.set_attn_implementation("eager")


def settle(model, inputs, *, scaled=True):
  """Gives the module parameters and statistics of which none is trivial and with which activations keep their scale.

  Args:
      model: a module in evaluation mode.
      inputs: what batch norms take their statistics from; called where there are batch norms.
      scaled: whether small weights of convolutions, linear layers and embeddings grow to the scale of their inputs.
  """
  import torch
  from torch import nn

  torch.manual_seed(SEED)
  for module in model.modules():
    weight = module._parameters.get("weight")
    if weight is None or not scaled or not weight.is_floating_point():
      continue
    if isinstance(module, nn.Linear):
      target = module.in_features**-0.5
    elif type(module).__name__ == "Conv1D":  # a linear layer of GPT-2
      target = weight.shape[0] ** -0.5
    elif isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
      target = (2 / weight[0].numel()) ** 0.5
    elif isinstance(module, nn.Embedding):
      target = 0.3
    else:
      continue
    std = float(weight.std()) if weight.numel() > 1 else target
    if std == 0:
      weight.normal_(0, target)
    elif std < 0.7 * target:
      weight *= target / std
  for name, parameter in model.named_parameters():
    if not parameter.is_floating_point() or parameter.numel() == 0:
      continue
    value = float(parameter.min())
    if value != float(parameter.max()):
      continue
    if parameter.numel() == 1:
      if value == 0:  # a residual branch that begins switched off
        parameter.fill_(0.3)
    elif name.endswith("bias"):
      parameter += 0.05 * torch.randn_like(parameter)
    elif value == 1:
      parameter.uniform_(0.8, 1.25)
    elif value == 0 and parameter.ndim > 1:
      parameter.normal_(0, 0.1)
    elif abs(value) < 0.5:  # the scale of a residual branch
      parameter.normal_(0, 0.3)
  norms = [each for each in model.modules() if isinstance(each, nn.modules.batchnorm._BatchNorm)]
  norms = [each for each in norms if each.running_var is not None]
  for norm in norms:
    norm.reset_running_stats()
    norm.momentum = None  # averages what it sees
    norm.train()
  if norms:
    model(*inputs())
  for norm in norms:
    norm.eval()
    norm.running_mean += 0.02 * torch.randn_like(norm.running_mean) * norm.running_var.sqrt()
    norm.running_var *= torch.empty_like(norm.running_var).uniform_(0.95, 1.05)
