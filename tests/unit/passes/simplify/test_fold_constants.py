import time
import tracemalloc

import numpy as np
import onnx
from onnx import helper
from onnx_models import add_weights, built, nodes_of
from pass_helpers import annotated, model, operators, parametrize, run, run_pass, run_same, same_outputs, stays

from ortplugin.optimizer.pipeline import DEAD_NODES, FOLD_CONSTANTS, INLINE_IF, REMOVE_IDENTITIES, UPDATE_SLICE
from ortplugin.passes.simplify import fold_constants

ONE = "<float[2,3] c = {1, -2, 3.5, 0, 5, -6}>"


@parametrize(
  "node",
  [
    "f = Neg(c)",
    "f = Mul(c, c)",
    "f = Sqrt(d)  d = Abs(c)",
    "f = Transpose(t)  t = Transpose(c)",
    "f = Cast<to=1>(h)  h = Cast<to=10>(c)",
    "f = Cast<to=1>(h)  h = Cast<to=16>(c)",
    "f = Cast<to=1>(i)  i = Cast<to=7>(c)",
    "f = Where(p, c, z)  z = Neg(c)  p = Greater(c, z)",
    "s = {2,3}  f = Expand(one, s)  one = float {1.0}",
    "s = {2,3}  f = ConstantOfShape<value=float[1] {7.0}>(s)",
    "f, g = Split<axis=0>(cc)  cc = Concat<axis=0>(c, c)",
  ],
)
def test_folded(node):
  ordered = "  ".join(reversed([part.strip() for part in node.split("  ")]))
  text = f"(float[2,3] x) => (y) {ONE} {{ {ordered}  y = Add(x, f) }}"
  optimized, result = run_same(text, FOLD_CONSTANTS, DEAD_NODES, into="Add")
  assert [each.name for each in optimized.graph.initializer if each.name != "c"] == ["f_value"]
  assert result.near_misses == ()


def test_the_shape_arithmetic_of_a_reshape():
  original = """(float[2,6] x) => (float[A,B] y) {
    s = {2,6}  i = Constant<value_int=1>()  n = Gather(s, i)
    three = Constant<value_int=3>()  m = Div(n, three)  z = Constant<value_ints=[0]>()
    a = Unsqueeze(m, z)  b = Constant<value_ints=[-1]>()  shape = Concat<axis=0>(a, b)
    y = Reshape(x, shape) }"""
  optimized, _ = run_same(original, FOLD_CONSTANTS, DEAD_NODES, into="Reshape")
  assert onnx.numpy_helper.to_array(optimized.graph.initializer[0]).tolist() == [2, -1]


def test_inside_a_body_and_for_it():
  original = f"""(bool c0, float[2,3] x) => (y) {ONE} {{ f = Neg(c)
      y = If(c0) <then () => (float[2,3] t) {{ t = Add(x, f) }},
                   otherwise () => (float[2,3] e) {{ h = Abs(f)  e = Mul(h, f) }}> }}"""
  run_same(original, FOLD_CONSTANTS, DEAD_NODES, into="If", changes=2)


KEPT = {
  "a random operator": "f = RandomNormalLike(c)",
  "a Dropout in training": """r = float {0.5}  t = bool {1}
    f = Dropout(c, r, t)""",
  "quantisation": """s = float {0.5}  z = uint8 {3}
    q = QuantizeLinear(c, s, z)  f = DequantizeLinear(q, s, z)""",
  "heavy arithmetic": "t = Transpose(x)  m = MatMul(c, t)  u = MatMul(m, c)  f = Softmax(u)",
  "a float that no integer holds": """i = float {1e30}  k = Cast<to=7>(i)
    j = Cast<to=1>(k)  f = Mul(x, j)""",
  "a NaN made an integer": """i = float {nan}  k = Cast<to=7>(i)
    j = Cast<to=1>(k)  f = Mul(x, j)""",
  "division by zero": """p = int64 {1}  q = int64 {0}  r = Div(p, q)
    j = Cast<to=1>(r)  f = Mul(x, j)""",
  "division of negative integers": """p = int64 {-7}  q = int64 {2}
    r = Div(p, q)  j = Cast<to=1>(r)  f = Mul(x, j)""",
}


@parametrize("what", KEPT)
def test_kept(what):
  text = f"(float[2,3] x) => (y) {ONE} {{ {KEPT[what]}  y = Add(x, f) }}"
  if "nan" in text:  # the parser has no NaN
    original = model(text.replace("{nan}", "{1.0}"))
    original.graph.node[0].attribute[0].t.CopyFrom(onnx.numpy_helper.from_array(np.float32(np.nan)))
  else:
    original = model(text)
  stays(original, FOLD_CONSTANTS)


