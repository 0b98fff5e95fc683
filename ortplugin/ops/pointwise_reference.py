"""Every pointwise operator of the programs in NumPy, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ortplugin.ops.decompose import NUMPY_DTYPES
from ortplugin.program import Statement

Array = npt.NDArray[Any]

_erf = np.vectorize(math.erf, otypes=[np.float64])


def evaluate(statement: Statement, operands: Sequence[Array]) -> Array:
    """The value of one pointwise statement. Operands and result are float64 or bool; a Cast rounds to its dtype."""
    if statement.op == "Cast":
        rounded = np.asarray(operands[0]).astype(NUMPY_DTYPES[str(statement.attribute("to"))])
        return rounded if rounded.dtype == np.bool_ else rounded.astype(np.float64)
    numbers = [value for _, value in statement.attributes if not isinstance(value, str)]
    if statement.op == "Gelu":
        return _gelu_tanh(operands[0]) if statement.attribute("approximate") == "tanh" else _gelu(operands[0])
    return np.asarray(POINTWISE[statement.op](*operands, *numbers))


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _softplus(x: Array) -> Array:
    return np.asarray(np.logaddexp(x, 0))


def _gelu(x: Array) -> Array:
    return np.asarray(x * 0.5 * (1 + _erf(x / math.sqrt(2))))


def _gelu_tanh(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def _elu(x: Array, alpha: float) -> Array:
    return np.where(x < 0, alpha * np.expm1(x), x)


def _celu(x: Array, alpha: float) -> Array:
    return np.maximum(0, x) + np.minimum(0, alpha * np.expm1(x / alpha))


def _selu(x: Array, alpha: float, gamma: float) -> Array:
    return gamma * np.where(x > 0, x, alpha * np.expm1(x))


def _shrink(x: Array, bias: float, lambd: float) -> Array:
    return np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, 0.0))  # 0 for NaN


def _hard_sigmoid(x: Array, alpha: float, beta: float) -> Array:
    return np.maximum(0, np.minimum(1, alpha * x + beta))


POINTWISE: dict[str, Callable[..., Any]] = {
    "Abs": np.abs,
    "Neg": np.negative,
    "Reciprocal": lambda x: 1 / np.asarray(x),
    "Sqrt": np.sqrt,
    "Exp": np.exp,
    "Log": np.log,
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Round": np.rint,
    "Sign": np.sign,
    "Sin": np.sin,
    "Cos": np.cos,
    "Tan": np.tan,
    "Asin": np.arcsin,
    "Acos": np.arccos,
    "Atan": np.arctan,
    "Sinh": np.sinh,
    "Cosh": np.cosh,
    "Tanh": np.tanh,
    "Asinh": np.arcsinh,
    "Acosh": np.arccosh,
    "Atanh": np.arctanh,
    "Erf": _erf,
    "Relu": lambda x: np.where(x < 0, 0.0, x),
    "Sigmoid": _sigmoid,
    "Softplus": _softplus,
    "Softsign": lambda x: x / (1 + np.abs(x)),
    "HardSwish": lambda x: x * _hard_sigmoid(x, 1 / 6, 0.5),
    "Mish": lambda x: x * np.tanh(_softplus(x)),
    "LeakyRelu": lambda x, alpha: np.where(x < 0, alpha * x, x),
    "Elu": _elu,
    "Celu": _celu,
    "Selu": _selu,
    "HardSigmoid": _hard_sigmoid,
    "ThresholdedRelu": lambda x, alpha: np.where(x > alpha, x, 0.0),  # 0 for NaN
    "Shrink": _shrink,
    "Swish": lambda x, alpha: x * _sigmoid(alpha * x),
    "QuickGelu": lambda x, alpha: x * _sigmoid(alpha * x),
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Pow": np.power,
    "Min": np.minimum,
    "Max": np.maximum,
    "PRelu": lambda x, slope: np.where(x < 0, slope * x, x),
    "Clip": lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "Equal": np.equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Xor": np.logical_xor,
    "Not": np.logical_not,
    "Where": np.where,
    "IsNaN": np.isnan,
    "IsInf": np.isinf,
}
