"""What rewrites may change in float16: whether a value between two operators is rounded. docs/programs.md decides so.

By ONNX each operator rounds, as in onnx's reference implementation, and in each model here that is far from the exact
result. The optimized model's is the exact one, rounded once. Where the model asks for the rounding itself it stays.
"""

import numpy as np
import onnx.parser
from onnx.reference import ReferenceEvaluator
from onnx_models import add_weights, parametrize, parsed

import ortplugin
from ort.host import make

WIDTH = 64
LARGE, ONES = np.full((2, WIDTH), 2048.0), np.ones((2, WIDTH))
SIGNS = np.tile([1.0, -1.0], (2, WIDTH // 2))
NORM = "LayerNormalization <axis=-1, epsilon=0.0>"
CONSTANTS = {
  "one": np.ones(WIDTH, np.float16),
  "zero": np.zeros(WIDTH, np.float16),
  "factor": np.float16([1 + 2.0**-10]),
  "square": np.float16([1 + 2.0**-9]),  # of the factor, as float16 has it
  "i": np.zeros((2, WIDTH), np.int64),
}

# By the pass: the nodes, x and r, and what they give in exact arithmetic.
MODELS = {
  "fuse-pointwise": ("s = Add(x, r)  y = Sub(s, x)", LARGE, SIGNS, lambda x, r: r),
  # 2048 + 1 and 2048 - 1 are 2048 and 2047, which changes no sign; but 2048 + 0.5 and 2048 - 0.5 are both 2048
  "norm-prologue": (f"s = Add(x, r)  y = {NORM} (s, one, zero)", LARGE, SIGNS / 2, lambda x, r: 2 * r),
  "norm-epilogue": (
    f"n = {NORM} (r, one, zero)  a = Mul(n, factor)  b = Mul(a, factor)  y = Sub(b, square)",
    ONES,
    ONES * SIGNS,
    lambda x, r: r * (1 + 2.0**-10) ** 2 - (1 + 2.0**-9),
  ),
  "fuse-scatter": (
    'y = ScatterElements <axis=1, reduction="add">(x, i, r)',
    LARGE,
    ONES,
    lambda x, r: np.where(np.arange(WIDTH) == 0, 2048.0 + WIDTH, 2048.0),
  ),
}


def model_of(nodes, dtype="float16"):
  made = parsed(f"""({dtype}[2, {WIDTH}] x, r) => (y) {{ {nodes} }}""", 18)
  for name, array in CONSTANTS.items():
    if f", {name}" in nodes:
      add_weights(made, **{name: array})
  return made


@parametrize("name", MODELS)
def test_a_value_in_between_is_not_rounded(name):
  nodes, x, r, exact = MODELS[name]
  feeds = {"x": x.astype(np.float16), "r": r.astype(np.float16)}
  model = model_of(nodes)
  wanted = np.broadcast_to(exact(x, r), x.shape).astype(np.float16)
  with np.errstate(all="ignore"):
    (rounded,) = ReferenceEvaluator(model).run(None, feeds)
  assert not np.array_equal(rounded, wanted)
  made, report = ortplugin.optimize(model)
  assert name in [change.rewrite for change in report.changes]
  (found,) = make(made).run(None, feeds)
  assert np.array_equal(found, wanted)


@parametrize(
  "name, nodes",
  [
    ("norm-epilogue", "n = LayerNormalization <epsilon=1e-5>(x, one)  y = Floor(n)"),
    ("fuse-pointwise", "a = Mul(x, square)  b = Div(a, square)  y = Floor(b)"),
  ],
)
def test_what_a_jump_reads_is_rounded(name, nodes):
  """A norm of -1 and 1 is 0.999995, in float16 1: without a rounding its floor would be 0."""
  feeds = {"x": SIGNS.astype(np.float16), "r": ONES.astype(np.float16)}
  made, report = ortplugin.optimize(model_of(nodes))
  assert name in [change.rewrite for change in report.changes]
  (found,) = make(made).run(None, feeds)
  assert np.array_equal(found, SIGNS)


def test_a_rounding_that_the_model_asks_for_stays():
  nodes = f"s = Add(x, r)  h = Cast <to=10>(s)  w = Cast <to=1>(h)  y = Sub(w, x)  n = {NORM} (h, one, zero)"
  model = model_of(nodes, "float")
  model.graph.output.add().CopyFrom(onnx.helper.make_tensor_value_info("n", onnx.TensorProto.FLOAT16, [2, WIDTH]))
  feeds = {"x": LARGE.astype(np.float32), "r": (SIGNS / 2).astype(np.float32)}
  made, report = ortplugin.optimize(model)
  assert {"fuse-pointwise", "fuse-layer-norm"} <= {change.rewrite for change in report.changes}
  difference, norm = make(made).run(None, feeds)
  assert np.array_equal(difference, np.zeros_like(difference))
  assert np.isnan(norm).all()  # of rows that are constant
