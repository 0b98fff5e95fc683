"""FusedConvTranspose in ONNX Runtime on a GPU: equal to its reference in every form, dtype, layout and algorithm, at
odd addresses, with shapes that change, the same bits in every run and under CUDA graphs. Its kernel is FusedConv's,
whose tests have the rest."""

from dataclasses import replace
from functools import partial

import numpy as np
from conv_cases import BESIDE, BESIDE_CASES, GROUPED
from conv_transpose_cases import BARE, BIAS_RELU, CASES, GEOMETRIES, RESIDUAL, Case, by_name, check as check_exactly
from node_cases import planar, typed
from onnx_models import parametrize

import ortplugin
from gpu.device import before_nan, cupy, host, make, poison, run, run_bound, run_case
from gpu.sessions import (
  check_addresses,
  check_all,
  check_graph,
  check_repeats,
  check_rounding,
  permuted,
  variants,
)
from ortplugin.ops.conv_transpose import OPERATOR

check = partial(check_exactly, split=True)

UP = planar(strides=2, pads=1)
MISH = "(T c, T b, T r) => (T y) { a = Add(c, b) m = Mish(a) y = Sub(m, r) }"
LARGE_CASES = tuple(
  Case(f"large: {name}, {layout}, {dtype}", typed(text, dtype), x, w, operands, layout, attributes)
  for name, text, x, w, operands, attributes in (
    ("DCGAN", BIAS_RELU, (4, 256, 8, 8), (256, 128, 4, 4), ((128, 1, 1),), UP),
    ("3x3", BARE, (4, 64, 28, 28), (64, 64, 3, 3), (), planar(pads=1)),
    ("1x1 / 2", BARE, (4, 64, 14, 14), (64, 32, 1, 1), (), planar(strides=2, output_padding=1)),
    ("kernel is stride", BIAS_RELU, (4, 64, 14, 14), (64, 32, 2, 2), ((32, 1, 1),), {"strides": [2, 2]}),
    ("residual", RESIDUAL, (4, 64, 14, 14), (64, 32, 4, 4), ((32, 1, 1), None), UP),
    ("split", MISH, (4, 64, 14, 14), (64, 32, 4, 4), ((32, 1, 1), None), UP),
    ("three channels", BIAS_RELU, (4, 64, 32, 32), (64, 3, 4, 4), ((3, 1, 1),), UP),
  )
  for layout, dtype in (("NHWC", "float16"), ("NHWC", "bfloat16"), ("NCHW", "float16"), ("NCHW", "float"))
)
SHUFFLE = {"algorithm": "shuffle"}
SHUFFLES = tuple(
  Case(f"shuffle: {name}, {dtype}", typed(text, dtype), x, w, operands, "NHWC", {**SHUFFLE, **attributes})
  for name, text, x, w, operands, attributes in (
    ("no program", BARE, (2, 16, 5, 7), (16, 8, 2, 2), (), {"strides": [2, 2]}),
    (
      "gaps",
      BIAS_RELU,
      (2, 16, 5, 7),
      (16, 24, 1, 1),
      ((24, 1, 1),),
      planar(strides=[2, 3], output_padding=[1, 2], dilations=3),
    ),
    ("odd channels", BIAS_RELU, (3, 10, 4, 5), (10, 6, 1, 3), ((6, 1, 1),), {"strides": [2, 4]}),
    ("one channel", BIAS_RELU, (3, 5, 4, 5), (5, 1, 2, 2), ((1, 1, 1),), {"strides": [2, 2]}),
    ("pads", BIAS_RELU, (2, 16, 6, 5), (16, 8, 3, 3), ((8, 1, 1),), {"strides": [3, 4], "pads": [1, 2, 3, 4]}),
    ("residual", RESIDUAL, (2, 16, 6, 5), (16, 8, 2, 2), ((8, 1, 1), None), {"strides": [2, 2]}),
    ("of each image", RESIDUAL, (2, 16, 6, 5), (16, 8, 2, 2), ((2, 1, 1, 10), (12, 1)), {"strides": [2, 2]}),
  )
  for dtype in ("float16", "bfloat16", "float")
)
chosen = {case.name: case for case in LARGE_CASES} | by_name


