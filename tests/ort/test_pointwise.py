from dataclasses import replace

import numpy as np
from node_cases import OPSET, typed
from onnx.helper import make_node
from onnx_models import built, infos, parametrize
from pointwise_cases import (
  CASES,
  CHANGING,
  LARGE_CASES,
  LERP,
  SILU,
  SUM_RELU,
  Case,
  by_name,
  chained,
  check,
  check_chain,
  expect,
  model_of,
  node_of,
)
from threads import in_threads

from ort.host import (
  assert_inferred,
  assert_refused,
  assert_runs_repeat,
  assert_threads_change_nothing,
  make,
  run,
  run_decomposed,
)
from ort.refusals import wrong_programs, wrong_texts
from ortplugin.program import FLOATING, INTEGERS


@parametrize("case", [*CASES, *LARGE_CASES])
def test_equals_the_reference(case):
  check(case, run(make(case.model()), case))


def why_no_decomposition(case):
  """What ONNX Runtime's own operators lack for a case; '' if nothing."""
  dtypes = set(case.program.dtypes.values())
  if "bfloat16" in dtypes:
    return "ONNX Runtime has no pointwise operators of bfloat16"
  if dtypes & set(INTEGERS) and not case.name.startswith("integers beside"):
    return "ONNX Runtime lacks operators of some integers; tests/ort/test_pointwise_property.py has the others"
  if case.name.startswith(("functions", "channels of images, double")):
    return "ONNX Runtime lacks some functions of double, and approximates others coarsely"
  if case.name.startswith("NaN and infinities") and "double" in dtypes and "others" not in case.name:
    return "ONNX Runtime lacks some functions of double"
  if case.name.startswith("NaN and infinities") and "float16" in dtypes and "Sign(" in case.text:
    return "ONNX Runtime's Sign of float16 is a number where x is NaN"
  return ""


DECOMPOSED = [case for case in CASES if not why_no_decomposition(case)]


def test_most_cases_have_a_decomposition():
  assert len(DECOMPOSED) > 100


@parametrize("case", DECOMPOSED)
def test_the_decomposition_runs_without_the_library(case):
  found, unit = run_decomposed(case)
  if case.name.startswith(("no overflow between", "results of fewer inputs, float16")):
    return  # float16 rounds, or overflows, in every operator
  expected = expect(case, unit=4 * unit)
  # ONNX Runtime's Sigmoid has an error of its own, relative to 1.
  absolute = 4 * unit if "Sigmoid" in case.text else 0.0
  check(case, found, replace(expected, slack=[each + absolute for each in expected.slack]))


# ---- shapes, and in place


@parametrize(
  "shapes, wanted",
  [
    (((4, 7, 32), (32,)), [4, 7, 32]),
    (((4, 1, 32), (7, 1)), [4, 7, 32]),
    ((("batch", 32), ("batch", 32)), ["batch", 32]),
    ((("batch", 32), ("other", 32)), [None, 32]),
    ((("batch", 1), (7, 32)), [7, 32]),
    (((None, "width"), (7, "width")), [7, "width"]),
    (((0, 5), (1, 5)), [0, 5]),
  ],
)
def test_shapes_are_inferred(shapes, wanted):
  for dtype in FLOATING:
    (output,) = make(model_of(typed(SUM_RELU, dtype), shapes)).get_outputs()
    assert_inferred(output, wanted, dtype)


# ONNX Runtime shows shape inference a scalar as it shows a tensor of unknown shape: what it makes is not concluded.
@parametrize("shapes", [((), ()), ((), (3,))])
def test_of_a_scalar_no_shape_is_inferred(shapes):
  case = Case(f"scalar {shapes}", typed(SUM_RELU, "float"), shapes)
  session = make(case.model())
  assert session.get_outputs()[0].shape == []
  check(case, run(session, case))


def test_each_result_has_its_own_dtype():
  case = by_name["results of all floating dtypes, float"]
  found = {output.name: (output.type, output.shape) for output in make(case.model()).get_outputs()}
  dtypes = {"h": "float16", "b": "bfloat16", "f": "float", "d": "double", "t": "bool"}
  assert found == {name: (f"tensor({dtype})", [3, 7, 65]) for name, dtype in dtypes.items()}


def test_unknown_ranks_stay_unknown_until_the_run():
  session = make(model_of(typed(LERP, "float"), [None, None, None]))
  for shapes in (((2, 8), (8,), ()), ((3, 1, 8), (2, 8), (1,)), ((), (), ())):
    case = Case(f"unknown {shapes}", typed(LERP, "float"), shapes)
    check(case, run(session, case))


