"""Every pointwise operator of the programs in NumPy: floating dtypes in float64, integers exactly."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..arrays import Array
from ..program import FLOATING, INTEGERS, NUMPY_DTYPES, Program, Statement, integer_range

_erf = np.vectorize(math.erf, otypes=[np.float64])


def values(
  program: Program, inputs: Sequence[Array], core: Callable[[Statement, Array], Array] | None = None
) -> dict[str, Array]:
  """Every value of the program by name, with the shape that it has by itself.

  Floating values are float64, a Cast to a floating dtype rounds; integers have their own dtype. `core` computes a
  core statement from its operand. Raises ValueError if the inputs are not as many as the parameters.
  """
  if len(inputs) != len(program.parameters):
    raise ValueError(f"the program has {len(program.parameters)} parameters, {len(inputs)} inputs are given")
  found: dict[str, Array] = {}
  for parameter, array in zip(program.parameters, inputs, strict=True):
    found[parameter.name] = np.asarray(array).astype(_kept_as(parameter.dtype))
  with np.errstate(all="ignore"):
    for statement in program.statements:
      dtype = program.operand_dtype(statement)
      operands = [found[x] if isinstance(x, str) else _literal(x, dtype) for x in statement.operands]
      if not statement.spec.core:
        found[statement.name] = evaluate(statement, operands)
      elif core is not None:
        found[statement.name] = core(statement, operands[0])
      else:
        raise ValueError(f"a program of this operator holds no {statement.op}")
  return found


def rounded(value: Array, dtype: str) -> Array:
  """A value of a program as a tensor of its dtype, rounded to nearest once."""
  with np.errstate(over="ignore", invalid="ignore"):
    value = _to_odd(value) if dtype == "bfloat16" and value.dtype.itemsize > 2 else value
    return value.astype(NUMPY_DTYPES[dtype])


def _to_odd(value: Array) -> Array:
  """The float32 towards zero, its last bit set if that is inexact.

  NumPy's bfloat16 is rounded from float32. From this one that gives what rounding the value at once would.
  """
  wide = value.astype(np.longdouble)
  near = value.astype(np.float32)
  beyond = np.abs(near.astype(np.longdouble)) > np.abs(wide)
  toward = np.where(beyond, np.nextafter(near, np.float32(0)), near)
  exact = (near.astype(np.longdouble) == wide) | ~np.isfinite(wide)
  return np.where(exact, near, (toward.view(np.uint32) | 1).view(np.float32))


def _kept_as(dtype: str) -> np.dtype[np.generic]:
  return np.dtype(np.float64) if dtype in FLOATING else NUMPY_DTYPES[dtype]


def _literal(number: float | int, dtype: str) -> Array:
  """A number as a value of the dtype, which may have to round it."""
  return rounded(np.asarray(number, _kept_as(dtype)), dtype).astype(_kept_as(dtype))


def evaluate(statement: Statement, operands: Sequence[Array]) -> Array:
  """The value of one pointwise statement. Operands and result are float64, of an integer dtype, or bool."""
  if statement.op == "Cast":
    return _cast(np.asarray(operands[0]), str(statement.attribute("to")))
  numbers = [value for _, value in statement.attributes if not isinstance(value, str)]
  if statement.op == "Gelu":
    return _gelu_tanh(operands[0]) if statement.attribute("approximate") == "tanh" else _gelu(operands[0])
  if statement.op == "BitShift":
    return _shift(operands[0], operands[1], str(statement.attribute("direction")))
  integers = [x.dtype for x in operands if x.dtype.kind in "iu"]
  function = INTEGER.get(statement.op) if integers else None
  value = np.asarray((function or POINTWISE[statement.op])(*operands, *numbers))
  return value.astype(integers[0]) if integers and value.dtype != np.bool_ else value


def _cast(x: Array, to: str) -> Array:
  if to in INTEGERS and x.dtype.kind == "f":
    return _to_integer(x, to)
  return rounded(x, to).astype(_kept_as(to))


def _to_integer(x: Array, to: str) -> Array:
  """Truncated toward zero, saturated, 0 for NaN."""
  low, high = integer_range(to)
  whole = np.trunc(x)
  below, beyond = whole <= float(low), whole >= float(high + 1)
  inside = np.where(below | beyond | np.isnan(x), 0.0, whole).astype(NUMPY_DTYPES[to])
  value: Array = np.where(below, NUMPY_DTYPES[to].type(low), np.where(beyond, NUMPY_DTYPES[to].type(high), inside))
  return value


def _shift(x: Array, by: Array, direction: str) -> Array:
  bits = x.dtype.itemsize * 8
  within = np.minimum(by, x.dtype.type(bits - 1))
  shifted = np.left_shift(x, within) if direction == "LEFT" else np.right_shift(x, within)
  value: Array = np.where(by >= bits, x.dtype.type(0), shifted)
  return value


def _integer_div(x: Array, y: Array) -> Array:
  """Truncated toward zero; 0 for a division by 0; the lowest value by -1 is itself."""
  divisor = np.where((y == 0) | (y == y.dtype.type(0) - 1), y.dtype.type(1), y)
  quotient = np.floor_divide(x, divisor)
  inexact = (quotient * divisor != x) & ((x < 0) != (divisor < 0))
  quotient = quotient + inexact.astype(x.dtype)
  minus_one = (y < 0) & (y == y.dtype.type(0) - 1)
  quotient = np.where(minus_one, np.negative(x), quotient)
  largest = (y > 0) & (y == y.dtype.type(0) - 1)  # of an unsigned dtype, 0 - 1 is the largest value
  value: Array = np.where(y == 0, x.dtype.type(0), np.where(largest, (x == y).astype(x.dtype), quotient))
  return value


def _integer_mod(x: Array, y: Array, fmod: float) -> Array:
  remainder: Array = x - _integer_div(x, y) * y
  remainder = np.where(y == 0, x.dtype.type(0), remainder)
  if fmod:
    return remainder
  value: Array = np.where((remainder != 0) & ((remainder < 0) != (y < 0)), remainder + y, remainder)
  return value


def _integer_pow(x: Array, y: Array) -> Array:
  power = np.power(np.abs(x.astype(np.float64)), y.astype(np.float64))
  odd = np.bitwise_and(y, y.dtype.type(1)) == 1  # which a large exponent no longer shows in float64
  return _to_integer(np.where((x < 0) & odd, -power, power), x.dtype.name)


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
  "Mod": lambda x, y, fmod: np.fmod(x, y),
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
  "BitwiseAnd": np.bitwise_and,
  "BitwiseOr": np.bitwise_or,
  "BitwiseXor": np.bitwise_xor,
  "BitwiseNot": np.bitwise_not,
  "Where": np.where,
  "IsNaN": np.isnan,
  "IsInf": lambda x, negative, positive: np.isinf(x) & np.where(x < 0, negative != 0, positive != 0),
}

# Where integers need a function of their own.
INTEGER: dict[str, Callable[..., Any]] = {
  "Relu": lambda x: np.maximum(x, x.dtype.type(0)),
  "Div": _integer_div,
  "Mod": _integer_mod,
  "Pow": _integer_pow,
}
