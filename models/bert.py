"""BERT encoders as ONNX models, built with onnx.helper in the form in which PyTorch's exporter writes them.

The graph is opset 17 and unfused: embeddings are Gather and Add, dense layers MatMul and Add, GELU its Erf formula,
residuals plain Adds in front of LayerNormalization. That leaves the optimizer the work that it has with real exports.
Weights come from a function of their PyTorch name, so that the same builder serves published weights
(models/minilm.py) and random ones (`build_bert_base`).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8

Array = NDArray[Any]


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


class GraphBuilder:
  """Collects nodes and initializers; every method returns the name of the value it made."""

  def __init__(self, dtype):
    self.dtype = dtype
    self.onnx_dtype = helper.np_dtype_to_tensor_dtype(dtype)
    self.nodes = []
    self.initializers = {}

  def op(self, op_type, name, *inputs, **attributes):
    """One node; its only output is named after it."""
    output = f"{name}_output_0"
    self.nodes.append(helper.make_node(op_type, list(inputs), [output], name=name, **attributes))
    return output

  def weight(self, name, values):
    """A parameter, in the model's dtype."""
    self.initializers[name] = numpy_helper.from_array(np.ascontiguousarray(values, dtype=self.dtype), name)
    return name

  def integers(self, name, values):
    """An int64 constant: a scalar for a number, else a vector."""
    self.initializers[name] = numpy_helper.from_array(np.asarray(values, dtype=np.int64), name)
    return name

  def scalar(self, name, value):
    """A constant of shape [], in the model's dtype."""
    return self.weight(name, np.asarray(value))


