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
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from ortplugin.errors import ModelError

FLOATING: Final = ("float16", "bfloat16", "float", "double")
SIGNED: Final = ("int8", "int16", "int32", "int64")
UNSIGNED: Final = ("uint8", "uint16", "uint32", "uint64")
INTEGERS: Final = (*SIGNED, *UNSIGNED)
NUMBERS: Final = (*FLOATING, *INTEGERS)
DTYPES: Final = (*NUMBERS, "bool")
SUMS: Final = (*FLOATING, "int32", "int64", "uint32", "uint64")  # what SumTo adds up
MAX_CHARACTERS: Final = 65_536
MAX_PARAMETERS: Final = 32
MAX_RESULTS: Final = 16
MAX_STATEMENTS: Final = 256
MAX_NAME: Final = 64
MAX_SUM_AXIS: Final = 63

Operand = str | float | int  # a value's name, or a literal number: an int where the dtype is an integer one
AttributeValue = float | str


class ProgramError(ModelError):
    """The text or the parts are no valid pointwise program; the message says where and what was expected."""


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


def _rows() -> Iterator[OperatorSpec]:
    unary = (
        "Reciprocal Sqrt Exp Log Floor Ceil Round Sin Cos Tan Asin Acos Atan Sinh Cosh Tanh Asinh Acosh Atanh Erf "
        "Sigmoid Softplus Softsign HardSwish Mish"
    )
    yield from (OperatorSpec(name, "TT", types=NUMBERS) for name in ("Abs", "Neg", "Sign", "Relu"))
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
    yield from (OperatorSpec(name, "TTT", types=NUMBERS) for name in ("Add", "Sub", "Mul", "Div", "Pow"))
    yield from (OperatorSpec(name, "TTT", types=NUMBERS) for name in ("Min", "Max"))
    yield OperatorSpec("PRelu", "TTT")
    yield OperatorSpec("Mod", "TTT", (("fmod", 0.0),), NUMBERS)
    yield from (OperatorSpec(f"Bitwise{name}", "TTT", types=INTEGERS) for name in ("And", "Or", "Xor"))
    yield OperatorSpec("BitShift", "TTT", (("direction", None),), UNSIGNED)
    yield OperatorSpec("BitwiseNot", "TT", types=INTEGERS)
    yield OperatorSpec("Clip", "TTTT", types=NUMBERS)
    yield from (OperatorSpec(name, "TTB", types=DTYPES if name == "Equal" else NUMBERS) for name in COMPARISONS)
    yield from (OperatorSpec(name, "BBB") for name in ("And", "Or", "Xor"))
    yield OperatorSpec("Not", "BB")
    yield OperatorSpec("Where", "BTTT", types=DTYPES)
    yield OperatorSpec("IsNaN", "TB")
    yield OperatorSpec("IsInf", "TB", (("detect_negative", 1.0), ("detect_positive", 1.0)))
    yield OperatorSpec("Cast", "TC", (("to", None),), DTYPES)
    for name in ("LayerNormalization", "RMSNormalization"):
        yield OperatorSpec(name, "TT", (("axis", -1.0), ("epsilon", 1e-05)), core=True)
    yield OperatorSpec("SumTo", "TT", (("axes", None), ("keepdims", 1.0)), SUMS, core=True)


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
        operands = ", ".join(operand_text(operand) for operand in self.operands)
        return f"{self.name} = {self.op}{attributes}({operands})"


@dataclass(frozen=True)
class Program:
    """A checked program: `parameters` are the node's inputs in order, `results` its outputs in order."""

    parameters: tuple[Parameter, ...]
    results: tuple[Parameter, ...]
    statements: tuple[Statement, ...]

    def __post_init__(self) -> None:
        dtypes, statements = _infer(self)
        object.__setattr__(self, "statements", statements)
        object.__setattr__(self, "_dtypes", dtypes)
        _check(self)

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
                inner = makers.get(each.names[0])
                if inner is not None and inner.op == "Cast":
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
        return _holds(middle, given) and _holds(target, given)  # beyond that one saturates and the other wraps
    return _holds(middle, given)


