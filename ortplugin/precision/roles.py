"""Which operators stay in float32, and why.

docs/precision.md has the reasons: cost (results that outgrow their inputs), chain (what reads such results), exact
(positions), constant, and schema (operators that lack the dtype).
"""

from __future__ import annotations

import math
from collections.abc import Container

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from ..graph import DOMAIN, Scope, element_count, is_pointwise
from ..program import DTYPE_NAMES
from . import Dtype, Precision
from .kernels import FUSED_BY, KERNELS, POINTWISE, POINTWISE_OF_BFLOAT16, SCATTER, SCATTERS

Slots = tuple[tuple[int, ...], tuple[int, ...]]  # inputs and outputs by index

MANY = 1024  # a sum of more numbers is made in float32

# What may give results beyond float16 for harmless inputs.
GROWS = {
  **dict.fromkeys(("Exp", "Pow", "Sinh", "Cosh"), "its results outgrow its inputs"),
  **dict.fromkeys(("ReduceSumSquare", "ReduceL2"), "it sums squares"),
  **dict.fromkeys(("ReduceL1", "ReduceProd", "ReduceLogSum", "ReduceLogSumExp", "CumSum", "CumProd"), "it sums up"),
}
# What is bounded itself, but goes wrong on the way.
DELICATE = {
  **dict.fromkeys(("Log", "Reciprocal"), "small inputs vanish"),
  **dict.fromkeys(("LRN", "LpNormalization", "LpPool", "MeanVarianceNormalization"), "it sums squares"),
  **dict.fromkeys(("Range", "GridSample", "AffineGrid", "RoiAlign", "NonMaxSuppression"), "it computes coordinates"),
  **dict.fromkeys(("DFT", "STFT", "MelWeightMatrix", "Det", "Inverse"), "its errors add up"),
  **dict.fromkeys(
    ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"),
    "its random numbers would be others",
  ),
}
# What bounds its result, whatever it reads.
_BOUNDS = """
    Softmax LogSoftmax Sigmoid HardSigmoid Tanh Erf Sin Cos Asin Acos Atan Sign Softsign Hardmax Sqrt Log Div
    Reciprocal LayerNormalization RMSNormalization InstanceNormalization GroupNormalization BatchNormalization
    FusedLayerNorm
"""
BOUNDS = frozenset(_BOUNDS.split())
# Where the last bit of an argument tells.
_SENSITIVE = """
    Sin Cos Tan Floor Ceil Round Mod GridSample
"""
SENSITIVE = frozenset(_SENSITIVE.split())
# Where what a number was exactly no longer tells.
_BLURS = """
    Softmax LogSoftmax Sigmoid Tanh Erf Sin Cos LayerNormalization RMSNormalization FusedLayerNorm Conv FusedConv
"""
BLURS = frozenset(_BLURS.split())
# Operators that move numbers, so that any dtype does.
_MOVES = """
    Cast Identity Reshape Flatten Squeeze Unsqueeze Transpose Concat Split Slice Gather GatherElements GatherND
    Expand Tile Pad Where DepthToSpace SpaceToDepth ReverseSequence Dropout Trilu ConstantOfShape Compress
"""
MOVES = frozenset(_MOVES.split())
# An attribute, and no input, says what dtype these outputs have, and no schema does. By operator, where it is given:
DTYPE_ATTRIBUTES = {
  **dict.fromkeys(("EyeLike", "Bernoulli", "Multinomial", "RandomNormal", "RandomUniform"), "dtype"),
  **dict.fromkeys(("RandomNormalLike", "RandomUniformLike"), "dtype"),
  **dict.fromkeys(("BlackmanWindow", "HammingWindow", "HannWindow", "MelWeightMatrix"), "output_datatype"),
  **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), "output_dtype"),
}
STASHED = {"LayerNormalization": (1, 2)}  # outputs in the dtype of stash_type


