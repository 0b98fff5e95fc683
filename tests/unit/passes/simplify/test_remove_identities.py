import numpy as np
import onnx
from pass_helpers import model, operators, parametrize, random_feeds, run, run_pass, run_same, stays

from ortplugin.optimizer.pipeline import DEAD_NODES, REMOVE_IDENTITIES, SCATTER_TRANSPOSE, UPDATE_SLICE

START = "start = {0, 0}"


@parametrize(
  "node",
  [
    "b = Identity(a)",
    "b = Dropout(a)",
    "b, mask = Dropout(a)",
    "no = bool {0}  b = Dropout(a, , no)",
    "b = Cast<to=1>(a)",
    "shape = {-1,4}  b = Reshape(a, shape)",
    "shape = {1,4}  b = Expand(a, shape)",
    "b = Transpose<0,1>(a)",
    'pads = {0,0,0,0}  b = Pad<mode="reflect">(a, pads)',
    f"{START}  end = {{3,9}}  b = Slice(a, start, end)",
    "v = {0}  w = {4}  axis = {1}  step = {1}  b = Slice(a, v, w, axis, step)",
    "b = Concat<axis=0>(a)",
    "b = Sum(a)",
    "b = Mean(a)",
    "b = Max(a)",
    "b = Min(a)",
  ],
)
def test_removed(node):
  original = f"(float[3,4] x) => (y) {{ a = Sin(x)  {node}  y = Neg(b) }}"
  run_same(original, REMOVE_IDENTITIES, into="Sin Neg", changes=1)


@parametrize("into, given", [
  ("Sin Neg", "1,1"), ("Sin Neg", "1,1], strides = [1,1], count_include_pad = 1, ceil_mode = 1, pads = [0,0,0,0"),
  ("Sin AveragePool Neg", "1,2"), ("Sin AveragePool Neg", "1,1], strides = [1,2"),
])  # fmt: skip
def test_an_average_of_one_pixel(into, given):
  original = f"(float[1,2,3,4] x) => (y) {{ a = Sin(x)  b = AveragePool<kernel_shape=[{given}]>(a)  y = Neg(b) }}"
  run_same(original, REMOVE_IDENTITIES, into=into)


def test_what_was_removed_before_disputes_nothing():
  """The pool has no tensors any more when the shapes are asked for."""
  original = """(float[1,2,3,4] x, int64[3] i) => (float[?,?,?,?] y, int64[?] z) { zero = int64[1] {0}  a = Sin(x)
    b = AveragePool<kernel_shape=[1,1], ceil_mode=1>(a)  y = Neg(b)  c = Add(i, zero)  z = Neg(c) }"""
  run_same(original, REMOVE_IDENTITIES, into="Sin Neg Neg")


@parametrize(("shape", "zero", "into"), [
  ("1", "int64[1] {0}", "Neg"), ("3", "int64[1] {0}", "Neg"), ("N", "int64 {0}", "Neg"),
  ("3", "int64[1,1] {0}", "Add Neg"), ("1", "int64[1] {1}", "Add Neg"), ("1", "int64[3] {0,0,0}", "Add Neg"),
])  # fmt: skip
@parametrize("sum_", ["Add(zero, x)", "Add(x, zero)"])
def test_an_integer_and_zero(shape, zero, into, sum_):
  run_same(f"(int64[{shape}] x) => (y) {{ zero = {zero}  a = {sum_}  y = Neg(a) }}", REMOVE_IDENTITIES, into=into)


def test_one_integer_and_zero():
  """The position of one token, as exporters write it."""
  original = "(int64[1] x) => (y) { zero = int64[1] {0}  s = Squeeze(x)  a = Add(zero, s)  y = Neg(a) }"
  run_same(original, REMOVE_IDENTITIES, into="Squeeze Reshape Neg")


def test_a_float_and_zero():
  """Which turns -0 into 0."""
  run_same("(float[3] x) => (y) { zero = float {0}  a = Add(x, zero)  y = Neg(a) }", REMOVE_IDENTITIES, into="Add Neg")


WIDER = {
  "float": ["double"],
  "float16": ["float", "double"],
  "bfloat16": ["float", "double"],
  "int32": ["int64", "double"],
  "bool": ["float", "bfloat16", "int64", "uint8"],
  "uint8": ["float16", "bfloat16", "int32", "uint64"],
  "int8": ["float", "float16", "int16"],
}
READ_IN_A_BODY = """y = If(c) <then () => ({0}[N] t) {{ t = Identity(b) }},
    otherwise () => ({0}[N] e) {{ e = Identity(b) }}>"""


