"""FusedMatMul and FusedMatMulNorm in ONNX Runtime on the CPU: reference and decomposition; shapes; threads; what is
refused."""

from dataclasses import replace
from functools import partial

import numpy as np
import onnx
import pytest
from matmul_cases import (
  BIAS_RELU,
  LAYER_NORM,
  NORMS,
  PRODUCTS,
  RESIDUAL_RELU,
  by_name,
  check,
  expect,
  made,
  normed,
)
from node_cases import OPSET
from onnx import TensorProto, helper
from onnx_models import parametrize
from threads import in_threads

from ort.host import (
  assert_equals_reference,
  assert_inferred,
  assert_refused,
  assert_runs_repeat,
  make,
  on_any_threads,
  plain,
  run,
)
from ort.refusals import Wrong as WrongNode, wrong_epilogues
from ortplugin.ops.matmul import OPERATOR, norm as matmul_norm

HALF = TensorProto.FLOAT16


@parametrize("case", PRODUCTS)
def test_equals_the_reference(case):
  assert_equals_reference(case, check, inferred=not any(0 in shape for shape in case.shapes))


@parametrize("case", [each for each in PRODUCTS if each.program.parameters[0].dtype == "float"])
def test_the_decomposition_runs_without_the_library(case):
  session = plain(case.model(nodes=OPERATOR.decompose(case.node(), OPSET)))
  expected = expect(case, unit=2.0**-22)
  # ONNX Runtime's Sigmoid and Erf have errors of their own, relative to 1.
  absolute = 2.0**-16 if any(op in case.text for op in ("Sigmoid", "Gelu")) else 0.0
  check(case, run(session, case), replace(expected, slack=[each + absolute for each in expected.slack]))


@parametrize("dtype", ["float", "double", "float16"])
def test_the_number_of_threads_changes_no_bit(dtype):
  case = made(f"threads, {dtype}", RESIDUAL_RELU, dtype, (3, 133, 77), 95)
  check(case, on_any_threads(case))


@parametrize("case", NORMS)
def test_a_norm_equals_the_reference(case):
  assert_equals_reference(case, type(case).check, inferred=not any(0 in shape for shape in case.shapes))


@parametrize("case", [each for each in NORMS if each.program.parameters[0].dtype == "float"])
def test_the_decomposition_of_a_norm_runs_without_the_library(case):
  case.check(run(plain(case.model(nodes=matmul_norm.decompose(case.node(), OPSET))), case), 2.0**-22)


@parametrize("wrong", [
  lambda y: y * 1.01, lambda y: y + 0.01, lambda y: np.roll(y, 1, -1), lambda y: np.where(y == y.max(), np.nan, y),
])  # fmt: skip
def test_the_check_of_a_norm_finds_mistakes(wrong):
  for dtype in ("float16", "float"):
    case = by_name[f"197 rows, layer norm, {dtype}"]
    (found,) = run(make(case.model()), case)
    case.check([found])
    with pytest.raises(AssertionError):
      case.check([wrong(found).astype(found.dtype)])


@parametrize("keeps", [False, True])
def test_shapes_of_a_norm_are_inferred(keeps):
  case = normed("shapes", LAYER_NORM, "float16", (2, 37, 32), 64, keeps=keeps)
  shapes = [("n", "s", 32), (32, 64), (64,), ("n", "s", 64), (64,), (64,)]
  for output in make(case.model(shapes)).get_outputs():
    assert_inferred(output, ["n", "s", 64], "float16")
  session = make(case.model([("n", "s", "k"), ("k", "m"), ("m",), None, ("m",), ("m",)]))
  for rows in (37, 1, 0, 5):
    each = normed(f"shapes {rows}", LAYER_NORM, "float16", (2, rows, 32), 64, keeps=keeps)
    each.check(run(session, each))


# ---- shapes