class BertBuilder(GraphBuilder):
  """Writes the parts of an encoder. x has shape [batch, sequence, hidden_size] throughout."""

  def __init__(self, config, weights, dtype):
    super().__init__(dtype)
    self.config, self.weights = config, weights

  def dense(self, scope, x, inputs, outputs):
    """x @ W.T + b, with W of shape [outputs, inputs] as PyTorch stores it."""
    name = scope.strip("/").replace("/", ".")
    weight = self.weight(f"{name}.weight", self.weights(f"{name}.weight", (outputs, inputs)).T)
    bias = self.weight(f"{name}.bias", self.weights(f"{name}.bias", (outputs,)))
    return self.op("Add", f"{scope}/Add", bias, self.op("MatMul", f"{scope}/MatMul", x, weight))

  def layer_norm(self, scope, x):
    """LayerNormalization over the last axis, with scale and bias."""
    name = scope.strip("/").replace("/", ".")
    size = (self.config.hidden_size,)
    gamma = self.weight(f"{name}.weight", self.weights(f"{name}.weight", size))
    beta = self.weight(f"{name}.bias", self.weights(f"{name}.bias", size))
    epsilon = self.config.layer_norm_eps
    return self.op("LayerNormalization", f"{scope}/LayerNormalization", x, gamma, beta, axis=-1, epsilon=epsilon)

  def gelu(self, scope, x):
    """x * (1 + erf(x / sqrt(2))) / 2"""
    erf = self.op("Erf", f"{scope}/Erf", self.op("Div", f"{scope}/Div", x, self.scalar("sqrt_2", 2**0.5)))
    one_plus = self.op("Add", f"{scope}/Add", erf, self.scalar("one", 1.0))
    return self.op("Mul", f"{scope}/Mul_1", self.op("Mul", f"{scope}/Mul", x, one_plus), self.scalar("half", 0.5))

  def embeddings(self):
    """The normalised sum of word, token type and position embeddings."""
    config, scope = self.config, "/embeddings"

    def table(kind, rows, indices):
      name = f"embeddings.{kind}_embeddings.weight"
      values = self.weight(name, self.weights(name, (rows, config.hidden_size)))
      return self.op("Gather", f"{scope}/{kind}_embeddings/Gather", values, indices)

    shape = self.op("Shape", f"{scope}/Shape", "input_ids")
    length = self.op("Gather", f"{scope}/Gather", shape, self.integers("sequence_axis", [1]))
    all_positions = self.integers("embeddings.position_ids", range(config.max_position_embeddings))
    zero = self.integers("zero", [0])
    positions = self.op("Slice", f"{scope}/Slice", all_positions, zero, length, zero)
    words = table("word", config.vocab_size, "input_ids")
    types = table("token_type", config.type_vocab_size, "token_type_ids")
    total = self.op("Add", f"{scope}/Add", words, types)
    total = self.op("Add", f"{scope}/Add_1", total, table("position", config.max_position_embeddings, positions))
    return self.layer_norm(f"{scope}/LayerNorm", total)

  def attention_bias(self):
    """[batch, 1, 1, sequence]: 0 where a token may be attended to, the dtype's lowest number where not."""
    mask = self.op("Unsqueeze", "/Unsqueeze", "attention_mask", self.integers("mask_axes", [1, 2]))
    mask = self.op("Cast", "/Cast", mask, to=self.onnx_dtype)
    lowest = -65504.0 if self.dtype == np.float16 else -3.3895313892515355e38
    away = self.op("Sub", "/Sub", self.scalar("one", 1.0), mask)
    return self.op("Mul", "/Mul", away, self.scalar("lowest", lowest))

  def attention(self, scope, x, bias):
    """Self-attention before its output projection: softmax(q @ k.T / sqrt(head size) + bias) @ v."""
    config = self.config
    hidden, heads = config.hidden_size, config.num_attention_heads
    split = self.integers("split_heads", [0, 0, heads, hidden // heads])

    def heads_of(part, permutation):
      values = self.op("Reshape", f"{scope}/{part}/Reshape", self.dense(f"{scope}/{part}", x, hidden, hidden), split)
      return self.op("Transpose", f"{scope}/{part}/Transpose", values, perm=permutation)

    query, key = heads_of("query", [0, 2, 1, 3]), heads_of("key", [0, 2, 3, 1])
    scores = self.op("MatMul", f"{scope}/MatMul", query, key)
    scale = self.scalar("sqrt_head_size", (hidden // heads) ** 0.5)
    scores = self.op("Add", f"{scope}/Add", self.op("Div", f"{scope}/Div", scores, scale), bias)
    weights = self.op("Softmax", f"{scope}/Softmax", scores, axis=-1)
    context = self.op("MatMul", f"{scope}/MatMul_1", weights, heads_of("value", [0, 2, 1, 3]))
    context = self.op("Transpose", f"{scope}/Transpose", context, perm=[0, 2, 1, 3])
    return self.op("Reshape", f"{scope}/Reshape", context, self.integers("join_heads", [0, 0, hidden]))

  def layer(self, scope, x, bias):
    """Attention and feed-forward block, each followed by its residual Add and layer norm."""
    hidden, inner = self.config.hidden_size, self.config.intermediate_size
    context = self.attention(f"{scope}/attention/self", x, bias)
    output = f"{scope}/attention/output"
    residual = self.op("Add", f"{output}/Add", self.dense(f"{output}/dense", context, hidden, hidden), x)
    x = self.layer_norm(f"{output}/LayerNorm", residual)
    inside = self.gelu(f"{scope}/intermediate", self.dense(f"{scope}/intermediate/dense", x, hidden, inner))
    output = f"{scope}/output"
    residual = self.op("Add", f"{output}/Add", self.dense(f"{output}/dense", inside, inner, hidden), x)
    return self.layer_norm(f"{output}/LayerNorm", residual)

  def encoder(self):
    """The last hidden state."""
    x, bias = self.embeddings(), self.attention_bias()
    for index in range(self.config.num_hidden_layers):
      x = self.layer(f"/encoder/layer/{index}", x, bias)
    return x

  def sentence_embedding(self, x):
    """The mean of x over the tokens that are not masked, scaled to length 1: [batch, hidden_size]."""
    last, tokens = self.integers("last_axis", [-1]), self.integers("sequence_axis", [1])
    mask = self.op("Cast", "/pooling/Cast", "attention_mask", to=self.onnx_dtype)
    mask = self.op("Unsqueeze", "/pooling/Unsqueeze", mask, last)
    total = self.op("ReduceSum", "/pooling/ReduceSum", self.op("Mul", "/pooling/Mul", x, mask), tokens, keepdims=0)
    count = self.op("ReduceSum", "/pooling/ReduceSum_1", mask, tokens, keepdims=0)
    count = self.op("Clip", "/pooling/Clip", count, self.scalar("smallest_count", 1e-9))
    mean = self.op("Div", "/pooling/Div", total, count)
    length = self.op("ReduceL2", "/normalize/ReduceL2", mean, axes=[-1], keepdims=1)
    length = self.op("Clip", "/normalize/Clip", length, self.scalar("smallest_length", 1e-12))
    return self.op("Div", "/normalize/Div", mean, length)


def build_bert(config, weights, dtype=np.float32, embed=False):
  """An encoder with int64 inputs input_ids, attention_mask and token_type_ids, each [batch, sequence].

  Its output is ``last_hidden_state`` [batch, sequence, hidden_size]; with `embed` it is ``sentence_embedding``
  [batch, hidden_size], the mean over the unmasked tokens scaled to length 1. Weights and arithmetic have `dtype`.
  """
  builder = BertBuilder(config, weights, np.dtype(dtype))
  result = builder.encoder()
  shape: list[str | int | None]
  name, shape = "last_hidden_state", ["batch", "sequence", config.hidden_size]
  if embed:
    result = builder.sentence_embedding(result)
    name, shape = "sentence_embedding", ["batch", config.hidden_size]
  builder.nodes[-1].output[0] = name

  tokens = ["batch", "sequence"]
  inputs = ("input_ids", "attention_mask", "token_type_ids")
  graph = helper.make_graph(
    builder.nodes,
    "bert",
    [helper.make_tensor_value_info(name, TensorProto.INT64, tokens) for name in inputs],
    [helper.make_tensor_value_info(name, builder.onnx_dtype, shape)],
    list(builder.initializers.values()),
  )
  opsets = [helper.make_opsetid("", OPSET)]
  return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="ortplugin models")


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
