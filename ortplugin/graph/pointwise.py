"""Graph nodes as statements of pointwise programs: which operators have one, and why a node of theirs may not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_graphsurgeon as gs

from ortplugin.graph.facts import Scope
from ortplugin.graph.labels import label
from ortplugin.ops.decompose import NUMPY_DTYPES
from ortplugin.program import DTYPES, OPERATORS, Operand, Parameter, Program, Statement

VARIADIC = ("Min", "Max")
LOWEST = {"float16": -65504.0, "bfloat16": -3.3895313892515355e38, "float": -3.4028234663852886e38,
          "double": -1.7976931348623157e308}  # fmt: skip
CONTRIB = ("Gelu", "FastGelu", "BiasGelu", "QuickGelu")


class NotPointwiseError(Exception):
    """Why a node of a pointwise operator is no statement; with the value that is in the way."""


@dataclass
class Writer:
    """Collects statements around a program: its own names, new parameters, and the tensors that these stand for."""

    program: Program
    names: dict[int, str]  # of tensors that are values of the program already, by id
    scope: Scope
    statements: list[Statement] = field(default_factory=list)
    parameters: list[Parameter] = field(default_factory=list)
    inputs: list[gs.Tensor] = field(default_factory=list)

    def fresh(self, hint: str) -> str:
        """A name that no value has."""
        taken = [*(each.name for each in self.statements), *(each.name for each in self.parameters)]
        name = self.program.fresh(hint)
        while name in taken:
            number = int(name[len(hint) :] or 1) + 1 if name.startswith(hint) else 2
            name = f"{hint}{number}"
        return name

    def emit(self, op: str, *operands: Operand, **attributes: float | str) -> str:
        """Adds a statement and returns its name."""
        name = self.fresh("v_")
        self.statements.append(Statement(name, op, operands, tuple(attributes.items())))
        return name

    def name(self, tensor: gs.Tensor, hint: str) -> str:
        """The tensor's name in the program; a new parameter if it has none."""
        if id(tensor) not in self.names:
            dtype = self.scope.dtype(tensor)
            assert dtype is not None
            self.names[id(tensor)] = self.fresh(hint)
            self.parameters.append(Parameter(dtype, self.names[id(tensor)]))
            self.inputs.append(tensor)
        return self.names[id(tensor)]


def is_pointwise(scope: Scope, node: gs.Node) -> bool:
    """Whether the node's operator has a statement, whatever stands in the way of this node."""
    op = scope.op(node)
    spec = OPERATORS.get(op)
    return (spec is not None and not spec.core) or op in [f"com.microsoft::{name}" for name in CONTRIB]


def write(writer: Writer, node: gs.Node, hints: Sequence[str]) -> str:
    """Adds the statements that compute the node's output and returns the name of its value.

    `hints`: for each input, what to call it if it becomes a parameter. Raises NotPointwiseError with the reason.
    """
    scope = writer.scope
    for tensor in (*node.inputs, *node.outputs):
        if not tensor.is_empty() and scope.dtype(tensor) is None and not _is_exponent(scope, node, tensor):
            kind = "of unknown dtype" if tensor.dtype is None else np.dtype(tensor.dtype).name
            raise NotPointwiseError(f"'{tensor.name}' is {kind}; programs know {', '.join(DTYPES)}")
    op = scope.op(node)
    handler = _HANDLERS.get(op, _same_operator)
    return handler(writer, node, hints)


def _is_exponent(scope: Scope, node: gs.Node, tensor: gs.Tensor) -> bool:
    return scope.op(node) == "Pow" and tensor is node.inputs[1]


def _operand(writer: Writer, node: gs.Node, tensor: gs.Tensor, hint: str, dtype: str | None) -> Operand:
    """A literal, for a constant scalar that `dtype` (None: no literal here) holds exactly; else the tensor's name."""
    if dtype is not None and id(tensor) not in writer.names and _adds_no_dimension(writer.scope, node, tensor):
        number = literal(writer.scope, tensor, dtype)
        if number is not None:
            return number
    return writer.name(tensor, hint)


def _adds_no_dimension(scope: Scope, node: gs.Node, tensor: gs.Tensor) -> bool:
    """Whether the result keeps its rank without this input: one of shape [1, 1, 1] may have more dimensions."""
    rank = scope.rank(tensor)
    ranks = [scope.rank(t) for t in node.inputs if not t.is_empty() and scope.scalar(t) is None]
    return rank == 0 or (rank is not None and any(other is not None and other >= rank for other in ranks))


def literal(scope: Scope, tensor: gs.Tensor, dtype: str) -> float | None:
    """The value of a constant with one element if `dtype` holds it exactly; else None."""
    number = scope.scalar(tensor)
    if number is None:
        return None
    with np.errstate(over="ignore"):
        same = float(np.float64(number).astype(NUMPY_DTYPES[dtype]))
    return number if same == number or number != number else None


