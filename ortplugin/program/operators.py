"""The operators of pointwise programs, as the table that Python and C++ share has them: operators.def beside this file.

The tests hold docs/programs.md and every implementation against it; "Adding an operator" there says what a line needs.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from .dtypes import DTYPES, FLOATING, INTEGERS, NUMBERS, SUMS, UNSIGNED

AttributeValue = float | str


@dataclass(frozen=True)
class OperatorSpec:
  """One row of the table of operators.

  `signature` has a letter for each operand and, last, one for the result: T (one of `types`, the same throughout),
  B (bool), C (the dtype that the attribute `to` names).
  """

  name: str
  signature: str
  attributes: tuple[tuple[str, AttributeValue | None], ...] = ()  # with the default; None: it must be given
  types: tuple[str, ...] = FLOATING
  core: bool = False

  @property
  def operands(self) -> str:
    """A letter for each operand."""
    return self.signature[:-1]

  @property
  def result(self) -> str:
    """The result's letter."""
    return self.signature[-1]


COMPARISONS: Final = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")

TABLE: Final = Path(__file__).with_name("operators.def")
_TYPES: Final = {"F": FLOATING, "I": INTEGERS, "U": UNSIGNED, "N": NUMBERS, "S": SUMS, "A": DTYPES}
_ROW: Final = re.compile(r'(POINTWISE|CORE)\((\w+), "([\w, ]+) -> (\w+)"((?:, \w+\([^()]*\))*)\)\Z')
_MUST_BE_GIVEN: Final = ("RequiredWord", "TargetDType")
_KINDS: Final = ("Number", "Flag", "Count", "Axis", "Axes", "Word", *_MUST_BE_GIVEN)
_ATTRIBUTE: Final = re.compile(rf', ({"|".join(_KINDS)})\("(\w+)"((?:, [^(),]+)*)\)')


@dataclass(frozen=True)
class AttributeSpec:
  """One attribute of a row. `kind` and `given`: what operators.def calls it, and gives beside its name."""

  name: str
  kind: str
  given: tuple[str, ...]

  @property
  def default(self) -> AttributeValue | None:
    """What it is where a text leaves it out; None: it must be given."""
    if self.kind in _MUST_BE_GIVEN or not self.given:
      return None
    if self.kind == "Axes":
      return ""
    return self.given[0] if self.kind == "Word" else float(self.given[0])


def rows(text: str) -> Iterator[tuple[OperatorSpec, tuple[AttributeSpec, ...]]]:
  """The rows of a table in operators.def's form. Raises ValueError that names a line which is none."""
  for number, line in enumerate(text.splitlines(), 1):
    if not line or line.startswith("//"):
      continue
    row = _ROW.match(line)
    if row is None or _ATTRIBUTE.sub("", row[5]) or len(_ATTRIBUTE.findall(row[5])) > 4:
      raise ValueError(f"{TABLE.name}, line {number}: '{line}' is no row; the lines above say what one is")
    macro, name, operands, result, attributes = row.groups()
    letters = [*operands.split(", "), result]
    types = set(letters) - {"bool", "to"}
    if len(types) > 1 or not types <= _TYPES.keys():
      raise ValueError(f"{TABLE.name}, line {number}: {name} must have one of the types {', '.join(_TYPES)}")
    signature = "".join({"bool": "B", "to": "C"}.get(letter, "T") for letter in letters)
    found = tuple(
      AttributeSpec(attribute, kind, tuple(re.findall(r'""|[^ ",]+', given)))
      for kind, attribute, given in _ATTRIBUTE.findall(attributes)
    )
    defaults = tuple((each.name, each.default) for each in found)
    takes = _TYPES[types.pop()] if types else FLOATING
    yield OperatorSpec(name, signature, defaults, takes, macro == "CORE"), found


_ROWS: Final = tuple(rows(TABLE.read_text(encoding="ascii")))
OPERATORS: Final[Mapping[str, OperatorSpec]] = MappingProxyType({spec.name: spec for spec, _ in _ROWS})
# By name: an attribute's kind is the same in every operator that has it.
ATTRIBUTES: Final[Mapping[str, AttributeSpec]] = MappingProxyType({a.name: a for _, found in _ROWS for a in found})
