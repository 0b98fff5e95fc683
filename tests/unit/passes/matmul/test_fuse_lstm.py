import numpy as np
import onnx
from matmul_helpers import attribute, inputs_of, weighted
from pass_helpers import model, nodes_of, operators, parametrize, run_pass, run_same, same_outputs, stays

import ortplugin
from ortplugin.optimizer.pipeline import DEAD_NODES, FUSE_LSTM, LSTM_TO_TF32

BOTH = 'direction = "bidirectional"'
SHAPES = {
  "w": (2, 64, 8),
  "r": (2, 64, 16),
  "b": (2, 128),
  "h": (2, 3, 16),
  "c": (2, 3, 16),
  "peep": (2, 48),
  "w1": (1, 64, 8),
  "r1": (1, 64, 16),
  "b1": (1, 128),
  "wx": (2, 64, 32),
  "rx": (2, 64, 16),
  "bx": (2, 128),
  "r12": (2, 48, 12),
  "w12": (2, 48, 8),
  "w6": (2, 64, 6),
  "w112": (2, 448, 8),
  "r112": (2, 448, 112),
}
JOINED = """t = Transpose<0,2,1,3>(o)  s = {0,0,-1}  j = Reshape(t, s)"""


def graph(nodes, outputs="f[5,3,32] y", x="f[5,3,8] x", half=True):
  """A model of these nodes, which read x and the weights of SHAPES that they name, and `lens`."""
  words = nodes.replace(")", ",").replace("(", ",").split(",")
  used = {name: shape for name, shape in SHAPES.items() if name in [word.strip() for word in words]}
  return weighted(f"({x}) => ({outputs}) {{ {nodes} }}", used, half=half)


def lstm(inputs="x, w, r, b", attributes=f"hidden_size = 16, {BOTH}", outputs="o"):
  return f"{outputs} = LSTM<{attributes}>({inputs})"


BATCH_FIRST = f"f = Transpose<1,0,2>(x)  {lstm('f, w, r, b')}  {JOINED}  y = Transpose<1,0,2>(j)"


def recurrences(made):
  return nodes_of(made, "FusedLSTM")


def test_the_views_behind_it_are_its_own_order():
  optimized, _ = run_same(
    graph(f"{lstm()}  {JOINED}  y = Identity(j)"), FUSE_LSTM, into="FusedMatMul FusedLSTM Identity", changes=1
  )
  (node,) = recurrences(optimized)
  assert len(node.input) == 2
  assert len(node.output) == 1
  (product,) = inputs_of(optimized)
  assert [product[0], len(product)] == ["x", 3]


@parametrize("direction", ["forward", "reverse"])
@parametrize(
  "views",
  [
    "n = {1}  y = Squeeze(o, n)",
    "s = {5,3,16}  y = Reshape(o, s)",
    "t = Transpose<0,2,1,3>(o)  s = {0,0,-1}  y = Reshape(t, s)",
    "t = Transpose<0,2,1,3>(o)  n = {-2}  y = Squeeze(t, n)",
  ],
)
def test_one_direction(direction, views):
  nodes = lstm("x, w1, r1, b1", f'hidden_size = 16, direction = "{direction}"')
  run_same(graph(f"{nodes}  {views}", "f[5,3,16] y"), FUSE_LSTM, into="FusedMatMul FusedLSTM")


def test_other_readers_get_the_order_of_onnx():
  optimized, _ = run_same(
    graph(f"{lstm()}  y = Identity(o)", "f[5,2,3,16] y"),
    FUSE_LSTM,
    into="FusedMatMul FusedLSTM Reshape Transpose Identity",
  )
  assert len(recurrences(optimized)) == 1
  views = [
    f"{JOINED}  y = Concat<axis=2>(j, j)  z = Identity(o)",  # Y has another reader
    "t = Transpose<0,2,1,3>(o)  s = {3,5,-1}  y = Reshape(t, s)",  # other rows
    "s = {5,3,32}  y = Reshape(o, s)",  # not side by side
  ]
  for each, outputs in zip(views, ("f[5,3,64] y, f[5,2,3,16] z", "f[3,5,32] y", "f[5,3,32] y"), strict=True):
    found, _ = run_same(graph(f"{lstm()}  {each}", outputs), FUSE_LSTM)
    assert operators(found)[:4] == ["FusedMatMul", "FusedLSTM", "Reshape", "Transpose"]


def test_without_a_bias():
  optimized, _ = run_same(graph(f"{lstm('x, w, r')}  {JOINED}  y = Identity(j)"), FUSE_LSTM)
  (product,) = inputs_of(optimized)
  assert len(product) == 2


