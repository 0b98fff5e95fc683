"""FusedPool and FusedResize in ONNX Runtime on a GPU: equal to their references for every dtype, window, layout and
address, the same bits in every run, under threads and CUDA graphs, beyond 2^31 elements."""

import numpy as np
import pytest
from node_cases import model_with, planar
from onnx import helper
from onnx_models import parametrize
from ort.host import make as make_on_cpu
from pool_cases import CASES, LARGE_CASES, Case, by_name, check, frozen, in_layout

import ortplugin
from gpu.device import at_offset, cupy, host, make, need_memory, run, run_bound, run_case, same_bits
from gpu.sessions import check_capture, check_replays, check_threads, trial
from ortplugin.graph import DOMAIN

# One of each way that the kernels can take.
CHOSEN = (
  "max, ResNet's stem, NHWC, float16",
  "max, ResNet's stem, NCHW, uint8",
  "average with its padding, uneven pads, NHWC, float",
  "average, a large window, NHWC, float16",
  "average, a padded volume, NHWC, double",
  "global_average of 7x7x96, NHWC, double",
  "global_max of 56x56x24, NCHW, float16",
  "linear, half_pixel, (5, 7) by (13, 9), NHWC, float",
  "linear, align_corners, (5, 7) by (10, 14), NCHW, float16",
  "round_prefer_floor, asymmetric, (6, 5) by (2.0, 2.0), NCHW, float16",
  "large: squeeze, NHWC, float16",
  "large: squeeze, NCHW, float",
  "large: eight times, NCHW, float16",
)


@parametrize("case", [*CASES, *LARGE_CASES])
def test_equals_the_reference(case):
  (y,) = run_case(case)
  check(case, y)


@parametrize("seed", range(4))
@parametrize("layout", ["NCHW", "NHWC"])
def test_random_windows(layout, seed):
  """Of up to three axes, each with its own kernel, stride, dilation and pads; every channel count and batch."""
  rng = np.random.default_rng(seed)
  for number in range(3):
    spatial = tuple(int(n) for n in rng.integers(3, 24, int(rng.integers(1, 4))))
    kernel = [int(n) for n in rng.integers(1, 4, len(spatial))]
    window = {
      "kernel_shape": kernel,
      "strides": [int(n) for n in rng.integers(1, 4, len(spatial))],
      "dilations": [int(rng.integers(1, 3)) if size >= 7 else 1 for size in spatial],
      "pads": [int(rng.integers(0, n)) for n in kernel * 2],
      "ceil_mode": int(rng.integers(2)),
    }
    shape = in_layout(layout, int(rng.integers(1, 4)), int(rng.choice((1, 3, 4, 6, 8, 20, 72))), spatial)
    kind = ("max", "average")[number % 2]
    case = Case(f"random {seed} {number} {shape}", "FusedPool", ("float16", "float")[seed % 2], shape,
                frozen({"kind": kind, "layout": layout, **window}))  # fmt: skip
    (y,) = run_case(case)
    check(case, y)