def of_constants(op, opset, *inputs, **attributes):
  weights = {f"c{i}": np.asarray(each) for i, each in enumerate(inputs)}
  nodes = [helper.make_node(op, list(weights), ["f"], **attributes), helper.make_node("Identity", ["f"], ["y"])]
  made = built(nodes, {}, {}, opset, 7, weights=weights)
  made.graph.output.add(name="y")
  made.graph.output[0].CopyFrom(onnx.shape_inference.infer_shapes(made).graph.output[0])
  return made


def assert_folded(original):
  optimized, _ = run_pass(original, FOLD_CONSTANTS, into="Identity")
  np.testing.assert_array_equal(run(optimized, {})[0], run(original, {})[0], strict=True)


VECTOR, MATRIX, PIXEL = np.arange(64, dtype=np.float32), np.ones((2, 3), np.float32), np.ones((1, 3, 1), np.float32)
ODD = np.array([np.nan, -0.0, 0.0, -1.5, np.inf, 2.5], np.float32)


@parametrize("opset", [11, 12, 13, 18])
@parametrize("axes", [[-2, -1], [-1, -2], [0, -1], [2, 0], [0, 2], [-1], [1]])
@parametrize("x", [VECTOR, MATRIX, np.float32(3)])
def test_axes_that_unsqueeze_adds(x, axes, opset):
  """Before opset 13 onnx's evaluator adds one axis after the other: [-2, -1] of [64] would be [1, 64, 1]."""
  if np.ndim(x) == 0 and not set(axes) <= {0, -1, -2}:
    return
  given, attributes = ([x, np.array(axes)], {}) if opset >= 13 else ([x], {"axes": axes})
  assert_folded(of_constants("Unsqueeze", opset, *given, **attributes))


RANGE = """(float[2] x) => (float[A,2] y) {{ zero = Constant<value_int=0>()  one = Constant<value_int=1>()
    true = bool {{1}}
    limit = If(true) <then () => (int64[1] t) {{ p = Constant<value_ints=[{limit}]>()  t = Identity(p) }},
                      else () => (int64[1] e) {{ q = Constant<value_ints=[3]>()  e = Neg(q) }}>
    r = Range(zero, limit, one)  f = Cast<to=1>(r)  minus = Constant<value_ints=[-1]>()  u = Unsqueeze(f, minus)
    y = Mul(u, x) }}"""


def test_a_range_whose_limit_is_no_scalar():
  """ONNX Runtime takes a tensor [1] as it runs, but loads no Range of constants that are no scalars."""
  passes = INLINE_IF, REMOVE_IDENTITIES, FOLD_CONSTANTS, DEAD_NODES
  run_same(RANGE.format(limit=5), *passes, into="Mul")
  optimized, _ = run_pass(RANGE.format(limit=10**6), *passes, into="Range Cast Unsqueeze Mul")
  (large,) = nodes_of(optimized, "Range")
  (limit,) = [each for each in optimized.graph.initializer if each.name == large.input[1]]
  assert list(limit.dims) == []


ROWS, SHIFTED = np.zeros((5, 4), np.float16), np.arange(8, dtype=np.float16).reshape(2, 4)
SCATTERS = {
  "rows, from the front and the back": (ROWS, np.array([[3], [-5]]), SHIFTED),
  "elements": (ROWS, np.array([[[4, 0], [-1, -1]]]), SHIFTED[:1, :2]),
  "none": (ROWS, np.zeros((0, 1), np.int64), SHIFTED[:0]),
  "of bool": (ROWS != 0, np.array([[1]]), np.ones((1, 4), bool)),
}
LEFT_SCATTERS = {
  "one row twice": (ROWS, np.array([[3], [-2]]), SHIFTED),
  "beyond the end": (ROWS, np.array([[5], [0]]), SHIFTED),
  "more than the evaluator goes through": (
    np.zeros(1 << 15, np.int64),
    np.arange(1 << 15)[:, None],
    np.arange(1 << 15),
  ),
}


@parametrize("opset", [11, 13, 16, 18])
@parametrize("what", SCATTERS)
def test_a_scatter_of_constants(what, opset):
  assert_folded(of_constants("ScatterND", opset, *SCATTERS[what]))


