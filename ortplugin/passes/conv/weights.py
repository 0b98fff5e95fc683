"""Weight and bias of a convolution, or scale and bias of a BatchNormalization, as a pass reads and replaces them."""

import numpy as np
import onnx_graphsurgeon as gs

from ...arrays import Array, Wide
from ...graph import Scope, label, optional_input
from ...graph.channels import NotFoldableError, constant, stored

COPY_BYTES = 1 << 24  # weights that something else reads too are copied, at the price of a larger file, up to this size


def only_for(scope: Scope, tensor: gs.Tensor, node: gs.Node) -> None:
  """Raises NotFoldableError if something besides the node needs the tensor."""
  if used := scope.used_beyond(tensor, [node]):
    raise NotFoldableError(used)


def weight_of(scope: Scope, conv: gs.Node) -> tuple[Array, int]:
  """The weights of a convolution, and its groups."""
  tensor = conv.inputs[1]
  weight, groups = constant(scope, tensor, f"the weight of {label(conv)}"), int(conv.attrs.get("group", 1))
  if weight.ndim < 3 or not weight.size or groups < 1 or weight.shape[0] % groups:
    raise NotFoldableError(f"{label(conv)} has weights of shape {list(weight.shape)} in {groups} groups")
  if (used := scope.used_beyond(tensor, [conv])) and weight.nbytes > COPY_BYTES:
    raise NotFoldableError(f"{used}, so its {weight.nbytes >> 20} MiB would be copied")
  return weight, groups


def bias_of(scope: Scope, node: gs.Node, channels: int) -> Wide:
  """The bias of a convolution or BatchNormalization; zeros if it has none."""
  if (given := optional_input(node, 2)) is None:
    return np.zeros(channels)
  bias = constant(scope, given, f"the bias of {label(node)}").astype(np.float64)
  if bias.shape != (channels,):
    raise NotFoldableError(f"the bias of {label(node)} has the shape {list(bias.shape)}, not [{channels}]")
  return bias


def store(scope: Scope, node: gs.Node, old: Array, weight: Wide, peaks: Wide, bias: Wide) -> None:
  """Gives the node new constants; raises, before it changes anything, if they don't fit the dtypes."""
  given = list(node.inputs)
  new_weight = stored(weight, old.dtype, f"the weight of {label(node)}", peaks)
  given_bias = optional_input(node, 2)
  keeps_none = given_bias is None and not bias.any()
  new_bias = stored(bias, old.dtype if given_bias is None else given_bias.dtype, f"the bias of {label(node)}")
  name = given[1].name
  node.inputs[1] = scope.add_constant(new_weight, name)
  if keeps_none:
    return
  constant_bias = scope.add_constant(new_bias, f"{name}_bias" if given_bias is None else given_bias.name)
  if len(given) > 2:
    node.inputs[2] = constant_bias
  else:
    node.inputs.append(constant_bias)