@parametrize(
  "shapes, trans_b, wanted",
  [
    ([("n", 37, 32), (32, 24), (24,)], 0, ["n", 37, 24]),
    ([("n", "s", 32), (24, 32), (24,)], 1, ["n", "s", 24]),
    ([("n", "k"), ("m", "k"), (1,)], 1, ["n", "m"]),
    ([("n", "k"), ("k", "m"), (1,)], 0, ["n", "m"]),
    ([(32,), (32, 24), (24,)], 0, [24]),
    ([("n", 0, 32), (32, 24), (24,)], 0, ["n", None, 24]),
    ([("n", 5, 32), None, (24,)], 0, ["n", 5, None]),
  ],
)
def test_shapes_are_inferred(shapes, trans_b, wanted):
  for dtype in ("float16", "bfloat16", "float", "double"):
    case = replace(made("shapes", BIAS_RELU, dtype, (2, 37, 32), 24), trans_b=bool(trans_b))
    (output,) = make(case.model(shapes)).get_outputs()
    assert_inferred(output, wanted, dtype)


def test_shapes_may_change_from_run_to_run():
  case = made("changing", RESIDUAL_RELU, "float", (2, 5, 12), 9)
  for declared in (
    [("n", "s", 12), (12, 9), (9,), ("n", "s", 9)],
    [("n", "s", "k"), ("k", "m"), ("m",), ("n", "s", "m")],
    [None, None, None, None],
  ):
    session = make(case.model(declared))
    for batch, rows in ((2, 5), (1, 1), (0, 5), (3, 0), (4, 70), (2, 5)):
      whole = (batch, rows, 9)
      for residual in (whole, (rows, 9), (1, 1, 9)) if batch * rows else (whole,):
        if declared[-1] is not None and len(residual) != 3:
          continue
        shapes = ((batch, rows, 12), (12, 9), (9,), residual)
        each = replace(case, name=f"changing {shapes}", shapes=shapes)
        check(each, run(session, each))


def test_weights_may_change_from_run_to_run():
  """Those of an input are never taken for the last run's; nor those of an initializer that a caller may override."""
  case = by_name["aligned, float16, trans_b"]
  session = make(case.model())
  for number in range(3):
    each = replace(case, name=f"weights {number}")
    check(each, run(session, each))
  case = by_name["constant weights: aligned, float16, trans_b"]
  model = onnx.load_model_from_string(case.model())
  a, b, *operands = case.inputs()
  model.graph.input.append(helper.make_tensor_value_info("B", HALF, b.shape))
  session = make(model.SerializeToString())
  check(case, session.run(None, case.feeds()))
  other = (b.astype(np.float64) * 0.5).astype(np.float16)
  for weights in (other, b, other):
    check(case, session.run(None, {**case.feeds(), "B": weights}), expect(case, [a, weights, *operands]))


# ---- wrong nodes


