"""ConvGrad's engines for gradients of few channels: equal to the reference in every tile configuration, and
infinite or undefined elements reach no gradient that they don't belong to."""

from dataclasses import replace

import numpy as np
import pytest
from conv_grad_cases import BARE, RELU, SCALED, SIGMOID, Case, Geometry, check
from node_cases import typed
from onnx_models import parametrize

import ortplugin
from gpu.device import host, make, run, run_case
from gpu.sessions import check_repeats
from ortplugin.ops.conv_grad import OPERATOR

pytest.importorskip("cupy")

OWN = {"weight_algorithm": "own", "data_algorithm": "own"}

# What no tile divides, pads of all kinds, kernels of one tap to many.
GEOMETRIES = {
  "one of all": Geometry(1, 1, (1, 1), 1, 1),
  "one image": Geometry(1, 3, (17, 13), 5, 3, pads=1),
  "digits": Geometry(100, 1, (28, 28), 16, 3, pads=1),
  "middle": Geometry(100, 16, (14, 14), 32, 3, pads=1),
  "small images": Geometry(103, 32, (7, 7), 32, 3, pads=1),
  "one pixel": Geometry(37, 9, (3, 3), 11, 3),
  "uneven pads": Geometry(3, 13, (9, 11), 7, (3, 4), pads=(0, 3, 2, 1)),
  "strided": Geometry(3, 5, (19, 23), 10, 3, strides=2, pads=1),
  "strides that differ": Geometry(3, 4, (16, 19), 6, (2, 3), strides=(3, 1), pads=(1, 0, 0, 2), rest=(1, 0)),
  "five taps": Geometry(3, 8, (12, 33), 17, 5, pads=2),
  "a stem": Geometry(2, 3, (64, 48), 64, 7, strides=2, pads=3, rest=(1, 1)),
  "1x1": Geometry(3, 37, (13, 9), 61, 1),
  "1x1, strided": Geometry(3, 24, (14, 15), 20, 1, strides=2, rest=(1, 0)),
  "a line": Geometry(5, 6, (1, 70), 9, (1, 9), pads=(0, 4, 0, 4)),
  "a column": Geometry(5, 6, (70, 2), 9, (9, 1), pads=(4, 0, 4, 0)),
  "many channels": Geometry(2, 64, (11, 10), 64, 3, pads=1),
  "more channels": Geometry(2, 100, (6, 7), 130, 3, pads=1),
  "wide": Geometry(1, 2, (5, 300), 3, 3, pads=1),
  "long": Geometry(1, 2, (300, 5), 3, 3, pads=1),
}
FLOATS = ("float", "float16", "bfloat16")


def own(case):
  """The same with weights' gradients on our kernel; dX is left to `auto`."""
  return replace(case, attributes={**case.attributes, "weight_algorithm": "own"})


@parametrize("dtype", FLOATS)
@parametrize("layout", ["NCHW", "NHWC"])
@parametrize("name", GEOMETRIES)
def test_equals_the_reference(capfd, name, layout, dtype):
  number = list(GEOMETRIES).index(name)
  for transposed in (False, True):
    text = typed((RELU, BARE)[(number + transposed) % 2], dtype)
    wanted = ("dX dW dB", "dW dB", "dW", "dW dB dZ")[number % 4]
    case = Case(
      f"{name}, {transposed}, {layout}, {dtype}", GEOMETRIES[name], text, wanted, transposed=transposed, layout=layout
    )
    check(case, run(make(own(case).model()), own(case)))
  assert "no kernel of ours" not in capfd.readouterr().err


@parametrize("weights", ["float16", "bfloat16", "float", "double"])
@parametrize("dtype", FLOATS)
@parametrize("text", [RELU, SCALED, SIGMOID])
def test_programs_and_weights_in_another_dtype(text, dtype, weights):
  extra = {"s": (1, 1)} if text == SCALED else {}
  case = own(Case(f"{text}, {dtype}, {weights}", Geometry(3, 6, (9, 10), 10, 3, pads=1),
                  typed(text, dtype), "dX dW dB dZ", attributes={"weight_dtype": weights}, extra=extra))  # fmt: skip
  check(case, run_case(case))
  spread = replace(case, extra={"s": (10, 1, 1)} if text == SCALED else {"y": (10, 1, 1)})
  check(spread, run_case(spread))


