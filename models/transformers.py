"""Transformers of torchvision and Hugging Face's library, as PyTorch modules with random weights.

The architectures are the published ones. Their own initialisation gives the weights; scales and shifts of the norms,
biases, and tables that begin at zero are random, so that no parameter is trivial. Attention is PyTorch's
scaled_dot_product_attention. Nothing is downloaded. Needs PyTorch, and torchvision or transformers.
"""

from functools import partial

from models.networks import Network, images

# Of the form of Llama, with a size between BERT-base and the smallest published one.
LLAMA = {
  "hidden_size": 1024,
  "intermediate_size": 2816,
  "num_hidden_layers": 12,
  "num_attention_heads": 16,
  "num_key_value_heads": 4,
  "vocab_size": 32000,
}


def _torchvision(name, **given):
  import torchvision

  return torchvision.models.get_model(name, weights=None, **given)


def _hugging_face(name, takes, part="", /, **config):
  """A module from the inputs `takes` to the first output of the model; `part`: to that of its encoder."""
  import torch
  import transformers

  kind = getattr(transformers, name)
  whole = kind(kind.config_class(**config, attn_implementation="sdpa"))
  more = {"use_cache": False} if "CausalLM" in name or "LMHead" in name else {}

  class First(torch.nn.Module):
    def __init__(self):
      super().__init__()
      self.model = getattr(whole, part) if part else whole

    def forward(self, *inputs):
      return self.model(**dict(zip(takes, inputs, strict=True)), **more)[0]

  return First()


def _decoder(name, *, static=False, **config):
  """A step of decoding: (tokens, keys and values of each layer) to (logits, the same with those of the tokens).

  `static`: with a cache of fixed length, written in place: (tokens, position of the first, keys and values).
  """
  import torch
  import transformers

  kind = getattr(transformers, name)

  def cache_of(past, position, model):
    if not static:
      return transformers.DynamicCache(list(zip(past[::2], past[1::2], strict=True)))
    cache = transformers.StaticCache(model.config, max_cache_len=past[0].shape[2])
    copied = [each.clone() for each in past] if torch.compiler.is_exporting() else past
    for layer, keys, values in zip(cache.layers, copied[::2], copied[1::2], strict=True):
      layer.keys, layer.values, layer.cumulative_length = keys, values, position.clone()
      layer.dtype, layer.device, layer.is_initialized = keys.dtype, keys.device, True
    return cache

  class Step(torch.nn.Module):
    def __init__(self):
      super().__init__()
      self.model = kind(kind.config_class(**config, attn_implementation="sdpa"))

    def forward(self, tokens, *given):
      position, past = (given[0], given[1:]) if static else (None, given)
      cache = cache_of(past, position, self.model)
      logits = self.model(tokens, past_key_values=cache, use_cache=True)[0]
      return (logits, *(each for layer in cache.layers for each in (layer.keys, layer.values)))

  return Step()


# ---- inputs


def _tokens(vocabulary, sizes, *, mask=False):
  """Token numbers of shape [batch, length]; a mask that leaves no token out."""
  import torch

  tokens = {"input_ids": torch.randint(3, vocabulary, sizes)}
  return {**tokens, "attention_mask": torch.ones(sizes, dtype=torch.int64)} if mask else tokens


def _step(vocabulary, layers, heads, head_size, sizes, *, static=False):
  """One token of each sequence and the cache, of which each tensor is [batch, heads, length, head size].

  `static`: the token has the cache's last row.
  """
  import torch

  batch, length = sizes
  names = [f"past_{part}_{layer}" for layer in range(layers) for part in ("key", "value")]
  past = {name: torch.randn(batch, heads, length, head_size) for name in names}
  position = {"position": torch.tensor(length - 1)} if static else {}
  return {"input_ids": torch.randint(3, vocabulary, (batch, 1)), **position, **past}


def _sound(sizes):
  """Half a minute of a spectrogram."""
  import torch

  return {"input_features": torch.randn(*sizes, 80, 3000)}


# ---- table


def settle(model):
  """Makes random what is the same number throughout: scales and shifts of norms, biases, heads and tables."""
  import torch

  for parameter in model.parameters():
    value = float(parameter.min())
    if value != float(parameter.max()):
      continue
    if value == 1:
      parameter.uniform_(0.8, 1.25)
    else:
      parameter += (0.05 if parameter.ndim == 1 else 0.02) * torch.randn_like(parameter)


def _text(title, build, inputs, sizes="BATCHxLENGTH", **given):
  return Network(title, build, inputs, sizes, channels_last=False, exporter="dynamo", settle=settle, **given)


def _steps(key, title, name, inputs, **config):
  """A step of decoding with a cache that grows, and with one of fixed length."""
  build, step = partial(_decoder, name, **config), partial(_step, *inputs)
  return {
    f"{key}_decode": _text(f"{title}, a step", build, step),
    f"{key}_static": _text(
      f"{title}, a step in place", partial(build, static=True), partial(step, static=True), in_place=True
    ),
  }


def _image(title, name):
  return Network(title, partial(_torchvision, name), images((3, 224, 224)), exporter="dynamo", settle=settle)


_IDS, _MASKED = ("input_ids",), ("input_ids", "attention_mask")
NETWORKS = {
  "bert_base": _text("BERT-base", partial(_hugging_face, "BertModel", _MASKED), partial(_tokens, 30522, mask=True)),
  "vit_b_16": _image("ViT-B/16", "vit_b_16"),
  "swin_t": _image("Swin-T", "swin_t"),
  "maxvit_t": _image("MaxViT-T", "maxvit_t"),
  "gpt2": _text("GPT-2", partial(_hugging_face, "GPT2LMHeadModel", _IDS), partial(_tokens, 50257)),
  "llama": _text("Llama form", partial(_hugging_face, "LlamaForCausalLM", _IDS, **LLAMA), partial(_tokens, 32000)),
  "t5_encoder": _text("T5-small encoder", partial(_hugging_face, "T5EncoderModel", _IDS), partial(_tokens, 32128)),
  "whisper_encoder": _text(
    "Whisper-tiny encoder", partial(_hugging_face, "WhisperModel", ("input_features",), "encoder"), _sound, "BATCH"
  ),
  **_steps("gpt2", "GPT-2", "GPT2LMHeadModel", (50257, 12, 12, 64), n_positions=2048),
  **_steps("llama", "Llama form", "LlamaForCausalLM", (32000, 12, 4, 64), **LLAMA),
}