@parametrize("dtype, wide", [(dtype, wide) for dtype, each in WIDER.items() for wide in each])
@parametrize("between", ["", "w = Identity(v)"])
def test_a_cast_to_a_wider_dtype_and_back(dtype, wide, between, rng):
  """ONNX Runtime takes both out, too, but not for readers in bodies, which then find no value."""
  to = {name: int(onnx.TensorProto.DataType.Value(name.upper())) for name in (dtype, wide)}
  original = f"""(bool c, {dtype}[N] x) => (y) {{
    v = Cast<to={to[wide]}>(x)  {between}  b = Cast<to={to[dtype]}>({"w" if between else "v"})
    {READ_IN_A_BODY.format(dtype)} }}"""
  optimized, _ = run_pass(original, REMOVE_IDENTITIES, DEAD_NODES, into="If")
  if dtype != "bfloat16":  # of which ONNX Runtime takes no NumPy array
    feeds = random_feeds(optimized, rng)
    assert np.array_equal(run(optimized, feeds)[0], feeds["x"])


@parametrize("end", ["y = Sqrt(b)", "y = Identity(b)"])
def test_a_wider_form_stays_for_others(end):
  original = f"""(float16[N] i) => (y, float[N] z) {{
    x = Abs(i)  v = Cast<to=1>(x)  z = Neg(v)  b = Cast<to=10>(v)  {end} }}"""
  optimized, _ = run_same(original, REMOVE_IDENTITIES, into=["Abs", "Cast", "Neg", "Sqrt"][: 4 if "Sqrt" in end else 3])
  assert [each.name for each in optimized.graph.output] == ["y", "z"]


def test_a_slice_to_the_end_of_an_unknown_length():
  original = """(float[N,M] x) => (y) { v = {0}
    w = {9223372036854775807}  b = Slice(x, v, w, v)  y = Neg(b) }"""
  run_same(original, REMOVE_IDENTITIES, into="Neg")


ALL_ROWS = """(float[{0},4] x, float[{0},1] u) => (float[{0},4] y) <int64[1,1] one = {{1}}> {{
  v = {{0}}  end = {{9223372036854775807}}
  rows = Slice(x, v, end)  a = Transpose<1,0>(rows)  t = Transpose<1,0>(u)
  b = ScatterND(a, one, t)  c = Transpose<1,0>(b)
  n = Shape(x)  length = Gather(n, zero)  i = Range(zero, length, step)  column = Unsqueeze(i, minus)
  zero = int64 {{0}}  step = int64 {{1}}
  minus = {{-1}}  y = ScatterND(x, column, c) }}"""


@parametrize("rows", ["3", "N"])
def test_an_update_of_all_rows(rows):
  """x[:, 1] = u, as PyTorch's dynamo exporter writes it: a slice of all rows is taken, updated and put back."""
  original = model(ALL_ROWS.format(rows))
  nodes = list(original.graph.node)
  original.graph.ClearField("node")
  original.graph.node.extend(sorted(nodes, key=lambda node: node.op_type != "Constant"))
  first = run_pass(original, REMOVE_IDENTITIES, UPDATE_SLICE, SCATTER_TRANSPOSE)[0]
  run_same(original, REMOVE_IDENTITIES, DEAD_NODES, start=first, into="UpdateSlice")


def test_an_update_of_all_by_constants_stays():
  """ONNX Runtime captures no model in a CUDA graph that has a constant output."""
  text = """(float[1] x) => (y) <int64[1,1] i = {0}, float[1] u = {3}> {
    a = Sin(x)  b = ScatterND(a, i, u)  y = Neg(b) }"""
  made, _ = run_pass(text, UPDATE_SLICE, into="Sin UpdateSlice Neg")
  stays(made, REMOVE_IDENTITIES)


@parametrize("start", [0, 1])
def test_a_slice_of_attributes(start):
  text = "(float[3,4] x) => (float[A,4] y) {{ b = Slice<starts=[{0}], ends=[9], axes=[0]>(x)  y = Neg(b) }}"
  run_same(model(text.format(start), opset=9), REMOVE_IDENTITIES, into=["Slice", "Neg"][start == 0 :])


def test_a_graph_output_keeps_its_name():
  original = "(float[N] x) => (y, z) { a = Sin(x)  z = Cos(a)  y = Identity(a) }"
  optimized, _ = run_same(original, REMOVE_IDENTITIES, into="Sin Cos")
  assert [each.name for each in optimized.graph.output] == ["y", "z"]