DATA = {
  "digits": Geometry(100, 16, (28, 28), 1, 3, pads=1),
  "middle": Geometry(100, 16, (14, 14), 32, 3, pads=1),
  "small images": Geometry(103, 32, (7, 7), 32, 3, pads=1),
  "uneven": Geometry(3, 13, (9, 11), 7, (3, 4), pads=(0, 3, 2, 1)),
  "no pads": Geometry(3, 5, (9, 11), 7, (4, 2)),
  "five taps": Geometry(3, 8, (12, 33), 17, 5, pads=2),
  "groups": Geometry(2, 6, (7, 5), 9, 3, pads=1, group=3),
  "depthwise": Geometry(2, 8, (12, 9), 16, (3, 2), pads=(1, 1, 1, 0), group=8),
  "dilated": Geometry(2, 4, (19, 21), 6, (3, 2), dilations=(2, 3), pads=(2, 1, 1, 2)),
  "1x1": Geometry(3, 37, (13, 9), 61, 1),
}


@parametrize("transposed", [False, True])
@parametrize("name", DATA)
def test_data_gradients(capfd, name, transposed):
  case = Case(f"{name}, {transposed}", DATA[name], typed(RELU, "float"), "dX", "W", transposed,
              attributes={"data_algorithm": "own"})  # fmt: skip
  check(case, run_case(case))
  assert "no kernel of ours" not in capfd.readouterr().err


def test_sums_of_half_floats_are_not_rounded_on_the_way():
  """Off by half a unit in the last place, as if summed exactly: an engine of cuDNN's is off by eight."""
  for name in ("five taps", "uneven", "digits"):
    case = Case(f"{name}, half", DATA[name], typed(BARE, "float16"), "dX", "W")
    (found,) = run_case(case)
    arrays = [array.astype(np.float64) for array in case.inputs()]
    (wanted,) = OPERATOR.reference(replace(case, text=typed(BARE, "double")).node(), arrays)
    large = np.abs(wanted) > 1
    unit = np.spacing(np.abs(found[large])).astype(np.float64)
    assert large.sum() > 100
    assert (np.abs(found[large] - wanted[large]) / unit).max() < 0.55


def test_a_missing_kernel_is_said(capfd):
  geometry = Geometry(2, 2, (9, 11), 3, (3, 2), strides=(2, 1), dilations=(2, 3), pads=(2, 1, 1, 2))
  case = Case("dilated and strided", geometry, typed(RELU, "float"), attributes=OWN)
  check(case, run_case(case))
  said = capfd.readouterr().err
  assert said.count("node 'gradient' (ConvGrad): there is no kernel of ours for d") == 1


def test_a_missing_plan_is_said(capfd):
  geometry = Geometry(2, 64, (14, 14), 64, 3, pads=1)
  case = Case("no such plan", geometry, typed(RELU, "float16"), attributes={"data_algorithm": "engine=9999"})
  check(case, run_case(case))
  said = capfd.readouterr().err
  assert said.count("node 'gradient' (ConvGrad): the plan 'engine=9999' is not used, but auto: ") == 1


@parametrize("name", ["digits", "middle", "small images", "strided", "1x1"])
@parametrize("dtype", ["float", "float16"])
def test_runs_are_bit_identical(name, dtype):
  check_repeats(own(Case(f"{name}, {dtype}", GEOMETRIES[name], typed(RELU, dtype), "dX dW dB")), 10)


@parametrize("layout", ["NCHW", "NHWC"])
@parametrize("batch", [0, 1, 3])
def test_the_batch_may_change(batch, layout):
  some = GEOMETRIES["one image"]
  session = make(own(Case("dynamic", some, typed(RELU, "float"), layout=layout)).model([None] * 4))
  for images in (2, batch, 5):
    case = Case(f"{images} of {layout}", replace(some, batch=images), typed(RELU, "float"), layout=layout)
    check(case, run(session, case))


@parametrize("value", [np.inf, -np.inf, np.nan])
@parametrize("where", ["X", "dz"])
def test_infinite_elements_stay_where_they_are(where, value):
  """No partial strip, tile or channel lets one pass: the same gradients as in the reference are not finite."""
  for size in ((17, 13), (14, 14), (9, 30)):
    case = own(Case(f"{size}", Geometry(3, 5, size, 9, (3, 3)), typed(BARE, "float"), "dW dB", "X"))
    arrays = case.inputs()
    array = arrays[case.names.index(where)]
    for element in ((1, 4, size[0] - 4, size[1] - 3), (2, 0, 2, size[1] - 5)):
      array[element] = value
    feeds = dict(zip(case.names, arrays, strict=True))
    found = host(ortplugin.run(make(case.model()), feeds))
    with np.errstate(invalid="ignore"):
      wanted = OPERATOR.reference(case.node(), arrays)
    assert not all(np.isfinite(each).all() for each in wanted)
    for got, want in zip(found, wanted, strict=True):
      np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
      np.testing.assert_array_equal(np.isinf(got), np.isinf(want))
