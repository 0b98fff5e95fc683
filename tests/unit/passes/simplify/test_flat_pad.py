import numpy as np
from onnx_models import initializers
from pass_helpers import add_weights, model, parametrize, run_same, stays

from ortplugin.optimizer.pipeline import FLAT_PAD


def graph(x, pads, mode="constant", before="Relu", more=""):
  original = model(f"""(float[{x}] x) => (float[{",".join("ABCDE"[:x.count(",") + 1])}] y) {{
    a = {before}(x)  b = Pad<mode="{mode}">(a, p{more})  y = Neg(b) }}""", 18)  # fmt: skip
  add_weights(original, p=np.array(pads.split(), np.int64), seven=np.float32(-7), axes=[-2, 1])
  return original


# The graph, and how many Pads it has then.
CASES = {
  "channels last": (graph("N,16,16,64", "0 1 3 0 0 2 0 0"), 1),
  "of any length, with a value": (graph("N,4,3000", "1 0 0 0 2 0", more=", seven"), 1),
  "by given axes": (graph("2,16,16,64", "3 1 -2 0", more=", seven, axes"), 1),
  "the only axis": (graph("16384", "1 2"), 1),
  "the outer axes": (graph("3,9,10,64", "1 0 0 2 0 0 0 3"), 1),
  "cut off and added": (graph("2,20,20,64", "0 -1 3 0 0 2 -3 0"), 1),
  "five axes": (graph("2,8,16,16,8", "1 1 2 3 1 1 3 2 1 1"), 3),
  "reflected": (graph("2,16,16,64", "0 1 3 0 0 2 0 0", "reflect"), 2),
  "edges of the last axes of five": (graph("2,2,4,32,64", "0 0 0 3 1 0 0 0 0 2", "edge"), 1),
  "behind a Transpose": (graph("64,2,20,20", "0 0 1 2 0 0 3 0", before="Transpose<1,0,2,3>"), 1),
  "a plane behind a Transpose": (graph("20,64,20", "0 1 2 0 3 0", before="Transpose<1,0,2>"), 1),
}


@parametrize("case", CASES)
def test_on_a_view(case):
  original, count = CASES[case]
  left = [original.graph.node[0].op_type, *["Reshape", "Pad"] * count, "Reshape", "Neg"]
  optimized, _ = run_same(original, FLAT_PAD, into=left, changes=1)
  constants = initializers(optimized)
  for pads in (constants[node.input[1]].reshape(2, -1) for node in optimized.graph.node if node.op_type == "Pad"):
    assert 2 <= pads.shape[1] <= 4
    assert not pads[:, :-2].any()


@parametrize("original, reason", [
  (graph("2,64,16,16", "0 0 1 3 0 0 2 0"), ""),
  (graph("64,16,16", "0 1 3 0 2 0", "reflect"), ""),
  (graph("2,8,8,64", "0 1 3 0 0 2 0 0"), ""),
  (graph("2,20,20,64", "0 -1 3 0 0 2 0 0", "reflect"), "it cuts off, and its mode is reflect"),
  (graph("N,rows,16,640", "0 3 0 0 0 0 0 0"), "not known well enough"),
  (graph("64,16,M,64", "0 1 0 0 0 0 0 0"), "not known well enough"),
  (graph("2,16,16,64", "0 1 3 0 0 2 0 0", before="Identity"), ""),
])  # fmt: skip
def test_stays(original, reason):
  if original.graph.node[0].op_type == "Identity":  # a Pad of the graph's input
    original.graph.node[1].input[0], reason = "x", "would copy"
    del original.graph.node[0]
  stays(original, FLAT_PAD, *filter(None, [reason]))