def schema_slots(node: gs.Node, opset: int, target: Precision) -> Slots | str:
  """The inputs and outputs (by index) that take the target's dtype together; or why the operator has no such form."""
  version = f"opset {opset}"
  try:
    schema = onnx.defs.get_schema(node.op, opset, "")
  except onnx.defs.SchemaError:
    return f"onnx does not know the operator at {version}"
  attribute = DTYPE_ATTRIBUTES.get(node.op, "")
  if attribute in node.attrs:
    return f"its attribute '{attribute}' says its dtype"
  stashed = STASHED.get(node.op, ())
  allowed = {each.type_param_str: set(each.allowed_type_strs) for each in schema.type_constraints}
  wanted = f"tensor({DTYPE_NAMES[target.dtype]})"

  def slots(formals: list[onnx.defs.OpSchema.FormalParameter], tensors: list[gs.Tensor]) -> tuple[int, ...] | None:
    found = []
    for index, tensor in enumerate(tensors):
      if tensor.is_empty() or tensor.dtype not in target.sources:
        continue
      formal = formals[min(index, len(formals) - 1)]
      if wanted in allowed.get(formal.type_str, ()):
        found.append(index)
    return tuple(found)

  inputs = slots(list(schema.inputs), node.inputs)
  outputs = tuple(index for index in slots(list(schema.outputs), node.outputs) or () if index not in stashed)
  floating = [
    index for index, tensor in enumerate(node.outputs) if tensor.dtype in target.sources and index not in stashed
  ]
  if list(outputs) != floating or (not inputs and not outputs):
    return f"{version} has no {node.op} in {target.dtype.name}"
  return inputs or (), outputs


def lacks_kernel(scope: Scope, node: gs.Node, target: Precision, rewrites: Container[str]) -> str:
  """Why the CUDA provider can't run the operator in the target's dtype; '' if it can or it becomes one of ours.

  `rewrites`: those that follow.
  """
  name, known = target.dtype.name, KERNELS.get(target.dtype.name)
  if not known or (node.domain or "") == DOMAIN or FUSED_BY.get(node.op) in rewrites:
    return ""
  ranked = all(scope.rank(tensor) is not None for tensor in (*node.inputs, *node.outputs) if not tensor.is_empty())
  reduction = str(node.attrs.get("reduction", "none"))
  if name == "bfloat16" and node.op in SCATTERS and reduction != "none":
    if SCATTER in rewrites and ranked:
      return ""
    return f"ONNX Runtime's CUDA provider has no {node.op} in {name} with the reduction '{reduction}'"
  several = element_count(scope.shape(node.outputs[0])) != 1  # one element is not worth a kernel of ours
  pointwise = POINTWISE in rewrites and is_pointwise(scope, node) and ranked and several
  if node.op in known or (pointwise and (name == "float16" or node.op in POINTWISE_OF_BFLOAT16)):
    return ""
  return f"ONNX Runtime's CUDA provider has no {node.op} in {name}"


def cost(scope: Scope, node: gs.Node) -> str:
  """Why the operator should not compute in few bits; '' if it may."""
  op = node.op
  if op == "Pow" and scope.scalar(node.inputs[1]) in (0.5, 1.0):
    return ""
  if op in GROWS:
    return GROWS[op]
  if op in DELICATE:
    return DELICATE[op]
  if op == "Mul" and node.inputs[0] is node.inputs[1]:
    return "it squares"
  if op in ("ReduceSum", "ReduceMean"):
    count = _reduced(scope, node)
    if count is None or count > MANY:
      return f"it adds up {'an unknown number of' if count is None else count} numbers"
  return ""


def grows(scope: Scope, node: gs.Node) -> bool:
  """Whether the results may lie beyond float16 although what it reads does not."""
  return bool(cost(scope, node)) and node.op not in DELICATE and node.op != "ReduceMean"


def _reduced(scope: Scope, node: gs.Node) -> int | None:
  """How many numbers one result of a reduction is made of; None if unknown."""
  shape = scope.shape(node.inputs[0])
  axes = scope.axes(node)
  if shape is None or axes is None:
    return None
  if not axes and not node.attrs.get("noop_with_empty_axes"):
    axes = list(range(len(shape)))
  lengths = [shape[axis] for axis in axes if -len(shape) <= axis < len(shape)]
  known = [each for each in lengths if isinstance(each, int)]
  return math.prod(known) if len(known) == len(lengths) else None


def is_floating(dtype: Dtype | None, target: Precision) -> bool:
  """Whether values of this dtype become the target's."""
  return dtype is not None and np.dtype(dtype) in target.sources
