"""FusedSumTo in ONNX Runtime on a GPU: equal to its reference for every dtype, pattern, size and address, the same bits
in every run, under threads and CUDA graphs, beyond 2^31 elements."""

import numpy as np
import pytest
from node_cases import typed
from onnx_models import parametrize
from sum_to_cases import (
  BOTH,
  CASES,
  CHANGING,
  LARGE_CASES,
  LERP_GRAD,
  RELU_GRAD,
  Case,
  by_name,
  check,
  expect,
  model_of,
  summed,
)

import ortplugin
from gpu.device import cupy, make, need_memory, run, run_bound, run_case
from gpu.sessions import check_addresses, check_capture, check_repeats, check_replays, check_threads, trial

# One of each way that the kernel can take.
CHOSEN = (
  "short rows, float16",
  "three columns, float",
  "everything, double",
  "bias of NCHW, float",
  "lerp, gradients over other axes, float16",
  "sums in other dtypes, float16",
  "whole rows, int32, whole range",
  "special rows, columns, float",
  "large: everything, float16",
  "large: rows, float16",
  "large: many short rows, float",
  "large: columns, float16",
  "large: few long columns, double",
  "large: a block of columns, float",
  "large: bias of NCHW, float16",
  "large: lerp, gradients, float",
)


@parametrize("case", [*CASES, *LARGE_CASES])
def test_equals_the_reference(case):
  check(case, run_case(case))


AXES = ("0", "1", "2", "0 1", "1 2", "0 2", "0 1 2")
SIZES = ((1, 1, 1), (2, 3, 7), (5, 16, 64), (3, 11, 1023), (70, 3, 8), (1, 1, 65537), (67, 61, 49), (2571, 4, 2),
         (16, 196, 520), (4099, 1, 96), (2, 9001, 24))  # fmt: skip


@parametrize("dtype", ["float16", "bfloat16", "float", "double", "int32", "uint64"])
@parametrize("axes", AXES)
def test_every_pattern_of_every_size(axes, dtype):
  """One session, whose inputs' ranks are not known before they come; a weight that is repeated, and two results."""
  text = f'(T x, T w) => (T y, T p) {{ p = Mul(x, w) y = SumTo<axes="{axes}", keepdims=0>(p) }}'
  session = make(model_of(typed(text, dtype), [None, None]))
  for number, (n, m, k) in enumerate(SIZES):
    weight = ((), (k,), (n, 1, 1), (m, 1), (n, 1, k))[(number + int(axes[0])) % 5]
    case = Case(f"{axes} {(n, m, k)} {weight} {dtype}", typed(text, dtype), ((n, m, k), weight))
    check(case, run(session, case))


@parametrize("seed", range(16))
def test_random_sums(seed):
  """Up to six axes, inputs without some of them, several sums over axes of their own."""
  rng = np.random.default_rng(seed)
  for number in range(4):
    full = [int(rng.choice((1, 2, 3, 5, 8, 16, 37))) for _ in range(int(rng.integers(1, 7)))]
    while np.prod(full) > 200_000:
      full[int(rng.integers(len(full)))] = 1
    sums = []
    for name, operand in (("a", "p"), ("b", "x"), ("c", "p")):
      axes = np.flatnonzero(rng.random(len(full)) < 0.5)
      axes = axes if len(axes) else np.array([0])
      keep = int(rng.integers(2))
      sums.append(f'{name} = SumTo<axes="{" ".join(map(str, axes))}", keepdims={keep}>({operand})')
    head = "(float16 x, float16 w) => (float16 a, float16 p, float16 b, float16 c)"
    text = f"{head} {{ p = Mul(x, w) {' '.join(sums)} }}"
    shapes = [tuple(size if rng.random() < 0.7 else 1 for size in full) for _ in range(2)]
    shapes[0] = tuple(full)
    case = Case(f"random {seed} {number} {shapes}", text, tuple(shapes))
    check(case, run_case(case))


