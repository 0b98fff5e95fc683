import numpy as np
import onnx
from layout_helpers import SAME, VALUES, W, between, change, constant, graph, inner
from onnx import helper
from onnx_models import all_attributes, initializers, nodes_of
from pass_helpers import model, operators, parametrize, reasons, run_pass, run_same, same_outputs, stays

from ortplugin.optimizer.pipeline import (
  CHANNELS_LAST,
  CHANNELS_LAST_ALWAYS,
  CHANNELS_LAST_ON_GPU,
  CONV_EPILOGUE,
  FORBID_TF32,
  FUSE_CONV,
)


def attribute(node, name):
  return all_attributes(node).get(name)


def node_of(model, op):
  return nodes_of(model, op)[0]


def test_one_convolution():
  optimized, result = change(model(graph("y = Identity(c)")), into="Transpose FusedConv Identity Transpose")
  conv = node_of(optimized, "FusedConv")
  assert attribute(conv, "layout") == b"NHWC"
  weight = initializers(optimized)[conv.input[1]]
  np.testing.assert_array_equal(weight, VALUES.reshape(4, 4, 3, 3).transpose(0, 2, 3, 1).astype(np.float32))
  assert len(optimized.graph.initializer) == 1
  assert [each.nodes for each in result.changes] == [("'c' (FusedConv)",)]


@parametrize("beside", ["", "z = Conv<pads=[1,1]>(c, v)"])
def test_a_region_of_pointwise_convolutions_stays(beside):
  """They have an engine with channels first; another convolution beside them decides for all."""
  more = ", float[2,2,8] z" if beside else ""
  original = model(f"""(float[2,2,8] x) => (float[2,2,8] y{more})
    <float[2,2,1] w = {{1,2,3,4}}, float[2,2,3] v = {{1,2,3,4,5,6,7,8,9,10,11,12}}> {{
      c = Conv(x, w)  y = Relu(c)  {beside} }}""")
  single, _ = run_pass(original, FUSE_CONV)
  _, result = run_same(original, CHANNELS_LAST_ON_GPU, start=single)
  assert bool(result.changes) == bool(beside)


@parametrize("spatial", [1, 2, 3])
def test_ranks(spatial):
  values = ", ".join(str((i % 7 - 3) / 4) for i in range(3**spatial * 4))
  threes, fives, ones = (f",{size}" * spatial for size in (3, 5, 1))
  optimized, _ = change(
    model(f"""(float[N,2{fives}] x, float[1,2{ones}] r) => (float[N,2{threes}] y)
    <float[2,2{threes}] w = {{{values}}}, float[2] b = {{1,-1}}> {{ c = Conv(x, w, b)  y = Add(c, r) }}""")
  )
  assert operators(optimized)[-1] == "Transpose"
  bias = node_of(optimized, "FusedConv").input[2]
  assert [list(each.dims) for each in optimized.graph.initializer if each.name == bias] == [[2]]


@parametrize("length", ["5", "1", "L"])
@parametrize("pool", ["ReduceMean<axes=[2]>(c)", "GlobalAveragePool(c)"])
def test_squeeze_and_excite_with_one_spatial_dimension(pool, length):
  """Both orders of three axes are one permutation: a view to channels first must not become one to channels last."""
  original = model(f"""(float[N,4,{length}] x) => (y, float[N,4,1] p, r)
    <{constant("w", 4, 4, 1)}> {{
        c = Conv(x, w)  p = {pool}  s = Conv(p, w)  r = Relu(s)  e = Conv(r, w)  g = Sigmoid(e)  y = Mul(c, g)
    }}""")
  optimized, _ = change(original, L=6)
  assert "Reshape" in operators(optimized)


@parametrize("spatial", [1, 2, 3])
@parametrize("channels", [1, 3])
def test_views_of_one_pixel_and_of_one_channel(spatial, channels):
  """Values that leave the convolutions, and operands of lower rank, with channels last and as they were."""
  ones, weights = ",1" * spatial, constant("w", channels, channels, *[1] * spatial)
  change(
    model(f"""(float[N,{channels}{ones}] x, float[{channels}{ones}] o, float[N,{channels},7{ones[2:]}] z)
    => (float[N,{channels}{ones}] y, float[A,B{",D" * spatial}] u, float[A,B{",E" * spatial}] v)
    <{weights}>
    {{ c = Conv(x, w)  y = Add(c, o)  u = Conv(y, w)  t = Conv(z, w)  v = Mul(t, u) }}""")
  )


