"""A factor of each head, or of each query, multiplies queries in place of the scores: attention has one factor for all.

    s = Mul(MatMul(q, k), f)      f [1, H, 1, 1], constant, behind which stands a Softmax

becomes

    s = MatMul(Mul(q, f), k)

Swin v2 and XCiT learn such factors. What is multiplied is smaller, too.
"""

import numpy as np
import onnx_graphsurgeon as gs

from ...arrays import Array
from ...graph import Scope, labelled
from ..driver import Applied, Missed, Outcome, RulePass
from ..emit import emit

FACTORS = 1 << 16  # that are looked at
LARGEST = 128.0  # beyond, what float16 has of a query might be infinite
FAR = 8  # nodes from the scores to the Softmax
BETWEEN = ("Add", "Where", "Cast", "Reshape", "Squeeze", "Unsqueeze")


def rewrite(scope: Scope, node: gs.Node) -> Outcome:
  """Moves the factor of one Mul or Div."""
  op = scope.op(node)
  for scores, factor in (node.inputs, node.inputs[::-1])[: {"Mul": 2, "Div": 1}.get(op, 0)]:
    product, values = scope.producer(scores, "MatMul"), scope.constant(factor, FACTORS)
    if product is None or values is None or not values.size or before_softmax(scope, node) is None:
      continue
    if (values == values.flat[0]).all():
      return None  # one for all
    q, made = product.inputs[0], scope.shape(scores)
    given = scope.shape(q)
    if given is None or made is None or not _is_of_rows(values, given, made):
      return Missed(node, f"'{factor.name}' is not known to be a factor of rows of '{q.name}'")
    if reason := scope.used_beyond(scores, [node]):
      return Missed(node, reason)
    sizes = np.abs(values.astype(np.float64))
    if not (sizes <= LARGEST if op == "Mul" else sizes >= 1 / LARGEST).all():
      return Missed(node, f"'{factor.name}' would make queries more than {LARGEST:g} times as large")
    labels = labelled(product, node)
    scaled = emit(scope, product, op, [q, factor], given)
    new = gs.Node("MatMul", product.name, dict(product.attrs), [scaled, product.inputs[1]], [])
    scope.replace([product, node], new, [node.outputs[0]])
    return Applied(labels, new)
  return None


def _is_of_rows(values: Array, given: tuple[object, ...], made: tuple[object, ...]) -> bool:
  """Whether it differs along axes alone that queries and scores have, and not along keys."""
  dims = values.shape
  pairs = zip(reversed(dims), reversed(given), reversed(made), strict=False)
  return dims[-1] == 1 and len(dims) <= min(len(given), len(made)) and all(n == 1 or n == a == b for n, a, b in pairs)


def before_softmax(scope: Scope, node: gs.Node) -> list[str] | None:
  """The operators between it and the Softmax that alone needs its result; None without one."""
  found: list[str] = []
  while len(found) < FAR:
    result, readers = node.outputs[0], scope.consumers(node.outputs[0])
    if len(readers) != 1 or scope.used_beyond(result, readers):
      return None
    node = readers[0]
    if (op := scope.op(node)) not in BETWEEN:
      return found if op == "Softmax" else None
    found.append(op)
  return None


SCALED_QUERIES = RulePass("scaled-queries", "a factor of each head multiplies queries in place of scores", rewrite)
