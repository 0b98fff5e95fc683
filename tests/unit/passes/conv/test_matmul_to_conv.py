from layout_helpers import constant
from onnx import helper
from pass_helpers import all_attributes, lines, model, parametrize, programs, run_pass, run_same, stays, value_infos

from ortplugin.optimizer.pipeline import CHANNELS_LAST_ALWAYS, CONV_EPILOGUE, FUSE_CONV, FUSE_LAYER_NORM, MATMUL_TO_CONV

LAST, FIRST = "Transpose<0,2,3,1>", "Transpose<0,3,1,2>"


def graph(nodes, constants="", inputs="", out="[N,5,6,8]", perm=LAST):
  weights = ", ".join([constant("w", 4, 4, 3, 3), *([constants] if constants else [])])
  return model(f"""(float[N,4,5,6] x{inputs}) => (float{out} y) <{weights}> {{
    c = Conv<pads=[1,1,1,1]>(x, w)  t = {perm}(c)  {nodes} }}""")


def before(original):
  return run_pass(original, FUSE_CONV, FUSE_LAYER_NORM, CHANNELS_LAST_ALWAYS)[0]


def test_next_to_a_convolution():
  original = graph("y = MatMul(t, m)", constant("m", 4, 8))
  optimized, result = run_same(original, MATMUL_TO_CONV, start=before(original), into="Transpose FusedConv FusedConv")
  attributes = all_attributes(optimized.graph.node[-1])
  assert attributes.pop("program")
  assert attributes == {"layout": b"NHWC", "kernel_shape": [1, 1]}
  assert len(result.changes) == 1


def test_a_block_of_convnext():
  nodes = f"""n = LayerNormalization(t, g, b)  p = MatMul(n, m)  q = Add(p, b8)
    d = Div(q, root)  e = Erf(d)  f = Add(e, one)  h = Mul(q, f)  i = Mul(h, half)
    j = MatMul(i, k)  l = Add(b, j)  r = {FIRST}(l)  s = Mul(scale, r)  y = Add(s, x)"""
  constants = ", ".join(
    [
      constant("g", 4),
      constant("b", 4),
      constant("m", 4, 8),
      constant("b8", 8),
      constant("k", 8, 4),
      constant("scale", 4, 1, 1),
      "float root = {1.4142135}, float one = {1}, float half = {0.5}",
    ]
  )
  original = graph(nodes, constants, out="[N,4,5,6]")
  optimized, _ = run_same(
    original,
    MATMUL_TO_CONV,
    CONV_EPILOGUE,
    start=before(original),
    into="Transpose FusedConv FusedLayerNorm FusedConv FusedConv Transpose",
  )
  assert [len(lines(each)) for each in programs(optimized)] == [0, 3, 6, 3]


@parametrize(
  "original, fragments",
  [
    (graph("y = MatMul(t, m)", "", ", float[4,8] m"), ["'m' is no constant of two dimensions"]),
    (graph("y = MatMul(t, m)", constant("m", 1, 1, 4, 8)), ["'m' is no constant of two dimensions"]),
    (graph("a = Add(t, r)  y = MatMul(a, m)", constant("m", 4, 8), ", float[N,5,6,4] r"), []),  # not of a conv alone
    (graph("a = Slice(t, i, j)  y = MatMul(a, m)", constant("m", 4, 8) + ", int64[1] i = {0}, int64[1] j = {9}"), []),
    (graph("y = MatMul(c, m)", constant("m", 6, 8), out="[N,4,5,8]"), []),  # with channels first
    (  # of constants alone: no convolution leads there
      graph("a = Add(q, q)  y = MatMul(a, m)", f"{constant('q', 1, 5, 6, 4)}, {constant('m', 4, 8)}", out="[1,5,6,8]"),
      [],
    ),
  ],
)
def test_what_stays(original, fragments):
  stays(before(original), MATMUL_TO_CONV, *fragments)


def test_what_attention_reads_stays():
  """A sequence that a convolution made: of two products the one whose result is no Q, K and V."""
  attention = """y = ortplugin.FusedAttention<heads = 2, kv_heads = 2, qkv_dtype = "float",
        q_layout = "b s (h:0/6 d)", k_layout = "b s (h:2/6 d)", v_layout = "b s (h:4/6 d)",
        y_layout = "b s (h d)"> (q, q, q)"""
  weights = ", ".join([constant("w", 4, 4, 3), constant("m", 4, 12), constant("b", 12)])
  original = model(f"""(float[2,4,7] x) => (float[2,7,4] y, float[2,7,12] z) <{weights}> {{
    c = Conv<pads=[1,1]>(x, w)  t = Transpose<0,2,1>(c)  p = MatMul(t, m)  q = Add(p, b)  {attention}
    z = MatMul(t, m) }}""")
  original.opset_import.append(helper.make_opsetid("ortplugin", 1))
  run_pass(
    before(original),
    MATMUL_TO_CONV,
    into="Transpose FusedConv MatMul Add FusedAttention FusedConv",
    changes=1,
  )


def test_weights_that_a_caller_may_override():
  original = graph("y = MatMul(t, m)", constant("m", 4, 8))
  original.graph.input.extend(value_infos("float[4,8] m"))
  stays(before(original), MATMUL_TO_CONV, "a caller may override 'm'")


def test_with_channels_first_nothing_changes():
  first, _ = run_pass(graph("y = MatMul(t, m)", constant("m", 4, 8)), FUSE_CONV)
  stays(first, MATMUL_TO_CONV)
