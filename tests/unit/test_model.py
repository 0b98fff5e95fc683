import subprocess
import sys
import time

import numpy as np
import onnx
import onnx.parser
import onnx_graphsurgeon as gs
from onnx import AttributeProto, TensorProto, helper
from onnx.helper import make_node
from onnx.numpy_helper import from_array, to_array
from onnx_models import (
  add_weights,
  built,
  computed,
  in_full,
  ones,
  op_types,
  parametrize,
  parsed,
  raises,
  value_infos,
  zeros,
)

from ortplugin.errors import ModelError
from ortplugin.graph import import_model
from ortplugin.graph.convert import lighten, opset_of, put_back
from ortplugin.graph.export import export_model
from ortplugin.model.annotate import annotate


def parse(text, ir=8):
  return onnx.parser.parse_model(
    f'<ir_version: {ir}, producer_name: "test", opset_import: ["" : 17, "custom" : 3]> {in_full(text)}'
  )


def bytes_of(model):
  return model.SerializeToString(deterministic=True)


def assert_round_trip(model):
  before = bytes_of(model)
  graph = import_model(model)
  assert bytes_of(export_model(graph, model)) == before
  annotate(graph)  # what is inferred is not written where nothing changed
  assert bytes_of(export_model(graph, model)) == before
  assert bytes_of(model) == before


SIMPLE = "g (float[N,4] x) => (y) <float[4] w = {1,2,3,4}> { a = Mul(x, w)  y = Neg(a) }"


def test_an_ordinary_model():
  assert_round_trip(parse(SIMPLE))


def test_documentation_and_metadata():
  model = parse(SIMPLE)
  model.doc_string, model.domain, model.model_version = "what it does", "org.example", 7
  model.producer_version = "1.2"
  helper.set_model_props(model, {"author": "A. N. Other"})
  model.graph.doc_string = "the graph"
  model.graph.metadata_props.add(key="k", value="v")
  for node in model.graph.node:
    node.doc_string, node.overload = f"about {node.op_type}", "v2"
    node.metadata_props.add(key="namespace", value="model.layer.0")
  for each in (*model.graph.input, *model.graph.output, *model.graph.initializer):
    each.doc_string = f"about {each.name}"
    each.metadata_props.add(key="source", value="torch")
  model.graph.input[0].type.denotation = "TENSOR"
  model.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
  assert_round_trip(model)


def test_local_functions():
  model = parse("g (float[N] x) => (y) { y = custom.twice<alpha=2.0>(x) }", ir=9)
  model.functions.append(
    onnx.parser.parse_function("""<domain: "custom", opset_import: ["" : 17]>
      twice <alpha> (x) => (y) { a = Constant<value_float : float=@alpha>()  y = Mul(x, a) }""")
  )
  assert_round_trip(model)


def test_quantisation_annotations():
  model = parse("g (float[N,4] x) => (y) <float scale = {0.1}, uint8 zero = {3}> { a = Neg(x)  y = Abs(a) }")
  annotation = model.graph.quantization_annotation.add(tensor_name="a")
  annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="scale")
  annotation.quant_parameter_tensor_names.add(key="ZERO_POINT_TENSOR", value="zero")
  assert_round_trip(model)


def test_sparse_initializers():
  model = parse("g (float[3,4] x, s) => (y) { y = Add(x, s) }")
  del model.graph.input[1]
  values = from_array(np.float32([1, 2]), "s")
  indices = from_array(np.int64([1, 7]))
  model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [3, 4]))
  assert_round_trip(model)
  graph = import_model(model)
  assert not isinstance(graph.nodes[0].inputs[1], gs.Constant)  # no pass takes it for one
  assert tuple(graph.nodes[0].inputs[1].shape) == (3, 4)


def test_strings_sequences_and_optionals():
  model = parse("""g (string[N] words, seq(float[N]) parts, optional(float[N]) perhaps)
    => (string[N] w, float[M] y, seq(float[N]) same, bool has) <string[2] more = {"a", "b"}> {
    w = Concat<axis=0>(words, more)  same = Identity(parts)  y = ConcatFromSequence<axis=0>(same)
    s = SequenceInsert(same, y)  n = SequenceLength(s)  has = OptionalHasElement(perhaps) }""")
  model.graph.value_info.append(helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, ["N"]))
  assert_round_trip(model)


