"""Shapes as ONNX Runtime computes them, where onnx's inference gives others: all combinations of what matters."""

from itertools import product

import numpy as np
import onnx
from onnx.helper import make_node
from onnx_models import annotated, built, computed, nodes_of, one_in, ones, op_types, parametrize, parsed, zeros
from ort.host import make

from ortplugin import restore, run, session
from ortplugin.graph import import_model
from ortplugin.model.annotate import annotate
from ortplugin.optimizer import run_passes, select_passes


def many(op, opset, shape, cases):
  nodes, constants = [], {}
  for index, (attributes, inputs) in enumerate(cases):
    names = [f"c{index}_{at}" if each.size else "" for at, each in enumerate(inputs)]
    constants |= {name: each for each, name in zip(inputs, names, strict=True) if name}
    nodes.append(make_node(op, ["x", *names], [f"y{index}"], f"{index} {attributes}", **attributes))
  outputs = ", ".join(f"float[] y{index}" for index in range(len(cases)))
  return built(nodes, f"float[{','.join(map(str, shape))}] x", outputs, opset, weights=constants)


def assert_as_computed(op, opset, shape, cases):
  model = many(op, opset, shape, cases)
  graph = annotated(model)
  found = computed(model, {"x": np.zeros(shape, np.float32)})
  for tensor, value, node in zip(graph.outputs, found, model.graph.node, strict=True):
    assert tuple(tensor.shape) == value.shape, (shape, node)


def pools(size, dilated):
  for kernel, stride, pad_begin, pad_end, dilation, ceil in product((2, 3), (1, 2, 3), (0, 1), (0, 1), (1, 2), (0, 1)):
    room = size + pad_begin + pad_end - dilation * (kernel - 1) - 1
    if room > -stride and (dilated or dilation == 1):  # a window wider than the image is one, by rounding to zero
      attributes = {"kernel_shape": [kernel], "strides": [stride], "ceil_mode": ceil, "pads": [pad_begin, pad_end]}
      yield {**attributes, **({"dilations": [dilation]} if dilated else {})}, []
  for kernel, stride, dilation, ceil, auto_pad in product(
    (2, 3), (1, 2, 3), (1, 2), (0, 1), ("SAME_UPPER", "SAME_LOWER", "VALID")
  ):
    # Where the kernel is shorter than the stride, ONNX Runtime pads with less than nothing, or refuses.
    room = size - dilation * (kernel - 1) - 1
    fits = (room >= 0 and kernel >= stride) or (auto_pad == "VALID" and room > (-2 * stride if ceil else -1))
    if fits and (dilated or dilation == 1):
      attributes = {"kernel_shape": [kernel], "strides": [stride], "ceil_mode": ceil, "auto_pad": auto_pad}
      yield {**attributes, **({"dilations": [dilation]} if dilated else {})}, []


@one_in(2)
@parametrize("size", [1, 2, 3, 4, 5, 7, 8])
@parametrize(
  "op, opset",
  [("MaxPool", 10), ("MaxPool", 12), ("MaxPool", 22), ("AveragePool", 10), ("AveragePool", 18), ("AveragePool", 19),
   ("AveragePool", 22), ("LpPool", 18), ("LpPool", 22)],
)  # fmt: skip
def test_pools(op, opset, size):
  dilated = (op, opset) not in (("AveragePool", 10), ("AveragePool", 18))
  assert_as_computed(op, opset, (1, 1, size), list(pools(size, dilated)))


def transposed(size):
  for kernel, stride, pad_begin, pad_end, dilation, padding in product(
    (2, 3), (1, 2, 3), (0, 1), (0, 1), (1, 2), (0, 1, 2)
  ):
    whole = (size - 1) * stride + dilation * (kernel - 1) + 1 + padding - pad_begin - pad_end
    if padding < stride and whole > 0:
      pads = {"pads": [pad_begin, pad_end], "output_padding": [padding], "dilations": [dilation], "strides": [stride]}
      yield pads, [ones(1, 1, kernel)]
  for kernel, stride, dilation, padding, auto_pad in product(
    (1, 2, 3, 4), (1, 2, 3), (1, 2), (0, 1, 2), ("SAME_UPPER", "SAME_LOWER", "VALID")
  ):
    if padding < stride:
      same = {"auto_pad": auto_pad, "output_padding": [padding], "dilations": [dilation], "strides": [stride]}
      yield same, [ones(1, 1, kernel)]
  for kernel, stride, shape in product((2, 3), (1, 2), (1, 3, 4)):
    if shape <= (size - 1) * stride + kernel:
      yield {"strides": [stride], "output_shape": [shape]}, [ones(1, 1, kernel)]


