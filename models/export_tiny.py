"""Writes the small models in tests/data with PyTorch's own ONNX exporters.

Every file comes from a tiny configuration with random weights of a published architecture (BERT, GPT-2, ViT, Swin,
ConvNeXt, MobileNet-v3, EfficientNet, T5, Llama; a residual network with torch.nn.RMSNorm) or is a program of
tiny_scatters.py, through the dynamo exporter (``torch.onnx.export(dynamo=True)``) or the TorchScript one
(``dynamo=False``). The tests run the optimizer on all of them. They need neither PyTorch nor this script; it is here so
that the files can be made again:

    pip install torch torchvision transformers onnxscript onnxruntime
    python -m models.export_tiny                 # all of them
    python -m models.export_tiny --only bert     # those whose name contains "bert"
    python -m models.export_tiny --list

``expected.json`` beside them records for each file how it was made, which inputs it takes, and how many layer and RMS
norms and which scatters it holds. Neither count comes from the ONNX file: the scatters' are given below, and for the
norms' the script counts the calls of norm modules (``torch.nn.LayerNorm``, ``torch.nn.RMSNorm`` and the architectures'
own RMS norms) while PyTorch runs the model.

Each file is run in ONNX Runtime and compared with PyTorch before it is written. Doc strings and metadata are removed:
the exporters store stack traces with file paths there. Then names and weights are shortened (``models/names.py``,
``models/packed.py``).
"""

import argparse
import json
import math
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # configurations are built here; nothing is downloaded

import numpy as np
import onnx
import onnxruntime
import torch
import transformers
from torch import nn

from models import tiny_scatters
from models.names import shorten_names
from models.packed import pack, shorten_weights, strip, unpack

SEED = 20240701
VOCAB = 48  # token ids in every language model


class OneOutput(nn.Module):
  """A transformers model as a function of positional tensors that returns one of its outputs."""

  def __init__(self, model, input_names, index, options):
    super().__init__()
    self.model, self.input_names, self.index, self.options = model, input_names, index, options

  def forward(self, *tensors):
    """The chosen output."""
    result = self.model(**dict(zip(self.input_names, tensors, strict=True)), return_dict=False, **self.options)
    return result[self.index]


class ResidualRMS(nn.Module):
  """x + MLP(RMSNorm(x)), ``depth`` times, with torch.nn.RMSNorm: the exporter keeps it whole at opset 23."""

  def __init__(self, width=24, depth=2):
    super().__init__()
    self.norms = nn.ModuleList(nn.RMSNorm(width, eps=1e-5) for _ in range(depth + 1))
    self.up = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(depth))
    self.down = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(depth))

  def forward(self, x):
    """x and the result have shape [batch, sequence, width]."""
    for norm, up, down in zip(self.norms, self.up, self.down, strict=False):
      x = x + down(nn.functional.gelu(up(norm(x))))
    return self.norms[-1](x)


@dataclass(frozen=True)
class Architecture:
  """One network: how to build it and the tensors it takes, as ``{name: (dtype, shape, exclusive upper bound)}``.

  A dtype is "float", "int64", "bool" or "index", which is int64 without duplicates.
  ``axes`` names the axes that a dynamic export leaves open, for each input; the output's are named by the exporter.
  ``scatters`` says how many of ortplugin's scatter operators the network comes down to.
  """

  build: Callable[[], nn.Module]
  inputs: dict[str, tuple[str, tuple[int, ...], int]]
  axes: dict[str, dict[int, str]] = field(default_factory=dict)
  scatters: dict[str, int] = field(default_factory=dict)


def wrap(model, *input_names, index=0, **options):
  """Output `index` of a transformers model as a function of these inputs."""
  return OneOutput(model, input_names, index, options)


def bert():
  """Layer norms after the residual Adds; 5 of them."""
  config = transformers.BertConfig(
      vocab_size=VOCAB, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
      max_position_embeddings=32, attn_implementation="eager",
  )  # fmt: skip
  model = transformers.BertModel(config, add_pooling_layer=False)
  return wrap(model, "input_ids", "attention_mask", "token_type_ids")


