"""FusedPointwise in ONNX Runtime on a GPU: equal to its reference for every dtype, broadcast, size and address, in
place, under threads and CUDA graphs, beyond 2^31 elements; and what happens when shapes are not as wished."""

import itertools
import zlib

import numpy as np
import pytest
from node_cases import bits, typed
from onnx_models import parametrize
from pointwise_cases import (
  CASES,
  CHAIN,
  CHANGING,
  LARGE_CASES,
  LERP,
  SUM_RELU,
  Case,
  by_name,
  chained,
  check,
  check_chain,
  expect,
  model_of,
)
from threads import in_threads

import ortplugin
from gpu.device import at_offset, cupy, host, make, need_memory, python, run, run_bound, run_case
from gpu.sessions import (
  check_addresses,
  check_capture,
  check_repeats,
  check_replays,
  check_stream,
  check_threads,
  trial,
)

# One of each way that the kernel can take: vectors of whole rows, across rows, with a tail, of all dtypes.
CHOSEN = (
  "sum and Relu, float16",
  "lerp, scalar weight, double",
  "lerp, middle broadcast, float16",
  "lerp, leading broadcast, bfloat16",
  "outer product, float",
  "alternating axes, float16",
  "rank 0, float",
  "results of all floating dtypes, float16",
  "a parameter is a result, float16",
  "integers beside, float",
  "masked, float16",
  "whole numbers, int8, normal",
  "65537 elements, float16",
  "large: contiguous, float",
  "large: odd, float16",
  "large: rows, float16",
  "large: columns, float",
  "large: channels, float16",
)

# ---- parity


@parametrize("case", [*CASES, *LARGE_CASES])
def test_equals_the_reference(case):
  check(case, run_case(case))


# Shapes of x, a and b against the sizes (n, m, k).
BROADCASTS = {
  "contiguous": lambda n, m, k: ((n, m, k), (n, m, k), (n, m, k)),
  "scalars": lambda n, m, k: ((n, m, k), (), (1,)),
  "rows": lambda n, m, k: ((n, m, k), (k,), (1, 1, k)),
  "columns": lambda n, m, k: ((n, m, k), (n, m, 1), (m, 1)),
  "middle": lambda n, m, k: ((n, m, k), (n, 1, k), (m, 1)),
  "outer": lambda n, m, k: ((n, 1, 1), (m, 1), (k,)),
  "ends": lambda n, m, k: ((n, m, k), (n, 1, k), (n, 1, 1)),
}
SIZES = (
  (1, 1, 1),
  (2, 3, 7),
  (5, 16, 64),
  (3, 11, 1023),
  (7, 13, 1024),
  (1, 1, 65537),
  (67, 61, 49),
  (257, 4, 2),
  (16, 96, 520),
)
MADD = "(T x, T a, T b) => (T y, T z) { p = Mul(x, a) y = Add(p, b) z = Sub(y, x) }"


@parametrize("dtype", ["float16", "bfloat16", "float", "double", "int8", "uint16", "int32", "int64"])
@parametrize("name", BROADCASTS)
def test_every_broadcast_of_every_size(name, dtype):
  """One session, whose inputs' ranks are not known before they come."""
  text = typed(MADD, dtype)
  session = make(model_of(text, [None, None, None]))
  for sizes in SIZES:
    case = Case(f"{name} {sizes} {dtype}", text, BROADCASTS[name](*sizes))
    check(case, run(session, case))


@parametrize("seed", range(24))
def test_random_broadcasts(seed):
  """Up to six axes, each input without some of them, dtypes mixed."""
  rng = np.random.default_rng(seed)
  text = """(float16 x, float y, double z, bool m, int32 i) => (float a, double b, bool c, float16 d) {
      f = Cast<to=float>(x)
      a = Where(m, f, y)
      g = Cast<to=double>(a)
      b = Add(g, z)
      j = Cast<to=float>(i)
      c = Less(a, j)
      h = Mul(a, j)
      d = Cast<to=float16>(h)
    }"""
  session = make(model_of(text, [None] * 5))
  for number in range(4):
    full = [int(rng.choice((1, 2, 3, 5, 8, 16, 37))) for _ in range(int(rng.integers(1, 7)))]
    while np.prod(full) > 200_000:
      full[int(rng.integers(len(full)))] = 1
    shapes = []
    for _ in range(5):
      shape = [size if rng.random() < 0.6 else 1 for size in full]
      shapes.append(tuple(shape[int(rng.integers(len(shape) + 1)) :]) if rng.random() < 0.4 else tuple(shape))
    case = Case(f"random {seed} {number} {shapes}", text, tuple(shapes))
    check(case, run(session, case))


