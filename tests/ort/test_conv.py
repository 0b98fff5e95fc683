import re
from dataclasses import replace
from functools import partial

import numpy as np
import onnx
from conv_cases import BIAS_RELU, CASES, GEOMETRIES, RESIDUAL_RELU, Case, by_name, check, expect, made
from node_cases import OPSET, planar, typed
from onnx import TensorProto, helper
from onnx.helper import make_node
from onnx_models import built, computed, parametrize, raises
from threads import in_threads

from ort.host import assert_equals_reference, assert_inferred, assert_refused, assert_runs_repeat, make, plain, run
from ort.refusals import Wrong as WrongNode, wrong_epilogues
from ortplugin.errors import ModelError
from ortplugin.ops import TensorType
from ortplugin.ops.conv import OPERATOR

FLOAT = TensorProto.FLOAT
WB = (8, 6, 3, 3), (8, 1, 1)  # weights and bias


@parametrize("case", CASES)
def test_equals_the_reference(case):
  assert_equals_reference(case, check, inferred=0 not in case.shapes[0])


# ONNX Runtime's Conv refuses dilations beside SAME_LOWER, and weights without channels.
REFUSED = ("SAME_LOWER, dilated", "no ", "nothing but padding")

# Its Conv on the CPU is of float, and its pointwise operators have no bfloat16.
DECOMPOSED = [
  case
  for case in CASES
  if case.program.parameters[0].dtype in ("float", "float16") and not case.name.startswith(REFUSED)
]


def test_most_cases_have_a_decomposition():
  assert len(DECOMPOSED) > 250


@parametrize("case", DECOMPOSED)
def test_the_decomposition_runs_without_the_library(case):
  """In its own precision: every operator rounds, in float16 too, where Conv alone runs in float."""
  if case.name.startswith("large") and case.program.parameters[0].dtype == "float16":
    return  # float16 overflows between the operators
  model = case.model(nodes=OPERATOR.decompose(case.node(), OPSET))
  unit = 2.0**-11 if case.program.parameters[0].dtype == "float16" else 2.0**-22
  expected = expect(case, unit=unit)
  # ONNX Runtime's Sigmoid has an error of its own, relative to 1, which SiLU multiplies by its argument.
  absolute = 64 * unit if "Sigmoid" in case.text else 0.0
  check(case, run(plain(model), case), replace(expected, slack=[each + absolute for each in expected.slack]))


@parametrize("name", [name for name in GEOMETRIES if not name.startswith(REFUSED)])
def test_equals_onnx_runtimes_own_conv(name):
  """In float, bias and all: both are the same kernel, but for the order of the additions."""
  x, w, attributes = GEOMETRIES[name]
  case = made(f"own {name}", typed(BIAS_RELU, "float"), "float", x, w, **attributes)
  arrays = case.inputs()
  nodes = [make_node("Conv", ["X", "W", "bias"], ["c"], **attributes), make_node("Relu", ["c"], ["y"])]
  weights = {"W": arrays[1], "bias": arrays[2].reshape(-1)}
  model = built(nodes, f"float[{','.join(map(str, x))}] X", "float[] y", OPSET, 9, weights=weights)
  (wanted,) = computed(model, {"X": arrays[0]})
  (found,) = run(make(case.model()), case)
  size = float(np.abs(wanted).max())
  np.testing.assert_allclose(found, wanted, rtol=0, atol=2.0**-20 * max(size, 1.0))


# ---- shapes


