"""Pointwise programs (docs/programs.md): the text in a fused node's `program` attribute, parsed, checked and composed.

    program = parse('''(float x, float gamma) => (float y) {
      n = LayerNormalization<axis=-1, epsilon=1e-05>(x)
      y = Mul(n, gamma)
    }''')
    print(program)                                   # the canonical text
    program = program.with_producer("x", ...)        # composition: what the fusing passes do

A Program is immutable and valid: one that breaks a rule of the language cannot be constructed (ProgramError).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from ortplugin.errors import ModelError

FLOATING: Final = ("float16", "bfloat16", "float", "double")
DTYPES: Final = (*FLOATING, "bool")
MAX_CHARACTERS: Final = 65_536
MAX_PARAMETERS: Final = 32
MAX_RESULTS: Final = 16
MAX_STATEMENTS: Final = 256
MAX_NAME: Final = 64

Operand = str | float  # a value's name, or a literal number
AttributeValue = float | str


class ProgramError(ModelError):
    """The text or the parts are no valid pointwise program; the message says where and what was expected."""


@dataclass(frozen=True)
class OperatorSpec:
    """One row of the table of operators.

    `signature` has a letter for each operand and, last, one for the result: T (one of the four floating dtypes, the
    same throughout), B (bool), A (any dtype, on its own), C (the dtype that the attribute `to` names).
    """

    name: str
    signature: str
    attributes: tuple[tuple[str, AttributeValue | None], ...] = ()  # with the default; None: it must be given
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


def _rows() -> Iterator[OperatorSpec]:
    unary = (
        "Abs Neg Reciprocal Sqrt Exp Log Floor Ceil Round Sign Sin Cos Tan Asin Acos Atan Sinh Cosh Tanh Asinh Acosh "
        "Atanh Erf Relu Sigmoid Softplus Softsign HardSwish Mish"
    )
    yield from (OperatorSpec(name, "TT") for name in unary.split())
    yield OperatorSpec("LeakyRelu", "TT", (("alpha", 0.01),))
    yield OperatorSpec("Elu", "TT", (("alpha", 1.0),))
    yield OperatorSpec("Celu", "TT", (("alpha", 1.0),))
    yield OperatorSpec("Selu", "TT", (("alpha", 1.67326319217681884765625), ("gamma", 1.05070102214813232421875)))
    yield OperatorSpec("HardSigmoid", "TT", (("alpha", 0.2), ("beta", 0.5)))
    yield OperatorSpec("ThresholdedRelu", "TT", (("alpha", 1.0),))
    yield OperatorSpec("Shrink", "TT", (("bias", 0.0), ("lambd", 0.5)))
    yield OperatorSpec("Swish", "TT", (("alpha", 1.0),))
    yield OperatorSpec("QuickGelu", "TT", (("alpha", 1.702),))
    yield OperatorSpec("Gelu", "TT", (("approximate", "none"),))
    yield from (OperatorSpec(name, "TTT") for name in ("Add", "Sub", "Mul", "Div", "Pow", "Min", "Max", "PRelu"))
    yield OperatorSpec("Clip", "TTTT")
    yield from (OperatorSpec(name, "TTB") for name in COMPARISONS)
    yield from (OperatorSpec(name, "BBB") for name in ("And", "Or", "Xor"))
    yield OperatorSpec("Not", "BB")
    yield OperatorSpec("Where", "BTTT")
    yield from (OperatorSpec(name, "TB") for name in ("IsNaN", "IsInf"))
    yield OperatorSpec("Cast", "AC", (("to", None),))
    for name in ("LayerNormalization", "RMSNormalization"):
        yield OperatorSpec(name, "TT", (("axis", -1.0), ("epsilon", 1e-05)), core=True)


OPERATORS: Final[Mapping[str, OperatorSpec]] = MappingProxyType({row.name: row for row in _rows()})


@dataclass(frozen=True)
class Parameter:
    """A typed name: a parameter (one of the node's inputs) or a result (one of its outputs)."""

    dtype: str
    name: str

    def __str__(self) -> str:
        return f"{self.dtype} {self.name}"


@dataclass(frozen=True)
class Statement:
    """`name = op<attributes>(operands)`; attributes left out take their defaults, in the order of the table."""

    name: str
    op: str
    operands: tuple[Operand, ...]
    attributes: tuple[tuple[str, AttributeValue], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "attributes", _complete(self.op, self.attributes, self.name))

    @property
    def spec(self) -> OperatorSpec:
        """The operator's row of the table."""
        return OPERATORS[self.op]

    def attribute(self, name: str) -> AttributeValue:
        """The value of one attribute, its default if it was left out."""
        return dict(self.attributes)[name]

    def number(self, name: str) -> float:
        """The value of an attribute that is a number."""
        value = self.attribute(name)
        assert not isinstance(value, str)
        return value

    @property
    def names(self) -> tuple[str, ...]:
        """The operands that are names, not literals."""
        return tuple(operand for operand in self.operands if isinstance(operand, str))

    def __str__(self) -> str:
        defaults = dict(self.spec.attributes)

        def differs(value: AttributeValue, default: AttributeValue | None) -> bool:
            return repr(value) != repr(default if default is None else _as_attribute(default))  # -0 is not 0

        given = [
            f"{name}={_attribute_text(value)}" for name, value in self.attributes if differs(value, defaults[name])
        ]
        attributes = f"<{', '.join(given)}>" if given else ""
        operands = ", ".join(operand if isinstance(operand, str) else number_text(operand) for operand in self.operands)
        return f"{self.name} = {self.op}{attributes}({operands})"


@dataclass(frozen=True)
class Program:
    """A checked program: `parameters` are the node's inputs in order, `results` its outputs in order."""

    parameters: tuple[Parameter, ...]
    results: tuple[Parameter, ...]
    statements: tuple[Statement, ...]

    def __post_init__(self) -> None:
        _check(self)

    @cached_property
    def dtypes(self) -> Mapping[str, str]:
        """The dtype of every value, by name."""
        return _infer(self)

    @property
    def core(self) -> Statement | None:
        """The statement of the core operator, if there is one."""
        return next((statement for statement in self.statements if statement.spec.core), None)

    def statement(self, name: str) -> Statement | None:
        """The statement that makes the value `name`; None for a parameter."""
        return next((statement for statement in self.statements if statement.name == name), None)

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

        A Cast from float16 to float16 stays: it rounds what may have been computed with more precision.
        """
        width = {"float16": 1, "bfloat16": 1, "float": 2, "double": 3}
        makers = {each.name: each for each in self.statements}
        results = {result.name for result in self.results}
        same: dict[str, Operand] = {}
        statements: list[Statement] = []
        for each in self.statements:
            each = replace(each, operands=tuple(same.get(x, x) if isinstance(x, str) else x for x in each.operands))
            if each.op == "Cast":
                inner = makers.get(each.names[0])
                if inner is not None and inner.op == "Cast":
                    given, middle = self.dtypes[inner.names[0]], self.dtypes[inner.name]
                    if width.get(middle, 0) >= 2 and 1 <= width.get(given, 0) <= width[middle]:
                        each = replace(each, operands=inner.operands)
                value = each.names[0]
                exact = width.get(self.dtypes[value]) != 1 or value not in makers
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

        if core is not None:
            for operand in core.names:
                name(operand, "s")
        for result in self.results:
            name(result.name, "y")
        for statement in self.statements:
            name(statement.name, "n" if statement.spec.core else statement.op.lower())
        return self.renamed(names)


def fresh_name(hint: str, taken: Iterable[str]) -> str:
    """`hint`, or `hint` with the smallest number that makes it differ from every name in `taken`."""
    taken = set(taken) | {"inf", "nan", *DTYPES}
    hint = re.sub(r"[^A-Za-z0-9_]", "_", hint)[: MAX_NAME - 8] or "v"
    hint = f"_{hint}" if hint[0].isdigit() else hint
    return hint if hint not in taken else next(n for i in range(2, 10_000) if (n := f"{hint}{i}") not in taken)


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


def _as_attribute(value: AttributeValue) -> AttributeValue:
    """ONNX keeps attributes as 32-bit floats, so a number means the float nearest to its text."""
    with np.errstate(over="ignore"):
        return value if isinstance(value, str) else float(np.float32(value))


def _attribute_text(value: AttributeValue) -> str:
    if isinstance(value, str):
        return value if value in DTYPES else f'"{value}"'
    return number_text(np.float32(value))


def _complete(
    op: str, given: Sequence[tuple[str, AttributeValue]], statement: str
) -> tuple[tuple[str, AttributeValue], ...]:
    """The attributes in the order of the table, defaults filled in; refuses unknown, repeated and mistyped ones."""
    spec = OPERATORS.get(op)
    if spec is None:
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
        value_ = values.get(name, default)
        if value_ is None:
            raise ProgramError(f"statement '{statement}': {op} needs the attribute '{name}'")
        _check_attribute(op, name, value_, statement)
        if name == "axis" and value_ == 0:
            value_ = 0.0  # no -0
        completed.append((name, _as_attribute(value_)))
    return tuple(completed)


def _check_attribute(op: str, name: str, value: AttributeValue, statement: str) -> None:
    def require(good: bool, expected: str) -> None:
        if not good:
            raise ProgramError(f"statement '{statement}': {op}'s {name} is {value!r}; it must be {expected}")

    if name == "to":
        require(value in DTYPES, f"one of {', '.join(DTYPES)}")
    elif name == "approximate":
        require(value in ("none", "tanh"), '"none" or "tanh"')
    else:
        require(not isinstance(value, str), "a number")
        if name == "axis":
            number = float(value)
            require(abs(number) <= 1024 and number == int(number), "an integer from -1024 to 1024")
        elif not isinstance(value, str) and math.isfinite(value):
            require(math.isfinite(float(_as_attribute(value))), "within the range of float")


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def _check_name(name: str) -> None:
    if not _NAME.match(name) or len(name) > MAX_NAME:
        raise ProgramError(f"'{name}' is no name: it takes a letter or underscore, then letters, digits, underscores, "
                           f"at most {MAX_NAME} in all")  # fmt: skip
    if name in ("inf", "nan") or name in DTYPES:
        raise ProgramError(f"'{name}' cannot be a name: it means something else in a program")


def _check(program: Program) -> None:
    for what, count, limit in (
        ("parameters", len(program.parameters), MAX_PARAMETERS),
        ("results", len(program.results), MAX_RESULTS),
        ("statements", len(program.statements), MAX_STATEMENTS),
    ):
        if count > limit:
            raise ProgramError(f"{count} {what}; the limit is {limit}")
    if not program.results:
        raise ProgramError("a program needs at least one result")
    for each in (*program.parameters, *program.results):
        if each.dtype not in DTYPES:
            raise ProgramError(f"'{each.name}' has the dtype '{each.dtype}'; it must be one of {', '.join(DTYPES)}")
    dtypes = program.dtypes
    used = {result.name for result in program.results}
    for result in program.results:
        if result.name not in dtypes:
            raise ProgramError(f"the result '{result.name}' is never assigned")
        if dtypes[result.name] != result.dtype:
            raise ProgramError(
                f"the result '{result.name}' is declared {result.dtype}, but its value is {dtypes[result.name]}"
            )
    if len({result.name for result in program.results}) != len(program.results):
        raise ProgramError("a value is a result twice")
    for statement in program.statements:
        used.update(statement.names)
    unused = [name for name in dtypes if name not in used]
    if unused:
        raise ProgramError(f"the value '{unused[0]}' is never used")
    if sum(statement.spec.core for statement in program.statements) > 1:
        raise ProgramError("a program has at most one core operator (LayerNormalization or RMSNormalization)")


def _infer(program: Program) -> Mapping[str, str]:
    dtypes: dict[str, str] = {}

    def define(name: str, dtype: str) -> None:
        _check_name(name)
        if name in dtypes:
            raise ProgramError(f"the name '{name}' is assigned twice")
        dtypes[name] = dtype

    for parameter in program.parameters:
        define(parameter.name, parameter.dtype)
    for statement in program.statements:
        define(statement.name, _result_dtype(statement, dtypes))
    return MappingProxyType(dtypes)


def _result_dtype(statement: Statement, dtypes: Mapping[str, str]) -> str:
    spec = statement.spec
    if len(statement.operands) != len(spec.operands):
        raise ProgramError(
            f"statement '{statement.name}': {spec.name} takes {len(spec.operands)} operands, "
            f"{len(statement.operands)} are given"
        )
    bound: str | None = None  # the dtype that T stands for
    for operand, letter in zip(statement.operands, spec.operands, strict=True):
        if not isinstance(operand, str):
            is_condition = letter == "B" and spec.operands[-1] == "T"  # Where's
            if is_condition or (letter == "B" and operand not in (0, 1)):
                raise ProgramError(f"statement '{statement.name}': {spec.name} takes no {number_text(operand)} there")
            continue
        if operand not in dtypes:
            raise ProgramError(f"statement '{statement.name}': '{operand}' is used before it is assigned")
        dtype = dtypes[operand]
        if letter == "B" and dtype != "bool":
            raise ProgramError(f"statement '{statement.name}': '{operand}' is {dtype}; {spec.name} takes bool there")
        if letter == "T":
            if dtype not in FLOATING:
                raise ProgramError(f"statement '{statement.name}': {spec.name} takes no {dtype}, as '{operand}' is")
            if bound is not None and dtype != bound:
                raise ProgramError(
                    f"statement '{statement.name}': '{operand}' is {dtype} where another operand is {bound}; "
                    "there is no implicit promotion"
                )
            bound = dtype
    if not statement.names or ("T" in spec.operands and bound is None):
        raise ProgramError(f"statement '{statement.name}': numbers alone give {spec.name} no dtype")
    if spec.result == "C":
        return str(statement.attribute("to"))
    if spec.result == "B":
        return "bool"
    assert bound is not None
    return bound


_SPACE: Final = " \t\r\n"  # all the white space of the language: not \v and \f, which Python counts as well

_TOKEN = re.compile(
    r"""[ \t\r\n]*(?:
      (?P<number>[+-]?(?:[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![A-Za-z0-9_.])|[+-](?:inf|nan)(?![A-Za-z0-9_])))
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<string>"[A-Za-z]*")
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
            match = _TOKEN.match(self.text, position)
            if match is None:
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

    def number(self) -> float | None:
        token = self.peek()
        if token.kind == "number" or (token.kind == "word" and token.text in ("inf", "nan")):
            value = float(token.text)
            significand = re.split("[eE]", token.text)[0]
            if "n" not in token.text and (math.isinf(value) or (value == 0 and significand.strip("+-0."))):
                raise self.fail("a number within the range of double")
            self.next += 1
            return value
        return None

    def operand(self) -> Operand:
        number = self.number()
        return number if number is not None else self.take("word", "a name or a number")

    def attribute(self) -> tuple[str, AttributeValue]:
        name = self.take("word", "an attribute's name")
        self.mark("=")
        number = self.number()
        if number is not None:
            return name, number
        if self.peek().kind == "string":
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


def parse(text: str) -> Program:
    """Reads a program. Raises ProgramError: with line and column for syntax, with the statement's name otherwise."""
    return _Parser(text).program()