Wrong = partial(WrongNode, "FusedMatMul", shapes=((2, 5, 6), (6, 8), (8,)))
UNKNOWN = (("n", "s", "k"), ("l", "m"), ("b",))
WRONG = {
  **wrong_epilogues(Wrong),
  "trans_b that is no flag": Wrong("trans_b is 2", {"trans_b": 2}),
  "tf32 that is no flag": Wrong("allow_tf32 is 2", {"allow_tf32": 2}),
  "a gate that is no flag": Wrong("gated is 2", {"gated": 2}),
  "a gate of another dtype": Wrong(
    "must be float", {"gated": 1, "program": "(float c, double v) => (float c, double v) {}"}
  ),
  "a gate of another shape": Wrong("it must be B's, [6, 8]", {"gated": 1}, shapes=((2, 5, 6), (6, 8), (6, 7))),
  "a gate of another shape at the run": Wrong(
    "it must be B's, [6, 8]", {"gated": 1}, shapes=(UNKNOWN[0], UNKNOWN[1], ("p", "q")), fed=((2, 5, 6), (6, 8), (8, 8))
  ),
  "lengths that disagree": Wrong("A's last length must be K, 6", shapes=((2, 5, 7), (6, 8), (8,))),
  "B that is transposed": Wrong("which is [N, K]", {"trans_b": 1}),
  "B of three dimensions": Wrong("must have two dimensions", shapes=((2, 5, 6), (2, 6, 8), (8,))),
  "a bias of another length": Wrong("does not broadcast", shapes=((2, 5, 6), (6, 8), (7,))),
  "a scalar": Wrong("A is a scalar", shapes=(None, (6, 8), (8,)), fed=((), (6, 8), (8,))),
  "lengths that disagree at the run": Wrong("must be [.., K]", shapes=UNKNOWN, fed=((2, 5, 7), (6, 8), (8,))),
  "a bias that does not broadcast at the run": Wrong("input 2 ('b')", shapes=UNKNOWN, fed=((2, 5, 6), (6, 8), (7,))),
  "B of three dimensions at the run": Wrong(
    "must be [.., K]", shapes=(UNKNOWN[0], None, UNKNOWN[2]), fed=((2, 5, 6), (1, 6, 8), (8,))
  ),
}


NORM = "(float x, float g) => (float y) { n = RMSNormalization(x) y = Mul(n, g) }"
WrongNorm = partial(WrongNode, "FusedMatMulNorm", shapes=((2, 5, 6), (6, 8), (8,)))
GIVEN = {"program": "(float c) => (float c) {}", "norm": NORM}
WRONG_NORMS = {
  "no norm": WrongNorm("no LayerNormalization", {**GIVEN, "norm": "(float x, float g) => (float y) { y = Mul(x, g) }"}),
  "another dtype": WrongNorm("is double", {**GIVEN, "norm": NORM.replace("float", "double")}),
  "too few inputs": WrongNorm(
    "takes 4 inputs",
    {
      **GIVEN,
      "norm": ("(float x, float g, float h) => (float y) { n = RMSNormalization(x) m = Mul(n, g) y = Add(m, h) }"),
    },
  ),
  "a gate": WrongNorm(
    "gated is 1", {**GIVEN, "program": "(float c, float v) => (float y) { y = Mul(c, v) }", "gated": 1}
  ),
  "a product kept behind its norm": WrongNorm("keeps_product is 1", {**GIVEN, "norm_first": 1, "keeps_product": 1}),
  "a norm of another dtype": WrongNorm(
    "in float16",
    {**GIVEN, "norm_first": 1, "norm": "(float x) => (float16 y) { n = RMSNormalization(x) y = Cast<to=float16>(n) }"},
    shapes=((2, 5, 6), (6, 8)),
  ),
  "a flag that is none": WrongNorm("keeps_product is 2", {**GIVEN, "keeps_product": 2}),
  "another algorithm": WrongNorm("'algorithm'", {**GIVEN, "algorithm": "own"}),
  "lengths that disagree": WrongNorm("A's last length must be K, 6", GIVEN, shapes=((2, 5, 7), (6, 8), (8,))),
  "gamma of another length": WrongNorm("('g')", GIVEN, shapes=((2, 5, 6), (6, 8), (7,))),
}


@parametrize("name", WRONG_NORMS)
def test_a_wrong_norm_is_refused(name):
  assert_refused(WRONG_NORMS[name], "FusedMatMulNorm")


@parametrize("name", WRONG)
def test_a_wrong_node_is_refused(name):
  assert_refused(WRONG[name], "FusedMatMul")


# ---- threads, sessions


def test_many_threads_run_one_session():
  first = made("threads", BIAS_RELU, "float", (2, 5, 33), 17)
  session = make(first.model([("n", "s", 33), (33, 17), (17,)]))

  def work(number):
    case = replace(first, name=f"thread {number}", shapes=((1 + number, 20 + number, 33), *first.shapes[1:]))
    assert_runs_repeat(session, case, check)

  in_threads(8, work)
