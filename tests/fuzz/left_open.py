"""What docs/operators.md leaves open: where infinities and NaN of a convolution come out, and what a mask makes of a
score that is infinite or NaN.

Some of its kernels pad channels with zeros, or several groups to a common tile, and infinity times zero is NaN; in some
Relu makes NaN 0. So on a GPU, elements that are not finite on either side are not compared, where the model has a
convolution of ours and something in it is not finite to begin with. What is finite on both sides is; where it differs,
an operator behind the convolution may have made it finite, and outputs on finite inputs decide. So it is with scores of
attention, on the CPU as well: kernels select by bools and add numbers, whichever of the two the model did.
"""

import numpy as np
from onnx import numpy_helper

from ortplugin.graph import walk_nodes

from .evaluate import OURS

PRODUCTS = ("MatMul", "Gemm", "Einsum", "FusedMatMul", "TransposeMatMul")
CONVOLUTIONS = ("FusedConv", "FusedConvTranspose", "ConvGrad", "FusedMatMul")  # on cuDNN


def has_convolution(model):
  return any(node.domain == OURS and node.op_type in CONVOLUTIONS for node in walk_nodes(model))


def has_masked_attention(model):
  return any(
    node.op_type == "FusedAttention" and any(each.name == "mask_dtype" for each in node.attribute)
    for node in walk_nodes(model)
  )


def has_spoilt_scores(model, values):
  """Whether a Softmax of the outermost graph is computed from a product with elements that are infinite or NaN."""
  producers = {name: node for node in model.graph.node for name in node.output}
  left = [node for node in model.graph.node if node.op_type == "Softmax"]
  seen = set()
  while left:
    node = left.pop()
    if id(node) in seen:
      continue
    seen.add(id(node))
    if node.op_type in PRODUCTS:
      if not all(_finite(each).all() for each in _floating(values.get(name) for name in node.output)):
        return True
      continue
    left += [producers[name] for name in node.input if name in producers]
  return False


def is_special(model, *values):
  constants = [numpy_helper.to_array(each) for each in model.graph.initializer]
  for node in walk_nodes(model):
    constants += [numpy_helper.to_array(each.t) for each in node.attribute if each.HasField("t")]
  return not all(
    _finite(each).all() for each in _floating([*constants, *(v for some in values for v in some.values())])
  )


def without_specials(got, wanted):
  """`got`, where either of the two is infinite or NaN with what is wanted instead."""
  found = dict(got)
  for name, array in got.items():
    other = wanted.get(name)
    if len(list(_floating([array, other]))) < 2 or np.shape(array) != np.shape(other):
      continue
    found[name] = np.where(_finite(array) & _finite(other), array, np.asarray(other).astype(array.dtype))
  return found


def without_infinities(feeds):
  return {
    name: np.where(_finite(array), array, np.ones((), array.dtype)) if list(_floating([array])) else array
    for name, array in feeds.items()
  }


def _floating(values):
  """Those that are arrays of floats; those of bfloat16 have a kind of their own."""
  return (each for each in values if isinstance(each, np.ndarray) and each.dtype.kind in "fV")


def _finite(array):
  return np.isfinite(array.astype(np.float64))
