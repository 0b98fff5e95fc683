import numpy as np
from onnx_models import parametrize, parsed

from fuzz.definite import definite
from fuzz.evaluate import make_session, run
from fuzz.handmade import case_of, judged_as

POOL = "y = MaxPool <kernel_shape=[2], strides=[2], pads=[1,1]>(x)"
SCATTER = 'y = ScatterElements <axis=2, reduction="{}">(x, i, u)'
NODES = {
  "a pool": POOL,
  "slices": 'y = ScatterND <reduction="max">(x, j, v)',
  "a minimum": "c = {2} y = ReduceMin(x, c)",
  "a one": "y = Hardmax <axis=2>(x)",
}
# NumPy's maximum and minimum propagate NaN.
WANTED = {
  "a pool": lambda x: [x[0], np.maximum(x[1], x[2]), x[3]],
  "slices": lambda x: np.maximum(x, [3, -3, 3, -3]),
  "a minimum": lambda x: [np.min(x)],
  "a one": lambda x: np.full(4, np.nan),
}


def model_of(nodes, dtype="float", opset=18):
  return parsed(f"""model ({dtype}[1, 1, 4] x) => ({dtype}[1, 1, n] y)
            <int64[1,1,2] i = {{1, 2}}, {dtype}[1, 1, 2] u = {{2, -1}}, int64[1,1] j = {{0}},
             {dtype}[1, 1, 4] v = {{3, -3, 3, -3}}>
        {{ {nodes} }}""", opset, domains=["ortplugin"])  # fmt: skip


def result(model, x):
  return np.asarray(run(make_session(model), {"x": x.reshape(1, 1, 4)})["y"]).ravel()


@parametrize("name, dtype", [*((name, "float") for name in NODES), ("a pool", "double"), ("slices", "double")])
def test_nan_propagates(name, dtype):
  model = model_of(NODES[name], dtype)
  made = definite(model)
  for place in range(4):
    x = np.array([-0.0, 1.5, np.inf, -2.5], np.float32 if dtype == "float" else np.float64)
    assert np.array_equal(result(made, x).view(np.uint8), result(model, x).view(np.uint8))
    x[place] = np.nan
    assert np.array_equal(result(made, x), WANTED[name](x), equal_nan=True), place


def test_an_old_opset_and_what_stays():
  assert np.isnan(result(definite(model_of(POOL, opset=7)), np.float32([1, np.nan, 2, 3]))[1])
  assert definite(model_of(SCATTER.format("max"), "int64")) is None
  assert definite(model_of(SCATTER.format("add"))) is None
  assert definite(model_of("y = Abs(x)")) is None


def test_behind_an_upsample():
  """Of which onnx infers no dtype where the shape of what it takes is unknown."""
  model = parsed("""(float[2,8,6,4] x) => (float[?,?,?,?] y)
        <float[8,2,1,1] a = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}> {
            c = ConvTranspose <group=2>(x, a)
            d = Upsample <mode="nearest", scales=[1.0,1.0,1.0,1.0]>(c)
            y = MaxPool <kernel_shape=[3,3]>(d) }""", 8, 3)  # fmt: skip
  assert sum(node.op_type == "MaxPool" for node in definite(model).graph.node) == 2


def test_behind_an_operator_of_ours():
  """onnx does not know the dtype of what it makes."""
  ours = 'p = ortplugin.FusedPointwise <program="(float x) => (float y) { y = Neg(x) }"> (x) q = Abs(p) '
  made = definite(model_of(ours + POOL.replace("(x)", "(q)")))
  assert sum(node.op_type == "MaxPool" for node in made.graph.node) == 2


@parametrize("factor, what", [(1.0, "same"), (2.0, "finding")])
def test_only_nan_is_open(library, monkeypatch, factor, what):
  """A pool of ours beside a NaN agrees; with a wrong number beside it, it does not."""
  nodes = POOL.replace("y =", "p =") + f" f = float {{{factor}}} y = Mul(p, f)"
  fused = nodes.replace("MaxPool <", 'ortplugin.FusedPool <kind = "max", ')
  feeds = {"x": np.float32([1, np.nan, 2, 3]).reshape(1, 1, 4)}
  case = case_of(model_of(POOL.replace("y =", "p =") + " f = float {1.0} y = Mul(p, f)"), feeds)
  verdict = judged_as(monkeypatch, case, model_of(fused))
  assert verdict.what == what, verdict
