"""RMS normalisation in every form that exporters write becomes a FusedLayerNorm.

    y = x / Sqrt(ReduceMean(x * x) + epsilon)

with the variations of fuse_layer_norm; the operator RMSNormalization; ONNX Runtime's SimplifiedLayerNormalization and
SkipSimplifiedLayerNormalization, which adds a residual and a bias first.
"""

from functools import partial

import onnx_graphsurgeon as gs

from ...graph import Scope, optional_input
from ...graph.pattern import Pattern, any_of, maybe, maybe_cast, number, op, value
from ..driver import Outcome, PatternRewrite, RulePass, first_of
from .decomposed import check_decomposed, decomposed_norm
from .fuse_layer_norm import normalised
from .operator import fuse_operator

CORE = "RMSNormalization"
WHOLE = ("RMSNormalization", "SimplifiedLayerNormalization", "com.microsoft::SimplifiedLayerNormalization")


def pattern() -> Pattern:
  """x / sqrt(mean(x^2) + epsilon)"""
  x = maybe_cast(value("x"))
  square = any_of(op("Mul", x, x), op("Pow", x, number(2)))
  return normalised(x, op("ReduceMean", square, maybe(), tag="mean"))


def rms_normalization(scope: Scope, node: gs.Node) -> Outcome:
  """RMSNormalization(X, scale) -> Y; SimplifiedLayerNormalization(X, scale) -> Y, inv_std_var?"""
  if scope.op(node) not in WHOLE:
    return None
  epsilon = float(node.attrs.get("epsilon", 1e-5))
  return fuse_operator(scope, node, CORE, [node.inputs[0]], node.inputs[1], None, epsilon)


def skip_simplified_layer_normalization(scope: Scope, node: gs.Node) -> Outcome:
  """SkipSimplifiedLayerNormalization(input, skip, gamma, bias?) -> output, -, inv_std_var?, input_skip_bias_sum?"""
  if scope.op(node) != "com.microsoft::SkipSimplifiedLayerNormalization":
    return None
  x = [node.inputs[0], node.inputs[1], *(t for t in [optional_input(node, 3)] if t is not None)]
  epsilon = float(node.attrs.get("epsilon", 1e-12))
  return fuse_operator(scope, node, CORE, x, node.inputs[2], None, epsilon, sum_output=3)


FUSE_RMS_NORM = RulePass(
  "fuse-rms-norm",
  "RMS normalisation, as one operator or many, becomes FusedLayerNorm",
  first_of(
    rms_normalization,
    skip_simplified_layer_normalization,
    PatternRewrite(pattern(), check_decomposed, partial(decomposed_norm, core=CORE)),
  ),
  keeps_constant_values=True,
)