def test_float16_and_float_by_default():
  half = graph("y = Relu(c)", out="float16[N,4,5,6] y", x="float16[N,4,5,6] x")
  run_same(half, CHANNELS_LAST, start=run_pass(half, FUSE_CONV)[0], into="Transpose FusedConv Relu Transpose")
  single, _ = run_pass(graph("y = Relu(c)"), FUSE_CONV)
  for allowed in ({}, {"allow_tf32": 1}, {"allow_tf32": 0}):
    said = onnx.ModelProto.FromString(single.SerializeToString())
    node_of(said, "FusedConv").attribute.extend(helper.make_attribute(*each) for each in allowed.items())
    run_pass(said, CHANNELS_LAST, into="Transpose FusedConv Relu Transpose")
  for other in (GROUPED, ONE_DIMENSION):  # of which 3xTF32 has no engine
    stays(run_pass(model(other), FUSE_CONV, FORBID_TF32)[0], CHANNELS_LAST)
  double, _ = run_pass(graph("y = Relu(c)", out="double[N,4,5,6] y", x="double[N,4,5,6] x"), FUSE_CONV)
  stays(double, CHANNELS_LAST)


GROUPED = """(float[1,8,6,6] x) => (y) <float[8,2,1,1] w = {{{}}}> {{
  c = Conv<group=4>(x, w)  y = Relu(c) }}""".format(", ".join(["0.5"] * 16))
ONE_DIMENSION = """(float[1,2,6] x) => (float[1,2,5] y) <float[2,2,2] w = {1,2,3,4,5,6,7,8}> {
  c = Conv(x, w)  y = Relu(c) }"""


SHUFFLED = """(float[1,8,6,6] x) => (float[1,8,3,3] y) <float[8,8,1,1] w = {{{}}}, int64[8] order = {{{}}}> {{
  c = Conv<strides=[2,2]>(x, w)  s = Gather<axis=1>(c, order)  y = Relu(s) }}""".format(
  ", ".join(["0.5"] * 64), "0,4,1,5,2,6,3,7"
)


@parametrize("text", [GROUPED, ONE_DIMENSION, SHUFFLED])
def test_float_that_is_slow_on_a_cpu_asks_for_it(text):
  single, _ = run_pass(text, FUSE_CONV)
  _, result = run_pass(single, CHANNELS_LAST)
  assert not result.changes
  assert "slow with channels last on a CPU" in result.near_misses[0].reason
  run_pass(single, CHANNELS_LAST_ON_GPU, changes=1)
  node_of(single, "FusedConv").attribute.append(helper.make_attribute("allow_tf32", 1))
  optimized, _ = run_pass(single, CHANNELS_LAST)
  assert operators(optimized)[:2] == ["Transpose", "FusedConv"]


@parametrize(
  "nodes",
  [
    "c = Conv<group=4>(x, d)  y = Conv(c, w)",
    "c = Conv(x, w)  y = Gather<axis=0>(c, order)",
    "s = Gather<axis=1>(x, colours)  y = Conv(s, w)",
  ],
  ids=["depthwise", "images", "colours"],
)
def test_float_that_a_cpu_is_fast_at(nodes):
  """Beside what it is slow at: groups of one channel, whole images that are gathered, and their colours."""
  constants = f"{W}, {constant('d', 4, 1, 3, 3)}, int64[2] order = {{1, 0}}, int64[4] colours = {{2,1,0,3}}"
  original = f"(float[2,4,7,7] x) => (float[A,4,B,C] y) <{constants}> {{ {nodes} }}"
  optimized, _ = run_same(original, FUSE_CONV, CHANNELS_LAST)
  assert {attribute(each, "layout") for each in nodes_of(optimized, "FusedConv")} == {b"NHWC"}