def test_what_a_body_reads_is_followed():
  original = """(bool c, float[N] x) => (y) { a = Sin(x)  b = Identity(a)
      y = If(c) <then () => (float[N] t) { t = Neg(b) },
                  otherwise () => (float[N] e) { e = Identity(b) }> }"""
  optimized, _ = run_same(original, REMOVE_IDENTITIES, into="Sin If")
  assert operators(optimized.graph.node[1].attribute[1].g) == ["Identity"]  # a body's output is not the outer value


def test_of_a_constant():
  run_same("(float[N] x) => (y) <float c = {2}> { d = Identity(c)  y = Mul(x, d) }", REMOVE_IDENTITIES, into="Mul")


@parametrize(
  "nodes",
  [
    "y = Identity(x)",  # an input that is an output
    "a = Sin(x)  y = Identity(a)  z = Identity(a)",  # two outputs of one value; one has to be copied
  ],
)
def test_an_identity_between_fixed_names_stays(nodes):
  outputs = "float[N] y, z" if "z =" in nodes else "float[N] y"
  optimized, _ = run_same(f"(float[N] x) => ({outputs}) {{ {nodes} }}", REMOVE_IDENTITIES)
  assert "Identity" in operators(optimized)


@parametrize(
  "node",
  [
    "zero = float {0.0}  b = Add(a, zero)",  # -0 + 0 is 0
    "one = float[1,1,1] {1.0}  c = Mul(a, one)  s = {0}  b = Squeeze(c, s)",
    "shape = {4,3}  c = Reshape(a, shape)  b = Transpose(c)",
    "c = Transpose(a)  b = Transpose(c)",
    "pads = {1,0,-1,0}  b = Pad(a, pads)",  # moves the rows
    f"{START}  end = {{3,3}}  b = Slice(a, start, end)",
    "v = {-1}  w = {-9}  axis = {1}  b = Slice(a, v, w, axis, v)",  # reversed
    "c = Cast<to=10>(a)  b = Cast<to=1>(c)",  # rounds
    "c = Cast<to=7>(a)  b = Cast<to=1>(c)",
    "d = Cast<to=11>(a)  e = Cast<to=6>(d)  b = Cast<to=1>(e)",
    "d = Cast<to=10>(a)  e = Cast<to=16>(d)  f = Cast<to=10>(e)  b = Cast<to=1>(f)",
    "d = Cast<to=6>(a)  e = Cast<to=1>(d)  f = Cast<to=6>(e)  b = Cast<to=1>(f)",
    "d = Cast<to=2>(a)  e = Cast<to=3>(d)  f = Cast<to=2>(e)  b = Cast<to=1>(f)",
    "d = Cast<to=4>(a)  e = Cast<to=10>(d)  f = Cast<to=4>(e)  b = Cast<to=1>(f)",
    "b = Concat<axis=0>(a, a)",
    "b = Max(a, a)",
  ],
)
def test_kept(node):
  rows, columns = 6 if "Concat" in node else 3, 3 if "{3,3}" in node else 4
  stays(f"(float[3,4] x) => (float[{rows},{columns}] y) {{ a = Sin(x)  {node}  y = Neg(b) }}", REMOVE_IDENTITIES)


@parametrize("text", {
  "Dropout in training": "(float[N] x) => (y) { r = float {0.5}  t = bool {1}  a = Sin(x)  b = Dropout(a, r, t)",
  "a mask in use": "(float[N] x) => (y, bool[N] m) { a = Sin(x)  b, m = Dropout(a)",
  "an unknown shape": "(float[N,4] x, int64[2] shape) => (float[A,B] y) { a = Sin(x)  b = Reshape(a, shape)",
  "an overridable mode": "(float[N] x, bool t) => (float[N] y) <bool t = {0}> { a = Sin(x)  b = Dropout(a, , t)",
}.values())  # fmt: skip
def test_other_texts_stay(text):
  stays(text + "  y = Neg(b) }", REMOVE_IDENTITIES)


@parametrize("ceil, left", [(1, "AveragePool Reshape Neg"), (0, "AveragePool Neg")])
def test_a_reshape_that_tells_onnx_runtime_the_shape_stays(ceil, left):
  """Of this pool in ceil_mode onnx infers [1,1,2], and ONNX Runtime, which infers by it, computes [1,1,1]."""
  original = f"""(float[1,1,2] x) => (float[1,1,1] y) <int64[3] one = {{1,1,1}}> {{
    a = AveragePool<kernel_shape=[1], strides=[3], ceil_mode={ceil}>(x)  b = Reshape(a, one)
    y = Neg(b) }}"""
  run_same(original, REMOVE_IDENTITIES, into=left)
