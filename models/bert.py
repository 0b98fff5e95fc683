"""BERT encoders as ONNX models, in the form in which PyTorch's exporter writes them.

The graph is opset 17 and unfused: embeddings are Gather and Add, dense layers MatMul and Add, GELU its Erf formula,
residuals plain Adds in front of LayerNormalization. That leaves the optimizer the work that it has with real exports.
Weights come from a function of their PyTorch name, so that the same builder serves published weights
(models/minilm.py) and random ones (`build_bert_base`).
"""

from dataclasses import dataclass

import numpy as np
import onnx
import onnx.parser
from onnx import helper, numpy_helper

# What stands between linear layers and norms; {i} is the number of the layer.
EMBEDDINGS = """
  shape = Shape(input_ids)  length = Gather(shape, sequence_axis)
  positions = Slice(position_ids, zero, length, zero)
  words = Gather("embeddings.word_embeddings.weight", input_ids)
  types = Gather("embeddings.token_type_embeddings.weight", token_type_ids)
  places = Gather("embeddings.position_embeddings.weight", positions)
  typed = Add(words, types)  placed = Add(typed, places)
  mask = Unsqueeze(attention_mask, mask_axes)  seen = Cast<to = {element}>(mask)
  unseen = Sub(one, seen)  bias = Mul(unseen, lowest)
"""
ATTENTION = """
  qh{i} = Reshape(q{i}, split_heads)  qt{i} = Transpose<perm = [0, 2, 1, 3]>(qh{i})
  kh{i} = Reshape(k{i}, split_heads)  kt{i} = Transpose<perm = [0, 2, 3, 1]>(kh{i})
  vh{i} = Reshape(v{i}, split_heads)  vt{i} = Transpose<perm = [0, 2, 1, 3]>(vh{i})
  products{i} = MatMul(qt{i}, kt{i})  scaled{i} = Div(products{i}, sqrt_head_size)  scores{i} = Add(scaled{i}, bias)
  weights{i} = Softmax<axis = -1>(scores{i})  heads{i} = MatMul(weights{i}, vt{i})
  rows{i} = Transpose<perm = [0, 2, 1, 3]>(heads{i})  context{i} = Reshape(rows{i}, join_heads)
"""
GELU = """
  part{i} = Div(inner{i}, sqrt_2)  erf{i} = Erf(part{i})  more{i} = Add(erf{i}, one)
  twice{i} = Mul(inner{i}, more{i})  gelu{i} = Mul(twice{i}, half)
"""
POOLING = """
  tokens = Cast<to = {element}>(attention_mask)  token_mask = Unsqueeze(tokens, last_axis)
  kept = Mul({x}, token_mask)  total = ReduceSum<keepdims = 0>(kept, sequence_axis)
  count = ReduceSum<keepdims = 0>(token_mask, sequence_axis)  some = Clip(count, smallest_count)
  mean = Div(total, some)  norm = ReduceL2<axes = [-1], keepdims = 1>(mean)  length2 = Clip(norm, smallest_length)
  sentence_embedding = Div(mean, length2)
"""


@dataclass(frozen=True)
class BertConfig:
  """Sizes of an encoder, named as in a published ``config.json``. The defaults are BERT-base's."""

  hidden_size: int = 768
  num_hidden_layers: int = 12
  num_attention_heads: int = 12
  intermediate_size: int = 3072
  vocab_size: int = 30522
  max_position_embeddings: int = 512
  type_vocab_size: int = 2
  layer_norm_eps: float = 1e-12

  @property
  def norms(self):
    """Layer norms in the encoder: one after the embeddings, two in each layer."""
    return 1 + 2 * self.num_hidden_layers


