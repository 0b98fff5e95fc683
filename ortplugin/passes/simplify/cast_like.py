"""CastLike becomes a Cast where the dtype that it asks for is known: the form that other passes look for and fold."""

import onnx_graphsurgeon as gs
from onnx import helper

from ...graph import Scope, labelled
from ..driver import Applied, Missed, Outcome, RulePass


def rename(scope: Scope, node: gs.Node) -> Outcome:
  """Makes a Cast of a CastLike, in place."""
  if scope.op(node) != "CastLike" or len(node.inputs) != 2:
    return None
  like = node.inputs[1]
  if like.dtype is None:
    return Missed(node, f"the dtype of '{like.name}' is not known")
  labels = labelled(node)
  node.op = "Cast"
  node.inputs = [node.inputs[0]]
  node.attrs["to"] = helper.np_dtype_to_tensor_dtype(like.dtype)
  return Applied(labels, node)


CAST_LIKE = RulePass("cast-like", "a CastLike to a known dtype becomes a Cast", rename)
