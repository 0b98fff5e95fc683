"""Nodes of ai.onnx that are not as their operator is defined, so far as passes read them.

A file may hold anything: a perm that is no permutation, axes that are floats. No pass can look after all of that, so
`Scope.op` knows no operator of such a node: nothing matches it, it stays, and ONNX Runtime says what is wrong with it.
"""

from functools import cache

import numpy as np
import onnx
import onnx_graphsurgeon as gs

# The inputs that are lists of integers; of the others in INDICES the rank is free.
_LISTS: dict[str, tuple[int, ...]] = {
    "Reshape": (1,), "Expand": (1,), "Tile": (1,), "ConstantOfShape": (0,), "Slice": (1, 2, 3, 4), "Squeeze": (1,),
    "Unsqueeze": (1,), "Split": (1,), "Pad": (1, 3), "TopK": (1,),
    **dict.fromkeys(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
                     "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"), (1,)),
}  # fmt: skip
_INTEGERS = (np.dtype(np.int64), np.dtype(np.int32))
_INDICES = frozenset({"Gather", "GatherElements", "GatherND", "ScatterND", "ScatterElements", "Scatter"})


def is_malformed(node: gs.Node, opset: int) -> bool:
  """Whether the node of ai.onnx has too few inputs or too many, lists or indices that are none, or no permutation.

  Asked again and again of a node, it answers at once where it has found it well-formed with all that is known of its
  inputs: what passes change of such a node leaves it so.
  """
  if "well_formed" in vars(node):
    return False
  malformed = _is_malformed(node, opset)
  if not malformed and all(each.shape is not None and each.dtype is not None for each in node.inputs):
    node.well_formed = True
  return malformed


def _is_malformed(node: gs.Node, opset: int) -> bool:
  least, most = _counts(node.op, opset)
  if not least <= len(node.inputs) <= most or any(each.is_empty() for each in node.inputs[:least]):
    return True
  if node.op == "Transpose":
    perm, shape = node.attrs.get("perm"), node.inputs[0].shape
    count = len(perm or ()) if shape is None else len(shape)
    return bool(perm) and sorted(perm) != list(range(count))
  if node.op in _INDICES:
    return not _are_integers(node.inputs[1])
  lists = (node.inputs[at] for at in _LISTS.get(node.op, ()) if at < len(node.inputs))
  return any(not _are_integers(each) or (each.shape is not None and len(each.shape) != 1) for each in lists)


def _are_integers(tensor: gs.Tensor) -> bool:
  """Whether the tensor is of integers, as far as is known."""
  return tensor.is_empty() or tensor.dtype is None or np.dtype(tensor.dtype) in _INTEGERS


@cache
def _counts(op: str, opset: int) -> tuple[int, int]:
  """The least and the largest number of inputs; any for an operator that onnx does not know."""
  try:
    schema = onnx.defs.get_schema(op, max(opset, 1), "")
  except onnx.defs.SchemaError:
    return 0, 1 << 31
  return schema.min_input, schema.max_input
