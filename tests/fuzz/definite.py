"""The form in which a model is judged where ONNX leaves NaN open, or ONNX Runtime differs from ONNX on it or on -0."""

from collections.abc import Iterable

import onnx

from . import maxima, resizes, selections
from .emulate import respelled


def definite(model: onnx.ModelProto) -> onnx.ModelProto | None:
  """The model in that form; None if nothing in it is open."""
  lengths = resizes.constant_lengths(model)

  def spell(node: onnx.NodeProto, dtype: int, name: str) -> Iterable[onnx.NodeProto] | None:
    return (
      maxima.propagating(node, dtype, name)
      or resizes.in_two_dimensions(node, name, lengths)
      or selections.with_signs(node, dtype, name)
    )

  return respelled(model, spell)