@parametrize(
  "shapes, attributes, wanted",
  [
    ([("n", 6, 9, 11), *WB], {}, ["n", 8, 7, 9]),
    ([("n", 6, "h", "w"), *WB], planar(pads=1), ["n", 8, "h", "w"]),
    ([("n", "c", "h", "w"), (8, 6, 3, 1), (8, 1, 1)], {"pads": [1, 0, 1, 0]}, ["n", 8, "h", "w"]),
    ([("n", 6, "h", 11), *WB], {"strides": [2, 2]}, ["n", 8, None, 5]),
    ([("n", 6, "h", "w"), (8, 6, 2, 2), (8, 1, 1)], {"auto_pad": "SAME_UPPER"}, ["n", 8, "h", "w"]),
    ([("n", 6, "h", 11), (8, 6, 2, 2), (8, 1, 1)], {"auto_pad": "SAME_LOWER", "strides": [1, 2]}, ["n", 8, "h", 6]),
    ([("n", 6, 9, 11), ("m", 6, "k", 3), ("m", 1, 1)], {}, ["n", None, None, 9]),
    ([("n", 6, 9, 11), ("m", 6, "k", "l"), ("m", 1, 1)], {"kernel_shape": [3, 1]}, ["n", None, 7, 11]),
    ([None, *WB], {}, [None, 8, None, None]),
    ([None, None, None], {"strides": [1, 1, 1]}, [None, None, None, None, None]),
    (
      [("n", "h", 11, 6), (8, 3, 3, 6), (8,)],
      planar(layout="NHWC", kernel_shape=3, pads=[1, 0, 1, 0]),
      ["n", "h", 9, 8],
    ),
  ],
)
def test_shapes_are_inferred(shapes, attributes, wanted):
  for dtype in ("float16", "bfloat16", "float", "double"):
    case = Case("shapes", typed(BIAS_RELU, dtype), ((1, 6, 9, 11), *WB), attributes)
    (output,) = make(case.model(shapes)).get_outputs()
    assert_inferred(output, wanted, dtype)


