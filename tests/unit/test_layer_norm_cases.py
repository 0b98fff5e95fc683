"""The comparison of FusedLayerNorm's outputs: it must see what a wrong kernel would do.

What it shares with others, as shapes, NaN and bits, test_pointwise_spec.py has.
"""

import numpy as np
import pytest
from layer_norm_cases import BARE, CASES, Case, by_name, check, expect
from node_cases import VALUES, steps, typed


def outputs(case):
  return [np.array(output) for output in expect(case).outputs]


@pytest.mark.parametrize("case", CASES[::7])
def test_the_reference_passes(case):
  assert check(case, outputs(case)) <= 0


def test_inputs_are_the_same_every_time():
  case = by_name["mask, float16, 1023"]
  assert all((a == b).all() for a, b in zip(case.inputs(), case.inputs(), strict=True))
  assert {each.values for each in CASES} == set(VALUES)


def at(position, value):
  def change(y):
    y[position] = value
    return y

  return change


WRONG = [
  ("awkward, float", at((1, 3, 7), 0.0), "differ too much"),
  ("awkward, float16", steps(2), "1 of 5376 elements differ too much"),
  ("width 33, bfloat16", steps(-2), "1 of 1221 elements differ too much"),
  ("width 33, double", steps(2000), "1 of 1221 elements differ too much"),
  ("special rows, float", at((0, 1), 0.0), "NaN"),
]


@pytest.mark.parametrize("name, change, words", WRONG)
def test_a_wrong_output_fails(name, change, words):
  case = by_name[name]
  with pytest.raises(AssertionError, match=words):
    check(case, [change(outputs(case)[0]), *outputs(case)[1:]])


def norm(x, dtype, *, mean=True, unbiased=False, one_pass=False):
  x = x.astype(dtype)
  with np.errstate(all="ignore"):
    m = x.mean(-1, keepdims=True, dtype=dtype) if mean else dtype(0)
    v = (
      (x * x).mean(-1, keepdims=True, dtype=dtype) - m * m
      if one_pass
      else np.square(x - m).mean(-1, keepdims=True, dtype=dtype)
    )
    v = v * dtype(x.shape[-1] / (x.shape[-1] - 1)) if unbiased else v
    return (x - m) / np.sqrt(v + dtype(1e-5))


@pytest.mark.parametrize(
  "values, dtype, kernel",
  [
    ("offset", "float", lambda x: norm(x, np.float32, one_pass=True)),
    ("normal", "float", lambda x: norm(x, np.float32, unbiased=True)),
    ("normal", "float", lambda x: norm(x, np.float32, mean=False)),
    ("normal", "float", lambda x: norm(x.astype(np.float16).astype(np.float32), np.float32)),
    ("normal", "double", lambda x: norm(x, np.float32).astype(np.float64)),
    ("large", "float16", lambda x: norm(x, np.float16)),
    ("large positive", "float16", lambda x: norm(x, np.float16)),
    ("denormal", "float16", lambda x: norm(np.where(np.abs(x) < 2**-14, 0, x), np.float32).astype(np.float16)),
  ],
)
def test_a_plausible_but_wrong_kernel_fails(values, dtype, kernel):
  case = Case(f"wrong {values} {dtype}", typed(BARE, dtype), ((64, 4096),), values)
  with pytest.raises(AssertionError):
    check(case, [kernel(case.inputs()[0])])


def test_a_good_kernel_passes():
  case = Case("good", typed(BARE, "float"), ((64, 4096),), "offset")
  check(case, [norm(case.inputs()[0], np.float32)])
