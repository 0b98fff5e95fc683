import numpy as np
from layout_helpers import constant
from onnx import TensorProto, helper
from onnx_models import initializers
from pass_helpers import built, model, operators, parametrize, run_pass, run_same, stays

from ortplugin.optimizer.pipeline import FOLD_BATCH_NORM
from ortplugin.passes.conv.weights import COPY_BYTES

NORM = "y = BatchNormalization(a, s, b, m, v)"
PARAMETERS = ", ".join(f"float[4] {name} = {values}" for name, values in (
  ("s", "{1.5, 0.5, 2, -1}"), ("b", "{0.5, -1, 0, 2}"), ("m", "{0.1, 0.2, -0.3, 0.4}"), ("v", "{1, 0.5, 2, 4}")
))  # fmt: skip
SCALES = f"{PARAMETERS}, float[4,1,1] c = {{0.5, 1, -2, 3}}"
BIAS = SCALES.replace(",1,1]", "]")
KERNEL = constant("w", 4, 3, 2, 1)


def graph(nodes, constants=PARAMETERS, weight=KERNEL, inputs="", outputs="", x="float[N,3,6,5] x"):
  comma = ", " if constants else ""
  return f"({x}{inputs}) => (float[A,4,B,C] y{outputs}) <{weight}{comma}{constants}> {{ {nodes} }}"


def check(original, ops, precision=""):
  optimized, result = run_same(original, FOLD_BATCH_NORM, into=ops, precision=precision)
  assert result.changes
  return optimized


@parametrize("opset", [7, 8, 9, 13, 14, 15, 17])
def test_after_a_convolution(opset):
  optimized = check(model(graph(f"a = Conv<pads=[1,0,0,1], strides=[2,1]>(x, w)  {NORM}"), opset), "Conv")
  assert [each.name for each in optimized.graph.output] == ["y"]
  assert len(optimized.graph.initializer) == 2  # nothing of the old ones is left


def test_before_ir_version_4_initializers_are_inputs():
  text = graph(f"a = Conv(x, w)  {NORM}")
  names = "".join(f", float[{'4,3,2,1' if n == 'w' else '4'}] {n}" for n in "wsbmv")
  optimized = check(model(text.replace("float[N,3,6,5] x", f"float[N,3,6,5] x{names}"), 9, ir=3), "Conv")
  assert len(optimized.graph.input) == 3
  assert {each.name for each in optimized.graph.initializer} < {each.name for each in optimized.graph.input}


def test_with_a_bias():
  check(model(graph(f"a = Conv(x, w, c)  {NORM}", BIAS)), "Conv")


def test_a_chain():
  constants = f"{SCALES}, float two = {{2}}, float[1,1,1,1] one = {{1}}"
  nodes = """a = Conv(x, w)  n = BatchNormalization<epsilon=0.01>(a, s, b, m, v)  p = Mul(n, c)  q = Sub(two, p)
    r = Div(q, c)  t = Add(one, r)  y = Sub(t, c)"""
  check(model(graph(nodes, constants)), "Conv")