@parametrize("size", [1, 3, 4])
@parametrize("opset", [11, 22])
def test_transposed_convolutions(opset, size):
  assert_as_computed("ConvTranspose", opset, (1, 1, size), list(transposed(size)))


SCALES = (0.3, 0.5, 0.6, 0.7, 1 / 3, 2 / 3, 1.0, 1.1, 1.2, 1.4, 1.5, 2.0, 2.5, 0.1)


@parametrize("size", [5, 7, 10, 15])
@parametrize("opset", [10, 11, 13, 18, 19])
def test_scales(opset, size):
  cases = []
  for scale in (each for each in SCALES if each * size >= 1):
    scales = np.float32([1, 1, scale, scale])
    region = zeros(0) if opset > 11 else zeros(8)
    cases.append(({"mode": "nearest"}, [scales] if opset == 10 else [region, scales]))
    if opset >= 18:
      cases.append(({"axes": [2, -1]}, [region, scales[2:]]))
  assert_as_computed("Resize", opset, (1, 1, size, size), cases)
  if opset == 10:
    cases = [({}, [np.float32([1, 1, scale, scale])]) for scale in SCALES if scale >= 1]
    assert_as_computed("Upsample", 9, (1, 1, size, size), cases)


SLOPES = ((), (1,), (3,), (2, 1), (1, 3), (2, 3), (1, 1, 1), (2, 1, 1), (4, 1, 2, 1))


@parametrize("shape", [(3,), (1,), (2, 1), (1, 3), (1, 2, 3), (1, 1, 2, 1)])
@parametrize("opset", [7, 9, 16])
def test_slopes(opset, shape):
  """ONNX has a slope broadcast to X alone, and onnx gives PRelu the shape of X."""
  fit = []
  for slope in SLOPES:
    pairs = zip(slope[::-1], shape[::-1], strict=False)
    fit += [slope] * all(a == b or 1 in (a, b) for a, b in pairs)
  assert_as_computed("PRelu", opset, shape, [({}, [np.ones(each, np.float32)]) for each in fit])


def test_beside_what_has_no_elements():
  """ONNX Runtime leaves it out, whatever its other lengths; onnx takes them for those of the result."""
  model = parsed("""(float[N,2,3] x) => (float[A,B,C] y) <float[2,0,3] e = {}>
    { y = Concat<axis=1>(e, x, x) }""")
  assert annotated(model).outputs[0].shape == ("A", "B", 3)  # of which the model says that much
  assert computed(model, {"x": zeros(4, 2, 3)})[0].shape == (4, 4, 3)


def test_beside_a_constant_without_elements_that_inference_finds():
  """What followed from onnx's shape of the Concat is forgotten, too."""
  model = parsed("""(float[N,2,3] x) => (float[A,B,C] y) {
    s = {2,0,3}  e = ConstantOfShape(s)
    c = Concat<axis=1>(e, x, x)  y = Relu(c) }""")
  assert [node.outputs[0].shape for node in annotated(model).nodes[-2:]] == [(None, None, 3), ("A", "B", 3)]
  assert computed(model, {"x": zeros(4, 2, 3)})[0].shape == (4, 4, 3)


@parametrize("where", ["output", "value_info"])
def test_a_length_of_zero_that_a_model_says_of_a_value(where):
  """onnx's inference says it of an Attention on open lengths, and of all behind it."""
  model = parsed(
    """(float[A,B,N] x) => (float[A,B,C] y)
      { a = Attention<kv_num_heads=2, q_num_heads=2>(x, x, x)  y = Relu(a) }""",
    25,
    12,
  )
  (said,) = onnx.shape_inference.infer_shapes(model).graph.value_info
  if where == "output":
    model.graph.output[0].type.CopyFrom(said.type)
  else:
    model.graph.value_info.append(said)
  graph = annotated(model)
  assert graph.nodes[0].outputs[0].shape == ("A", "B", None)
  assert 0 not in graph.outputs[0].shape