@parametrize("what", LEFT_SCATTERS)
def test_a_scatter_of_constants_that_stays(what):
  stays(of_constants("ScatterND", 16, *LEFT_SCATTERS[what]), FOLD_CONSTANTS)


def test_a_reduction_of_constants_stays():
  one = np.array([[1]])
  stays(of_constants("ScatterND", 18, ROWS, one, SHIFTED[:1], reduction="add"), FOLD_CONSTANTS)


@parametrize("opset", [11, 13])
@parametrize(
  "shape, axis, indices",
  [((5, 4), 0, [[0, 4, -1, 2], [-5, 1, 1, 3]]), ((1, 512), 1, [range(9)]), ((3, 4, 2), -2, [[[3], [-4]]])],
)
def test_elements_of_constants(shape, axis, indices, opset):
  """onnx's evaluator chooses among at most 32 elements, and wraps indices."""
  data = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
  assert_folded(of_constants("GatherElements", opset, data, np.array(indices), axis=axis))


def test_elements_out_of_range_stay():
  stays(of_constants("GatherElements", 13, ROWS, np.array([[5, 0, 0, 0]]), axis=0), FOLD_CONSTANTS)


MASK = """(float[6,6] x) => (y) <int64[4,1] rows = {0,1,2,3}, int64[2,1] cols = {4,5}>
  { size = Constant<value_ints=[6,6]>()  zero = ConstantOfShape<value=float[1] {0.0}>(size)
     start = Constant<value_ints=[0]>()  end = Constant<value_ints=[-2]>()  part = Slice(zero, start, end)
     one = float {1.0}  two = Constant<value_ints=[2,4]>()  ones = Expand(one, two)
     p = Transpose<1,0>(part)  s = ScatterND(p, cols, ones)  q = Transpose<1,0>(s)
     mask = ScatterND(zero, rows, q)  y = Add(x, mask) }"""


def test_the_mask_of_shifted_windows():
  """PyTorch's dynamo exporter writes mask[:-2, -2:] = 1 so; no scatter may become ours before it is a constant."""
  run_same(model(MASK, opset=18), FOLD_CONSTANTS, UPDATE_SLICE, DEAD_NODES, into="Add")


def test_a_slice_whose_data_turns_out_constant():
  original = model(MASK, opset=18)
  optimized, _ = run_pass(original, UPDATE_SLICE)
  assert operators(optimized).count("UpdateSlice") == 2
  run_same(original, FOLD_CONSTANTS, DEAD_NODES, start=optimized, into="Add")


def test_positions_that_are_projected_in_half_precision(rng):
  """As DeBERTa's; in float32 ONNX Runtime computes them once, as it loads the model."""
  text = """(T[8,6] x) => (T[8,6] y) {
    n = LayerNormalization<epsilon=1e-7>(p, g, h)  m = MatMul(n, w)  s = Add(m, h)  y = Mul(x, s) }"""
  weights = {"p": (8, 4), "g": (4,), "w": (4, 6), "h": (4,)}
  arrays = {name: rng.standard_normal(shape) for name, shape in weights.items()}
  arrays["p"][3] = 7  # deviation 0
  for dtype, kept in ((np.float16, "Mul"), (np.float32, "LayerNormalization MatMul Add Mul")):
    made = model(text.replace("T[", f"{np.dtype(dtype).name.replace('32', '')}[").replace("Add(m, h)", "Add(m, b)"), 17)
    add_weights(made, **{name: array.astype(dtype) for name, array in arrays.items()}, b=np.ones(6, dtype))
    run_same(made, FOLD_CONSTANTS, DEAD_NODES, into=kept)


@parametrize("axis", [-2, 0, 1])
def test_norms_of_constants_over_other_axes(axis):
  x = np.arange(24, dtype=np.float16).reshape(2, 3, 4) % 7
  assert_folded(of_constants("LayerNormalization", 17, x, np.full(x.shape[axis:], 2, np.float16), axis=axis))


@parametrize("dtype", [np.float32, np.float16, np.float64])
@parametrize("axes", [None, [0], [-1, 0], [1, 2], [2, 0, 1]])
@parametrize("op, opset", [("ReduceMean", 13), ("ReduceMean", 18), ("ReduceL2", 13), ("ReduceL2", 18)])
def test_means_and_norms_of_constants(op, opset, axes, dtype, rng):
  x = rng.standard_normal((3, 4, 50)).astype(dtype)
  x[0, 0], x[1, 2, 3], x[2, 1, 7] = -0.0, np.nan, np.inf
  given, attributes = ([x], {}) if axes is None else ([x, np.array(axes)], {}) if opset == 18 else ([x], {"axes": axes})
  for keepdims in (0, 1):
    original = of_constants(op, opset, *given, keepdims=keepdims, **attributes)
    optimized, _ = run_pass(original, FOLD_CONSTANTS, into="Identity")
    same_outputs(original, optimized)