@parametrize("case", CASES)
def test_equals_the_reference(case):
  check(case, run_case(case))


@parametrize("case", LARGE_CASES)
def test_large_tensors(case):
  check(case, run_case(case))


@parametrize("case", SHUFFLES)
def test_pixel_shuffles(capfd, case):
  """A matrix product, and pixels put in their places; nothing is said, so this is how it was done."""
  check(case, run_case(case))
  assert "shuffle" not in capfd.readouterr().err


def test_what_overlaps_is_not_shuffled(capfd):
  case = replace(by_name["strided, NHWC, float16"], name="overlap", attributes={**GEOMETRIES["strided"][2], **SHUFFLE})
  check(case, run_case(case))
  assert "the algorithm 'shuffle' is not used, but auto: its kernel overlaps" in capfd.readouterr().err


@parametrize("name", ["DCGAN", "split", "1x1 / 2", "kernel is stride"])
def test_every_algorithm(name):
  """What --tune is offered computes the same."""
  case = chosen[f"large: {name}, NHWC, float16"]
  found = variants(case)
  assert found
  for each in found:
    tuned = replace(case, attributes={**case.attributes, **each})
    check(case, run(make(tuned.model()), case))


SIGMOID, SHIFTED = "(T c) => (T y) { y = Sigmoid(c) }", "(T c) => (T y) { y = Add(c, 0.25) }"
# Of x, the result or both.
ONE_PIXEL = tuple(
  Case(f"{x} by {w}, {dtype}", typed(text, dtype), x, w, (), "NCHW", attributes)
  for text in (BARE, SIGMOID, SHIFTED)
  for dtype in ("float16", "bfloat16", "float")
  for x, w, attributes in (
    ((4, 16, 1, 1), (16, 24, 1, 1), {}),
    ((4, 16, 1, 1), (16, 24, 3, 3), {}),
    ((4, 16, 1, 1), (16, 24, 3, 3), planar(pads=1)),
    ((4, 16, 3, 3), (16, 24, 3, 3), planar(pads=2)),
    ((4, 16, 1, 1), (16, 1, 4, 4), {"strides": [2, 2]}),
  )
)


@parametrize("case", ONE_PIXEL, ids=lambda case: f"{case.name}, {case.text}")
def test_images_of_one_pixel(case):
  """By every algorithm: cuDNN 9.19 proposes kernels that mistake the layout of such images."""
  for each in variants(case):
    tuned = replace(case, attributes={**case.attributes, **each})
    check(case, run(make(tuned.model()), case))


@parametrize("channels, filters, strides", [(3, 16, 2), (32, 3, 2), (48, 96, 1)])
def test_factors_are_rounded_to_the_nearest(channels, filters, strides):
  """By every algorithm, in TF32, as FusedConv's."""
  attributes = planar(strides=strides, pads=1) | {"allow_tf32": 1}
  x, w = (4, channels, 28, 28), (channels, filters, 3, 3)
  case = Case("tf32", typed(BARE, "float"), x, w, (), "NHWC", attributes)
  (wanted,) = OPERATOR.reference(case.node(), case.inputs(), rounded=False)

  def attempt(attributes):
    (found,) = run(make(replace(case, attributes={**case.attributes, **attributes}).model()), case)
    check_rounding(found, wanted)

  check_all(({}, *variants(case)), attempt)


@parametrize("layout", ["NCHW", "NHWC"])
@parametrize("name, dtype, given", BESIDE_CASES)
def test_a_result_beside_another(name, dtype, given, layout):
  """By every algorithm, in memory that no right run has filled: cuDNN 9.19 leaves some in float32 unwritten."""
  unit = 2.0**-10 if given.get("allow_tf32") else 0
  cases = [
    Case(name, typed(BESIDE[name], dtype), x, w, (), layout, {**attributes, **given})
    for x, w, attributes in (
      ((4, 16, 7, 5), (16, 24, 1, 1), {}),
      ((2, 6, 7, 5), (6, 2, 3, 3), planar(pads=1)),
      ((2, 64, 7, 7), (64, 64, 2, 2), {"strides": [2, 2]}),
    )
  ]
  check_all(
    (replace(case, attributes={**case.attributes, **each}) for case in cases for each in ({}, *variants(case))),
    lambda case: check(case, run(make(case.model(), **poison.provider_options()), case), unit=unit),
  )