def test_attributes_of_every_kind():
  model = parse("g (float[N] x) => (y) { y = custom.Everything(x) }")
  node = model.graph.node[0]
  tensor = from_array(np.arange(3, dtype=np.int32), "t")
  body = onnx.parser.parse_graph("b () => (float z) { z = Constant<value=float {1.0}>() }")
  sparse = helper.make_sparse_tensor(from_array(ones(1)), from_array(np.zeros(1, np.int64)), [4])
  kind = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
  for name, value in {
      "f": 1.5, "i": -3, "s": "text", "b": b"\xff\xfe", "t": tensor, "g": body, "sp": sparse, "tp": kind,
      "fs": [1.0, 2.0], "is": [1, 2], "ss": ["a", b"\xff"], "ts": [tensor, tensor], "gs": [body, body],
      "tps": [kind, kind],
  }.items():  # fmt: skip
    node.attribute.append(helper.make_attribute(name, value))
  for attribute in node.attribute:
    attribute.doc_string = f"about {attribute.name}"
  assert not node.attribute.add(name="none", type=AttributeProto.INTS).ints
  assert_round_trip(model)


def test_dtypes_that_numpy_lacks():
  model = parse("g (float[N] x) => (y) { y = Neg(x) }", ir=11)
  for name in ("BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E5M2", "INT4", "UINT4", "FLOAT4E2M1"):
    dtype = TensorProto.DataType.Value(name)
    model.graph.initializer.append(helper.make_tensor(name, dtype, [4], b"\x12\x34\x56\x78\x12\x34\x56\x78"[
        : {"BFLOAT16": 8, "FLOAT8E4M3FN": 4, "FLOAT8E5M2": 4}.get(name, 2)], raw=True))  # fmt: skip
    model.graph.node.append(make_node("Identity", [name], [f"{name}_copy"]))
    model.graph.output.append(helper.make_tensor_value_info(f"{name}_copy", dtype, [4]))
  assert_round_trip(model)


def test_initializers_that_are_inputs():
  model = parse(
    "g (float[N] x, float w) => (float[N] y) <float w = {2}, float v = {3}> { a = Mul(x, w)  y = Add(a, v) }"
  )
  assert_round_trip(model)
  graph = import_model(model)
  kinds = {tensor.name: type(tensor) for tensor in graph.tensors().values()}
  assert kinds["w"] is gs.Variable
  assert kinds["v"] is gs.Constant
  assert [tensor.name for tensor in graph.inputs] == ["x", "w"]


def test_external_data_is_not_touched():
  model = parse(SIMPLE)
  tensor = model.graph.initializer[0]
  tensor.ClearField("float_data")
  tensor.data_location = TensorProto.EXTERNAL
  for key, value in (("location", "weights.bin"), ("offset", "64"), ("length", "16")):
    tensor.external_data.add(key=key, value=value)
  assert_round_trip(model)


def test_outputs_that_are_inputs_and_constants():
  assert_round_trip(parse("g (float[N] x) => (x, float w, float[N] y) <float w = {1}> { y = Neg(x) }"))


def test_absent_inputs_and_outputs():
  assert_round_trip(parse("""g (float[N] x, float high) => (float[N] y, int64[K] i) {
    y = Clip(x, , high)  _, i = Unique<axis=0>(x) }""".replace("_, i", '"", i')))  # fmt: skip


BODIES = """g (bool c, float[N] x) => (y, z) <float w = {2}> { a = Mul(x, w)
    y = If(c) <then () => (float[N] p) <float v = {3}> { p = Mul(a, v) },
                else () => (float[N] q) {
                    q = If(c) <then () => (float[N] r) { r = Add(a, w) },
                                else () => (float[N] s) { s = Neg(x) }> }>
    trips = Constant<value=int64 {3}>()
    z = Loop(trips, c, x) <body = b (int64 i, bool go, float[N] u) => (bool on, float[N] uu)
        { on = Identity(go)  uu = Add(u, a) }> }"""


def test_bodies_within_bodies():
  assert_round_trip(parse(BODIES))
  outer = import_model(parse(BODIES)).tensors()["a"]
  assert [node.op for node in outer.outputs] == ["Mul", "Add", "Add"]  # bodies read the very same tensor


def test_a_body_whose_output_is_the_outer_value():
  model = parse(
    "g (bool c, float[N] x) => (y) { a = Neg(x)  "
    "y = If(c) <then () => (float[N] p) { p = Identity(a) }, "
    "else () => (float[N] a) { }> }"
  )
  assert_round_trip(model)


def test_before_ir_version_4_every_initializer_is_an_input():
  model = parsed("""g (float[N] x, float w) => (float[N] y) <float w = {2}> { a = Mul(x, w)  y = Neg(a) }""", 11, 3)
  assert_round_trip(model)
  graph = import_model(model)
  graph.nodes[1].inputs.append(gs.Constant("new", ones(1)))
  exported = export_model(graph, model)
  assert [each.name for each in exported.graph.input] == ["x", "w", "new"]


