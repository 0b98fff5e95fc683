import numpy as np
from onnx_models import parametrize, parsed

from fuzz.definite import definite
from fuzz.evaluate import make_session, run


@parametrize("dtype", ["float16", "float", "double"])
def test_the_sign_of_nan(dtype):
  made = definite(parsed(f"model ({dtype}[n] x) => (y) {{ y = Sign(x) }}"))
  x = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1.5, -2.5, 6e-8], {"float": "f"}.get(dtype, dtype))
  np.testing.assert_array_equal(run(make_session(made), {"x": x})["y"], np.sign(x))
