"""A checked program and its composition, which is what the fusing passes do with it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from .dtypes import DTYPES, FLOATING, INTEGERS, holds
from .limits import MAX_NAME
from .printing import Operand
from .statement import Parameter, Statement
from .types import check, infer


@dataclass(frozen=True)
class Program:
  """A checked program: `parameters` are the node's inputs in order, `results` its outputs in order."""

  parameters: tuple[Parameter, ...]
  results: tuple[Parameter, ...]
  statements: tuple[Statement, ...]

  def __post_init__(self) -> None:
    dtypes, statements = infer(self.parameters, self.statements)
    object.__setattr__(self, "statements", statements)
    object.__setattr__(self, "_dtypes", dtypes)
    check(self.parameters, self.results, self.statements, dtypes)

  @property
  def dtypes(self) -> Mapping[str, str]:
    """The dtype of every value, by name."""
    found: Mapping[str, str] = vars(self)["_dtypes"]
    return found

  @property
  def core(self) -> Statement | None:
    """The statement of the core operator, the first if there are several, as SumTo's may; None without."""
    return next((statement for statement in self.statements if statement.spec.core), None)

  @property
  def cores(self) -> tuple[Statement, ...]:
    """The statements of core operators: none, one normalisation, or any number of SumTo."""
    return tuple(statement for statement in self.statements if statement.spec.core)

  def statement(self, name: str) -> Statement | None:
    """The statement that makes the value `name`; None for a parameter."""
    return next((statement for statement in self.statements if statement.name == name), None)

  def operand_dtype(self, statement: Statement) -> str:
    """The dtype that T stands for in the statement; bool where the operator has no T."""
    letters = zip(statement.operands, statement.spec.operands, strict=True)
    return next((self.dtypes[x] for x, letter in letters if isinstance(x, str) and letter == "T"), "bool")

  def needed_for(self, names: Iterable[str]) -> frozenset[str]:
    """The values, parameters included, that computing `names` takes; `names` themselves included."""
    needed = set(names)
    for statement in reversed(self.statements):
      if statement.name in needed:
        needed.update(statement.names)
    return frozenset(needed)

  @property
  def prologue(self) -> frozenset[str]:
    """The values, parameters included, that the core's operand needs; that operand included."""
    return self.needed_for(self.core.names) if self.core else frozenset()

  @property
  def epilogue(self) -> frozenset[str]:
    """The values that depend on the core's; its own included."""
    if self.core is None:
      return frozenset()
    names = {self.core.name}
    for statement in self.statements:
      if names.intersection(statement.names):
        names.add(statement.name)
    return frozenset(names)

  def __str__(self) -> str:
    head = f"({', '.join(map(str, self.parameters))}) => ({', '.join(map(str, self.results))}) {{"
    return "\n".join([head, *(f"  {statement}" for statement in self.statements), "}"])

  # Composition. Each returns a new program; the names it is given must be free or known, as said.

  def fresh(self, hint: str) -> str:
    """A name made of `hint` that no value has yet."""
    taken = {parameter.name for parameter in self.parameters} | {statement.name for statement in self.statements}
    return fresh_name(hint, taken)

  def with_producer(
    self, parameter: str, statements: Sequence[Statement], new_parameters: Sequence[Parameter] = ()
  ) -> Program:
    """Puts `statements` first; the last takes the name of `parameter`, which thereby ceases to be one.

    The statements may read the other parameters and `new_parameters`, which are added at the end.
    """
    statements = [*statements[:-1], replace(statements[-1], name=parameter)]
    kept = tuple(each for each in self.parameters if each.name != parameter)
    return Program((*kept, *new_parameters), self.results, (*statements, *self.statements))

  def with_statements(
    self, statements: Sequence[Statement], results: Sequence[Parameter], new_parameters: Sequence[Parameter] = ()
  ) -> Program:
    """Appends `statements`, with `new_parameters` at the end of the parameters; `results` are all that remain."""
    return Program((*self.parameters, *new_parameters), tuple(results), (*self.statements, *statements))

  def with_result(self, name: str) -> Program:
    """Adds the value `name` as the last result."""
    return replace(self, results=(*self.results, Parameter(self.dtypes[name], name)))

  def renamed(self, names: Mapping[str, str]) -> Program:
    """Every value under its name in `names`, those not listed under their own."""

    def new(name: str) -> str:
      return names.get(name, name)

    return Program(
      tuple(Parameter(each.dtype, new(each.name)) for each in self.parameters),
      tuple(Parameter(each.dtype, new(each.name)) for each in self.results),
      tuple(
        Statement(
          new(each.name),
          each.op,
          tuple(new(operand) if isinstance(operand, str) else operand for operand in each.operands),
          each.attributes,
        )
        for each in self.statements
      ),
    )

  def merged(self, keep: str, drop: str) -> Program:
    """Two parameters that are the same tensor become one: `keep` stands wherever `drop` stood."""
    return Program(
      tuple(each for each in self.parameters if each.name != drop),
      tuple(Parameter(each.dtype, keep if each.name == drop else each.name) for each in self.results),
      tuple(
        replace(each, operands=tuple(keep if operand == drop else operand for operand in each.operands))
        for each in self.statements
      ),
    )

  def without_redundant_casts(self) -> Program:
    """Drops each Cast that changes no bit: a widening one that another Cast follows, and one to the same dtype.

    A Cast from float16 to float16 stays: it rounds what may have been computed with more precision. So does one to
    bool, which is a comparison.
    """
    makers = {each.name: each for each in self.statements}
    results = {result.name for result in self.results}
    same: dict[str, Operand] = {}
    statements: list[Statement] = []
    for each in self.statements:
      each = replace(each, operands=tuple(same.get(x, x) if isinstance(x, str) else x for x in each.operands))
      if each.op == "Cast":
        if (inner := makers.get(each.names[0])) is not None and inner.op == "Cast":
          given, middle = self.dtypes[inner.names[0]], self.dtypes[inner.name]
          if _is_step(given, middle, self.dtypes[each.name]):
            each = replace(each, operands=inner.operands)
        value = each.names[0]
        exact = self.dtypes[value] not in ("float16", "bfloat16") or value not in makers
        if self.dtypes[value] == self.dtypes[each.name] and exact and each.name not in results:
          same[each.name] = value
          continue
      makers[each.name] = each
      statements.append(each)
    return drop_unused(self.parameters, self.results, statements)

  def readable(self) -> Program:
    """Short names: results are y, y2, ..., what is normalised is s, the core's value n, the rest by operator.

    Parameters keep their names, numbered anew in their order.
    """
    names: dict[str, str] = {}
    taken: set[str] = set()
    for parameter in self.parameters:
      names[parameter.name] = fresh_name(parameter.name.rstrip("0123456789") or parameter.name, taken)
      taken.add(names[parameter.name])
    made = {statement.name for statement in self.statements}
    core = self.core

    def name(value: str, hint: str) -> None:
      if value in made and value not in names:
        names[value] = fresh_name(hint, taken)
        taken.add(names[value])

    if core is not None and core.op != "SumTo":
      for operand in core.names:
        name(operand, "s")
    for result in self.results:
      name(result.name, "y")
    for statement in self.statements:
      name(statement.name, "n" if statement.op.endswith("Normalization") else statement.op.lower())
    return self.renamed(names)


