"""ConvGrad in ONNX Runtime on a GPU: equal to its reference in every form, dtype and layout, at odd addresses, with
shapes that change, the same bits in every run and under CUDA graphs."""

from dataclasses import replace

import numpy as np
import pytest
from conv_cases import GROUPED, ONE_SIDED
from conv_grad_cases import BARE, CASES, GEOMETRIES, RELU, Case, Geometry, by_name, check
from node_cases import UNIT_ROUNDOFF, typed
from onnx_models import parametrize

import ortplugin
from gpu.device import before_nan, host, make, run, run_case
from gpu.sessions import (
  check_addresses,
  check_all,
  check_capture,
  check_graph,
  check_repeats,
  check_rounding,
  check_threads,
  permuted,
  trial,
  variants,
)
from ortplugin.graph import TensorType
from ortplugin.ops.conv_grad import OPERATOR

LARGE_CASES = tuple(
  Case(
    f"large: {name}, {'transposed, ' if transposed else ''}{layout}, {dtype}",
    geometry,
    typed(RELU, dtype),
    transposed=transposed,
    layout=layout,
    attributes=attributes,
  )
  for name, geometry in {
    "3x3": Geometry(8, 64, (28, 28), 64, 3, pads=1),
    "stride 2": Geometry(8, 64, (28, 28), 128, 3, strides=2, pads=1, rest=(1, 1)),
    "1x1": Geometry(4, 256, (14, 14), 64, 1),
    "few channels": Geometry(100, 1, (28, 28), 16, 3, pads=1),
  }.items()
  for transposed in (False, True)
  for layout, dtype, attributes in (
    ("NHWC", "float16", {}),
    ("NHWC", "float16", {"weight_dtype": "float"}),
    ("NHWC", "bfloat16", {}),
    ("NCHW", "float", {}),
    ("NCHW", "float16", {}),
  )
)


@parametrize("case", CASES)
def test_equals_the_reference(case):
  check(case, run_case(case))


@parametrize("case", LARGE_CASES, ids=lambda case: f"{case.name} {case.attributes}")
def test_large_tensors(case):
  check(case, run_case(case))


CHOSEN = (
  "large: 3x3, NHWC, float16",
  "large: stride 2, NCHW, float",
  "large: few channels, NCHW, float",
  "large: 3x3, transposed, NHWC, float16",
  "strided with a rest, NCHW, float",
  "depthwise, NHWC, float16",
  "weights in float, float16",
)
chosen = {case.name: case for case in LARGE_CASES if not case.attributes} | by_name


@parametrize("name", CHOSEN)
def test_runs_are_bit_identical(name):
  check_repeats(chosen[name], 30)


@parametrize("name", CHOSEN)
def test_a_cuda_graph_gives_the_same_bits(name):
  case = chosen[name]
  check_graph(case.model(), permuted(case, check))


@parametrize("name", CHOSEN)
def test_tensors_may_start_anywhere(name):
  case = chosen[name]
  check_addresses(case, lambda found: check(case, found), [([1], [0]), ([0], [1]), ([3], [2])])


@parametrize("transposed", [False, True])
def test_shapes_may_change_from_run_to_run(transposed):
  some = GEOMETRIES["strided with a rest"]
  text = typed(RELU, "float")
  first = Case("first", some, text, transposed=transposed)
  session = make(first.model([("n", "c", "h", "w"), ("m", "k", 3, 2), (None,) * 4, (None,) * 4]))
  for batch, size in ((2, (8, 11)), (1, (5, 4)), (0, (8, 11)), (3, (12, 30)), (2, (8, 11))):
    geometry = Geometry(batch, 4, size, 2, (3, 2), some.strides, pads=some.pads, rest=some.rest)
    case = Case(f"{batch} of {size}", geometry, text, transposed=transposed)
    check(case, run(session, case))


