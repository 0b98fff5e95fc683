"""What convolutions and their gradients offer to --tune: asked of the native library, which has to have a GPU."""

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest
from conv_grad_cases import RELU, Case, Geometry
from node_cases import typed
from onnx import helper
from onnx_models import parametrize, raises

from ortplugin.errors import ModelError
from ortplugin.graph import TensorType
from ortplugin.ops import find
from ortplugin.ops.conv.algorithms import device_variants
from ortplugin.ops.conv_grad import OPERATOR as CONV_GRAD, algorithms as grad_algorithms
from ortplugin.ops.list_algorithms import ask
from ortplugin.session import gpu_count, library_path

HALF = np.dtype(np.float16)
PROGRAM = "(float16 c, float16 b) => (float16 y) { v = Add(c, b) y = Relu(v) }"


def node_of(**attributes):
  return helper.make_node(
    "FusedConv", ["x", "w", "b"], ["y"], "conv7", domain="ortplugin", program=PROGRAM, kernel_shape=[3, 3],
    layout="NHWC", **attributes,
  )  # fmt: skip


def types(x):
  shape = None if x is None else tuple(x)
  return [TensorType(HALF, shape), TensorType(HALF, (8, 3, 3, 16)), TensorType(HALF, (8,))]


def test_the_operator_has_them():
  operator = find("ortplugin", "FusedConv")
  assert operator.device_variants is device_variants
  assert not operator.variants(node_of())


@parametrize("x", [None, ("n", 9, 9, 16), (2, None, 9, 16)])
def test_unknown_shapes_have_none(x):
  assert device_variants(node_of(), types(x), [False, True, True]) == ()


@pytest.mark.skipif(gpu_count() > 0, reason="a GPU is there")
def test_without_a_gpu_the_node_and_what_lacks_are_named(library):
  with raises(ModelError, r"node 'conv7' \(FusedConv\): its algorithms can't be listed: .*libcuda"):
    device_variants(node_of(), types((2, 9, 9, 16)), [False, True, True])


def test_a_node_that_is_wrong_is_refused_before():
  with raises(ModelError, r"node 'conv7'.*strides"):
    device_variants(node_of(strides=[1, 2, 3]), types((2, 9, 9, 16)), [False, True, True])


def test_an_answer_of_any_length_comes_whole(library, patch):
  lines = [f"split:engine={number};k2=1" for number in range(10_000)]
  asked = []

  def answering(text, device, answer):
    asked.append((text.decode(), device))
    answer("".join(f"{line}\n" for line in lines).encode())
    return 0

  load = ctypes.CDLL

  def loaded(path):
    return SimpleNamespace(OrtPluginListAlgorithms=answering) if path == library_path() else load(path)

  patch(ctypes, "CDLL", loaded)
  for device in (0, 2):
    found = device_variants(node_of(strides=[2, 1], group=2), types((2, 9, 9, 16)), [False, True, False], device)
    assert [each["algorithm"] for each in found] == lines
  text = f"""FusedConv
group=2
kernel_shape=3 3
layout=NHWC
program={PROGRAM}
strides=2 1
[2 9 9 16]
[8 3 3 16] constant
[8]"""
  assert asked == [(text, 0), (text, 2)]


@parametrize(
  "text, reason",
  [
    ("FusedPool\n[2]", "'FusedPool' has no algorithms"),
    ("FusedConv\nstrides", "'strides' is neither an attribute nor a shape"),
    ("FusedConv\n[2 x]", "'x' is no integer"),
    ("FusedConv\nstrides=1 1\n[2]", "'program' is missing"),
    (f"FusedConv\nprogram={PROGRAM}\n[2 9 9 16]", "has 1 inputs"),
  ],
)
def test_what_the_library_cant_read_is_refused(library, text, reason):
  with raises(ModelError, rf"node 'conv7' \(FusedConv\): .*{reason}"):
    ask(node_of(), text)


# ---- gradients

GEOMETRY = Geometry(2, 6, (9, 11), 4, (3, 2), (2, 1), (1, 3), (1, 2, 0, 1), group=2)


def gradient(gradients="dX dW dB", operands="X W", **attributes):
  return Case("gradient", GEOMETRY, typed(RELU, "float16"), gradients, operands, layout="NHWC", attributes=attributes)


def types_of(case):
  return [TensorType(HALF, shape) for shape in case.shapes]


def listed(case):
  return CONV_GRAD.device_variants(case.node(), types_of(case), [False] * len(case.shapes))


def answering(patch, *lines):
  """Replaces the library; returns the list that collects what it is asked."""
  asked = []

  def answer(node, text, device_id):
    asked.append(text)
    return list(lines)

  patch(grad_algorithms, "ask", answer)
  return asked


def test_gradients_have_one_attribute_at_a_time(patch):
  case = gradient(weight_algorithm="engine=3;k2=1", weight_dtype="float", allow_tf32=1)
  asked = answering(patch, "data_algorithm=engine=3;k2=1", "weight_algorithm=own", "weight_algorithm=engine=3;k2=1")
  assert listed(case) == [
    {"data_algorithm": "engine=3;k2=1"},
    {"weight_algorithm": "auto"},
    {"weight_algorithm": "own"},
  ]
  program = " ".join(helper.get_node_attr_value(case.node(), "program").decode().splitlines())
  assert asked == [
    f"""ConvGrad
allow_tf32=1
dilations=1 3
gradients=dX dW dB
group=2
kernel_shape=3 2
layout=NHWC
operands=X W
pads=1 2 0 1
program={program}
strides=2 1
transposed=0
weight_algorithm=engine=3;k2=1
weight_dtype=float
[2 9 11 6]
[4 3 2 3]
[2 4 11 4]
[2 4 11 4]"""
  ]


@parametrize(
  "gradients, operands, names",
  [
    ("dX", "W", {"data_algorithm"}),
    ("dW dB", "X", {"weight_algorithm"}),
    ("dX dW", "X W", {"data_algorithm", "weight_algorithm"}),
  ],
)
def test_only_gradients_that_are_wanted_have_algorithms(gradients, operands, names, patch):
  asked = answering(patch, *(f"{name}=own" for name in names))
  found = listed(gradient(gradients, operands, data_algorithm="cudnn", weight_algorithm="cudnn"))
  assert found == [{name: text} for name in sorted(names) for text in ("auto", "own")]
  assert len(asked) == 1


def test_a_bias_alone_has_none(patch):
  asked = answering(patch)
  assert not listed(gradient("dB dZ", ""))
  assert not asked


def test_gradients_of_unknown_shapes_have_none(patch):
  case, asked = gradient(), answering(patch)
  for shape in (None, (2, None, "w", 6)):
    inputs = [TensorType(HALF, shape), *types_of(case)[1:]]
    assert not CONV_GRAD.device_variants(case.node(), inputs, [False] * 4)
  assert not asked


@pytest.mark.skipif(gpu_count() > 0, reason="a GPU is there")
def test_without_a_gpu_the_gradient_is_named(library):
  with raises(ModelError, r"node 'gradient' \(ConvGrad\): its algorithms can't be listed: .*libcuda"):
    listed(gradient())
