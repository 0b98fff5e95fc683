from pass_helpers import parametrize, run_same, stays

from ortplugin.optimizer.pipeline import LONE_SPLIT


def split(nodes, x="float[2,9,4] x", outputs="float[A,B,C] y", more=""):
  return f"({x}{more}) => ({outputs}) <int64[3] parts = {{2, 3, 4}}> {{ {nodes} }}"


@parametrize("part", ["a", "b", "c"])
@parametrize("axis", ["axis = 1", "axis = -2"])
def test_one_part(part, axis):
  text = split(f"a, b, c = Split<{axis}>(x, parts)  y = Relu({part})", "float[N,9,4] x")
  run_same(text, LONE_SPLIT, into="Slice Relu", changes=1)


def test_of_equal_parts():
  run_same(split("a, b = Split<axis=2>(x)  y = Relu(b)"), LONE_SPLIT, into="Slice Relu")
  run_same(split("a, y = Split<axis=2>(x)"), LONE_SPLIT, into="Slice")


@parametrize(
  "text",
  [
    split("a, b, c = Split<axis=1>(x, parts)  y = Sub(a, d)  z = Neg(c)", outputs="float[A,B,C] y, float[D,E,F] z",
          more=", float d"),
    split("a, b, c = Split<axis=1>(x, parts)  y = Neg(b)", outputs="float[A,B,C] y, float[D,E,F] a"),
    split("a, b = Split<axis=0>(x)  y = Relu(b)", "float[N,9,4] x"),
    split("a, b, c = Split<axis=1>(x, n)  y = Relu(b)", more=", int64[3] n"),
  ],
)  # fmt: skip
def test_what_stays(text):
  stays(text, LONE_SPLIT)
