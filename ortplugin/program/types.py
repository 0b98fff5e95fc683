"""The dtype of every value of a program, and the rules that a program must keep to."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from .dtypes import DTYPES, FLOATING, INTEGERS, integer_range
from .errors import ProgramError
from .limits import MAX_NAME, MAX_PARAMETERS, MAX_RESULTS, MAX_STATEMENTS
from .printing import operand_text
from .statement import Parameter, Statement

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def _check_name(name: str) -> None:
  if not _NAME.match(name) or len(name) > MAX_NAME:
    raise ProgramError(
      f"'{name}' is no name: it takes a letter or underscore, then letters, digits, underscores, "
      f"at most {MAX_NAME} in all"
    )
  if name in ("inf", "nan") or name in DTYPES:
    raise ProgramError(f"'{name}' cannot be a name: it means something else in a program")


def check(
  parameters: Sequence[Parameter],
  results: Sequence[Parameter],
  statements: Sequence[Statement],
  dtypes: Mapping[str, str],
) -> None:
  """Checks what holds of a program as a whole; `dtypes` are those of its values, as `infer` returns them."""
  for what, count, limit in (
    ("parameters", len(parameters), MAX_PARAMETERS),
    ("results", len(results), MAX_RESULTS),
    ("statements", len(statements), MAX_STATEMENTS),
  ):
    if count > limit:
      raise ProgramError(f"{count} {what}; the limit is {limit}")
  if not results:
    raise ProgramError("a program needs at least one result")
  for each in (*parameters, *results):
    if each.dtype not in DTYPES:
      raise ProgramError(f"'{each.name}' has the dtype '{each.dtype}'; it must be one of {', '.join(DTYPES)}")
  used = {result.name for result in results}
  for result in results:
    if result.name not in dtypes:
      raise ProgramError(f"the result '{result.name}' is never assigned")
    if dtypes[result.name] != result.dtype:
      raise ProgramError(
        f"the result '{result.name}' is declared {result.dtype}, but its value is {dtypes[result.name]}"
      )
  if len({result.name for result in results}) != len(results):
    raise ProgramError("a value is a result twice")
  for statement in statements:
    used.update(statement.names)
  unused = [name for name in dtypes if name not in used]
  if unused:
    raise ProgramError(f"the value '{unused[0]}' is never used")
  cores = [statement.op for statement in statements if statement.spec.core]
  if len(cores) > 1 and set(cores) != {"SumTo"}:
    raise ProgramError("a program has at most one core operator (LayerNormalization or RMSNormalization), or SumTo")


def infer(
  parameters: Sequence[Parameter], given: Sequence[Statement]
) -> tuple[Mapping[str, str], tuple[Statement, ...]]:
  """The dtype of every value; the statements with their literals as those dtypes have them."""
  dtypes: dict[str, str] = {}
  statements: list[Statement] = []

  def define(name: str, dtype: str) -> None:
    _check_name(name)
    if name in dtypes:
      raise ProgramError(f"the name '{name}' is assigned twice")
    dtypes[name] = dtype

  for parameter in parameters:
    define(parameter.name, parameter.dtype)
  for statement in given:
    bound = _bound_dtype(statement, dtypes)
    operands = tuple(
      operand if isinstance(operand, str) else _literal(statement, operand, letter, bound)
      for operand, letter in zip(statement.operands, statement.spec.operands, strict=True)
    )
    result = statement.spec.result
    define(statement.name, str(statement.attribute("to")) if result == "C" else "bool" if result == "B" else bound)
    changed = any(type(new) is not type(old) for new, old in zip(operands, statement.operands, strict=True))
    statements.append(replace(statement, operands=operands) if changed else statement)
  return MappingProxyType(dtypes), tuple(statements)


def _bound_dtype(statement: Statement, dtypes: Mapping[str, str]) -> str:
  """The dtype that T stands for, 'bool' without a T; refuses operands that do not agree."""
  spec = statement.spec
  if len(statement.operands) != len(spec.operands):
    raise ProgramError(
      f"statement '{statement.name}': {spec.name} takes {len(spec.operands)} operands, "
      f"{len(statement.operands)} are given"
    )
  bound: str | None = None
  for operand, letter in zip(statement.operands, spec.operands, strict=True):
    if not isinstance(operand, str):
      continue
    if operand not in dtypes:
      raise ProgramError(f"statement '{statement.name}': '{operand}' is used before it is assigned")
    dtype = dtypes[operand]
    if letter == "B" and dtype != "bool":
      raise ProgramError(f"statement '{statement.name}': '{operand}' is {dtype}; {spec.name} takes bool there")
    if letter == "T":
      if dtype not in spec.types:
        raise ProgramError(f"statement '{statement.name}': {spec.name} takes no {dtype}, as '{operand}' is")
      if bound is not None and dtype != bound:
        raise ProgramError(
          f"statement '{statement.name}': '{operand}' is {dtype} where another operand is {bound}; "
          "there is no implicit promotion"
        )
      bound = dtype
  if not statement.names or ("T" in spec.operands and bound is None):
    raise ProgramError(f"statement '{statement.name}': numbers alone give {spec.name} no dtype")
  if spec.name == "Mod" and bound in FLOATING and not statement.number("fmod"):
    raise ProgramError(f"statement '{statement.name}': Mod of {bound} needs the attribute fmod=1")
  return bound or "bool"


def _literal(statement: Statement, number: float | int, letter: str, dtype: str) -> float | int:
  """The number as the dtype of its position has it: an int for an integer dtype, a float for every other."""
  where = f"statement '{statement.name}': {statement.op} takes no {operand_text(number)} there"
  if letter == "B":
    if statement.op == "Where":
      raise ProgramError(where)
    dtype = "bool"
  if dtype == "bool" and number not in (0, 1):
    raise ProgramError(where)
  if dtype not in INTEGERS:
    return float(number)
  low, high = integer_range(dtype)
  if not isinstance(number, int) or isinstance(number, bool):
    raise ProgramError(f"{where}: {dtype} takes an integer without fraction and exponent")
  if not low <= number <= high:
    raise ProgramError(f"{where}: {dtype} goes from {low} to {high}")
  return number
