"""The scatter operators in ONNX Runtime on a GPU: equal to their reference in every form, in place and out of place, at
odd addresses, with indices out of range, under threads and CUDA graphs."""

import math
from dataclasses import replace

import numpy as np
import pytest
from node_cases import bits
from onnx import TensorProto, helper
from onnx_models import parametrize
from scatter_cases import CASES, FLOATING, INPUTS, ONNX_DTYPES, check, check_any_order, elements, expect, nd, window
from threads import in_threads

from gpu.device import cupy, make, need_memory
from gpu.sessions import check_graph, trial
from ortplugin.graph import DOMAIN

ALGORITHMS = ("auto", "sequential", "parallel", "sorting")
GUARD = 256  # bytes before and behind an output that nothing may write


def upload(array, offset=0):
  """The bytes of an array on the device, so many behind an address that is a multiple of 256."""
  raw = cupy.empty(array.nbytes + offset + 16, np.uint8)
  raw[offset : offset + array.nbytes] = cupy.asarray(np.frombuffer(array.tobytes(), np.uint8))
  return raw[offset:]


def run(session, case, inputs=None, offsets=(0, 0, 0, 0)):
  """One run on arrays of any dtype that begin `offsets` elements late: of the inputs, of the output."""
  arrays = case.inputs() if inputs is None else list(inputs)
  binding = session.io_binding()
  kept = []
  for name, dtype, array, offset in zip(INPUTS[case.op], case.dtypes, arrays, offsets[:3], strict=True):
    kept.append(upload(array, offset * array.itemsize))
    binding.bind_input(name, "cuda", 0, ONNX_DTYPES[dtype][0], list(array.shape), kept[-1].data.ptr)
  data = arrays[0]
  start = GUARD + offsets[3] * data.itemsize
  memory = cupy.full(start + data.nbytes + GUARD, 0xA5, np.uint8)
  binding.bind_output("y", "cuda", 0, ONNX_DTYPES[case.dtype][0], list(data.shape), memory.data.ptr + start)
  cupy.cuda.get_current_stream().synchronize()
  session.run_with_iobinding(binding)
  raw = cupy.asnumpy(memory)
  assert (raw[:start] == 0xA5).all(), f"{case.name}: memory before the output was written"
  assert (raw[start + data.nbytes :] == 0xA5).all(), f"{case.name}: memory behind the output was written"
  return raw[start : start + data.nbytes].copy().view(data.dtype).reshape(data.shape)


def in_place(case):
  """The case's node between two that copy, so that it may have its input's memory."""
  shape = case.shapes[0]
  kind = ONNX_DTYPES[case.dtype][0]
  nothing = [
    helper.make_node(
      "Constant", [], ["no_indices"], value=helper.make_tensor("i", TensorProto.INT64, [0, 1], b"", raw=True)
    ),
    helper.make_node(
      "Constant", [], ["no_updates"], value=helper.make_tensor("u", kind, [0, *shape[1:]], b"", raw=True)
    ),
  ]

  def copy(source, target):
    return helper.make_node("ScatterND", [source, "no_indices", "no_updates"], [target], target, domain=DOMAIN)

  node = case.node()
  node.input[0], node.output[0] = "copied", "written"
  return case.model(nodes=[*nothing, copy("data", "copied"), node, copy("written", "y")])


def is_refused(case):
  """Algorithm 'parallel' has no order, which floating sums and products need."""
  return (
    case.attribute("algorithm", "auto") == "parallel"
    and case.reduction in ("add", "mul")
    and case.dtype in FLOATING
    and not case.attribute("unique", 0)
    and bool(case.attribute("deterministic", 1))
  )


def forms(case):
  """The case in every form that it can take."""
  if case.op == "UpdateSlice":
    return [case]
  each = [case.with_attributes(algorithm=name) for name in ALGORITHMS]
  if case.indices == "unique" and (case.op == "ScatterND" or 1 not in case.shapes[1]):
    each += [one.with_attributes(unique=1) for one in each]
  return [one for one in each if not is_refused(one)]


# ---- parity


