"""FusedConv's engine for groups: equal to the reference for groups of every width, tiles of every form and all kinds of
programs; infinite elements reach no result that they don't belong to, of a neighbouring group neither."""

from dataclasses import replace

import numpy as np
import pytest
from node_cases import planar
from onnx_models import parametrize

import ortplugin
from gpu.device import before_nan, cupy, host, make, same_bits
from gpu.test_conv import BARE, RELU, RESIDUAL, SCALED, SEVERAL, SPLIT, WIDENED, Conv
from gpu.test_conv_engines import check_infinite_everywhere, check_maxima_of_nan, check_offsets, check_same_bits, own
from gpu.test_few_output_channels import NOT_TAKEN
from gpu.transposed import MAXIMA

SAME = planar(pads=1)
HALVED = planar(pads=1, strides=2)
# Batch, rows and columns; groups; channels and filters of each; kernel; attributes.
CASES = [
  ((8, 28, 28), 4, 28, 34, (1, 1), {}),
  ((1, 14, 14), 4, 68, 17, (1, 1), {}),
  ((2, 7, 7), 4, 17, 68, (1, 1), {}),
  ((8, 7, 7), 4, 136, 136, (1, 1), {}),
  ((8, 1, 1), 3, 34, 34, (1, 1), {}),
  ((2, 13, 9), 5, 12, 6, (1, 1), {"strides": [2, 3], "pads": [1, 0, 0, 2]}),
  ((2, 11, 9), 11, 1, 2, (3, 3), SAME),
  ((2, 15, 16), 9, 2, 2, (3, 3), HALVED),
  ((1, 12, 13), 7, 3, 5, (5, 5), planar(pads=4, dilations=2)),
  ((8, 28, 28), 32, 4, 4, (3, 3), SAME),
  ((1, 9, 14), 7, 4, 8, (3, 3), HALVED),
  ((1, 10, 10), 6, 5, 3, (3, 3), SAME),
  ((2, 9, 10), 5, 7, 12, (3, 2), {"pads": [2, 1, 0, 3], "strides": [1, 2], "dilations": [3, 1]}),
  ((1, 1, 1), 8, 8, 8, (3, 3), SAME),
  ((8, 14, 14), 32, 8, 8, (3, 3), SAME),
  ((8, 14, 14), 8, 16, 16, (3, 3), planar(pads=2, dilations=2)),
  ((1, 15, 15), 4, 24, 24, (7, 7), planar(pads=3, strides=2)),
  ((8, 7, 7), 32, 32, 32, (3, 3), SAME),
  ((2, 20, 20), 8, 56, 56, (3, 3), SAME),
  ((1, 14, 14), 4, 112, 112, (3, 3), HALVED),
  ((2, 9, 8), 2, 232, 168, (3, 3), SAME),
  ((1, 40, 12), 2, 13, 11, (4, 1), {"strides": [4, 1], "pads": [2, 0, 0, 0]}),
  ((8, 56, 56), 1, 18, 18, (3, 3), SAME),
  ((2, 28, 27), 1, 18, 36, (3, 3), HALVED),
  # Those that gemm takes.
  ((3, 9, 11), 4, 192, 128, (1, 1), {}),
  ((1, 7, 5), 2, 256, 68, (1, 1), {}),
]


@pytest.fixture(autouse=True)
def _ampere():
  if int(cupy.cuda.Device().compute_capability) < 80:
    pytest.skip("its instructions are Ampere's")


def case(number, program, dtype="float16"):
  (batch, *image), groups, channels, filters, kernel, attributes = CASES[number]
  x = (batch, groups * channels, *image)
  tf32 = {"allow_tf32": 1} if dtype == "float" else {}
  return own(Conv(program, dtype, "NHWC", x, groups * filters, kernel, groups, attributes={**attributes, **tf32}))


@parametrize("dtype", ["float16", "bfloat16", "float"])
@parametrize("number", range(len(CASES)))
def test_equals_the_reference(capfd, number, dtype):
  programs = (BARE, RELU, RESIDUAL, SCALED, SEVERAL, WIDENED, SPLIT)
  for turn, program in enumerate(programs[number % 3 :: 3]):
    replace(case(number, program, dtype), constant=turn % 2 == 0).run()
  assert NOT_TAKEN not in capfd.readouterr().err


@parametrize("value", [np.inf, -np.inf, np.nan])
@parametrize("number", [0, 2, 6, 7, 8, 9, 11, 12, 18, 20, 24, 25])
def test_infinite_elements_stay_where_they_are(number, value):
  check_infinite_everywhere(replace(case(number, BARE), constant=False), value)


@parametrize("dtype", ["float16", "bfloat16"])
@parametrize("number", [0, 9, 18, 24])
def test_maxima_of_nan(number, dtype):
  check_maxima_of_nan(case(number, MAXIMA, dtype))


@parametrize("number", [0, 2, 6, 8, 12, 20, 25])
def test_groups_end_with_the_tensor(number):
  """What lies behind X is not read."""
  given = case(number, RELU)
  arrays = given.arrays()
  feeds = given.feeds(arrays)
  given.check(arrays, host(ortplugin.run(make(given.model(arrays)), feeds | {"x": before_nan(arrays["x"])})))


@parametrize("number", [0, 9, 11])
def test_tensors_may_start_anywhere(number):
  check_offsets(replace(case(number, BARE), constant=False))


@parametrize("number", [0, 9, 18, 20])
def test_runs_are_bit_identical(number):
  check_same_bits(case(number, RELU))


@parametrize("number", [0, 1, 9])
def test_it_is_taken_where_cudnn_has_no_kernel(number):
  """`auto` gives the bits of `own`."""
  given = case(number, RELU)
  auto = replace(given, attributes={**given.attributes, "algorithm": "auto"})
  arrays = given.arrays()
  assert same_bits(given.found(arrays), auto.found(arrays))
