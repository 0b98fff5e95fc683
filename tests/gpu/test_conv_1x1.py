"""Our engine for pointwise (1x1) convolutions, plain and transposed: equal to the reference for tiles of every form and
all kinds of programs; infinite elements reach no result that they don't belong to."""

from dataclasses import replace

import conv_transpose_cases
import numpy as np
import pytest
from conv_transpose_cases import BIAS_RELU, RESIDUAL
from node_cases import typed
from onnx_models import parametrize

import ortplugin
from gpu.device import bind, cupy, host, keep_busy, make, run_bound, run_case
from gpu.sessions import session_on
from gpu.test_conv import BARE, RELU, SCALED, SEVERAL, SPLIT, WIDENED, Conv
from gpu.test_conv_engines import check_infinite_everywhere, check_maxima_of_nan, check_same_bits, own
from gpu.test_few_output_channels import NOT_TAKEN
from gpu.transposed import MAXIMA, check_anywhere, check_infinite_pixels, check_transposed_maxima_of_nan

pytestmark = pytest.mark.usefixtures("hopper")

FLOATS = ["float16", "bfloat16"]
# x, filters: less than a tile; several tiles along N and K, several blocks along N; what none of them divides. All with
# so many pixels that the split-K engine leaves them.
SHAPES = [
  ((1, 8, 91, 93), 8),
  ((9, 64, 31, 31), 64),
  ((29, 72, 19, 17), 40),
  ((21, 200, 23, 9), 136),
  ((45, 128, 7, 9), 320),
  ((40, 640, 16, 14), 64),
  ((11, 16, 10, 10), 1000),
  ((50, 1000, 13, 13), 24),
  ((8, 64, 128, 97), 256),
  ((9, 256, 90, 101), 72),
  ((12, 384, 80, 75), 192),
  ((8, 192, 96, 100), 64),
]


@parametrize("dtype", FLOATS)
@parametrize("x, filters", SHAPES)
def test_equals_the_reference(x, filters, dtype):
  conv = own(Conv(BARE, dtype, "NHWC", x, filters, (1, 1), attributes={}))
  conv.run()
  large = np.prod(x) * filters > 1 << 27
  for number, program in enumerate((SCALED,) if large else (RELU, SCALED, SEVERAL, WIDENED, SPLIT)):
    replace(conv, program=program, constant=number % 2 == 1).run()


# x, filters, attributes
UP = (
  ((2, 64, 5, 6), 64, {"strides": [2, 2], "output_padding": [1, 1]}),
  ((2, 72, 5, 6), 136, {"strides": [2, 2]}),
  ((1, 200, 9, 4), 40, {"strides": [3, 1], "output_padding": [2, 0]}),
  ((3, 16, 3, 7), 96, {"strides": [1, 4], "output_padding": [0, 1]}),
  ((2, 512, 11, 9), 256, {"strides": [2, 2], "output_padding": [0, 1]}),
  ((2, 64, 8, 8), 64, {}),
  ((8, 128, 96, 100), 64, {"strides": [2, 2], "output_padding": [1, 1]}),
  ((8, 8, 91, 93), 64, {"strides": [2, 2], "output_padding": [1, 1]}),
)

OF_IMAGES = """(T c, T b, T r, float g) => (T y, float z) {
  s = Add(c, b)
  t = Add(s, r)
  y = Gelu(t)
  w = Cast<to=float>(c)
  z = Mul(w, g)
}"""


def up(number, dtype, text, operands):
  x, filters, attributes = UP[number]
  name, constant = f"{x} to {filters}, {dtype}", number % 2 == 0
  more = attributes | {"algorithm": "own"}
  w = (x[1], filters, 1, 1)
  return conv_transpose_cases.Case(name, typed(text, dtype), x, w, operands, "NHWC", more, constant)


@parametrize("dtype", FLOATS)
@parametrize("number", range(len(UP)))
def test_transposed(capfd, number, dtype):
  bias, image = (UP[number][1], 1, 1), (UP[number][0][0], 1, 1, 1)
  for text, operands in ((BARE, ()), (BIAS_RELU, (bias,)), (RESIDUAL, (bias, None)), (OF_IMAGES, (bias, None, image))):
    case = up(number, dtype, text, operands)
    conv_transpose_cases.check(case, run_case(case))
  assert NOT_TAKEN not in capfd.readouterr().err


