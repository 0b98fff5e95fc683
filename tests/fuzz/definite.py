"""The form in which a model is judged where ONNX leaves NaN open, or ONNX Runtime differs from ONNX on it or on -0."""

from onnx.helper import make_node

from . import maxima, resizes, selections
from .emulate import respelled


def definite(model):
  """The model in that form; None if nothing in it is open."""
  lengths = resizes.constant_lengths(model)

  def spell(node, dtype, name):
    return (
      maxima.propagating(node, dtype, name)
      or resizes.in_two_dimensions(node, name, lengths)
      or selections.with_signs(node, dtype, name)
      or _of_nan(node, dtype, name)
    )

  return respelled(model, spell)


def _of_nan(node, dtype, name):
  """The nodes in place of a Sign of floats: x - x where x is 0 or NaN, of which Sign makes 0 in fp16 (1.32)."""
  return _spelled(node, name) if node.op_type == "Sign" and dtype in maxima.FLOATS else None


def _spelled(node, name):
  x = node.input[0]
  yield make_node("Neg", [x], [f"{name}/negated"])
  yield make_node("Less", [x, f"{name}/negated"], [f"{name}/below"])
  yield make_node("Less", [f"{name}/negated", x], [f"{name}/above"])
  yield make_node("Or", [f"{name}/below", f"{name}/above"], [f"{name}/other"])
  yield make_node("Sign", [x], [f"{name}/sign"])
  yield make_node("Sub", [x, x], [f"{name}/nothing"])
  yield make_node("Where", [f"{name}/other", f"{name}/sign", f"{name}/nothing"], list(node.output))