def _operands(writer: Writer, node: gs.Node, hints: Sequence[str]) -> list[Operand]:
    """Every input, constant scalars as literals as long as another operand gives the dtype."""
    scope = writer.scope
    spec = OPERATORS[scope.op(node)]
    letters = spec.operands if len(node.inputs) == len(spec.operands) else spec.operands[0] * len(node.inputs)
    typed = [t for t, letter in zip(node.inputs, letters, strict=True) if letter == "T"]
    dtype = scope.dtype(typed[0]) if typed else None
    giver = next((t for t in typed if id(t) in writer.names or scope.scalar(t) is None), typed[0] if typed else None)
    return [
        _operand(writer, node, t, hint, dtype if letter == "T" and t is not giver else None)
        for t, letter, hint in zip(node.inputs, letters, hints, strict=True)
    ]


def _same_operator(writer: Writer, node: gs.Node, hints: Sequence[str]) -> str:
    spec = OPERATORS[writer.scope.op(node)]
    count = len(spec.operands)
    if len(node.inputs) != count or any(tensor.is_empty() for tensor in node.inputs):
        raise NotPointwiseError(f"{label(node)} has {len(node.inputs)} inputs; in a program {spec.name} has {count}")
    unknown = set(node.attrs) - {name for name, _ in spec.attributes}
    if unknown:
        raise NotPointwiseError(
            f"{label(node)} has the attribute '{min(unknown)}', which {spec.name} has in no program"
        )
    attributes = {name: node.attrs[name] for name, _ in spec.attributes if name in node.attrs}
    return writer.emit(spec.name, *_operands(writer, node, hints), **attributes)


def _cast(writer: Writer, node: gs.Node, hints: Sequence[str]) -> str:
    target = writer.scope.dtype(node.outputs[0])
    assert target is not None
    return writer.emit("Cast", writer.name(node.inputs[0], hints[0]), to=target)


def _pow(writer: Writer, node: gs.Node, hints: Sequence[str]) -> str:
    scope = writer.scope
    base, exponent = node.inputs
    dtype = scope.dtype(base)
    assert dtype is not None
    if id(exponent) not in writer.names and _adds_no_dimension(scope, node, exponent):
        number = literal(scope, exponent, dtype)
        if number is not None:
            return writer.emit("Pow", writer.name(base, hints[0]), number)
    if scope.dtype(exponent) != dtype:
        raise NotPointwiseError(f"the exponent '{exponent.name}' is {np.dtype(exponent.dtype).name}, the base {dtype}")
    power = writer.name(exponent, hints[1])
    return writer.emit("Pow", _operand(writer, node, base, hints[0], dtype), power)


def _variadic(writer: Writer, node: gs.Node, hints: Sequence[str]) -> str:
    if len(node.inputs) < 2:
        raise NotPointwiseError(f"{label(node)} has one input")
    operands = _operands(writer, node, hints)
    if isinstance(operands[0], float) and isinstance(operands[1], float):
        operands.sort(key=lambda operand: isinstance(operand, float))  # the one that gives the dtype comes first
    result = operands[0]
    for operand in operands[1:]:
        result = writer.emit(str(node.op), result, operand)
    assert isinstance(result, str)
    return result


def _clip(writer: Writer, node: gs.Node, hints: Sequence[str]) -> str:
    if "min" in node.attrs or "max" in node.attrs:
        raise NotPointwiseError(f"{label(node)} has its limits as attributes, as before opset 11")
    x = node.inputs[0]
    dtype = writer.scope.dtype(x)
    assert dtype is not None
    limits: list[Operand] = [LOWEST[dtype], -LOWEST[dtype]]  # absent: the dtype's own limits, as the standard says
    for index in (1, 2):
        if index < len(node.inputs) and not node.inputs[index].is_empty():
            limits[index - 1] = _operand(writer, node, node.inputs[index], hints[index], dtype)
    return writer.emit("Clip", writer.name(x, hints[0]), *limits)


def _is_inf(writer: Writer, node: gs.Node, hints: Sequence[str]) -> str:
    if not node.attrs.get("detect_positive", 1) or not node.attrs.get("detect_negative", 1):
        raise NotPointwiseError(f"{label(node)} detects the infinity of one sign only")
    return writer.emit("IsInf", writer.name(node.inputs[0], hints[0]))


def _contrib_gelu(writer: Writer, node: gs.Node, hints: Sequence[str]) -> str:
    x = writer.name(node.inputs[0], hints[0])
    if len(node.inputs) > 1 and not node.inputs[1].is_empty():
        x = writer.emit("Add", x, writer.name(node.inputs[1], "bias"))
    if node.op == "QuickGelu":
        return writer.emit("QuickGelu", x, alpha=float(node.attrs.get("alpha", 1.702)))
    return writer.emit("Gelu", x, approximate="tanh" if node.op == "FastGelu" else "none")


_HANDLERS: dict[str, Callable[[Writer, gs.Node, Sequence[str]], str]] = {
    "Cast": _cast,
    "Pow": _pow,
    "Clip": _clip,
    "IsInf": _is_inf,
    **dict.fromkeys(VARIADIC, _variadic),
    **dict.fromkeys([f"com.microsoft::{name}" for name in CONTRIB], _contrib_gelu),
}
