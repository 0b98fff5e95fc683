"""A factor behind a mask goes in front of it: attention scales scores before it masks them.

    Div(Add(s, m), c)         becomes    Add(Div(s, c), Div(m, c))          as in CodeGen
    Div(Where(b, s, n), c)    becomes    Where(b, Div(s, c), Div(n, c))     as in GPT-J

s is a product, c >= 1 one number (or a Mul has 1 / c), and behind it stands a Softmax. Without another mask there, a
number that hides scores either way stays as it is, or others would not know float16's lowest any more.
"""

import numpy as np
import onnx_graphsurgeon as gs

from ...graph import Scope, broadcast, dims, labelled
from ...graph.lengths import product
from ..driver import Applied, Missed, Outcome, RulePass
from ..emit import emit
from .mask_values import ABSORBING, ELEMENTS, hiding
from .scaled_queries import before_softmax
from .scores import LARGE_NEGATIVE, score_dims
from .views import scalar_operand

HIDES = -1e3  # what does, once scaled: -65504 / 8 is above LARGE_NEGATIVE


def rewrite(scope: Scope, node: gs.Node) -> Outcome:
  """Moves the factor of one Mul or Div."""
  scaled = scalar_operand(scope, node) if scope.op(node) in ("Mul", "Div") else None
  masked = scaled and scope.producer(scaled[0], "Add", "Where")
  between = before_softmax(scope, node) if masked else None
  if not scaled or not masked or between is None:
    return None
  inputs, factor = list(masked.inputs), scaled[1]
  at = next((index for index in (-2, -1) if _is_product(scope, inputs[index])), None)
  if at is None:
    return None
  scores, mask, alone = inputs[at], inputs[-3 - at], not {"Add", "Where"} & {*between}
  reason = scope.used_beyond(scaled[0], [node])
  if not 0 < factor <= 1:
    reason = f"masked scores are multiplied by {factor:g}, which is not between 0 and 1"
  if scope.op(masked) == "Add":
    added = _added(scope, mask)
    stays = len(added) == 1 and all(x <= hiding(scope, mask, alone) and x * factor <= HIDES for x in added)
    if not stays and not _is_small(scope, mask, scores):
      reason = reason or f"the mask '{mask.name}' may be as large as the scores with which it is scaled"
    # What would not absorb scores any more.
    if not stays and scope.dtype(mask) == "float16" and any(-np.inf < x <= ABSORBING for x in added):
      reason = reason or f"'{mask.name}' adds a large negative number, which is not the same once it is scaled"
  else:
    filled = (scope.scalar(mask) or 0) * factor
    stays = filled == -np.inf or (alone and LARGE_NEGATIVE < filled <= HIDES)
    if not stays and not filled <= LARGE_NEGATIVE:
      reason = reason or f"'{mask.name}', which is filled in, is no large negative number once it is scaled"
  if reason:
    return Missed(node, reason)
  labels = labelled(masked, node)
  for index in (at,) if stays else (at, -3 - at):
    operands = [inputs[index] if each is scaled[0] else each for each in node.inputs]
    inputs[index] = emit(scope, masked, node.op, operands, broadcast([scope.shape(each) for each in operands]))
  new = gs.Node(masked.op, masked.name, dict(masked.attrs), inputs, [])
  scope.replace([masked, node], new, [node.outputs[0]])
  return Applied(labels, new)


def _is_product(scope: Scope, tensor: gs.Tensor) -> bool:
  """Whether it is one, cast or scaled or not."""
  while (node := scope.producer(tensor, "Cast", "Mul", "Div")) is not None:
    scaled = (node.inputs[0], 1) if scope.op(node) == "Cast" else scalar_operand(scope, node)
    if scaled is None:
      return False
    tensor = scaled[0]
  return scope.producer(tensor, "MatMul", "Einsum") is not None


def _added(scope: Scope, mask: gs.Tensor) -> set[float]:
  """The numbers besides 0 that a Where adds, NaN for any other, or the lowest and the highest of a constant."""
  node, values = scope.producer(mask, "Where"), scope.constant(mask, ELEMENTS)
  if values is not None and values.any():
    wide = values[values != 0].astype(np.float64)
    return {float(wide.min()), float(wide.max())}
  numbers = [scope.scalar(each) for each in node.inputs[1:]] if node is not None else []
  return {np.nan if each is None else each for each in numbers} - {0.0}


def _is_small(scope: Scope, mask: gs.Tensor, scores: gs.Tensor) -> bool:
  """Whether it is a constant, a Where, or surely smaller than the scores."""
  if scope.is_constant(mask) or scope.producer(mask, "Where") is not None:
    return True
  given, target = dims(scope, mask), score_dims(scope, scores)
  times = product(target).over(product(given)) if given is not None and target is not None else None
  return times is not None and times.number > 1


SCALED_MASKS = RulePass("scaled-masks", "a factor behind a mask multiplies scores and mask in front of it", rewrite)