def test_shapes_may_change_from_run_to_run():
  text, attributes = typed(RESIDUAL_RELU, "float"), planar(pads=1, strides=[2, 1])
  for declared in (
    [("n", 6, "h", "w"), *WB, ("n", 8, "g", "w")],
    [("n", "c", "h", "w"), ("m", "d", "k", "l"), ("m2", 1, 1), ("n", "m", "g", "v")],
    [None, None, None, None],
  ):
    case = Case("changing", text, ((1, 6, 9, 11), *WB, (1, 8, 5, 11)), attributes)
    session = make(case.model(declared))
    for batch, height, width in ((1, 9, 11), (3, 4, 5), (0, 9, 11), (1, 1, 1), (2, 33, 64)):
      shapes = ((batch, 6, height, width), *WB, (batch, 8, (height + 1) // 2, width))
      each = replace(case, name=f"changing {batch} {height}", shapes=shapes)
      check(each, run(session, each))


def test_operands_whose_ranks_are_known_may_still_broadcast():
  """What looks like a bias or a residual when the session is made may be another thing in a run."""
  attributes = planar(pads=1)
  case = Case("late", typed(RESIDUAL_RELU, "float"), ((2, 6, 9, 11), *WB, (2, 8, 9, 11)), attributes)
  session = make(case.model([("n", 6, 9, 11), (8, 6, 3, 3), ("b", 1, 1), ("n2", "m", "h", "w")]))
  for bias, residual in (
    ((8, 1, 1), (2, 8, 9, 11)),
    ((1, 1, 1), (2, 8, 9, 11)),
    ((8, 1, 1), (1, 8, 9, 11)),
    ((8, 1, 1), (2, 1, 1, 11)),
    ((1, 1, 1), (1, 1, 1, 1)),
  ):
    each = replace(case, name=f"late {bias} {residual}", shapes=(*case.shapes[:2], bias, residual))
    check(each, run(session, each))


@parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
def test_padding_follows_the_shape(auto_pad):
  attributes = {"auto_pad": auto_pad, "strides": [2, 3], "dilations": [1, 2]}
  case = Case("same", typed(BIAS_RELU, "float"), ((1, 3, 8, 8), (4, 3, 4, 3), (4, 1, 1)), attributes)
  session = make(case.model([("n", 3, "h", "w"), (4, 3, 4, 3), (4, 1, 1)]))
  for height in range(1, 9):
    each = replace(case, name=f"same {height}", shapes=((1, 3, height, 17 - height), *case.shapes[1:]))
    check(each, run(session, each))


def test_weights_may_change_from_run_to_run():
  case = by_name["3x3, float16, NHWC"]
  session = make(case.model())
  for number in range(3):
    each = replace(case, name=f"weights {number}")
    check(each, run(session, each))


def test_weights_that_a_caller_may_override():
  """An initializer that is a graph input too is no constant: it is read in every run."""
  case = by_name["constant weights: normal, many channels, float16, NHWC"]
  model = onnx.load_model_from_string(case.model())
  x, w, bias = case.inputs()
  model.graph.input.append(helper.make_tensor_value_info("W", TensorProto.FLOAT16, w.shape))
  session = make(model)
  check(case, session.run(None, case.feeds()))
  other = (w.astype(np.float64) * 0.5).astype(np.float16)
  for weights in (other, w, other):
    check(case, session.run(None, {**case.feeds(), "W": weights}), expect(case, [x, weights, bias]))


# ---- wrong nodes


Wrong = partial(WrongNode, "FusedConv", shapes=((2, 6, 9, 11), *WB))
UNKNOWN = (("n", "c", "h", "w"), ("m", "d", "k", "l"), ("b", 1, 1))
HALF = TensorProto.FLOAT16
WRONG = {
  **wrong_epilogues(Wrong),
  "another auto_pad": Wrong("'SAME'", {"auto_pad": "SAME"}),
  "pads beside auto_pad": Wrong("auto_pad SAME_UPPER; remove", planar(auto_pad="SAME_UPPER", pads=1)),
  "too few pads": Wrong("pads has 2 numbers", {"pads": [1, 1], "strides": [1, 1]}),
  "pads below 0": Wrong("[-1, 0, 0, 0]", {"pads": [-1, 0, 0, 0]}),
  "too many strides": Wrong("the attributes are of 3 spatial dimensions, X and W of 2", {"strides": [1, 1, 1]}),
  "a stride of 0": Wrong("strides is [0, 1]", {"strides": [0, 1]}),
  "a dilation of 0": Wrong("dilations is [1, 0]", {"dilations": [1, 0]}),
  "four spatial dimensions": Wrong("there must be 1 to 3", {"strides": [1, 1, 1, 1]}),
  "no group": Wrong("group is 0", {"group": 0}),
  "groups that do not divide": Wrong("which 3 groups do not divide", {"group": 3}),
  "another kernel_shape": Wrong("kernel_shape is [5, 5], but W", {"kernel_shape": [5, 5]}),
  "a kernel of nothing": Wrong("at least 1", shapes=((2, 6, 9, 11), (8, 6, 0, 3), (8, 1, 1))),
  "another layout": Wrong("NCWH", {"layout": "NCWH"}),
  "channels last without kernel_shape": Wrong("kernel_shape is missing", {"layout": "NHWC"}),
  "an input_layout that is none": Wrong("input_layout is 'NWHC'", {"input_layout": "NWHC"}),
  "an input with channels last alone": Wrong("with the layout NCHW it must be NCHW", {"input_layout": "NHWC"}),
  "tf32 that is no flag": Wrong("allow_tf32 is 2", {"allow_tf32": 2}),
  "channels that disagree": Wrong("X has 7 channels, W with 1 groups is for 6", shapes=((2, 7, 9, 11), *WB)),
  "ranks that disagree": Wrong("one rank", shapes=((2, 6, 9), *WB)),
  "a matrix": Wrong("one rank", shapes=((2, 6), (8, 6), (8,))),
  "a kernel larger than X": Wrong("pad more", shapes=((2, 6, 2, 11), *WB)),
  "a bias of another rank": Wrong("does not broadcast", shapes=((2, 6, 9, 11), (8, 6, 3, 3), (8,))),
  "channels that disagree at the run": Wrong("X has 7 channels", shapes=UNKNOWN, fed=((2, 7, 9, 11), *WB)),
  "a kernel larger than X at the run": Wrong("pad more", shapes=UNKNOWN, fed=((2, 6, 2, 11), *WB)),
  "a bias that does not broadcast at the run": Wrong(
    "input 2 ('b')", shapes=UNKNOWN, fed=((2, 6, 9, 11), (8, 6, 3, 3), (7, 1, 1))
  ),
}


IN_OTHER_WORDS = (  # of the specification in Python
  "a number for a program",
  "an operand too many",
  "an operand too few",
  "an output too many",
  "a bias of another dtype",
  "an input with channels last alone",
  "tf32 that is no flag",
  "a bias that does not broadcast at the run",
)


@parametrize("name", WRONG)
def test_a_wrong_node_is_refused(name):
  wrong = WRONG[name]
  assert_refused(wrong, "FusedConv")
  (node,) = onnx.load_model_from_string(wrong.model()).graph.node
  dtypes = [np.dtype(helper.tensor_dtype_to_np_dtype(each)) for each in wrong.dtypes or (FLOAT,) * 3]
  types = [TensorType(dtype, shape) for dtype, shape in zip(dtypes, wrong.fed or wrong.shapes, strict=True)]
  words = "" if name in IN_OTHER_WORDS else re.escape(wrong.words)
  with raises(ModelError, rf"node 'culprit' \(FusedConv\): .*{words}"):
    OPERATOR.infer_shapes(node, types)


# ---- threads, sessions


def test_many_threads_run_one_session():
  attributes = {"auto_pad": "SAME_UPPER", "strides": [2, 2]}
  first = Case("threads", typed(BIAS_RELU, "float"), ((1, 6, 9, 9), *WB), attributes)
  session = make(first.model([("n", 6, "h", "w"), *WB]))

  def work(number):
    case = replace(first, name=f"thread {number}", shapes=((1 + number, 6, 20 + number, 31), *first.shapes[1:]))
    assert_runs_repeat(session, case, check)

  in_threads(8, work)


def test_a_chain_of_convolutions():
  """A residual block in float16, channels last: what ONNX Runtime plans between the nodes stays intact."""
  rng = np.random.default_rng(0)
  weights = [rng.standard_normal((8, 3, 3, 8)).astype(np.float16) / 8 for _ in range(3)]
  relu, residual = typed(BIAS_RELU, "float16"), typed(RESIDUAL_RELU, "float16")
  shared = planar(domain="ortplugin", layout="NHWC", kernel_shape=3, pads=1)
  nodes = [
    make_node("FusedConv", ["x", "w0", "b"], ["h0"], "a", program=relu, **shared),
    make_node("FusedConv", ["h0", "w1", "b"], ["h1"], "b", program=relu, **shared),
    make_node("FusedConv", ["h1", "w2", "b", "h0"], ["y"], "c", program=residual, **shared),
  ]
  constants = {"b": rng.standard_normal(8).astype(np.float16), **{f"w{i}": each for i, each in enumerate(weights)}}
  image = "float16[n,9,7,8]"
  session = make(built(nodes, f"{image} x", f"{image} y", OPSET, 9, domains=["ortplugin"], weights=constants))
  x = rng.standard_normal((4, 9, 7, 8)).astype(np.float16)
  (found,) = session.run(None, {"x": x})
  values = {"x": x, **constants}
  for node in nodes:
    (values[node.output[0]],) = OPERATOR.reference(node, [values[name] for name in node.input])
  np.testing.assert_allclose(found.astype(np.float64), values["y"].astype(np.float64), rtol=4e-3, atol=4e-3)


def test_float16_between_nodes_that_have_none_on_the_cpu():
  """ONNX Runtime computes Conv in float there, and gives a node between two of them float instead of float16."""
  text = "(float16 c) => (float16 y) { h = Cast<to=float16>(c) y = Relu(h) }"
  nodes = [
    make_node("Conv", ["a", "w"], ["x"]),
    make_node("FusedConv", ["x", "w"], ["y"], "between", domain="ortplugin", program=text),
    make_node("Conv", ["y", "w"], ["z"]),
  ]
  rng = np.random.default_rng(0)
  a, w = rng.standard_normal((2, 4, 9, 9)).astype(np.float16), rng.standard_normal((4, 4, 3, 3)).astype(np.float16)
  inputs = "float16[n,4,9,9] a, float16[4,4,3,3] w"
  session = make(built(nodes, inputs, "float16[n,4,3,3] z", OPSET, 9, domains=["ortplugin"]).SerializeToString())
  (z,) = session.run(None, {"a": a, "w": w})
  wide = a.astype(np.float64)
  for number in range(3):
    plain = Case("plain", "(double c) => (double c) {}", (wide.shape, w.shape))
    (wide,) = OPERATOR.reference(plain.node(), [wide, w.astype(np.float64)])
    wide = np.maximum(wide, 0) if number == 1 else wide
  assert z.dtype == np.float16
  np.testing.assert_allclose(z.astype(np.float64), wide, rtol=2e-2, atol=2e-3 * np.abs(wide).max())
