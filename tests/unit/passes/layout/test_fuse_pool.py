from layout_helpers import SAME, W, between, change, graph, inner
from pass_helpers import model, operators, parametrize, reasons, run_pass

from ortplugin.optimizer.pipeline import CHANNELS_LAST_ALWAYS, FUSE_CONV


@parametrize(
  "nodes, expected",
  [
    ("a = MaxPool<kernel_shape=[2,3], strides=[1,2], pads=[1,1,0,1]>(c)  last = Relu(a)", ["FusedPool", "Relu"]),
    ('last = MaxPool<kernel_shape=[2,2], auto_pad="SAME_UPPER", ceil_mode=1>(c)', ["FusedPool"]),
    ("last = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1], count_include_pad=1>(c)", ["FusedPool"]),
    ("p = GlobalAveragePool(c)  last = Mul(c, p)", ["FusedPool", "Mul"]),
    ("p = GlobalMaxPool(c)  last = Mul(c, p)", ["FusedPool", "Mul"]),
    ("p = ReduceMean<axes=[2,3]>(c)  last = Mul(c, p)", ["FusedPool", "Mul"]),
    ('last = Resize<mode="nearest">(c, , scales)', ["FusedResize"]),
    ('last = Resize<mode="linear", coordinate_transformation_mode="align_corners">(c, , scales)', ["FusedResize"]),
  ],
)
def test_pools_and_resize(nodes, expected):
  optimized, _ = change(between(nodes, "float[4] scales = {1,1,2,1.5}" if "scales" in nodes else ""))
  assert inner(optimized) == ["FusedConv", *expected, "FusedConv"]


@parametrize(
  "nodes, constants, expected",
  [
    ("a = GlobalAveragePool(c)  y = Flatten(a)", "", ["Flatten"]),
    ("a = GlobalAveragePool(c)  y = Reshape(a, flat)", "int64[2] flat = {0,-1}", ["Reshape"]),
    ("a = GlobalMaxPool(c)  y = Squeeze(a, axes)", "int64[2] axes = {3,2}", ["Squeeze"]),
    ("a = ReduceMean<axes=[-1,-2], keepdims=0>(c)  y = Relu(a)", "", ["Reshape", "Relu"]),
    ("y = ReduceMax<axes=[2,3], keepdims=0>(c)", "", ["Reshape"]),
  ],
)
def test_vectors_leave_a_region_without_a_transpose(nodes, constants, expected):
  change(model(graph(nodes, constants, out="float[N,4] y")), into=["Transpose", "FusedConv", "FusedPool", *expected])


@parametrize(
  "nodes, constants, outputs",
  [
    ("last, i = MaxPool<kernel_shape=[2,2]>(c)", "", ", int64[E,F,G,H] i"),
    ('last = Resize<mode="cubic">(c, , scales)', "float[4] scales = {1,1,2,1.5}", ""),
    ("last = Resize<antialias=1>(c, , scales)", "float[4] scales = {1,1,2,1.5}", ""),
    ("a = Resize(c, , scales)  last = MaxPool<kernel_shape=[1,1]>(a)", "float[4] scales = {2,1,2,1.5}", ""),
    ("last = LpPool<kernel_shape=[2,2]>(c)", "", ""),
  ],
)
def test_what_ours_do_not_do(nodes, constants, outputs):
  original = model(graph(f"{nodes}  y = {SAME}(last, w)", constants, out=f"float[A,B,C,D] y{outputs}"), 18)
  optimized, result = run_pass(run_pass(original, FUSE_CONV)[0], CHANNELS_LAST_ALWAYS)
  assert not {"FusedPool", "FusedResize"} & set(operators(optimized)[:4])
  assert any("it has no form with channels last" in each for each in reasons(result))


@parametrize(
  "rows, attributes, opset, fused",
  [
    ("3", "strides = [2, 2], count_include_pad = 1", 18, False),
    ("3", "strides = [2, 2], count_include_pad = 1", 19, False),
    ("3", "strides = [2, 2]", 18, True),
    ("3", "strides = [2, 2], pads = [1, 0, 0, 1], count_include_pad = 1", 18, True),
    ("rows", "strides = [2, 2], count_include_pad = 1", 18, False),
    ("rows", "strides = [2, 2], count_include_pad = 1", 19, True),
    ("rows", 'auto_pad = "SAME_UPPER", count_include_pad = 1', 18, True),
  ],
)
def test_a_kernel_larger_than_the_padded_image(rows, attributes, opset, fused):
  """ONNX Runtime's AveragePool may count what such a window has beyond the padding: before opset 19, and in 1.32."""
  nodes = f"c = {SAME}(x, w)  p = AveragePool<kernel_shape = [4, 2], {attributes}>(c)  y = {SAME}(p, w)"
  optimized, _ = change(model(f"(float[N,4,{rows},6] x) => (float[N,4,A,B] y) <{W}> {{ {nodes} }}", opset))
  assert ("FusedPool" in operators(optimized)) is fused


@parametrize("pad", ["SAME_UPPER", "SAME_LOWER"])
@parametrize("kernel, stride, fused", [(1, 4, False), (1, 3, False), (2, 3, True), (1, 2, True)])
@parametrize("size", [3, 4, 5, 6, 7, 8])
def test_windows_that_skip_elements(pad, kernel, stride, fused, size):
  """Of which ONNX Runtime may skip some before the first window."""
  attributes = f'kernel_shape = [{kernel}, 1], strides = [{stride}, 1], auto_pad = "{pad}", count_include_pad = 1'
  nodes = f"c = {SAME}(x, w)  p = AveragePool<{attributes}>(c)  y = {SAME}(p, w)"
  optimized, _ = change(model(f"(float[N,4,{size},6] x) => (float[N,4,A,B] y) <{W}> {{ {nodes} }}", 22))
  assert ("FusedPool" in operators(optimized)) is fused


def test_the_cheapest_place():
  """The pooled image is transposed, not what is pooled, however many operators are between."""
  nodes = "a = Relu(c)  b = MaxPool<kernel_shape=[5,5]>(a)  d = Neg(b)  y = LRN<size=3>(d)"
  change(model(graph(nodes, out="float[A,B,C,D] y")), into="Transpose FusedConv Relu FusedPool Neg Transpose LRN")


def test_dynamic_spatial_dimensions():
  nodes = f"""c = {SAME}(x, w)  a = Relu(c)  b = MaxPool<kernel_shape=[2,2]>(a)  s = Shape(c)
    p = ReduceMean<axes=[2,3]>(b)  d = Mul(b, p)  y = {SAME}(d, w)"""
  optimized, _ = change(model(f"(float[N,4,rows,length] x) => (float[N,4,A,B] y, int64[4] s) <{W}> {{ {nodes} }}"))
  found = operators(optimized)
  assert found.count("Transpose") == 2
  assert (found[0], found[-1]) == ("Transpose", "Transpose")


def test_no_channels_stay_as_they_are():
  """To a Reshape 0 is no length."""
  nodes = f"c = {SAME}(x, none)  y = ReduceMax<axes=[2,3], keepdims=0>(c)"
  optimized, _ = run_pass(
    f"(float[N,4,5,6] x) => (float[N,0] y) <float[0,4,3,3] none = {{}}> {{ {nodes} }}", FUSE_CONV, CHANNELS_LAST_ALWAYS
  )
  assert "ReduceMax" in operators(optimized)
