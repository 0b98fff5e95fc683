"""What is known of a GPU's speed, as the files that Python and C++ share have it: <gpu>.def and engines.def here.

A pass says what is right. Where it also decides what is fast, it asks for a limit by its name; the library reads the
same lines (target.h). A model is optimized without a GPU at hand, so passes ask the H200's entry.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True)
class Limit:
  """One line. `command`: what measures it, or for engines.def the test that runs the kernel there."""

  name: str
  value: int | float
  unit: str
  why: str
  command: str


@dataclass(frozen=True)
class Target:
  """One file. `name` and `capability` are of its GPU; empty and None in engines.def, which is of every GPU."""

  name: str
  capability: tuple[int, int] | None
  limits: Mapping[str, Limit]

  def __getitem__(self, name: str) -> int:
    """The limit of that name, a whole number. Raises KeyError for an unknown name, TypeError for a fraction."""
    value = self.limits[name].value
    if not isinstance(value, int):
      raise TypeError(f"the limit {name} is {value}, no whole number")
    return value


FOLDER: Final = Path(__file__).parent
_STRING: Final = r'"([^"\\]*)"'
_TARGET: Final = re.compile(rf"TARGET\({_STRING}, (\d+), (\d+)\)\s*")
_VALUE: Final = r"[\d']+(?:\.\d+)?|\d+LL << \d+"
_LIMIT: Final = re.compile(rf"LIMIT\((\w+), ({_VALUE}),\s+{_STRING},\s+{_STRING},\s+{_STRING}\)\s*")


def read(path: Path) -> Target:
  """The entry in a file of h200.def's form. Raises ValueError that quotes what is no line of it."""
  text = re.sub(r"^//.*\n", "", path.read_text(encoding="ascii"), flags=re.MULTILINE).strip()
  name, capability = "", None
  if head := _TARGET.match(text):
    name, capability, text = head[1], (int(head[2]), int(head[3])), text[head.end() :]
  limits: dict[str, Limit] = {}
  while text:
    if (line := _LIMIT.match(text)) is None or line[1] in limits:
      what = "stands there twice" if line else "is no limit; the lines above in h200.def say what one is"
      raise ValueError(f"{path.name}: '{text.partition(chr(10))[0]}' {what}")
    limits[line[1]] = Limit(line[1], _number(line[2]), *line.groups()[2:])
    text = text[line.end() :]
  return Target(name, capability, MappingProxyType(limits))


def _number(text: str) -> int | float:
  base, _, shift = text.replace("'", "").replace("LL", "").partition(" << ")
  return float(base) if "." in base else int(base) << int(shift or 0)


ENGINES: Final = read(FOLDER / "engines.def")
TARGETS: Final = tuple(read(path) for path in sorted(FOLDER.glob("*.def")) if path.name != "engines.def")
DEFAULT: Final = next(target for target in TARGETS if target.name == "H200")
