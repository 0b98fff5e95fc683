"""Our engine for transposed convolutions with strides: equal to the reference for tiles of every form and all kinds of
taps and programs; infinite pixels reach no result that they don't belong to."""

from dataclasses import replace

import pytest
from conv_transpose_cases import BARE, BIAS_RELU, RESIDUAL, Case, check
from node_cases import planar, typed
from onnx_models import parametrize

from gpu.device import cupy, host, make, run_bound, run_case
from gpu.sessions import check_graph, permuted
from gpu.test_few_output_channels import NOT_TAKEN
from gpu.transposed import MAXIMA, check_anywhere, check_infinite_pixels, check_transposed_maxima_of_nan

pytestmark = pytest.mark.usefixtures("hopper")

# An operand of each image, one of each row, results of several sizes.
SEVERAL = """(T c, T b, T r, float g, float h) => (T y, float z, int64 p) {
  s = Add(c, b)
  t = Add(s, r)
  y = Gelu(t)
  w = Cast<to=float>(c)
  u = Mul(w, g)
  z = Add(u, h)
  p = Cast<to=int64>(b)
}"""

# x, filters, kernel, attributes. The first seven have a tile configuration each on an H200 (test_polyphase_kernels.cc
# has them, too); then several tiles for a block, channels and filters that nothing divides, pads that cut, phases
# without taps, and several tiles with some of these.
SHAPES = (
  ((3, 72, 31, 31), 136, (4, 4), planar(strides=2, pads=1)),
  ((8, 8, 23, 23), 72, (4, 4), planar(strides=2, pads=1)),
  ((2, 8, 40, 40), 72, (2, 2), {"strides": [2, 2]}),
  ((13, 24, 23, 23), 16, (2, 2), {"strides": [2, 2]}),
  ((8, 16, 23, 23), 16, (3, 3), planar(strides=2, pads=1)),
  ((12, 200, 15, 17), 24, (3, 3), planar(strides=2, pads=1, output_padding=1)),
  ((1, 136, 5, 6), 40, (3, 3), planar(strides=2, pads=1, output_padding=[1, 0])),
  ((40, 16, 40, 40), 24, (3, 3), planar(strides=2, pads=1, output_padding=1)),
  ((30, 16, 30, 29), 24, (5, 5), planar(strides=3, pads=2, output_padding=[0, 2])),
  ((2, 64, 7, 5), 320, (5, 5), planar(strides=2, pads=2, output_padding=1)),
  ((2, 40, 9, 6), 96, (5, 3), {"strides": [3, 2], "pads": [4, 1, 3, 2]}),
  ((1, 72, 6, 11), 64, (2, 2), {"strides": [3, 4], "output_padding": [2, 1]}),
  ((2, 128, 8, 7), 48, (3, 4), planar(strides=2, dilations=2, pads=[2, 3, 1, 0])),
  ((1, 64, 1, 40), 64, (1, 9), {"strides": [1, 4], "dilations": [1, 3], "pads": [0, 5, 0, 7]}),
  ((2, 16, 10, 9), 104, (7, 7), planar(strides=4, pads=3, output_padding=3)),
  ((64, 40, 9, 9), 24, (2, 2), {"strides": [3, 3]}),
  ((32, 136, 9, 9), 136, (5, 5), planar(strides=3, dilations=2, pads=2)),
  ((24, 8, 40, 40), 72, (2, 2), {"strides": [2, 2]}),
  ((16, 16, 24, 24), 264, (3, 3), planar(strides=2, pads=1)),
  ((37, 320, 1, 1), 64, (4, 4), planar(strides=2, pads=1)),
)

# An operand and a result of other sizes than the convolution's.
SIZES = """(T c, int8 i) => (T y, double z) {
  p = Greater(i, 0)
  y = Where(p, c, 0)
  w = Cast<to=float>(c)
  j = Cast<to=float>(i)
  t = Mul(w, j)
  z = Cast<to=double>(t)
}"""


def case_of(number, dtype, text, operands):
  x, filters, kernel, attributes = SHAPES[number]
  w, constant = (x[1], filters, *kernel), number % 2 == 0
  more = attributes | {"algorithm": "own"}
  return Case(f"{x} to {filters}, {dtype}", typed(text, dtype), x, w, operands, "NHWC", more, constant)


@parametrize("dtype", ["float16", "bfloat16"])
@parametrize("number", range(len(SHAPES)))
def test_equals_the_reference(capfd, number, dtype):
  bias, image = (SHAPES[number][1], 1, 1), (SHAPES[number][0][0], 1, 1, 1)
  rows = case_of(number, dtype, RESIDUAL, (bias, None)).shapes[-1][1]
  for text, operands in (
    (BARE, ()),
    (BIAS_RELU, (bias,)),
    (RESIDUAL, (bias, None)),
    (SEVERAL, (bias, None, image, (rows, 1))),
    (SIZES, (None,)),
  ):
    case = case_of(number, dtype, text, operands)
    check(case, run_case(case))
  assert NOT_TAKEN not in capfd.readouterr().err


@parametrize("number", [1, 9, 10])
def test_infinite_pixels_stay_where_they_are(number):
  check_infinite_pixels(replace(case_of(number, "float16", BARE, ()), constant_weights=False))


@parametrize("dtype", ["float16", "bfloat16"])
@parametrize("number", [1, 9, 10])
def test_maxima_of_nan(number, dtype):
  check_transposed_maxima_of_nan(replace(case_of(number, dtype, MAXIMA, ()), constant_weights=False))


@parametrize("number", [0, 6])
def test_tensors_may_start_anywhere(number):
  case = replace(case_of(number, "float16", RESIDUAL, ((SHAPES[number][1], 1, 1), None)), constant_weights=False)
  check_anywhere(case)


@parametrize("number", [0, 1])
def test_the_residual_may_be_overwritten(number):
  case = case_of(number, "float16", RESIDUAL, ((SHAPES[number][1], 1, 1), None))
  session, feeds = make(case.model()), {name: cupy.asarray(array) for name, array in case.feeds().items()}
  place = list(feeds.values())[-1]
  outputs = [place, cupy.empty_like(place)]
  run_bound(session, list(feeds.values()), outputs)
  check(case, host(dict(enumerate(outputs))))


@parametrize("number", [2, 5])
def test_a_cuda_graph_gives_the_same_bits(number):
  case = case_of(number, "float16", BIAS_RELU, ((SHAPES[number][1], 1, 1),))
  check_graph(case.model(), permuted(case))