def test_before_ir_version_4_no_initializer_can_be_overridden():
  """ONNX Runtime takes no value for one, so it is a constant; from version 4 on it takes one."""
  text = """<ir_version: IR, opset_import: ["" : 11]> g (float[2] x, w) => (y)
    <float[2] w = {1,2}> { y = Mul(x, w) }"""
  for ir, kind in ((3, gs.Constant), (4, gs.Variable)):
    model = onnx.parser.parse_model(in_full(text.replace("IR", str(ir))))
    graph = import_model(model)
    assert isinstance(graph.nodes[0].inputs[1], kind)
    assert [each.name for each in graph.inputs] == ["x", "w"][: ir - 2]
    feeds = {"x": ones(2), "w": np.full(2, 5, np.float32)}
    if ir < 4:
      with raises(Exception, "Invalid input name: w"):
        computed(model, feeds)
    else:
      np.testing.assert_array_equal(computed(model, feeds)[0], [5, 5])


def test_nodes_out_of_order_are_sorted():
  model = parse("g (float[N] x) => (y) { a = Neg(x)  y = Abs(a) }")
  model.graph.node.reverse()
  exported = export_model(import_model(model), model)
  assert op_types(exported) == ["Neg", "Abs"]
  onnx.checker.check_model(exported)


@parametrize(
  "text, reason",
  [
    ("g (float x) => (y) { y = Neg(x)  y = Abs(x) }", "'y' is assigned twice"),
    ("g (float x) => (y) { x = Neg(x)  y = Abs(x) }", "'x' is assigned twice"),
    ("g (float x) => (y) { a = Neg(b)  b = Neg(a)  y = Abs(x) }", "part of a cycle"),
    ("g (float x) => (y) { y = Neg(nowhere) }", "'nowhere' is used in the graph 'g' but nothing makes it"),
  ],
)
def test_invalid_names(text, reason):
  with raises(ModelError, reason):
    import_model(parse(text))


def test_changes_are_worked_in_and_nothing_else():
  model = parse("""g (float[N,4] x) => (y)
    <float[4] w = {1,2,3,4}, float[4] never = {1,2,3,4}, float[N,4] a, float[N,4] b> {
    a = Mul(x, w)  b = Abs(a)  y = Neg(b) }""")
  model.graph.node[2].doc_string = "kept"
  graph = import_model(model)
  first, second, _ = graph.nodes
  outputs = list(second.outputs)
  for node in (first, second):
    node.inputs.clear()
    node.outputs.clear()
  new = gs.Node("FusedLayerNorm", "new", {"program": "text"}, [graph.inputs[0]], outputs, "ortplugin")
  graph.nodes = [new, graph.nodes[2]]
  exported = export_model(graph, model)
  assert op_types(exported) == ["FusedLayerNorm", "Neg"]
  assert exported.graph.node[1] == model.graph.node[2]
  assert [each.name for each in exported.graph.initializer] == ["never"]  # w is read no more; this never was
  assert [each.name for each in exported.graph.value_info] == ["b"]
  assert {each.domain: each.version for each in exported.opset_import} == {"": 17, "custom": 3, "ortplugin": 1}
  assert list(exported.graph.input) == list(model.graph.input)
  assert list(exported.graph.output) == list(model.graph.output)


def test_attributes_that_change():
  model = parse("g (float[N,4] x) => (y) { y = LeakyRelu<alpha=0.5>(x) }")
  graph = import_model(model)
  graph.nodes[0].attrs["alpha"] = 0.25
  graph.nodes[0].attrs["words"] = ["a", "b"]
  exported = export_model(graph, model)
  assert [helper.get_attribute_value(each) for each in exported.graph.node[0].attribute] == [0.25, [b"a", b"b"]]
  del graph.nodes[0].attrs["alpha"]
  assert [each.name for each in export_model(graph, model).graph.node[0].attribute] == ["words"]


def test_a_constant_that_changes():
  model = parse(SIMPLE)
  graph = import_model(model)
  constant = graph.nodes[0].inputs[1]
  assert constant.values.tolist() == [1, 2, 3, 4]
  constant.values = zeros(4)
  assert to_array(export_model(graph, model).graph.initializer[0]).tolist() == [0, 0, 0, 0]
  assert to_array(model.graph.initializer[0]).tolist() == [1, 2, 3, 4]


def test_the_domain_is_imported_only_where_it_is_used():
  model = parse(SIMPLE)
  model.opset_import.add(domain="ortplugin", version=1)
  exported = export_model(import_model(model), model)
  assert [each.domain for each in exported.opset_import] == ["", "custom"]
  assert opset_of(exported.opset_import) == 17