@parametrize("dtype", ["float16", "bfloat16", "float"])
@parametrize("layout", ["NCHW", "NHWC"])
@parametrize("number", range(len(GROUPED)))
def test_groups_end_with_the_tensor(number, layout, dtype):
  """By every algorithm: cuDNN 9.19 has engines of convolutions that multiply by 0 what lies behind."""
  x, filters, kernel, group = GROUPED[number]
  attributes = {"group": group, "pads": [size // 2 if x[2] == 1 else 0 for size in kernel] * 2}
  case = Case("", typed(BARE, dtype), x, (x[1], filters // group, *kernel), (), layout, attributes)
  feeds = dict(zip(case.names, map(before_nan, case.inputs()), strict=True))

  def attempt(more):
    check(case, host(ortplugin.run(make(replace(case, attributes={**attributes, **more}).model()), feeds)))

  check_all(({}, *variants(case)), attempt)


CHOSEN = (
  "large: DCGAN, NHWC, float16",
  "large: residual, NHWC, float16",
  "large: split, NHWC, float16",
  "large: 1x1 / 2, NHWC, float16",
  "large: kernel is stride, NHWC, float16",
  "large: DCGAN, NCHW, float",
  "output_padding, NCHW, float",
)


@parametrize("name", CHOSEN)
def test_runs_are_bit_identical(name):
  """Whatever stood in the output's memory before: nothing of it is read."""
  # Freed into the pool at once.
  fill = lambda number: cupy.full(1 << 22, np.nan if number % 2 else 7.0, np.float32)  # noqa: E731
  check_repeats(chosen[name], 30, fill)


def test_the_output_is_not_read():
  case = chosen["large: 1x1 / 2, NHWC, float16"]
  session, arrays = make(case.model()), case.inputs()
  (wanted,) = OPERATOR.reference(case.node(), arrays)
  device = [cupy.asarray(array) for array in arrays]
  output = cupy.full(wanted.shape, np.nan, wanted.dtype)
  run_bound(session, device, [output])
  check(case, [cupy.asnumpy(output)])


@parametrize("name", CHOSEN)
def test_a_cuda_graph_gives_the_same_bits(name):
  case = chosen[name]
  check_graph(case.model(), permuted(case, check))


@parametrize("name", CHOSEN)
def test_tensors_may_start_anywhere(name):
  case = chosen[name]
  check_addresses(case, lambda found: check(case, found), [([1], [3])])


@parametrize("name", ["strided", "output_padding", "SAME_UPPER", "asymmetric pads"])
def test_shapes_may_change_from_run_to_run(name):
  x, w, attributes = GEOMETRIES[name]
  first = Case("first", typed(BIAS_RELU, "float"), x, w, ((w[1], 1, 1),), "NCHW", attributes)
  session = make(first.model([("n", x[1], "h", "w"), w, (1, w[1], 1, 1)]))
  for shape in (x, (1, x[1], 7, 6), (0, *x[1:]), (4, *x[1:]), x):
    case = replace(first, name=f"{name} {shape}", x=shape)
    check(case, run(session, case))


@parametrize(
  "case", [each for each in (*LARGE_CASES, *SHUFFLES[::3]) if each.layout == "NHWC" and len(each.operands) < 2]
)
def test_images_of_other_sizes(case):
  session = make(case.model([("n", "h", "w", case.x[1]), *case.shapes[1:]]))
  for size in ((8, 8), (9, 14), (11, 6)):
    resized = replace(case, name=f"{case.name} {size}", x=(*case.x[:2], *size))
    check(resized, run(session, resized))