@parametrize(
  "nodes, expected",
  [
    ("last = Relu(c)", "Relu"),
    ("last = Mul(c, per_channel)", "Mul"),
    ("last = Add(full, c)", "Add"),
    ("last = Mul(c, row)", "Mul"),
    ("last = Mul(c, number)", "Mul"),
    ("last = Add(c, x)", "Add"),
    ("a = Sigmoid(c)  last = Mul(a, c)", "Sigmoid Mul"),
    ("last = PRelu(c, per_channel)", "PRelu"),
    ("last = Clip(c, zero, six)", "Clip"),
    ("a = Cast<to=11>(c)  last = Cast<to=1>(a)", "Cast Cast"),
    ("a = Less(c, x)  last = Where(a, c, x)", "Less Where"),
    ("a, mask = Dropout(c)  b = Cast<to=1>(mask)  last = Mul(a, b)", "Dropout Cast Mul"),
    ("last = Sum(c, x, c)", "Sum"),
    ("a = Concat<axis=1>(c, x)  last = Slice(a, two, six_i, one)", "Concat Slice"),
    ("a = Concat<axis=-2>(c, c, pixel)  last = Relu(a)", "Concat Relu"),
    ("a, b = Split<axis=1>(c, halves)  last = Concat<axis=1>(b, a)", "Split Concat"),
    ("a = Slice(c, zeros, ends)  last = Relu(a)", "Slice Relu"),
    ("a = Slice(c, zeros2, ends2, minus, steps)  last = Relu(a)", "Slice Relu"),
    ("last = Pad(c, pads)", "Pad"),
    ('last = Pad<mode="reflect">(c, pads)', "Pad"),
    ("last = Pad(c, pads, number)", "Pad"),
    ("last = Softmax<axis=1>(c)", "Softmax"),
    ("last = LogSoftmax<axis=-1>(c)", "LogSoftmax"),
    ("last = Gather<axis=1>(c, order)", "Gather"),
    ("a = ReduceMean<axes=[1]>(c)  last = Sub(c, a)", "ReduceMean Sub"),
    ("a = ReduceMax<axes=[-1,1]>(c)  last = Sub(c, a)", "ReduceMax Sub"),
    ("a = ReduceSum(c, spatial)  last = Sub(c, a)", "ReduceSum Sub"),
    ("a = ArgMax<axis=1>(c)  b = Cast<to=1>(a)  last = Mul(c, b)", "ArgMax Cast Mul"),
    ("last = Transpose<0,1,3,2>(c)", "Transpose"),
    ("a = Reshape<allowzero=1>(c, flat)  last = Reshape(a, parted)", "Reshape Reshape"),
    ("a = Reshape(c, merged)  b = Sigmoid(a)  last = Reshape(b, parted)", "Reshape Sigmoid Reshape"),
  ],
)
def test_what_works_in_either_order(nodes, expected):
  constants = """float[4,1,1] per_channel = {1, 2, -3, 0.5}, float[6] row = {1, 2, 3, 4, 5, -6},
        float number = {0.5}, float zero = {0}, float six = {6}, int64[1] two = {2}, int64[1] six_i = {6},
        int64[1] one = {1}, int64[2] halves = {1, 3}, int64[3] zeros = {0, 0, 1}, int64[3] ends = {9, 4, 5},
        int64[2] zeros2 = {-1, 0}, int64[2] ends2 = {-9, 4}, int64[2] minus = {-2, 1}, int64[2] steps = {-1, 1},
        int64[8] pads = {0, 0, 1, 2, 0, 0, 3, 1}, int64[4] order = {2, 0, 3, 1}, int64[2] spatial = {2, -1},
        int64[3] merged = {0, 4, -1}, int64[3] flat = {-1, 4, 30}, int64[4] parted = {0, 4, 5, 6},
        float[1,4,1,6] pixel = {""" + ", ".join(map(str, range(24))) + "}"  # fmt: skip
  constants += ", float[1,4,5,6] full = {" + ", ".join(map(str, range(120))) + "}"
  original = between(nodes, constants)
  if "pixel" in nodes:
    original.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
  optimized, _ = change(original)
  assert inner(optimized) == ["FusedConv", *expected.split(), "FusedConv"]


@parametrize(
  "opset, nodes, constants, expected",
  [
    (18, "a = ReduceMax(c, i)  last = Sub(c, a)", "int64[1] i = {1}", "ReduceMax Sub"),
    (18, "last = Pad(c, p, , i)", "int64[4] p = {1,2,0,1}, int64[2] i = {-1,2}", "Pad"),
    (18, "a, b = Split<axis=-3, num_outputs=2>(c)  last = Concat<axis=-3>(b, a)", "", "Split Concat"),
    (23, "a = Softmax<axis=-3>(c)  last = Gelu(a)", "", "Softmax Gelu"),
    (11, "a = ReduceSum<axes=[1]>(c)  last = Sub(c, a)", "", "ReduceSum Sub"),
    (11, "a, b = Split<axis=1, split=[3,1]>(c)  last = Concat<axis=1>(b, a)", "", "Split Concat"),
    (11, "last = Softmax<axis=1>(c)", "", "Transpose Softmax Transpose"),  # over all axes from there on
  ],
)
def test_opsets(opset, nodes, constants, expected):
  original = between(nodes, constants)
  original.opset_import[0].version = opset
  optimized, _ = change(original)
  assert inner(optimized) == ["FusedConv", *expected.split(), "FusedConv"]


