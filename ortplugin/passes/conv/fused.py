"""The FusedConv node in the optimizer: how it is made, and read as the first member of a set of pointwise operators."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from ...errors import ModelError
from ...graph import DOMAIN, Scope, TensorType
from ...ops import find
from ...program import DTYPE_NAMES, FLOATING, Parameter, Program, ProgramError, Statement, parse
from ..absorb import Core
from ..members import Member

CONVOLUTIONS = ("FusedConv", "FusedConvTranspose")  # with one contract: X, W, operands of the program
OWN_INPUTS = 2  # X and W; the others are the program's


def is_fused_conv(scope: Scope, node: gs.Node) -> bool:
  """Whether the node is a convolution of ours."""
  return node.op in CONVOLUTIONS and scope.op(node) == f"{DOMAIN}::{node.op}"


def is_channels_last(node: gs.Node) -> bool:
  """Whether a convolution or pool of ours has its channels last."""
  return bool(node.attrs.get("layout", "NCHW") == "NHWC")


def biased(dtype: str, has_bias: bool) -> Program:
  """The program of a convolution with nothing but its bias after it."""
  c = Parameter(dtype, "c")
  if not has_bias:
    return Program((c,), (c,), ())
  return Program((c, Parameter(dtype, "bias")), (Parameter(dtype, "y"),), (Statement("y", "Add", ("c", "bias")),))


def conv_node(
  op: str, name: str, attributes: Mapping[str, Any], program: Program, inputs: Sequence[gs.Tensor]
) -> gs.Node:
  """A convolution of ours without outputs; `inputs`: X, W and the operands."""
  return gs.Node(op, name, {**attributes, "program": str(program)}, list(inputs), [], DOMAIN)


def why_invalid(node: gs.Node) -> str | None:
  """What the operator has against the attributes, program, dtypes and shapes of such a node; None if nothing."""
  operator = find(DOMAIN, node.op)
  assert operator is not None
  names = [f"x{index}" for index in range(len(node.inputs))]
  types = [TensorType(t.dtype, None if t.shape is None else tuple(t.shape)) for t in node.inputs]
  try:
    results = len(parse(str(node.attrs.get("program", ""))).results)
    outputs = [f"y{i}" for i in range(len(node.outputs) or results)]
    attributes = {name: value for name, value in node.attrs.items() if value != []}  # which have no type
    proto = onnx.helper.make_node(node.op, names, outputs, node.name, domain=DOMAIN, **attributes)
    operator.infer_shapes(proto, types)
  except (ModelError, ProgramError) as error:
    return str(error).partition("): ")[2] or str(error)
  return None


class ConvCore(Core):
  """What a convolution of ours is to what is pointwise after it (passes/absorb.py); chain.py tries the neighbours."""

  operators = CONVOLUTIONS
  called = "the convolution"
  prologue = False

  def own(self, node: gs.Node) -> tuple[int, int]:
    """X and W; no output."""
    return OWN_INPUTS, 0

  def read(self, scope: Scope, node: gs.Node) -> Member | None:
    """The node as a program; None if it is invalid, or its results have another layout than its operands."""
    return None if "output_layout" in node.attrs else super().read(scope, node)


CONV = ConvCore()


def conv_dtype(scope: Scope, node: gs.Node) -> str | None:
  """The one floating dtype of X and W; None if that is not known or there is none."""
  dtypes = {None if tensor.dtype is None else np.dtype(tensor.dtype) for tensor in node.inputs[:OWN_INPUTS]}
  dtype = dtypes.pop()
  name = None if dtype is None else DTYPE_NAMES.get(dtype)
  return name if not dtypes and name in FLOATING else None
