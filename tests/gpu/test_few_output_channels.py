"""FusedConvTranspose's engine for few output channels, NHWC: equal to the reference for tiles of every form, both
layouts of the result and all kinds of programs; infinite pixels reach no result that they don't belong to."""

from dataclasses import replace

from conv_transpose_cases import BARE, BIAS_RELU, RESIDUAL, Case, check
from node_cases import planar, typed
from onnx_models import parametrize

from gpu.device import run_case
from gpu.sessions import check_graph, permuted
from gpu.transposed import MAXIMA, check_anywhere, check_infinite_pixels, check_transposed_maxima_of_nan

FLOATS = ["float16", "bfloat16", "float"]
# A scale of each image, an operand of each row, results of several dtypes.
SEVERAL = """(T c, T b, T r, float g) => (T y, bool p, float z) {
  s = Add(c, b)
  t = Add(s, r)
  y = Gelu(t)
  p = Greater(c, 0)
  w = Cast<to=float>(c)
  z = Mul(w, g)
}"""

# x, filters, kernel, attributes: what no tile divides, kernels that strides don't, pads that cut patches.
SHAPES = (
  ((2, 64, 32, 32), 3, (4, 4), planar(strides=2, pads=1)),
  ((1, 8, 3, 5), 1, (2, 2), {"strides": [2, 2]}),
  ((2, 24, 9, 7), 2, (3, 3), planar(strides=2, pads=1, output_padding=1)),
  ((1, 40, 6, 11), 4, (5, 5), planar(strides=2, pads=2, output_padding=[1, 0])),
  ((2, 16, 5, 6), 3, (3, 2), {"strides": [3, 1], "pads": [1, 0, 0, 1]}),
  ((1, 32, 4, 4), 3, (5, 3), {"strides": [3, 2], "pads": [4, 1, 3, 2]}),
  ((3, 56, 7, 10), 8, (4, 4), planar(strides=2, pads=1)),
  ((1, 128, 13, 9), 5, (2, 3), {"strides": [1, 2], "pads": [1, 0, 0, 0]}),
  ((2, 16, 10, 100), 3, (4, 4), planar(strides=2, pads=1)),
  ((1, 160, 8, 6), 3, (4, 4), planar(strides=2, pads=1)),
  ((1, 16, 5, 150), 1, (3, 5), {"strides": [1, 4], "pads": [2, 3, 0, 1], "output_padding": [0, 3]}),
  ((2, 8, 6, 5), 7, (3, 3), planar(pads=1)),
  ((1, 8, 20, 31), 2, (7, 7), planar(strides=4, pads=3)),
  ((1, 16, 4, 3), 4, (1, 1), planar(strides=2, output_padding=1)),
  ((9, 32, 1, 1), 3, (4, 4), {}),
)


def case_of(number, dtype, text, operands, first=False):
  x, filters, kernel, attributes = SHAPES[number]
  more = {"algorithm": "own"} | ({"output_layout": "NCHW"} if first else {})
  w, constant = (x[1], filters, *kernel), number % 2 == 0
  name = f"{x} to {filters}, {dtype}, {first}"
  return Case(name, typed(text, dtype), x, w, operands, "NHWC", attributes | more, constant)


NOT_TAKEN = "the algorithm 'own' is not used"  # what the library then says


@parametrize("first", [False, True], ids=["NHWC", "NCHW"])
@parametrize("dtype", FLOATS)
@parametrize("number", range(len(SHAPES)))
def test_equals_the_reference(capfd, number, dtype, first):
  filters, batch = SHAPES[number][1], SHAPES[number][0][0]
  for text, operands in (
    (BARE, ()),
    (BIAS_RELU, ((filters, 1, 1),)),
    (RESIDUAL, ((filters, 1, 1), None)),
    (SEVERAL, ((filters, 1, 1), None, (batch, 1, 1, 1))),
  ):
    case = case_of(number, dtype, text, operands, first)
    check(case, run_case(case))
  assert NOT_TAKEN not in capfd.readouterr().err


@parametrize("attributes", [{"group": 2}, {"dilations": [2, 1]}, {"strides": [5, 5]}])
def test_others_are_not_taken(capfd, attributes):
  case = case_of(2, "float16", BARE, ())
  case = replace(case, attributes={**case.attributes, "output_padding": [0, 0], **attributes})
  check(case, run_case(case), split=True)
  assert NOT_TAKEN in capfd.readouterr().err


@parametrize("first", [False, True], ids=["NHWC", "NCHW"])
@parametrize("number", [0, 2, 3, 5])
@parametrize("dtype", FLOATS)
def test_infinite_pixels_stay_where_they_are(number, dtype, first):
  check_infinite_pixels(replace(case_of(number, dtype, BARE, (), first), constant_weights=False))


@parametrize("number", [0, 2])
@parametrize("dtype", FLOATS)
def test_maxima_of_nan(number, dtype):
  check_transposed_maxima_of_nan(replace(case_of(number, dtype, MAXIMA, ()), constant_weights=False))


@parametrize("name", ["own", "fused", "split"])
@parametrize("number", [0, 3, 6])
def test_tensors_may_start_anywhere(number, name):
  """Also where the result is turned after cuDNN."""
  filters = SHAPES[number][1]
  case = case_of(number, "float16", RESIDUAL, ((filters, 1, 1), None), True)
  case = replace(case, constant_weights=False, attributes={**case.attributes, "algorithm": name})
  check_anywhere(case, split=True)


@parametrize("number", [0, 3, 8])
def test_a_cuda_graph_gives_the_same_bits(number):
  case = case_of(number, "float16", BIAS_RELU, ((SHAPES[number][1], 1, 1),), True)
  check_graph(case.model(), permuted(case))
