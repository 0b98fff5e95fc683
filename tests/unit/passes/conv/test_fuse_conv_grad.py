import onnx
import onnx.parser
from node_cases import planar
from onnx import helper
from onnx_models import add_weights, parsed
from pass_helpers import lines, operators, parametrize, programs, reasons, restore, run_pass, run_same

from ortplugin.optimizer.pipeline import CHANNELS_LAST_ALWAYS, CONV_EPILOGUE, FUSE_CONV, FUSE_CONV_GRAD

PROGRAM = "(float dz) => (float dz) {}"


def with_attributes(model, program=PROGRAM, gradients="dX dW dB"):
  """Those of the last node, a ConvGrad."""
  node = model.graph.node[-1]
  del node.attribute[:]
  attributes = planar(program=program, gradients=gradients, operands="X W", kernel_shape=3, pads=1)
  node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
  return model


def graph(nodes, gradients="dX dW dB", outputs=""):
  """X [N, 3, 6, 5], W [4, 3, 3, 3]; dy and y [N, 4, 6, 5]; the nodes make g, which ConvGrad reads."""
  shapes = {"dX": "N,3,6,5", "dW": "4,3,3,3", "dB": "4", "dZ": "N,4,6,5"}
  made = ", ".join(f"float[{shapes[name]}] {name}" for name in gradients.split())
  model = parsed(
    f"""(float[N,3,6,5] X, float[4,3,3,3] W, float[N,4,6,5] dy, y, float[4,1,1] s)
      => ({made}{outputs}) <float zero = {{0}}> {{ {nodes}
      {", ".join(gradients.split())} = ortplugin.ConvGrad<program="P">(X, W, g) }}""",
    domains=["ortplugin"],
  )
  return with_attributes(model, gradients=gradients)


def fuse(original, **more):
  return run_same(restore(original), FUSE_CONV_GRAD, start=original, **more)


@parametrize(
  "nodes, statements",
  [
    ("p = Greater(y, zero)  g = Where(p, dy, zero)", 2),
    ("p = LessOrEqual(y, zero)  g = Where(p, zero, dy)", 2),
    ("g = Mul(dy, s)", 1),
    ("a = Mul(y, y)  b = Sub(zero, a)  g = Mul(dy, b)", 3),
  ],
)
def test_what_makes_the_gradient_is_drawn_in(nodes, statements):
  optimized, _ = fuse(graph(nodes), into="ConvGrad")
  assert len(optimized.graph.node[0].input) == 4
  assert len(lines(programs(optimized)[0])) == statements


def test_a_gradient_that_is_needed_elsewhere_is_an_output():
  """As that of a residual: dZ itself, and what is on the way to it."""
  original = graph("p = Greater(y, zero)  g = Where(p, dy, zero)", outputs=", float[N,4,6,5] g")
  optimized, _ = fuse(original, into="ConvGrad")
  assert list(optimized.graph.node[0].output) == ["dX", "dW", "dB", "g"]
  (gradients,) = [a.s for a in optimized.graph.node[0].attribute if a.name == "gradients"]
  assert gradients == b"dX dW dB dZ"
  original = graph("a = Add(dy, y)  g = Mul(a, s)", outputs=", float[N,4,6,5] a")
  optimized, _ = fuse(original, into="ConvGrad")
  assert list(optimized.graph.node[0].output) == ["dX", "dW", "dB", "a"]


@parametrize(
  "after, gradients, outputs, made",
  [
    ("q = Neg(g)", "dB dZ", ", float[N,4,6,5] q", "dZ"),  # dZ is an output of the graph, g is read
    ("q = Neg(dZ)", "dB dZ", ", float[N,4,6,5] q, g", "g"),
    ("q = Neg(g)  r = Neg(dZ)", "dB dZ", ", float[N,4,6,5] q, r", "g"),
  ],
)
def test_a_gradient_that_is_an_output_and_read_under_another_name(after, gradients, outputs, made):
  original = graph("p = Greater(y, zero)  g = Where(p, dy, zero)", gradients, outputs)
  original.graph.node.extend(onnx.parser.parse_graph(f"g (float x) => (float q) {{ {after} }}").node)
  if made == "g":  # dZ is no output of the graph
    kept = [each for each in original.graph.output if each.name != "dZ"]
    del original.graph.output[:]
    original.graph.output.extend(kept)
  optimized, _ = fuse(original)
  assert operators(optimized)[0] == "ConvGrad"
  assert list(optimized.graph.node[0].output) == ["dB", made]


def test_one_gradient_as_two_outputs_stays():
  _, result = fuse(graph("g = Mul(dy, s)", "dB dZ", ", float[N,4,6,5] g"), into="Mul ConvGrad")
  assert reasons(result) == ["'g' (Mul): 'dZ' and 'g', one value, are both graph outputs"]


def test_what_the_operator_itself_reads_stays():
  """X and the gradient are one value here: drawn in, nobody would make X."""
  original = parsed(
    """(float[2,3,6,5] v, float[3,3,3,3] W) => (float[2,3,6,5] dX, float[3,3,3,3] dW, float[3] dB) {
      g = Relu(v)
      dX, dW, dB = ortplugin.ConvGrad<program="(float dz) => (dz) {}", operands = "X W",
          gradients = "dX dW dB", kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(g, W, g) }""",
    domains=["ortplugin"],
  )
  _, result = fuse(original, into="Relu ConvGrad")
  assert reasons(result) == ["'g' (Relu): 'g', which 'dX' (ConvGrad) reads, depends on it"]


def test_without_a_bias_nothing_is_gained():
  run_pass(graph("g = Mul(dy, s)", gradients="dX dW"), FUSE_CONV_GRAD, into="Mul ConvGrad", changes=0)


@parametrize(
  "nodes, fragment",
  [("g = Expand(s, shape)", None), ("a = Neg(s)  g = Mul(dy, a)", "'a' is not known to have the shape of dZ")],
)
def test_what_stays(nodes, fragment):
  original = graph(nodes)
  if "shape" in nodes:
    add_weights(original, shape=[3, 4, 6, 5])
  optimized, result = fuse(original)
  assert "ConvGrad" in operators(optimized)
  assert len(operators(optimized)) == 2
  if fragment is not None:
    assert any(fragment in reason for reason in reasons(result))


def test_gradients_have_channels_last_between_convolutions():
  """In a region with a convolution, weights and their gradients too; the bias's gradient is as it was."""
  original = parsed(
    """(float[N,3,6,5] X, float[4,3,3,3] W, float[N,4,6,5] dy) => (float[N,3,6,5] dX, float[4,3,3,3] dW, float[4] dB)
      { c = Conv<pads=[1,1,1,1]>(X, W)  y = Relu(c)
        dX, dW, dB = ortplugin.ConvGrad<program="P">(X, W, dy, y) }""",
    domains=["ortplugin"],
  )
  program = "(float dy, float y) => (float dz) { p = Greater(y, 0) dz = Where(p, dy, 0) }"
  with_attributes(original, program)
  optimized, _ = run_same(restore(original), FUSE_CONV, CHANNELS_LAST_ALWAYS, CONV_EPILOGUE, start=original)
  assert operators(optimized).count("ConvGrad") == 1
  layouts = [helper.get_attribute_value(a) for n in optimized.graph.node for a in n.attribute if a.name == "layout"]
  assert layouts == [b"NHWC", b"NHWC"]
  assert operators(optimized).count("Transpose") == 5  # X, W, dy; dX, dW