def test_a_hundred_runs_are_bit_identical():
  """Whatever ran between them, in another session too."""
  for name in CHOSEN:
    check_repeats(by_name[name], 100)


def test_shapes_may_change_from_run_to_run():
  text = typed(BOTH, "float16")
  session = make(model_of(text, [("a", "b", "c", "d"), ("e", "f", "g")]))
  for shapes in (*CHANGING, ((7, 3, 33, 128), (1, 33, 1)), ((64, 3, 244, 244), (3, 1, 244)), CHANGING[0]):
    case = Case(f"changing {shapes}", text, shapes)
    check(case, run(session, case))


@parametrize("which", ["inputs", "outputs", "inputs and outputs"])
@parametrize("name", CHOSEN)
def test_tensors_may_start_anywhere(name, which):
  case = by_name[name]
  expected = expect(case)
  offsets = [([each * ("inputs" in which)], [each * ("outputs" in which)]) for each in (1, 2, 3)]
  check_addresses(case, lambda found: check(case, found, expected), offsets, expected.outputs)


@parametrize("name", CHOSEN)
def test_a_cuda_graph_gives_the_same_bits(name):
  check_replays(by_name[name])


def captured():
  text = typed(summed("0"), "float")
  first, later = (trial(Case(f"captured {rows}", text, ((rows, 8),)), check) for rows in (300, 50000))
  return model_of(text, [("n", 8)]), first, later


def test_new_shapes_under_capture_are_refused():
  check_capture(captured, "sums")


def test_many_threads_run_one_session():
  text = typed(RELU_GRAD, "float")

  def trial_of(number):
    shape = (16, 24, 32, 32) if number % 2 else (8 + number, 5, 17, (33, 64, 7, 120)[number // 2 % 4])
    return trial(Case(f"thread {number}", text, (shape, shape)), check)

  check_threads(model_of(text, [None, None]), trial_of)


HUGE = {
  "all": ("0", ((1 << 31) + 4320,)),
  "rows": ("1", ((1 << 31) // 1024 + 77, 1024)),
  "columns": ("0", ((1 << 31) // 1024 + 77, 1024)),
  "few long columns": ("0", (3, (1 << 30) + 1024)),
  "odd rows": ("1", (3, (1 << 30) + 1)),
}


@parametrize("name", HUGE)
def test_more_than_two_to_the_31_elements(name):
  """Sums of whole numbers are exact."""
  axis, shape = HUGE[name]
  need_memory(60)
  text = f'(int32 x) => (int32 y) {{ y = SumTo<axes="{axis}", keepdims=0>(x) }}'
  x = cupy.empty(shape, np.int32)
  flat = x.reshape(-1)
  for start in range(0, x.size, 1 << 28):
    part = flat[start : start + (1 << 28)]
    part[...] = (cupy.arange(start, start + part.size, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> 33).astype(
      np.int32
    )
  wanted = x.sum(int(axis), dtype=np.int32)
  y = cupy.zeros(wanted.shape, np.int32)
  run_bound(make(model_of(text, [None])), [x], [y])
  assert bool((y == wanted).all())


def test_a_wrong_run_leaves_the_session_whole():
  text = typed(LERP_GRAD.replace("AXES", "0"), "float")
  session = make(model_of(text, [("n", "h"), ("m",)]))
  good = Case("whole", text, ((60, 40), (40,)))
  check(good, run(session, good))
  with pytest.raises(Exception, match="do not broadcast"):
    ortplugin.run(session, {"dout": np.ones((6, 40), np.float32), "w": np.ones(39, np.float32)})
  check(good, run(session, good))


def test_a_wrong_node_is_refused_with_the_session():
  with pytest.raises(Exception, match="'y' sums over axis 2, but the inputs broadcast to the shape") as caught:
    make(model_of(typed(summed("2"), "float"), [(3, 4)]))
  assert "FusedSumTo" in str(caught.value)
  assert "node 'sums'" in str(caught.value)
