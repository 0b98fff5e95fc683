"""What pointwise.cuh has for 16 bits, computed here in float32 as a GPU does, over every value: no GPU is needed."""

import math
import re
from pathlib import Path

import ml_dtypes
import numpy as np
from onnx_models import parametrize

from ortplugin.ops.pointwise_reference import evaluate
from ortplugin.program import parse

POINTWISE = Path(__file__).resolve().parents[2] / "ortplugin" / "device" / "pointwise.cuh"
DTYPES = {"16": np.dtype(np.float16), "B16": np.dtype(ml_dtypes.bfloat16)}
APPROXIMATE = 2.0**-22  # what PTX lets ex2.approx and rcp.approx be off by, relatively
ROOM = {"16": 0, "B16": 24}  # powers of two by which B16's exponentials are larger


def every(form):
  return np.arange(1 << 16, dtype=np.uint16).view(DTYPES[form]).astype(np.float32)


def coefficients(form):
  """Of the polynomial whose power of two Phi(-a) is, from the highest, as the source has them."""
  body = POINTWISE.read_text().split(f"float op_NormalCdf{form}(")[1].split("\n}\n")[0]
  first = re.findall(r"float power = (\S+)f;", body)
  rest = re.findall(r"power = __fmaf_rn\(power, a, (\S+)f\);", body)
  assert len(first) == 1
  assert body.count("power") == 2 + 2 * len(rest)
  return [np.float32(each) for each in (*first, *rest)]


def ex2(x, off):
  """ex2.approx.ftz, off by that much."""
  power = np.exp2(x.astype(np.float64)) * (1 + off)
  return np.where(power < 2.0**-126, 0, power).astype(np.float32)


def fma(x, y, z):
  """A product of two floats is exact in float64."""
  return (x.astype(np.float64) * np.float64(y) + np.float64(z)).astype(np.float32)


def normal_cdf(form, x, off):
  a = np.abs(x)
  power = np.full_like(a, coefficients(form)[0])
  for coefficient in coefficients(form)[1:]:
    power = (power.astype(np.float64) * a.astype(np.float64) + np.float64(coefficient)).astype(np.float32)
  return np.abs(fma(ex2(power, off), -(2.0 ** -ROOM[form]), np.where(x < 0, np.float64(0), np.float64(1))))


def sigmoid(form, x, off):
  one = np.float32(2.0 ** -ROOM[form])
  with_exponential = one + ex2(fma(x, np.float32(-1.44269504088896340736), -ROOM[form]), off)
  reciprocal = 1 / with_exponential.astype(np.float64) * (1 + off)
  return one * np.where(reciprocal < 2.0**-126, 0, reciprocal).astype(np.float32)


def exact(form, x, off):
  return x * normal_cdf(form, x, off)


def tanh(form, x, off):
  return x * sigmoid(form, np.float32(1.59576912160573071176) * (x + np.float32(0.044715) * (x * x * x)), off)


def wanted(x, approximate):
  if approximate == "none":
    return np.array([0.5 * v * math.erfc(v * -math.sqrt(0.5)) for v in x.astype(float)])
  u = x.astype(np.float64) * math.sqrt(8 / math.pi) * (1 + 0.044715 * np.square(x.astype(np.float64)))
  return x / (1 + np.exp(-u))


GELUS = [("none", exact), ("tanh", tanh)]
FORMS = [("none", exact, 6.0), ("tanh", tanh, 5.5)]
OFF = [-APPROXIMATE, 0, APPROXIMATE]


@parametrize("off", OFF)
@parametrize("approximate, gelu, end", FORMS)
def test_every_float16_value(approximate, gelu, end, off):
  x = every("16")
  with np.errstate(all="ignore"):
    found, right = gelu("16", x, off), wanted(x, approximate)
    half = found.astype(np.float16)
  finite = np.isfinite(x)
  precise = finite & np.greater_equal(x, -end) & (x != 0)
  error = np.abs(found[precise] - right[precise]) / np.abs(right[precise])
  assert error.max() < 2.0**-17
  # Further down there is nothing left in float16, and nothing comes back.
  below = finite & np.less(x, -end)
  assert (np.abs(right[below]) < 2.0**-25).all()
  assert (half[below] == 0).all()
  assert (found[below] <= 0).all()
  # Rounding is hardly ever to the other neighbour, which is then as good as near.
  other = finite & (half != right.astype(np.float16))
  assert other.sum() < finite.sum() // 100
  assert (np.signbit(half[finite]) == np.signbit(x[finite])).all()


def check_bfloat16(found, right, finite):
  """Within 2^-15 wherever bfloat16 has normal numbers, and a few of its steps below."""
  normal = finite & (np.abs(right) >= 2.0**-126)
  assert (np.abs(found[normal] - right[normal]) / np.abs(right[normal])).max() < 2.0**-15
  low = finite & (np.abs(right) < 2.0**-126)
  assert np.abs(found[low] - right[low]).max() <= 2.0**-134
  narrow = found.astype(ml_dtypes.bfloat16)
  assert (finite & (narrow != right.astype(ml_dtypes.bfloat16))).sum() < finite.sum() // 100
  assert (np.signbit(narrow[finite]) == np.signbit(right[finite])).all()


@parametrize("off", OFF)
@parametrize("approximate, gelu", GELUS)
def test_every_bfloat16_value(approximate, gelu, off):
  x = every("B16")
  with np.errstate(all="ignore"):
    check_bfloat16(gelu("B16", x, off), wanted(x, approximate), np.isfinite(x) & (np.abs(x) < 2.0**40))


@parametrize("off", OFF)
def test_sigmoids_of_every_bfloat16_value(off):
  x = every("B16")
  with np.errstate(all="ignore"):
    check_bfloat16(sigmoid("B16", x, off), 1 / (1 + np.exp(-x.astype(np.float64))), np.isfinite(x))


@parametrize("form", DTYPES)
@parametrize("approximate, gelu", GELUS)
def test_values_beyond_float16(approximate, gelu, form):
  """Programs do not round between statements; infinities and NaN are as the reference has them."""
  x = np.array([np.inf, -np.inf, np.nan, 1e5, -1e5, 1e20, -1e20, 3.4e38, -3.4e38, 1e-30, -1e-30, 0.0, -0.0], np.float32)
  statement = parse(f'(float16 x) => (float16 y) {{ y = Gelu<approximate="{approximate}">(x) }}').statements[0]
  with np.errstate(all="ignore"):
    found, reference = gelu(form, x, 0.0), evaluate(statement, [x.astype(np.float64)])
  np.testing.assert_allclose(found, reference, rtol=2.0**-15)
  number = ~np.isnan(x) & (x != -np.inf)
  assert (np.signbit(found[number]) == np.signbit(reference[number])).all()


@parametrize("off", OFF)
@parametrize("form, end, error", [("16", 6, 2.0**-17), ("B16", 12.5, 2.0**-15)])
@parametrize("root", [math.sqrt(2), float(np.float16(math.sqrt(2)))])
def test_gelu_written_with_erf(root, form, end, error, off):
  """op_OnePlusErf: x (1 + erf(x / root)) / 2, where root is of the model's dtype."""
  x = every(form)
  x = x[(x > -end) & (np.abs(x) > 2.0**-120) & (np.abs(x) < 2.0**120)]
  with np.errstate(over="ignore"):
    found = x * (np.float32(2) * normal_cdf(form, x * np.float32(math.sqrt(2) / root), off)) * np.float32(0.5)
  right = np.array([0.5 * v * math.erfc(-v / root) for v in x.astype(float)])
  assert (np.abs(found - right) / np.abs(right)).max() < error
