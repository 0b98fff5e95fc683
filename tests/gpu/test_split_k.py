"""Our engines for split-K convolutions, and for float32 without TF32 ("exact", by 3xTF32): equal to the reference for
tiles, clusters and parts of every form and all kinds of programs; infinite elements reach no result that they don't
belong to."""

from dataclasses import replace

import numpy as np
import pytest
from onnx_models import parametrize

from gpu.device import same_bits
from gpu.test_conv import BARE, RELU, SCALED, SEVERAL, SPLIT, WIDENED, Conv, algorithms
from gpu.test_conv_engines import check_infinite_everywhere, check_maxima_of_nan, check_offsets, check_same_bits, own
from gpu.test_few_output_channels import NOT_TAKEN
from gpu.transposed import MAXIMA

pytestmark = pytest.mark.usefixtures("hopper")

SAME = {"pads": [1, 1, 1, 1]}
# x, filters, kernel, attributes: on 132 multiprocessors blocks alone and clusters of two to six, one to four
# warpgroups, tiles of 32, 64 and 128 filters, tiles that pixels or filters do not fill, chunks that channels do not
# fill, more blocks than multiprocessors.
CASES = [
  ((1, 8, 1, 3), 8, (1, 1), {}),
  ((1, 64, 7, 7), 64, (3, 3), SAME),
  ((1, 512, 7, 7), 512, (3, 3), SAME),
  ((4, 256, 14, 14), 256, (3, 3), SAME),
  ((8, 512, 7, 7), 512, (3, 3), SAME),
  ((1, 64, 56, 56), 64, (3, 3), SAME),
  ((1, 128, 28, 28), 128, (3, 3), SAME),
  ((3, 72, 9, 11), 40, (3, 3), {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
  ((2, 200, 13, 5), 136, (5, 2), {"dilations": [2, 3]}),
  ((1, 256, 20, 17), 264, (3, 3), {"pads": [2, 2, 2, 2], "dilations": [2, 2]}),
  ((8, 1024, 14, 14), 2048, (1, 1), {"strides": [2, 2]}),
  ((1, 2048, 7, 7), 512, (1, 1), {}),
  ((2, 320, 5, 9), 1280, (1, 1), {"pads": [0, 1, 1, 0]}),
  ((9, 16, 40, 33), 24, (3, 3), SAME),
  ((1, 128, 14, 14), 224, (3, 3), {}),
  ((1, 128, 14, 14), 416, (3, 3), {}),
  ((1, 192, 5, 5), 32, (1, 1), {}),
  ((1, 64, 28, 28), 384, (2, 2), {}),
  ((1, 320, 28, 28), 352, (3, 3), SAME),
]


# And for "exact", of images of 128 KiB, filters that no vector of four has, and rows that fill no tile.
EXACT = [
  ((3, 36, 40, 33), 33, (3, 3), SAME),
  ((130, 100, 1, 1), 30, (1, 1), {}),
  ((1024, 768, 1, 1), 768, (1, 1), {}),
  ((12800, 64, 1, 1), 1000, (1, 1), {}),
]
NUMBERS = dict.fromkeys(("float16", "bfloat16", "float"), range(len(CASES))) | {
  "exact": (0, 3, 4, 5, 6, 9, 10, 11, 13, *range(16, 23))
}
FEW = {"float16": (1, 7, 8), "bfloat16": (1, 7, 8), "exact": (13, 19, 20)}


def case(number, program, dtype="float16"):
  x, filters, kernel, attributes = [*CASES, *EXACT][number]
  tf32 = {"allow_tf32": 1} if dtype == "float" else {}
  dtype = "float" if dtype == "exact" else dtype
  return own(Conv(program, dtype, "NHWC", x, filters, kernel, attributes={**attributes, **tf32}))


@parametrize("dtype, number", [(dtype, number) for dtype, numbers in NUMBERS.items() for number in numbers])
def test_equals_the_reference(capfd, number, dtype):
  programs = (BARE, RELU, SCALED, SEVERAL, WIDENED, SPLIT)
  x, filters, kernel, _ = [*CASES, *EXACT][number]
  large = np.prod(x) * filters * np.prod(kernel) > 1 << 28
  for turn, program in enumerate(programs[number % 2 :: 3] if large else programs):
    replace(case(number, program, dtype), constant=turn % 2 == 0).run()
  assert NOT_TAKEN not in capfd.readouterr().err


@parametrize("dtype", ["float16", "exact"])
@parametrize("value", [np.inf, -np.inf, np.nan])
def test_infinite_elements_stay_where_they_are(value, dtype):
  for number in FEW[dtype]:
    check_infinite_everywhere(replace(case(number, BARE, dtype), constant=False), value)


@parametrize("dtype, number", [(dtype, number) for dtype, numbers in FEW.items() for number in numbers])
def test_maxima_of_nan(number, dtype):
  check_maxima_of_nan(case(number, MAXIMA, dtype))


@parametrize("dtype, number", [("float16", 1), ("float16", 7), ("exact", 13), ("exact", 20)])
def test_tensors_may_start_anywhere(number, dtype):
  check_offsets(replace(case(number, BARE, dtype), constant=False))


def test_it_is_taken_where_it_is_fast():
  """`auto` gives the bits of `own` for few pixels; for many that are no known gain `--tune` times it all the same."""
  for number in (2, 5, 11):
    given = case(number, RELU)
    auto = replace(given, attributes={name: value for name, value in given.attributes.items() if name != "algorithm"})
    arrays = given.arrays()
    assert same_bits(given.found(arrays), auto.found(arrays))
  many = Conv(RELU, "float16", "NHWC", (32, 64, 56, 56), 64, (3, 3), attributes=SAME)
  assert "own" in algorithms(many, many.arrays())


@parametrize("dtype", ["float16", "exact"])
def test_runs_are_bit_identical(dtype):
  for number in (2, 5, 7) if dtype == "float16" else (5, 19, 21):
    check_same_bits(case(number, RELU, dtype))