@parametrize("q, v, wanted", [
  ("B, S, H", "B, T, H", ("B", "S", None)), ("B, S, H", "B, T, 6", ("B", "S", 12)),
  ("B, 4, S, D", "B, 2, T, 3", ("B", 4, "S", 3)), ("B, 4, S, D", "B, 2, T, E", ("B", 4, "S", "E")),
])  # fmt: skip
def test_attention_of_open_lengths(q, v, wanted):
  """Of which onnx infers 0; the weights' shape is left open, of which it does so, too."""
  heads = "<q_num_heads=4, kv_num_heads=2>" if q.count(",") == 2 else ""
  model = parsed(
    f"""(float[{q}] q, float[{v}] k, v) => (float[a,b,c] y, float[a,b,c,d] w)
      {{ p, e, f, w = Attention{heads}(q, k, v)  y = Relu(p) }}""",
    23,
    10,
  )
  graph = annotated(model)
  assert graph.nodes[0].outputs[0].shape == wanted
  assert 0 not in graph.nodes[0].outputs[3].shape


def fused(model, only="lone-pointwise"):
  made, changes, _ = run_passes(model, select_passes(only=[only]))
  assert changes
  return made


def ceil_modes(made):
  return [each.i for node in made.graph.node for each in node.attribute if each.name == "ceil_mode"]


def test_a_pool_of_unknown_rank_keeps_ceil_mode():
  """That of a Loop's result is."""
  model = parsed("""(int64 n, float[1,1,4] x) => (float[A,B,C] y) <bool on = {1}>
    { v = Loop(n, on, x) <body = body (int64 i, bool c, float[?,?,?] a) => (bool d, float b)
        { b = Relu(a)  d = Identity(c) }>
      y = MaxPool<kernel_shape=[3], strides=[3], ceil_mode=1, auto_pad="VALID">(v) }""")
  assert ceil_modes(fused(model)) == [1]


def test_a_strided_pool_with_same_pads_keeps_ceil_mode():
  """Without it ONNX Runtime refuses its pads, which are below 0."""
  model = parsed("""(float[1,1,2] x) => (float[1,1,1] y) { v = Relu(x)
    y = AveragePool<kernel_shape=[1], strides=[2], ceil_mode=1, auto_pad="SAME_UPPER">(v) }""")
  assert ceil_modes(fused(model))


@parametrize("op, counts", [("MaxPool", False), ("AveragePool", False), ("AveragePool", True)])
def test_ceil_mode_that_adds_a_window_along_one_axis_alone(library, op, counts):
  """onnx infers one too many along the other, and an operator behind it would be refused at load."""
  attribute = ", count_include_pad = 1" if counts else ""
  model = parsed(
    f"""(float[1,1,3,5] x) => (float[A,B,C,D] y) <float[2] s = {{1,2}}>
      {{ v = {op}<kernel_shape=[3,2], strides=[3,3], pads=[1,1,1,0], ceil_mode=1{attribute}>(x)
         y = LayerNormalization(v, s) }}""",
    18,
  )
  made = fused(model, "fuse-layer-norm")
  assert any(each.name == "ceil_mode" for each in made.graph.node[0].attribute) == counts
  assert [node.op_type for node in made.graph.node[1:-1]] == ["Reshape"] * counts
  x = np.arange(15, dtype=np.float32).reshape(1, 1, 3, 5)
  (wanted,) = computed(model, {"x": x})
  found = run(session(made.SerializeToString(), ["cpu"]), {"x": x})
  np.testing.assert_allclose(found["y"], wanted, rtol=1e-5, atol=1e-5)