@parametrize("precision", ["float", "float16"])
def test_weights_that_are_normalised(precision, rng):
  """By their norm, as wav2vec 2.0's, and standardised by a BatchNormalization in 16 bits, as NFNet's: of any size."""
  text = """(T[1,1] x) => (T[800,800] y) {
    axis = Constant<value_ints=[1]>()  n = ReduceL2(v, axis)  q = Div(g, n)  w = Mul(v, q)
    rows = {1,800,800}  u = Reshape(w, rows)
    last = Constant<value_ints=[0,2]>()  mean = ReduceMean<keepdims=0>(u, last)
    centre = ReduceMean<keepdims=1>(u, last)  d = Sub(u, centre)  s = Mul(d, d)
    variance = ReduceMean<keepdims=0>(s, last)  b = BatchNormalization<epsilon=1e-6>(u, g1, g0, mean, variance)
    columns = {800,800}  z = Reshape(b, columns)  y = Mul(z, x) }"""
  made = model(text.replace("T[", f"{precision}["), 18)
  dtype = np.float32 if precision == "float" else np.float16
  arrays = {
    "v": rng.standard_normal((800, 800)),
    "g": rng.random((800, 1)) + 0.5,
    "g1": np.ones(800),
    "g0": np.zeros(800),
  }
  add_weights(made, **{name: array.astype(dtype) for name, array in arrays.items()})
  optimized, _ = run_same(made, FOLD_CONSTANTS, DEAD_NODES)
  kept = "Mul" if precision == "float16" else "Sub Mul ReduceMean BatchNormalization Reshape Mul"
  assert sorted(operators(optimized)) == sorted(kept.split())
  assert optimized.ByteSize() < 1.01 * made.ByteSize()


UNTRUSTED = {
  "a batch norm of single precision": of_constants(
    "BatchNormalization", 15, np.ones((1, 2, 3), np.float32), *np.ones((4, 2), np.float32)
  ),
  "a mean of integers": of_constants("ReduceMean", 13, np.arange(4)),
  "a mean of nothing": of_constants("ReduceMean", 18, MATRIX, noop_with_empty_axes=1),
  "a norm of single precision": of_constants("LayerNormalization", 17, MATRIX, np.ones(MATRIX.shape[1:], np.float32)),
  "a product of too many": of_constants(
    "MatMul", 17, np.zeros((1024, 1 << 13), np.float16), np.zeros((1 << 13, 512), np.float16)
  ),
  "Squeeze of no axes, which ONNX Runtime takes for all": of_constants("Squeeze", 13, PIXEL, np.zeros(0, np.int64)),
  "a maximum of NaN": of_constants("ScatterElements", 18, ODD, np.array([0, 1, 1]), ODD[:3], axis=0, reduction="max"),
  "a sum of nothing, of -0": of_constants("ReduceSum", 13, ODD, noop_with_empty_axes=1),
  "a sum in half precision": of_constants("ReduceSum", 13, np.full(99, 0.1, np.float16)),
  "a product in half precision": of_constants("ReduceProd", 13, np.full(99, 1.01, np.float16)),
  "the sign of NaN": of_constants("Sign", 13, ODD.astype(np.float16)),
  "a remainder of floats without fmod": of_constants("Mod", 13, MATRIX, MATRIX),
}


def test_a_batch_norm_that_is_trained_stays():
  weights = "<float16[1,2] c = {15360,16384}, float16[2] g = {15360,15360}>"
  text = f"(float16[1,2] x) => (float16[1,2] y) {weights} {{ f = BatchNormalization<training_mode=1>(c, g, g, g, g)"
  stays(model(text + "  y = Add(x, f) }", 15), FOLD_CONSTANTS)


@parametrize("what", UNTRUSTED)
def test_what_onnx_and_onnx_runtime_compute_differently_stays(what):
  stays(UNTRUSTED[what], FOLD_CONSTANTS)


def test_a_value_of_another_shape_than_is_known_stays():
  """onnx's evaluator and its shape inference are two sources: where they contradict each other, one is wrong."""
  graph = annotated(of_constants("Neg", 17, MATRIX))
  graph.nodes[0].outputs[0].shape = (2, 4)
  assert not FOLD_CONSTANTS(graph).changes