@parametrize("case", CASES)
def test_equals_the_reference(case):
  """In every form, whatever the tensors' shapes are declared to be."""
  expected = expect(case)
  for one in forms(case):
    unknown = [[None] * len(shape) for shape in case.shapes]
    check(case, run(make(one.model(unknown)), one), expected)


@parametrize("case", CASES[::3])
def test_equals_the_reference_in_place(case):
  expected = expect(case)
  for one in forms(case):
    check(case, run(make(in_place(one)), one), expected)


# One of each way that the kernels can take.
CHOSEN = (
  nd("rows", (1000, 64), (40, 1), "float16", "few"),
  nd("rows", (1000, 64), (400, 1), "float", "few"),
  nd("many rows", (300, 64), (4000, 1), "float16", "mixed"),
  nd("few elements", (9,), (60, 1), "float", "mixed"),
  nd("most rows", (6, 1000), (5, 1), "float", "mixed"),
  nd("elements", (5003,), (20011, 1), "float", "mixed"),
  nd("elements", (70, 90), (20011, 2), "int8", "mixed"),
  nd("a sum of rows", (300, 48), (4000, 1), "float16", "mixed", "spread", reduction="add"),
  nd("a sum of elements", (5003,), (20011, 1), "float", "mixed", "spread", reduction="add"),
  nd("a sum of elements", (301,), (20011, 1), "bfloat16", "mixed", "spread", reduction="add"),
  nd("a product of elements", (5003,), (20011, 1), "double", "mixed", "near one", reduction="mul"),
  nd("one sum", (3,), (30011, 1), "float", "one", "spread", reduction="add"),
  nd("one sum of pairs", (3, 2), (30011, 1), "float16", "one", "spread", reduction="add"),
  nd("one sum of rows", (3, 40), (3011, 1), "float", "one", "spread", reduction="add"),
  nd("a minimum", (5003,), (20011, 1), "float16", "mixed", "special", reduction="min"),
  nd("a sum of bytes", (503,), (20011, 1), "uint8", "mixed", reduction="add"),
  nd("a product of shorts", (503,), (20011, 1), "int16", "mixed", reduction="mul"),
  elements("columns", (60, 1023), (90, 1023), "float", "mixed", "spread", axis=0, reduction="add"),
  elements("rows", (100, 33), (400, 33), "float16", "mixed", indices=(400, 1), axis=0),
  window("a cache", (2, 12, 100, 64), (2, 12, 1, 64), (17,), "float16", axes=[2]),
  window("a box", (40, 80, 70), (20, 80, 30), (4, -31), "float", axes=[0, 2]),
)


@parametrize("case", CHOSEN)
def test_a_hundred_runs_are_bit_identical(case):
  """And equal to the reference, in every form, in place and out of place."""
  inputs = case.inputs()
  expected = expect(case, inputs)
  for one in forms(case):
    for model in (one.model(), in_place(one)):
      session = make(model)
      first = run(session, one, inputs)
      check(case, first, expected)
      for _ in range(100):
        assert (bits(run(session, one, inputs)) == bits(first)).all()


@parametrize("case", CHOSEN)
@parametrize("offsets", [(1, 0, 0, 0), (0, 0, 1, 0), (0, 1, 0, 1), (3, 1, 2, 1), (2, 2, 2, 2)])
def test_tensors_may_start_anywhere(case, offsets):
  """A view into a larger array begins at a multiple of its elements' size, not of 16 bytes."""
  inputs = case.inputs()
  expected = expect(case, inputs)
  unknown = [[None] * len(shape) for shape in case.shapes]
  for one in forms(case):
    check(case, run(make(one.model(unknown)), one, inputs, offsets), expected)


@parametrize("dtype", ["float16", "bfloat16", "float", "double"])
@parametrize("shape", [(5003,), (301, 48), (7, 3)])
def test_sums_in_any_order(dtype, shape):
  case = nd(f"any order {shape}", shape, (20011, 1), dtype, "mixed", "near one", reduction="add", deterministic=0)
  for algorithm in ("auto", "parallel"):
    one = case.with_attributes(algorithm=algorithm)
    check_any_order(case, run(make(one.model()), one))
    check_any_order(case, run(make(in_place(one)), one))


