import numpy as np
import onnx
import onnx.parser
from node_cases import model_with
from onnx import helper
from onnx.helper import make_node
from onnx_models import parametrize, parsed, value_infos

import ortplugin
from ort.host import make
from ortplugin.graph import DOMAIN, walk_nodes
from ortplugin.ops import OPERATORS

# Each operator's inputs, the attributes, and how many outputs it has. The first input's shape is not known.
IMAGE, WEIGHTS, GRADIENT = (2, 3, 5, 5), (4, 3, 3, 3), (2, 4, 3, 3)
CONV = {"kernel_shape": [3, 3], "program": "(float x, float b) => (float y) { y = Add(x, b) }"}
NODES = {
  "FusedPointwise": ([IMAGE, IMAGE], {"program": "(float a, float b) => (float y) { y = Sub(a, b) }"}),
  "FusedSumTo": ([IMAGE], {"program": '(float x) => (float y) { y = SumTo<axes="1">(x) }'}),
  "FusedLayerNorm": (
    [IMAGE, (5,)],
    {"program": "(float x, float s) => (float y) { n = LayerNormalization<epsilon=0.1>(x) y = Mul(n, s) }"},
  ),
  "FusedConv": ([IMAGE, WEIGHTS, GRADIENT], CONV),
  "FusedConvTranspose": ([(2, 4, 5, 5), WEIGHTS, (2, 3, 7, 7)], CONV),
  "ConvGrad": (
    [IMAGE, WEIGHTS, GRADIENT],
    {"kernel_shape": [3, 3], "gradients": "dX", "operands": "X W", "program": "(float dz) => (float dz) {}"},
  ),
  "FusedMatMul": ([IMAGE, (5, 4), (4,)], {"program": CONV["program"]}),
  "FusedMatMulNorm": (
    [IMAGE, (5, 4), (4,)],
    {
      "program": "(float c) => (float c) {}",
      "norm": CONV["program"].replace("Add(x, b)", "Mul(n, b)").replace("{", "{ n = RMSNormalization(x)"),
    },
  ),
  "FusedPool": ([IMAGE], {"kind": "max", "kernel_shape": [2, 2], "pads": [1, 1, 1, 1]}),
  "FusedResize": ([IMAGE], {"sizes": [7, 8], "mode": "linear"}),
  "FusedAttention": (
    [IMAGE, IMAGE, IMAGE],
    {"qkv_dtype": "float", "heads": 3, "kv_heads": 3, "causal": "upper_left", "k_layout": "b h d s"},
  ),
  "FusedTranspose": ([IMAGE], {"perm": [0, 3, 1, 2], "starts": [0, 1, 0, -2], "ends": [9, 9, 9, 9]}),
  "FusedLSTM": ([(2, 3, 16), (1, 16, 4)], {"hidden_size": 4, "dtype": "float"}),
  "ScatterND": ([IMAGE, np.array([[1]]), (1, 3, 5, 5)], {}),
  "ScatterElements": ([IMAGE, np.zeros(IMAGE, np.int64), IMAGE], {"axis": 1, "reduction": "add"}),
  "UpdateSlice": ([IMAGE, (2, 3, 1, 5), np.array([2])], {"axes": [2]}),
}


def _outputs(model, feeds):
  (found,) = make(model).run(None, feeds)
  assert isinstance(found, np.ndarray)
  return found


class Hidden:
  """One operator behind nodes from which its first input, "h", comes, and with its inputs as they are."""

  def __init__(self, name):
    given, attributes = NODES[name]
    rng = np.random.default_rng(5)
    self.constants = [(f"i{k}", value) for k, value in enumerate(given) if isinstance(value, np.ndarray)]
    shapes = {f"i{k}": value for k, value in enumerate(given) if isinstance(value, tuple)}
    self.arrays = {key: rng.standard_normal(shape).astype(np.float32) for key, shape in shapes.items()}
    inputs = [f"i{k}" for k in range(len(given))]
    known = make_node(name, inputs, ["y"], domain=DOMAIN, **attributes)
    self.node = make_node(name, ["h", *inputs[1:]], ["y"], domain=DOMAIN, **attributes)
    self.declared = [(key, "float", value.shape) for key, value in self.arrays.items()]
    self.wanted = _outputs(model_with([known], self.declared, [("y", "float")], self.constants), self.arrays)


