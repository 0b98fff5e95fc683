import numpy as np
from onnx import helper
from onnx_models import add_weights, computed, parametrize, parsed, raises, value_infos

from ortplugin.errors import ModelError
from ortplugin.model.upgrade import BFLOAT16_OPSET, upgrade
from ortplugin.optimizer import optimize

IMAGE = "(float[2,3,4,5] x) => (float[A,B,C,D] y) "
KERNEL = "(float[2,3,4,5] x, float[3,2,3,3] w) => (float[A,B,C,D] y) "
ROWS = "(float[2,8] x) => (float[A,B] y) "


def parse(text, opset, ir=8):
  """`text`: a graph, or nodes alone, which make y of an image x."""
  graph = text if text.startswith("(") else f"{IMAGE}{{ {text} }}"
  return parsed(graph, opset, ir, domains=["com.microsoft"])


def run(model, rng):
  given = {each.name for each in model.graph.initializer}
  feeds = {}
  for each in model.graph.input:
    if each.name not in given:
      dtype = helper.tensor_dtype_to_np_dtype(each.type.tensor_type.elem_type)
      shape = [dim.dim_value for dim in each.type.tensor_type.shape.dim]
      feeds[each.name] = (rng.integers(0, 2, shape) if dtype.kind in "ib" else rng.standard_normal(shape)).astype(dtype)
  return computed(model, feeds)


def assert_same(original, upgraded, rng, **tolerances):
  """Both compute the same of the same random inputs; `tolerances`: others than usual."""
  state = rng.bit_generator.state
  expected = run(original, rng)
  rng.bit_generator.state = state
  for a, b in zip(expected, run(upgraded, rng), strict=True):
    assert a.dtype == b.dtype
    np.testing.assert_allclose(b, a, **({"rtol": 1e-5, "atol": 1e-6} | tolerances))


@parametrize("ir", [3, 8])
@parametrize(
  "opset, text",
  [
    (7, 'y = Upsample<mode="nearest", scales=[1.0,1.0,2.0,3.0]>(x)'),
    (8, 'y = Upsample<mode="linear", scales=[1.0,1.0,2.0,1.5]>(x)'),
    (9, 's = float[4] {1, 1, 2, 1.5}  y = Upsample<mode="linear">(x, s)'),
    (10, 's = float[4] {1, 1, 2, 0.6}  y = Resize<mode="linear">(x, s)'),
    (10, 's = float[4] {1, 1, 2.5, 1.7}  y = Resize<mode="nearest">(x, s)'),
    (10, "s = float[4] {1, 1, 0.6, 0.7}  y = Resize(x, s)"),
    (7, 'a = Upsample<mode="linear", scales=[1.0,1.0,2.0,3.0]>(x)  y = Relu(a)'),
    (9, "s = float[4] {1, 1, 2.3, 1.6}  a = Upsample(x, s)  y = Relu(a)"),
    (10, "s = float[4] {1, 1, 0.3, 0.6}  a = Resize(x, s)  y = Relu(a)"),
    (9, "y = Pad<pads=[0,0,1,1,0,0,2,2], value=1.5>(x)"),
    (9, 'y = Pad<pads=[0,0,1,1,0,0,2,2], mode="reflect">(x)'),
    (9, 'y = Pad<pads=[0,0,1,1,0,0,2,2], mode="edge", value=1.5>(x)'),
    (9, "y = ThresholdedRelu<alpha=0.5>(x)"),  # which is ONNX's from opset 10 on
    (8, "y = Clip<min=0.0, max=0.5>(x)"),
    (6, "y = Clip<min=0.0, max=0.5>(x)"),
    (2, "y = Softmax<axis=2>(x)"),
    (8, "y = Clip<min=0.25>(x)"),
    (7, IMAGE + "<float[2,3,4,5] a, float[2,3,4,5] m> { a, m = Dropout<ratio=0.3>(x)  y = Relu(a) }"),
    (
      7,
      IMAGE
      + """<float[2,3,8,15] a>
          { a = Upsample<mode="linear", scales=[1.0,1.0,2.0,3.0]>(x)  y = Relu(a) }""",
    ),
    (7, "y = Dropout<ratio=0.3>(x)"),
    (9, "y = Softmax(x)"),
    (9, "y = LogSoftmax<axis=2>(x)"),
    (7, "y = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1], strides=[2,2]>(x)"),
    (8, 'y = MaxPool<kernel_shape=[3,3], auto_pad="SAME_LOWER", strides=[2,2]>(x)'),
    (9, KERNEL + '{ y = ConvTranspose<auto_pad="SAME_UPPER", strides=[2,2]>(x, w) }'),
    (9, KERNEL + "{ y = ConvTranspose<output_shape=[8,11], strides=[2,2]>(x, w) }"),
    (9, "(float[2,3,4,5] x) => (float[A,B] y) { y = ReduceMean<axes=[2,3], keepdims=0>(x) }"),
    (9, ROWS.replace("y)", "y, int64[A,B] i)") + "{ y, i = TopK<k=3>(x) }"),
    (9, ROWS + "{ y = Slice<axes=[1], starts=[1], ends=[-1]>(x) }"),
    (9, ROWS + "{ a = Relu(x)  y = com.microsoft.Gelu(a) }"),
    (
      9,
      """(float[4] x, float[2] u) => (float[4] y) {
          i = {3,1}  y = Scatter(x, i, u) }""",
    ),
    (
      9,
      ROWS.replace("float[2,8] x", "bool c, float[2,8] x")
      + """{ y = If(c)
            <then () => (float[2,8] p) { p = Clip<min=0.0>(x) },
             else () => (float[2,8] q) { q = Relu(x) }> }""",
    ),
  ],
)
def test_computes_the_same(opset, text, ir, rng):
  original = parse(text, opset, ir)
  upgraded = upgrade(original)
  assert {each.domain: each.version for each in upgraded.opset_import} == {"": 11, "com.microsoft": 1}
  assert_same(original, upgraded, rng)


