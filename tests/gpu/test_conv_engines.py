"""FusedConv's engines for NHWC: depthwise, stem, GEMV, implicit GEMM. In every tile configuration equal to the
reference, and infinite pixels reach no result that they don't belong to."""

from dataclasses import replace

import numpy as np
from node_cases import planar
from onnx_models import parametrize

import ortplugin
from gpu.device import at_offset, cupy, host, make, run_bound, same_bits
from gpu.sessions import check_graph
from gpu.test_conv import BARE, RELU, SCALED, SEVERAL, SILU, Conv, algorithms
from gpu.transposed import MAXIMA
from ortplugin.ops.conv import reference

FLOATS = ["float16", "bfloat16", "float"]


def own(conv):
  """The same by our engine, which must exist."""
  assert "own" in algorithms(conv, conv.arrays()), conv
  return replace(conv, attributes={**conv.attributes, "algorithm": "own"})


def check_infinite(conv, name, element, value):
  """With such a value at that place of an input exactly those results are not finite that depend on it."""
  arrays = conv.arrays()
  arrays[name].reshape(-1)[element] = value
  (found,) = conv.found(arrays)
  node = conv.node()
  with np.errstate(invalid="ignore"):
    (wanted,) = reference(node, [arrays[each] for each in node.input])
  assert not np.isfinite(wanted).all()
  assert np.isfinite(wanted).any()
  np.testing.assert_array_equal(np.isfinite(found), np.isfinite(wanted))


def check_infinite_everywhere(conv, value):
  """`check_infinite` near the ends of X and, without pads, of W: an infinite weight times a zero of a pad is NaN."""
  places = {"x": (5, -3)} | ({} if "pads" in conv.attributes else {"w": (7, -1)})
  for name, elements in places.items():
    for element in elements:
      check_infinite(conv, name, element, value)


def check_offsets(conv):
  """Tensors may begin at any element. Weights are an input."""
  arrays = conv.arrays()
  (wanted,) = conv.found(arrays)
  inputs = [at_offset(arrays[each], 1) for each in conv.node().input]
  outputs = [at_offset(np.full_like(wanted, np.nan), 3)]
  run_bound(make(conv.model(arrays)), inputs, outputs)
  np.testing.assert_array_equal(cupy.asnumpy(outputs[0]), wanted)


def check_same_bits(conv):
  """Of runs, and of replays of a CUDA graph."""
  assert same_bits(conv.run(), conv.run())
  check_graph(conv.model(conv.arrays()), [conv.trial(f"replay {number}") for number in range(3)])


def check_maxima_of_nan(conv):
  """With a NaN in X all of them are NaN exactly where the convolution is. `conv` has the program MAXIMA."""
  arrays = conv.arrays()
  arrays["x"].reshape(-1)[5] = np.nan
  found = conv.found(arrays)
  node = conv.node()
  wanted = reference(node, [arrays[each] for each in node.input])
  for got, want in zip(found, wanted, strict=True):
    assert np.isnan(want).any()
    assert not np.isnan(want).all()
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))


# An engine each, and other sizes of images: x, filters, kernel, groups, attributes; heights and widths.
SIZES = {
  "depthwise": ((2, 32, 30, 30), 32, (3, 3), 32, planar(pads=1), [(17, 24), (45, 9)]),
  "grouped": ((2, 48, 30, 30), 48, (3, 3), 4, planar(pads=1), [(17, 24), (45, 9)]),
  "grouped, 1x1": ((2, 24, 30, 30), 24, (1, 1), 4, {}, [(17, 24), (45, 9)]),
  "stem": ((2, 3, 64, 64), 32, (3, 3), 1, planar(pads=1, strides=2), [(99, 40), (32, 160)]),
  "stem, pairs": ((2, 3, 64, 64), 32, (3, 3), 1, planar(pads=1, input_layout="NCHW"), [(99, 40), (32, 160)]),
  "split_k": ((1, 256, 14, 14), 256, (3, 3), 1, planar(pads=1), [(9, 17), (20, 7)]),
  "conv_1x1": ((8, 64, 56, 56), 64, (1, 1), 1, {}, [(60, 50), (41, 77)]),
  "patch": ((8, 64, 112, 112), 64, (3, 3), 1, planar(pads=1), [(100, 130), (97, 115)]),
  "implicit_gemm": ((8, 128, 56, 56), 128, (3, 3), 1, planar(pads=1), [(60, 50), (41, 77)]),
}


