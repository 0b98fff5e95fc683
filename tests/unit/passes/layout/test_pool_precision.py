import numpy as np
from onnx import TensorProto, helper
from pass_helpers import built, nodes_of, operators, parametrize, run_pass

from ortplugin.ops import find
from ortplugin.optimizer.pipeline import POOL_PRECISION

HALF, FLOAT = TensorProto.FLOAT16, TensorProto.FLOAT


def model(kind="average", given=HALF, wanted=HALF, outputs=("y",)):
  """y = Cast(FusedPool(Cast(x))). `outputs`: y, and p, what the pool makes, or a, what it reads."""
  windows = {} if kind.startswith("global") else {"kernel_shape": [2, 3], "pads": [1, 1, 0, 1]}
  nodes = [
    helper.make_node("Cast", ["x"], ["a"], "widen", to=FLOAT),
    helper.make_node("FusedPool", ["a"], ["p"], "pool", domain="ortplugin", kind=kind, layout="NHWC", **windows),
    helper.make_node("Cast", ["p"], ["y"], "narrow", to=wanted),
  ]
  kinds = {"x": given, "a": FLOAT, "p": FLOAT, "y": wanted}
  whole = ["N", 5, 6, 4]
  made = {name: (kinds[name], whole if name == "a" else ["N", *"ABC"]) for name in outputs}
  return built(nodes, {"x": (given, whole)}, made, domains=["ortplugin"])


@parametrize("kind", ["max", "average", "global_average", "global_max"])
def test_kinds(kind, rng):
  optimized, _ = run_pass(model(kind), POOL_PRECISION, into="FusedPool", changes=1)
  x = rng.standard_normal((3, 5, 6, 4)).astype(np.float16)
  wide, narrow = (node_of(each) for each in (model(kind), optimized))
  operator = find("ortplugin", "FusedPool")
  (before,), (after,) = operator.reference(wide, [x.astype(np.float32)]), operator.reference(narrow, [x])
  np.testing.assert_array_equal(before.astype(np.float16), after)


def node_of(model):
  return nodes_of(model, "FusedPool")[0]


def test_a_wide_value_that_others_need_keeps_its_cast():
  optimized, _ = run_pass(model(outputs=("y", "a")), POOL_PRECISION)
  assert sorted(operators(optimized)) == ["Cast", "FusedPool"]


@parametrize(
  "original, fragments",
  [
    (model(outputs=("y", "p")), ["'p' is a graph output"]),
    (model(wanted=TensorProto.BFLOAT16), ["it is not cast back to float16"]),
    (model(given=FLOAT), []),
    (model(given=TensorProto.INT32), []),
  ],
)
def test_what_stays(original, fragments):
  _, result = run_pass(original, POOL_PRECISION, into=operators(original))
  assert [each.reason for each in result.near_misses] == fragments