@parametrize("name", [operator.name for operator in OPERATORS])
def test_an_unknown_rank_is_no_scalar(name):
  """Gather would refuse a scalar when the session is made."""
  hidden = Hidden(name)
  model = onnx.load_from_string(
    model_with(
      [make_node("Reshape", ["i0", "shape"], ["h"]), hidden.node, make_node("Gather", ["y", "places"], ["z"], axis=0)],
      [*hidden.declared, ("shape", "int64", ("rank",))],
      [("z", "float")],
      [*hidden.constants, ("places", np.array([1, 0]))],
    )
  )
  model.graph.value_info.extend(value_infos("float[] y"))
  found = _outputs(model.SerializeToString(), {**hidden.arrays, "shape": np.array(hidden.arrays["i0"].shape)})
  assert np.array_equal(found, hidden.wanted[[1, 0]])


@parametrize("axis", [2, 3])
@parametrize("name", [operator.name for operator in OPERATORS])
def test_a_length_of_zero_is_unknown_before_a_run(name, axis):
  """onnx's inference says it of an Attention on open lengths, which here has one key and so gives its values."""
  hidden = Hidden(name)
  shape = list(hidden.arrays["i0"].shape)
  row = hidden.arrays["i0"].reshape(shape[0], 1, -1)
  nodes = [
    make_node("Attention", ["i0"] * 3, ["a"], q_num_heads=1, kv_num_heads=1),
    make_node("Reshape", ["a", "shape"], ["h"]),
    hidden.node,
  ]
  target = [-1 if k == axis else size for k, size in enumerate(shape)]
  inputs = [("i0", "float", (shape[0], 1, "width")), *hidden.declared[1:]]
  model = onnx.load_from_string(
    model_with(nodes, inputs, [("y", "float")], [*hidden.constants, ("shape", np.array(target))])
  )
  del model.opset_import[:]
  model.opset_import.extend([helper.make_opsetid("", 24), helper.make_opsetid(DOMAIN, 1)])
  model.ir_version = 11
  inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph.value_info
  (h,) = (value.type.tensor_type.shape for value in inferred if value.name == "h")
  assert [dim.dim_value for dim in h.dim] == [0 if k == axis else size for k, size in enumerate(shape)]
  session = make(model)
  (found,) = session.run(None, {**hidden.arrays, "i0": row})
  assert np.array_equal(np.asarray(found), hidden.wanted)
  said = zip(session.get_outputs()[0].shape, hidden.wanted.shape, strict=False)  # [] if of unknown rank
  assert all(a in (0, b) for a, b in said if isinstance(a, int))  # 0, as ONNX's own operators do


@parametrize("body", ["y = Abs(r)", "a = Abs(r)  y = Sin(a)  "])
def test_a_scan_that_gives_out_a_scalar(body):
  """Its body declares no shapes, and ONNX Runtime asks for those of what it gives out."""
  model = parsed(f"""(float[?] xs, float start) => (last, float[?] each) {{
      last, each = Scan <num_scan_inputs=1, body = body (float[] s, x) => (t, y) {{
        t = Add(s, x)  r = Relu(t)  {body}
      }}> (start, xs)
    }}""")
  made = ortplugin.optimize(model)[0]
  assert any(node.domain == DOMAIN for node in walk_nodes(made))
  feeds = {"xs": np.float32([1, -3, 2.5]), "start": np.array(0.5, np.float32)}
  wanted, found = (make(each).run(None, feeds) for each in (model, made))
  for one, other in zip(wanted, found, strict=True):
    np.testing.assert_allclose(np.asarray(other), np.asarray(one), rtol=1e-6)