@parametrize("coordinates", ["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"])
@parametrize("mode", ["linear", "round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_places_are_those_of_the_cpu(coordinates, mode):
  """The same elements and the same weights, to the last bit, also where a scale's rounding decides."""
  words = {"mode": "linear"} if mode == "linear" else {"mode": "nearest", "nearest_mode": mode}
  pairs = [(size, out) for size in (1, 2, 5, 7, 9, 14, 20, 33, 97) for out in (1, 2, 3, 4, 6, 8, 9, 13, 28, 56)]
  nodes = [
    helper.make_node("FusedResize", [f"x{size}"], [f"y{size}/{out}"], domain=DOMAIN, sizes=[1, out],
                     coordinate_transformation_mode=coordinates, **words)
    for size, out in pairs
  ]  # fmt: skip
  # Of which the nearest element tells its number, and a linear place its weight: every other element is 0.
  lines = {f"x{size}": np.arange(size, dtype=np.float32) for size, _ in pairs}
  feeds = {name: (line % 2 if mode == "linear" else line).reshape(1, 1, 1, -1) for name, line in lines.items()}
  model = model_with(
    nodes, [(name, "float", line.shape) for name, line in feeds.items()], [(node.output[0], "float") for node in nodes]
  )
  wanted, found = ortplugin.run(make_on_cpu(model), feeds), host(ortplugin.run(make(model), feeds))
  for (name, array), other in zip(wanted.items(), found, strict=True):
    np.testing.assert_array_equal(other, array, err_msg=name)


def test_an_empty_result_launches_nothing():
  """In one session before, between and after others: no plan is made of it, none is found for it."""
  window = {"kind": "max", "layout": "NHWC", "kernel_shape": (3, 3), "strides": (2, 2)}
  scales = {"layout": "NHWC", "scales": (0.25, 2.0)}
  for op, given, sizes in (
    ("FusedPool", window, ((1, 1), (7, 9), (1, 9), (7, 9))),
    ("FusedResize", scales, ((3, 5), (0, 5), (8, 5), (0, 0), (8, 5))),
  ):
    session = make(Case("sizes", op, "float16", (), frozen(given)).model((None, None, None, 8)))
    for size in sizes:
      case = Case(f"{op} of {size}", op, "float16", (2, *size, 8), frozen(given))
      (y,) = run(session, case)
      check(case, y)


@parametrize("channels", [1, 2, 3, 4, 12, 24, 40, 256, 264, 1000])
@parametrize("kind", ["global_average", "global_max"])
def test_global_pools_of_every_size(kind, channels):
  """One session, whose shapes come as they are; clusters of blocks and single ones."""
  given = frozen({"kind": kind, "layout": "NHWC"})
  session = make(Case("sizes", "FusedPool", "float16", (), given).model((None, None, None, channels)))
  for batch, height, width in ((1, 1, 1), (2, 3, 5), (1, 7, 7), (1, 33, 65), (5, 112, 17), (200, 4, 4)):
    case = Case(f"{kind} {(batch, height, width)}", "FusedPool", "float16", (batch, height, width, channels), given)
    (y,) = run(session, case)
    check(case, y)


def test_many_runs_are_bit_identical():
  """Whatever ran between them, in another session too."""
  for name in CHOSEN:
    case = by_name[name]
    session = make(case.model())
    first = run(session, case)
    for _ in range(20):
      assert same_bits(run(session, case), first), name
    assert same_bits(run_case(case), first), name


@parametrize("op", ["FusedPool", "FusedResize"])
def test_shapes_may_change_from_run_to_run(op):
  given = planar(kind="average", kernel_shape=2, strides=2) if op == "FusedPool" else {"sizes": [9, 5]}
  given = {**given, "layout": "NHWC"}
  session = make(Case("changing", op, "float16", (), frozen(given)).model(("a", "b", "c", "d")))
  for shape in ((1, 5, 7, 3), (2, 33, 8, 64), (0, 4, 4, 8), (64, 56, 56, 64), (1, 5, 7, 3)):
    case = Case(f"changing {shape}", op, "float16", shape, frozen(given))
    (y,) = run(session, case)
    check(case, y)


@parametrize("which", ["input", "output", "input and output"])
@parametrize("name", CHOSEN)
def test_tensors_may_start_anywhere(name, which):
  """A view into a larger array begins at a multiple of its elements' size, not of 16 bytes."""
  case = by_name[name]
  session, (array,) = make(case.model()), case.inputs()
  for offset in (1, 2, 3):
    x = at_offset(array, offset if "input" in which else 0)
    y = at_offset(np.zeros_like(case.reference(array)), offset if "output" in which else 0)
    run_bound(session, [x], [y])
    check(case, cupy.asnumpy(y))


@parametrize("name", CHOSEN)
def test_a_cuda_graph_gives_the_same_bits(name):
  check_replays(by_name[name])


GLOBAL = frozen({"kind": "global_average", "layout": "NHWC"})


def pooled(name, dtype, shape):
  """A run of a global average."""
  return trial(Case(name, "FusedPool", dtype, shape, GLOBAL), lambda case, found: check(case, *found))


def captured():
  first, later = (pooled(f"captured {height}", "float", (2, height, 7, 8)) for height in (30, 500))
  return Case("new", "FusedPool", "float", (), GLOBAL).model(("n", "h", 7, 8)), first, later


def test_new_shapes_under_capture_are_refused():
  check_capture(captured, "image")


def test_many_threads_run_one_session():

  def trial_of(number):
    shape = (4, 112, 112, 24) if number % 2 else (3 + number, 17, 33, (8, 64, 7, 120)[number // 2 % 4])
    return pooled(f"thread {number}", "float16", shape)

  check_threads(Case("threads", "FusedPool", "float16", (), GLOBAL).model(None), trial_of)


HUGE = {
  "halves, NHWC": ("FusedPool", planar(kind="max", kernel_shape=2, strides=2, layout="NHWC")),
  "halves, NCHW": ("FusedPool", planar(kind="max", kernel_shape=2, strides=2)),
  "twice, NHWC": (
    "FusedResize",
    {"scales": [0.5, 2.0], "nearest_mode": "floor", "layout": "NHWC", "coordinate_transformation_mode": "asymmetric"},
  ),
  "twice, NCHW": (
    "FusedResize",
    {"scales": [0.5, 2.0], "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"},
  ),
}


@parametrize("name", HUGE)
def test_more_than_two_to_the_31_elements(name):
  """Of single bytes in NHWC with 3 channels, so that no vector makes fewer of them; the last elements show."""
  op, given = HUGE[name]
  need_memory(24)
  layout = given.get("layout", "NCHW")
  shape = in_layout(layout, (1 << 31) // (3 << 20) + 5, 3, (1024, 1024))
  case = Case(name, op, "uint8", shape, frozen(given))
  x = cupy.empty(shape, np.uint8)
  flat = x.reshape(-1)
  for start in range(0, x.size, 1 << 28):
    part = flat[start : start + (1 << 28)]
    part[...] = cupy.arange(start, start + part.size, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> 55
  spatial = slice(1, 3) if layout == "NHWC" else slice(2, 4)
  if op == "FusedPool":
    halves = (1024 // 2, 2, 1024 // 2, 2)
    axes = (2, 4) if layout == "NHWC" else (3, 5)
    wanted = x.reshape((*shape[: spatial.start], *halves, *shape[spatial.stop :])).max(axis=axes)
  else:
    kept = x[:, ::2] if layout == "NHWC" else x[:, :, ::2]
    wanted = cupy.repeat(kept, 2, axis=spatial.start + 1)
  session = make(case.model(None))
  y = cupy.zeros(wanted.shape, np.uint8)
  run_bound(session, [x], [y])
  assert bool((y == wanted).all())


def test_a_wrong_run_leaves_the_session_whole():
  given = frozen({"kind": "max", "kernel_shape": [3, 3]})
  session = make(Case("whole", "FusedPool", "float", (), given).model(("n", 2, "h", "w")))
  good = Case("whole", "FusedPool", "float", (1, 2, 6, 7), given)
  check(good, run(session, good)[0])
  with pytest.raises(Exception, match="spans 3 elements on spatial axis 0"):
    ortplugin.run(session, {"x": np.ones((1, 2, 1, 7), np.float32)})
  check(good, run(session, good)[0])
