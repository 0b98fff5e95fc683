import numpy as np
import onnx.parser
from onnx_models import add_weights, one_in, ones, op_types, parametrize, parsed, raises

import ortplugin
from fuzz import lethal
from fuzz.evaluate import Evaluator, UnfitError, make_session
from fuzz.handmade import case_of
from fuzz.judge import Judge, optimize
from fuzz.worker import Worker

GRU = "y = GRU <hidden_size=1>(x, w, r)"
CONV = "y = ConvTranspose(x, w)"
LSTM = "y = LSTM <hidden_size=1>(x, w, r)"
NODES = {
  "gru": (GRU, "S, A, C", "1, 3, 1"),
  "lstm": (LSTM, "S, A, 1", "1, 4, 1"),
  "conv": (CONV, "1, 2, A, B, C", "2, 1, 2, 2, 2"),
}


def model_of(name):
  nodes, x, w = NODES[name]
  made = parsed(f"""(float[{x}] x) => (float[?,?,?,?,?] y) {{ {nodes.replace("x, w, r", "x, w, w")} }}""")
  add_weights(made, w=np.ones([int(each) for each in w.split(", ")], np.float32))
  return made


@parametrize(
  "name, shape, dies",
  [
    ("gru", (0, 4, 1), True),
    ("gru", (4, 0, 1), True),
    ("gru", (2, 4, 0), True),
    ("gru", (2, 4, 1), False),
    ("lstm", (4, 0, 1), True),
    ("lstm", (0, 0, 1), True),
    ("lstm", (0, 4, 1), False),
    ("lstm", (2, 4, 1), False),
    ("conv", (1, 2, 1, 0, 1), True),
    ("conv", (1, 2, 0, 1, 1), True),
    ("conv", (1, 2, 1, 1, 1), False),
    ("conv", (1, 2, 1, 1, 0), False),
  ],
)
def test_nodes(library, name, shape, dies):
  x, w = np.ones(shape, np.float32), np.ones([int(each) for each in NODES[name][2].split(", ")], np.float32)
  op = NODES[name][0].split("(")[0].split()[2]
  attributes = {"hidden_size": 1} if "hidden" in NODES[name][0] else {}
  inputs = [x, w, w] if attributes else [x, w]
  if dies:
    with raises(UnfitError, "ONNX Runtime dies of"):
      Evaluator().node(op, "", inputs, 1, attributes, 17)
  else:
    assert Evaluator().node(op, "", inputs, 1, attributes, 17)[0].ndim > 3


@parametrize("name, shape", [("gru", (0, 4, 1)), ("lstm", (2, 0, 1)), ("conv", (1, 2, 1, 0, 1))])
def test_a_case_is_unfit_and_its_other_feeds_are_judged(library, name, shape):
  empty = {"x": np.ones(shape, np.float32)}
  full = {"x": np.ones([max(1, size) for size in shape], np.float32)}
  assert Judge().judge(case_of(model_of(name), empty)).message.startswith("ONNX Runtime dies of")
  assert Judge().judge(case_of(model_of(name), full, empty)).what == "same"


@parametrize(
  "x, other, words",
  [((2, 3, 1), 0, ""), ((0, 3, 1), 1, ""), ((2, 0, 1), 1, "ONNX Runtime dies of an LSTM of no batch")],
)
def test_what_is_empty_beside_it_does_not_count(library, x, other, words):
  model = parsed("""(float[S,A,1] x, float[N] z) => (float[?,?,?,?] y, float[?] n) <float[1,4,1] w = {1,2,3,4}> {
        a = Transpose<1,0,2>(x)  b = Transpose<1,0,2>(a)  y = LSTM<hidden_size=1>(b, w, w)
        n = Neg(z) }""")
  feeds = {"x": np.ones(x, np.float32), "z": np.ones(other, np.float32)}
  assert lethal.of_model(model, feeds) == words
  if not words:
    assert Judge().judge(case_of(model, feeds)).what == "same"


def test_a_shape_that_is_not_known_may_be_what_it_dies_of():
  model = parsed("""(float[S,A,1] x, bool[A] c) => (float[?,?,?,?] y) <float[1,4,1] w = {1,2,3,4}> {
        b = Compress<axis=1>(x, c)  y = LSTM<hidden_size=1>(b, w, w) }""")
  assert lethal.of_model(model, {"x": ones(0, 2, 1), "c": np.zeros(2, np.bool_)})


