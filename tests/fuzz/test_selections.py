import numpy as np
from onnx_models import parametrize, parsed

from fuzz.definite import definite
from fuzz.evaluate import make_session, run


@parametrize("dtype", ["float", "double"])
@parametrize("opset", [9, 11, 17])
def test_negative_zeros(dtype, opset):
  model = parsed(
    f"model (bool[n,1] c, {dtype}[n, m] a, {dtype}[m] b) => ({dtype}[n, m] y) {{ y = Where(c, a, b) }}", opset, 7
  )
  made = definite(model)
  values = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1.5, -2.5, 5e-324, -1e-40], "d" if dtype == "double" else "f")
  feeds = {"c": np.array([[True], [False]]), "a": np.stack([values, values]), "b": values[::-1].copy()}
  found = run(make_session(made), feeds)["y"]
  wanted = np.where(feeds["c"], feeds["a"], feeds["b"])
  assert found.dtype == wanted.dtype
  np.testing.assert_array_equal(found, wanted)
  np.testing.assert_array_equal(np.signbit(found)[~np.isnan(found)], np.signbit(wanted)[~np.isnan(wanted)])


@parametrize("dtype", ["float16", "float", "double"])
def test_the_sign_of_nan(dtype):
  made = definite(parsed(f"model ({dtype}[n] x) => (y) {{ y = Sign(x) }}"))
  x = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1.5, -2.5, 6e-8], {"float": "f"}.get(dtype, dtype))
  np.testing.assert_array_equal(run(make_session(made), {"x": x})["y"], np.sign(x))