def gpt2():
  """Layer norms before attention and MLP, causal mask; 5 of them."""
  config = transformers.GPT2Config(
      vocab_size=VOCAB, n_embd=16, n_layer=2, n_head=2, n_inner=32, n_positions=32, attn_implementation="eager",
      bos_token_id=0, eos_token_id=0,
  )  # fmt: skip
  return wrap(transformers.GPT2Model(config), "input_ids", "attention_mask", use_cache=False)


def vit():
  """Patch embedding and layer norms in front; 5 of them."""
  config = transformers.ViTConfig(
      hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=16, patch_size=8,
      attn_implementation="eager",
  )  # fmt: skip
  return wrap(transformers.ViTModel(config, add_pooling_layer=False), "pixel_values")


def swin():
  """Shifted windows, and layer norms on merged patches; 9 of them."""
  config = transformers.SwinConfig(
      image_size=32, patch_size=4, embed_dim=8, depths=[2, 1], num_heads=[1, 2], window_size=4, mlp_ratio=2.0,
      attn_implementation="eager",
  )  # fmt: skip
  return wrap(transformers.SwinModel(config, add_pooling_layer=False), "pixel_values")


def convnext():
  """Layer norms over channels, between Transposes in the stem and between stages; 6 of them."""
  config = transformers.ConvNextConfig(
    num_channels=3, patch_size=4, num_stages=2, hidden_sizes=[8, 16], depths=[1, 2], image_size=32
  )
  return wrap(transformers.ConvNextModel(config), "pixel_values", index=1)  # pooled: its norm is used


def t5_encoder():
  """RMS norms, no biases, relative position bias; 5 of them."""
  config = transformers.T5Config(
      vocab_size=VOCAB, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, relative_attention_num_buckets=8,
      relative_attention_max_distance=16, use_cache=False, attn_implementation="eager",
  )  # fmt: skip
  return wrap(transformers.T5EncoderModel(config), "input_ids", "attention_mask")


def mobilenet():
  """MobileNet-v3: HardSwish, squeeze and excitation by HardSigmoid, residuals; no norm that is left."""
  from torchvision.models import mobilenetv3

  row = mobilenetv3.InvertedResidualConfig  # in, kernel, expanded, out, excitation, activation, stride, dilation, width
  rows = [row(8, 3, 16, 8, True, "HS", 1, 1, 1.0), row(8, 3, 16, 8, False, "RE", 1, 1, 1.0)]
  return mobilenetv3.MobileNetV3(rows, last_channel=16, num_classes=5)


def efficientnet():
  """EfficientNet: Silu, squeeze and excitation by Sigmoid, residuals; no norm that is left."""
  from torchvision.models import efficientnet as models

  rows = [models.MBConvConfig(2, 3, 1, 8, 8, 2)]  # expansion, kernel, stride, in, out, layers
  return models.EfficientNet(rows, dropout=0.0, num_classes=5, last_channel=16)


def llama():
  """RMS norms with Casts to fp32, rotary embeddings, grouped heads; 5 of them."""
  config = transformers.LlamaConfig(
      vocab_size=VOCAB, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
      num_key_value_heads=1, max_position_embeddings=32, use_cache=False, attn_implementation="eager",
      bos_token_id=0, eos_token_id=0,
  )  # fmt: skip
  return wrap(transformers.LlamaModel(config), "input_ids", "attention_mask", use_cache=False)


TOKENS = ("int64", (2, 8), VOCAB)
MASK = ("int64", (2, 8), 2)
OPEN = {0: "batch", 1: "sequence"}
MASKED_TOKENS = {"input_ids": TOKENS, "attention_mask": MASK}
MASKED_AXES = {"input_ids": OPEN, "attention_mask": OPEN}

