"""Conditions that passes of several folders put on what they fuse: each says why it is not met, or None."""

import onnx_graphsurgeon as gs

from ..graph import Scope
from ..ops.decompose import MINIMUM_OPSET


def unsupported(scope: Scope) -> str | None:
  """Why nothing in this model can be fused: what is fused must have a decomposition to go back to."""
  if scope.opset >= MINIMUM_OPSET:
    return None
  return f"the model has opset {scope.opset}, and the fused operator is for {MINIMUM_OPSET} or later"


def unknown_rank(scope: Scope, tensor: gs.Tensor) -> str | None:
  """Why a fused node can't compute with the tensor: its rank is unknown; None if it is known.

  ONNX Runtime shows an unknown rank to an operator's shape inference as a scalar's, and the operator can't leave the
  shape of its outputs open: they would get a wrong rank.
  """
  if scope.rank(tensor) is not None:
    return None
  return f"the rank of '{tensor.name}' is unknown; fix the shapes of the model's inputs with --input-shape"