SOME, UNEVEN, FEW = GEOMETRIES["many channels"], GEOMETRIES["asymmetric pads"], Geometry(9, 1, (28, 28), 16, 3)
OFFERED = (
  Case("fp16", SOME, typed(RELU, "float16"), layout="NHWC"),
  Case("dW in float", SOME, typed(RELU, "float16"), layout="NHWC", attributes={"weight_dtype": "float"}),
  Case("dW in float, bf16", SOME, typed(BARE, "bfloat16"), "dW", "X", attributes={"weight_dtype": "float"}),
  *(
    Case(
      f"dW in float, {channels} to {filters} of {size}, {dtype}, {layout}",
      Geometry(2, channels, size, filters, (3,) * len(size), pads=(1, 1) * len(size)),
      typed(BARE, dtype),
      "dW",
      "X",
      layout=layout,
      attributes={"weight_dtype": "float"},
    )
    for channels, filters, size, dtype, layout in (
      (16, 4, (3,), "bfloat16", "NHWC"),
      (4, 4, (4,), "float16", "NHWC"),
      (12, 20, (9,), "float16", "NHWC"),
      (12, 20, (9, 5), "bfloat16", "NHWC"),
      (4, 4, (6, 6), "float16", "NHWC"),
      (36, 20, (8, 8), "float16", "NHWC"),
      (64, 64, (16,), "float16", "NHWC"),
      (5, 7, (3, 4), "bfloat16", "NHWC"),
      (12, 20, (9, 5), "float16", "NCHW"),
      (4, 4, (3, 4, 3), "float16", "NHWC"),
      (16, 8, (3, 4, 3), "bfloat16", "NHWC"),
    )
  ),
  Case("transposed", SOME, typed(BARE, "float16"), "dX dW", transposed=True, layout="NHWC"),
  Case("uneven", UNEVEN, typed(RELU, "float16"), attributes={"weight_dtype": "float"}),
  Case("groups", GEOMETRIES["groups"], typed(BARE, "bfloat16"), "dX dW", layout="NHWC"),
  Case("few channels", FEW, typed(RELU, "float")),
  Case("1-D", GEOMETRIES["1-D"], typed(BARE, "double"), "dX dW"),
)


@parametrize("case", OFFERED)
def test_every_algorithm(capfd, case):
  """What --tune is offered computes the same, but for what plans round on the way, and is what it says."""
  found = variants(case)
  names = {"dX": "data_algorithm", "dW": "weight_algorithm"}
  assert found
  assert {name for each in found for name in each} <= {names.get(each, "") for each in case.gradients.split()}
  assert len({str(each) for each in found}) == len(found)
  if case.name == "few channels":
    assert {"data_algorithm": "own"} in found
    assert {"weight_algorithm": "own"} in found
  for each in found:
    tuned = replace(case, attributes={**case.attributes, **each})
    check(case, run(make(tuned.model()), case), unit=UNIT_ROUNDOFF[case.gradient.dtype])
  assert "(ConvGrad)" not in capfd.readouterr().err, "a warning of an algorithm that is not used"


@parametrize("dtype", ["float16", "bfloat16", "float"])
@parametrize("layout", ["NCHW", "NHWC"])
@parametrize("transposed", [False, True])
@parametrize("groups", ["one", "two", "channels"])
@parametrize("number", range(len(ONE_SIDED)))
def test_pads_of_one_side(number, groups, transposed, layout, dtype):
  """By every algorithm: cuDNN 9.19 has an engine that pads both sides alike."""
  (batch, channels, *size), filters, kernel, strides, pads = ONE_SIDED[number]
  group = {"one": 1, "two": 2, "channels": channels}[groups]
  geometry = Geometry(batch, channels, tuple(size), filters, kernel, tuple(strides), (), tuple(pads), group)
  case = Case("one-sided", geometry, typed(BARE, dtype), "dX dW", transposed=transposed, layout=layout)

  def attempt(attributes):
    check(case, run(make(replace(case, attributes=attributes).model()), case), unit=UNIT_ROUNDOFF[dtype])

  check_all(({}, *variants(case)), attempt)


