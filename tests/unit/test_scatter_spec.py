import itertools
from functools import partial

import ml_dtypes
import numpy as np
import onnx
import pytest
from node_cases import assert_invalid, bits
from numpy.testing import assert_array_equal
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx_models import built, parametrize, raises
from scatter_cases import CASES, INPUTS, ONNX_DTYPES, by_name, elements, expect, nd, window

from ortplugin.errors import ModelError
from ortplugin.graph import DOMAIN
from ortplugin.ops import TensorType, find
from ortplugin.ops.scatter import (
  ALGORITHMS,
  ARITHMETIC,
  DTYPES,
  SCATTER_ELEMENTS,
  SCATTER_ND,
  UPDATE_SLICE,
  Scatter,
  attributes_of,
  decompose,
  infer_shapes,
  reference,
)
from ortplugin.ops.scatter.reference import scatter_elements, scatter_nd, update_slice

OPERATORS = {each.name: each for each in (SCATTER_ND, SCATTER_ELEMENTS, UPDATE_SLICE)}

# ---- reference


def fold(reduction, old, new):
  with np.errstate(all="ignore"):
    if reduction in ("add", "mul"):
      return old + new if reduction == "add" else old * new
    if reduction == "none" or new != new:
      return new
    if old != old:
      return old
    if old == new:  # perhaps zeros of two signs
      return old if bool(np.signbit(old)) == (reduction == "min") else new
    return min(old, new) if reduction == "min" else max(old, new)


def by_the_formula(case):
  """The definition, element by element, in Python."""
  inputs = case.inputs()
  data, updates = inputs[0], inputs[INPUTS[case.op].index("updates")]
  halves = case.reduction != "none" and case.dtype in ("float16", "bfloat16")
  precise = np.dtype(np.float32) if halves else data.dtype
  folded = {}
  attributes = attributes_of(case.node())
  for position in itertools.product(*map(range, updates.shape)):
    at = list(position)
    if case.op == "ScatterND":
      depth = inputs[1].shape[-1]
      of_index = position[: inputs[1].ndim - 1]
      at = [int(i) for i in inputs[1][of_index]] + list(position[inputs[1].ndim - 1 :])
      at = [i % size for i, size in zip(at[:depth], data.shape, strict=False)] + at[depth:]
    elif case.op == "ScatterElements":
      axis = attributes.axis % data.ndim
      of_index = tuple(0 if size == 1 else i for i, size in zip(position, inputs[1].shape, strict=True))
      at[axis] = int(inputs[1][of_index]) % data.shape[axis]
    old = folded.get(tuple(at), data[tuple(at)].astype(precise))
    folded[tuple(at)] = fold(attributes.reduction, old, updates[position].astype(precise))
  out = data.copy()
  for place, value in folded.items():
    out[place] = np.asarray(value).astype(data.dtype)
  return out


SMALL = [
  case
  for case in CASES
  if case.op != "UpdateSlice"
  and case.dtype not in ("float8e4m3fnuz", "float8e5m2fnuz")
  and max(int(np.prod(shape)) for shape in case.shapes) <= 700
]


@parametrize("case", SMALL)
def test_the_reference_is_the_formula(case):
  """Written twice: vectorised in reference.py, element by element here."""
  wanted, got = by_the_formula(case), expect(case)
  assert got.dtype == wanted.dtype
  same = bits(got) == bits(wanted)
  if case.reduction != "none" and got.dtype.kind not in "biu":
    same |= np.isnan(got.astype(np.float64)) & np.isnan(wanted.astype(np.float64))
  assert same.all()


def test_there_are_enough_small_cases():
  assert len(SMALL) > 150
  assert {case.reduction for case in SMALL} == {"none", "add", "mul", "min", "max"}


def test_a_half_is_rounded_once():
  """2048 + 1 in float16 is 2048, whose neighbour is 2050: rounded at each step, a sum of ones never gets anywhere."""
  for dtype, start in ((np.float16, 2048), (ml_dtypes.bfloat16, 256)):
    data, ones = np.array([start], dtype), np.ones(64, dtype)
    got = scatter_nd(data, np.zeros((64, 1), np.int64), ones, "add")
    assert float(got[0]) == start + 64
    assert got.dtype == data.dtype


