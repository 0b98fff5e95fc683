"""Pointwise programs as standard ONNX: each statement becomes the operator of its name, or several where it must.

What the optimizer's restore step writes back and what tests compare with. Operators run in their own dtype, so a
float16 value is rounded after each of them, where the fused kernel rounds only what it stores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from ortplugin.errors import ModelError
from ortplugin.program import Operand, Program, Statement

MINIMUM_OPSET = 11

ONNX_DTYPES: dict[str, int] = {
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "float": TensorProto.FLOAT,
    "double": TensorProto.DOUBLE,
    "bool": TensorProto.BOOL,
}
NUMPY_DTYPES: dict[str, np.dtype[np.generic]] = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float": np.dtype(np.float32),
    "double": np.dtype(np.float64),
    "bool": np.dtype(np.bool_),
}
DTYPE_NAMES: dict[np.dtype[np.generic], str] = {dtype: name for name, dtype in NUMPY_DTYPES.items()}


class Builder:
    """Collects ONNX nodes, naming what lies between them `prefix` + operator + a number."""

    def __init__(self, opset: int, prefix: str) -> None:
        if opset < MINIMUM_OPSET:
            raise ModelError(
                f"the decomposition needs opset {MINIMUM_OPSET} or later of ai.onnx, the model has {opset}; "
                "convert it with onnx.version_converter"
            )
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self._prefix = prefix
        self._count = 0

    def _name(self, op: str) -> str:
        self._count += 1
        return f"{self._prefix}/{op}_{self._count}"

    def op(self, op: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Appends a node with one output and returns the output's name."""
        name = self._name(op)
        output = output or name
        self.nodes.append(helper.make_node(op, inputs, [output], name, **attributes))
        return output

    def constant(self, value: npt.ArrayLike, dtype: str | np.dtype[np.generic]) -> str:
        """A tensor of the values, in a dtype of the programs or of NumPy."""
        array = np.asarray(value).astype(NUMPY_DTYPES[dtype] if isinstance(dtype, str) else dtype)
        return self.op("Constant", value=numpy_helper.from_array(array))

    def cast(self, value: str, dtype: str, output: str = "") -> str:
        """The value in another dtype of the programs."""
        return self.op("Cast", value, output=output, to=ONNX_DTYPES[dtype])

    def mean(self, value: str, axes: Sequence[int]) -> str:
        """The mean over `axes`, which stay with length 1."""
        if self.opset >= 18:
            return self.op("ReduceMean", value, self.constant(axes, np.dtype(np.int64)), keepdims=1)
        return self.op("ReduceMean", value, axes=list(axes), keepdims=1)


Core = Callable[[Builder, Statement, str, str, str], None]
"""Appends a core statement's nodes: builder, statement, dtype, the operand's name, the output's name."""


def to_onnx(
    program: Program,
    inputs: Sequence[str],
    outputs: Sequence[str],
    opset: int,
    name_prefix: str,
    core: Core | None = None,
) -> list[onnx.NodeProto]:
    """The program as nodes of standard ONNX that read `inputs` and write `outputs`.

    `name_prefix` starts the names of all nodes and values in between. Raises ModelError below opset 11.
    """
    builder = Builder(opset, name_prefix)
    names = {parameter.name: name for parameter, name in zip(program.parameters, inputs, strict=True)}
    full = _of_full_shape(program)
    summed = str(program.core.operands[0]) if program.core else ""
    final: dict[str, str] = {}
    for result, output in zip(program.results, outputs, strict=True):
        if result.name in full:
            final.setdefault(result.name, output)
    for statement in program.statements:
        dtype = _operand_dtype(program, statement)
        operands = [_input(builder, operand, dtype, names) for operand in statement.operands]
        output = final.get(statement.name, "")
        if statement.spec.core:
            if core is None:
                raise ModelError(f"a program of this operator holds no {statement.op}")
            names[statement.name] = output or f"{name_prefix}/{statement.name}"
            core(builder, statement, dtype, operands[0], names[statement.name])
        else:
            names[statement.name] = _emit(builder, statement, dtype, operands, output)
    for result, output in zip(program.results, outputs, strict=True):
        if result.name not in full:  # every result has the shape of the normalised value
            shape = builder.op("Shape", names[summed])
            builder.op("Expand", names[result.name], shape, output=output)
        elif names[result.name] != output:  # the same value twice
            builder.op("Identity", names[result.name], output=output)
    return builder.nodes


def _of_full_shape(program: Program) -> set[str]:
    """The values that have the core's shape by themselves: its operand, its result, and what is computed from them."""
    if program.core is None:
        return {statement.name for statement in program.statements} | {each.name for each in program.parameters}
    full = {str(program.core.operands[0])}
    for statement in program.statements:
        if any(operand in full for operand in statement.operands):
            full.add(statement.name)
    return full