@parametrize("name", SIZES)
def test_kernels_that_are_given_their_sizes(name):
  """A node compiles one for all sizes of images but the first (ortplugin/ops/conv/conv_cuda.cc)."""
  x, filters, kernel, group, attributes, others = SIZES[name]
  first = own(Conv(SCALED, "float16", "NHWC", x, filters, kernel, group, attributes=attributes))
  fixed = first.arrays()
  session = make(first.model(fixed, first.open_shapes()))
  for size in (x[2:], *others, x[2:]):
    conv = replace(first, x=(*x[:2], *size))
    arrays = conv.arrays() | {each: fixed[each] for each in "wb"}
    conv.check(arrays, host(ortplugin.run(session, conv.feeds(arrays))))


# x, kernel, stride, pads: what no tile divides, pads of all kinds.
DEPTHWISE = [
  ((1, 8, 5, 5), 3, 1, [1, 1, 1, 1]),
  ((2, 20, 9, 13), 3, 1, [1, 1, 1, 1]),
  ((2, 72, 11, 7), 5, 2, [1, 2, 2, 0]),
  ((1, 24, 15, 10), 7, 1, [3, 0, 3, 6]),
  ((2, 136, 8, 8), 3, 2, [0, 0, 1, 1]),
  ((2, 38, 6, 5), 7, 2, [3, 3, 3, 3]),
  ((8, 96, 14, 14), 5, 1, [2, 2, 2, 2]),
]


@parametrize("dtype", FLOATS)
@parametrize("x, kernel, stride, pads", DEPTHWISE)
def test_depthwise(x, kernel, stride, pads, dtype):
  attributes = planar(pads=pads, strides=stride)
  conv = own(Conv(SCALED, dtype, "NHWC", x, x[1], (kernel, kernel), x[1], attributes=attributes))
  conv.run()
  replace(conv, program=SEVERAL, constant=False).run()


# x, filters for each channel, kernel, attributes: bands, large and even ones, one tap, unequal strides, dilations.
ANY_DEPTHWISE = [
  ((2, 24, 14, 14), 1, (1, 11), {"pads": [0, 5, 0, 5]}),
  ((2, 48, 28, 13), 1, (11, 1), {"pads": [5, 0, 5, 0]}),
  ((8, 304, 7, 7), 1, (9, 9), planar(pads=4)),
  ((8, 96, 28, 28), 1, (1, 1), {"strides": [2, 2]}),
  ((2, 16, 9, 40), 1, (3, 31), {"pads": [1, 15, 1, 15]}),
  ((2, 10, 12, 11), 1, (2, 4), {"strides": [3, 1], "pads": [1, 2, 0, 1]}),
  ((1, 40, 20, 21), 1, (3, 3), {"pads": [6, 2, 6, 2], "dilations": [6, 2]}),
  ((1, 6, 17, 16), 1, (3, 3), planar(strides=4, pads=1)),
  ((2, 7, 9, 8), 1, (3, 3), planar(pads=1)),
  ((2, 64, 14, 14), 2, (7, 7), planar(strides=2, pads=3)),
  ((2, 6, 10, 9), 3, (3, 3), planar(pads=1, dilations=[1, 2])),
  ((2, 5, 8, 8), 4, (5, 1), {"pads": [2, 0, 2, 0]}),
]


@parametrize("dtype", FLOATS)
@parametrize("x, multiplier, kernel, attributes", ANY_DEPTHWISE)
def test_any_depthwise(x, multiplier, kernel, attributes, dtype):
  conv = own(Conv(SCALED, dtype, "NHWC", x, x[1] * multiplier, kernel, x[1], attributes=attributes))
  conv.run()
  replace(conv, program=SEVERAL, constant=False).run()


