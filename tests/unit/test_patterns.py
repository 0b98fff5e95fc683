import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import helper
from onnx_models import annotated, built, ones, parametrize, parsed, raises

from ortplugin.errors import ModelError
from ortplugin.graph import broadcast, element_count, equal, import_model, scopes
from ortplugin.graph.order import topological_order
from ortplugin.graph.pattern import any_of, matches, maybe, maybe_cast, number, op, value
from ortplugin.graph.shapes import broadcasts_to
from ortplugin.model.annotate import annotate


def graph_of(text, opset=17):
  return annotated(parsed(text, opset, domains=["com.microsoft"]))


def scope_of(text):
  return next(scopes(graph_of(text)))


def makers(scope):
  return {node.outputs[0].name: node for node in scope.slots if node is not None}


def find(pattern, text):
  scope = scope_of(f"(float[2,3] x, z) => (y) {{ {text} }}")
  return [match for node in scope.slots if node is not None for match in matches(pattern, node, scope)]


def names(match):
  return {name: tensor.name for name, tensor in match.values.items()}


def test_an_operator_and_its_inputs():
  (match,) = find(op("Div", value("a"), op("Sqrt", value("b"))), "r = Sqrt(z)  y = Div(x, r)")
  assert names(match) == {"a": "x", "b": "z"}
  assert [node.op for node in match.nodes] == ["Div", "Sqrt"]
  assert match.root.op == "Div"
  assert [node.op for node in match.interior] == ["Sqrt"]
  assert not find(op("Div", value("a"), op("Sqrt", value("b"))), "r = Sqrt(z)  y = Div(r, x)")
  assert not find(op("Div", value("a"), op("Sqrt", value("b"))), "r = Exp(z)  y = Div(x, r)")


def test_one_name_is_one_tensor():
  square = op("Mul", value("a"), value("a"))
  assert len(find(square, "y = Mul(x, x)")) == 1
  assert not find(square, "y = Mul(x, z)")


def test_commuted_operands():
  fixed = op("Add", op("Sqrt", value("a")), value("b"))
  either = op("Add", op("Sqrt", value("a")), value("b"), commute=True)
  assert not find(fixed, "r = Sqrt(x)  y = Add(z, r)")
  assert [names(each) for each in find(either, "r = Sqrt(x)  y = Add(z, r)")] == [{"a": "x", "b": "z"}]
  assert [names(each) for each in find(either, "r = Sqrt(x)  s = Sqrt(z)  y = Add(r, s)")] == [
    {"a": "x", "b": "s"},
    {"a": "z", "b": "r"},
  ]


def test_alternatives_and_numbers():
  x = value("x")
  square = any_of(op("Mul", x, x), op("Pow", x, number(2)))
  assert square.roots == {"Mul", "Pow"}
  for two in ("float {2.0}", "int64 {2}", "double[1] {2.0}", "int32[1,1] {2}"):
    assert len(find(square, f"two = Constant<value={two}>()  y = Pow(x, two)")) == 1
  assert not find(square, "three = float {3.0}  y = Pow(x, three)")
  assert not find(square, "two = float[2] {2.0, 2.0}  y = Pow(x, two)")
  assert not find(square, "y = Pow(x, z)")


def test_optional_casts_and_inputs():
  pattern = op("Neg", maybe_cast(op("Abs", value("a"))))
  assert len(find(pattern, "a = Abs(x)  y = Neg(a)")) == 1
  (match,) = find(pattern, "a = Abs(x)  c = Cast<to=1>(a)  y = Neg(c)")
  assert [node.op for node in match.tag("cast")] == ["Cast"]
  clip = op("Clip", value("a"), maybe(), maybe())
  assert len(find(clip, "y = Clip(x)")) == 1
  assert len(find(clip, "low = float {0.0}  y = Clip(x, low)")) == 1
  assert len(find(clip, "low = float {0.0}  y = Clip(x, , low)")) == 1


def test_what_stands_twice_may_be_computed_twice():
  d = op("Abs", value("a"), tag="abs")
  pattern = op("Mul", d, d)
  (once,) = find(pattern, "b = Abs(x)  y = Mul(b, b)")
  (twice,) = find(pattern, "b = Abs(x)  c = Abs(x)  y = Mul(b, c)")
  assert len(once.tag("abs")) == 1
  assert len(once.interior) == 1
  assert len(twice.tag("abs")) == 2
  assert not find(pattern, "b = Abs(x)  c = Abs(z)  y = Mul(b, c)")


def test_domains():
  assert len(find(op("com.microsoft::Gelu", value("a")), "y = com.microsoft.Gelu(x)")) == 1
  assert not find(op("Gelu", value("a")), "y = com.microsoft.Gelu(x)")