ARCHITECTURES: dict[str, Architecture] = {
  "bert": Architecture(
    bert,
    {**MASKED_TOKENS, "token_type_ids": ("int64", (2, 8), 2)},
    {**MASKED_AXES, "token_type_ids": OPEN},
  ),
  "gpt2": Architecture(gpt2, MASKED_TOKENS, MASKED_AXES),
  "vit": Architecture(vit, {"pixel_values": ("float", (2, 3, 16, 16), 0)}, {"pixel_values": {0: "batch"}}),
  "swin": Architecture(swin, {"pixel_values": ("float", (1, 3, 32, 32), 0)}, {"pixel_values": {0: "batch"}}),
  "convnext": Architecture(convnext, {"pixel_values": ("float", (2, 3, 32, 32), 0)}, {"pixel_values": {0: "batch"}}),
  "mobilenet": Architecture(mobilenet, {"image": ("float", (2, 3, 16, 16), 0)}, {"image": {0: "batch"}}),
  "efficientnet": Architecture(efficientnet, {"image": ("float", (2, 3, 16, 16), 0)}, {"image": {0: "batch"}}),
  "t5": Architecture(t5_encoder, MASKED_TOKENS, MASKED_AXES),
  # one row: at opset 23 the exporter writes RotaryEmbedding with caches of batch 1, which ORT takes for no other
  "llama": Architecture(
    llama,
    {"input_ids": ("int64", (1, 8), VOCAB), "attention_mask": ("int64", (1, 8), 2)},
    {"input_ids": {1: "sequence"}, "attention_mask": {1: "sequence"}},
  ),
  "rms": Architecture(ResidualRMS, {"x": ("float", (2, 5, 24), 0)}, {"x": OPEN}),
  "assign": Architecture(
    tiny_scatters.Assign,
    {"x": ("float", (4, 4, 5), 0), "v": ("float", (4, 5), 0)},
    {"x": {0: "rows"}},
    {"UpdateSlice": 5},
  ),
  "index": Architecture(
    tiny_scatters.Index,
    {
      "x": ("float", (4, 4, 5), 0),
      "v": ("float", (4, 2, 5), 0),
      "index": ("index", (2,), 3),
      "repeated": ("int64", (2,), 4),
    },
    {"x": {0: "batch"}, "v": {0: "batch"}},
    {"ScatterElements": 4, "ScatterND": 1},
  ),
  "scatter": Architecture(
    tiny_scatters.Scatter,
    {
      "x": ("float", (3, 4, 5), 0),
      "v": ("float", (3, 2, 5), 0),
      "order": ("float", (3, 4, 5), 0),
      "repeated": ("int64", (3, 2, 5), 4),
    },
    scatters={"ScatterElements": 3},
  ),
  "masked": Architecture(  # only masked_scatter stays a scatter
    tiny_scatters.Masked,
    {"x": ("float", (4, 4, 5), 0), "mask": ("bool", (4, 4, 5), 2), "v": ("float", (4, 4, 5), 0)},
    {"x": {0: "n"}, "mask": {0: "n"}, "v": {0: "n"}},
    {"ScatterND": 1},
  ),
  "cache": Architecture(
    tiny_scatters.Cache,
    {
      "cache": ("float", (1, 2, 8, 4), 0),
      "new": ("float", (1, 2, 2, 4), 0),
      "past": ("float", (1, 2, 3, 4), 0),
      "position": ("int64", (1,), 6),
    },
    {"new": {2: "tokens"}, "past": {2: "length"}},
    {"UpdateSlice": 3},
  ),
}


@dataclass(frozen=True)
class Case:
  """One file: an architecture through one exporter. ``opset`` None is the exporter's own default."""

  architecture: str
  exporter: str  # "torchscript" or "dynamo"
  opset: int | None = None
  dtype: str = "float"  # of the weights and the floating inputs: "float" or "float16"
  dynamic: bool = False

  @property
  def name(self):
    """The file name without suffix: architecture, exporter, and what differs from the defaults."""
    parts = [self.architecture, self.exporter]
    if self.opset is not None:
      parts.append(f"opset{self.opset}")
    if self.dtype == "float16":
      parts.append("fp16")
    if self.dynamic:
      parts.append("dynamic")
    return "_".join(parts)


