"""Pointwise operators after a convolution become its epilogue: activations, scales, residual sums, FusedPointwise.

    c = FusedConv(x, w, bias); s = Add(c, r); y = Relu(s)      becomes      y = FusedConv(x, w, bias, r)

What is drawn in is a chain (chain.py) that leaves one value for the others. Where two convolutions meet in an Add,
the later one takes it, which then can read the earlier one's result.
"""

import onnx_graphsurgeon as gs

from ...graph import Scope
from ..chain_pass import ChainPass
from ..emit import integers
from ..members import Member, compose
from .chain import conv_chain, flat_of
from .fused import CONV, is_fused_conv


def _draw(scope: Scope, members: list[Member], outputs: list[gs.Tensor]) -> gs.Node:
  conv = members[0].node
  nodes = [member.node for member in members]
  program, inputs = compose(members, outputs)
  assert inputs[0] is members[0].inputs[0]  # the convolution's value
  flat = flat_of(scope, members)
  made = [_pixels(scope, conv, tensor) if id(tensor) in flat else tensor for tensor in outputs]
  new = CONV.node_of(members[0], program, inputs)
  scope.replace(nodes, new, made)
  for pixels, tensor in zip(made, outputs, strict=True):
    if pixels is not tensor:
      view = [pixels, integers(scope, [0, int(pixels.shape[-1])], f"{tensor.name}_shape")]
      scope.insert_after(gs.Node("Reshape", scope.unique(f"{tensor.name}/Reshape"), {}, view, [tensor]), new)
  return new


def _pixels(scope: Scope, conv: gs.Node, tensor: gs.Tensor) -> gs.Variable:
  """What the convolution makes instead of [N, M]: [N, 1, .., M]."""
  return scope.like(tensor, "nhwc", scope.shape(conv.outputs[0]))


CONV_EPILOGUE = ChainPass(
  "conv-epilogue",
  "activations, scales, residual sums and other pointwise operators after a FusedConv become part of it",
  is_fused_conv,
  conv_chain,
  _draw,
)
