"""Our engines for pointwise convolutions with channels first: equal to the reference for tiles of every form and all
kinds of programs, in one, two and three dimensions; infinite elements reach no result that they don't belong to."""

from dataclasses import replace

import numpy as np
import pytest
from onnx_models import parametrize

from gpu.test_conv import BARE, RELU, SCALED, SEVERAL, SPLIT, WIDENED, Conv
from gpu.test_conv_engines import check_infinite_everywhere, check_maxima_of_nan, check_offsets, check_same_bits, own
from gpu.transposed import MAXIMA

FLOATS = ["float16", "bfloat16"]
# x, filters: pixels that are no vectors, one of them, less and more than a thread's of all blocks.
FEW = [((3, 8, 7, 9), 8), ((2, 16, 12, 10), 5), ((1, 1, 1), 16), ((8, 8, 196, 196), 8), ((2, 3, 4, 5, 6), 7)]
# Less than a tile; tiles of 64 and 128 pixels and filters; what none of them divides; all K steps.
MANY = [
  ((1, 2, 8), 40),
  ((3, 30, 7, 8), 72),
  ((8, 196, 384), 196),
  ((8, 196, 24, 32), 384),
  ((16, 384, 776), 196),
  ((2, 512, 9, 8, 3), 130),
  ((33, 66, 45, 56), 64),
  ((2, 498, 1000), 200),
]


def conv_of(x, filters, dtype, program=BARE, constant=True):
  return own(Conv(program, dtype, "NCHW", x, filters, (1,) * (len(x) - 2), constant=constant, attributes={}))


def check(x, filters, dtype):
  conv = conv_of(x, filters, dtype)
  conv.run()
  for number, program in enumerate((RELU, SCALED, SEVERAL, WIDENED, SPLIT)):
    replace(conv, program=program, constant=number % 2 == 1).run()


@parametrize("dtype", [*FLOATS, "float"])
@parametrize("x, filters", FEW)
def test_few_channels(library, x, filters, dtype):
  check(x, filters, dtype)


@pytest.mark.usefixtures("hopper")
@parametrize("dtype", FLOATS)
@parametrize("x, filters", MANY)
def test_many_channels(library, x, filters, dtype):
  check(x, filters, dtype)


@pytest.mark.usefixtures("hopper")
@parametrize("x, filters", [FEW[0], FEW[1], MANY[1], MANY[2]])
def test_infinite_elements_and_addresses(library, x, filters):
  conv = conv_of(x, filters, "float16", constant=False)
  for value in (np.inf, np.nan):
    check_infinite_everywhere(conv, value)
  check_maxima_of_nan(replace(conv, program=MAXIMA))
  check_offsets(conv)
  check_same_bits(conv_of(x, filters, "float16", SCALED))
