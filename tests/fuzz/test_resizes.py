import numpy as np
from onnx_models import parametrize, parsed

from fuzz.definite import definite
from fuzz.evaluate import make_session, run

NODES = {
  "scales": ('y = Resize <mode="linear">(x, "", s)', "float[3] s = {1,1,2.5}"),
  "sizes": ('y = Resize <mode="linear">(x, "", "", s)', "int64[3] s = {1,2,7}"),
  "an axis": ('y = Resize <mode="linear", axes=[2]>(x, "", s)', "float[1] s = {2.5}"),
  "an axis from the end": ('y = Resize <mode="linear", axes=[-1]>(x, "", "", s)', "int64[1] s = {7}"),
  "a constant": ('c = Constant <value_floats=[1.0,1.0,2.5]>() y = Resize <mode="linear">(x, "", c)', ""),
}
OLD = {
  "Upsample": ('y = Upsample <mode="linear">(x, s)', "float[3] s = {1,1,2.5}"),
  "an attribute": ('y = Upsample <mode="linear", scales=[1.0,1.0,2.5]>(x)', ""),
}


def model_of(nodes, constants, opset=18):
  return parsed(f"model (float[1,2,3] x) => (float[a,b,c] y) <{constants}> {{ {nodes} }}", opset)


def result(model, x):
  return np.asarray(run(make_session(model), {"x": x})["y"])


@parametrize("name, opset", [*((name, 18) for name in NODES), ("Upsample", 9), ("an attribute", 8)])
def test_only_its_own_row_takes_part(name, opset):
  model = model_of(*{**NODES, **OLD}[name], opset)
  made = definite(model)
  x = np.float32([[[1, -2, 3], [4, 5, -6]]])
  np.testing.assert_allclose(result(made, x), result(model, x), rtol=5e-7)
  x[0, 1] = np.nan
  assert np.isnan(result(model, x)[0, 0]).any()  # what the form is for
  assert not np.isnan(result(made, x)[0, 0]).any()
  assert np.isnan(result(made, x)[0, 1]).all()


def test_what_stays():
  assert definite(model_of('y = Resize <mode="nearest">(x, "", s)', "float[3] s = {1,1,2}")) is None
  assert definite(model_of('y = Resize <mode="linear", axes=[1,2]>(x, "", s)', "float[2] s = {1,2}")) is None
  assert definite(model_of('y = Resize <mode="linear">(x, "", s)', "float[4] s = {1,1,2,2}")) is None