# Opset 14 decomposes layer norms (axes as attributes); 17 has LayerNormalization; 18 takes axes as inputs; 23 has
# RMSNormalization. RMS norms that a model spells out stay decomposed in all of them.
CASES: tuple[Case, ...] = (
  Case("bert", "torchscript", 14),
  Case("bert", "torchscript", 17, dynamic=True),
  Case("bert", "torchscript", 14, "float16"),
  Case("bert", "dynamo"),
  Case("bert", "dynamo", dynamic=True),
  Case("bert", "dynamo", 23, "float16"),
  Case("gpt2", "torchscript", 14, dynamic=True),
  Case("gpt2", "torchscript", 18),
  Case("gpt2", "dynamo"),
  Case("vit", "torchscript", 14),
  Case("vit", "torchscript", 17, dynamic=True),
  Case("vit", "dynamo"),
  Case("swin", "torchscript", 14),
  Case("swin", "dynamo"),
  Case("convnext", "torchscript", 14),
  Case("convnext", "torchscript", 18),
  Case("convnext", "dynamo", dynamic=True),
  Case("mobilenet", "torchscript", 17),
  Case("mobilenet", "dynamo", dynamic=True),
  Case("efficientnet", "torchscript", 17, dynamic=True),
  Case("efficientnet", "dynamo"),
  Case("t5", "torchscript", 14, dynamic=True),
  Case("t5", "torchscript", 18),
  Case("t5", "dynamo"),
  Case("t5", "dynamo", 23, "float16"),
  Case("llama", "torchscript", 17),
  Case("llama", "torchscript", 18, "float16"),
  Case("llama", "dynamo", dynamic=True),
  Case("llama", "dynamo", 23),
  Case("rms", "dynamo", None, "float16"),
  Case("rms", "dynamo"),
  Case("rms", "dynamo", 23),
  Case("assign", "torchscript", 14),
  Case("assign", "dynamo", dynamic=True),
  Case("index", "torchscript", 17, dynamic=True),
  Case("index", "dynamo", dynamic=True),
  Case("scatter", "dynamo"),  # TorchScript declares a wrong shape for scatter_reduce's result
  Case("masked", "torchscript", 14),
  Case("masked", "dynamo", dynamic=True),
  Case("cache", "torchscript", 17, dynamic=True),
  Case("cache", "dynamo", dynamic=True),
)

TORCH_DTYPES = {"float": torch.float32, "float16": torch.float16, "int64": torch.int64, "bool": torch.bool}
# rtol, atol of a whole network against PyTorch. In fp16 the two runtimes round at different places in every layer.
TOLERANCES = {"float": (1e-4, 1e-5), "float16": (1e-2, 2e-2)}


def randomize(model):
  """Gives every parameter a random value. Norms keep weights near 1, but unlike each other: a rewrite that drops
  or swaps a weight or a bias must show in the outputs. All are numbers of bfloat16, which make the archive a third
  smaller."""
  with torch.no_grad():
    for module in model.modules():
      for name, parameter in module.named_parameters(recurse=False):
        noise = torch.randn_like(parameter)
        if is_norm(module):
          values = 1 + 0.3 * noise if name == "weight" else 0.3 * noise
        elif parameter.ndim > 1:
          values = noise / max(1.0, parameter[0].numel() ** 0.5)
        else:
          values = 0.5 * noise
        parameter.copy_(values.bfloat16())


def is_norm(module):
  """'layer' or 'rms' for a norm module, else None."""
  if isinstance(module, nn.LayerNorm):
    return "layer"
  if type(module).__name__ in ("RMSNorm", "LlamaRMSNorm", "T5LayerNorm"):
    return "rms"
  return None


def count_norms(model, inputs):
  """Runs the model; returns how often layer and RMS norms ran, and its output."""
  counts = {"layer": 0, "rms": 0}

  def counted(kind):
    def hook(*_):
      counts[kind] += 1

    return hook

  handles = [m.register_forward_hook(counted(kind)) for m in model.modules() if (kind := is_norm(m))]
  with torch.no_grad():
    output = model(*inputs)
  for handle in handles:
    handle.remove()
  return counts, output


def make_inputs(architecture, dtype):
  """Random tensors in the order of the architecture's inputs."""
  tensors = []
  for name, (kind, shape, high) in architecture.inputs.items():
    if kind == "float":
      tensors.append(torch.randn(shape).to(TORCH_DTYPES[dtype]))
    elif kind == "index":
      tensors.append(torch.randperm(high)[: math.prod(shape)].reshape(shape))
    else:
      values = torch.randint(0, high, shape)
      if name == "attention_mask":
        values[:, 0] = 1  # a row that masks everything has no defined attention
      tensors.append(values.to(TORCH_DTYPES[kind]))
  return tuple(tensors)


