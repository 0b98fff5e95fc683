"""Whether two outputs agree: same shape and dtype, same NaN masks, same signs of infinities, then a tolerance.

Integers, booleans and strings must be equal. A float agrees if

    |actual - expected| <= atol * scale + rtol * |expected|

where scale is the largest finite magnitude of the expected output. Rounding errors of a network accumulate through its
depth and are carried by its residual stream: an element's error is a fraction of the values that were summed on the
way to it, not of its own magnitude, which may be small by cancellation. The output's scale stands for those values.
Magnitudes above a quarter of the dtype's largest are what masks are filled with; they do not count for the scale.

Where a model was converted to another precision, its tolerances are that dtype's at least, and an output in that dtype
is compared with the original's: no output of such a model has more bits than its operators.

The defaults are about ten roundings of fp16 and bf16 and a thousand of fp32, whose sums ONNX Runtime makes in an order
that depends on shapes, threads and fused operators. fp64 leaves room for functions that it approximates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from .report import OutputComparison

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
_SMALLEST_SCALE = 1e-3  # an output that is zero but for rounding is compared as if it had values of this size


@dataclass(frozen=True)
class Tolerance:
    """The user's tolerances: rtol relative, atol absolute and unscaled; None takes the dtype's default.

    `precision` is that of a conversion ("fp16"), whose tolerances hold where they are wider, or None.
    """

    rtol: float | None = None
    atol: float | None = None
    precision: str | None = None

    def defaults(self, dtype: str) -> tuple[float, float]:
        """(relative, absolute as a fraction of the scale) for an output of this dtype."""
        own = DEFAULTS.get(dtype, _COARSE)
        other = _CONVERTED.get(self.precision or "", own)
        return max(own[0], other[0]), max(own[1], other[1])


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
    problem = _form_problem(np.asarray(expected), np.asarray(actual)) if isinstance(expected, np.ndarray) else ""
    return OutputComparison(name, not problem, message=problem or remark)


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


def _form_problem(expected: np.ndarray[Any, Any], actual: np.ndarray[Any, Any]) -> str:
    if actual.shape != expected.shape:
        return f"shape {list(actual.shape)} instead of {list(expected.shape)}"
    if actual.dtype != expected.dtype and not (expected.dtype.kind in "OUST" and actual.dtype.kind in "OUST"):
        return f"dtype {actual.dtype} instead of {expected.dtype}"
    return ""


def _compare_arrays(expected: np.ndarray[Any, Any], actual: np.ndarray[Any, Any], tolerance: Tolerance) -> _Result:
    if tolerance.precision and expected.dtype != actual.dtype and _is_float(expected.dtype) and _is_float(actual.dtype):
        actual = actual.astype(expected.dtype)
    problem = _form_problem(expected, actual)
    if problem:
        return _Result(False, message=problem)
    if expected.dtype.kind == "c":
        parts = {
            part: _compare_floats(getattr(expected, part), getattr(actual, part), tolerance)
            for part in ("real", "imag")
        }
        return _merge(parts)
    if _is_float(expected.dtype):
        return _compare_floats(expected, actual, tolerance)
    return _compare_exactly(expected, actual)


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or (dtype.type.__module__.startswith("ml_dtypes") and "float" in dtype.name)


def _compare_exactly(expected: np.ndarray[Any, Any], actual: np.ndarray[Any, Any]) -> _Result:
    different = np.asarray(expected != actual)
    count = int(np.count_nonzero(different))
    integral = expected.dtype.kind in "iu"
    if count == 0:
        return _Result(True, 0.0 if integral else None, 0.0 if integral else None)
    where = tuple(int(i) for i in np.argwhere(different)[0])
    largest = None
    if integral:  # in Python's integers: a difference of two int64 may not fit one
        pairs = zip(expected[different].tolist(), actual[different].tolist(), strict=True)
        largest = float(max(abs(a - b) for a, b in pairs))
    return _Result(
        False,
        largest,
        message=f"{count} of {expected.size} differ, first at {list(where)}: "
        f"{actual[where]} instead of {expected[where]}",
    )


def _compare_floats(expected: np.ndarray[Any, Any], actual: np.ndarray[Any, Any], tolerance: Tolerance) -> _Result:
    want, got = expected.astype(np.float64), actual.astype(np.float64)
    for what, test in (("NaN", np.isnan), ("+Inf", np.isposinf), ("-Inf", np.isneginf)):
        here, there = test(want), test(got)
        different = here != there
        if different.any():
            where = tuple(int(i) for i in np.argwhere(different)[0])
            return _Result(
                False,
                message=f"{int(here.sum())} {what} are expected, got {int(there.sum())}; "
                f"first difference at {list(where)}: {got[where]:.6g} instead of {want[where]:.6g}",
            )
    finite = np.isfinite(want)
    if not finite.any():
        remark = (
            "" if want.size == 0 else "no element is finite, so this says little; verify on real data with --inputs"
        )
        return _Result(True, 0.0, 0.0, remark)
    rtol, relative_atol = tolerance.defaults(expected.dtype.name)
    magnitude = np.abs(np.where(finite, want, 0.0))
    atol = relative_atol * _scale(magnitude, expected.dtype)
    rtol = rtol if tolerance.rtol is None else tolerance.rtol
    atol = atol if tolerance.atol is None else tolerance.atol
    error = np.abs(np.where(finite, got, 0.0) - np.where(finite, want, 0.0))
    nonzero = magnitude > 0
    max_rel = float((error[nonzero] / magnitude[nonzero]).max()) if nonzero.any() else 0.0
    excess = error - (atol + rtol * magnitude)
    # `not <=` rather than `>`: an error that is not a number must fail too.
    failed = ~(excess <= 0)
    message = ""
    if failed.any():
        where = tuple(int(i) for i in np.unravel_index(int(np.argmax(excess)), excess.shape))
        message = (
            f"{int(failed.sum())} of {want.size} differ by more than {atol:.2g} + {rtol:.2g} of the value, "
            f"worst at {list(where)}: {got[where]:.6g} instead of {want[where]:.6g}"
        )
    return _Result(not failed.any(), float(error.max()), max_rel, message)


def _scale(magnitude: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> float:
    """The largest finite magnitude that is no mask's filling, at least `_SMALLEST_SCALE`."""
    largest = float(_FINFO(dtype).max)
    usual = magnitude[magnitude <= largest / 4]
    return max(float(usual.max()) if usual.size else 0.0, _SMALLEST_SCALE)
