import numpy as np
import onnx
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator
from onnx_models import annotated, parametrize, parsed

from ortplugin.graph import NotPointwiseError, is_pointwise, scopes
from ortplugin.graph.pointwise import Writer, write
from ortplugin.ops.pointwise_reference import rounded, values
from ortplugin.program import Parameter, Program, parse

SEED = parse("(float seed) => (float seed) {}")


def model_of(graph, opset=18):
  return parsed(f"g {graph}", opset, domains=["com.microsoft"])


def scope_of(model):
  return next(iter(scopes(annotated(model))))


def written(model, **options):
  scope = scope_of(model)
  node = [node for node in scope.slots if node is not None][-1]
  assert is_pointwise(scope, node)
  writer = Writer(SEED, {}, scope, **options)
  value = write(writer, node, [tensor.name for tensor in node.inputs])
  dtype = scope.dtype(node.outputs[0])
  program = Program(tuple(writer.parameters), (Parameter(dtype, value),), tuple(writer.statements))
  assert [tensor.name for tensor in writer.inputs] == [parameter.name for parameter in program.parameters]
  return program.renamed({value: "y_"}).renamed({s.name: f"t{i}" for i, s in enumerate(program.statements[:-1])})


def statements(program):
  return [line.strip() for line in str(program).splitlines()[1:-1]]


F = "(float[4] a, b, bool[4] c) => (float[4] y)"
I8 = "(int8[4] a, b, bool[4] c) => (int8[4] y)"
U = "(uint8[4] a, b) => (y)"
NODES = {
  f"{F} {{ y = Sub(a, b) }}": ["y_ = Sub(a, b)"],
  f"{F} <float k = {{0.1}}> {{ y = Sub(k, a) }}": ["y_ = Sub(0.10000000149011612, a)"],
  f"{F} {{ y = Where(c, a, b) }}": ["y_ = Where(c, a, b)"],
  f"{F} {{ y = Shrink<lambd=1.5, bias=0.5>(a) }}": ["y_ = Shrink<bias=0.5, lambd=1.5>(a)"],
  f"{F} {{ y = HardSigmoid(a) }}": ["y_ = HardSigmoid(a)"],
  f"{F} {{ y = Mod<fmod=1>(a, b) }}": ["y_ = Mod<fmod=1>(a, b)"],
  # variadic
  f"{F} {{ y = Sum(a, b, a) }}": ["t0 = Add(a, b)", "y_ = Add(t0, a)"],
  f"{F} {{ y = Mean(a, b) }}": ["t0 = Add(a, b)", "y_ = Div(t0, 2)"],
  f"{F} <float k = {{2}}, float l = {{3}}> {{ y = Max(k, l, a) }}": ["t0 = Max(a, 2)", "y_ = Max(t0, 3)"],
  f"{F} {{ y = Max(a) }}": ["y_ = Cast<to=float>(a)"],
  # what changes nothing
  f"{F} {{ y = Identity(a) }}": ["y_ = Cast<to=float>(a)"],
  f"{F} {{ y = Dropout(a) }}": ["y_ = Cast<to=float>(a)"],
  f"{F} <float ratio = {{0.5}}> {{ y = Dropout(a, ratio) }}": ["y_ = Cast<to=float>(a)"],
  f"{F} <float ratio = {{0.5}}, bool train = {{0}}> {{ y, mask = Dropout(a, ratio, train) }}": [
      "y_ = Cast<to=float>(a)"],
  # integers
  f"{I8} <int8 k = {{-128}}> {{ y = Add(a, k) }}": ["y_ = Add(a, -128)"],
  f"{I8} {{ y = Mod(a, b) }}": ["y_ = Mod(a, b)"],
  f"{I8} {{ y = BitwiseXor(a, b) }}": ["y_ = BitwiseXor(a, b)"],
  f"{I8} {{ y = Where(c, a, b) }}": ["y_ = Where(c, a, b)"],
  f'{U} {{ y = BitShift<direction="LEFT">(a, b) }}': ['y_ = BitShift<direction="LEFT">(a, b)'],
  f"{I8} {{ y = Clip(a) }}": ["y_ = Clip(a, -128, 127)"],
  f"{U} <uint8 k = {{3}}> {{ y = Clip(a, k) }}": ["y_ = Clip(a, 3, 255)"],
  "(uint64[4] a) => (y) <uint64 k = {18446744073709551615}> { y = Min(a, k) }": [
      "y_ = Min(a, 18446744073709551615)"],
  "(int64[4] a) => (bool[4] y) <int64 k = {9007199254740993}> { y = Equal(a, k) }": [
      "y_ = Equal(a, 9007199254740993)"],
  # bool
  "(bool[4] a) => (y) <bool k = {1}> { y = Xor(a, k) }": ["y_ = Xor(a, 1)"],
  "(bool[4] a, b) => (y) { y = Equal(a, b) }": ["y_ = Equal(a, b)"],
  "(float[4] a) => (bool[4] y) { y = IsInf<detect_positive=0>(a) }": ["y_ = IsInf<detect_positive=0>(a)"],
  # casts
  "(float[4] a) => (int64[4] y) { y = Cast<to=7>(a) }": ["y_ = Cast<to=int64>(a)"],
  "(float[4] a, uint16[1] like) => (uint16[4] y) { y = CastLike(a, like) }": ["y_ = Cast<to=uint16>(a)"],
  # powers: the result has the base's dtype
  f"{F} <int64 k = {{3}}> {{ y = Pow(a, k) }}": ["y_ = Pow(a, 3)"],
  f"{F} <double k = {{0.1}}> {{ y = Pow(a, k) }}": [
      "t0 = Cast<to=double>(a)", "t1 = Pow(t0, 0.1)", "y_ = Cast<to=float>(t1)"],
  "(float[4] a, int64[4] b) => (float[4] y) { y = Pow(a, b) }": [
      "t0 = Cast<to=double>(b)", "t1 = Cast<to=double>(a)", "t2 = Pow(t1, t0)", "y_ = Cast<to=float>(t2)"],
  "(float[4] a, int8[4] b) => (float[4] y) { y = Pow(a, b) }": ["t0 = Cast<to=float>(b)", "y_ = Pow(a, t0)"],
  "(float16[4] a, float[4] b) => (float16[4] y) { y = Pow(a, b) }": [
      "t0 = Cast<to=float>(a)", "t1 = Pow(t0, b)", "y_ = Cast<to=float16>(t1)"],
  "(int32[4] a, float[4] b) => (int32[4] y) { y = Pow(a, b) }": [
      "t0 = Cast<to=double>(b)", "t1 = Cast<to=double>(a)", "t2 = Pow(t1, t0)", "y_ = Cast<to=int32>(t2)"],
  "(int32[4] a) => (y) <float k = {2}> { y = Pow(a, k) }": ["y_ = Pow(a, 2)"],
  # ONNX Runtime's own
  "(float[4] a, bias) => (y) { y = com.microsoft.FastGelu(a, bias) }": [
      "t0 = Add(a, bias)", 'y_ = Gelu<approximate="tanh">(t0)'],
  f"{F} {{ y = com.microsoft.QuickGelu<alpha=1.5>(a) }}": ["y_ = QuickGelu<alpha=1.5>(a)"],
  "(float[4] a, bias) => (y) { y = com.microsoft.BiasAdd(a, bias, a) }": [
      "t0 = Add(a, bias)", "y_ = Add(t0, a)"],
}  # fmt: skip