def test_sums_are_in_the_order_of_the_updates():
  data, updates = np.zeros(1, np.float32), np.float32([1e8, 1, -1e8, 1])
  zeros = np.zeros((4, 1), np.int64)
  assert scatter_nd(data, zeros, updates, "add")[0] == 1  # the first 1 is lost in 1e8
  assert scatter_nd(data, zeros, updates[[0, 2, 1, 3]], "add")[0] == 2
  assert scatter_nd(data, zeros, updates, "add", wide=True)[0] == 2  # in float64
  assert scatter_nd(data, zeros, updates, "add", wide=True).dtype == np.float64


@parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_minimum_and_maximum_are_ieee_754s(dtype):
  def fold(old, new, reduction):
    return scatter_nd(np.array([old], dtype), np.array([[0]]), np.array([new], dtype), reduction)

  for old, new in itertools.permutations((0.0, -0.0)):
    assert np.signbit(fold(old, new, "min").astype(np.float64))
    assert not np.signbit(fold(old, new, "max").astype(np.float64))
  for other in (1.0, np.inf, -np.inf, np.nan):
    for reduction in ("min", "max"):
      for got in (fold(np.nan, other, reduction), fold(other, np.nan, reduction), fold(-np.nan, other, reduction)):
        assert bits(got)[0] == bits(np.array([np.nan], dtype))[0]
  assert fold(-np.inf, 3, "min") == -np.inf
  assert fold(-np.inf, 3, "max") == 3


def test_elements_without_an_update_keep_their_bits():
  """A signalling NaN too, which arithmetic would quieten."""
  data = np.array([0x7C01, 0x7C01, 0x0001], np.uint16).view(np.float16)
  got = scatter_nd(data, np.array([[1]]), np.float16([1]), "add")
  assert bits(got)[0] == 0x7C01
  assert bits(got)[2] == 1


def test_what_a_gpu_does_with_invalid_indices():
  data, updates = np.zeros(4), np.array([1.0, 2, 3, 4])
  indices = np.array([4, -5, 3, -4])
  assert_array_equal(scatter_nd(data, indices[:, None], updates, skip_invalid=True), [4, 0, 0, 3])
  assert_array_equal(scatter_elements(data, indices, updates, skip_invalid=True), [4, 0, 0, 3])
  assert_array_equal(update_slice(data, updates[:3], np.array([2]), [0], skip_invalid=True), [0, 0, 1, 2])
  assert_array_equal(update_slice(data, updates[:2], np.array([-5]), [0], skip_invalid=True), [2, 0, 0, 0])


@parametrize(
  "call, words",
  [
    (lambda: scatter_nd(np.zeros(4), np.array([[0], [4]]), np.zeros(2)), r"index 4 at 1 of \(2, 1\)"),
    (lambda: scatter_nd(np.zeros((4, 3)), np.array([[0, -4]]), np.zeros(1)), "index -4 at 1 .* from -3 to 2"),
    (lambda: scatter_nd(np.zeros(()), np.zeros((1, 0), int), np.zeros(1)), "don't index data"),
    (lambda: scatter_nd(np.zeros((4, 3)), np.array([[0]]), np.zeros((1, 4))), "need"),
    (lambda: scatter_elements(np.zeros(4), np.array([-5]), np.zeros(1)), "index -5 at 0"),
    (lambda: scatter_elements(np.zeros(4), np.array([0]), np.zeros(1), 1), "axis 1"),
    (lambda: scatter_elements(np.zeros(4), np.array([[0]]), np.zeros(1)), "rank"),
    (lambda: scatter_elements(np.zeros((4, 3)), np.zeros((2, 3), int), np.zeros((1, 3))), "broadcast"),
    (lambda: scatter_elements(np.zeros((4, 3)), np.zeros((2, 4), int), np.zeros((2, 4))), "too large"),
    (lambda: update_slice(np.zeros(4), np.zeros(2), np.array([3]), [0]), "2 elements from 3 at step 1"),
    (lambda: update_slice(np.zeros(4), np.zeros(5), np.array([0]), [0]), "beyond axis 0"),
    (lambda: update_slice(np.zeros(4), np.zeros(2), np.array([0, 0]), [0]), "equally many"),
    (lambda: update_slice(np.zeros((4, 3)), np.zeros((2, 2)), np.array([0]), [0]), "broadcast"),
    (lambda: update_slice(np.zeros((4, 3)), np.zeros(3), np.array([0]), [0]), "updates of the shape"),
  ],
)
def test_the_reference_refuses(call, words):
  with raises(ValueError, words):
    call()


# ---- decomposition

DECOMPOSED = [
  *(case for case in SMALL if case.dtype in ("float", "int64", "bool")),
  *(case for case in CASES if case.op == "UpdateSlice" and case.dtype == "float" and case.shapes[0] != (7, 70001)),
]
NEEDED = {"none": 11, "add": 16, "mul": 16, "min": 18, "max": 18}


