"""Layer normalisation in every form that exporters write becomes a FusedLayerNorm.

    d = x - ReduceMean(x)
    y = d / Sqrt(ReduceMean(d * d) + epsilon)

with a Pow for the square, one Sub or two, a Reciprocal or a power of -1/2 for the division, Casts in between; the
operator LayerNormalization; ONNX Runtime's SkipLayerNormalization, which adds a residual and a bias first.
"""

from functools import partial

import onnx_graphsurgeon as gs

from ...graph import Scope, optional_input
from ...graph.pattern import Pattern, any_of, maybe, maybe_cast, number, op, value
from ..driver import Outcome, PatternRewrite, RulePass, first_of
from .decomposed import check_decomposed, decomposed_norm
from .operator import fuse_operator

CORE = "LayerNormalization"


def pattern() -> Pattern:
  """(x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon)"""
  x = value("x")
  mean = op("ReduceMean", x, maybe(), tag="mean")
  d = maybe_cast(op("Sub", x, mean))
  square = any_of(op("Mul", d, d), op("Pow", d, number(2)))
  return normalised(d, op("ReduceMean", square, maybe(), tag="mean"))


def normalised(d: Pattern, mean_square: Pattern) -> Pattern:
  """d / sqrt(mean_square + epsilon) however it is written; without an Add epsilon is 0."""
  mean = maybe_cast(mean_square)
  shifted = any_of(op("Add", mean, value("epsilon"), commute=True), mean)
  root = any_of(op("Sqrt", shifted), op("Pow", shifted, number(0.5)))
  inverse = any_of(op("Reciprocal", root), op("Div", number(1), root), op("Pow", shifted, number(-0.5)))
  return any_of(op("Div", d, maybe_cast(root)), op("Mul", d, maybe_cast(inverse), commute=True))


def layer_normalization(scope: Scope, node: gs.Node) -> Outcome:
  """LayerNormalization(X, Scale, B?) -> Y, Mean?, InvStdDev?"""
  if scope.op(node) != "LayerNormalization":
    return None
  epsilon = float(node.attrs.get("epsilon", 1e-5))
  return fuse_operator(scope, node, CORE, [node.inputs[0]], node.inputs[1], optional_input(node, 2), epsilon)


def skip_layer_normalization(scope: Scope, node: gs.Node) -> Outcome:
  """SkipLayerNormalization(input, skip, gamma, beta?, bias?) -> output, mean?, inv_std_var?, input_skip_bias_sum?"""
  if scope.op(node) != "com.microsoft::SkipLayerNormalization":
    return None
  x = [node.inputs[0], node.inputs[1], *(t for t in [optional_input(node, 4)] if t is not None)]
  epsilon = float(node.attrs.get("epsilon", 1e-12))
  return fuse_operator(scope, node, CORE, x, node.inputs[2], optional_input(node, 3), epsilon, sum_output=3)


FUSE_LAYER_NORM = RulePass(
  "fuse-layer-norm",
  "layer normalisation, as one operator or many, becomes FusedLayerNorm",
  first_of(
    layer_normalization,
    skip_layer_normalization,
    PatternRewrite(pattern(), check_decomposed, partial(decomposed_norm, core=CORE)),
  ),
  keeps_constant_values=True,
)
