"""The algorithms that a GPU has for the gradients of a convolution, as --tune times them."""

from collections.abc import Mapping, Sequence
from typing import Any

import onnx

from ...graph import TensorType
from ..list_algorithms import ask, text_of
from .gradient import Gradient

ATTRIBUTES = {"dX": "data_algorithm", "dW": "weight_algorithm"}


def variants(
  node: onnx.NodeProto, gradient: Gradient, inputs: Sequence[TensorType], device_id: int = 0
) -> Sequence[Mapping[str, Any]]:
  """{"data_algorithm": text} and {"weight_algorithm": text} for each one that a GPU offers for inputs of these
  shapes; none where one is unknown.

  Raises ModelError that names the node where the library can't tell, as without cuDNN.
  """
  given = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
  wanted = [ATTRIBUTES[name] for name in gradient.gradients if name in ATTRIBUTES]
  if (described := text_of(node, inputs, [False] * len(inputs))) is None or not wanted:
    return ()
  lines = [line.partition("=") for line in ask(node, described, device_id)]
  return [
    {name: text}
    for name in wanted
    for text in ("auto", *(text for listed, _, text in lines if listed == name))
    if text != given.get(name, b"auto").decode()
  ]