@parametrize("opset", range(11, 25))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_decomposition_is_the_reference_at_every_opset(opset):
  """In onnx's own evaluator, whose scatters go through the updates one by one."""
  checked = 0
  for case in DECOMPOSED:
    if opset < NEEDED[case.reduction] or any(0 in shape for shape in case.shapes):
      continue
    nodes = decompose(case.node(), opset)
    inputs = dict(zip(INPUTS[case.op], zip(case.dtypes, case.shapes, strict=True), strict=True))
    model = built(nodes, inputs, {"y": (case.dtype, case.shapes[0])}, opset, 10)
    onnx.checker.check_model(model, full_check=True)
    if case.dtype == "float" and case.reduction in ("min", "max"):
      continue  # NaN is the evaluator's own
    (got,) = ReferenceEvaluator(model).run(None, case.feeds())
    assert_array_equal(got, expect(case), err_msg=case.name)  # it moves NaN as any NaN
    checked += 1
  assert checked > 50


@parametrize("name", ["nd add of few, float", "elements max, axis 1, float"])
def test_a_reduction_needs_its_opset(name):
  case = by_name[name]
  needed = NEEDED[case.reduction]
  assert decompose(case.node(), needed)
  with raises(ModelError, f"'scatter'.*'{case.reduction}' needs opset {needed}.*has {needed - 1}"):
    decompose(case.node(), needed - 1)


def test_what_only_our_operators_have_is_left_out():
  case = nd("", (4, 3), (2, 1), unique=1, deterministic=0, algorithm="sorting", reduction="add")
  (node,) = decompose(case.node(), 18)
  assert {attribute.name for attribute in node.attribute} == {"reduction"}


# ---- attributes, dtypes, shapes


def test_attributes_have_defaults():
  assert attributes_of(nd("", (4,), (2, 1)).node()) == Scatter()
  full = nd("", (4,), (2, 1), reduction="mul", algorithm="parallel", unique=1, deterministic=0)
  assert attributes_of(full.node()) == Scatter("mul", "parallel", True, False)
  assert attributes_of(elements("", (4, 3), (2, 3), axis=-1).node()) == Scatter(axis=-1)
  assert attributes_of(window("", (4, 3), (2, 3), (0, 0), axes=[1, 0]).node()) == Scatter(axes=(1, 0), steps=(1, 1))


def node_of(op, inputs=3, outputs=1, **attributes):
  return helper.make_node(
    op, [f"x{i}" for i in range(inputs)], [f"y{i}" for i in range(outputs)], "culprit", domain=DOMAIN, **attributes
  )


slice_of = partial(node_of, "UpdateSlice")
WRONG = {
  "it has 2 inputs and 1 outputs": node_of("ScatterND", inputs=2),
  "it has 3 inputs and 2 outputs": slice_of(outputs=2, axes=[0]),
  "reduction is 'sum', but must be one of": node_of("ScatterND", reduction="sum"),
  "algorithm is 'fast', but must be one of": node_of("ScatterElements", algorithm="fast"),
  "unique is 2, but must be 0 or 1": node_of("ScatterND", unique=2),
  "deterministic is -1, but must be 0 or 1": node_of("ScatterND", deterministic=-1),
  "no attribute 'axis'": node_of("ScatterND", axis=0),
  "no attribute 'reducton'; did you mean reduction?": node_of("ScatterND", reducton="add"),
  "no attribute 'reduction'": slice_of(axes=[0], reduction="add"),
  "'axis' is STRING instead of INT": node_of("ScatterElements", axis="0"),
  "'reduction' is INT instead of STRING": node_of("ScatterND", reduction=1),
  "'axes' is INT instead of INTS": slice_of(axes=0),
  "'axes' is missing or empty": slice_of(),
  "axes are [-1]": slice_of(axes=[-1]),
  "axes are [1, 1]": slice_of(axes=[1, 1]),
  "steps are [1], but must be 2 numbers": slice_of(axes=[0, 1], steps=[1]),
  "steps are [0]": slice_of(axes=[0], steps=[0]),
}


@parametrize("reason", WRONG)
def test_an_invalid_node_is_named(reason):
  assert find(DOMAIN, WRONG[reason].op_type) is OPERATORS[WRONG[reason].op_type]
  assert_invalid(WRONG[reason], reason)


