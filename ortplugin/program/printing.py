"""The canonical text of numbers, operands and attributes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .dtypes import DTYPES
from .operators import AttributeValue

Operand = str | float | int  # a value's name, or a literal number: an int where the dtype is an integer one


def operand_text(operand: Operand) -> str:
  """A name as it is, a number as its canonical text."""
  if isinstance(operand, str):
    return operand
  return str(operand) if isinstance(operand, int) else number_text(operand)


def number_text(value: float | np.floating[Any]) -> str:
  """The shortest decimal that reads back as `value`, in its own precision: 1, -0.5, 1e-05, inf, nan.

  Of plain and scientific notation the shorter, plain if they are equally long: what C++'s std::to_chars writes.
  """
  if math.isnan(value):
    return "nan"
  if math.isinf(value):
    return "-inf" if value < 0 else "inf"
  sign = "-" if math.copysign(1.0, value) < 0 else ""
  magnitude: np.floating[Any] = np.abs(value if isinstance(value, np.floating) else np.float64(value))
  mantissa, exponent_text = np.format_float_scientific(magnitude, unique=True, trim="-").split("e")
  exponent = int(exponent_text)
  digits = mantissa.replace(".", "")
  scientific = f"{mantissa}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
  if exponent < 0:
    plain = f"0.{'0' * (-exponent - 1)}{digits}"
  elif exponent >= len(digits) - 1:
    plain = str(int(magnitude))
  else:
    plain = f"{digits[: exponent + 1]}.{digits[exponent + 1 :]}"
  return sign + (plain if len(plain) <= len(scientific) else scientific)


def attribute_text(value: AttributeValue) -> str:
  """A dtype as it is, another word in quotes, a number as the float32 that ONNX keeps of it."""
  if isinstance(value, str):
    return value if value in DTYPES else f'"{value}"'
  return number_text(np.float32(value))