@parametrize(
  "nodes, constants, out, expected",
  [
    ("y = ReduceMax<axes=[2,1,3], keepdims=0>(c)", "", "float[N]", "ReduceMax"),
    ("a = ReduceSum<keepdims=0>(c, axes)  y = Neg(a)", "int64[2] axes = {3,2}", "float[N,4]", "ReduceSum Neg"),
    ("y = ArgMax<axis=1, keepdims=0>(c)", "", "int64[N,5,6]", "ArgMax"),
    ("y = Shape(c)", "", "int64[4]", "Shape Gather"),
    ("y = Shape<start=1, end=-1>(c)", "", "int64[2]", "Shape Gather"),
    ("y = Size(c)", "", "int64", "Size"),
  ],
)
def test_what_leaves_a_region_without_a_transpose(nodes, constants, out, expected):
  change(model(graph(nodes, constants, out=f"{out} y")), into=f"Transpose FusedConv {expected}")


@parametrize(
  "nodes",
  [
    "a = DepthToSpace<blocksize=2>(c)  last = SpaceToDepth<blocksize=2>(a)",
    'a = DepthToSpace<blocksize=2, mode="CRD">(c)  b = Relu(a)  last = SpaceToDepth<blocksize=2>(b)',
  ],
)
def test_blocks(nodes):
  """Each is one Transpose in either order, and that one moves rows of channels."""
  optimized, _ = change(between(nodes, out="[N,4,5,6]"))
  found = [each for each in inner(optimized) if each != "Relu"]
  assert found == ["FusedConv", *["Reshape", "Transpose", "Reshape"] * 2, "FusedConv"]


def test_the_model_s_own_transposes_cancel():
  """As ConvNeXt's: what lies between them has channels last already."""
  nodes = """a = Transpose<0,2,3,1>(c)  b = Softmax<axis=-1>(a)  d = MatMul(b, m)
    e = Transpose<0,3,1,2>(d)  f = Mul(e, g)  last = Add(f, c)"""
  constants = f"{constant('m', 4, 4)}, float[4,1,1] g = {{1, 2, 3, 4}}"
  optimized, _ = change(between(nodes, constants, out="[A,4,5,6]"))
  assert inner(optimized) == ["FusedConv", "Softmax", "MatMul", "Mul", "Add", "FusedConv"]


def test_an_image_with_channels_last_already():
  optimized, _ = change(
    model(f"""(float[N,5,6,4] x) => (y) <{W}> {{
    a = Transpose<0,3,1,2>(x)  b = {SAME}(a, w)  c = Relu(b)
    y = Transpose<0,2,3,1>(c) }}""")
  )
  assert [each for each in operators(optimized) if each != "Identity"] == ["FusedConv", "Relu"]


def test_three_axes():
  """Patches as tokens: Reshape to [N, C, HW] and Transpose to [N, HW, C] become the Reshape alone."""
  original = model(graph("a = Reshape(c, t)  y = Transpose<0,2,1>(a)", "int64[3] t = {0,4,-1}", out="float[N,30,4] y"))
  optimized, _ = change(original)
  assert operators(optimized)[:3] == ["Transpose", "FusedConv", "Reshape"]
  assert "Transpose" not in operators(optimized)[1:]


def test_one_transpose_for_all_readers():
  nodes = "a = LRN<size=3>(c)  b = LpPool<kernel_shape=[2,2]>(c)  y = Concat<axis=1>(a, c)"
  optimized, _ = change(model(graph(nodes, out="float[A,B,C,D] y, float[E,F,G,H] b")))
  assert operators(optimized).count("Transpose") <= 3


def test_a_branch_that_no_convolution_needs_stays():
  """Two values that are made with channels first, and a result that is needed so: their sum is one, too."""
  nodes = "a = LRN<size=3>(r)  b = LRN<size=3>(s)  d = Add(a, b)  y = Add(d, c)"
  change(model(graph(nodes, "", ", float[N,4,5,6] r, s")), into="Transpose FusedConv Transpose LRN LRN Add Add")


def test_vectors_are_views():
  """A squeeze-excite of an image that comes from elsewhere: [N, C, 1, 1] needs no Transpose."""
  original = model(f"""(float[N,4,5,6] x) => (float[N,4,1,1] y) <{constant("u", 4, 4, 1, 1)}> {{
    a = ReduceSumSquare<axes=[2,3]>(x)  b = Conv(a, u)  y = Sigmoid(b) }}""")
  change(original, into="ReduceSumSquare Reshape FusedConv Sigmoid Reshape")


def test_weights_that_are_computed():
  change(
    model("""(float[N,2,5,6] x, float[3,2,2,2] v, float[3] b) => (float[N,3,4,5] y) {
    y = Conv(x, v, b) }"""),
    into="Unsqueeze Transpose Transpose Unsqueeze Reshape FusedConv Transpose",
  )