@parametrize(
  "x, kernel, stride",
  [
    ((8, 32, 112, 112), 3, 1),
    ((8, 144, 56, 56), 3, 1),
    ((8, 96, 112, 112), 3, 2),
    ((8, 240, 28, 28), 5, 1),
    ((8, 672, 14, 14), 5, 1),
    ((8, 96, 56, 56), 7, 1),
  ],
)
def test_large_images(x, kernel, stride):
  """Tiles of up to 28 pixels for each thread."""
  attributes = planar(pads=kernel // 2, strides=stride)
  own(Conv(SILU, "float16", "NHWC", x, x[1], (kernel, kernel), x[1], attributes=attributes)).run()


# x, filters, kernel, stride, pads
STEMS = [
  ((2, 3, 32, 48), 64, 7, 2, [3, 3, 3, 3]),
  ((1, 3, 33, 50), 32, 3, 2, [0, 0, 1, 1]),
  ((2, 3, 40, 24), 96, 4, 4, [0, 0, 0, 0]),
  ((3, 4, 17, 40), 16, 3, 2, [1, 1, 1, 1]),
  ((2, 2, 40, 34), 48, 5, 2, [2, 2, 2, 2]),
  ((1, 1, 44, 60), 32, 5, 2, [2, 2, 2, 2]),
  ((1, 3, 31, 33), 16, 3, 2, [1, 1, 1, 1]),
  # Pairs of pixels, the last of which may be alone.
  ((2, 3, 18, 38), 64, 3, 1, [1, 1, 1, 1]),
  ((1, 3, 20, 26), 48, 4, 1, [0, 0, 0, 0]),
  ((2, 1, 24, 30), 16, 5, 3, [1, 2, 0, 2]),
]


@parametrize("image", ["NHWC", "NCHW"])
@parametrize("dtype", ["float16", "bfloat16"])
@parametrize("x, filters, kernel, stride, pads", STEMS)
def test_stems(x, filters, kernel, stride, pads, dtype, image):
  attributes = planar(pads=pads, strides=stride, input_layout=image)
  conv = Conv(SCALED, dtype, "NHWC", x, filters, (kernel, kernel), attributes=attributes)
  pixel = x[1] if image == "NHWC" else 1
  if x[3] * pixel % 2:
    assert "own" not in algorithms(conv, conv.arrays())  # the tensor cores take elements by two
    conv.run()
    return
  conv = own(conv)
  conv.run()
  replace(conv, program=SEVERAL, constant=False).run()


def test_infinite_pixels_stay_where_they_are():
  for conv in (
    Conv(RELU, "float16", "NHWC", (1, 3, 32, 32), 64, (7, 7), attributes=planar(pads=3, strides=2)),
    Conv(RELU, "float16", "NHWC", (1, 3, 32, 32), 64, (3, 3), attributes=planar(pads=1, input_layout="NCHW")),
    Conv(RELU, "float16", "NHWC", (1, 16, 14, 14), 16, (5, 5), 16, attributes={"pads": [2] * 4}),
  ):
    check_infinite(own(conv), "x", int(np.prod(conv.x)) // 2, np.inf)


@parametrize("dtype", FLOATS)
def test_maxima_of_nan(dtype):
  stem = planar(pads=3, strides=2)
  for conv in (
    Conv(MAXIMA, dtype, "NHWC", (1, 16, 14, 14), 16, (5, 5), 16, attributes={"pads": [2] * 4}),
    Conv(MAXIMA, dtype, "NHWC", (3, 130, 1, 1), 77, (1, 1), attributes={}),
    *([Conv(MAXIMA, dtype, "NHWC", (1, 3, 32, 32), 64, (7, 7), attributes=stem)] if dtype != "float" else []),
  ):
    check_maxima_of_nan(own(conv))


# x, filters, kernel, groups, attributes: tiles of every kind; what fills no tile or copy, and vectors of any size; taps
# of one axis and none, even ones and far apart ones; pads of one side, and as wide as the filter.
IMPLICIT = [
  ((8, 64, 56, 56), 64, (3, 3), 1, planar(pads=1)),
  ((2, 128, 40, 41), 256, (3, 3), 1, planar(pads=1)),
  ((8, 96, 28, 28), 96, (3, 3), 1, planar(pads=1)),
  ((3, 72, 33, 29), 100, (5, 5), 1, planar(pads=2, strides=2)),
  ((2, 56, 35, 36), 42, (2, 4), 1, {"pads": [1, 2, 0, 1], "strides": [3, 1]}),
  ((5, 256, 17, 17), 33, (1, 7), 1, {"pads": [0, 3, 0, 3]}),
  ((2, 128, 37, 31), 48, (7, 1), 1, {"pads": [3, 0, 3, 0], "strides": [1, 8]}),
  ((2, 256, 28, 28), 512, (1, 1), 1, planar(strides=2)),
  ((1, 64, 60, 60), 40, (3, 3), 1, planar(pads=12, dilations=12)),
  ((2, 128, 30, 30), 128, (3, 3), 1, planar(pads=3, dilations=[1, 3])),
  ((1, 64, 48, 48), 64, (3, 3), 1, {"pads": [0, 0, 2, 2], "strides": [2, 2]}),
  ((2, 512, 21, 21), 512, (3, 3), 4, planar(pads=1)),
  ((8, 8, 150, 150), 3, (3, 3), 1, planar(pads=1)),
]


@parametrize("dtype", FLOATS)
@parametrize("x, filters, kernel, group, attributes", IMPLICIT)
def test_implicit_gemm(x, filters, kernel, group, attributes, dtype):
  tf32 = {"allow_tf32": 1} if dtype == "float" else {}
  conv = own(Conv(SCALED, dtype, "NHWC", x, filters, kernel, group, attributes=attributes | tf32))
  conv.run()
  replace(conv, program=SEVERAL, constant=False).run()


def test_implicit_gemm_beside_infinity():
  """What a copy holds beyond its tap's channels, the image or the filters meets no product."""
  for conv in (
    Conv(BARE, "float16", "NHWC", (3, 72, 33, 29), 100, (5, 5), attributes=planar(strides=2)),
    Conv(BARE, "float16", "NHWC", (2, 512, 21, 21), 512, (3, 3), 4, attributes=planar(pads=1)),
    Conv(BARE, "float16", "NHWC", (8, 64, 56, 56), 64, (3, 3), attributes=planar(pads=1)),
  ):
    for value in (np.inf, np.nan):
      check_infinite_everywhere(own(conv), value)
  conv = own(replace(conv, program=RELU, constant=False))
  check_offsets(conv)
  check_same_bits(conv)


# x, filters, kernel, pads: parts of a tile of filters, and several; what fills no tile; even filters, and one row.
PATCHES = [
  ((8, 64, 56, 56), 64, (3, 3), [1, 1, 1, 1]),
  ((4, 48, 113, 98), 100, (3, 3), [1, 1, 1, 1]),
  ((5, 40, 95, 83), 24, (3, 3), [0, 2, 3, 1]),
  ((8, 56, 64, 65), 132, (2, 4), [1, 2, 0, 1]),
  ((8, 64, 64, 59), 64, (1, 5), [0, 0, 0, 0]),
]


@parametrize("dtype", ["float16", "bfloat16"])
@parametrize("x, filters, kernel, pads", PATCHES)
def test_patches(x, filters, kernel, pads, dtype):
  conv = own(Conv(SCALED, dtype, "NHWC", x, filters, kernel, attributes={"pads": pads}))
  conv.run()
  replace(conv, program=SEVERAL, constant=False).run()
  if dtype == "float16":
    bare = replace(conv, program=BARE, attributes={**conv.attributes, "pads": [0] * 4})
    check_infinite_everywhere(bare, np.inf)
    check_offsets(replace(conv, program=RELU, constant=False))
    check_same_bits(replace(conv, program=RELU))


@parametrize("dtype", FLOATS)
@parametrize(
  "batch, channels, filters",
  [(1, 24, 96), (3, 130, 77), (8, 960, 240), (5, 33, 10), (13, 8, 32), (64, 1152, 48), (2, 4608, 33), (1, 1, 1)],
)
def test_vectors(batch, channels, filters, dtype):
  conv = own(Conv(SILU, dtype, "NHWC", (batch, channels, 1, 1), filters, (1, 1), attributes={}))
  conv.run()
  replace(conv, program=SCALED, constant=False).run()
