from onnx_models import initializers
from pass_helpers import parametrize, run_pass, run_same, stays

from ortplugin.optimizer.pipeline import CHANNEL_SHUFFLE


def graph(split="{0, 2, 3, 4, 5}", perm="[0, 2, 1, 3, 4]", joined="{0, 6, 4, 5}", outputs="", out="[N,6,4,5]"):
  return f"""(float[N,6,4,5] x) => (float{out} y{outputs}) <int64[5] s = {split}, int64[4] j = {joined}> {{
    a = Reshape(x, s)  b = Transpose<perm={perm}>(a)  y = Reshape(b, j) }}"""


@parametrize(
  "split, joined",
  [("{0, 2, 3, 4, 5}", "{0, 6, 4, 5}"), ("{-1, 3, 2, 4, 5}", "{-1, 6, 4, 5}"), ("{0, 6, 1, 4, 5}", "{0, -1, 4, 5}")],
)
def test_shuffles(split, joined):
  run_same(graph(split, joined=joined), CHANNEL_SHUFFLE, into="Gather", changes=1)


def test_the_order():
  optimized, _ = run_pass(graph(), CHANNEL_SHUFFLE)
  (order,) = initializers(optimized).values()
  assert order.tolist() == [0, 3, 1, 4, 2, 5]


@parametrize(
  "text",
  [
    graph(perm="[0, 1, 2, 3, 4]"),
    graph(perm="[0, 2, 1, 4, 3]", out="[A,B,C,D]"),
    graph(joined="{0, 6, 5, 4}", out="[N,6,5,4]"),
    graph("{0, 2, 3, 5, 4}", joined="{0, 6, 4, 5}"),
    graph(joined="{-1, 3, 4, 5}", out="[A,3,4,5]"),
  ],
)
def test_what_is_no_shuffle(text):
  stays(text, CHANNEL_SHUFFLE)


def test_a_value_in_between_that_is_needed():
  stays(graph(outputs=", float[N,3,2,4,5] b"), CHANNEL_SHUFFLE, "'b' is a graph output")