@parametrize(
  "node, size",
  [("PRelu(x, s)", 1), ('Resize<mode="nearest", coordinate_transformation_mode="asymmetric">(x, , f)', 10)],
)
def test_what_onnx_infers_wrongly_before_a_norm(library, node, size):
  model = parsed(f"""(float[1,{size}] x) => (float[A,B] y)
    <float[7] s = {{1,2,3,4,5,6,7}}, float[2] f = {{1,0.7}}>
    {{ v = {node}  y = LayerNormalization(v, s) }}""")
  made = fused(model, "fuse-layer-norm")
  x = np.linspace(-1, 1, size, dtype=np.float32).reshape(1, -1)
  (wanted,) = computed(model, {"x": x})
  np.testing.assert_allclose(run(session(made.SerializeToString(), ["cpu"]), {"x": x})["y"], wanted, atol=1e-5)


def test_an_operator_of_ours_behind_what_onnx_infers_wrongly_and_a_scalar(library):
  """ONNX Runtime does not tell a scalar's shape from none, and then asks for the dtype that the operator makes."""
  model = parsed("""(float[1,10] x, bool on) => (float[A,B] y, float[C,D] z)
    <float[2] f = {1,0.7}, float[1,1] w = {2}> {
        p = Resize<mode="nearest", coordinate_transformation_mode="asymmetric">(x, , f)
        z = Where(on, p, w)  n = Neg(p)  y = Softmax(n) }""")
  made = fused(model, "fuse-pointwise")
  assert op_types(made) == ["Resize", "Reshape", "FusedPointwise", "Softmax"]
  (info,) = (each for each in made.graph.value_info if each.name == "n")
  assert info.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
  feeds = {"x": ones(1, 10), "on": np.array(True)}
  np.testing.assert_array_equal(run(session(made.SerializeToString(), ["cpu"]), feeds)["z"], np.ones((1, 7)))


@parametrize("length", ["13", "N"])
def test_an_output_that_the_model_describes_wrongly(length):
  """No pass may believe it once an operator of ours stands in the way of inference."""
  model = parsed(f"""(float[2,4] x) => (float[2,{length}] y) {{ h = Relu(x)  y = Concat<axis=1>(h, h) }}""")
  assert annotated(fused(model)).outputs[0].shape == (2, 8)


def test_a_name_in_what_is_said_of_an_output_is_no_other_dimension():
  """Exporters write names as inference makes them up, and inference counts from 0 again."""
  graph = import_model(
    parsed("""(float[N] x, bool[N] m, n) => (float[unk__0] y)
    { v = Compress(x, m)  w = Relu(v)  y = Compress(x, n) }""")
  )
  for _ in range(2):
    annotate(graph)
    assert graph.outputs[0].shape == ("unk__0",)
    assert graph.nodes[0].outputs[0].shape == graph.nodes[1].outputs[0].shape != ("unk__0",)


def test_one_sided_spectra():
  imported = annotated(
    parsed("""(float[1,128,1] x) => (float[] y)
    <int64 step = {8}, int64 length = {16}> { y = STFT(x, step, , length) }""")
  )
  assert imported.outputs[0].shape == (1, None, None, 2)


def test_in_a_local_function():
  """Its body is hidden as well, also where it takes the attribute from its call."""
  model = parsed(
    """(float[1,1,3] x) => (float[A,B,C] y) { a = d.f<m=1>(x)  y = Relu(a) }
      <domain: "d", opset_import: ["" : 12]> f <m> (z) => (w)
      { w = MaxPool<kernel_shape=[2], strides=[2], pads=[0,1], ceil_mode: int=@m>(z) }""",
    12,
    domains=["d"],
  )
  assert annotated(model).nodes[0].outputs[0].shape is None


@parametrize("spatial", [1, 2, 3])
@parametrize("layout", ["auto", "nhwc"])
def test_what_follows_fits(spatial, layout):
  """A Transpose that only moves axes of length 1 becomes a Reshape to what the pool really makes."""
  kernel, size = [2] * spatial, [3] * (spatial - 1)
  pads = [0] * spatial + [1] * spatial
  pool = make_node("MaxPool", ["x"], ["p"], kernel_shape=kernel, strides=kernel, pads=pads, ceil_mode=1)
  perm = [0, *range(2, spatial + 2), 1]
  nodes = [pool, make_node("Transpose", ["p"], ["y"], perm=perm)]
  shape = [2, 1, 3, *size]
  dims = ",".join(map(str, shape))
  model = built(nodes, f"float[{dims}] x", f"float[{','.join('?' * (spatial + 2))}] y", 13)
  optimized, _, _ = run_passes(model, select_passes(layout=layout))
  assert "Reshape" in op_types(optimized)
  feeds = {"x": np.random.default_rng(spatial).standard_normal(shape).astype(np.float32)}
  np.testing.assert_array_equal(computed(optimized, feeds)[0], computed(model, feeds)[0], strict=True)