@parametrize("value", [np.inf, -np.inf, np.nan])
def test_infinite_elements_stay_where_they_are(value):
  for x, filters in (SHAPES[2], SHAPES[3], SHAPES[6]):
    given = own(Conv(BARE, "float16", "NHWC", x, filters, (1, 1), constant=False, attributes={}))
    check_infinite_everywhere(given, value)


def test_infinite_pixels_of_a_transposed_one_stay_where_they_are():
  check_infinite_pixels(replace(up(1, "float16", BARE, ()), constant_weights=False))


@parametrize("dtype", FLOATS)
def test_maxima_of_nan(dtype):
  x, filters = SHAPES[2]
  check_maxima_of_nan(own(Conv(MAXIMA, dtype, "NHWC", x, filters, (1, 1), constant=False, attributes={})))
  check_transposed_maxima_of_nan(replace(up(1, dtype, MAXIMA, ()), constant_weights=False))


@parametrize("number", [1, 4])
def test_tensors_may_start_anywhere(number):
  check_anywhere(replace(up(number, "float16", RESIDUAL, ((UP[number][1], 1, 1), None)), constant_weights=False))


def test_runs_are_bit_identical():
  for x, filters in (SHAPES[2], SHAPES[8]):
    check_same_bits(own(Conv(RELU, "float16", "NHWC", x, filters, (1, 1), attributes={})))


# With so many pixels that warpgroups take tiles as they go: eight tiles for each of 132 multiprocessors.
MANY = (8, 8, 93, 97)


@parametrize("apart", [True, False])
def test_launches_may_overlap(apart):
  """Two streams full of launches, of which each multiprocessor has room for two blocks. Each has results of its own,
  or all those of one number write the same to one place. Single launches to these places find nothing changed."""
  case, count = up(7, "float16", BARE, ()), 20
  model, x = replace(case, constant_weights=True).model(), cupy.asarray(case.inputs()[0])
  (wanted,) = host(ortplugin.run(make(model), {"X": x}))
  conv_transpose_cases.check(case, [wanted])
  bits = cupy.asarray(wanted).view(np.uint16)
  streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
  sessions = [session_on(stream, model) for stream in streams]
  results = [[cupy.empty(wanted.shape, wanted.dtype) for _ in range(count)] for _ in range(2 if apart else 1)]
  everywhere = [y for each in results for y in each]

  def run_all(count, outputs):
    for number in range(count):
      for (session, options), mine in zip(sessions, outputs, strict=False):
        session.run_with_iobinding(bind(session, [x], mine[number : number + 1]), options)

  run_all(1, results * 2)
  cupy.cuda.Device().synchronize()
  for overlap in (True, False):
    for y in everywhere:
      y.fill(np.nan)
    cupy.cuda.Device().synchronize()
    if overlap:
      gate = cupy.cuda.Event()
      with cupy.cuda.Stream(non_blocking=True) as first:
        keep_busy(100)  # while the host prepares all runs
        gate.record(first)
      for stream in streams:
        stream.wait_event(gate)
    run_all(count, results * 2 if overlap else results)
    cupy.cuda.Device().synchronize()
    assert all((y.view(np.uint16) == bits).all() for y in everywhere)


def test_results_go_to_more_places_than_are_remembered():
  """A third of them divide their tiles in advance."""
  conv = own(Conv(BARE, "float16", "NHWC", MANY, 8, (1, 1), attributes={}))
  (wanted,) = conv.run()
  session, x = make(conv.model(conv.arrays())), cupy.asarray(conv.arrays()["x"])
  bits, places = cupy.asarray(wanted).view(np.uint16), 1500
  room = cupy.empty(wanted.nbytes + places * 256, np.uint8)
  for number in range(places):
    y = cupy.ndarray(wanted.shape, wanted.dtype, memptr=room.data + number * 256)
    y.fill(np.nan)
    run_bound(session, [x], [y])
    assert (y.view(np.uint16) == bits).all()
