"""A MatMul or Gemm with constant weights becomes a FusedMatMul, its weights [N, K].

    y = MatMul(x, w)                     becomes     y = FusedMatMul<trans_b = 1>(x, v)          w [K, N], v [N, K]
    y = Gemm(x, w, b)                    becomes     y = FusedMatMul<trans_b = 1>(x, v, b)

with the program `y = Add(c, bias)`. What is pointwise after it is drawn in by matmul-epilogue. The weights are
transposed here, or read as [N, K] where the model has them so: through a Transpose, by a Gemm's transB, or as the table
of embeddings that a head shares. Those that are too large to be rearranged, or that others read as [K, N] too, stay.

Of float32 it is a pass of its own, where a GPU runs the model and target/ says that this pays.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ...arrays import Array
from ...graph import ELEMENTS, Scope, label, scopes, show
from ...graph.constant_values import constant_values
from ...program import Operand, Parameter, Program, Statement
from ...target import DEFAULT
from ..base import Change, NearMiss, PassResult
from ..conditions import unknown_rank, unsupported
from ..conv.fused import conv_dtype
from ..conv.weights import COPY_BYTES
from .fused import product_node

# Of double there is no faster engine than ONNX Runtime's.
DTYPES = ("float16", "bfloat16")
FLOAT32 = ("float",) if DEFAULT["matmul_tf32_pays"] and DEFAULT["matmul_exact_pays"] else ()
VECTOR = 4  # of float32: the engine's copies are of 16 bytes
PRODUCTS = ("MatMul", "Gemm")

Turned = dict[tuple[int, int], gs.Constant]
"""The weights as [N, K] by graph and original, for all products that share them."""


@dataclass(frozen=True)
class MatMulToFused:
  """The pass, of products in these dtypes; see the module."""

  name: str
  dtypes: tuple[str, ...]
  says: str

  @property
  def summary(self) -> str:
    """What it does."""
    return f"a MatMul or Gemm with constant weights, in {self.says}, becomes a FusedMatMul"

  def __call__(self, graph: gs.Graph, limit: int | None = None) -> PassResult:
    """Replaces the products of the graph and its bodies, at most `limit` of them."""
    changes: list[Change] = []
    misses: list[NearMiss] = []
    turned: Turned = {}
    kept = constant_values(graph)
    for scope in scopes(graph):
      for node in [each for each in scope.slots if each is not None and scope.op(each) in PRODUCTS]:
        if unsupported(scope) or scope.dtype(node.outputs[0]) not in self.dtypes or len(changes) == limit:
          continue
        if id(node.outputs[0]) in kept:
          continue
        replaced = label(node)
        new = _product(scope, node, turned)
        if isinstance(new, gs.Node):
          scope.replace([node], new, [node.outputs[0]])
          changes.append(Change(self.name, (replaced,), label(new)))
        elif scope.rank(node.inputs[1]) == 2:  # what is of more is a batch of products
          misses.append(NearMiss(self.name, replaced, new))
    return PassResult(tuple(changes), tuple(misses))


def _product(scope: Scope, node: gs.Node, turned: Turned) -> gs.Node | str:
  """The product in the node's place, without outputs; or why there is none."""
  x, w = node.inputs[:2]
  dtype = conv_dtype(scope, node)
  reason = unknown_rank(scope, x)
  if reason is None and dtype is None:
    reason = f"'{x.name}' and '{w.name}' are not known to have one floating dtype"
  if reason is None and node.attrs.get("transA", 0):
    reason = f"its first operand '{x.name}' is transposed"
  if reason is not None or dtype is None:
    return reason or ""
  # ONNX Runtime does not read a bias times 0, nor does it say NaN where there is one or infinity in it.
  used = float(node.attrs.get("beta", 1)) != 0
  operands = [each for each in node.inputs[2:] if used and not each.is_empty()]
  for each in operands:
    reason = unknown_rank(scope, each)
    if reason is None and scope.dtype(each) != dtype:
      reason = f"its bias '{each.name}' is not known to be {dtype}, as the rest is"
    if reason is not None:
      return reason
  weights = _weights(scope, node, turned)
  if isinstance(weights, str):
    return weights
  scales = [float(node.attrs.get(name, 1)) for name in ("alpha", "beta")]
  return product_node(node.name, _affine(dtype, bool(operands), *scales), [x, weights[0], *operands], weights[1])


