"""A linear Resize that keeps its channels first becomes FusedResize too, which is faster at it than ONNX Runtime's own.

    y = Resize<mode = "linear">(x, , scales)      becomes      y = FusedResize<mode = "linear", scales = ..>(x)

Measured on an H200: 8.6 us instead of 19.5 for [4, 21, 28, 28] to [4, 21, 224, 224] in float16, the end of an FCN. On
the CPU both take the same time. A nearest one stays: there ONNX Runtime's is the faster on the CPU.
"""

import onnx
import onnx_graphsurgeon as gs

from ...errors import ModelError
from ...graph import DOMAIN, Scope, TensorType, labelled
from ...ops.pool.resize import OPERATOR
from ..driver import Applied, Missed, Outcome, RulePass
from .fuse_pool import resize_attributes


def fuse(scope: Scope, node: gs.Node) -> Outcome:
  """Makes a linear Resize by constants ours."""
  if scope.op(node) != "Resize" or node.attrs.get("mode", "nearest") != "linear":
    return None
  attributes, x = resize_attributes(scope, node), node.inputs[0]
  if attributes is None:
    return Missed(node, "it does not resize the spatial axes alone, by constants and without more attributes")
  if x.dtype is None:
    return Missed(node, f"the dtype of '{x.name}' is not known")
  proto = onnx.helper.make_node(OPERATOR.name, ["x"], ["y"], node.name, domain=DOMAIN, **attributes)
  try:
    OPERATOR.infer_shapes(proto, [TensorType(x.dtype, scope.shape(x))])
  except ModelError as error:
    return Missed(node, str(error))
  labels = labelled(node)
  node.op, node.domain, node.attrs = OPERATOR.name, DOMAIN, attributes
  node.inputs = [x]
  return Applied(labels, node)


FUSE_RESIZE = RulePass("fuse-resize", "a linear Resize with channels first becomes FusedResize", fuse)