def test_an_overridable_constant_stays():
  stays("(float[2] x, float c) => (float[2] y) <float c = {1}> { f = Neg(c)  y = Add(x, f) }", FOLD_CONSTANTS)


def test_a_graph_output_stays():
  stays("(float[2] x) => (y, float f) <float c = {1}> { f = Neg(c)  y = Add(x, f) }", FOLD_CONSTANTS)


def test_strings_stay():
  original = """(int64 i) => (string y) { s = Constant<value_strings=["a", "b"]>()  t = Identity(s)
    y = Gather(t, i) }"""
  stays(original, FOLD_CONSTANTS)


HUGE_SHAPE = "s = {1000000, 1000000}"
HUGE = {
  "ConstantOfShape": f"{HUGE_SHAPE}  f = ConstantOfShape(s)",
  "Expand": f"{HUGE_SHAPE}  o = float {{1.0}}  f = Expand(o, s)",
  "Tile": f"{HUGE_SHAPE}  o = float[1,1] {{1.0}}  f = Tile(o, s)",
  "Range": """a = float {0.0}  b = float {1e15}
    d = float {1.0}  f = Range(a, b, d)""",
  "Resize": """o = float[1,1] {1.0}  s = float[2] {1e6, 1e6}
    f = Resize(o, , s)""",
  "Pad": """o = float[1,1] {1.0}  p = {0,0,1000000,1000000}
    f = Pad(o, p)""",
  "OneHot": """i = {1}  d = int64 {1000000000000}
    v = float[2] {0.0, 1.0}  f = OneHot(i, d, v)""",
  "a shape whose product overflows": """s = {4294967296,4294967297}
    f = ConstantOfShape(s)""",
}


@parametrize("what", HUGE)
def test_a_tiny_file_that_asks_for_a_huge_tensor(what):
  original = f"(float x) => (y) {{ {HUGE[what]}  z = ReduceMax<keepdims=0>(f)  y = Add(x, z) }}"
  tracemalloc.start()
  begin = time.process_time()
  stays(original, FOLD_CONSTANTS)
  assert tracemalloc.get_traced_memory()[1] < 50 << 20
  assert time.process_time() - begin < 5
  tracemalloc.stop()


def test_many_small_ones_stop_at_the_total():
  nodes = "  ".join(f"f{i} = Expand(o, s)  y{i} = Mul(f{i}, x)" for i in range(100))
  outputs = ", ".join(f"float[N] y{i}" for i in range(100))
  original = f"""(float x) => ({outputs}) {{ s = {{262144}}
    o = float {{1.0}}  {nodes} }}"""
  optimized, _ = run_pass(original, FOLD_CONSTANTS)
  assert operators(optimized).count("Expand") == 100 - 64  # of 1 MiB each


def test_a_transposed_weight_does_not_grow_the_model(rng):
  weight = (rng.standard_normal((1024, 512)) / 32).astype(np.float32)  # 2 MiB
  original = model("(float[N,1024] x) => (float[N,512] y) { t = Transpose(w)  u = Transpose(t)  y = MatMul(x, u) }")
  add_weights(original, w=weight)
  optimized, _ = run_same(original, FOLD_CONSTANTS, into="MatMul")
  assert len(optimized.graph.initializer) == 1


def test_a_widened_weight_stays(rng):
  weight = rng.standard_normal((1024, 2048)).astype(np.float16)  # 4 MiB, 8 as float
  original = model("(float[N,1024] x) => (float[N,2048] y) { f = Cast<to=1>(w)  y = MatMul(x, f) }")
  add_weights(original, w=weight)
  stays(original, FOLD_CONSTANTS)


def test_the_total_is_without_what_is_replaced(monkeypatch, rng):
  """A chain of ten constants of 2 MiB each, of which one stays in the place of one that was there."""
  monkeypatch.setattr(fold_constants, "TOTAL_BYTES", 1 << 20)
  nodes = "  ".join(f"w{i + 1} = Neg(w{i})" for i in range(10))
  original = model(f"(float16[N,1024] x) => (float16[N,1024] y) {{ {nodes}  y = MatMul(x, w10) }}")
  add_weights(original, w0=rng.random((1024, 1024)).astype(np.float16))
  optimized, _ = run_same(original, FOLD_CONSTANTS, into="MatMul")
  assert len(optimized.graph.initializer) == 1
