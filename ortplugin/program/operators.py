"""The table of operators of pointwise programs (docs/programs.md). C++ has the same in runtime/program/program.cc."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from ortplugin.program.dtypes import DTYPES, FLOATING, INTEGERS, NUMBERS, SUMS, UNSIGNED

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
