"""Whether two outputs agree: same shape and dtype, same NaN masks, same signs of infinities, then a tolerance.

Integers, booleans and strings must be equal. A float agrees if

    |actual - expected| <= atol * scale + rtol * |expected|

where scale is the largest finite magnitude of the expected output. Rounding errors of a network accumulate through its
depth and are carried by its residual stream: an element's error is a fraction of the values that were summed on the
way to it, not of its own magnitude, which may be small by cancellation. The output's scale stands for those values.
Magnitudes above a quarter of the dtype's largest are what masks are filled with; they do not count for the scale.

Where a model was converted to another precision, its tolerances are that dtype's at least, and an output in that dtype
is compared with the original's: no output of such a model has more bits than its operators. The same goes for a model
that computes in fewer bits than its outputs have, as one with float32 inputs and outputs around float16.

The defaults are about ten roundings of fp16 and bf16 and a thousand of fp32, whose sums ONNX Runtime makes in an order
that depends on shapes, threads and fused operators. fp64 leaves room for functions that it approximates.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from ..arrays import Array
from ..report import OutputComparison

# dtype -> (rtol, atol as a fraction of the output's scale)
DEFAULTS: dict[str, tuple[float, float]] = {
  "float64": (1e-8, 1e-8),
  "float32": (1e-4, 1e-4),
  "float16": (1e-2, 1e-2),
  "bfloat16": (5e-2, 5e-2),
}
# precision of a conversion -> the same. TF32 has the bits of float16.
_CONVERTED = {
  "fp16": DEFAULTS["float16"],
  "tf32": DEFAULTS["float16"],
  "bf16": DEFAULTS["bfloat16"],
  "fp32": DEFAULTS["float16"],
}
_COARSE = (2.5e-1, 2.5e-1)  # float8 and smaller
_FINFO: Any = ml_dtypes.finfo  # NumPy's knows its own dtypes only
_BLOCK = 2**18  # elements that are compared at a time
_SMALLEST_SCALE = 1e-3  # an output that is zero but for rounding is compared as if it had values of this size


@dataclass(frozen=True)
class Tolerance:
  """The user's tolerances: rtol relative, atol absolute and unscaled; None takes the dtype's default.

  `precision` is that of a conversion ("fp16"), whose tolerances hold where they are wider, or None. `computed` is the
  coarsest in which the original computes, whatever the dtypes of its outputs.
  """

  rtol: float | None = None
  atol: float | None = None
  precision: str | None = None
  computed: str | None = None

  def defaults(self, dtype: str) -> tuple[float, float]:
    """(relative, absolute as a fraction of the scale) for an output of this dtype."""
    own = DEFAULTS.get(dtype, _COARSE)
    known = [own, *(_CONVERTED[each] for each in (self.precision, self.computed) if each in _CONVERTED)]
    return max(rtol for rtol, _ in known), max(atol for _, atol in known)


@dataclass(frozen=True)
class _Result:
  passed: bool
  max_abs: float | None = None
  max_rel: float | None = None
  message: str = ""


def compare(name: str, expected: Any, actual: Any, tolerance: Tolerance | None = None) -> OutputComparison:
  """Compares one output: an array, or a list or dictionary of them (ONNX sequences and maps)."""
  result = _compare(expected, actual, tolerance or Tolerance())
  return OutputComparison(name, result.passed, result.max_abs, result.max_rel, result.message)


def compare_form(name: str, expected: Any, actual: Any) -> OutputComparison:
  """Compares shape and dtype only: for an output that differs from run to run."""
  remark = "the original gives other values in each run, so only shape and dtype were compared"
  reason = _form_reason(np.asarray(expected), np.asarray(actual)) if isinstance(expected, np.ndarray) else ""
  return OutputComparison(name, not reason, message=reason or remark)


def _compare(expected: Any, actual: Any, tolerance: Tolerance) -> _Result:
  if isinstance(expected, (list, tuple)):
    if not isinstance(actual, (list, tuple)) or len(actual) != len(expected):
      got = len(actual) if isinstance(actual, (list, tuple)) else type(actual).__name__
      return _Result(False, message=f"a sequence of {len(expected)} is expected, got {got}")
    pairs = {f"[{index}]": pair for index, pair in enumerate(zip(expected, actual, strict=True))}
    return _merge({key: _compare(*pair, tolerance) for key, pair in pairs.items()})
  if isinstance(expected, dict):
    if not isinstance(actual, dict) or list(actual) != list(expected):
      return _Result(False, message=f"a map with the keys {list(expected)[:10]} is expected")
    return _merge({f"[{key!r}]": _compare(value, actual[key], tolerance) for key, value in expected.items()})
  if expected is None or actual is None:
    return _Result(expected is actual, message="" if expected is actual else "only one of the two has a value")
  return _compare_arrays(np.asarray(expected), np.asarray(actual), tolerance)


def _merge(results: dict[str, _Result]) -> _Result:
  failed = next((f"element {key}: {result.message}" for key, result in results.items() if not result.passed), "")
  return _Result(
    all(result.passed for result in results.values()),
    max((r.max_abs for r in results.values() if r.max_abs is not None), default=None),
    max((r.max_rel for r in results.values() if r.max_rel is not None), default=None),
    failed,
  )


def _form_reason(expected: Array, actual: Array) -> str:
  if actual.shape != expected.shape:
    return f"shape {list(actual.shape)} instead of {list(expected.shape)}"
  if actual.dtype != expected.dtype and not (expected.dtype.kind in "OUST" and actual.dtype.kind in "OUST"):
    return f"dtype {actual.dtype} instead of {expected.dtype}"
  return ""


def _compare_arrays(expected: Array, actual: Array, tolerance: Tolerance) -> _Result:
  if tolerance.precision and expected.dtype != actual.dtype and _is_float(expected.dtype) and _is_float(actual.dtype):
    actual = actual.astype(expected.dtype)
  if reason := _form_reason(expected, actual):
    return _Result(False, message=reason)
  if expected.dtype.kind == "c":
    parts = {
      part: _compare_floats(getattr(expected, part), getattr(actual, part), tolerance) for part in ("real", "imag")
    }
    return _merge(parts)
  if _is_float(expected.dtype):
    return _compare_floats(expected, actual, tolerance)
  return _compare_exactly(expected, actual)


def _is_float(dtype: np.dtype[Any]) -> bool:
  return dtype.kind == "f" or (dtype.type.__module__.startswith("ml_dtypes") and "float" in dtype.name)


def _blocks(*arrays: Array) -> Iterator[tuple[int, list[Array]]]:
  """(number of the first element, the arrays' next elements) again and again: what is computed on the way of a large
  output, in wider dtypes, would take many times its memory."""
  flat = [array.reshape(-1) for array in arrays]
  for start in range(0, flat[0].size, _BLOCK):
    yield start, [each[start : start + _BLOCK] for each in flat]


def _compare_exactly(expected: Array, actual: Array) -> _Result:
  integral = expected.dtype.kind in "iu"
  count, largest, first = 0, 0, -1
  for start, (want, got) in _blocks(expected, actual):
    different = np.asarray(want != got)
    if not different.any():
      continue
    count += int(np.count_nonzero(different))
    if first < 0:
      first = start + int(np.argmax(different))
    if integral:
      largest = max(largest, _largest_difference(want[different], got[different]))
  if count == 0:
    return _Result(True, 0.0 if integral else None, 0.0 if integral else None)
  where = _place(first, expected.shape)
  return _Result(
    False,
    float(largest) if integral else None,
    message=f"{count} of {expected.size} differ, first at {list(where)}: {actual[where]} instead of {expected[where]}",
  )


def _largest_difference(one: Array, other: Array) -> int:
  """Of integers of one dtype, exact: a difference of two int64 does not fit one, but does an unsigned one."""
  wide = np.dtype(np.uint64 if one.dtype.kind == "u" else np.int64)
  high = np.maximum(one, other).astype(wide).view(np.uint64)
  low = np.minimum(one, other).astype(wide).view(np.uint64)
  return int((high - low).max())  # modulo 2**64, which is what is wanted of negative numbers


def _place(index: int, shape: Sequence[int]) -> tuple[int, ...]:
  return tuple(int(each) for each in np.unravel_index(index, shape))


@dataclass
class _Mask:
  """Where one kind of number that is not finite stands."""

  expected: int = 0
  found: int = 0
  first_difference: int = -1


_NOT_FINITE: dict[str, Callable[[Any], Any]] = {"NaN": np.isnan, "+Inf": np.isposinf, "-Inf": np.isneginf}


def _compare_floats(expected: Array, actual: Array, tolerance: Tolerance) -> _Result:
  scale, reason, is_finite = _scale_and_masks(expected, actual)
  if reason:
    return _Result(False, message=reason)
  if not is_finite:
    remark = (
      "" if expected.size == 0 else "no element is finite, so this says little; verify on real data with --inputs"
    )
    return _Result(True, 0.0, 0.0, remark)
  rtol, relative_atol = tolerance.defaults(expected.dtype.name)
  rtol = rtol if tolerance.rtol is None else tolerance.rtol
  atol = relative_atol * scale if tolerance.atol is None else tolerance.atol
  max_abs = max_rel = 0.0
  failed, worst, worst_excess = 0, 0, -np.inf
  for start, (want_block, got_block) in _blocks(expected, actual):
    want, got = want_block.astype(np.float64), got_block.astype(np.float64)
    finite = np.isfinite(want)
    if not finite.all():
      want, got = np.where(finite, want, 0.0), np.where(finite, got, 0.0)
    magnitude, error = np.abs(want), np.abs(got - want)
    max_abs = max(max_abs, float(error.max()))
    nonzero = magnitude > 0
    if nonzero.any():
      max_rel = max(max_rel, float((error[nonzero] / magnitude[nonzero]).max()))
    excess = error - (atol + rtol * magnitude)
    # `not <=` rather than `>`: an error that is not a number must fail too.
    failed += int(np.count_nonzero(~(excess <= 0)))
    index = int(np.argmax(excess))
    if not excess[index] <= worst_excess:
      worst, worst_excess = start + index, float(excess[index])
  message = ""
  if failed:
    where = _place(worst, expected.shape)
    message = (
      f"{failed} of {expected.size} differ by more than {atol:.2g} + {rtol:.2g} of the value, "
      f"worst at {list(where)}: {float(actual[where]):.6g} instead of {float(expected[where]):.6g}"
    )
  return _Result(not failed, max_abs, max_rel, message)


def _scale_and_masks(expected: Array, actual: Array) -> tuple[float, str, bool]:
  """(the expected output's scale, how NaN or infinities differ or "", whether any element is finite).

  The scale is the largest finite magnitude that is no mask's filling, at least `_SMALLEST_SCALE`.
  """
  most = float(_FINFO(expected.dtype).max) / 4
  scale, is_finite = _SMALLEST_SCALE, False
  masks = {what: _Mask() for what in _NOT_FINITE}
  for start, (want_block, got_block) in _blocks(expected, actual):
    want, got = want_block.astype(np.float64), got_block.astype(np.float64)
    for what, test in _NOT_FINITE.items():
      here, there, mask = test(want), test(got), masks[what]
      different = here != there
      mask.expected += int(np.count_nonzero(here))
      mask.found += int(np.count_nonzero(there))
      if mask.first_difference < 0 and different.any():
        mask.first_difference = start + int(np.argmax(different))
    magnitude = np.abs(want[np.isfinite(want)])
    is_finite = is_finite or magnitude.size > 0
    usual = magnitude[magnitude <= most]
    scale = max(scale, float(usual.max()) if usual.size else 0.0)
  for what, mask in masks.items():
    if mask.first_difference >= 0:
      where = _place(mask.first_difference, expected.shape)
      reason = (
        f"{mask.expected} {what} are expected, got {mask.found}; first difference at {list(where)}: "
        f"{float(actual[where]):.6g} instead of {float(expected[where]):.6g}"
      )
      return scale, reason, is_finite
  return scale, "", is_finite