NEEDED_BY_BFLOAT16 = [
  (11, "y = Softmax<axis=2>(x)"),
  (12, "y = LogSoftmax(x)"),
  (12, "y = ReduceSum<axes=[1], keepdims=1>(x)"),
  (11, "a = ReduceMean<axes=[1]>(x)  b = Squeeze<axes=[1]>(a)  y = Unsqueeze<axes=[1]>(b)"),
  (11, "y, z = Split<axis=2, split=[1,3]>(x)"),
  (11, "y = Dropout<ratio=0.3>(x)"),
  (12, "y = Clip(x)"),
  (7, "y = Clip<min=0.0, max=0.5>(x)"),
  (8, 'y = Upsample<mode="linear", scales=[1.0,1.0,2.0,1.5]>(x)'),
  (
    12,
    """(float[2,3,4,5] x) => (float[A,B,C,D] y) <float[4] s = {1,1,2,0.5}, float[0] r = {}>
      { y = Resize<mode="linear", coordinate_transformation_mode="align_corners">(x, r, s) }""",
  ),
]


@parametrize("opset, text", NEEDED_BY_BFLOAT16)
def test_computes_the_same_for_bfloat16(opset, text, rng):
  original = parse(text, opset)
  upgraded = upgrade(original, BFLOAT16_OPSET)
  version = 14 if "Softmax" in text else 13  # whose Reshape may have a length of 0
  assert {each.domain: each.version for each in upgraded.opset_import} == {"": version, "com.microsoft": 1}
  assert_same(original, upgraded, rng)


@parametrize("shape", [(0, 1, 1), (2, 3, 0), (2, 0, 3), (2, 3, 4)])
@parametrize("axis", [0, 1, 2])
def test_a_softmax_of_no_elements(axis, shape):
  original = parse(f"(float[a,b,c] x) => (float[d,e,f] y) {{ y = Softmax<axis={axis}>(x) }}", 9)
  for each in (original, upgrade(original, BFLOAT16_OPSET)):
    assert computed(each, {"x": np.ones(shape, np.float32)})[0].shape == shape