def export(case, model, inputs):
  """The model as the exporter writes it."""
  architecture = ARCHITECTURES[case.architecture]
  names = list(architecture.inputs)
  options = {"input_names": names, "output_names": ["output"], "opset_version": case.opset}
  with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
    warnings.simplefilter("ignore")
    path = Path(folder) / "model.onnx"
    if case.exporter == "dynamo":
      if case.dynamic:
        axes = [{axis: torch.export.Dim.DYNAMIC for axis in architecture.axes.get(name, ())} for name in names]
        # OneOutput takes *tensors: its inputs are one tuple
        options["dynamic_shapes"] = (tuple(axes),) if isinstance(model, OneOutput) else tuple(axes)
      torch.onnx.export(model, inputs, path, dynamo=True, external_data=False, verbose=False, **options)
    else:
      if case.dynamic:
        options["dynamic_axes"] = architecture.axes
      torch.onnx.export(model, inputs, path, dynamo=False, **options)
    return onnx.load(path)


def all_nodes(graph):
  """Every node of a graph and of the bodies in its attributes."""
  for node in graph.node:
    yield node
    for attribute in node.attribute:
      for body in [attribute.g] if attribute.HasField("g") else attribute.graphs:
        yield from all_nodes(body)


def make(case):
  """Builds, exports and checks one case; returns the model and its entry in expected.json."""
  architecture = ARCHITECTURES[case.architecture]
  torch.manual_seed(SEED)
  transformers.set_seed(SEED)
  model = architecture.build().eval()
  randomize(model)
  model.to(TORCH_DTYPES[case.dtype])
  inputs = make_inputs(architecture, case.dtype)
  norms, wanted = count_norms(model, inputs)

  proto = export(case, model, inputs)
  strip(proto)
  onnx.checker.check_model(proto, full_check=True)
  session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
  feeds = {i.name: t.numpy() for i, t in zip(session.get_inputs(), inputs, strict=True)}
  (got,) = session.run(None, feeds)
  rtol, atol = TOLERANCES[case.dtype]
  np.testing.assert_allclose(got, wanted.numpy(), rtol=rtol, atol=atol, err_msg=case.name)
  shorten_names(proto, nodes=True)
  shorten_weights(proto)  # by their names

  entry = {
    "architecture": case.architecture,
    "exporter": case.exporter,
    "opset": next(o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")),
    "dtype": case.dtype,
    "dynamic": case.dynamic,
    "layer_norms": norms["layer"],
    "rms_norms": norms["rms"],
    **({"scatters": architecture.scatters} if architecture.scatters else {}),
    "inputs": {
      name: {"dtype": case.dtype if kind == "float" else kind, "shape": list(shape), "high": high}
      for name, (kind, shape, high) in architecture.inputs.items()
    },
    "torch": torch.__version__.split("+")[0],
    "transformers": transformers.__version__,
  }
  return proto, entry


def main(arguments=None):
  """Writes the chosen models and expected.json."""
  parser = argparse.ArgumentParser(description="Writes the small exported models in tests/data.")
  parser.add_argument("--only", default="", help="only the cases whose name contains this text")
  parser.add_argument("--list", action="store_true", help="print the names and stop")
  options = parser.parse_args(arguments)
  cases = [case for case in CASES if options.only in case.name]
  if options.list or not cases:
    print("\n".join(case.name for case in cases) or f"no case contains '{options.only}'")
    return 0 if cases else 1

  folder = Path(tempfile.mkdtemp(prefix="ortplugin-models-"))
  unpack(folder)
  expected_path = folder / "expected.json"
  expected = json.loads(expected_path.read_text()) if expected_path.exists() else {}
  for case in cases:
    proto, entry = make(case)
    data = proto.SerializeToString(deterministic=True)
    (folder / f"{case.name}.onnx").write_bytes(data)
    expected[case.name] = entry
    kinds = {n.op_type for n in all_nodes(proto.graph) if "Normalization" in n.op_type} or {"decomposed"}
    print(
      f"{case.name:36s} {len(data):7d} B  opset {entry['opset']}  layer {entry['layer_norms']}"
      f"  rms {entry['rms_norms']}  {', '.join(sorted(kinds))}"
    )
  known = {case.name for case in CASES}
  expected = {name: expected[name] for name in sorted(expected) if name in known}
  lines = [f"{json.dumps(name)}: {json.dumps(entry, separators=(',', ':'))}" for name, entry in expected.items()]
  expected_path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
  pack(folder)
  shutil.rmtree(folder)
  return 0


if __name__ == "__main__":
  sys.exit(main())
