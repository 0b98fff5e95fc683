"""What random graphs leave out, since ONNX Runtime dies or fails of it: that, and nothing beside it."""

import numpy as np
import onnx
from onnx_models import ones, parametrize, parsed

import ortplugin
from fuzz import lethal
from fuzz.evaluate import make_session

SHAPES = {
  "GRU": "0,4,1 4,0,1 2,4,0 - 2,4,1",
  "LSTM": "4,0,1 0,0,1 - 0,4,1 2,4,1",
  "ConvTranspose": "1,2,1,0,1 1,2,0,1,1 - 1,2,1,1,1 1,2,1,1,0 1,2,0,1",
  "InstanceNormalization": "1,1,1,0 - 0,1,1,1 1,1,1,1",
  "RoiAlign": "1,1,1,0 1,1,0,1 - 1,1,1,1",
}


@parametrize("op", SHAPES)
def test_shapes(op):
  dies, lives = ([np.ones(eval(each), np.float16) for each in part.split()] for part in SHAPES[op].split("-"))
  assert all(lethal.of_node(op, [each]) for each in dies)
  assert not any(lethal.of_node(op, [each]) for each in lives)
  assert bool(lethal.of_node(op, [dies[0].astype(np.float32)])) == (op != "InstanceNormalization")


@parametrize("x, other, dies", [((2, 3, 1), 0, False), ((0, 3, 1), 1, False), ((2, 0, 1), 1, True)])
def test_what_is_empty_beside_it_does_not_count(x, other, dies):
  """Of a shape that is not known it may die."""
  for middle in ("b = Transpose<1,0,2>(a)", "t = Transpose<1,0,2>(a)  b = Compress<axis=1>(t, c)"):
    model = parsed(f"""(float[S,A,1] x, float[N] z, bool[A] c) => (float[?,?,?,?] y, float[?] n)
      <float[1,4,1] w = {{1,2,3,4}}> {{ a = Transpose<1,0,2>(x)  {middle}  y = LSTM<hidden_size=1>(b, w, w)
      n = Neg(z) }}""")
    found = lethal.of_model(model, {"x": ones(*x), "z": ones(other), "c": np.ones(x[1], np.bool_)})
    assert bool(found) == (dies or "Compress" in middle)


@parametrize("op, attributes, of", [("Resize", {"mode": "cubic"}, "cubic"), ("CenterCropPad", {"axes": [2]}, "crop")])
def test_what_fails_behind_a_transpose(op, attributes, of):
  for first, given, fails in (("Transpose", attributes, True), ("Relu", attributes, False), ("Transpose", {}, False)):
    nodes = [onnx.helper.make_node(first, ["x"], ["t"]), onnx.helper.make_node(op, ["t"], ["y"], **given)]
    model = onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [], []))
    assert getattr(lethal, f"of_{of}")(model) == fails


@parametrize("length, beyond", [(1, False), (2, True)])
def test_a_scale_that_is_read_beyond_on_a_gpu(length, beyond):
  model = parsed("""(float[n] x) => (float[?] y) <float[1] s = {1}> { y = LayerNormalization<axis=0>(x, s, s) }""")
  assert lethal.of_scale(model, {"x": np.ones(length, np.float32)}) == beyond


def test_ours_takes_an_empty_volume():
  text = "(float[1,2,A,B,C] x) => (float[?,?,?,?,?] y) { y = ConvTranspose(x, w) }"
  made, _ = ortplugin.optimize(parsed(text, weights={"w": ones(2, 1, 2, 2, 2)}))
  (found,) = make_session(made).run(None, {"x": ones(1, 2, 1, 0, 1)})
  assert (found.shape, found.any()) == ((1, 1, 2, 1, 2), False)