@parametrize("name", CHOSEN)
def test_runs_are_bit_identical(name):
  check_repeats(by_name[name])


def test_shapes_may_change_from_run_to_run():
  """Sizes, and which axes are broadcast."""
  session = make(model_of(typed(LERP, "float16"), [("a", "b", "c"), ("d", "e", "f"), ("g", "h")]))
  for shapes in (*CHANGING, ((64, 33, 1024), (1, 33, 1), (33, 1024)), CHANGING[0]):
    case = Case(f"changing {shapes}", typed(LERP, "float16"), shapes)
    check(case, run(session, case))


# ---- addresses, and in place


@parametrize("which", ["inputs", "outputs", "inputs and outputs"])
@parametrize("name", CHOSEN)
def test_tensors_may_start_anywhere(name, which):
  case = by_name[name]
  expected = expect(case)
  offsets = [
    (each if "inputs" in which else [0], each[::-1] if "outputs" in which else [0])
    for each in ((1, 2, 3, 4, 5, 6, 7, 8, 9), (2,), (4,))
  ]
  check_addresses(case, lambda found: check(case, found, expected), offsets, expected.outputs)


CROSSED = "(T x, T r, T c) => (T s, T d) { t = Add(x, r) s = Mul(t, c) d = Sub(x, r) }"


@parametrize("offset", [0, 1])
@parametrize("dtype", ["float16", "float", "double", "int8"])
@parametrize("shape", [(1,), (7,), (4097,), (3, 5), (211, 1023), (512, 4096)], ids=str)
def test_results_may_take_the_place_of_inputs(shape, dtype, offset):
  """Each of two results on each of two inputs; the third input is repeated, so that rows are crossed."""
  text = typed(CROSSED, dtype)
  case = Case(f"in place {shape} {dtype}", text, (shape, shape, shape[-1:] if len(shape) > 1 else ()))
  expected, session = expect(case), make(case.model())
  for order in ((0, 1), (1, 0)):
    inputs = [at_offset(array, offset) for array in case.inputs()]
    outputs = [inputs[i] for i in order]
    run_bound(session, inputs, outputs)
    check(case, [cupy.asnumpy(array) for array in outputs], expected)


def test_swapped_inputs_are_results():
  case = Case("swapped", "(float x, float y) => (float y, float x) { }", ((1000,), (1000,)))
  x, y = (cupy.asarray(array) for array in case.inputs())
  run_bound(make(case.model()), [x, y], [x, y])
  wanted = case.inputs()
  assert (cupy.asnumpy(x) == wanted[1]).all()
  assert (cupy.asnumpy(y) == wanted[0]).all()


@parametrize("cuda_graph", [False, True])
@parametrize("dtype", ["float16", "float"])
@parametrize("length", [5, 70001, 1 << 20])
def test_a_chain_of_nodes_may_take_over_each_others_memory(length, dtype, cuda_graph):
  model = chained(dtype, (2, length))
  session = ortplugin.session(model, ["cuda"], cuda_graph=True) if cuda_graph else make(model)
  check_chain(lambda feeds: host(ortplugin.run(session, feeds)), dtype, (2, length))


# ---- streams and graphs


@parametrize("name", CHOSEN)
def test_a_cuda_graph_gives_the_same_bits(name):
  check_replays(by_name[name])


def test_work_is_on_the_sessions_stream():
  case = by_name["large: contiguous, float"]
  check_stream(case.model(), trial(case, check))


def captured():
  text = typed(SUM_RELU, "float")
  first, later = (trial(Case(f"captured {rows}", text, ((rows, 8), (rows, 8))), check) for rows in (3, 5))
  return model_of(text, [("n", 8), ("n", 8)]), first, later


def test_new_shapes_under_capture_are_refused():
  check_capture(captured, "pointwise")


# ---- threads


