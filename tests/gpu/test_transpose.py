"""FusedTranspose in ONNX Runtime on a GPU: the reference's very bits for every dtype, order, window and address,
under threads and CUDA graphs, beyond 2^31 elements."""

from dataclasses import replace

import numpy as np
import pytest
from onnx_models import parametrize
from transpose_cases import CASES, TO, Case, by_name, check, random_case

from gpu.device import cupy, make, need_memory, run, run_bound, run_case
from gpu.sessions import check_addresses, check_capture, check_graph, check_stream, check_threads, trial

pytestmark = pytest.mark.usefixtures("library")

# What exporters leave, in the sizes of models; each way that the kernels can take.
LARGE = [
  Case(f"large: {shape} by {perm}, {dtype}", dtype, shape, perm)
  for shape, perm in (
    ((8, 56, 56, 96), (0, 3, 1, 2)),
    ((8, 8, 196, 196), (0, 2, 3, 1)),
    ((8, 196, 196, 8), (0, 3, 1, 2)),
    ((8, 3137, 3, 8, 8), (2, 0, 3, 1, 4)),
    ((8, 8, 3137, 8), (0, 1, 3, 2)),
    ((8, 6, 32, 9, 196), (0, 1, 4, 3, 2)),
    ((8, 192, 3, 14, 3, 14), (0, 1, 2, 4, 3, 5)),
    ((32, 16, 16, 16, 16), (0, 3, 1, 4, 2)),
    ((8, 768, 49), (0, 2, 1)),
    ((1021, 1031), (1, 0)),
    ((70000, 3, 5), (0, 2, 1)),
  )
  for dtype in ("float16", "float", "uint8")
]
CHOSEN = (
  "to channels first, float16",
  "talking heads, float16",
  "talking heads, back, uint8",
  "Q, K and V, float16",
  "unfolded, float",
  "odd, float16",
  "few beside few, double",
  "an odd place, float16",
  "every second run, int8",
)


def checked(case):
  return trial(case, lambda case, found: check(case, *found))


@parametrize("case", [*CASES, *LARGE], ids=lambda case: case.name)
def test_equals_the_reference(case):
  (y,) = run_case(case)
  check(case, y)


@parametrize("first", range(0, 240, 24))
def test_random_orders_and_windows(first):
  for seed in range(first, first + 24):
    case = random_case(seed)
    (y,) = run_case(case)
    check(case, y)


@parametrize("name", CHOSEN)
def test_tensors_may_start_anywhere(name):
  case = by_name[name]
  check_addresses(case, lambda found: check(case, *found), (((i,), (j,)) for i in range(3) for j in range(3)))


@parametrize("name", CHOSEN)
def test_a_cuda_graph_gives_the_same_bits(name):
  case = by_name[name]
  check_graph(case.model(), [checked(replace(case, name=f"{name}, replay {i}")) for i in range(3)])


def test_a_stream_of_the_callers():
  case = replace(LARGE[0], dtype="int32")  # the copy adds a zero, after which NaN and subnormals differ
  check_stream(case.model(), checked(case))


def sized(batch, length):
  """A window of open lengths."""
  return Case(f"sized {batch} {length}", "float16", (batch, length, 24), (0, 2, 1), (0, 1, 0), (TO, TO, TO))


OPEN = sized(0, 0).model(("n", "m", 24))


def test_shapes_may_change_from_run_to_run():
  session = make(OPEN)
  for batch, length in ((1, 5), (2, 1000), (0, 7), (3, 1), (64, 197), (1, 5)):
    case = sized(batch, length)
    (y,) = run(session, case)
    check(case, y)


def captured():
  return OPEN, checked(sized(2, 30)), checked(sized(2, 500))


def test_new_shapes_under_capture_are_refused():
  check_capture(captured, "moved")


def test_many_threads_run_one_session():
  check_threads(OPEN, lambda number: checked(sized(4, 112) if number % 2 else sized(3 + number, 50 + number)))


@parametrize(
  "shape, perm",
  [
    (((1 << 31) // 48 + 5, 48), (1, 0)),
    (((1 << 31) // 4800 + 5, 3, 50, 32), (0, 2, 1, 3)),
    ((65537, 3, 32769), (2, 0, 1)),
  ],
)
def test_more_than_two_to_the_31_elements(shape, perm):
  need_memory(26)
  x = cupy.empty(shape, np.uint8)
  flat = x.reshape(-1)
  for start in range(0, x.size, 1 << 28):
    part = flat[start : start + (1 << 28)]
    part[...] = cupy.arange(start, start + part.size, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> 55
  session = make(Case("huge", "uint8", shape, perm).model(None))
  y = cupy.zeros(tuple(shape[axis] for axis in perm), np.uint8)
  run_bound(session, [x], [y])
  for index in range(0, y.shape[0], max(1, y.shape[0] // 64)):
    assert bool((y[index] == x.transpose(perm)[index]).all())
  assert bool((y[-1] == x.transpose(perm)[-1]).all())
