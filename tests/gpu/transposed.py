"""What our kernels owe for transposed convolutions, as checks of a case on a GPU."""

import numpy as np
from conv_transpose_cases import check

import ortplugin
from gpu.device import at_offset, cupy, host, make, run_bound
from ortplugin.ops.conv_transpose import OPERATOR

# Maxima and minima of ours are NaN where an operand is (docs/operators.md); an instruction that drops NaN is as short.
MAXIMA = "(T c) => (T r, T a, T i, T l) { r = Relu(c) a = Max(c, 0.5) i = Min(0.5, c) l = Clip(c, -1, 1) }"


def check_infinite_pixels(case):
  """Infinities and NaN in X reach exactly those results that depend on them. The case's weights are an input."""
  arrays = case.inputs()
  for place, value in ((7, np.inf), (arrays[0].size // 2, -np.inf), (arrays[0].size - 2, np.nan)):
    arrays[0].reshape(-1)[place] = value
  (found,) = host(ortplugin.run(make(case.model()), dict(zip(case.names, arrays, strict=True))))
  with np.errstate(invalid="ignore"):
    (wanted,) = OPERATOR.reference(case.node(), arrays)
  finite = np.isfinite(wanted)
  assert not finite.all()
  assert finite.any()
  np.testing.assert_array_equal(np.isfinite(found), finite)
  np.testing.assert_allclose(found[finite].astype(np.float64), wanted[finite].astype(np.float64), rtol=2e-2, atol=2e-2)


def check_transposed_maxima_of_nan(case):
  """With a NaN in X all results are NaN exactly where the reference's are. The case's weights are an input."""
  arrays = case.inputs()
  arrays[0].reshape(-1)[7] = np.nan
  found = host(ortplugin.run(make(case.model()), dict(zip(case.names, arrays, strict=True))))
  for got, want in zip(found, OPERATOR.reference(case.node(), arrays), strict=True):
    assert np.isnan(want).any()
    assert not np.isnan(want).all()
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))


def check_anywhere(case, *, split=False):
  """Tensors may begin at any element. The case's weights are an input; `split`: see conv_transpose_cases.check."""
  session, arrays = make(case.model()), case.inputs()
  wanted = OPERATOR.reference(case.node(), arrays)
  inputs = [at_offset(array, 1) for array in arrays]
  outputs = [at_offset(np.full_like(array, np.nan), 3) for array in wanted]
  run_bound(session, inputs, outputs)
  check(case, [cupy.asnumpy(array) for array in outputs], split=split)