def _operand_dtype(program: Program, statement: Statement) -> str:
    """The dtype that T stands for, or the only operand's."""
    letters = statement.spec.operands
    return next(
        (
            program.dtypes[operand]
            for operand, letter in zip(statement.operands, letters, strict=True)
            if isinstance(operand, str) and letter in "TA"
        ),
        "bool",
    )


def _input(builder: Builder, operand: Operand, dtype: str, names: dict[str, str]) -> str:
    return names[operand] if isinstance(operand, str) else builder.constant(operand, dtype)


def _takes(op: str, opset: int, dtype: str) -> bool:
    """Whether the standard has `op` at this opset, for tensors of this dtype."""
    try:
        schema = onnx.defs.get_schema(op, opset, "")
    except onnx.defs.SchemaError:
        return False
    variable = schema.inputs[0].type_str if op != "Where" else schema.inputs[1].type_str
    text = f"tensor({dtype})"
    allowed = next((c.allowed_type_strs for c in schema.type_constraints if c.type_param_str == variable), [variable])
    return text in allowed


def _emit(builder: Builder, statement: Statement, dtype: str, operands: Sequence[str], output: str) -> str:
    op = statement.op
    attributes: dict[str, Any] = dict(statement.attributes)
    if op == "Cast":
        return builder.cast(operands[0], str(attributes["to"]), output)
    if op in ("LessOrEqual", "GreaterOrEqual") and builder.opset < 12:
        strict = builder.op(op.removesuffix("OrEqual"), *operands)
        return builder.op("Or", strict, builder.op("Equal", *operands), output=output)
    if op in _REWRITTEN and (op == "QuickGelu" or not _takes(op, builder.opset, dtype)):
        return _REWRITTEN[op](builder, statement, dtype, operands[0], output)
    if not _takes(op, builder.opset, dtype):
        # Before opset 13 to 22, most operators lack bfloat16, a few float16 or double: run them in float32.
        wide = [builder.cast(x, "float") if statement.spec.operands[i] == "T" else x for i, x in enumerate(operands)]
        if statement.spec.result == "B":
            return builder.op(op, *wide, output=output, **attributes)
        return builder.cast(builder.op(op, *wide, **attributes), dtype, output)
    return builder.op(op, *operands, output=output, **attributes)


def _gelu(b: Builder, statement: Statement, dtype: str, x: str, output: str) -> str:
    if statement.attribute("approximate") == "tanh":  # 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
        cube = b.op("Mul", b.op("Mul", x, x), x)
        inner = b.op("Add", x, b.op("Mul", cube, b.constant(0.044715, dtype)))
        gate = b.op("Tanh", b.op("Mul", inner, b.constant(math.sqrt(2 / math.pi), dtype)))
    else:  # 0.5 x (1 + erf(x / sqrt(2)))
        scaled = b.op("Div", x, b.constant(math.sqrt(2), dtype))
        gate = b.op("Erf", scaled) if _takes("Erf", b.opset, dtype) else b.cast(
            b.op("Erf", b.cast(scaled, "float")), dtype)  # fmt: skip
    half = b.op("Mul", x, b.constant(0.5, dtype))
    return b.op("Mul", half, b.op("Add", gate, b.constant(1, dtype)), output=output)


def _swish(b: Builder, statement: Statement, dtype: str, x: str, output: str) -> str:  # x sigmoid(alpha x)
    alpha = statement.number("alpha")
    scaled = x if alpha == 1 else b.op("Mul", x, b.constant(alpha, dtype))
    return b.op("Mul", x, b.op("Sigmoid", scaled), output=output)


def _mish(b: Builder, statement: Statement, dtype: str, x: str, output: str) -> str:  # x tanh(log(1 + e^x))
    return b.op("Mul", x, b.op("Tanh", b.op("Softplus", x)), output=output)


def _hard_swish(
    b: Builder, statement: Statement, dtype: str, x: str, output: str
) -> str:  # x max(0, min(1, x/6 + 1/2))
    gate = b.op("Add", b.op("Div", x, b.constant(6, dtype)), b.constant(0.5, dtype))
    clipped = b.op("Max", b.op("Min", gate, b.constant(1, dtype)), b.constant(0, dtype))
    return b.op("Mul", x, clipped, output=output)


def _celu(b: Builder, statement: Statement, dtype: str, x: str, output: str) -> str:
    # max(0, x) + min(0, alpha (e^(x/alpha) - 1))
    alpha, zero = b.constant(statement.number("alpha"), dtype), b.constant(0, dtype)
    low = b.op("Mul", b.op("Sub", b.op("Exp", b.op("Div", x, alpha)), b.constant(1, dtype)), alpha)
    return b.op("Add", b.op("Max", x, zero), b.op("Min", low, zero), output=output)


_REWRITTEN: dict[str, Callable[[Builder, Statement, str, str, str], str]] = {
    "Gelu": _gelu,
    "Swish": _swish,
    "QuickGelu": _swish,
    "Mish": _mish,
    "HardSwish": _hard_swish,
    "Celu": _celu,
}