def behind(node, width, height=4):
  return parsed(
    f"""(float[1,4,{height},{width}] x) => (float y)
        {{ before = Conv(x, w)  p = {node}  c = Conv(p, w)  s = Softmax<axis=1>(c)  d = Conv(s, w)
          y = Softmax<axis=1>(d) }}""",
    weights={"w": ones(4, 4, 1, 1), "scales": np.float32([1, 1, 1.4, 1.4])},
  )


@parametrize(
  "width, is_said",
  [
    (5, False),  # 1.4 times that is 7 in float32, as ONNX Runtime multiplies, and 6.99... as onnx does
    (4, True),
  ],
)
def test_nothing_is_said_behind_a_shape_that_onnx_gets_wrong(width, is_said):
  """ONNX Runtime infers shapes by onnx as well: a value_info that contradicts it holds for one node, not another."""
  resize = 'Resize<mode="nearest">(before, , scales)'
  made = fused(behind(resize, width, width), "fuse-conv")
  assert op_types(made).count("FusedConv") == 3
  said = {each.name for each in made.graph.value_info if each.type.tensor_type.HasField("shape")}
  assert said == ({"before", "c", "d"} if is_said else {"before"})


@parametrize(
  "kernel, width, stays",
  [
    (1, 4, False),  # onnx counts a window that begins behind the last pixel: 3 for 2
    (1, 5, False),
    (2, 5, True),
  ],
)
def test_a_pool_is_without_the_ceil_mode_that_adds_nothing(kernel, width, stays):
  """So onnx infers the shape that ONNX Runtime computes, of which operators behind the pool may be told."""
  model = behind(f"AveragePool<ceil_mode=1, kernel_shape=[{kernel}, {kernel}], strides=[2,2]>(before)", width, width)
  made = fused(model, "fuse-conv")
  (made_pool,) = nodes_of(made, "AveragePool")
  assert ("ceil_mode" in {each.name for each in made_pool.attribute}) is stays
  assert {each.name for each in made.graph.value_info} == {"before", "c", "d"}
  x = np.random.default_rng(0).standard_normal((1, 4, width, width)).astype(np.float32)
  np.testing.assert_allclose(*computed(restore(made), {"x": x}), *computed(model, {"x": x}), rtol=1e-5, atol=1e-6)


@parametrize("stride, made_of_it", [(1, ["MaxPool"]), (2, ["MaxPool", "Reshape"])])
def test_a_pool_of_which_one_axis_is_open(library, stride, made_of_it):
  """onnx counts a third window along the other one, of which FusedConv would be told as the session is created."""
  model = parsed(
    f"""(float[1,1,4,4,W] x) => (float[A,B,C,D] y) <int64[1] first = {{0}}> {{
        p = MaxPool<ceil_mode=1, kernel_shape=[1,1,{stride}], strides=[2,2,{stride}], auto_pad="VALID">(x)
        s = Squeeze(p, first)  y = Conv(s, w) }}""",
    weights={"w": ones(3, 2, 1, 1)},
  )
  made = fused(model, "fuse-conv")
  assert op_types(made) == [*made_of_it, "Squeeze", "FusedConv"]
  x = np.random.default_rng(stride).standard_normal((1, 1, 4, 4, 7)).astype(np.float32)
  found = make(made.SerializeToString()).run(None, {"x": x})  # ortplugin.session has Conv there
  np.testing.assert_allclose(*found, *computed(model, {"x": x}), rtol=1e-5, atol=1e-6)


def test_a_pool_of_open_size_keeps_its_ceil_mode():
  pool = "MaxPool<ceil_mode=1, kernel_shape=[1,1], strides=[2,2]>(before)"
  assert ceil_modes(fused(behind(pool, "W"), "fuse-conv"))