FLOAT, HALF, LONG, INT, TEXT = (np.dtype(name) for name in ("float32", "float16", "int64", "int32", "O"))


@parametrize(
  "node, dtypes, rank, words",
  [
    (node_of("ScatterND"), (FLOAT, LONG, HALF), None, "data is float32, but updates are float16"),
    (node_of("ScatterND"), (FLOAT, INT, FLOAT), None, "indices are int32, but must be int64"),
    (node_of("ScatterElements"), (FLOAT, FLOAT, FLOAT), None, "indices are float32, but must be int64 or int32"),
    (slice_of(axes=[0]), (FLOAT, FLOAT, INT), None, "starts are int32"),
    (node_of("ScatterND"), (TEXT, LONG, TEXT), None, "data is object, which the operator lacks"),
    (node_of("ScatterND"), (np.dtype(ml_dtypes.int4), LONG, None), None, "data is int4, which the operator lacks"),
    (node_of("ScatterND", reduction="add"), (np.dtype(bool), LONG, None), None, "bool has no reduction 'add'"),
    (node_of("ScatterND", reduction="max"), (np.dtype(np.complex64), LONG, None), None, "complex64 has no"),
    (node_of("ScatterElements", axis=2), (FLOAT, LONG, FLOAT), 2, "axis 2 is out of range for data of rank 2"),
    (node_of("ScatterElements", axis=-3), (FLOAT, LONG, FLOAT), 2, "axis -3 is out of range"),
    (slice_of(axes=[0, 2]), (FLOAT, FLOAT, LONG), 2, r"axes are \[0, 2\], but data has rank 2"),
    (node_of("ScatterND"), (FLOAT, LONG, FLOAT), 0, "data is a scalar"),
  ],
)
def test_wrong_dtypes_and_ranks_are_named(node, dtypes, rank, words):
  shapes = [None if rank is None else (None,) * rank, None, None]
  with raises(ModelError, words) as caught:
    infer_shapes(node, [TensorType(dtype, shape) for dtype, shape in zip(dtypes, shapes, strict=True)])
  assert "culprit" in str(caught.value)


def test_the_output_is_like_data():
  for node in (node_of("ScatterND"), node_of("ScatterElements"), slice_of(axes=[0])):
    unknown = TensorType(None, None)
    given = TensorType(HALF, ("batch", 3, None))
    assert infer_shapes(node, [given, unknown, unknown]) == [given]
    assert infer_shapes(node, [unknown, unknown, unknown]) == [unknown]
  known = [TensorType(None, (4,)), TensorType(LONG, None), TensorType(HALF, None)]
  assert infer_shapes(node_of("ScatterND"), known) == [TensorType(HALF, (4,))]


def test_every_dtype_is_there():
  named = {dtype for _, dtype in ONNX_DTYPES.values()}
  assert named | {np.dtype(np.complex64), np.dtype(np.complex128)} == set(DTYPES)
  assert set(ARITHMETIC) < set(DTYPES)
  for dtype in map(np.dtype, (np.complex64, np.complex128)):
    data, updates = np.arange(4).astype(dtype) * 1j, np.array([5 + 6j], dtype)
    (got,) = reference(node_of("ScatterND"), [data, np.array([[-1]]), updates])
    assert_array_equal(got, [0, 1j, 2j, 5 + 6j])
    assert got.dtype == dtype


def test_the_forms_of_the_kernel_are_variants():
  for operator in (SCATTER_ND, SCATTER_ELEMENTS):
    for own in ("auto", "sorting"):
      found = [dict(each) for each in operator.variants(node_of(operator.name, algorithm=own))]
      assert {each["algorithm"] for each in found} == set(ALGORITHMS) - {own}
      for each in found:
        attributes_of(node_of(operator.name, **each))
    assert operator.variants(node_of(operator.name)) == operator.variants(node_of(operator.name, algorithm="auto"))


def test_the_decomposition_of_an_unknown_rank_has_no_rank():
  """One model of a slice serves every rank: nothing in it was made from a shape."""
  node = slice_of(axes=[0], steps=[2])
  model = built(decompose(node, 17), "float[] x0, x1, int64[] x2", "float[] y0")
  for data, updates in (((7,), (3,)), ((7, 2), (3, 1)), ((7, 2, 3), (3, 2, 1))):
    feeds = {"x0": np.zeros(data, np.float32), "x1": np.ones(updates, np.float32), "x2": np.array([-6])}
    (got,) = ReferenceEvaluator(model).run(None, feeds)
    assert_array_equal(got, reference(node, list(feeds.values()))[0])