def test_constants():
  scope = scope_of(
    """(float x, c) => (y) <float c = {1}, float d = {2}> {
      e = Constant<value_float=3.0>()  f = Constant<value_ints=[1,2]>()  s = Constant<value_string="s">()
      a = Add(c, d)  b = Add(a, e)  k = Cast<to=1>(f)  y = Add(b, x) }"""
  )
  tensors = scope.graph.tensors()
  assert scope.scalar(tensors["c"]) is None  # a caller may override it
  assert not scope.is_constant(tensors["c"])
  assert scope.scalar(tensors["d"]) == 2
  assert scope.scalar(tensors["e"]) == 3
  assert scope.scalar(tensors["f"]) is None
  assert scope.constant(tensors["f"]).tolist() == [1, 2]
  assert scope.constant(tensors["f"], elements=1) is None
  assert scope.constant(tensors["x"]) is None


def test_large_constants_are_not_read():
  weights = {"w": ones(2000)}
  scope = next(scopes(import_model(parsed("(float[2000] x) => (y) { y = Add(x, w) }", weights=weights))))
  tensor = scope.graph.tensors()["w"]
  assert scope.is_constant(tensor)
  assert scope.constant(tensor) is None
  assert scope.constant(tensor, 2000) is not None


def test_external_data_that_is_not_loaded_is_not_read():
  model = parsed("(float x) => (y) <float w = {1}> { y = Add(x, w) }")
  tensor = model.graph.initializer[0]
  tensor.ClearField("float_data")
  tensor.data_location = onnx.TensorProto.EXTERNAL
  tensor.external_data.add(key="location", value="../../etc/passwd")
  scope = next(scopes(annotated(model)))
  assert scope.constant(scope.graph.tensors()["w"]) is None
  assert scope.scalar(scope.graph.tensors()["w"]) is None


def test_dependence():
  scope = scope_of("""(bool p, float x) => (y, z) { a = Sin(x)  b = Cos(x)  c = Add(a, b)
      y = If(p) <then () => (float u) { u = Neg(c) }, else () => (float v) { v = Neg(x) }>
      z = Neg(b) }""")
  nodes, tensors = makers(scope), scope.graph.tensors()
  assert scope.depends_on(tensors["c"], nodes["a"])
  assert scope.depends_on(tensors["y"], nodes["a"])  # through the body
  assert not scope.depends_on(tensors["z"], nodes["a"])
  assert not scope.depends_on(tensors["a"], nodes["c"])
  assert not scope.depends_on(tensors["x"], nodes["a"])


def test_who_else_uses_a_value():
  scope = scope_of("""(bool p, float x) => (y, c) { a = Sin(x)  b = Cos(a)  c = Neg(b)  d = Abs(c)
      y = If(p) <then () => (float u) { u = Neg(d) },
                  else () => (float v) { v = Neg(x) }> }""")
  nodes, tensors = makers(scope), scope.graph.tensors()
  assert scope.used_beyond(tensors["a"], [nodes["b"]]) == ""
  assert scope.used_beyond(tensors["a"], []) == "'a' is also used by 'b' (Cos)"
  assert scope.used_beyond(tensors["c"], [nodes["d"]]) == "'c' is a graph output"
  assert scope.used_beyond(tensors["d"], []) == "'d' is also used inside a body, by 'u' (Neg)"


def test_replacing_moves_only_what_must():
  scope = scope_of("""(float x) => (y, z) {
    a = Sin(x)  after = Neg(a)  before = Cos(x)  b = Add(a, before)  y = Mul(b, after)  z = Abs(after) }""")
  nodes, tensors = makers(scope), scope.graph.tensors()
  fused = gs.Node("Fused", "fused", {}, [tensors["x"], tensors["before"]], [])
  scope.replace([nodes["a"], nodes["b"]], fused, [tensors["a"], tensors["b"]])
  scope.flush()
  assert [node.op for node in scope.graph.nodes] == ["Cos", "Fused", "Neg", "Mul", "Abs"]


def test_same_shape_without_knowing_it():
  scope = scope_of("""(float[N,3] u) => (float[A,B] y) { x = com.microsoft.Unheard(u)  a = Cast<to=1>(x)
    b = Relu(a)  c = Tanh(a)  d = Transpose(a)  e = Add(b, c)  y = Add(d, e) }""")
  tensors = scope.graph.tensors()
  assert scope.shape(tensors["a"]) is None
  assert scope.same_shape(tensors["b"], tensors["c"])
  assert not scope.same_shape(tensors["b"], tensors["d"])
  assert not scope.same_shape(tensors["a"], tensors["e"])


