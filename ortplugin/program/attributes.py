"""Attributes of statements: what each may be, and the values that are left out."""

import math
import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from .dtypes import DTYPES
from .errors import ProgramError
from .limits import MAX_SUM_AXIS
from .operators import ATTRIBUTES, OPERATORS, AttributeValue

_AXES: Final = re.compile(r"(?:0|[1-9][0-9]*)(?: (?:0|[1-9][0-9]*))*\Z")


def sum_axes(text: str) -> tuple[int, ...] | None:
  """What an attribute `axes` says; None if it is none: numbers from 0, ascending, a space between them."""
  if len(text) > 256 or not _AXES.match(text):
    return None
  axes = tuple(int(each) for each in text.split(" "))
  return axes if list(axes) == sorted(set(axes)) and axes[-1] <= MAX_SUM_AXIS else None


def complete_attributes(
  op: str, given: Sequence[tuple[str, AttributeValue]], statement: str
) -> tuple[tuple[str, AttributeValue], ...]:
  """The attributes in the order of the table, defaults filled in; refuses unknown, repeated and mistyped ones."""
  if (spec := OPERATORS.get(op)) is None:
    raise ProgramError(f"statement '{statement}': unknown operator '{op}'")
  values: dict[str, AttributeValue] = {}
  for name, value in given:
    if name not in dict(spec.attributes):
      raise ProgramError(f"statement '{statement}': {op} has no attribute '{name}'")
    if name in values:
      raise ProgramError(f"statement '{statement}': attribute '{name}' is given twice")
    values[name] = value
  completed = []
  for name, default in spec.attributes:
    if (value_ := values.get(name, default)) is None:
      raise ProgramError(f"statement '{statement}': {op} needs the attribute '{name}'")
    if value_ != default:
      _check_attribute(op, name, value_, statement)
    if ATTRIBUTES[name].kind in ("Axis", "Count", "Flag") and value_ == 0:
      value_ = 0.0  # no -0
    completed.append((name, as_attribute(value_)))
  found = dict(completed)
  if found.get("axes") and not found.get("groups") and found.get("axis", -1) != -1:
    raise ProgramError(f"statement '{statement}': {op} takes axis or axes, both with groups alone")
  if found.get("groups") and not found["axes"]:
    raise ProgramError(f"statement '{statement}': {op} with groups needs axes")
  return tuple(completed)


def _check_attribute(op: str, name: str, value: AttributeValue, statement: str) -> None:
  def require(good: bool, expected: str) -> None:
    if not good:
      raise ProgramError(f"statement '{statement}': {op}'s {name} is {value!r}; it must be {expected}")

  kind = ATTRIBUTES[name].kind
  if kind == "TargetDType":
    require(value in DTYPES, f"one of {', '.join(DTYPES)}")
  elif kind in ("Word", "RequiredWord"):
    words = ATTRIBUTES[name].given
    require(value in words, " or ".join(f'"{word}"' for word in words))
  elif kind == "Axes":
    expected = f'numbers from 0 to {MAX_SUM_AXIS}, ascending, with one space between them, such as "0 2 3"'
    require(isinstance(value, str) and sum_axes(value) is not None, expected)
  else:
    require(not isinstance(value, str), "a number")
    if kind == "Axis":
      number = float(value)
      require(abs(number) <= 1024 and number == int(number), "an integer from -1024 to 1024")
    elif kind == "Count":
      require(value in range(65537), "an integer from 0 to 65536")
    elif kind == "Flag":
      require(value in (0, 1), "0 or 1")
    elif not isinstance(value, str) and math.isfinite(value):
      require(math.isfinite(float(as_attribute(value))), "within the range of float")


def as_attribute(value: AttributeValue) -> AttributeValue:
  """ONNX keeps attributes as 32-bit floats, so a number means the float nearest to its text."""
  with np.errstate(over="ignore"):
    return value if isinstance(value, str) else float(np.float32(value))
