import pytest
from conv_grad_cases import BARE, CASES, GEOMETRIES, RELU, Case, Geometry, by_name, check
from node_cases import typed
from onnx_models import parametrize, zeros

import ortplugin
from ort.host import assert_equals_reference, make, on_any_threads, run
from ort.refusals import with_attributes

# Enough for every core, with parts of every loop left over.
LARGE_CASES = tuple(
  Case(
    f"large: {name}, {'transposed, ' if transposed else ''}{layout}, {dtype}",
    geometry,
    typed(RELU, dtype),
    transposed=transposed,
    layout=layout,
  )
  for name, geometry in {
    "3x3": Geometry(3, 33, (29, 31), 70, 3, pads=1),
    "one image": Geometry(1, 19, (57, 43), 21, (5, 3), strides=(2, 1), pads=(2, 1, 2, 1)),
    "1x1": Geometry(9, 130, (11, 13), 67, 1),
    "depthwise": Geometry(2, 70, (31, 29), 70, 3, strides=2, pads=1, group=70),
  }.items()
  for transposed in (False, True)
  for layout, dtype in (("NCHW", "float"), ("NHWC", "float"), ("NCHW", "double"), ("NHWC", "float16"))
)


@parametrize("case", [*CASES, *LARGE_CASES])
def test_equals_the_reference(case):
  assert_equals_reference(case, check)


@parametrize("case", LARGE_CASES)
def test_the_number_of_threads_changes_no_bit(case):
  on_any_threads(case)


def test_shapes_may_change_from_run_to_run():
  some = GEOMETRIES["strided with a rest"]
  for transposed in (False, True):
    first = Case("first", some, typed(RELU, "float"), transposed=transposed)
    for declared in (None, [("n", "c", "h", "w"), ("m", "k", 3, 2), (None,) * 4, (None,) * 4], [None] * 4):
      session = make(first.model(declared))
      for batch, size in ((2, (8, 11)), (1, (5, 4)), (0, (8, 11)), (3, (12, 30))):
        if declared is None and (batch, size) != (some.batch, some.size):
          continue
        geometry = Geometry(batch, 4, size, 2, (3, 2), some.strides, pads=some.pads, rest=some.rest)
        case = Case(f"{batch} of {size}", geometry, typed(RELU, "float"), transposed=transposed)
        check(case, run(session, case))


def test_shapes_are_inferred():
  session = make(by_name["3x3, NCHW, float"].model([("n", 3, "h", "w"), (4, 3, 3, 3), ("n", 4, "h", "w")]))
  assert [output.shape for output in session.get_outputs()] == [["n", 3, "h", "w"], [4, 3, 3, 3], [4]]


# ---- wrong nodes

WRONG = {
  "the attribute 'kernel_shape' must have 1 to 3 numbers": ({"kernel_shape": None}, None),
  "gradients='dB dW' must be some of dX, dW, dB, dZ": ({"gradients": "dB dW"}, None),
  "operands='Y' must be some of X, W": ({"operands": "Y"}, None),
  "dX needs W": ({"operands": "X"}, None),
  "layout='NCWH' must be NCHW or NHWC": ({"layout": "NCWH"}, None),
  "transposed=7 must be 0 to 1": ({"transposed": 7}, None),
  "group=0 must be 1 to": ({"group": 0}, None),
  "strides=[0, 1]: each must be 1 to": ({"strides": [0, 1]}, None),
  "pads=[1, 1] must have 4 numbers": ({"pads": [1, 1]}, None),
  "weight_dtype='bool' must be": ({"weight_dtype": "bool"}, None),
  "the program holds a SumTo": ({"program": '(float dz) => (float y) { y = SumTo<axes="0">(dz) }'}, None),
  "gradients and the program's results after the first are 2 outputs": ({"gradients": "dX dW"}, None),
  "along spatial axis 0 the sizes 6 and 7 do not belong together": ({}, [None, None, (2, 4, 6, 9)]),
  "the groups do not divide": ({"group": 3}, None),
}


@parametrize("words", WRONG)
def test_a_wrong_node_is_refused(words):
  changes, shapes = WRONG[words]
  case = by_name["3x3, NCHW, float"]
  given = None if shapes is None else [a if b is None else b for a, b in zip(case.shapes, shapes, strict=True)]
  with pytest.raises(Exception, match="ConvGrad") as caught:
    make(with_attributes(case.model(given), changes))
  assert "node 'gradient'" in str(caught.value)
  assert words in str(caught.value)


def test_wrong_shapes_of_a_run_leave_the_session_whole():
  case = Case("dynamic", GEOMETRIES["3x3"], typed(BARE, "float"))
  session = make(case.model([None] * 3))
  feeds = case.feeds()
  with pytest.raises(Exception, match="X and S have different batches"):
    ortplugin.run(session, {**feeds, "X": zeros(5, 3, 7, 9)})
  check(case, run(session, case))