@parametrize("dtype", FLOATING)
def test_unique_sums_are_those_of_the_reference(dtype):
  """Subnormal numbers too, which the GPU's atomic sum of floats takes for 0."""
  tiny = (
    float(np.finfo(np.float32).tiny) if dtype in ("float", "bfloat16") else 2.0**-14 if dtype == "float16" else 1e-308
  )
  kind = ONNX_DTYPES[dtype][1]
  rng = np.random.default_rng(2)
  numbers = np.array(
    [tiny, -tiny, tiny / 3, -tiny / 5, 2 * tiny, 2**27 * tiny, -(2**26) * tiny, 0.0, -0.0, 1.0, np.inf]
  )
  case = nd("unique sums", (3000,), (2000, 1), dtype, "unique", reduction="add", unique=1)
  data, updates = (rng.choice(numbers, size).astype(kind) for size in (3000, 2000))
  data[:1000] = (rng.standard_normal(1000) * tiny).astype(kind)
  inputs = [data, case.inputs()[1], updates]
  for one in (case, case.with_attributes(algorithm="parallel"), case.with_attributes(algorithm="sorting")):
    for model in (one.model(), in_place(one)):
      check(case, run(make(model), one, inputs), expect(case, inputs))


# ---- wrong values


@parametrize("case", [each for each in CHOSEN if each.op != "UpdateSlice"])
def test_updates_out_of_range_are_left_out(case):
  data, indices, updates = case.inputs()
  limit = data.shape[case.attribute("axis", 0)]
  rng = np.random.default_rng(5)
  far = np.iinfo(indices.dtype)
  wrong = rng.choice(np.array([limit, -limit - 1, limit + 1, 1 << 20, far.max, far.min]), indices.shape)
  indices = np.where(rng.random(indices.shape) < 0.3, wrong, indices).astype(indices.dtype)
  expected = expect(case, [data, indices, updates], skip_invalid=True)
  for one in forms(case):
    for model in (one.model(), in_place(one)):
      check(case, run(make(model), one, [data, indices, updates]), expected)


@parametrize("start", [-11, -10, 8, 10, 11, 1 << 40, -(1 << 63), (1 << 63) - 1])
@parametrize("step", [1, -1, 3])
def test_slices_out_of_range_are_cut(start, step):
  for shape in ((10, 7), (10,), (10, 70, 80)):
    updates = (4, *shape[1:])
    case = window(f"cut {start}, {step}, {shape}", shape, updates, (start,), "float16", axes=[0], steps=[step])
    expected = expect(case, skip_invalid=True)
    for model in (case.model(), in_place(case)):
      check(case, run(make(model), case), expected)


def test_all_indices_out_of_range():
  case = nd("nowhere", (100, 3), (3000, 1), "float", "mixed", "spread", reduction="add")
  data, indices, updates = case.inputs()
  for one in (*forms(case), *forms(case.with_attributes(reduction="none"))):
    check(case, run(make(one.model()), one, [data, indices * 0 + 100, updates]), data)


def test_parallel_sums_need_a_promise():
  case = nd("refused", (10, 3), (4, 1), "float16", reduction="add", algorithm="parallel")
  with pytest.raises(Exception, match="can't combine float16 in order; use 'sorting' or 'auto'") as caught:
    make(case.model())
  assert "node 'scatter'" in str(caught.value)
  make(case.with_attributes(unique=1).model())
  make(case.with_attributes(deterministic=0).model())


def test_a_wrong_run_leaves_the_session_whole():
  good = nd("whole", (10, 3), (4, 1))
  session = make(good.model([["n", 3], ["k", 1], ["j", 3]]))
  check(good, run(session, good))
  data, indices, updates = good.inputs()
  with pytest.raises(Exception, match=r"updates has the shape \[3, 3\] but indices \[4, 1\]"):
    run(session, good, [data, indices, updates[:3]])
  check(good, run(session, good))


# ---- shapes and streams


