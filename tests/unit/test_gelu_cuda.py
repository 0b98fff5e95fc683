"""op_Gelu16 of pointwise.cuh, computed here in float32 as a GPU does, over every float16 value: no GPU is needed."""

import math
import re
from pathlib import Path

import numpy as np
from onnx_models import parametrize

from ortplugin.ops.pointwise_reference import evaluate
from ortplugin.program import parse

POINTWISE = Path(__file__).resolve().parents[2] / "ortplugin" / "device" / "pointwise.cuh"
EVERY = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
APPROXIMATE = 2.0**-22  # what PTX lets ex2.approx and rcp.approx be off by, relatively


def coefficients():
  """Of the polynomial whose power of two Phi(-a) is, from the highest, as the source has them."""
  body = POINTWISE.read_text().split("float op_NormalCdf16(")[1].split("\n}\n")[0]
  first = re.findall(r"float power = (\S+)f;", body)
  rest = re.findall(r"power = __fmaf_rn\(power, a, (\S+)f\);", body)
  assert len(first) == 1
  assert body.count("power") == 2 + 2 * len(rest)
  return [np.float32(each) for each in (*first, *rest)]


def ex2(x, off):
  """ex2.approx.ftz, off by that much."""
  power = np.exp2(x.astype(np.float64)) * (1 + off)
  return np.where(power < 2.0**-126, 0, power).astype(np.float32)


def normal_cdf(x, off):
  a = np.abs(x)
  power = np.full_like(a, coefficients()[0])
  for coefficient in coefficients()[1:]:  # a product of two floats is exact in float64
    power = (power.astype(np.float64) * a.astype(np.float64) + np.float64(coefficient)).astype(np.float32)
  return np.abs(np.where(x < 0, np.float32(0), np.float32(1)) - ex2(power, off))


def exact(x, off):
  return x * normal_cdf(x, off)


def tanh(x, off):
  u = np.float32(1.59576912160573071176) * (x + np.float32(0.044715) * (x * x * x))
  with_exponential = np.float32(1) + ex2(u * np.float32(-1.44269504088896340736), off)
  reciprocal = (1 / with_exponential.astype(np.float64) * (1 + off)).astype(np.float32)
  return x * reciprocal


def wanted(x, approximate):
  if approximate == "none":
    return np.array([0.5 * v * math.erfc(v * -math.sqrt(0.5)) for v in x.astype(float)])
  u = x.astype(np.float64) * math.sqrt(8 / math.pi) * (1 + 0.044715 * np.square(x.astype(np.float64)))
  return x / (1 + np.exp(-u))


FORMS = [("none", exact, 6.0), ("tanh", tanh, 5.5)]


@parametrize("off", [-APPROXIMATE, 0, APPROXIMATE])
@parametrize("approximate, form, end", FORMS)
def test_every_float16_value(approximate, form, end, off):
  assert callable(form)
  with np.errstate(all="ignore"):
    found, right = form(EVERY, off), wanted(EVERY, approximate)
    half = found.astype(np.float16)
  finite = np.isfinite(EVERY)
  precise = finite & np.greater_equal(EVERY, -end) & (EVERY != 0)
  error = np.abs(found[precise] - right[precise]) / np.abs(right[precise])
  assert error.max() < 2.0**-17
  # Further down there is nothing left in float16, and nothing comes back.
  below = finite & np.less(EVERY, -end)
  assert (np.abs(right[below]) < 2.0**-25).all()
  assert (half[below] == 0).all()
  assert (found[below] <= 0).all()
  # Rounding is hardly ever to the other neighbour, which is then as good as near.
  other = finite & (half != right.astype(np.float16))
  assert other.sum() < finite.sum() // 100
  assert (np.signbit(half[finite]) == np.signbit(EVERY[finite])).all()


@parametrize("approximate, form, end", FORMS)
def test_values_beyond_float16(approximate, form, end):
  """Programs do not round between statements; infinities and NaN are as the reference has them."""
  assert callable(form)
  x = np.array([np.inf, -np.inf, np.nan, 1e5, -1e5, 1e20, -1e20, 3.4e38, -3.4e38, 1e-30, -1e-30, 0.0, -0.0], np.float32)
  statement = parse(f'(float16 x) => (float16 y) {{ y = Gelu<approximate="{approximate}">(x) }}').statements[0]
  with np.errstate(all="ignore"):
    found, reference = form(x, 0.0), evaluate(statement, [x.astype(np.float64)])
  np.testing.assert_allclose(found, reference, rtol=2.0**-17)
  number = ~np.isnan(x) & (x != -np.inf)
  assert (np.signbit(found[number]) == np.signbit(reference[number])).all()


@parametrize("off", [-APPROXIMATE, 0, APPROXIMATE])
@parametrize("root", [math.sqrt(2), float(np.float16(math.sqrt(2)))])
def test_gelu_written_with_erf(root, off):
  """op_OnePlusErf16: x (1 + erf(x / root)) / 2, where root is a float16 in most models."""
  x = EVERY[np.isfinite(EVERY) & (EVERY > -6) & (EVERY != 0)]
  found = x * (np.float32(2) * normal_cdf(x * np.float32(math.sqrt(2) / root), off)) * np.float32(0.5)
  right = np.array([0.5 * v * math.erfc(-v / root) for v in x.astype(float)])
  assert (np.abs(found - right) / np.abs(right)).max() < 2.0**-17