def test_a_large_model_is_fast_and_its_weights_are_not_decoded():
  """440 MB of weights in 96 matrices: seconds would mean that they are decoded, or copied often."""
  model = onnx.ModelProto(ir_version=8, opset_import=[helper.make_opsetid("", 17)])
  model.graph.name = "g"
  model.graph.input.extend(value_infos("float[N,1071] v0"))
  weight = zeros(1071, 1071).tobytes()
  for index in range(96):
    tensor = model.graph.initializer.add(name=f"w{index}", data_type=TensorProto.FLOAT, dims=[1071, 1071])
    tensor.raw_data = weight
    model.graph.node.append(make_node("MatMul", [f"v{index}", f"w{index}"], [f"v{index + 1}"]))
  model.graph.output.extend(value_infos("float[N,1071] v96"))
  begin = time.process_time()
  graph = import_model(model)
  annotate(graph)
  assert tuple(graph.outputs[0].shape) == ("N", 1071)
  exported = export_model(graph, model)
  assert time.process_time() - begin < 2
  assert len(exported.graph.initializer) == 96


def test_weights_are_left_out_and_put_back():
  model = parse("""g (float[N,256] x, float[256,256] o) => (float[N,256] y)
    { a = MatMul(x, w)  b = MatMul(a, o)  c = Add(b, s)  d = MatMul(c, v)  y = Identity(d) }""")
  rng = np.random.default_rng(0)
  for name, shape in (("w", (256, 256)), ("o", (256, 256)), ("s", (256,)), ("v", (256, 256))):
    add_weights(model, **{name: rng.standard_normal(shape).astype(np.float32)})
  model.graph.initializer[0].doc_string = "kept"
  before = bytes_of(model)
  light, weights = lighten(model)
  assert list(weights) == ["w", "v"]  # o may be overridden, s is small
  assert len(bytes_of(light)) < 1 << 19 < len(before)
  read = import_model(light, weights)
  for each in (read.nodes[0].inputs[1], read.nodes[3].inputs[1]):
    np.testing.assert_array_equal(each.values, to_array(weights[each.name]))
  graph = import_model(light, weights)
  graph.nodes[3].inputs[1].values = zeros(256, 256)
  exported = export_model(graph, light)
  put_back(exported, weights)
  assert to_array(exported.graph.initializer[3]).max() == 0
  assert exported.graph.initializer[0] == model.graph.initializer[0]
  put_back(light, weights)
  assert bytes_of(light) == bytes_of(model) == before


def test_weights_are_copied_once(tmp_path):
  """Each round of passes that changed something copied them again."""
  nodes = [make_node("Identity", ["x"], ["m0"])]
  nodes += [make_node("MatMul", [f"m{i}", f"w{i}"], [f"m{i + 1}"]) for i in range(8)]
  nodes += [make_node("Neg", ["m8"], ["n"]), make_node("Exp", ["n"], ["y"])]
  weights = {f"w{i}": ones(2048, 2048) for i in range(8)}
  model = built(nodes, "float[n,2048] x", "float[n,2048] y", weights=weights)
  (tmp_path / "in.onnx").write_bytes(model.SerializeToString())
  program = f"""
import re
from ortplugin.cli import main
used = lambda: int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]) << 10  # of this program alone
import ortplugin.optimizer, ortplugin.render, ortplugin.model.storage
before = used()
paths = [{str(tmp_path / "in.onnx")!r}, "-o", {str(tmp_path / "out.onnx")!r}]
status = main([*paths, "--no-verify", "--skip", "matmul-float32"])
print((used() - before) / {model.ByteSize()})
raise SystemExit(status)
"""
  done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
  assert "remove-identities" in done.stdout
  assert "fuse-pointwise" in done.stdout
  assert 1.5 < float(done.stdout.splitlines()[-1]) < 2.5  # the original and the result


@parametrize("freed", ["made by a node", "an initializer"])
def test_what_is_said_of_a_value_goes_with_it_and_not_with_its_name(freed):
  weight = ("w", "v = Identity(w)", "") if freed == "an initializer" else ("v", "w = Identity(v)", "")
  model = parse(f"""g (float[N,4] x) => (y) <float[4] {weight[0]} = {{1,2,3,4}}, float[4] w> {{
    {weight[1]}  a = Mul(x, {"w" if freed == "made by a node" else "v"})  y = Neg(a) }}""")
  model.graph.quantization_annotation.add(tensor_name="w")
  for rename in (False, True):  # w is gone, and then another value has its name
    graph = import_model(model)
    maker, product, last = graph.nodes
    product.inputs[1] = gs.Constant("other", ones(4))
    maker.inputs.clear()
    maker.outputs.clear()
    graph.nodes = [product, last]
    if rename:
      product.outputs[0] = last.inputs[0] = gs.Variable("w", np.dtype(np.float32), ("N", 4))
    exported = export_model(graph, model)
    onnx.checker.check_model(exported, full_check=True)
    assert not exported.graph.value_info
    assert not exported.graph.quantization_annotation
