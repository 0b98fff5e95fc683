import numpy as np
from onnx_models import parametrize
from operator_places import dtypes_of, example
from pointwise_cases import Case, check, expect

import ortplugin
from ort.host import make, run
from ortplugin.ops import pointwise_reference
from ortplugin.program import FLOATING, NUMPY_DTYPES, OPERATORS

PLACE = "ortplugin/runtime/program/evaluator.cc"


@parametrize("name", [name for name, spec in OPERATORS.items() if not spec.core])
def test_the_evaluator_has_it(name):
  for dtype in dtypes_of(OPERATORS[name]):
    program = example(OPERATORS[name], dtype)
    case = Case(f"{name} of {dtype}", str(program), ((33,),) * len(program.parameters), "special")
    try:
      check(case, run(make(case.model()), case))
    except Exception as error:
      raise AssertionError(f"{name} lacks its evaluation of {dtype} in {PLACE}, or it is wrong") from error


@parametrize("dtype", FLOATING)
def test_mish_of_awkward_values(dtype):
  """x tanh(log(1 + exp(x))): where exp overflows or underflows, at the ends of the dtype, of NaN and infinities."""
  size = [0.0, 1e-320, 1e-45, 6e-8, 1e-4, 0.5, 1, 5, 11, 17.5, 19.99, 20, 20.01, 37, 88, 89, 104, 709, 710, 745, 746]
  size += [65504, 3e38, 1.7e308, np.inf]
  with np.errstate(over="ignore"):
    x = np.array([*size, *(-each for each in size), np.nan]).astype(NUMPY_DTYPES[dtype])
  case = Case(f"Mish, {dtype}", f"({dtype} x) => ({dtype} y) {{ y = Mish(x) }}", (x.shape,))

  wide = x.astype(np.longdouble)
  with np.errstate(all="ignore"):
    softplus = np.maximum(wide, 0) + np.log1p(np.exp(-np.abs(wide)))
    formula = (wide * np.tanh(softplus)).astype(np.float64)
  reference = pointwise_reference.values(case.program, [x])["y"]
  # Four roundings; and tanh may be denormal, half its last bit off, which the product with x makes |x| 2^-1075.
  np.testing.assert_allclose(reference, formula, rtol=2.0**-50, atol=746 * 2.0**-1074)

  check(case, list(ortplugin.run(make(case.model()), {"x": x}).values()), expect(case, [x]))
