from node_cases import OPSET, typed
from onnx_models import parametrize
from sum_to_cases import BOTH, CASES, CHANGING, LARGE_CASES, LERP_GRAD, Case, by_name, check, expect, model_of, summed
from threads import in_threads

from ort.host import assert_refused, assert_runs_repeat, make, on_any_threads, plain, run
from ort.refusals import wrong_programs, wrong_texts
from ortplugin.ops.sum_to import OPERATOR


@parametrize("case", [*CASES, *LARGE_CASES])
def test_equals_the_reference(case):
  session = make(case.model())
  found = run(session, case)
  check(case, found)
  # A scalar is shown to shape inference as a tensor of unknown shape: nothing follows from it.
  wanted = [[] if () in case.shapes else list(each.shape) for each in found]
  assert [output.shape for output in session.get_outputs()] == wanted


# ONNX Runtime has no pointwise operators of bfloat16, and its sums of integers do not wrap.
DECOMPOSED = [case for case in CASES if "bfloat16" not in case.program.dtypes.values() and case.values != "whole range"]


@parametrize("case", DECOMPOSED)
def test_the_decomposition_runs_without_the_library(case):
  model = model_of(case.text, case.shapes, OPERATOR.decompose(case.node(), OPSET))
  dtypes = set(case.program.dtypes.values())
  unit = 2.0**-11 if "float16" in dtypes else 2.0**-21 if "float" in dtypes else 2.0**-50
  check(case, run(plain(model), case), expect(case, unit=unit))


@parametrize("case", LARGE_CASES)
def test_the_number_of_threads_changes_no_bit(case):
  on_any_threads(case)


# ---- shapes


@parametrize(
  "shapes, wanted",
  [
    (((4, 3, 6, 8), (3, 1, 8)), ([4, 1, 1, 1], [3, 6, 8])),
    ((("n", 3, "h", 8), (3, 1, 8)), (["n", 1, 1, 1], [3, "h", 8])),
    ((("n", 3, "h", 8), ("c", 1, "w")), (["n", 1, 1, 1], [3, "h", 8])),
  ],
)
def test_shapes_are_inferred(shapes, wanted):
  assert [output.shape for output in make(model_of(typed(BOTH, "float"), shapes)).get_outputs()] == list(wanted)


def test_shapes_may_change_from_run_to_run():
  text = typed(BOTH, "float")
  for declared in ([("a", "b", "c", "d"), ("e", "f", "g")], [None, None]):
    session = make(model_of(text, declared))
    for shapes in (*CHANGING, ((7, 3, 33, 129), (1, 33, 1))):
      case = Case(f"changing {shapes}", text, shapes)
      check(case, run(session, case))


# ---- wrong nodes


wrong = wrong_programs("FusedSumTo")
SUM = typed(summed("1"), "float")
GRADIENT = typed(LERP_GRAD.replace("AXES", "0"), "float")
WRONG = {
  **wrong_texts(wrong, SUM, GRADIENT),
  "no sum": wrong("holds no SumTo", "(float x) => (float y) { y = Relu(x) }"),
  "a norm": wrong("LayerNormalization", "(float x) => (float y) { y = LayerNormalization(x) }"),
  "a sum that is computed with": wrong(
    "'y' computes with the sum 's'", '(float x) => (float y) { s = SumTo<axes="0">(x) y = Mul(s, 2) }'
  ),
  "a sum of a sum": wrong(
    "'y' computes with the sum 's'", '(float x) => (float y) { s = SumTo<axes="0">(x) y = SumTo<axes="1">(s) }'
  ),
  "a Cast of a Cast": wrong(
    "'y' computes with the sum 'c'",
    '(float x) => (float y) { s = SumTo<axes="0">(x) c = Cast<to=double>(s) y = Cast<to=float>(c) }',
  ),
  "an axis beyond the rank": wrong("'y' sums over axis 2", SUM.replace('"1"', '"2"')),
  "an axis beyond the rank at the run": wrong("'y' sums over axis 1", SUM, (None,), fed=((5,),)),
  "operands that do not broadcast": wrong("do not broadcast", GRADIENT, ((2, 3), (4,)), outputs=("y", "z")),
  "operands that do not broadcast at the run": wrong(
    "do not broadcast", GRADIENT, (("a", "b"), ("c",)), outputs=("y", "z"), fed=((2, 3), (4,))
  ),
}


@parametrize("name", WRONG)
def test_a_wrong_node_is_refused(name):
  assert_refused(WRONG[name], "FusedSumTo")


# ---- threads


def test_many_threads_run_one_session():
  text = typed(BOTH, "float")
  session = make(model_of(text, [("n", "c", "h", "w"), ("c", 1, "w")]))

  def work(number):
    shape = (3 + number, 3, (5, 33, 120, 61)[number % 4], 64 + number)
    assert_runs_repeat(session, Case(f"thread {number}", text, (shape, (3, 1, shape[3]))), check)

  in_threads(8, work)


def test_runs_are_bit_identical():
  case = by_name["large: lerp, gradients over other axes, float"]
  assert_runs_repeat(make(case.model()), case, check, 20)
