"""Text to program: a recursive descent over tokens."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from .dtypes import DTYPES
from .errors import ProgramError
from .limits import MAX_CHARACTERS
from .operators import AttributeValue
from .printing import Operand
from .program import Program
from .statement import Parameter, Statement

_SPACE: Final = " \t\r\n"  # all the white space of the language: not \v and \f, which Python counts as well

_TOKEN = re.compile(
  r"""[ \t\r\n]*(?:
      (?P<number>[+-]?(?:[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![A-Za-z0-9_.])|[+-](?:inf|nan)(?![A-Za-z0-9_])))
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<string>"[A-Za-z0-9\ ]*")
    | (?P<mark>=>|[(){}<>=,])
    )""",
  re.VERBOSE | re.ASCII,
)


@dataclass(frozen=True)
class _Token:
  kind: str
  text: str
  position: int


class _Parser:
  """Recursive descent over the tokens; every error has line and column."""

  def __init__(self, text: str) -> None:
    if len(text) > MAX_CHARACTERS:
      raise ProgramError(f"the text has {len(text)} characters; the limit is {MAX_CHARACTERS}")
    self.text = text
    self.tokens = list(self._tokenize())
    self.next = 0

  def _tokenize(self) -> Iterator[_Token]:
    position, end = 0, len(self.text.rstrip(_SPACE))
    while position < end:
      if (match := _TOKEN.match(self.text, position)) is None:
        start = len(self.text) - len(self.text[position:].lstrip(_SPACE))
        raise self._error(start, repr(self.text[start]), "a name, a number or a mark of the language")
      assert match.lastgroup is not None
      yield _Token(match.lastgroup, match[match.lastgroup], match.start(match.lastgroup))
      position = match.end()
    yield _Token("end", "", end)

  def _error(self, position: int, found: str, expected: str) -> ProgramError:
    line = self.text.count("\n", 0, position) + 1
    column = position - (self.text.rfind("\n", 0, position) + 1) + 1
    return ProgramError(f"line {line}, column {column}: found {found}, expected {expected}")

  def peek(self) -> _Token:
    return self.tokens[self.next]

  def fail(self, expected: str) -> ProgramError:
    token = self.peek()
    return self._error(token.position, f"'{token.text}'" if token.text else "the end", expected)

  def take(self, kind: str, expected: str) -> str:
    token = self.peek()
    if token.kind != kind:
      raise self.fail(expected)
    self.next += 1
    return token.text

  def mark(self, text: str) -> None:
    if self.peek().text != text or self.peek().kind != "mark":
      raise self.fail(f"'{text}'")
    self.next += 1

  def accept(self, text: str) -> bool:
    if self.peek().kind == "mark" and self.peek().text == text:
      self.next += 1
      return True
    return False

  def parameter(self) -> Parameter:
    if self.peek().text not in DTYPES:
      raise self.fail(f"a dtype ({', '.join(DTYPES)})")
    dtype = self.take("word", "a dtype")
    return Parameter(dtype, self.take("word", "a name"))

  def parameters(self, empty: bool) -> tuple[Parameter, ...]:
    self.mark("(")
    if empty and self.accept(")"):
      return ()
    found = [self.parameter()]
    while self.accept(","):
      found.append(self.parameter())
    self.mark(")")
    return tuple(found)

  def number(self) -> float | int | None:
    """An int for the text of an integer other than -0, a float for every other number; None if there is none."""
    token = self.peek()
    if token.kind == "number" or (token.kind == "word" and token.text in ("inf", "nan")):
      value = float(token.text)
      significand = re.split("[eE]", token.text)[0]
      if "n" not in token.text and (math.isinf(value) or (value == 0 and significand.strip("+-0."))):
        raise self.fail("a number within the range of double")
      self.next += 1
      digits, negative = token.text.lstrip("+-"), token.text[0] == "-"
      if not digits.isdecimal() or (value == 0 and negative):
        return value
      magnitude = int(digits.lstrip("0") or "0")  # zeros count towards Python's limit on the length
      return -magnitude if negative else magnitude
    return None

  def operand(self) -> Operand:
    number = self.number()
    return number if number is not None else self.take("word", "a name or a number")

  def attribute(self) -> tuple[str, AttributeValue]:
    name = self.take("word", "an attribute's name")
    self.mark("=")
    if (number := self.number()) is not None:
      return name, float(number)
    if self.peek().kind == "string":
      if self.peek().text.strip('"') in DTYPES:
        raise self.fail("a number, a word or a dtype without quotes")
      return name, self.take("string", "a string").strip('"')
    if self.peek().text in DTYPES:
      return name, self.take("word", "a dtype")
    raise self.fail("a number, a string or a dtype")

  def statement(self) -> Statement:
    name = self.take("word", "a name or '}'")
    self.mark("=")
    op = self.take("word", "an operator")
    attributes: list[tuple[str, AttributeValue]] = []
    if self.accept("<"):
      attributes.append(self.attribute())
      while self.accept(","):
        attributes.append(self.attribute())
      self.mark(">")
    self.mark("(")
    operands = [self.operand()]
    while self.accept(","):
      operands.append(self.operand())
    self.mark(")")
    return Statement(name, op, tuple(operands), tuple(attributes))

  def program(self) -> Program:
    parameters = self.parameters(empty=True)
    self.mark("=>")
    results = self.parameters(empty=False)
    self.mark("{")
    statements = []
    while not self.accept("}"):
      statements.append(self.statement())
    if self.peek().kind != "end":
      raise self.fail("the end")
    return Program(parameters, results, tuple(statements))


@lru_cache(maxsize=1024)  # each look at a fused node reads its program
def parse(text: str) -> Program:
  """Reads a program. Raises ProgramError: with line and column for syntax, with the statement's name otherwise."""
  return _Parser(text).program()