@parametrize("graph", NODES)
def test_a_node_becomes_statements(graph, rng):
  model = model_of(graph)
  program = written(model)
  assert statements(program) == NODES[graph]
  if "com.microsoft" in graph:
    return  # onnx's own evaluator knows none of these
  feeds = {}
  for info in model.graph.input:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
    shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
    numbers = rng.integers(0, 2, shape) if dtype == np.bool_ else rng.integers(1, 6, shape)
    feeds[info.name] = np.asarray(numbers, dtype)
  (expected,) = ReferenceEvaluator(model).run(["y"], feeds)
  found = values(program, [feeds[each.name] for each in program.parameters])["y_"]
  found = rounded(found, program.results[0].dtype)
  assert found.dtype == np.asarray(expected).dtype
  np.testing.assert_allclose(found, expected, rtol=1e-3 if found.dtype == np.float16 else 1e-6)


@parametrize("attributes, limits", [
  ("", "-3.4028234663852886e+38, 3.4028234663852886e+38"),
  ("<min=0.0>", "0, 3.4028234663852886e+38"),
  ("<min=-1.0, max=1.5>", "-1, 1.5"),
])  # fmt: skip
def test_the_limits_of_clip_as_attributes(attributes, limits):
  program = written(model_of(f"(float[4] a) => (y) {{ y = Clip{attributes}(a) }}", opset=6))
  assert statements(program) == [f"y_ = Clip(a, {limits})"]


NONE = {
  "(string[4] a) => (bool[4] y) { y = Equal(a, a) }": "'a' is object; programs know float16",
  "(float[4] a) => (string[4] y) { y = Cast<to=8>(a) }": "'y' is object; programs know float16",
  "(float[4] a) => (y, bool[4] mask) { y, mask = Dropout(a) }": "its mask is wanted: 'mask' is a graph",
  "(float[4] a, bool train) => (float[4] y) <float r = {0.5}> { y = Dropout(a, r, train) }":
      "'train' is not surely false",
  "(float[4] a) => (y) <float r = {0.5}, bool train = {1}> { y = Dropout(a, r, train) }":
      "'train' is not surely false",
}  # fmt: skip


@parametrize("graph", NONE)
def test_why_a_node_becomes_none(graph):
  with pytest.raises(NotPointwiseError) as caught:
    written(model_of(graph))
  assert NONE[graph] in str(caught.value)


@parametrize("graph, reason", [
  ("(float[4] a) => (int64[4] y) { y = Cast<to=7>(a) }", "'y' is int64; programs know float, bool"),
  ("(int8[4] a) => (y) { y = Neg(a) }", "'a' is int8; programs know float, bool"),
  ("(float[4] a, int64[4] b) => (float[4] y) { y = Pow(a, b) }", "'b' is int64; programs know float, bool"),
  ("(float[4] a) => (y) <double k = {0.1}> { y = Pow(a, k) }", "it takes double; programs know float, bool"),
])  # fmt: skip
def test_an_operator_may_know_fewer_dtypes(graph, reason):
  with pytest.raises(NotPointwiseError) as caught:
    written(model_of(graph), dtypes=("float", "bool"))
  assert str(caught.value) == reason


@parametrize("node", ["Softmax(a)", "LayerNormalization(a, a)", "com.microsoft.SkipLayerNormalization(a)"])
def test_other_operators_have_no_statement(node):
  scope = scope_of(model_of(f"(float[4] a) => (y) {{ y = {node} }}"))
  assert not is_pointwise(scope, next(node for node in scope.slots if node is not None))