@parametrize("groups", [1, 2, 4])
@parametrize("bias", ["", ", c"])
def test_groups_and_transposed_convolutions(groups, bias):
  """ConvTranspose has weights [inputs, outputs / groups, ...]."""
  conv = f"a = Conv<group={groups}>(x, w{bias})  {NORM}"
  text = graph(conv, BIAS, constant("w", 4, 4 // groups, 3), x="float[N,4,6] x").replace("[A,4,B,C] y", "[A,4,B] y")
  check(model(text), "Conv")
  check(model(text.replace("Conv<", "ConvTranspose<strides = [2], ")), "ConvTranspose")


def test_three_dimensions():
  text = graph(f"a = Conv(x, w)  {NORM}", weight=constant("w", 4, 1, 2, 1, 3), x="float[N,1,4,3,5] x")
  check(model(text.replace("float[A,4,B,C] y", "float[A,4,B,C,D] y")), "Conv")


def test_in_constant_nodes_and_in_bodies():
  body = f"a = Conv(x, w)  {NORM.replace('y', 't')}"
  text = f"""(bool c, float[N,3,6,5] x) => (float[A,4,B,C] y) <{KERNEL}, {PARAMETERS}> {{
      y = If(c) <then () => (float[A,4,B,C] t) {{ {body} }},
                  otherwise () => (float[A,4,B,C] e) {{ e = Conv(x, w) }}> }}"""
  optimized, _ = run_same(text, FOLD_BATCH_NORM, changes=1)
  assert [operators(each.g) for each in optimized.graph.node[0].attribute] == [["Conv"], ["Conv"]]
  check(model(graph("k = float[4,1,1] {1, 2, 3, 4}  a = Conv(x, w)  y = Mul(a, k)", "")), "Conv")


def test_a_weight_that_two_convolutions_read_is_copied():
  nodes = f"a = Conv(x, w)  {NORM}  z = Conv<strides=[2,2]>(x, w)"
  optimized = check(model(graph(nodes, outputs=", float[A,4,D,E] z")), "Conv Conv")
  assert len({node.input[1] for node in optimized.graph.node}) == 2


def test_a_weight_that_is_an_output_is_copied():
  optimized = check(model(graph(f"a = Conv(x, w)  {NORM}", outputs=", float[4,3,2,1] w")), "Conv")
  assert "w" in {each.name for each in optimized.graph.initializer}


def test_into_a_batch_normalization_that_stays():
  """DenseNet: what precedes is no convolution."""
  nodes = f"a = Relu(x)  {NORM.replace('y', 'n')}  p = Mul(n, c)  y = Add(c, p)"
  check(model(graph(nodes, SCALES, x="float[N,4,6,5] x")), "Relu BatchNormalization")


@parametrize("attributes", ["", '<auto_pad="VALID">', "<pads=[0,0,0,0], group=2>"])
def test_before_a_convolution_that_pads_nothing(attributes):
  kernel = constant("w", 4, 2 if "group" in attributes else 4, 1, 3)
  nodes = f"a = Relu(x)  n = BatchNormalization(a, s, b, m, v)  y = Conv{attributes} (n, w)"
  check(model(graph(nodes, weight=kernel, x="float[N,4,6,5] x")), "Relu Conv")


def test_padding_is_fine_where_nothing_is_shifted():
  constants = "float[4] s = {1,2,3,4}, float[4] b = {0,0,0,0}, float[4] v = {1,2,1,2}"
  nodes = "a = Relu(x)  n = BatchNormalization(a, s, b, b, v)  y = Conv<pads=[1,1,1,1]>(n, w)"
  check(model(graph(nodes, constants, constant("w", 4, 4, 1, 1), x="float[N,4,6,5] x")), "Relu Conv")


def typed(dtype, weight, variance):
  kind = TensorProto.DataType.Value(dtype)
  numpy_dtype = helper.tensor_dtype_to_np_dtype(kind)
  channels = len(weight)
  values = {"w": weight, "s": np.ones(channels), "b": np.full(channels, 0.75), "m": np.full(channels, 0.25),
            "v": np.full(channels, variance)}  # fmt: skip
  weights = {name: np.asarray(each).astype(numpy_dtype) for name, each in values.items()}
  nodes = [
    helper.make_node("Conv", ["x", "w"], ["a"], "conv"),
    helper.make_node("BatchNormalization", ["a", "s", "b", "m", "v"], ["y"], "norm", epsilon=0.0),
  ]
  y = {"y": (kind, ["N", channels, "A", "B"])}
  return built(nodes, {"x": (kind, ["N", weight.shape[1], 5, 6])}, y, 15, weights=weights)


@parametrize("dtype", ["FLOAT16", "FLOAT"])
def test_dtypes(dtype, rng):
  optimized = check(typed(dtype, rng.standard_normal((3, 2, 3, 2)), 0.25), "Conv")
  assert {each.data_type for each in optimized.graph.initializer} == {TensorProto.DataType.Value(dtype)}


@parametrize("dtype", ["BFLOAT16", "DOUBLE"])
def test_dtypes_that_onnx_runtime_does_not_convolve_on_the_cpu(dtype, rng):
  kind = helper.tensor_dtype_to_np_dtype(TensorProto.DataType.Value(dtype))
  weight = rng.standard_normal((3, 2, 3, 2)).astype(kind)
  optimized, _ = run_pass(typed(dtype, weight.astype(np.float64), 0.25), FOLD_BATCH_NORM, into="Conv")
  found = initializers(optimized)
  np.testing.assert_array_equal(found[optimized.graph.node[0].input[1]], weight * kind.type(2))
  np.testing.assert_array_equal(found[optimized.graph.node[0].input[2]], np.full(3, 0.25, kind))  # 0.75 - 0.25 * 2


def test_no_bias_is_added_where_nothing_is_shifted():
  optimized = check(model(graph("a = Conv(x, w)  y = Mul(c, a)", "float c = {2}")), "Conv")
  assert len(optimized.graph.node[0].input) == 2


def test_factors_are_computed_in_double(rng):
  """In float32, 1 / sqrt(v) and its product with the weight would each be rounded."""
  weight = rng.standard_normal((5, 2, 3, 2)).astype(np.float32)
  optimized, _ = run_pass(typed("FLOAT", weight, 0.3), FOLD_BATCH_NORM)
  found = initializers(optimized)
  expected = (weight.astype(np.float64) / np.sqrt(np.float64(np.float32(0.3)))).astype(np.float32)
  np.testing.assert_array_equal(found[optimized.graph.node[0].input[1]], expected)


# What must not fold.


@parametrize(
  "dtype, size, variance, fragment",
  [
    ("FLOAT16", 1000.0, 1e-4, "the weight of conv (Conv) would reach 9.999e+04, float16 holds up to 6.55e+04"),
    ("FLOAT16", 1e-3, 1e4, "of a channel would be at most 1e-05, float16 is precise down to 6.104e-05"),
    ("FLOAT16", 1e-7, 60000.0, "of a channel would be at most"),
    ("FLOAT", 1e30, 1e-20, "would reach 1e+40, float32 holds up to 3.403e+38"),
    ("FLOAT", 1.0, 0.0, "would reach inf"),
    ("FLOAT", 1.0, -1.0, "would reach nan"),
  ],
)
def test_weights_that_leave_the_range_of_their_dtype_stay(dtype, size, variance, fragment):
  stays(typed(dtype, np.full((2, 2, 1, 1), size), variance), FOLD_BATCH_NORM, fragment)


@parametrize(
  "text, fragment",
  [
    (graph(f"a = Conv(x, w)  {NORM}  z = Relu(a)", outputs=", float[A,4,B,C] z"), "'a' is also used by"),
    (graph(f"a = Conv(x, w)  {NORM}", outputs=", float[A,4,B,C] a"), "'a' is a graph output"),
    (graph(f"a = Conv(x, w)  {NORM}", inputs=", float[4] v"), "a caller may override the variance of"),
    (graph(f"a = Conv(x, w)  {NORM}", inputs=", float[4,3,2,1] w"), "a caller may override the weight of"),
    (graph(f"a = Conv(x, w)  {NORM.replace('s,', 'q,')}", inputs=", float[4] q"), "'q', is no constant"),
    (graph(f"a = Conv(x, u)  {NORM}", inputs=", float[4,3,2,1] u"), "'u', is no constant"),
    (graph(f"a = Conv(x, w, u)  {NORM}", inputs=", float[4] u"), "the bias of 'a' (Conv), 'u', is no constant"),
    (graph(f"a = Conv(x, w)  {NORM.replace('(a', '<training_mode=1>(a')}"), "is in training mode"),
    (
      graph("a = Conv(x, w)  y = Mul(a, c)", "float[1,1,2,1] c = {1,2}, float[5] s = {1,2,3,4,5}"),
      "'c' of shape [1, 1, 2, 1] is neither one number nor one per channel, [4, 1, 1]",
    ),
    (graph("a = Conv(x, w)  y = Add(a, c)", "float[5] c = {1,2,3,4,5}"), "'c' of shape [5] is neither"),
    (graph("a = Conv(x, w)  y = Add(a, c)", "float[2,1,1,1] c = {1,2}"), "'c' of shape [2, 1, 1, 1] is neither"),
    (graph("a = Conv(x, w)  y = Div(c, a)", "float c = {1}"), "divides by 'a'"),
    (graph("a = Conv(x, w)  y = Mul(a, c)", "float c = {2}", inputs=", float c"), "a caller may override the op"),
    (
      graph("a = Conv(x, w)  y = Mul(a, c)", "float[1,1,1,1,1] c = {2}").replace("[A,4,B,C]", "[1,A,4,B,C]"),
      "'c' of shape [1, 1, 1, 1, 1] is neither",
    ),
    (
      graph(
        f"""a = Conv(x, w)  {NORM}  z = If(c) <then () => (float[A,4,B,C] t) {{ t = Neg(a) }},
          otherwise () => (float[A,4,B,C] e) {{ e = Identity(a) }}>""",
        inputs=", bool c",
        outputs=", float[A,4,B,C] z",
      ),
      "'a' is also used inside a body",
    ),
  ],
)
def test_near_misses(text, fragment):
  training = "training_mode" in text
  stays(text.replace("y =", "y, mean, var =") if training else text, FOLD_BATCH_NORM, fragment)


@parametrize(
  "nodes, fragment",
  [
    ("y = Conv<pads=[0,1,0,0]>(n, w)", "it pads with zeros, which"),
    ('y = Conv<auto_pad="SAME_UPPER">(n, w)', "it pads with zeros, which"),
    ("y = Conv(n, w)  z = Relu(n)", "'n' is also used by"),
  ],
)
def test_before_a_convolution(nodes, fragment):
  text = graph(
    f"a = Relu(x)  n = BatchNormalization(a, s, b, m, v)  {nodes}",
    weight=constant("w", 4, 4, 1, 3),
    x="float[N,4,6,5] x",
    outputs=", float[N,4,D,E] z" if "z =" in nodes else "",
  )
  stays(text, FOLD_BATCH_NORM, fragment)


def test_half_precision_before_a_convolution_stays(rng):
  original = typed("FLOAT16", rng.standard_normal((2, 2, 1, 1)), 0.25)
  conv, norm = original.graph.node
  norm.input[0], norm.output[0], conv.input[0], conv.output[0] = "x", "n", "n", "y"
  original.graph.node.reverse()
  stays(original, FOLD_BATCH_NORM, "in float16 the rounding of its weights")


def test_a_batch_normalization_before_a_transposed_convolution_stays():
  text = graph(
    "n = BatchNormalization(x, s, b, m, v)  y = ConvTranspose(n, w)",
    weight=constant("w", 4, 4, 1, 1),
    x="float[N,4,6,5] x",
  )
  stays(text, FOLD_BATCH_NORM)


def test_statistics_for_every_position_stay():
  """Opset 7 and 8 with spatial = 0; ONNX Runtime does not run it either."""
  text = graph("a = Conv(x, w)  y = BatchNormalization<spatial=0>(a, s, b, m, v)")
  stays(model(text, 8), FOLD_BATCH_NORM, "has spatial = 0")


def test_a_residual_and_a_square_are_no_near_misses():
  stays(graph("a = Conv(x, w)  r = Relu(x2)  y = Add(a, r)", "", inputs=", float[N,4,5,5] x2"), FOLD_BATCH_NORM)
  stays(graph("a = Conv(x, w)  y = Mul(a, a)", ""), FOLD_BATCH_NORM)


def test_a_large_weight_is_not_copied():
  original = typed("FLOAT", np.ones((COPY_BYTES // 4096 + 1, 1024, 1, 1)), 0.25)
  original.graph.node.add(op_type="Conv", input=["x", "w"], output=["z"])
  original.graph.output.add().CopyFrom(original.graph.output[0])
  original.graph.output[1].name = "z"
  stays(original, FOLD_BATCH_NORM, "'w' is also used by 'z' (Conv), so its 16 MiB would be copied")