@parametrize(
  "outputs, declared, count",
  [
    ("o, hn, cn", "f[5,3,32] y, f[2,3,16] hn, f[2,3,16] cn", 3),
    ("o, , cn", "f[5,3,32] y, f[2,3,16] cn", 3),
    ("o, hn", "f[5,3,32] y, f[2,3,16] hn", 2),
    ("o, hn, cn", "f[5,3,32] y", 1),
  ],
)
def test_initial_and_last_states(outputs, declared, count):
  original = graph(f"{lstm('x, w, r, b, , h, c', outputs=outputs)}  {JOINED}  y = Identity(j)", declared)
  optimized, _ = run_same(original, FUSE_LSTM)
  (node,) = recurrences(optimized)
  assert list(node.input[2:]) == ["h", "c"]
  assert len(node.output) == count


def test_the_last_state_alone():
  optimized, _ = run_same(graph(lstm(outputs=", hn"), "f[2,3,16] hn"), FUSE_LSTM, into="FusedMatMul FusedLSTM")
  assert recurrences(optimized)[0].output[1] == "hn"


@parametrize(
  "zeros",
  [
    "z = float16[1] {0}  n = {2,3,16}  h0 = Expand(z, n)",
    "n = {2,3,16}  h0 = ConstantOfShape<value=float16[1] {0}>(n)",
    "n = {4,3,16}  e = ConstantOfShape<value=float16[1] {0}>(n)  h0, h1 = Split(e)",
  ],
)
def test_initial_states_of_zeros_are_left_out(zeros):
  original = graph(f"{zeros}  {lstm('x, w, r, b, , h0, h0')}  {JOINED}  y = Identity(j)")
  optimized, _ = run_same(original, FUSE_LSTM, DEAD_NODES, into="FusedMatMul FusedLSTM Identity")
  assert len(recurrences(optimized)[0].input) == 2


def test_batch_first():
  optimized, _ = run_same(
    graph(BATCH_FIRST, "f[3,5,32] y", "f[3,5,8] x"), FUSE_LSTM, into="FusedMatMul FusedLSTM", changes=2
  )
  assert attribute(recurrences(optimized)[0], "batch_first") == 1


def test_several_layers_are_batch_first():
  nodes = f"""f = Transpose<1,0,2>(x)  {lstm("f, w, r, b", outputs="o, hn")}  {JOINED}
    {lstm("j, wx, rx, bx", outputs="p")}  u = Transpose<0,2,1,3>(p)  k = Reshape(u, s)
    y = Transpose<1,0,2>(k)"""
  optimized, _ = run_same(
    graph(nodes, "f[3,5,32] y, f[2,3,16] hn", "f[3,5,8] x"), FUSE_LSTM, into=["FusedMatMul", "FusedLSTM"] * 2
  )
  assert [attribute(node, "batch_first") for node in recurrences(optimized)] == [1, 1]


def test_the_last_state_of_a_batch():
  nodes = f"f = Transpose<1,0,2>(x)  {lstm('f, w, r, b', outputs=', hn')}"
  run_same(graph(nodes, "f[2,3,16] hn", "f[3,5,8] x"), FUSE_LSTM, into="FusedMatMul FusedLSTM")


@parametrize(
  "nodes, outputs, x",
  [
    (f"f = Transpose<1,0,2>(x)  {lstm('f, w, r, b')}  {JOINED}  y = Relu(j)", "f[5,3,32] y", "f[3,5,8] x"),
    (f"{lstm()}  {JOINED}  y = Transpose<1,0,2>(j)", "f[3,5,32] y", "f[5,3,8] x"),
    (f"{lstm()}  {JOINED}  y = Transpose<1,2,0>(j)", "f[3,32,5] y", "f[5,3,8] x"),
  ],
)
def test_a_transpose_on_one_side_stays(nodes, outputs, x):
  optimized, _ = run_same(graph(nodes, outputs, x), FUSE_LSTM, changes=1)
  assert operators(optimized).count("Transpose") == 1


IMAGE = f"""p = Transpose<0,2,1,3>(x)  m = {{6,5,8}}  q = Reshape(p, m)
  f = Transpose<1,0,2>(q)  {lstm("f, w, r, b", outputs="o, hn")}  {JOINED}
  k = Transpose<1,0,2>(j)  v = {{2,3,5,32}}
  a = Reshape(k, v)  y = Transpose<0,2,1,3>(a)"""


def test_the_columns_of_images_are_read_where_they_lie():
  outputs = "f[2,5,3,32] y, f[2,6,16] hn"
  optimized, _ = run_same(graph(IMAGE, outputs, "f[2,5,3,8] x"), FUSE_LSTM, into="FusedMatMul FusedLSTM")
  assert attribute(recurrences(optimized)[0], "batch_first") == 1
  rows = IMAGE.replace("{2,3,5,32}", "{3,2,5,32}")  # other images
  optimized, _ = run_same(graph(rows, "f[3,5,2,32] y", "f[2,5,3,8] x"), FUSE_LSTM)
  assert operators(optimized).count("Transpose") == 2
  read = IMAGE.replace("y = Tr", "z = Identity(a)  y = Tr")
  optimized, _ = run_same(graph(read, "f[2,5,3,32] y, f[2,3,5,32] z", "f[2,5,3,8] x"), FUSE_LSTM)
  assert operators(optimized).count("Transpose") == 2