def _affine(dtype: str, has_bias: bool, alpha: float, beta: float) -> Program:
  """alpha c + beta bias"""
  parameters, statements = [Parameter(dtype, "c")], []

  def emit(name: str, op: str, *operands: Operand) -> str:
    statements.append(Statement(name, op, operands))
    return name

  value = "c" if alpha == 1 else emit("scaled", "Mul", "c", alpha)
  if has_bias:
    parameters.append(Parameter(dtype, "bias"))
    value = emit("y", "Add", value, "bias" if beta == 1 else emit("scaled_bias", "Mul", "bias", beta))
  return Program(tuple(parameters), (Parameter(dtype, value),), tuple(statements))


def _weights(scope: Scope, node: gs.Node, turned: Turned) -> tuple[gs.Tensor, bool] | str:
  """The weights of a product and whether they are [N, K]; or why they are none."""
  w, trans_b = node.inputs[1], bool(node.attrs.get("transB", 0))
  maker = scope.producer(w, "Transpose")
  if maker is not None and maker.attrs.get("perm", [1, 0]) == [1, 0]:
    w, trans_b = maker.inputs[0], not trans_b
  shape = scope.shape(w)
  if not scope.is_constant(w) or shape is None or len(shape) != 2:
    return f"'{w.name}' of shape {show(shape)} is no constant of two dimensions that no caller may override"
  k = shape[int(trans_b)]
  if scope.dtype(w) == "float" and not (isinstance(k, int) and k % VECTOR == 0):
    return f"'{w.name}' of shape {show(shape)} makes sums of which ours takes multiples of {VECTOR} elements"
  if trans_b:
    return w, True
  key = id(scope.graph), id(w)
  if key not in turned:
    rows = _rows(scope, w)
    if rows is None:
      return (w, False) if scope.dtype(w) != "float" else f"'{w.name}' stays [K, N], which ours does not take"
    turned[key] = rows
  return turned[key], True


def _rows(scope: Scope, w: gs.Tensor) -> gs.Constant | None:
  """The weights [K, N] as [N, K]; None where they stay as they are."""
  array = scope.constant(w, ELEMENTS)
  if array is None:
    return None
  rows = array.T
  for table in _tables(scope, rows.shape):
    values = scope.constant(table, ELEMENTS)
    if values is not None and values.dtype == rows.dtype and _same_bits(values, rows):
      return table
  products = [each for each in scope.consumers(w) if scope.op(each) in PRODUCTS]
  if array.nbytes > COPY_BYTES and scope.used_beyond(w, products):
    return None
  return scope.add_constant(np.ascontiguousarray(rows), f"{w.name}_rows")


def _tables(scope: Scope, shape: tuple[int, ...]) -> Iterator[gs.Constant]:
  """The tables of this shape that embeddings are looked up in."""
  for node in scope.slots:
    if node is not None and node.op == "Gather" and scope.op(node) == "Gather":
      table = node.inputs[0]
      if isinstance(table, gs.Constant) and scope.shape(table) == shape:
        yield table


def _same_bits(a: Array, b: Array) -> bool:
  return bool(np.array_equal(a.view(np.uint16), np.ascontiguousarray(b).view(np.uint16)))


MATMUL_TO_FUSED = MatMulToFused("matmul-to-fused", DTYPES, "float16 and bfloat16")
MATMUL_FLOAT32 = MatMulToFused("matmul-float32", FLOAT32, "float32")
