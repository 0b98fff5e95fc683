"""ConvGrad: the gradients of a Conv or a ConvTranspose with what is pointwise after it drawn in.

    dZ = program(params)                      the gradient of the convolution's value, of the shape S
    dX = the gradient of X                    dW = that of W                    dB = that of the bias: dZ summed

docs/operators.md has the meaning in full; reference.py the sums. A bare convolution has the program
`(T dz) => (T dz) {}`. W is as in FusedConv and FusedConvTranspose; what auto_pad or output_shape would say stands in
`pads`.
Inputs: X and W, as `operands` says, then one for each parameter of the program; X and W have a floating dtype.
Outputs: those of `gradients`, in order, then the program's results after the first, which have the shape S. dX has
    the shape and dtype of X, dW the shape of W, dB the shape [M].
Errors: an invalid program or attribute, another number of inputs or outputs than they say, shapes or dtypes that do not
    fit each other.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from ...arrays import Array
from ...errors import ModelError
from ...graph import TensorType, broadcast
from ...program import DTYPE_NAMES, NUMPY_DTYPES
from .. import pointwise_reference
from ..base import Operator
from ..decompose import Builder, to_onnx
from . import algorithms, reference as reference_module
from .decomposition import append
from .gradient import NAME, Gradient, Shapes, gradient_of, shapes_of


def infer_shapes(node: onnx.NodeProto, inputs: Sequence[TensorType]) -> list[TensorType]:
  """Every output's dtype and its shape, None where the inputs' shapes do not tell."""
  gradient = gradient_of(node)
  where, count = f"node '{node.name}' ({NAME})", len(gradient.operands)
  dtype = NUMPY_DTYPES[gradient.dtype]
  for name, given in zip(gradient.operands, inputs, strict=False):
    if given.dtype is not None and given.dtype != dtype:
      raise ModelError(f"{where}: {name} is {DTYPE_NAMES.get(given.dtype, given.dtype)}, dZ {gradient.dtype}")
  whole = broadcast([each.shape for each in inputs[count:]])
  shapes = shapes_of(where, gradient, [each.shape for each in inputs[:count]], whole)
  made = {
    "dX": TensorType(dtype, Shapes.last(shapes.x, gradient.channels_last)),
    "dW": TensorType(NUMPY_DTYPES[gradient.weight_dtype], Shapes.last(shapes.w, gradient.channels_last)),
    "dB": TensorType(NUMPY_DTYPES[gradient.weight_dtype], None if shapes.z is None else (shapes.z[1],)),
    "dZ": TensorType(dtype, whole),
  }
  extra = [TensorType(NUMPY_DTYPES[result.dtype], whole) for result in gradient.program.results[1:]]
  return [made[name] for name in gradient.gradients] + extra


def reference(node: onnx.NodeProto, inputs: Sequence[Array], rounded: bool = True) -> list[Array]:
  """The outputs in NumPy, computed in float64; `rounded`: in their own dtypes, else before that last rounding.

  dX and dW are made from the dZ that float64 arithmetic gives, rounded to T: what the kernels store.
  """
  gradient = gradient_of(node)
  count = len(gradient.operands)
  whole = np.broadcast_shapes(*(np.shape(each) for each in inputs[count:]))
  shapes = shapes_of(f"node '{node.name}' ({NAME})", gradient, [each.shape for each in inputs[:count]], whole)
  values = pointwise_reference.values(gradient.program, inputs[count:])
  results = [(np.broadcast_to(values[each.name], whole), each.dtype) for each in gradient.program.results]
  given = {name: _first(each, gradient) for name, each in zip(gradient.operands, inputs, strict=False)}
  z = _first(pointwise_reference.rounded(*results[0]), gradient).astype(np.float64)
  made: dict[str, Array] = {}
  if "dX" in gradient.gradients:
    made["dX"] = _last(_data(gradient, z, given["W"], shapes), gradient)
  if "dW" in gradient.gradients:
    made["dW"] = _last(_weight(gradient, z, given["X"], shapes), gradient)
  made["dZ"] = np.array(results[0][0])
  made["dB"] = _first(made["dZ"], gradient).sum((0, *range(2, z.ndim)))
  dtypes = {"dW": gradient.weight_dtype, "dB": gradient.weight_dtype}
  outputs = [(made[name], dtypes.get(name, gradient.dtype)) for name in gradient.gradients] + results[1:]
  return [pointwise_reference.rounded(value, dtype) if rounded else np.array(value) for value, dtype in outputs]


def _window(gradient: Gradient) -> reference_module.Window:
  return reference_module.Window(gradient.strides, gradient.dilations, gradient.pad_begin, gradient.group)


def _data(gradient: Gradient, z: Array, w: Array, shapes: Shapes) -> Array:
  assert shapes.x is not None
  sizes = [int(size) for size in shapes.x[2:] if size is not None]
  make = reference_module.forward if gradient.transposed else reference_module.data_gradient
  return make(z, w, sizes, _window(gradient))


def _weight(gradient: Gradient, z: Array, x: Array, shapes: Shapes) -> Array:
  assert shapes.w is not None
  kernel = [int(size) for size in shapes.w[2:] if size is not None]
  small, large = (x, z) if gradient.transposed else (z, x)
  return reference_module.weight(small, large, kernel, _window(gradient))


def _first(array: Array, gradient: Gradient) -> Array:
  return np.moveaxis(array, -1, 1) if gradient.channels_last else np.asarray(array)


def _last(array: Array, gradient: Gradient) -> Array:
  return np.ascontiguousarray(np.moveaxis(array, 1, -1)) if gradient.channels_last else array


def decompose(node: onnx.NodeProto, opset: int) -> list[onnx.NodeProto]:
  """The node as standard ONNX."""
  gradient = gradient_of(node)
  prefix = f"{node.output[0]}/unfused"
  count = len(gradient.operands)
  program, wanted = gradient.program, dict(zip(gradient.gradients, node.output, strict=False))
  dz = wanted.get("dZ", f"{prefix}/dz")
  results = [dz, *node.output[len(gradient.gradients) :]]
  if bare := not program.statements and len(program.parameters) == 1 and "dZ" not in wanted:
    dz = node.input[count]
  nodes = [] if bare else to_onnx(program, node.input[count:], results, opset, prefix)
  builder = Builder(opset, f"{prefix}/conv")
  operands = dict(zip(gradient.operands, node.input, strict=False))
  append(builder, gradient, dz, operands, wanted)
  return nodes + builder.nodes


def device_variants(
  node: onnx.NodeProto, inputs: Sequence[TensorType], constant: Sequence[bool], device_id: int = 0
) -> Sequence[Mapping[str, Any]]:
  """What the GPU offers for dX and for dW; see algorithms.py."""
  return algorithms.variants(node, gradient_of(node), inputs, device_id)


OPERATOR = Operator(
  NAME,
  "gradients of Conv and ConvTranspose: input, weight, bias, through what is pointwise after them",
  infer_shapes,
  decompose,
  reference,
  device_variants=device_variants,
)
