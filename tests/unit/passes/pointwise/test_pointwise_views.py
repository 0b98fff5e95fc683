import pytest
from pass_helpers import model, parametrize, programs, reasons, run_pass, run_same, same_outputs, stays

from ortplugin.optimizer.pipeline import FUSE_POINTWISE, POINTWISE_VIEWS

SPLIT = "to = {2, 3, 4, 8}"  # of float[6,4,8]


def graph(nodes, inputs, outputs="float[2,3,4,8] y"):
  return f"(float[6,4,8] x{inputs}) => ({outputs}) {{ {SPLIT}  {nodes} }}"


def check(text, *ops, opset=17):
  original = model(text, opset)
  optimized, _ = run_same(original, POINTWISE_VIEWS, into=list(ops))
  same_outputs(original, run_pass(original, POINTWISE_VIEWS, FUSE_POINTWISE)[0])
  return optimized


def test_a_reshape_moves_up_and_both_sides_join():
  """As Swin adds a position bias and then, for each window, a mask."""
  text = graph("a = Add(x, bias)  v = Reshape(a, to)  y = Add(v, mask)", ", float[1,4,8] bias, float[3,4,8] mask")
  fused, _ = run_pass(check(text, "Reshape", "Add", "Add"), FUSE_POINTWISE, into="Reshape FusedPointwise")
  assert programs(fused)[0].count("Add") == 2


def test_over_a_chain_with_its_attributes():
  text = graph(
    """m = Softmax(x)  a = Mul(m, s)  b = LeakyRelu<alpha=0.3>(a)  c = Cast<to=11>(b)  d = Cast<to=1>(c)
      v = Reshape(d, to)  y = Relu(v)""",
    ", float s",
  )
  optimized = check(text, "Softmax", "Reshape", "Mul", "LeakyRelu", "Cast", "Cast", "Relu")
  moved = {node.op_type: node for node in optimized.graph.node}
  assert moved["LeakyRelu"].attribute[0].f == pytest.approx(0.3)
  assert moved["Relu"].input[0] == "v"


@parametrize(
  "view, shape, back",
  [
    ("zero = {0}  v = Unsqueeze(a, zero)", "[1,6,4,8]", "Unsqueeze"),
    ("v = Flatten<axis=2>(a)", "[24,8]", "Flatten"),
    ("shape = {0,-1,2}  v = Reshape(a, shape)", "[6,16,2]", "Reshape"),
  ],
)
def test_other_views(view, shape, back):
  check(graph(f"a = Neg(x)  {view}  y = Abs(v)", "", f"float{shape} y"), back, "Neg", "Abs")


def test_the_shape_may_come_after_the_chain():
  text = graph("a = Neg(x)  n = Neg(minus)  v = Reshape(a, n)  y = Abs(v)", ", int64[2] minus", "float[A,B] y")
  optimized, _ = run_pass(text, POINTWISE_VIEWS, into="Neg Reshape Neg Abs")
  assert next(node.output[0] for node in optimized.graph.node if node.op_type == "Neg") == "n"


@parametrize(
  "nodes, inputs, words",
  [
    ("a = Add(x, r)  v = Reshape(a, to)  y = Relu(v)", ", float[6,4,8] r", "does not repeat over all"),
    ("a = Add(x, r)  v = Reshape(a, to)  y = Relu(v)", ", float[6,1,1] r", "does not repeat over all"),
    (
      "h = Abs(x)  z = Softmax(h)  a = Neg(h)  v = Reshape(a, to)  b = Sin(v)  w = Reshape(z, to)  y = Add(b, w)",
      "",
      "'h' is also used by",
    ),
  ],
)
def test_what_cannot_be_passed(nodes, inputs, words):
  stays(graph(nodes, inputs), POINTWISE_VIEWS, words)


def test_nothing_moves_where_nothing_pointwise_follows():
  stays(graph("a = Relu(x)  v = Reshape(a, to)  y = Softmax(v)", ""), POINTWISE_VIEWS)
  stays(graph("a = Softmax(x)  v = Reshape(a, to)  y = Relu(v)", ""), POINTWISE_VIEWS)


def test_a_value_that_is_needed_before_the_view_stays():
  text = graph("a = Relu(x)  v = Reshape(a, to)  y = Neg(v)", "", "float[2,3,4,8] y, float[6,4,8] a")
  stays(text, POINTWISE_VIEWS)
  read = graph("a = Relu(x)  v = Reshape(a, to)  y = Neg(v)  z = Softmax(a)", "", "float[2,3,4,8] y, float[6,4,8] z")
  stays(read, POINTWISE_VIEWS)


def test_a_transpose_stays():
  stays(graph("a = Relu(x)  v = Transpose(a)  y = Neg(v)", "", "float[8,4,6] y"), POINTWISE_VIEWS)


def test_an_expand_that_its_reader_makes_needless():
  text = graph(
    "shape = Shape(x)  e = Expand(b, shape)  c = Greater(e, x)  y = Where(c, x, e)", ", float[8] b", "float[6,4,8] y"
  )
  optimized, result = run_same(text, POINTWISE_VIEWS)
  assert [list(node.input) for node in optimized.graph.node[-2:]] == [["b", "x"], ["c", "x", "b"]]
  assert [each.nodes for each in result.changes] == [("'e' (Expand)", "'c' (Greater)"), ("'e' (Expand)", "'y' (Where)")]


def test_an_expand_that_gives_the_shape_stays():
  """Of two that meet, one goes; of one beside something smaller, none."""
  text = graph("shape = Shape(x)  e = Expand(b, shape)  y = Mul(e, c)", ", float[8] b, float[4,1] c", "float[6,4,8] y")
  stays(text, POINTWISE_VIEWS)
  both = graph(
    "shape = Shape(x)  e = Expand(b, shape)  f = Expand(c, shape)  y = Mul(e, f)",
    ", float[8] b, float[4,1] c",
    "float[6,4,8] y",
  )
  optimized, result = run_pass(both, POINTWISE_VIEWS, changes=1)
  assert list(optimized.graph.node[-1].input) == ["b", "f"]
  assert not reasons(result)