def build_bert(config, weights, dtype=np.float32, embed=False):
  """An encoder with int64 inputs input_ids, attention_mask and token_type_ids, each [batch, sequence].

  Its output is ``last_hidden_state`` [batch, sequence, hidden_size]; with `embed` it is ``sentence_embedding``
  [batch, hidden_size], the mean over the unmasked tokens scaled to length 1. Weights and arithmetic have `dtype`.
  """
  dtype, hidden, inner = np.dtype(dtype), config.hidden_size, config.intermediate_size
  heads, layers = config.num_attention_heads, config.num_hidden_layers
  head_size, epsilon = hidden // heads, config.layer_norm_eps
  numbers = {"one": 1, "half": 0.5, "sqrt_2": 2**0.5, "sqrt_head_size": head_size**0.5}
  numbers["lowest"] = -65504 if dtype == np.float16 else -3.3895313892515355e38
  numbers |= {"smallest_count": 1e-9, "smallest_length": 1e-12} if embed else {}
  integers = {"sequence_axis": [1], "zero": [0], "mask_axes": [1, 2], **({"last_axis": [-1]} if embed else {})}
  integers |= {"position_ids": range(config.max_position_embeddings), "join_heads": [0, 0, hidden]}
  integers["split_heads"] = [0, 0, heads, head_size]
  tensors = {name: np.asarray(values, np.int64) for name, values in integers.items()}
  tensors |= {name: np.asarray(value, dtype) for name, value in numbers.items()}

  def parameter(name, shape, transposed=False):
    values = weights(name, shape)
    tensors[name] = np.ascontiguousarray(values.T if transposed else values, dtype)
    return f'"{name}"'

  def dense(y, name, x, inputs, outputs):
    weight, bias = parameter(f"{name}.weight", (outputs, inputs), True), parameter(f"{name}.bias", (outputs,))
    return f"{y}_product = MatMul({x}, {weight})  {y} = Add({bias}, {y}_product)\n"

  def normed(y, name, x):
    gamma, beta = (parameter(f"{name}.{part}", (hidden,)) for part in ("weight", "bias"))
    return f"{y} = LayerNormalization<axis = -1, epsilon = {epsilon}>({x}, {gamma}, {beta})\n"

  rows = {"word": config.vocab_size, "token_type": config.type_vocab_size, "position": config.max_position_embeddings}
  for kind, count in rows.items():
    parameter(f"embeddings.{kind}_embeddings.weight", (count, hidden))
  element = helper.np_dtype_to_tensor_dtype(dtype)
  x = "embedded"
  text = EMBEDDINGS.format(element=element) + normed(x, "embeddings.LayerNorm", "placed")
  for i in range(layers):
    name = f"encoder.layer.{i}"
    for y, part in zip("qkv", ("query", "key", "value"), strict=True):
      text += dense(f"{y}{i}", f"{name}.attention.self.{part}", x, hidden, hidden)
    text += ATTENTION.format(i=i) + dense(f"a{i}", f"{name}.attention.output.dense", f"context{i}", hidden, hidden)
    text += f"b{i} = Add(a{i}, {x})  " + normed(f"c{i}", f"{name}.attention.output.LayerNorm", f"b{i}")
    text += dense(f"inner{i}", f"{name}.intermediate.dense", f"c{i}", hidden, inner) + GELU.format(i=i)
    text += dense(f"d{i}", f"{name}.output.dense", f"gelu{i}", inner, hidden) + f"e{i} = Add(d{i}, c{i})  "
    x = f"x{i}" if i + 1 < layers else "last_hidden_state"
    text += normed(x, f"{name}.output.LayerNorm", f"e{i}")
  shape = f"batch, sequence, {hidden}"
  if embed:
    text += POOLING.format(element=element, x=x)
    x, shape = "sentence_embedding", f"batch, {hidden}"
  named = {np.dtype(np.float16): "float16", np.dtype(np.float32): "float"}[dtype]
  inputs = ", ".join(f"int64[batch, sequence] {name}" for name in ("input_ids", "attention_mask", "token_type_ids"))
  model = onnx.parser.parse_model(
    f'<ir_version: 8, opset_import: ["": 17], producer_name: "ortplugin models">'
    f" bert ({inputs}) => ({named}[{shape}] {x}) {{ {text} }}"
  )
  model.graph.initializer.extend(numpy_helper.from_array(values, name) for name, values in tensors.items())
  return model


def random_weights(seed):
  """Weights as BERT is initialised (standard deviation 0.02), but with norms and biases away from 1 and 0."""
  generator = np.random.default_rng(seed)

  def weights(name, shape):
    noise = generator.standard_normal(shape, dtype=np.float32)
    if "LayerNorm" in name:
      return 0.1 * noise + (1 if name.endswith("weight") else 0)
    return 0.02 * noise

  return weights


def build_bert_base(dtype=np.float32, seed=0):
  """BERT-base (12 layers, 768 wide, 25 layer norms) with random weights; 440 MB in fp32."""
  return build_bert(BertConfig(), random_weights(seed), dtype)
