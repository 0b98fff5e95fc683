"""The algorithms that a GPU has for a convolution, as --tune times them."""

from collections.abc import Mapping, Sequence
from typing import Any

import onnx

from ...graph.conv_geometry import read_attributes
from ...graph.shapes import TensorType
from ..conv_epilogue import read_epilogue
from ..list_algorithms import ask, text_of


def device_variants(
  node: onnx.NodeProto,
  inputs: Sequence[TensorType],
  constant: Sequence[bool],
  device_id: int = 0,
  transposed: bool = False,
) -> Sequence[Mapping[str, Any]]:
  """{"algorithm": text} for each one that a GPU offers for inputs of these shapes; none where one is unknown.

  Raises ModelError that names the node where the library can't tell, as without cuDNN.
  """
  read_attributes(node, transposed)
  read_epilogue(node)
  return variants_of(node, inputs, constant, device_id)


def variants_of(
  node: onnx.NodeProto, inputs: Sequence[TensorType], constant: Sequence[bool], device_id: int
) -> Sequence[Mapping[str, Any]]:
  """The same of a node that has been checked."""
  if (text := text_of(node, inputs, constant)) is None:
    return ()
  given = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
  current = given.get("algorithm", b"auto").decode()
  return [{"algorithm": each} for each in ("auto", *ask(node, text, device_id)) if each != current]
