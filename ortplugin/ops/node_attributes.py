"""A node's attributes, read against the types that its operator gives them."""

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx import AttributeProto

from ..errors import ModelError, near_names
from ..graph import Shape
from ..graph.conv_geometry import LARGEST, LAYOUTS, MOST_SPATIAL


def where_is(node: onnx.NodeProto) -> str:
  """What errors begin with."""
  return f"node '{node.name}' ({node.op_type})"


def read(node: onnx.NodeProto, types: Mapping[str, int]) -> dict[str, Any]:
  """The attributes by name; strings as str, lists as tuples, and no empty lists.

  Raises ModelError for one that `types` lacks and one of another type.
  """
  where = where_is(node)
  given: dict[str, Any] = {}
  for attribute in node.attribute:
    if (kind := types.get(attribute.name)) is None:
      raise ModelError(f"{where}: it has no attribute '{attribute.name}'{near_names(attribute.name, types)}")
    if attribute.type != kind:
      names = AttributeProto.AttributeType.Name
      raise ModelError(f"{where}: the attribute '{attribute.name}' is {names(attribute.type)} instead of {names(kind)}")
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
      value = value.decode(errors="replace")
    elif isinstance(value, Sequence) and not isinstance(value, str):
      value = tuple(value)
    if value != ():
      given[attribute.name] = value
  return given


def check_one_input(node: onnx.NodeProto) -> None:
  """Raises ModelError for a node of other than one input and output."""
  if len(node.input) != 1 or not node.input[0] or len(node.output) != 1:
    raise ModelError(
      f"{where_is(node)}: {len(node.input)} inputs and {len(node.output)} outputs, but it has one of each"
    )


def check_word(where: str, given: Mapping[str, Any], name: str, words: Sequence[str]) -> None:
  """Raises ModelError where the attribute is there and none of the words."""
  if given.get(name, words[0]) not in words:
    raise ModelError(f"{where}: {name} is '{given[name]}', but must be one of {', '.join(words)}")


def check_flag(where: str, given: Mapping[str, Any], name: str) -> bool:
  """The attribute as a bool, default False. Raises ModelError where it is neither 0 nor 1."""
  if given.get(name, 0) not in (0, 1):
    raise ModelError(f"{where}: {name} is {given[name]}, but must be 0 or 1")
  return bool(given.get(name, 0))


def check_numbers(where: str, given: Mapping[str, Any], name: str, count: int, least: int) -> None:
  """Raises ModelError where the attribute is there and has another number of numbers, or one out of range."""
  numbers = given.get(name, ())
  if name in given and len(numbers) != count:
    raise ModelError(f"{where}: {name} has {len(numbers)} numbers, {list(numbers)}, but takes {count}")
  if not all(least <= number <= LARGEST for number in numbers):
    raise ModelError(f"{where}: {name} is {list(numbers)}; its numbers must be from {least} to {LARGEST}")


def check_rank(where: str, shape: Shape, spatial: int | None) -> None:
  """Raises ModelError where the input has not batch, channels and as many spatial dimensions; None: 1 to 3."""
  least, most = (1, MOST_SPATIAL) if spatial is None else (spatial, spatial)
  if not least <= len(shape) - 2 <= most:
    wanted = f"{least + 2}" if least == most else f"{least + 2} to {most + 2}"
    raise ModelError(f"{where}: the input has {len(shape)} dimensions, but must have {wanted}")


def is_nhwc(where: str, given: Mapping[str, Any]) -> bool:
  """Whether channels come last. Raises ModelError where `layout` is no layout."""
  check_word(where, given, "layout", LAYOUTS)
  return bool(given.get("layout", LAYOUTS[0]) == "NHWC")
