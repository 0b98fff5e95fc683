import numpy as np
import onnx
import pytest
from matmul_cases import BIAS_RELU, by_name
from node_cases import invalid_nodes, typed
from onnx import helper
from onnx_models import built, parametrize

from ortplugin.errors import ModelError
from ortplugin.graph import DOMAIN, TensorType
from ortplugin.ops.list_algorithms import ask
from ortplugin.ops.matmul import OPERATOR
from ortplugin.session import gpu_count

HALF = np.dtype(np.float16)


def node(**changes):
  inputs = changes.pop("inputs", ["A", "B", "b"])
  given = {"program": typed(BIAS_RELU, "float16"), "trans_b": 1, **changes}
  attributes = {name: value for name, value in given.items() if value is not None}
  return helper.make_node("FusedMatMul", inputs, ["y"], "h0/mlp", domain=DOMAIN, **attributes)


def types(*shapes):
  return [TensorType(HALF, shape) for shape in shapes]


@parametrize(
  "a, b, wanted",
  [
    (("n", None, 8), (6, 8), ("n", None, 6)),
    (("n", "k"), (6, 8), ("n", 6)),
    ((8,), (6, "k"), (6,)),
    ((2, 3, 8), None, (2, 3, None)),
    (None, (6, 8), None),
  ],
)
def test_shapes_that_are_partly_known(a, b, wanted):
  assert OPERATOR.infer_shapes(node(), types(a, b, (6,)))[0].shape == wanted


@parametrize(
  "shapes, reason",
  [
    (((), (6, 8), (6,)), "A is a scalar"),
    (((2, 8), (8,), (6,)), "B has the shape [8]; it must have two dimensions"),
    (((2, 7), (6, 8), (6,)), "its last length must be 8"),
    (((2, 8), (6, 8), (7,)), "'b' of shape [7] does not broadcast to [2, 6]"),
    (((2, 8), (6, 8), (5, 8)), "the gate's weights have the shape [5, 8]; it must be B's, [6, 8]"),
  ],
)
def test_shapes_that_contradict_each_other(shapes, reason):
  with pytest.raises(ModelError) as caught:
    OPERATOR.infer_shapes(node(gated=int("gate" in reason)), types(*shapes))
  assert "node 'h0/mlp' (FusedMatMul): " in str(caught.value)
  assert reason in str(caught.value)


WRONG = {
  "'program' is missing": {"program": None},
  "trans_b must be 0 or 1": {"trans_b": 2},
  "algorithm must be a string": {"algorithm": 1},
  "gated must be 0 or 1": {"gated": 2},
  "second parameter must be float16": {
    "gated": 1,
    "program": "(float16 c, float b) => (float y) { s = Cast<to=float>(c) y = Add(s, b) }",
  },
  "2 inputs, but its program has 3": {"inputs": ["A", "B"]},
  "it must be pointwise": {
    "program": "(float16 c, float16 b) => (float16 y) { n = RMSNormalization(c) y = Add(n, b) }"
  },
  "must be of a floating dtype": {"program": "(int32 c, int32 b) => (int32 y) { y = Add(c, b) }"},
}


test_an_invalid_node_is_named = invalid_nodes(WRONG, lambda changes: node(**changes))


@parametrize("name", ["bias, Relu, bfloat16, trans_b", "bias, Relu, bfloat16"])
def test_the_decomposition_in_bfloat16_is_valid(name):
  case = by_name[name]
  nodes = OPERATOR.decompose(case.node(), 14)
  assert ("Transpose" in [each.op_type for each in nodes]) == case.trans_b
  inputs = {each: ("bfloat16", shape) for each, shape in zip(case.names, case.shapes, strict=True)}
  onnx.checker.check_model(built(nodes, inputs, {"y": ("bfloat16", (2, 37, 24))}, 14), full_check=True)


# ---- algorithms


def test_unknown_shapes_have_no_algorithms():
  assert OPERATOR.device_variants(node(), types(("n", 8), (6, 8), (6,)), [False, True, True]) == ()


@pytest.mark.skipif(gpu_count() > 0, reason="a GPU is there")
def test_without_a_gpu_the_node_and_what_lacks_are_named(library):
  with pytest.raises(ModelError, match=r"node 'h0/mlp' \(FusedMatMul\): its algorithms can't be listed: .*libcuda"):
    OPERATOR.device_variants(node(), types((2, 8), (6, 8), (6,)), [False, True, True])


@parametrize(
  "text, reason",
  [
    ("FusedMatMul\n[2 8]\n[6 8]", "'program' is missing"),
    (f"FusedMatMul\nprogram={typed(BIAS_RELU, 'float16')}\ntrans_b=2\n[2 8]\n[6 8]\n[6]", "trans_b is 2"),
    (f"FusedMatMul\nprogram={typed(BIAS_RELU, 'float16')}\n[2 8]\n[8 6]", "has 2 inputs"),
    (f"FusedMatMul\nprogram={typed(BIAS_RELU, 'float16')}\n[2 8]\n[6 8]\n[6]", r"must be \[.., K\]"),
  ],
)
def test_what_the_library_cant_read_is_refused(library, text, reason):
  with pytest.raises(ModelError, match=rf"node 'h0/mlp' \(FusedMatMul\): .*{reason}"):
    ask(node(), text)