def test_no_pixels_in_half(library):
  shapes, one = ((1, 1, 1, 0), (0, 1, 1, 1), (1, 1, 1, 1)), np.ones(1, np.float16)
  for shape in shapes:
    inputs = [np.ones(shape, np.float16), one, one]
    assert bool(lethal.of_node("InstanceNormalization", inputs)) == (shape == shapes[0])
    assert not lethal.of_node("InstanceNormalization", [each.astype(np.float32) for each in inputs])
  model = parsed("(float[N,C,P] x) => (y) <float[1] s = {1}> { y = InstanceNormalization(x, s, s) }")
  assert lethal.of_model(model, {"x": ones(1, 1, 0)})
  assert not lethal.of_model(model, {"x": ones(1, 1, 1)})


def test_regions_of_no_pixels():
  """ONNX Runtime reads what is not there, which not every process dies of."""
  for shape in ((1, 1, 1, 0), (1, 1, 0, 1), (1, 1, 1, 1)):
    assert bool(lethal.of_node("RoiAlign", [np.ones(shape, np.float32)])) == (0 in shape)


@parametrize(
  "name, body",
  [
    ("float[1,16,H,W] x", "p = MaxPool<kernel_shape=[2,2]>(x)  y = Neg(p)"),
    ("float16[2,2,H] x", "p = Transpose<1,0,2>(x)  q = MatMul(p, b)  y = Unsqueeze(q, a)"),
  ],
)
def test_what_the_original_dies_of_with_onnx_runtimes_own_optimizations(library, name, body):
  """It divides by zero in a layout of its own, and dies of a Transpose that it draws into a MatMul in fp16."""
  model = parsed(f"({name}) => (float[?,?,?,?] y) <float16[1,1] b = {{1}}, int64[1] a = {{0}}> {{ {body} }}")
  dtype = model.graph.input[0].type.tensor_type.elem_type
  model.graph.output[0].type.tensor_type.elem_type = dtype
  shape = (1, 16, 1, 1) if dtype == onnx.TensorProto.FLOAT else (2, 2, 1)
  x = np.ones(shape, onnx.helper.tensor_dtype_to_np_dtype(dtype))
  worker = Worker()
  verdict = worker.ask(case_of(model, {"x": x}, checks=("ort",)))
  worker.close()
  assert verdict.what == "unfit"
  assert "own optimizations: the process died" in verdict.message


@one_in(3)
@parametrize("first", ["Identity", "Relu"])  # the Cast to fp16 is a node, or in a program
@parametrize("perm, rotates", [("1, 2, 0", True), ("1, 0, 2", True), ("0, 2, 1", False)])
def test_what_the_result_in_half_dies_of(library, perm, rotates, first):
  """The case as it is, which the fuzzer compares with ONNX Runtime's optimizations where it lives through them."""
  model = parsed(f"""(float[2,2,2] x) => (float[2,2,1] y) <float[2,1] w = {{1,2}}>
        {{ a = {first}(x)  t = Transpose<perm=[{perm}]>(a)  y = MatMul(t, w) }}""")
  options = {"precision": "fp16", "skip": ["matmul-to-fused", "fuse-transpose"]}  # which leave nothing to die of
  case = case_of(model, {"x": ones(2, 2, 2)}, checks=("ort",), **options)
  worker = Worker()
  assert worker.ask(case).what == "same"
  worker.close()
  made, _ = optimize(case)
  assert lethal.of_rotation(made) == rotates
  assert not lethal.of_rotation(model)


@parametrize("mode, layout, cubic", [("cubic", "nhwc", True), ("linear", "nhwc", False), ("cubic", "nchw", False)])
def test_what_the_result_fails_of_with_onnx_runtimes_own_optimizations(library, mode, layout, cubic):
  """A Transpose before a cubic Resize to one row."""
  model = parsed(
    f"""(float[1,2,3,3] x) => (float[1,2,1,2] y)
        <float[2,2,1,1] w = {{1,2,3,4}}, int64[4] s = {{1,2,1,2}}>
        {{ c = Conv(x, w)  y = Resize<mode="{mode}">(c, "", "", s) }}""",
    18,
  )
  options = {"layout": layout, "skip": ["fuse-resize"]}
  case = case_of(model, {"x": ones(1, 2, 3, 3)}, checks=("ort",), **options)
  assert Judge().judge(case).what == "same"
  made, _ = optimize(case)
  assert lethal.of_cubic(made) == cubic
  assert not lethal.of_cubic(model)