def test_shapes_may_change_from_run_to_run():
  session = make(model_of(typed(LERP, "float16"), [("a", "b", "c"), ("d", "e", "f"), ("g", "h")]))
  for shapes in (*CHANGING, ((4, 33, 1023), (1, 33, 1), (33, 1023))):
    case = Case(f"changing {shapes}", typed(LERP, "float16"), shapes)
    check(case, run(session, case))


@parametrize("dtype", ["float16", "float", "double"])
@parametrize("length", [5, 70001])
def test_a_chain_of_nodes_may_take_over_each_others_memory(dtype, length):
  session = make(chained(dtype, (2, length)))
  check_chain(lambda feeds: session.run(None, feeds), dtype, (2, length))


def test_an_input_that_is_read_again_is_kept():
  """What a later node or the caller needs must survive a node that could write over it."""
  silu = node_of(typed(SILU, "float"), "silu")
  silu.input[0] = "h"
  nodes = [make_node("Neg", ["x"], ["h"]), silu, make_node("Add", ["h", "y"], ["z"])]
  model = built(nodes, "float[1000] x", "float[1000] z", OPSET, 9, domains=["ortplugin"])
  model.graph.value_info.extend(infos(dict.fromkeys("hy", ("float", [1000]))))
  session = make(model)
  x = np.linspace(-5, 5, 1000, dtype=np.float32)
  kept = x.copy()
  (z,) = session.run(None, {"x": x})
  np.testing.assert_array_equal(x, kept)
  np.testing.assert_allclose(z, -x - x / (1 + np.exp(x)), rtol=1e-5, atol=1e-6)


# ---- wrong nodes


wrong = wrong_programs("FusedPointwise")
RELU = "(float x) => (float y) { y = Relu(x) }"
SUM = typed(SUM_RELU, "float")
UNKNOWN = ("n", "m")
WRONG = {
  **wrong_texts(wrong, RELU, SUM),
  "a text too long": wrong("70000 characters", "(" * 70000),
  "too many parameters": wrong("32", f"({', '.join(f'float p{i}' for i in range(33))}) => (float y) {{ }}"),
  "a norm": wrong("LayerNormalization", RELU.replace("Relu", "LayerNormalization")),
  "a sum": wrong("SumTo", RELU.replace("Relu", 'SumTo<axes="0">')),
  "operands that do not broadcast": wrong("do not broadcast", SUM, ((2, 3), (4,))),
  "operands that do not broadcast at the run": wrong("do not broadcast", SUM, (UNKNOWN, UNKNOWN), fed=((2, 3), (2, 4))),
}


@parametrize("name", WRONG)
def test_a_wrong_node_is_refused(name):
  assert_refused(WRONG[name], "FusedPointwise")


# ---- threads, sessions


def test_many_threads_run_one_session():
  text = typed(LERP, "float")
  session = make(model_of(text, [("n", "h"), ("n", "h"), ("h",)]))

  def work(number):
    shape = (5 + 40 * number, (33, 768, 1023, 5140)[number % 4])
    assert_runs_repeat(session, Case(f"thread {number}", text, (shape, shape, shape[1:])), check)

  in_threads(8, work)


@parametrize("threads", [1, 2, 5])
def test_threads_inside_a_run_change_nothing(threads):
  assert_threads_change_nothing(by_name["large: channels, float16"], threads)


@parametrize("kind", ["FusedPointwise", "FusedLayerNorm"])
def test_float16_between_nodes_that_have_none_on_the_cpu(kind):
  """ONNX Runtime computes MatMul in float there, and gives a node between two of them float instead of float16."""
  body = "y = RMSNormalization(x)" if "Norm" in kind else "s = Sigmoid(x) c = Cast<to=float16>(s) y = Mul(x, c)"
  text = f"(float16 x) => (float16 y) {{ {body} }}"
  nodes = [
    make_node("MatMul", ["a", "w"], ["x"]),
    make_node(kind, ["x"], ["y"], "between", domain="ortplugin", program=text),
    make_node("MatMul", ["y", "w"], ["z"]),
  ]
  inputs = "float16[n,8] a, float16[8,8] w"
  session = make(built(nodes, inputs, "float16[n,8] z", OPSET, 9, domains=["ortplugin"]).SerializeToString())
  rng = np.random.default_rng(0)
  a, w = (rng.standard_normal((8, 8)).astype(np.float16) for _ in range(2))
  (z,) = session.run(None, {"a": a, "w": w})
  x = a.astype(np.float64) @ w
  y = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) if "Norm" in kind else x / (1 + np.exp(-x))
  assert z.dtype == np.float16
  np.testing.assert_allclose(z.astype(np.float64), y @ w, rtol=2e-2, atol=5e-2)