def test_shapes_may_change_from_run_to_run():
  for reduction in ("none", "add"):
    session = make(nd("changing", (1, 1), (1, 1), reduction=reduction).model([["n", "w"], ["k", 1], ["k", "w"]]))
    for rows, width, units in ((7, 5, 3), (300, 1, 5000), (1, 1, 1), (50, 64, 700), (4, 0, 2), (7, 5, 0), (9, 9, 64)):
      name = f"changing {rows} {width} {units}"
      case = nd(name, (rows, width), (units, 1), "float", "mixed", "spread", reduction=reduction)
      check(case, run(session, case))


GRAPHS = [case for case in CHOSEN if case.dtype in ("float", "float16")]


@parametrize("case", GRAPHS)
def test_a_cuda_graph_gives_the_same_bits(case):
  for one in forms(case):
    for model in (one.model(), in_place(one)):
      cases = [replace(one, name=f"{case.name}, replay {number}") for number in range(3)]
      check_graph(model, [trial(each, lambda fresh, found: check(fresh, *found)) for each in cases])


def test_many_threads_run_one_session():
  session = make(nd("t", (1, 1), (1, 1), reduction="add").model([["n", "w"], ["k", 1], ["k", "w"]]))

  def work(number):
    rows, width = (300, 8) if number % 2 else (40 * number + 1, (1, 3, 16, 33)[number // 2 % 4])
    case = nd(f"thread {number}", (rows, width), (3000, 1), "float", "mixed", "spread", reduction="add")
    expected = expect(case)
    for _ in range(10):
      check(case, run(session, case), expected)

  in_threads(8, work)


@parametrize("width", [1, 1021])
def test_more_than_two_to_the_31_elements(width):
  """Every form, at both ends of 2 GiB of bytes."""
  need_memory(40)
  rows = (1 << 31) // width + 4321
  rng = np.random.default_rng(3)
  targets = np.concatenate([np.arange(100), rows - 1 - np.arange(1000), rng.integers(0, rows, 1000)])
  targets = rng.permutation(np.unique(targets))
  indices, updates = (
    cupy.asarray(targets[:, None]),
    cupy.asarray(rng.integers(0, 256, (len(targets), width), np.uint8)),
  )
  data = (cupy.arange(rows * width, dtype=np.uint32) * np.uint32(2654435761) >> np.uint32(13)).astype(np.uint8)
  data = data.reshape(rows, width)
  expected, out = data.copy(), cupy.empty_like(data)
  for reduction in ("none", "add"):
    case = nd("large", data.shape, indices.shape, "uint8", reduction=reduction)
    expected[...] = data
    expected[cupy.asarray(targets)] = updates if reduction == "none" else data[cupy.asarray(targets)] + updates
    for algorithm, unique in (("sequential", 0), ("parallel", 1), ("sorting", 0), ("auto", 0)):
      one = case.with_attributes(algorithm=algorithm, unique=unique)
      session = make(one.model())
      binding = session.io_binding()
      for name, dtype, array in zip(INPUTS["ScatterND"], one.dtypes, (data, indices, updates), strict=True):
        binding.bind_input(name, "cuda", 0, ONNX_DTYPES[dtype][0], list(array.shape), array.data.ptr)
      binding.bind_output("y", "cuda", 0, ONNX_DTYPES["uint8"][0], list(out.shape), out.data.ptr)
      out.fill(0)
      cupy.cuda.get_current_stream().synchronize()
      session.run_with_iobinding(binding)
      assert bool((out == expected).all()), f"{algorithm}, {reduction}"
  del data, expected, out, session, binding
  cupy.get_default_memory_pool().free_all_blocks()


def test_one_element_of_each_axis_count():
  """Ranks 1 to 8 of data, each with all its axes indexed and with one."""
  for rank in range(1, 9):
    shape = tuple([2, 3, 1, 2, 3, 2, 1, 4][:rank])
    for depth in {1, rank}:
      case = nd(f"rank {rank}", shape, (2 * math.prod(shape[:depth]), depth), "float", "mixed")
      check(case, run(make(case.model()), case))