# With their dtypes: ONNX Runtime has no Clip of double before opset 12.
@parametrize(
    "dtype, opset, nodes",
    [
        ("float16", 10, "a = Neg(x)  y = Pad<pads=[0,0,1,1,0,0,1,1]>(a)"),
        ("double", 10, "a = Neg(x)  y = Pad<pads=[0,0,1,1,0,0,1,1]>(a)"),
        ("float16", 7, "a = Neg(x)  y = Pad<pads=[0,0,1,1,0,0,1,1], value=1.1>(a)"),
        ("double", 7, "a = Neg(x)  y = Pad<pads=[0,0,1,1,0,0,1,1], value=1.1>(a)"),
        ("double", 9, """y = If(c)
            <then () => (double[A,B,C,D] p) { p = Pad<pads=[0,0,1,1,0,0,1,1]>(x) },
            else () => (double[A,B,C,D] q)
            { q = Pad<pads=[0,0,2,0,0,0,0,2], value=1.1>(x) }>"""),
        ("float16", 10, "a = Neg(x)  y = Clip<max=0.3>(a)"),
        ("float16", 7, "y = Clip<min=-0.7, max=0.3>(x)"),
        ("double", 9, """i = int64[1, 1, 1, 1] {1}
          u = Slice<starts=[0,0,0,0], ends=[1,1,1,1]>(x)
          a = Scatter<axis=2>(x, i, u)  y = Pad<pads=[0,0,1,1,0,0,1,1], value=1.1>(a)"""),
        ("float16", 8, """a = Upsample<mode="nearest", scales=[1.0,1.0,2.0,3.0]>(x)
          y = Pad<pads=[0,0,1,1,0,0,1,1], value=1.1>(a)"""),
    ],
)  # fmt: skip
def test_attributes_that_became_inputs_have_the_dtype_of_the_node(dtype, opset, nodes, rng):
  original = parse(f"(bool c, {dtype}[2,3,4,5] x) => ({dtype}[A,B,C,D] y) {{ {nodes} }}", opset)
  upgraded = upgrade(original)
  for _ in range(8):  # so that both branches run
    assert_same(original, upgraded, rng, rtol=0, atol=0)


def test_initializers_are_no_inputs_any_more(rng):
  """Before IR version 4 they had to be; with a later version a caller could override them."""
  text = """(float[3] x, w) => (y) <float[3] w = {1,2,3}> {
    a = Mul(x, w)  y = Clip<min=0.0>(a) }"""
  upgraded = upgrade(parse(text, 9, ir=3))
  assert [each.name for each in upgraded.graph.input] == ["x"]
  assert upgraded.ir_version >= 4
  kept = upgrade(parse(text, 9, ir=4))
  assert [each.name for each in kept.graph.input] == ["x", "w"]


def test_bodies_that_use_one_name_twice(rng):
  """The conversion renames the output of an Upsample."""
  branch = '() => (float[A,B,C,D] p) { q = Upsample<mode="linear", scales=[1.0,1.0,2.0,3.0]>(x)  p = Neg(q) }'
  other = "() => (float[A,B,C,D] p) { q = Relu(x)  p = Upsample<scales=[1.0,1.0,2.0,3.0]>(q) }"
  head = IMAGE.replace("(float", "(bool c, float", 1)
  original = parse(f"{head} {{ y = If(c) <then_branch=a {branch}, else_branch=b {other}> }}", 8)
  upgraded = upgrade(original)
  for _ in range(8):  # so that both branches run
    assert_same(original, upgraded, rng)


