"""FusedMatMulNorm: a matrix product with its program, and a norm of the program's results or, `norm_first`, of A.

    values = program(c, operands), c[.., n] = sum over k of A[.., k] * B[k, n]        as FusedMatMul
    outs   = norm(values, norm operands)                                              as FusedLayerNorm

    A      = norm(x, norm operands)                                                   with norm_first
    outs   = program(c, operands)

Attributes: `program` and `trans_b`, FusedMatMul's; `norm` (string), a FusedLayerNorm's program whose first parameters
    are the values; `keeps_product` (0 or 1, default 0): the values are outputs, too; `norm_first` (0 or 1, default 0),
    with which the norm's only result is A, and `gated` may be FusedMatMul's.
Optional attributes: `allow_tf32`, FusedMatMul's; `algorithm`, of a GPU: "whole", one kernel where it can be, "apart",
    two, or "auto", what is known to be faster.
Inputs: FusedMatMul's, then FusedLayerNorm's but the values; with `norm_first` x stands in place of A.
Outputs: the values with `keeps_product`, then the norm's results; with `norm_first` the product's.
Errors: those of the two operators, and values of other dtypes than they are read in.
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
OWN = ("norm", "norm_first", "keeps_product", "algorithm")  # attributes that are not the product's
ALGORITHMS = ("auto", "whole", "apart")


def parts(node: onnx.NodeProto) -> tuple[onnx.NodeProto, onnx.NodeProto, int]:
  """The FusedMatMul and the FusedLayerNorm that the node is, and how many of its inputs are the product's.

  What the one gives the other has the node's name for it, or one of its own. Raises ModelError that names the node.
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
  keeps, first = matmul.flag(node, "keeps_product"), is_first(node)
  if not first and matmul.flag(node, "gated"):
    raise ModelError(f"{where}: gated must be 0, a norm of a product has no gate")
  algorithm = given.get("algorithm")
  if algorithm is not None and (algorithm.type != AttributeProto.STRING or algorithm.s.decode() not in ALGORITHMS):
    raise ModelError(f"{where}: algorithm must be one of {', '.join(ALGORITHMS)}")
  product, norm = programs["program"], programs["norm"]
  passed = 1 if first else len(product.results)
  inputs = len(product.parameters) + 1
  wanted = inputs + len(norm.parameters) - passed
  kept = passed if keeps else 0
  outputs = len(product.results) if first else kept + len(norm.results)
  if len(node.input) != wanted or len(node.output) != outputs:
    raise ModelError(
      f"{where}: {len(node.input)} inputs and {len(node.output)} outputs, but its programs have {wanted} and {outputs}"
    )
  attributes = [each for each in node.attribute if each.name not in OWN]
  if first:
    if keeps or len(norm.results) != 1 or norm.results[0].dtype != product.parameters[0].dtype:
      raise ModelError(f"{where}: with norm_first the norm must have one result, of the product's dtype; none is kept")
    name = f"{node.output[0]}/normalized"
    of_norm = [node.input[0], *node.input[inputs:]]
    second = helper.make_node(matmul.NAME, [name, *node.input[1:inputs]], node.output, node.name, domain=DOMAIN)
    second.attribute.extend(attributes)
    return second, _norm_node(node, str(norm), of_norm, [name]), inputs
  for value, parameter in zip(product.results, norm.parameters, strict=False):
    if value.dtype != parameter.dtype:
      raise ModelError(f"{where}: the norm's '{parameter.name}' is {parameter.dtype}, the value {value.dtype}")
  names = list(node.output[:kept]) or [f"{node.output[0]}/value{i}" for i in range(passed)]
  made = helper.make_node(matmul.NAME, node.input[:inputs], names, node.name, domain=DOMAIN)
  made.attribute.extend(attributes)
  return made, _norm_node(node, str(norm), [*names, *node.input[inputs:]], node.output[kept:]), inputs


def in_order(node: onnx.NodeProto) -> list[onnx.NodeProto]:
  """The FusedMatMul and the FusedLayerNorm that the node is, as they run. Raises ModelError that names the node."""
  product, norm, _ = parts(node)
  return [norm, product] if is_first(node) else [product, norm]


def is_first(node: onnx.NodeProto) -> bool:
  """Whether the norm is of what is multiplied."""
  return matmul.flag(node, "norm_first")


def _norm_node(node: onnx.NodeProto, program: str, inputs: Sequence[str], outputs: Sequence[str]) -> onnx.NodeProto:
  name = f"{node.name}/norm" if node.name else ""  # ONNX Runtime takes no two nodes of one name
  return helper.make_node(layer_norm.NAME, inputs, outputs, name, domain=DOMAIN, program=program)


def infer_shapes(node: onnx.NodeProto, inputs: Sequence[TensorType]) -> list[TensorType]:
  """Every output's dtype as declared, and the shape of the product or of the norm."""
  product, norm, count = parts(node)
  if is_first(node):
    (a,) = layer_norm.infer_shapes(norm, [inputs[0], *inputs[count:]])
    return matmul.infer_shapes(product, [a, *inputs[1:count]])
  values = matmul.infer_shapes(product, inputs[:count])
  results = layer_norm.infer_shapes(norm, [*values, *inputs[count:]])
  return [*values, *results][-len(node.output) :]


def decompose(node: onnx.NodeProto, opset: int) -> list[onnx.NodeProto]:
  """The node as standard ONNX: the two operators' decompositions."""
  made: list[onnx.NodeProto] = []
  for each in in_order(node):
    made += (matmul if each.op_type == matmul.NAME else layer_norm).decompose(each, opset)
  return made


def reference(node: onnx.NodeProto, inputs: Sequence[Array], rounded: bool = True) -> list[Array]:
  """The outputs in NumPy, computed in float64; the values are rounded to their dtype in between."""
  product, norm, count = parts(node)
  if is_first(node):
    (a,) = layer_norm.reference(norm, [inputs[0], *inputs[count:]], rounded)
    return matmul.reference(product, [a, *inputs[1:count]], rounded)
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
