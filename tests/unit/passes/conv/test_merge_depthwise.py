import numpy as np
import onnx
from pass_helpers import add_weights, model, parametrize, run_same, stays

from ortplugin.optimizer.pipeline import MERGE_DEPTHWISE, MERGE_DEPTHWISE_ON_GPU

SAME = (
  "group = 2, kernel_shape = [3, 3], pads = [1, 1, 1, 1]",
  "group = 3, kernel_shape = [5, 5], pads = [2, 2, 2, 2]",
)


def mixed(
  first=SAME[0],
  second=SAME[1],
  bias=", p;, q",
  axis=1,
  more="",
  dtype="float",
  filters=((2, 1, 3, 3), (3, 1, 5, 5)),
  output="",
):
  p, q = bias.split(";")
  original = model(f"""({dtype}[N,5,9,8] x) => ({dtype}[A,B,C,D] y{output}) <int64[2] parts = {{2,3}}> {{
    a, b = Split<axis=1>(x, parts)
    c = Conv<{first}>(a, v{p})  d = Conv<{second}>(b, w{q})  y = Concat<axis={axis}>(c, d) {more} }}""")
  generator = np.random.default_rng(0)
  kind = {"float": np.float32, "float16": np.float16}[dtype]
  shapes = {"v": filters[0], "w": filters[1], "p": filters[0][:1], "q": filters[1][:1]}
  read = {"v", "w", *(name for name in "pq" if name in bias)}
  add_weights(original, **{name: generator.standard_normal(shapes[name]).astype(kind) for name in sorted(read)})
  return original


@parametrize(
  "original, shape, pads",
  [
    (mixed(), [5, 5], [2, 2, 2, 2]),
    (mixed(bias=";", axis=-3), [5, 5], [2, 2, 2, 2]),
    (mixed(SAME[0] + ", strides = [2, 1]", SAME[1] + ", strides = [2, 1]"), [5, 5], [2, 2, 2, 2]),
    (mixed("group = 2, pads = [0, 1, 2, 1]"), [5, 5], [2, 2, 2, 2]),  # one lies further down
    (mixed("group = 2, pads = [2, 1, 0, 1]"), [5, 5], [2, 2, 2, 2]),
    (mixed("group = 2", "group = 3, pads = [1, 0, 1, 2]", filters=((2, 1, 3, 1), (3, 1, 5, 3))), [5, 3], [1, 0, 1, 2]),
  ],
)
def test_one(original, shape, pads):
  optimized, _ = run_same(original, MERGE_DEPTHWISE_ON_GPU, into="Conv", changes=1)
  attributes = {each.name: onnx.helper.get_attribute_value(each) for each in optimized.graph.node[0].attribute}
  assert [attributes[name] for name in ("group", "kernel_shape", "pads")] == [5, shape, pads]


def test_without_a_gpu_only_what_has_16_bits():
  run_same(mixed(dtype="float16"), MERGE_DEPTHWISE, into="Conv", changes=1)
  stays(mixed(), MERGE_DEPTHWISE, "slower on a CPU")


@parametrize(
  "original, words",
  [
    (mixed(second="group = 1, pads = [2, 2, 2, 2]", filters=((2, 1, 3, 3), (3, 3, 5, 5))), "is not depthwise"),
    (
      mixed(SAME[0], "group = 3, dilations = [2, 2], pads = [2, 2, 2, 2]", filters=((2, 1, 3, 3), (3, 1, 3, 3))),
      "is dilated",
    ),
    (mixed(SAME[0], 'group = 3, auto_pad = "SAME_UPPER"'), "auto_pad"),
    (mixed(SAME[0], "group = 3, pads = [5, 5, 5, 5]", filters=((2, 1, 3, 3), (3, 1, 11, 11))), None),
    (mixed(SAME[0], "group = 3, pads = [0, 5, 0, 5]", filters=((2, 1, 3, 3), (3, 1, 1, 11))), "times the work"),
    (mixed(bias=", p;"), "some of the convolutions have a bias"),
    (mixed(more="z = Relu(a)", output=", float[E,F,G,H] z"), "'a' is also used by"),
    (mixed(output=", float[E,F,G,H] c"), "'c' is a graph output"),
  ],
)
def test_what_stays(original, words):
  if words is None:
    run_same(original, MERGE_DEPTHWISE_ON_GPU, into="Conv")
  else:
    stays(original, MERGE_DEPTHWISE_ON_GPU, words)


def test_another_order_stays():
  original = mixed()
  concat = original.graph.node[-1]
  concat.input[:] = ["d", "c"]
  stays(original, MERGE_DEPTHWISE_ON_GPU)