def test_many_threads_run_one_session():
  text = typed(CHAIN, "float16")

  def trial_of(number):
    shape = (64, 2056) if number % 2 else (40 * number + 1, (33, 768, 1023, 7001)[number // 2 % 4])
    return trial(Case(f"thread {number}", text, (shape, shape[1:], (shape[0], 1))), check)

  check_threads(model_of(text, [None, None, None]), trial_of)


def test_threads_make_sessions_at_once():
  case = by_name["large: columns, float"]
  expected = expect(case)

  def work(_):
    for _ in range(3):
      check(case, run_case(case), expected)

  in_threads(8, work)


def test_shapes_that_broadcast_alike_share_a_kernel(tmp_path):
  """What differs is an argument, so that a new length compiles nothing."""
  code = """
from gpu.test_pointwise import SUM_RELU, Case, make, model_of, run, typed
text = typed(SUM_RELU, "float")
session = make(model_of(text, [("n", "h"), ("h",)]))
for n, h in ((1000, 1024), (2000, 512), (37, 256)):
    run(session, Case("alike", text, ((n, h), (h,))))
"""
  done = python(code, ORTPLUGIN_CACHE_DIR=str(tmp_path / "cache"))
  assert done.returncode == 0, done.stderr
  kernels = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
  assert 1 <= len(kernels) <= 3  # of the guess at the session's start, of small and of larger tensors


# ---- wrong and large


@parametrize(
  "text, shapes, words",
  [
    (SUM_RELU, ((2, 3), (2, 4)), r"input 1 \('r'\): the shapes \[2, 4\] and \[2, 3\] do not broadcast"),
    ("(T x) => (T y) { y = LayerNormalization(x) }", ((2, 3),), "LayerNormalization, which is not pointwise"),
  ],
)
def test_a_wrong_node_is_refused_with_the_session(text, shapes, words):
  with pytest.raises(Exception, match=words) as caught:
    make(model_of(typed(text, "float16"), shapes))
  assert "FusedPointwise" in str(caught.value)
  assert "node 'pointwise'" in str(caught.value)


def test_a_wrong_run_leaves_the_session_whole():
  text = typed(SUM_RELU, "float")
  session = make(model_of(text, [("n", "h"), ("m", "h")]))
  good = Case("whole", text, ((6, 40), (6, 40)))
  check(good, run(session, good))
  with pytest.raises(Exception, match=r"\[5, 40\] and \[6, 40\] do not broadcast"):
    ortplugin.run(session, {"x": np.ones((6, 40), np.float32), "r": np.ones((5, 40), np.float32)})
  check(good, run(session, good))


HUGE = {
  "contiguous, a tail": (((1 << 32) + 4321,), ()),
  "whole rows": (((1 << 31) // 1024 + 77, 1024), (1024,)),
  "odd rows": (((1 << 31) // 1023 + 77, 1023), (1023,)),
  "columns of odd rows": (((1 << 31) // 1023 + 77, 1023), ((1 << 31) // 1023 + 77, 1)),
  "middle": ((3, (1 << 30) // 1024, 1024), (3, 1, 1024)),
}


@parametrize("name", HUGE)
def test_more_than_two_to_the_31_elements(name):
  """Every element is checked; whole numbers wrap."""
  shape, other = HUGE[name]
  need_memory(20)
  text = "(int8 x, int8 b) => (int8 y) { p = Mul(x, 3) y = Add(p, b) }"
  cupy.random.seed(zlib.crc32(name.encode()))
  x, y = cupy.empty(shape, np.int8), cupy.zeros(shape, np.int8)
  words = x.reshape(-1)[: x.size // 8 * 8].view(np.uint64)
  words[...] = cupy.arange(words.size, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
  x.reshape(-1)[words.size * 8 :] = 5
  b = cupy.random.randint(-100, 100, other, dtype=np.int64).astype(np.int8).reshape(other)
  run_bound(make(model_of(text, [None, None])), [x, b], [y])
  for index in itertools.product(*(range(size) for size in shape[:-2])):
    rows = shape[-2] if len(shape) > 1 else 1
    step = 1 << 18 if len(shape) > 1 else 1
    for first in range(0, rows, step):
      part = (*index, slice(first, first + step)) if len(shape) > 1 else slice(None)
      near = cupy.broadcast_to(b, shape)[part]
      assert bool((y[part] == x[part] * np.int8(3) + near).all()), (name, index, first)
  del x, y, words, b
  cupy.get_default_memory_pool().free_all_blocks()


def test_values_of_bool_are_true_or_false():
  text = "(bool m, bool n) => (bool a, bool o, bool x) { a = And(m, n) o = Or(m, n) x = Xor(m, n) }"
  case = Case("bools", text, ((33, 1000), (1000,)))
  got = run_case(case)
  check(case, got)
  assert all(set(np.unique(bits(each))) <= {0, 1} for each in got)
