from conv_transpose_cases import BIAS_RELU, CASES, GEOMETRIES, OPERATOR, RESIDUAL, Case, by_name, check
from node_cases import typed
from onnx_models import computed, parametrize, raises, zeros

import ortplugin
from ort.host import assert_equals_reference, make, on_any_threads, run
from ort.refusals import with_attributes


@parametrize("case", CASES)
def test_equals_the_reference(case):
  assert_equals_reference(case, check)


@parametrize("case", [c for c in CASES if c.name.endswith(", float") and 0 not in c.x])
def test_the_decomposition_runs_without_the_library(case):
  check(case, computed(case.model(nodes=OPERATOR.decompose(case.node(), 18)), case.feeds()), unit=2.0**-22)


@parametrize("dtype", ["float", "double"])
def test_the_number_of_threads_changes_no_bit(dtype):
  case = Case(f"large, {dtype}", typed(RESIDUAL, dtype), (3, 33, 19, 21), (33, 20, 4, 3), ((20, 1, 1), None), "NHWC",
              {"strides": [2, 2], "pads": [1, 1, 1, 1]})  # fmt: skip
  check(case, on_any_threads(case))


@parametrize("name", ["strided", "output_shape", "SAME_UPPER", "asymmetric pads"])
def test_shapes_may_change_from_run_to_run(name):
  x, w, attributes = GEOMETRIES[name]
  first = Case("first", typed(BIAS_RELU, "float"), x, w, ((w[1], 1, 1),), "NCHW", attributes)
  wanted = attributes.get("output_shape", [])
  for declared in ([("n", x[1], "h", "w"), w, (1, w[1], 1, 1)], [None] * 3):
    session = make(first.model(declared))
    for shape in (x, (1, x[1], 7, 6), (0, *x[1:]), (4, *x[1:])):
      if wanted and shape[2:] != x[2:]:
        continue
      case = Case(f"{name} {shape}", first.text, shape, w, first.operands, "NCHW", attributes)
      check(case, run(session, case))


# ---- wrong nodes

WRONG = {
  "spatial axis 0 of the result would have the size": {"pads": [7, 0, 7, 0]},
  "strides has 1 numbers": {"strides": [2]},
  "layout is 'NCWH'": {"layout": "NCWH"},
  "output_layout is 'NHWC'; with the layout NCHW it must be NCHW": {"output_layout": "NHWC"},
  "auto_pad is 'SAME'": {"auto_pad": "SAME"},
  "groups do not divide": {"group": 2},
  "output_padding is [-1, 0]": {"output_padding": [-1, 0]},
  "expected '('": {"program": "nonsense"},
}


@parametrize("words", WRONG)
def test_a_wrong_node_is_refused(words):
  model = with_attributes(by_name["strided, NCHW, float"].model(), WRONG[words])
  with raises(Exception, "FusedConvTranspose") as caught:
    make(model)
  assert "node 'up'" in str(caught.value)
  assert words in str(caught.value)


def test_wrong_shapes_of_a_run_leave_the_session_whole():
  case = by_name["strided, NCHW, float"]
  session = make(case.model([None] * len(case.shapes)))
  with raises(Exception, "X has 4 channels, W with 1 groups is for 3"):
    ortplugin.run(session, {**case.feeds(), "X": zeros(2, 4, 5, 4)})
  check(case, run(session, case))
