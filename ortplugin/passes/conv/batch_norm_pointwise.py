"""A BatchNormalization in inference that no weights have taken in becomes a Mul and an Add, which fuse with others.

    y = BatchNormalization(x, gamma, beta, mean, var)      becomes      y = Add(Mul(x, scale), shift)

    scale = gamma / sqrt(var + epsilon); shift = beta - mean * scale            computed here, in float64

In float16 and bfloat16 the two run in float, between Casts, as the normalisation does: the scale and the shift of a
channel with a large mean nearly cancel.
"""

import onnx_graphsurgeon as gs

from ...graph import Scope, label
from ...graph.channels import NotFoldableError, batch_norm, stored
from ...program import FLOATING, NUMPY_DTYPES, ONNX_DTYPES
from ..driver import Missed, Outcome, RulePass, replaced
from ..emit import cast, emit


def rewrite(scope: Scope, node: gs.Node) -> Outcome:
  """Replaces one BatchNormalization whose parameters are constants."""
  if scope.op(node) != "BatchNormalization":
    return None
  x, rank, dtype = node.inputs[0], scope.rank(node.inputs[0]), scope.dtype(node.inputs[0])
  if rank is None or rank < 2 or dtype not in FLOATING:
    return Missed(node, f"the rank or the dtype of '{x.name}' is unknown")
  wide = "double" if dtype == "double" else "float"
  try:
    affine = batch_norm(scope, node)
    shape = (-1, *[1] * (rank - 2))
    scale, shift = (
      stored(values, NUMPY_DTYPES[wide], f"the {what} of {label(node)}").reshape(shape)
      for what, values in (("scale", affine.scale), ("shift", affine.shift))
    )
  except NotFoldableError as reason:
    return Missed(node, str(reason))
  given = scope.shape(x)
  names = [tensor.name for tensor in node.inputs]
  value = x if wide == dtype else cast(scope, node, x, wide)
  value = emit(scope, node, "Mul", [value, scope.add_constant(scale, f"{names[1]}_scale")], given)
  operands = [value, scope.add_constant(shift, f"{names[2]}_shift")]
  if wide == dtype:
    last = gs.Node("Add", node.name, {}, operands)
  else:
    total = emit(scope, node, "Add", operands, given)
    last = gs.Node("Cast", node.name, {"to": ONNX_DTYPES[dtype]}, [total])
  return replaced(scope, [node], last, [node.outputs[0]])


BATCH_NORM_POINTWISE = RulePass(
  "batch-norm-pointwise", "a BatchNormalization in inference becomes a Mul and an Add of constants", rewrite
)
