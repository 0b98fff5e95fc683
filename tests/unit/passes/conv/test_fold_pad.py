from layout_helpers import constant
from pass_helpers import all_attributes, model, parametrize, run_same, stays

from ortplugin.optimizer.pipeline import FOLD_PAD


def graph(nodes, constants="", inputs="", outputs=""):
  weight = constant("w", 2, 3, 3, 2) + (f", {constants}" if constants else "")
  return f"(float[N,3,6,5] x{inputs}) => (float[A,B,C,D] y{outputs}) <{weight}> {{ {nodes} }}"


def check(original, op, pads):
  optimized, _ = run_same(original, FOLD_PAD, into=[op], changes=1)
  assert all_attributes(optimized.graph.node[-1])["pads"] == pads


PADS = "int64[8] p = {0,0,1,0,0,0,2,3}"


@parametrize(
  "opset, pad, constants",
  [
    (9, "Pad<pads=[0,0,1,0,0,0,2,3]>(x)", ""),
    (9, 'Pad<mode="constant", pads=[0,0,1,0,0,0,2,3], value=0.0>(x)', ""),
    (11, "Pad(x, p)", PADS),
    (13, "Pad(x, p, z)", f"{PADS}, float z = {{0}}"),
    (18, "Pad(x, p, , d)", "int64[4] p = {0,1,3,2}, int64[2] d = {-1,2}"),
    (21, "Pad(x, p, z, d)", "int64[4] p = {1,0,2,3}, float z = {0}, int64[2] d = {2,3}"),
  ],
)
def test_the_forms_of_a_pad(opset, pad, constants):
  check(model(graph(f"a = {pad}  y = Conv(a, w)", constants), opset, ir=10), "Conv", [1, 0, 2, 3])


@parametrize(
  "attributes, pads",
  [
    ("<pads=[1,0,0,2], strides=[2,1]>", [2, 0, 2, 5]),
    ('<auto_pad="VALID", dilations=[2,1]>', [1, 0, 2, 3]),
    ('<auto_pad="NOTSET", pads=[1,1,1,1]>', [2, 1, 3, 4]),
  ],
)
def test_added_to_the_convolution_s_own(attributes, pads):
  check(model(graph(f"a = Pad(x, p)  y = Conv{attributes} (a, w)", PADS)), "Conv", pads)


def test_one_dimension():
  original = model("""(float[N,2,7] x) => (float[N,1,C] y) <float[1,2,3] w = {1,2,3,-1,-2,-3},
    int64[6] p = {0,0,4,0,0,5}> { a = Pad(x, p)  y = Conv(a, w) }""")
  check(original, "Conv", [4, 5])


@parametrize(
  "attributes, pads",
  [
    ("kernel_shape = [3, 4]", [1, 0, 2, 3]),  # nothing of its own: the zeros of the Pad count
    ("kernel_shape = [3, 5], count_include_pad = 1, pads = [1, 1, 0, 1], strides = [2, 2]", [2, 1, 2, 4]),
  ],
)
def test_average_pools(attributes, pads):
  check(model(graph(f"a = Pad(x, p)  y = AveragePool<{attributes}>(a)", PADS)), "AveragePool", pads)


def pool(attributes):
  return graph(f"a = Pad(x, p)  y = AveragePool<kernel_shape=[4,4]{attributes}>(a)", PADS)


@parametrize(
  "text, fragment",
  [
    (graph("a = Pad(x, p)  y = Conv(a, w)", "int64[8] p = {0,0,1,-1,0,0,2,3}"), "the negative pads"),
    (graph("a = Pad(x, p)  y = Conv(a, w)", "int64[8] p = {1,0,1,1,0,0,2,3}"), "pads the batch or the"),
    (
      graph("a = Pad(x, p)  y = Conv(a, u)", "int64[8] p = {0,1,1,1,0,0,2,3}", ", float[2,4,3,2] u"),
      "pads the batch or the channels",
    ),
    (graph("a = Pad(x, p, z)  y = Conv(a, w)", f"{PADS}, float z = {{0.5}}"), "pads with 0.5, not with 0"),
    (graph("a = Pad(x, p, z)  y = Conv(a, w)", f"{PADS}, float z = {{0}}", ", float z"), "'z', is no constant"),
    (graph("a = Pad(x, p, z)  y = Conv(a, w)", PADS, ", float z"), "'z', is no constant"),
    (graph("a = Pad(x, p)  y = Conv(a, w)", PADS, ", int64[8] p"), "'p', are no constant"),
    (graph('a = Pad<mode="reflect">(x, p)  y = Conv(a, w)', PADS), "has the mode 'reflect'"),
    (graph('a = Pad(x, p)  y = Conv<auto_pad="SAME_UPPER">(a, w)', PADS), "it has auto_pad = SAME_UPPER"),
    (graph("a = Pad(x, p)  y = Conv(a, w)  z = Relu(a)", PADS, "", ", float[A,E,F,G] z"), "'a' is also used by"),
    (graph("a = Pad(x, p)  y = Conv(a, w)", PADS, "", ", float[A,E,F,G] a"), "'a' is a graph output"),
    (pool(", pads = [0, 0, 1, 1]"), "its own padding does not count in the average"),
    (pool(", ceil_mode = 1"), "with ceil_mode the last window"),
    (pool(", count_include_pad = 1, pads = [0, 0, 0, 1]"), "the pads [1, 0, 2, 4] are not smaller than the win"),
    (
      graph(
        """a = Pad(x, p)  y = Conv(a, w)  z = If(c) <then () => (float[A,E,F,G] t) { t = Neg(a) },
          otherwise () => (float[A,E,F,G] e) { e = Identity(a) }>""",
        PADS,
        ", bool c",
        ", float[A,E,F,G] z",
      ),
      "'a' is also used inside a body",
    ),
  ],
)
def test_near_misses(text, fragment):
  stays(text, FOLD_PAD, fragment)


@parametrize(
  "size, opset, folds", [("2", 13, True), ("1", 13, False), ("1", 18, False), ("1", 19, True), ("n", 13, False)]
)
def test_a_window_larger_than_the_image(size, opset, folds):
  """ONNX Runtime rounds -1 / 2 to 0, so that there is one: before opset 19 it counts all of it."""
  original = model(
    f"""(float[1,1,{size}] x) => (float[1,1,O] y) <int64[6] p = {{0,0,1,0,0,0}}>
      {{ a = Pad(x, p)  y = AveragePool<kernel_shape=[3], strides=[2]>(a) }}""",
    opset,
  )
  run_same(original, FOLD_PAD, n=1, changes=folds)


def test_of_a_value_before_opset_11():
  text = graph("a = Pad<pads=[0,0,1,0,0,0,2,3], value=1.0>(x)  y = Conv(a, w)")
  stays(model(text, 9), FOLD_PAD, "pads with 1, not with 0")


def test_a_max_pool_stays():
  """It would pad with minus infinity."""
  stays(graph("a = Pad(x, p)  y = MaxPool<kernel_shape=[4,4]>(a)", PADS), FOLD_PAD)


def test_the_padding_of_the_weight_is_no_padding_of_the_image():
  text = "(float[N,3,6,5] x, float[2,3,2,2] w) => (float[A,B,C,D] y) <int64[8] p = {0, 0, 1, 0, 0, 0, 0, 1}>"
  stays(f"{text} {{ u = Pad(w, p)  y = Conv(x, u) }}", FOLD_PAD)