def test_large_weights_and_descriptions_are_kept():
  model = parse("(float[N,512] x) => (y) { a = MatMul(x, w)  y = Clip<max=6.0>(a) }", 9)
  add_weights(model, w=np.arange(512 * 512, dtype=np.float32).reshape(512, 512))
  model.doc_string, model.graph.doc_string, model.producer_name = "model", "graph", "producer"
  for node in model.graph.node:
    node.name, node.doc_string = f"{node.op_type} node", f"what {node.op_type} is"
    node.metadata_props.add(key="a", value="b")
  before = model.SerializeToString(deterministic=True)
  upgraded = upgrade(model)
  assert model.SerializeToString(deterministic=True) == before
  assert upgraded.graph.initializer == model.graph.initializer
  assert (upgraded.doc_string, upgraded.graph.doc_string, upgraded.producer_name) == ("model", "graph", "producer")
  assert [node.op_type for node in upgraded.graph.node if node.op_type != "Constant"] == ["MatMul", "Clip"]
  for node in upgraded.graph.node:
    if node.op_type != "Constant":
      assert (node.name, node.doc_string) == (f"{node.op_type} node", f"what {node.op_type} is")
      assert len(node.metadata_props) == 1
  assert [each.name for each in upgraded.graph.input] == ["x"]


@parametrize("opset", [11, 17])
def test_a_newer_model_is_left_alone(opset):
  model = parse("(float[3] x) => (y) { y = Relu(x) }", opset)
  assert upgrade(model) is model


@parametrize(
  "opset, text, fragment",
  [
    (6, "y = Add(x, x)", "from opset 6 to 11: node 'y' (Add) changed before opset 7"),
    (5, "y = Relu(x)", "from opset 5 to 11: node 'y' (Relu) changed before opset 7"),
    (
      8,
      """(float[1,4] s, float[1,3,4] x) => (float[1,4] f, float[1,3,4] y) { f, y = Scan<num_scan_inputs = 1,
          body = b (float[4] a, e) => (o, p) { o = Add(a, e)  p = Neg(o) }> (, s, x) }""",
      "(Scan) has the batch dimension",
    ),
    (
      8,
      "(float[2,3] x, float[3] s) => (float[2,3] y) { y = BatchNormalization<spatial=0>(x, s, s, s, s) }",
      "from opset 8 to 11: Attribute spatial must have value 1; export the model again",
    ),
    (10, "s = float[4] {1, 1, 2, 0.6}  y = Resize(x, s)", "(Resize) both enlarges and shrinks"),
    (9, "a, m = Dropout(x)  y = Add(a, m)", "the mask of node '' (Dropout)"),
    (10, IMAGE.replace("x)", "x, float[4] s)") + "{ y = Resize(x, s) }", "'s', that are no constant"),
    (
      9,
      IMAGE + '{ y = Sin(x) } <domain: "f", opset_import: ["" : 9]> F (a) => (b) { b = Neg(a) }',
      "it has local functions",
    ),
  ],
)
def test_refused(opset, text, fragment):
  with raises(ModelError, "export the model again with opset 11 or later") as caught:
    upgrade(parse(text, opset))
  assert fragment in str(caught.value)


@parametrize("opset", [10, 11])
def test_a_mask_that_becomes_true(opset, rng):
  """Outside of training ONNX Runtime's Dropout gives a mask of false before opset 12 and of true from there on."""
  original = parse("(float[2,3] x) => (y, bool[2,3] m) { y, m = Dropout(x) }", opset)
  assert not run(original, rng)[1].any()
  assert upgrade(original, 11).graph.node[0].op_type == "Dropout"
  with raises(ModelError, r"the mask of node '' \(Dropout\), false before opset 12"):
    upgrade(original, BFLOAT16_OPSET)
  unread = parse("(float[2,3] x) => (y) { y, m = Dropout(x) }", opset)
  assert upgrade(unread, BFLOAT16_OPSET).graph.node[-1].op_type == "Dropout"  # behind its ratio


def test_refused_in_opset_13():
  words = "from opset 11 to 13, which bfloat16 needs: node '' .Hardmax. .* again with opset 13 or later"
  with raises(ModelError, words):
    optimize(parse(ROWS + "{ a = Relu(x)  y = Hardmax(a) }", 11), precision="bf16")


