"""Normalisations that are one operator already: LayerNormalization, RMSNormalization and ONNX Runtime's own."""

from collections.abc import Sequence

import onnx_graphsurgeon as gs

from ...graph import Scope, label, show
from ..conditions import unknown_rank, unsupported
from ..driver import Applied, Missed
from .decomposed import floating
from .fused import Norm, fused_node


def fuse_operator(
  scope: Scope,
  node: gs.Node,
  core: str,
  x: Sequence[gs.Tensor],
  gamma: gs.Tensor | None,
  beta: gs.Tensor | None,
  epsilon: float,
  sum_output: int | None = None,
) -> Applied | Missed:
  """Replaces a node that is a whole normalisation. `x`: what is added up. `sum_output`: which output is the sum."""

  def missed(reason: str) -> Missed:
    return Missed(node, reason)

  for tensor in (*x, node.outputs[0], *(each for each in (gamma, beta) if each is not None)):
    if reason := unsupported(scope) or floating(scope, tensor):
      return missed(reason)
  for tensor in x:
    if reason := unknown_rank(scope, tensor):
      return missed(reason)
  for name, tensor in zip(("residual", "bias"), x[1:], strict=False):
    if conflict := shape_conflict(scope, name, tensor, x[0]) or _may_be_longer(scope, name, tensor, x[0]):
      return missed(conflict)
  dtype, result = scope.dtype(x[0]) or "", scope.dtype(node.outputs[0]) or ""
  # The dtype that the mean is kept in says how precisely the standard computes it; 1 is float32.
  if node.attrs.get("stash_type", 1) not in ((1, 11) if dtype == "double" else (1,)):
    return missed(f"stash_type is {node.attrs['stash_type']}; only 1, float32, is known")
  axis = negative_axis(scope, x[0], int(node.attrs.get("axis", -1)))
  if isinstance(axis, str):
    return missed(axis)
  for name, tensor in (("gamma", gamma), ("beta", beta)):
    if tensor is None:
      continue
    if scope.dtype(tensor) != result:
      return missed(f"{name}, '{tensor.name}', is {scope.dtype(tensor)}, the result is {result}")
    if conflict := shape_conflict(scope, name, tensor, x[0]):
      return missed(conflict)
  outputs = [node.outputs[0]]
  for index, tensor in enumerate(node.outputs[1:], start=1):
    if tensor.is_empty():
      continue
    if index == sum_output:
      outputs.append(tensor)
    else:
      if used := scope.used_beyond(tensor, []):
        return missed(f"the statistics are wanted too: {used}")
  names = ["x", "residual", "bias"][: len(x)]
  norm = Norm(core, {"axis": axis}, epsilon, x, names, dtype, result, gamma, beta, keep_sum=len(outputs) > 1)
  new = fused_node(norm, node.name)
  name = label(node)
  scope.replace([node], new, outputs)
  return Applied((name,), new)


def negative_axis(scope: Scope, x: gs.Tensor, axis: int) -> int | str:
  """`axis` counted from the end, or the reason why `x`, of known rank, has no such axis."""
  rank = scope.rank(x) or 0
  if not -rank <= axis < rank:
    return f"the axis {axis} is out of range for '{x.name}' of shape {show(scope.shape(x))}"
  return axis if axis < 0 else axis - rank


def shape_conflict(scope: Scope, name: str, tensor: gs.Tensor, x: gs.Tensor) -> str | None:
  """Why `tensor` would not broadcast to the shape of `x`, where the known lengths tell; None if they don't."""
  shape, target = scope.shape(tensor), scope.shape(x)
  if shape is None or target is None:
    return None
  fits = len(shape) <= len(target) and all(
    not isinstance(a, int) or a == 1 or not isinstance(b, int) or a == b
    for a, b in zip(reversed(shape), reversed(target), strict=False)
  )
  return None if fits else f"{name}, '{tensor.name}', of shape {show(shape)} does not broadcast to {show(target)}"


def _may_be_longer(scope: Scope, name: str, tensor: gs.Tensor, x: gs.Tensor) -> str | None:
  """Why `tensor` may have more elements than `x` along an axis; None if nothing that is known says so.

  The result has the shape of `x`, and of a longer residual ONNX Runtime reads the beginning. A sum broadcasts `x`.
  """
  lengths = zip(reversed(scope.shape(tensor) or ()), reversed(scope.shape(x) or ()), strict=False)
  if all(a == b or a == 1 or not isinstance(a, int) for a, b in lengths):
    return None
  return (
    f"{name}, '{tensor.name}', of shape {show(scope.shape(tensor))} may be longer than '{x.name}' of shape "
    f"{show(scope.shape(x))}; fix the shapes of the model's inputs with --input-shape"
  )
