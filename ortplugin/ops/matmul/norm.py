"""FusedMatMulNorm: a matrix product with its program, and a norm of the program's results.

    values = program(c, operands), c[.., n] = sum over k of A[.., k] * B[k, n]        as FusedMatMul
    outs   = norm(values, norm operands)                                              as FusedLayerNorm

Attributes: `program` and `trans_b`, FusedMatMul's; `norm` (string), a FusedLayerNorm's program whose first parameters
    are the values; `keeps_product` (0 or 1, default 0): the values are outputs, too.
Optional attributes: `allow_tf32`, FusedMatMul's; `algorithm`, of a GPU: "whole", one kernel where it can be, "apart",
    two, or "auto", what is known to be faster.
Inputs: FusedMatMul's, then FusedLayerNorm's but the values.
Outputs: the values with `keeps_product`, then the norm's results.
Errors: those of the two operators, and a norm whose first parameters have other dtypes than the values.
"""

from collections.abc import Sequence

import onnx
from onnx import AttributeProto, helper

from ...arrays import Array
from ...errors import ModelError
from ...graph.domains import DOMAIN
from ...graph.shapes import TensorType
from ...program import Program, parse
from .. import layer_norm, matmul
from ..base import Operator

NAME = "FusedMatMulNorm"
OWN = ("norm", "keeps_product", "algorithm")  # attributes that are not the product's
ALGORITHMS = ("auto", "whole", "apart")


def parts(node: onnx.NodeProto) -> tuple[onnx.NodeProto, onnx.NodeProto, int]:
  """The FusedMatMul and the FusedLayerNorm that the node is, and how many of its inputs are the first one's.

  The product's outputs are the node's, or have names of their own. Raises ModelError that names the node.
  """
  where = f"node '{node.name}' ({NAME})"
  given = {each.name: each for each in node.attribute}
  programs: dict[str, Program] = {}
  for name in ("program", "norm"):
    each = given.get(name)
    if each is None or each.type != AttributeProto.STRING:
      raise ModelError(f"{where}: the attribute '{name}' is missing, or no string")
    try:
      programs[name] = parse(each.s.decode("ascii"))
    except (UnicodeDecodeError, ModelError) as error:
      raise ModelError(f"{where}: {name}: {error}") from error
  keeps = matmul.flag(node, "keeps_product")
  if matmul.flag(node, "gated"):
    raise ModelError(f"{where}: gated must be 0, a product with a norm has no gate")
  algorithm = given.get("algorithm")
  if algorithm is not None and (algorithm.type != AttributeProto.STRING or algorithm.s.decode() not in ALGORITHMS):
    raise ModelError(f"{where}: algorithm must be one of {', '.join(ALGORITHMS)}")
  product, norm = programs["program"], programs["norm"]
  values, inputs = len(product.results), len(product.parameters) + 1
  wanted = inputs + len(norm.parameters) - values
  kept = values if keeps else 0
  if len(node.input) != wanted or len(node.output) != kept + len(norm.results):
    raise ModelError(
      f"{where}: {len(node.input)} inputs and {len(node.output)} outputs, but its programs have {wanted} and "
      f"{kept + len(norm.results)}"
    )
  for value, parameter in zip(product.results, norm.parameters, strict=False):
    if value.dtype != parameter.dtype:
      raise ModelError(f"{where}: the norm's '{parameter.name}' is {parameter.dtype}, the value {value.dtype}")
  names = list(node.output[:kept]) or [f"{node.output[0]}/value{i}" for i in range(values)]
  attributes = [each for each in node.attribute if each.name not in OWN]
  first = helper.make_node(matmul.NAME, node.input[:inputs], names, node.name, domain=DOMAIN)
  first.attribute.extend(attributes)
  second = helper.make_node(
    layer_norm.NAME, [*names, *node.input[inputs:]], node.output[kept:], node.name, domain=DOMAIN, program=str(norm)
  )
  return first, second, inputs


def infer_shapes(node: onnx.NodeProto, inputs: Sequence[TensorType]) -> list[TensorType]:
  """Every output's dtype as declared, and the shape of the product or of the norm."""
  product, norm, count = parts(node)
  values = matmul.infer_shapes(product, inputs[:count])
  results = layer_norm.infer_shapes(norm, [*values, *inputs[count:]])
  return [*values, *results][-len(node.output) :]


def decompose(node: onnx.NodeProto, opset: int) -> list[onnx.NodeProto]:
  """The node as standard ONNX: the two operators' decompositions."""
  product, norm, _ = parts(node)
  return matmul.decompose(product, opset) + layer_norm.decompose(norm, opset)


def reference(node: onnx.NodeProto, inputs: Sequence[Array], rounded: bool = True) -> list[Array]:
  """The outputs in NumPy, computed in float64; the values are rounded to their dtype in between."""
  product, norm, count = parts(node)
  kept = matmul.reference(product, inputs[:count], rounded)
  values = kept if rounded else matmul.reference(product, inputs[:count])
  results = layer_norm.reference(norm, [*values, *inputs[count:]], rounded)
  return [*kept, *results][-len(node.output) :]


OPERATOR = Operator(
  name=NAME,
  summary="a matrix product and a norm of its rows",
  infer_shapes=infer_shapes,
  decompose=decompose,
  reference=reference,
  variants=lambda node: tuple({"algorithm": each} for each in ALGORITHMS[1:]),
)
