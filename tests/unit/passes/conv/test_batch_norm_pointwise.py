import numpy as np
from pass_helpers import model, parametrize, run_same, stays

from ortplugin.optimizer.pipeline import BATCH_NORM_POINTWISE, FUSE_POINTWISE

NAMES = ("s", "b", "m", "v")
VALUES = {"s": [0.5, -1, 2, 0.25], "b": [3, -0.5, 0, 1], "m": [0.75, -2, 20, 1], "v": [2, 0.5, 0.1, 4]}


def graph(dims=",4,5,6", dtype="float", attributes="epsilon = 0.001", inputs=(), parameters=""):
  def values(name):
    bits = np.array(VALUES[name], np.float16).view(np.uint16) if parameters == "float16" else VALUES[name]
    return ", ".join(map(str, bits))

  kind = parameters or dtype
  given = "".join(f", {kind}[4] {name}" for name in NAMES if name in inputs)
  constants = ", ".join(f"{kind}[4] {name} = {{{values(name)}}}" for name in NAMES if name not in inputs)
  return f"""({dtype}[N{dims}] x{given}) => ({dtype}[N{dims}] y) <{constants}> {{
    y = BatchNormalization<{attributes}>(x, s, b, m, v) }}"""


@parametrize("opset", [11, 14, 17, 24])
@parametrize("dims", [",4", ",4,5", ",4,5,6", ",4,2,3,2"])
def test_ranks_and_opsets(opset, dims):
  run_same(model(graph(dims), opset), BATCH_NORM_POINTWISE, into="Mul Add", changes=1)


def test_double():
  run_same(graph(dtype="double"), BATCH_NORM_POINTWISE, into="Mul Add")


def test_in_float16_it_runs_in_float():
  """A mean of 20 in float16 sums of Mul and Add would be off by their rounding."""
  original = model(graph(dtype="float16", parameters="float16"))
  optimized, _ = run_same(original, BATCH_NORM_POINTWISE, into="Cast Mul Add Cast")
  run_same(original, FUSE_POINTWISE, start=optimized, into="FusedPointwise")


@parametrize(
  "text, opset, fragment",
  [
    (graph(inputs=("m",)), 17, "'m', is no constant"),
    (graph(inputs=("v",)), 17, "'v', is no constant"),
    (graph(attributes="training_mode = 1"), 14, "is in training mode"),
    (graph(attributes="epsilon = -0.5"), 17, ""),
  ],
)
def test_near_misses(text, opset, fragment):
  stays(model(text, opset), BATCH_NORM_POINTWISE, fragment)


def test_parameters_that_a_caller_may_override():
  original = model(graph())
  original.graph.input.append(model(graph(inputs=("s",))).graph.input[1])
  stays(original, BATCH_NORM_POINTWISE, "a caller may override the scale")