def _holds(wide: str, narrow: str) -> bool:
    """Whether every value of `narrow`, as it is before it is rounded to be stored, is one of `wide`."""
    if narrow == "bool":
        return wide != "bool"
    if narrow in FLOATING:
        return wide == "double" or (wide == "float" and narrow != "double")
    low, high = integer_range(narrow)
    if wide in INTEGERS:
        lowest, highest = integer_range(wide)
        return lowest <= low and high <= highest
    return high <= {"float": 2**24, "double": 2**53}.get(wide, 0)


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


def operand_text(operand: Operand) -> str:
    """A name as it is, a number as its canonical text."""
    if isinstance(operand, str):
        return operand
    return str(operand) if isinstance(operand, int) else number_text(operand)


def integer_range(dtype: str) -> tuple[int, int]:
    """The lowest and the highest value of an integer dtype."""
    bits = int(dtype.lstrip("uint"))
    return (0, 2**bits - 1) if dtype in UNSIGNED else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


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


_WHOLE: Final = ("axis", "fmod", "detect_negative", "detect_positive", "keepdims")  # attributes without fraction
_WORDS: Final = {"approximate": ("none", "tanh"), "direction": ("LEFT", "RIGHT")}
_AXES: Final = re.compile(r"(?:0|[1-9][0-9]*)(?: (?:0|[1-9][0-9]*))*\Z")


def sum_axes(text: str) -> tuple[int, ...] | None:
    """What SumTo's attribute `axes` says; None if it is none: numbers from 0, ascending, a space between them."""
    if len(text) > 256 or not _AXES.match(text):
        return None
    axes = tuple(int(each) for each in text.split(" "))
    return axes if list(axes) == sorted(set(axes)) and axes[-1] <= MAX_SUM_AXIS else None


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
        if name in _WHOLE and value_ == 0:
            value_ = 0.0  # no -0
        completed.append((name, _as_attribute(value_)))
    return tuple(completed)


def _check_attribute(op: str, name: str, value: AttributeValue, statement: str) -> None:
    def require(good: bool, expected: str) -> None:
        if not good:
            raise ProgramError(f"statement '{statement}': {op}'s {name} is {value!r}; it must be {expected}")

    if name == "to":
        require(value in DTYPES, f"one of {', '.join(DTYPES)}")
    elif name in _WORDS:
        require(value in _WORDS[name], " or ".join(f'"{word}"' for word in _WORDS[name]))
    elif name == "axes":
        expected = f'numbers from 0 to {MAX_SUM_AXIS}, ascending, with one space between them, such as "0 2 3"'
        require(isinstance(value, str) and sum_axes(value) is not None, expected)
    else:
        require(not isinstance(value, str), "a number")
        if name == "axis":
            number = float(value)
            require(abs(number) <= 1024 and number == int(number), "an integer from -1024 to 1024")
        elif name in _WHOLE:
            require(value in (0, 1), "0 or 1")
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
    cores = {statement.op for statement in program.cores}
    if len(cores) > 1 or (len(program.cores) > 1 and cores != {"SumTo"}):
        raise ProgramError("a program has at most one core operator (LayerNormalization or RMSNormalization), or SumTo")


def _infer(program: Program) -> tuple[Mapping[str, str], tuple[Statement, ...]]:
    """The dtype of every value; the statements with their literals as those dtypes have them."""
    dtypes: dict[str, str] = {}
    statements: list[Statement] = []

    def define(name: str, dtype: str) -> None:
        _check_name(name)
        if name in dtypes:
            raise ProgramError(f"the name '{name}' is assigned twice")
        dtypes[name] = dtype

    for parameter in program.parameters:
        define(parameter.name, parameter.dtype)
    for statement in program.statements:
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
        number = self.number()
        if number is not None:
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


def parse(text: str) -> Program:
    """Reads a program. Raises ProgramError: with line and column for syntax, with the statement's name otherwise."""
    return _Parser(text).program()