@parametrize(
  "shape, target, expected",
  [
    ((8,), (2, 3, 8), True),
    ((), (2, 3), True),
    ((1, 1), (2, 3), True),
    (("N", 8), ("N", 8), True),
    (("N", 1), ("N", 8), True),
    ((1, 8), ("N", 8), True),
    (("K",), (8,), True),  # against 8, in a valid model K is 1 or 8
    ((None,), (8,), True),
    (("K",), ("N",), False),
    ((None,), ("N",), False),
    ((4,), ("N",), False),  # N may be 1
    ((8,), (1,), False),
    (("K",), (1,), False),
    ((1, 1, 1), (2, 3), False),
    ((2,), (3,), False),
    ((0,), (0,), True),
    (None, (2,), False),
    ((2,), None, False),
  ],
)
def test_broadcasting_that_is_certain(shape, target, expected):
  assert broadcasts_to(shape, target) is expected


def test_shapes():
  assert broadcast([("N", 1, 8), (4, 1)]) == ("N", 4, 8)
  assert broadcast([("N",), (1,)]) == ("N",)
  assert broadcast([("N",), ("M",)]) == (None,)
  assert broadcast([(2,), (3,)]) == (None,)
  assert broadcast([(0,), (1,)]) == (0,)
  assert broadcast([(2,), None]) is None
  assert broadcast([]) is None
  assert equal(("N", 2), ("N", 2))
  assert not equal((None, 2), (None, 2))
  assert not equal(("N", 2), ("M", 2))
  assert element_count((2, 3)) == 6
  assert element_count((2**40, 2**40)) == 2**80
  assert element_count(()) == 1
  assert element_count(("N",)) is None
  assert element_count((-1,)) is None


def test_topological_order_is_stable_and_needs_no_recursion():
  tensors = [gs.Variable(f"t{i}") for i in range(5001)]
  nodes = [gs.Node("Neg", f"n{i}", {}, [tensors[i]], [tensors[i + 1]]) for i in range(5000)]
  assert [node.name for node in topological_order(list(reversed(nodes)))] == [node.name for node in nodes]
  a, b = gs.Variable("a"), gs.Variable("b")
  circle = [gs.Node("Neg", "first", {}, [a], [b]), gs.Node("Neg", "second", {}, [b], [a])]
  with raises(ModelError, r"node 'first' \(Neg\) is part of a cycle"):
    topological_order(circle)


def test_annotation_survives_what_it_cannot_infer():
  graph = graph_of("""(float[N,3] x, float[3] w) => (float[A,B] y) {
    a = com.microsoft.SkipSimplifiedLayerNormalization(x, x, w)  b = Neg(a)  c = com.microsoft.Unheard(b)
    y = Add(c, b) }""")
  tensors = graph.tensors()
  assert (tensors["b"].dtype, tuple(tensors["b"].shape)) == (np.float32, ("N", 3))
  assert tensors["c"].dtype is None


def test_inference_from_the_inputs_is_believed_before_value_info():
  """Tools that make a batch dynamic often leave its old length in value_info."""
  graph = import_model(parsed("""(float[batch,3] x) => (y) <float[1,3] a> { a = Neg(x)  y = Abs(a) }"""))
  assert tuple(graph.tensors()["a"].shape) == (1, 3)
  annotate(graph)
  assert tuple(graph.tensors()["a"].shape) == ("batch", 3)


def test_made_up_names_of_dimensions_never_mean_two_things():
  """Inference counts them from 0 each time; a model that was optimized before brings some along."""
  graph = graph_of("""(float[N,3] x) => (int64[A,B] y) <int64[unk__0,3] b> {
    a = NonZero(x)  b = com.microsoft.Unheard(a)  c = NonZero(b)  d = com.microsoft.Unheard(c)  e = NonZero(b)
    y = NonZero(d) }""")
  for _ in range(3):
    found = [dim for name in ("a", "b", "c", "e") for dim in graph.tensors()[name].shape if isinstance(dim, str)]
    assert len(found) == len(set(found)) == 4
    assert tuple(graph.tensors()["b"].shape) == ("unk__0", 3)
    annotate(graph)


RELU = "(float x) => (float y) { y = Relu(x) }"


def test_a_fused_nodes_shape_is_made_more_precise():
  """What was written when less was known gives way, there and behind."""
  nodes = [
    helper.make_node("FusedPointwise", ["x"], ["y"], domain="ortplugin", program=RELU),
    helper.make_node("MatMul", ["y", "w"], ["z"]),
    helper.make_node("FusedPointwise", ["z"], ["r"], domain="ortplugin", program=RELU),
  ]
  model = built(nodes, "float[2,4] x, float[4,4] w", "float[unk__7,4] r", domains=["ortplugin"])
  model.graph.value_info.extend(helper.make_tensor_value_info(name, 1, ["unk__7", 4]) for name in "yz")
  graph = annotated(model)
  assert [tuple(graph.tensors()[name].shape) for name in "yzr"] == [(2, 4)] * 3