@parametrize("dtype", ["float16", "bfloat16", "float"])
@parametrize("layout", ["NCHW", "NHWC"])
@parametrize("transposed", [False, True])
@parametrize("number", range(len(GROUPED)))
def test_groups_end_with_the_tensor(number, transposed, layout, dtype):
  """By every algorithm: cuDNN 9.19 has engines of convolutions that multiply by 0 what lies behind."""
  (batch, channels, *size), filters, kernel, group = GROUPED[number]
  pads = tuple(each // 2 if size[0] == 1 else 0 for each in kernel) * 2
  geometry = Geometry(batch, channels, tuple(size), filters, kernel, pads=pads, group=group)
  case = Case("", geometry, typed(BARE, dtype), "dX dW", transposed=transposed, layout=layout)
  feeds = {name: before_nan(array) for name, array in case.feeds().items()}

  def attempt(attributes):
    session = make(replace(case, attributes=attributes).model())
    check(case, host(ortplugin.run(session, feeds)), unit=UNIT_ROUNDOFF[dtype])

  check_all(({}, *variants(case)), attempt)


@parametrize("layout", ["NCHW", "NHWC"])
@parametrize("channels, filters, strides", [(3, 16, 2), (32, 16, 1), (48, 96, 2)])
def test_factors_are_rounded_to_the_nearest(channels, filters, strides, layout):
  """dX by every algorithm, in TF32, as FusedConv's. Of dW, cuDNN 9.19's fastest engine (68) cuts factors off: no other
  gradient is computed from it, so that its 7e-4 do not add up over layers."""
  geometry = Geometry(4, channels, (28, 28), filters, 3, strides=strides, pads=1)
  case = Case("tf32", geometry, typed(BARE, "float"), "dX", "W", layout=layout, attributes={"allow_tf32": 1})
  (wanted,) = OPERATOR.reference(case.node(), case.inputs(), rounded=False)

  def attempt(attributes):
    (found,) = run(make(replace(case, attributes={**case.attributes, **attributes}).model()), case)
    check_rounding(found, wanted)

  check_all(({}, *variants(case)), attempt)


def test_the_plans_of_converted_operands_are_offered():
  """dW in float of float16 is made from float16, or from what it is converted to: by name both are within reach."""
  in_float = OFFERED[1]
  types = [TensorType(array.dtype, array.shape) for array in in_float.inputs()]

  def plans(case):
    converted = [TensorType(np.dtype(np.float32), each.shape) for each in types]
    given = types if case is in_float else converted
    found = OPERATOR.device_variants(case.node(), given, [False] * len(given))
    return {each["weight_algorithm"] for each in found if "weight_algorithm" in each} - {"own"}

  float32 = replace(in_float, text=typed(RELU, "float"), attributes={"allow_tf32": 1})
  assert plans(float32)
  assert plans(float32) <= plans(in_float)


def test_many_threads_run_one_session():
  some = GEOMETRIES["3x3"]
  text = typed(BARE, "float")

  def trial_of(number):
    geometry = Geometry(2 + number % 3, some.channels, some.size, some.filters, some.kernel, pads=some.pads)
    return trial(Case(f"thread {number}", geometry, text), check)

  check_threads(Case("first", some, text).model([None] * 3), trial_of, threads=6)


def captured():
  cases = [
    Case(f"captured {batch}", Geometry(batch, 3, (7, 9), 4, 3, pads=1), typed(RELU, "float")) for batch in (2, 5)
  ]
  return cases[0].model([None] * 4), trial(cases[0], check), trial(cases[1], check)


def test_new_shapes_under_capture_are_refused():
  check_capture(captured, "gradient")


def test_a_wrong_run_leaves_the_session_whole():
  case = Case("dynamic", GEOMETRIES["3x3"], typed(BARE, "float"))
  session = make(case.model([None] * 3))
  feeds = case.feeds()
  check(case, run(session, case))
  with pytest.raises(Exception, match="X and S have different batches"):
    ortplugin.run(session, {**feeds, "X": np.zeros((5, 3, 7, 9), np.float32)})
  check(case, run(session, case))