def test_where_nothing_is_rewritten_the_model_is_as_it_was():
  model = parse("(float[3] x) => (y) { y = Softmax(x) }", 9, ir=3)
  optimized, report = optimize(model)
  assert report.opset is None
  assert optimized == model


def test_the_report_says_so_and_the_original_is_what_is_compared_with():
  model = parse("(float[3] x) => (y) { a = Identity(x)  b = Clip<max=0.1>(a)  y = Neg(b) }", 9, ir=3)
  optimized, report = optimize(model, verify=True, providers=["cpu"])
  assert report.opset == (9, 11)
  assert report.to_dict()["opset"] == (9, 11)
  assert report.passed
  assert report.verification
  assert optimized.opset_import[0].version == 11


def test_a_wrong_upgrade_is_found(patch):
  """As onnx.version_converter alone would make it: half a pixel beside."""
  import ortplugin.model.upgrade
  from ortplugin.errors import VerificationError

  patch(ortplugin.model.upgrade, "_put_resize_right", lambda *arguments: None)
  model = parse('a = Identity(x)  y = Upsample<mode="linear", scales=[1.0,1.0,2.0,2.0]>(a)', 8)
  with raises(VerificationError, "from the upgrade of opset 8 to 11 on"):
    optimize(model, verify=True, providers=["cpu"])


@parametrize("name", ["y", "softmax", ""])
def test_a_node_that_becomes_several_keeps_its_name_on_the_operator(name, rng):
  """As where nodes are named like their outputs: two of one name ONNX Runtime does not load."""
  model = parse("y = Softmax<axis=1>(x)", 9)
  model.graph.node[0].name, model.graph.node[0].doc_string = name, "kept"
  upgraded = upgrade(model, BFLOAT16_OPSET)
  assert len(upgraded.graph.node) > 1
  if name:
    assert [each.op_type for each in upgraded.graph.node if each.name] == ["Softmax"]
    assert [each.doc_string for each in upgraded.graph.node if each.name] == ["kept"]
  assert_same(model, upgraded, rng)


@parametrize("body, kept", [
  ("d = Slice(x, one, two, second)  y = Abs(d)", {"x"}),  # onnx infers "batch" there
  ("d = Slice(x, one, two, first)  y = Abs(d)", {"x", "d", "y"}),  # the length that it cuts has no name
  ("d = Slice(x, one, two, at)  y = Abs(d)", {"x"}),
  ("s = Shape(x)  t = Slice(s, one, two)  d = Abs(x)  y = Neg(d)", {"x", "d", "y"}),
  # "" among outputs is no value that something follows from.
  ("n = Neg(x)  m = Slice(x, one, two)  r, \"\" = Dropout(m)  d = If(on) <then () => (float[3,batch] b)"
   " { b, \"\" = Dropout(n) }, else () => (float[3,batch] e) { e = Identity(n) }>  y = Abs(d)",
   {"x", "d", "y"}),
  ("n = Neg(x)  o = Slice(n, one, two)  p = Abs(o)  d = If(on) <then () => (float[3,batch] b)"
   " { b = Identity(p) }, else () => (float[3,batch] e) { e = Identity(n) }>  y = Abs(d)", {"x"}),
])  # fmt: skip
def test_names_of_lengths_that_a_slice_does_not_keep(body, kept):
  model = parsed(
    f"""(float[3,batch] x, int64[1] at, bool on) => (float[3,batch] y)
      <int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] first = {{0}}, int64[1] second = {{1}}> {{ {body} }}""",
    10,
    5,
  )
  model.graph.value_info.extend(value_infos("float[3,batch] d"))
  made = upgrade(model).graph
  dims = {each.name: each.type.tensor_type.shape.dim for each in (*made.input, *made.output, *made.value_info)}
  assert {name for name in ("x", "d", "y") if dims[name][1].dim_param == "batch"} == kept
  assert all(dims[name][0].dim_value == 3 for name in ("x", "d", "y"))