def test_open_lengths():
  nodes = f"f = Transpose<1,0,2>(x)  {lstm('f, w, r, b')}  {JOINED}  y = Transpose<1,0,2>(j)"
  original = graph(nodes, "f[batch,length,32] y", "f[batch,length,8] x")
  optimized, _ = run_pass(original, FUSE_LSTM, into="FusedMatMul FusedLSTM")
  for batch, length in ((2, 3), (1, 7)):
    same_outputs(original, optimized, batch=batch, length=length)


STAY = {
  "clip": (lstm(attributes=f"hidden_size = 16, clip = 3.0, {BOTH}"), "'clip' is 3.0"),
  "input_forget": (lstm(attributes=f"hidden_size = 16, input_forget = 1, {BOTH}"), "'input_forget' is 1"),
  "layout": (lstm(attributes=f"hidden_size = 16, layout = 1, {BOTH}"), "'layout' is 1"),
  "activations": (
    lstm(attributes=f'hidden_size = 16, activations = ["Sigmoid", "Relu", "Tanh", "Sigmoid", "Tanh", "Tanh"], {BOTH}'),
    "its activations are Sigmoid, Relu",
  ),
  "peepholes": (lstm("x, w, r, b, , , , peep"), "it has peepholes, 'peep'"),
  "sequence_lens": (f"l = int32[3] {{5, 2, 1}}  {lstm('x, w, r, b, l')}", "it has sequence_lens"),
  "one state": (lstm("x, w, r, b, , h"), "one of its initial states"),
  "hidden size": (lstm("x, w12, r12", f"hidden_size = 12, {BOTH}"), "its hidden size is 12"),
  "weights": (f"v = Neg(w)  {lstm('x, v, r, b')}", "'v' of shape [2, 64, 8] is no constant"),
}


@parametrize("what", STAY)
def test_what_stays(what):
  nodes, reason = STAY[what]
  stays(graph(f"{nodes}  y = Identity(o)", "f[5,2,3,16] y"), FUSE_LSTM, reason)


def test_float32_stays():
  stays(graph(f"{lstm()}  y = Identity(o)", "f[5,2,3,16] y", half=False), FUSE_LSTM)


def test_float32_for_tf32():
  original = graph(BATCH_FIRST, "f[3,5,32] y", "f[3,5,8] x", half=False)
  optimized, _ = run_same(original, LSTM_TO_TF32, into="FusedMatMul FusedLSTM", changes=2)
  assert attribute(recurrences(optimized)[0], "batch_first") == 1
  stays(graph(f"{lstm()}  y = Identity(o)", "f[5,2,3,16] y"), LSTM_TO_TF32)


@parametrize(
  "nodes, x, reason",
  [
    (lstm("x, w112, r112", f"hidden_size = 112, {BOTH}"), 8, "its hidden size is 112; there is a fast kernel"),
    (lstm("x, w6, r"), 6, "its inputs have 6 elements"),
    (lstm(attributes=f"hidden_size = 16, clip = 3.0, {BOTH}"), 8, "'clip' is 3.0"),
  ],
)
def test_what_tf32_does_not_take(nodes, x, reason):
  original = graph(f"{nodes}  y = Identity(o)", "f[5,2,3,h] y", f"f[5,3,{x}] x", half=False)
  stays(original, LSTM_TO_TF32, reason)


@parametrize(
  "precision, provider, said", [(None, "cuda", [[]]), ("tf32", "cuda", [[1]]), (None, "cpu", []), ("fp32", "cuda", [])]
)
def test_who_may_round(precision, provider, said):
  original = graph(BATCH_FIRST, "f[3,5,32] y", "f[3,5,8] x", half=False)
  optimized, _ = ortplugin.optimize(original, precision=precision, providers=[provider])
  exact, _ = ortplugin.optimize(optimized, precision="fp32")
  for made, wanted in ((optimized, said), (exact, [[0] for _ in said])):
    assert [[each.i for each in node.attribute if each.name == "allow_tf32"] for node in recurrences(made)] == wanted


def test_bfloat16():
  nodes = f"{lstm()}  {JOINED}  y = Identity(j)"
  text = f"(bfloat16[5,3,8] x, bfloat16[2,64,8] w0) => (bfloat16[5,3,32] y) {{ {nodes} }}"
  original = model(text.replace(", bfloat16[2,64,8] w0", ""), 22, ir=10)
  for number, name in enumerate(("w", "r", "b")):
    values = np.random.default_rng(number).standard_normal(SHAPES[name]) / 4
    tensor = onnx.helper.make_tensor(name, onnx.TensorProto.BFLOAT16, SHAPES[name], values.reshape(-1))
    original.graph.initializer.append(tensor)
  run_pass(original, FUSE_LSTM, into="FusedMatMul FusedLSTM Identity")
