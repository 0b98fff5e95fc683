"""A FusedPool in float between Casts from and to half precision becomes one in half precision.

    a = Cast<float>(x); p = FusedPool(a); y = Cast<float16>(p)      becomes      y = FusedPool(x)

It accumulates in float whatever its dtype, so that both round once, at the end: nothing changes.
"""

import onnx_graphsurgeon as gs

from ...graph import DOMAIN, Scope, labelled
from ..driver import Applied, Missed, Outcome, RulePass

HALF = ("float16", "bfloat16")


def narrow(scope: Scope, node: gs.Node) -> Outcome:
  """Takes the Casts around one pool away."""
  if scope.op(node) != f"{DOMAIN}::FusedPool" or scope.dtype(node.inputs[0]) != "float":
    return None
  cast = scope.producer(node.inputs[0], "Cast")
  if cast is None or scope.dtype(cast.inputs[0]) not in HALF:
    return None
  readers = scope.consumers(node.outputs[0])
  back = readers[0] if len(readers) == 1 and scope.op(readers[0]) == "Cast" else None
  used = scope.used_beyond(node.outputs[0], [] if back is None else [back])
  if back is None or used or scope.dtype(back.outputs[0]) != scope.dtype(cast.inputs[0]):
    return Missed(node, used or f"it is not cast back to {scope.dtype(cast.inputs[0])}")
  labels = labelled(cast, node, back)
  new = gs.Node(node.op, node.name, dict(node.attrs), [cast.inputs[0]], [], DOMAIN)
  scope.replace([node, back], new, [back.outputs[0]])
  if not cast.outputs[0].outputs and not scope.is_output(cast.outputs[0]):
    scope.remove(cast)
  return Applied(labels, new)


POOL_PRECISION = RulePass(
  "pool-precision", "a FusedPool between Casts from and to half precision is one in half precision", narrow
)