def fresh_name(hint: str, taken: Iterable[str]) -> str:
  """`hint`, or `hint` with the smallest number that makes it differ from every name in `taken`."""
  taken = set(taken) | {"inf", "nan", *DTYPES}
  hint = re.sub(r"[^A-Za-z0-9_]", "_", hint)[: MAX_NAME - 8] or "v"
  hint = f"_{hint}" if hint[0].isdigit() else hint
  return hint if hint not in taken else next(n for i in range(2, 10_000) if (n := f"{hint}{i}") not in taken)


def _is_step(given: str, middle: str, target: str) -> bool:
  """Whether the Cast to `middle` changes nothing of a Cast from `given` to `target`."""
  if middle == "bool":
    return given == "bool"
  if given in INTEGERS and middle in FLOATING and target in INTEGERS:
    return holds(middle, given) and holds(target, given)  # beyond that one saturates and the other wraps
  return holds(middle, given)


def drop_unused(
  parameters: Sequence[Parameter], results: Sequence[Parameter], statements: Sequence[Statement]
) -> Program:
  """A program of those of the parameters and statements that `results` need."""
  needed = {result.name for result in results}
  kept: list[Statement] = []
  for statement in reversed(statements):
    if statement.name in needed:
      needed.update(statement.names)
      kept.append(statement)
  return Program(tuple(p for p in parameters if p.name in needed), tuple(results), tuple(reversed(kept)))