@parametrize("axis, layout, crops", [("-2", "nhwc", True), ("2", "nhwc", True), ("2", "nchw", False)])
def test_what_the_result_fails_of_with_a_crop(library, axis, layout, crops):
  """A Transpose before a CenterCropPad along one axis."""
  model = parsed(
    f"""(float[1,2,5,6] x) => (float[1,2,2,6] y) <float[2,2,1,1] w = {{1,2,3,4}}, int64[1] s = {{2}}>
        {{ c = Conv(x, w)  y = CenterCropPad<axes=[{axis}]>(c, s) }}""",
    21,
    10,
  )
  case = case_of(model, {"x": np.arange(60, dtype=np.float32).reshape(1, 2, 5, 6)}, checks=("ort",), layout=layout)
  assert Judge().judge(case).what == "same"
  made, _ = optimize(case)
  assert lethal.of_crop(made) == crops
  assert not lethal.of_crop(model)


@parametrize("length, beyond", [(1, False), (2, True)])
def test_a_scale_that_is_read_beyond_on_a_gpu(length, beyond):
  model = parsed("""(float[n] x) => (float[?] y) <float[1] s = {1}, float[1] b = {2}>
        { a = Abs(x)  y = LayerNormalization<axis=0>(a, s, b) }""")
  assert lethal.of_scale(model, {"x": np.ones(length, np.float32)}) == beyond


def test_an_empty_feed_alone_is_judged():
  model = onnx.parser.parse_model("<ir_version: 8> g (float[N] x) => (float[N] y) { y = Abs(x) }")
  assert not lethal.of_model(model, {"x": ones(0)})
  for dimensions in (2, 3):
    whole = model_of("conv")
    whole.graph.node[0].attribute.append(onnx.helper.make_attribute("kernel_shape", [2] * dimensions))
    assert bool(lethal.of_model(whole, {"x": ones(1, 2, 1, 0, 1)})) == (dimensions == 3)


def test_ours_takes_an_empty_volume(library):
  made, _ = ortplugin.optimize(model_of("conv"))
  assert op_types(made) == ["FusedConvTranspose"]
  (found,) = make_session(made).run(None, {"x": ones(1, 2, 1, 0, 1)})
  assert found.shape == (1, 1, 2, 1, 2)
  assert not found.any()


def test_a_conv_in_three_dimensions_that_fails_on_a_gpu():
  def conv(op, kernel):
    node = onnx.helper.make_node(op, ["x", "w"], ["y"], kernel_shape=kernel)
    return onnx.helper.make_model(onnx.helper.make_graph([node], "g", [], []))

  message = "Non-zero status code returned while running Conv node. Name:'' Status Message: Integer overflow"
  assert lethal.of_conv(conv("Conv", [1, 2, 2]), message)
  assert not lethal.of_conv(conv("Conv", [2, 2]), message)
  assert not lethal.of_conv(conv("ConvTranspose", [1, 2, 2]), message)
  assert lethal.of_conv(conv("ConvTranspose", [1, 2, 2]), message.replace("Conv", "ConvTranspose"))
  assert not lethal.of_conv(conv("Conv", [1, 2, 2]), message.replace("Conv", "FusedConv"))


@parametrize("op, what", [("AveragePool", "unfit"), ("MaxPool", "same")])
def test_what_the_original_fails_by_with_onnx_runtimes_own_optimizations(library, op, what):
  """It draws a Pad into the AveragePool, too, which then refuses an image of no pixels."""
  model = parsed(
    f"""(float[1,1,n] x) => (float[?,?,?] y) <int64[6] pads = {{0,0,2,0,0,1}}>
        {{ a = Pad(x, pads) y = {op}<kernel_shape=[3]>(a) }}""",
    13,
    7,
  )
  verdict = Judge().judge(case_of(model, {"x": ones(1, 1, 0)}))
  assert verdict.what == what
  assert ("fails alike" in verdict.message) == (what == "unfit")