def test_weights_of_two_convolutions_are_stored_once():
  optimized, _ = change(model(graph(f"a = Relu(c)  y = {SAME}(a, w)")))
  assert [list(each.dims) for each in optimized.graph.initializer] == [[4, 3, 3, 4]]


def test_what_a_body_or_a_graph_output_needs_is_transposed():
  """Where the convolution's own result is needed with channels first, what follows from it needs no second one."""
  nodes = """a = Relu(c)  y = If(b) <then () => (float[N,4,5,6] t) { t = Neg(a) },
      otherwise () => (float[N,4,5,6] e) { e = Abs(c) }>"""
  original = model(graph(nodes, "", ", bool b", "float[N,4,5,6] y, a"))
  change(original, into="Transpose FusedConv Transpose Relu If")
  nodes = nodes.replace("Abs(c)", "Abs(a)")
  original = model(graph(nodes, "", ", bool b", "float[N,4,5,6] y, a"))
  change(original, into="Transpose FusedConv Relu Transpose If")


def test_inside_a_body():
  optimized, _ = change(
    model(f"""(float[N,4,5,6] x, bool b) => (float[N,4,5,6] y) <{W}> {{
      y = If(b) <then () => (float[N,4,5,6] t) {{ c = {SAME}(x, w)  t = Relu(c) }},
                  otherwise () => (float[N,4,5,6] e) {{ e = Abs(x) }}> }}""")
  )
  body = next(each.g for each in optimized.graph.node[0].attribute if each.name == "then_branch")
  assert operators(body) == ["Transpose", "FusedConv", "Relu", "Transpose"]


def test_regions_change_one_by_one():
  text = graph(f"d = {SAME}(r, w)  z = Relu(d)  y = Relu(c)", "", ", float[N,4,5,6] r", "float[N,4,5,6] y, z")
  before, _ = run_pass(text, FUSE_CONV)
  optimized, _ = run_pass(before, CHANNELS_LAST_ALWAYS, limit=1, changes=1)
  layouts = [attribute(node, "layout") for node in nodes_of(optimized, "FusedConv")]
  assert sorted(str(each) for each in layouts) == ["None", "b'NHWC'"]


def test_epilogues_with_channels_last():
  original = between("a = Mul(c, g)  b = Add(a, x)  last = Relu(b)", "float[4,1,1] g = {1,2,3,4}", out="[A,4,5,6]")
  before, _ = run_pass(original, FUSE_CONV)
  run_same(original, CHANNELS_LAST_ALWAYS, CONV_EPILOGUE, start=before, into="Transpose FusedConv FusedConv Transpose")


def test_epilogues_from_before_change_with_their_convolution():
  original = between("a = Mul(c, g)  b = Add(a, x)  last = Relu(b)", "float[4,1,1] g = {1,2,3,4}", out="[A,4,5,6]")
  before, _ = run_pass(original, FUSE_CONV, CONV_EPILOGUE)
  run_same(original, CHANNELS_LAST_ALWAYS, start=before, into="Transpose FusedConv FusedConv Transpose")


@parametrize(
  "nodes",
  [
    "last = LRN<size=3>(c)",
    "last = InstanceNormalization(c, four, four)",
    "a = Reshape(c, other)  last = Reshape(a, back)",
    "a = ReduceSum<keepdims=0>(c, three)  b = Relu(a)  last = Unsqueeze(b, three)",
    "last = Pad(c, p)",
    "last = Slice(c, o, q, i)",
  ],
)
def test_where_a_region_ends(nodes):
  """An operator that knows channels first only, or whose axes are not known, has Transposes around it."""
  constants = """float[4] four = {1, 2, 3, 4}, int64[4] other = {0, 2, 10, 6}, int64[4] back = {0, 4, 5, 6},
        int64[1] three = {3}"""
  inputs = ", int64[8] p, int64[1] o, q, i" if nodes.endswith((" p)", " i)")) else ""
  original = between(nodes, constants, inputs)
  before, _ = run_pass(original, FUSE_CONV)
  optimized, result = run_pass(before, CHANNELS_LAST_ALWAYS)
  assert operators(optimized).count("Transpose") == 4
  assert any("it has no form with channels last" in each for each in reasons(result))
  if not inputs:
    same_outputs(original, optimized)


def test_a_kernel_of_unknown_size():
  before, _ = run_pass("(float[N,4,5,6] x, float[4,4,K,L] w) => (float[N,4,A,B] y) { y = Conv(x, w) }", FUSE_CONV)
  stays(before, CHANNELS_LAST_ALWAYS, "or kernel of its weights, or of an operand, is unknown")
