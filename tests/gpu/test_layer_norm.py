"""FusedLayerNorm in ONNX Runtime on a GPU: equal to its reference in every schedule, under threads, CUDA graphs and odd
addresses; and what happens when memory, NVRTC or the shapes are not as wished."""

import itertools
import re
import statistics

import numpy as np
import pytest
from layer_norm_cases import ADD, AFFINE, BARE, CASES, LARGE_CASES, RESIDUAL, Case, by_name, check, expect, model_of
from node_cases import typed
from onnx import helper
from onnx_models import parametrize
from threads import in_threads

import ortplugin
from gpu.device import at_offset, cupy, host, make, need_memory, python, run, run_bound, run_case, same_bits
from gpu.sessions import (
  check_addresses,
  check_capture,
  check_repeats,
  check_replays,
  check_stream,
  check_threads,
  trial,
)

# One of each way that the kernel can take.
CHOSEN = (
  "bias, residual, sum kept, float16, 1023",
  "a bool result, float, 256",
  "gains of rows and of all, bfloat16, 33",
  "width 5140, double",
  "width 20480, float16",
  "width 100000, float16",
  "one long row, float",
  "broadcast within rows, float",
  "long rows with everything, float16",
  "20011 rows of 33, affine, float",
  "4099 rows of 768, residual, float16",
  "1501 rows of 5140, residual, float16",
  "1001 rows of 8192, residual, bfloat16",
  "groups 2 200 32 10, float16, everything",
  "groups 3 64 7 3, bfloat16",
  "channels of NCHW, float16",
  "channels first, one group, float",
  "GroupNorm of NHWC, float16",
  "8 x 3136 x 32 x 8, everything, float16",
  "1 x 70000 x 2 x 8, Swish, float16",
  "8 x 784 x 256 x 1, Swish, float",
  "windows in order",
  "patches in order",
  "x and r in order, float16, 40000",
)


# ---- parity


@parametrize("case", [*CASES, *LARGE_CASES])
def test_equals_the_reference(case):
  check(case, run_case(case))


@parametrize("name", CHOSEN)
def test_runs_are_bit_identical(name):
  """Whatever ran between them, in whatever memory, in another session too."""
  other = by_name["width 768, float16"]
  session = make(other.model())
  check_repeats(by_name[name], between=lambda number: run(session, other))


def test_shapes_may_change_from_run_to_run():
  text = typed(RESIDUAL, "float16")
  session = make(model_of(text, [("b", "s", "h"), ("h",), ("b", "s", "h"), ("h",), ("h",)]))
  widths = (1, 7, 768, 1023, 5140, 70001)
  for width, rows in itertools.product(widths, ((1, 1), (3, 5), (0, 4), (40, 50), (3, 5))):
    if width * rows[0] * rows[1] > 1 << 24:
      continue
    x = (*rows, width)
    case = Case(f"changing {x}", text, (x, (width,), x, (width,), (width,)))
    check(case, run(session, case))


X = (2, 7, 96)
INCOMPLETE = {  # declared, given
  "known from other inputs": ([("b", "s", "h"), (96,), ("b", 7, "h"), (96,), (96,)], (X, (96,), X, (96,), (96,))),
  "without names": ([(None, None, None), (96,), X, (None,), (96,)], (X, (96,), X, (96,), (96,))),
  "without ranks": ([None, None, None, None, None], (X, (96,), X, (96,), (96,))),
  "some without ranks": ([None, (96,), None, None, (96,)], (X, (96,), X, (96,), (96,))),
  "one, and known elsewhere": (
    [(1, 7, 96), ("one",), ("b", 7, 96), (96,), ("b", 1, 1)],
    ((1, 7, 96), (1,), X, (96,), (2, 1, 1)),
  ),
  "one, and could be no other": (
    [(1, 96), (96,), (1, 96), ("one", 96), (96,)],
    ((1, 96), (96,), (1, 96), (1, 96), (96,)),
  ),
}


@parametrize("name", INCOMPLETE)
def test_declared_shapes_need_not_be_complete(name):
  declared, given = INCOMPLETE[name]
  case = Case(name, typed(RESIDUAL, "float"), tuple(given))
  check(case, run(make(model_of(case.text, declared)), case))


def test_images_in_an_order_may_be_of_any_number():
  cases = [
    Case(f"{n} images", typed(ADD, "float16"), ((n, 3, 2, 96), (n, 9, 96)), attributes=((1,), (8, *range(5)), (3, 2)))
    for n in (2, 0, 5, 300)
  ]
  session = make(cases[0].model([("n", 3, 2, 96), ("n", 9, 96)]))
  for case in cases:
    check(case, run(session, case))


# ---- addresses


@parametrize("which", ["inputs", "outputs", "inputs and outputs"])
@parametrize("name", CHOSEN)
def test_tensors_may_start_anywhere(name, which):
  case = by_name[name]
  expected, odd = expect(case), range(1, 10)
  offsets = [(odd if "inputs" in which else [0], odd if "outputs" in which else [0])]
  check_addresses(case, lambda found: check(case, found, expected), offsets, expected.outputs)


def test_one_input_of_many_may_start_anywhere():
  case = by_name["bias, residual, sum kept, float, 256"]
  session, expected = make(case.model()), expect(case)
  for odd in range(len(case.shapes)):
    arrays = [at_offset(array, int(i == odd)) for i, array in enumerate(case.inputs())]
    feeds = dict(zip((parameter.name for parameter in case.program.parameters), arrays, strict=True))
    check(case, host(ortplugin.run(session, feeds)), expected)


# ---- streams and graphs


@parametrize("name", CHOSEN)
def test_a_cuda_graph_gives_the_same_bits(name):
  check_replays(by_name[name], 4)


def test_work_is_on_the_sessions_stream():
  case = by_name["width 768, float"]
  check_stream(case.model(), trial(case, check))


def captured():
  text = typed(BARE, "float")
  first, later = (trial(Case(f"captured {rows}", text, ((rows, 8),)), check) for rows in (3, 5))
  return model_of(text, [("n", 8)]), first, later


def test_new_shapes_under_capture_are_refused():
  check_capture(captured, "norm")


# ---- threads


def test_many_threads_run_one_session():
  text = typed(RESIDUAL, "float16")

  def trial_of(number):
    shape = (64, 2056) if number % 2 else (40 * number + 1, (33, 768, 1023, 70001)[number // 2 % 4])
    return trial(Case(f"thread {number}", text, (shape, shape[1:], shape, shape[1:], shape[1:])), check)

  check_threads(model_of(text, [("n", "h"), ("h",), ("n", "h"), ("h",), ("h",)]), trial_of)


def test_threads_make_sessions_at_once():
  case = Case("sessions at once", typed(AFFINE, "float"), ((11, 777), (777,), (777,)))
  expected = expect(case)

  def work(_):
    for _ in range(3):
      check(case, run_case(case), expected)

  in_threads(8, work)


ENDINGS = {
  "everything alive at the exit": "",
  "session first": "del session; gc.collect()",
  "results last": "y = ortplugin.run(session, case.feeds()); del session; gc.collect(); del y; gc.collect()",
  "alive in a cycle": "loop = [session]; loop.append(loop); del session",
  "in a thread": "t = threading.Thread(target=ortplugin.run, args=(session, case.feeds())); t.start(); t.join()",
}


@parametrize("ending", ENDINGS)
def test_a_process_ends_in_any_order(ending):
  done = python(f"""
import gc, threading, ortplugin
from gpu.test_layer_norm import by_name, check, make, run
case = by_name["awkward, float"]
session = make(case.model())
check(case, run(session, case))
{ENDINGS[ending]}
print("the end", flush=True)
""")
  assert (done.returncode, done.stdout, done.stderr) == (0, "the end\n", "")


# ---- kernel cache

# Prints, in seconds, how long a session of a plain model takes, and one of ours, the first in the process; both after
# another session has started CUDA. A third time is that of a second session of ours.
CREATION = """
import pathlib, time
from onnx import helper
from gpu.test_layer_norm import by_name, make, model_of
case = by_name["bias, residual, sum kept, float16, 1023"]
own = [
    helper.make_node("Add", ["x", "b"], ["t"]),
    helper.make_node("Add", ["t", "r"], ["s"]),
    helper.make_node("LayerNormalization", ["s", "gamma", "beta"], ["y"]),
]
plain, ours = model_of(case.text, case.shapes, own), case.model()
def seconds(model):
    start = time.perf_counter()
    made = make(model)
    return time.perf_counter() - start
seconds(plain)
print(min(seconds(plain) for _ in range(3)), seconds(ours), seconds(ours))
"""


def test_a_warm_cache_adds_little_to_a_session(tmp_path):
  def times():
    done = python(CREATION, ORTPLUGIN_CACHE_DIR=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return [float(word) for word in done.stdout.split()]

  def entries():
    return {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*") if path.is_file()}

  cold = times()
  written = entries()
  assert len(written) == 1  # one kernel
  warm = [times() for _ in range(5)]
  assert entries() == written
  plain, ours, again = (statistics.median(column) for column in zip(*warm, strict=True))
  print(
    f"a session takes {plain * 1e3:.1f} ms without the node; with it {cold[1] * 1e3:.0f} ms on an empty cache, "
    f"{ours * 1e3:.1f} ms on a warm one, {again * 1e3:.1f} ms in a process that has it"
  )
  assert ours - plain < 0.050
  assert again - plain < 0.050


def test_threads_compile_a_kernel_once(tmp_path):
  code = """
from gpu.test_layer_norm import by_name, in_threads, make
in_threads(8, lambda _: make(by_name["width 1023, float16"].model()))
"""
  done = python(code, ORTPLUGIN_CACHE_DIR=str(tmp_path / "cache"))
  assert done.returncode == 0, done.stderr
  assert len([path for path in (tmp_path / "cache").rglob("*") if path.is_file()]) == 1


def test_without_nvrtc_the_session_says_what_to_install(tmp_path):
  code = """
import ortplugin
from gpu.test_layer_norm import by_name, check, make
case = by_name["awkward, float"]
try:
    make(case.model())
except Exception as error:
    print(error)
check(case, list(ortplugin.run(ortplugin.session(case.model(), ["cpu"]), case.feeds()).values()))
print("the CPU still runs")
"""
  environment = {"ORTPLUGIN_NVRTC": "/nonexistent/libnvrtc.so", "ORTPLUGIN_CACHE_DIR": str(tmp_path / "cache")}
  done = python(code, **environment)
  assert done.returncode == 0, done.stderr
  assert "pip install nvidia-cuda-nvrtc" in done.stdout
  assert "/nonexistent/libnvrtc.so" in done.stdout
  assert "node 'norm'" in done.stdout
  assert done.stdout.endswith("the CPU still runs\n")


# ---- wrong and large


@parametrize(
  "text, shapes, words",
  [
    (BARE.replace("(x)", "<axis=2>(x)"), ((2, 3),), r"axis 2 is out of range for the shape \[2, 3\]"),
    (AFFINE, ((2, 3), (4,), (3,)), r"input 1 \('gamma'\): the shape \[4\] does not broadcast to \[2, 3\]"),
    (ADD, ((2, 3), (2, 4)), r"\[2, 4\] and \[2, 3\] do not broadcast"),
    (BARE, ((1, (1 << 30) + 8),), "longer than the 2.30 that the kernel counts"),
    (BARE.replace("(x)", "<epsilon=-1>(x)"), ((2, 3),), "epsilon is -1"),
  ],
)
def test_a_wrong_node_is_refused_with_the_session(text, shapes, words):
  with pytest.raises(Exception, match=words) as caught:
    make(model_of(typed(text, "float16"), shapes))
  assert "FusedLayerNorm" in str(caught.value)
  assert "node 'norm'" in str(caught.value)


def test_a_node_with_other_inputs_than_its_program_is_refused():
  node = helper.make_node(
    "FusedLayerNorm", ["x", "gamma", "beta"], ["y"], "norm", domain="ortplugin", program=typed(BARE, "float")
  )
  with pytest.raises(Exception, match="1 parameters, the node 3 inputs"):
    make(model_of(typed(AFFINE, "float"), ((2, 3), (3,), (3,)), [node]))


def test_a_wrong_run_leaves_the_session_whole():
  text = typed(ADD, "float")
  session = make(model_of(text, [("n", "h"), ("m", "h")]))
  good = Case("whole", text, ((6, 40), (6, 40)))
  check(good, run(session, good))
  with pytest.raises(Exception, match=r"\[5, 40\] and \[6, 40\] do not broadcast"):
    ortplugin.run(session, {"x": np.ones((6, 40), np.float32), "r": np.ones((5, 40), np.float32)})
  check(good, run(session, good))


def test_out_of_memory_is_a_status():
  """With the bytes that were asked for, after which a smaller run works."""
  text = typed(RESIDUAL, "float")
  shapes = [("n", "h"), ("h",), ("n", "h"), ("h",), ("h",)]
  session = make(model_of(text, shapes), gpu_mem_limit=str(64 << 20), arena_extend_strategy="kSameAsRequested")

  def case(rows):
    return Case(f"memory {rows}", text, ((rows, 4096), (4096,), (rows, 4096), (4096,), (4096,)))

  check(case(16), run(session, case(16)))
  feeds = {"x": (1 << 15, 4096), "b": (4096,), "r": (1 << 15, 4096), "gamma": (4096,), "beta": (4096,)}
  arrays = {name: cupy.ones(shape, np.float32) for name, shape in feeds.items()}  # not from ORT's arena
  for _ in range(3):
    with pytest.raises(Exception, match="FusedLayerNorm") as caught:
      ortplugin.run(session, arrays)
    assert re.search(rf"\b{(1 << 15) * 4096 * 4}\b", str(caught.value)), str(caught.value)
    check(case(16), run(session, case(16)))


@parametrize("width", [2056, 4096, 5140, 5142, 20480])
def test_results_larger_than_the_cache(width):
  """Rows are loaded ahead then, and what is read and written once is kept from the caches."""
  rows = cupy.cuda.Device().attributes["L2CacheSize"] // (2 * width) + 77
  text = typed(RESIDUAL, "float16")
  case = Case("larger than the cache", text, ((rows, width), (width,), (rows, width), (width,), (width,)))
  n, c = cupy.arange(rows, dtype=np.int64)[:, None], cupy.arange(width, dtype=np.int64)
  x, r = ((n * 7919 + c * c) % 1013 - 506) / 64, ((n * 31 + c * 17) % 257 - 128) / 32
  wide = [x, c % 7 / 8, r, (c % 61 + 1) / 32, c % 5 / 4]
  x, b, r, gamma, beta = arrays = [array.astype(np.float16) for array in wide]
  y, s = results = [cupy.zeros((rows, width), np.float16) for _ in range(2)]
  run_bound(make(case.model()), arrays, results)
  total = x.astype(np.float32) + b + r
  assert bool((s == total.astype(np.float16)).all())
  wanted = total.astype(np.float64)
  wanted -= wanted.mean(axis=1, keepdims=True)
  wanted /= cupy.sqrt((wanted * wanted).mean(axis=1, keepdims=True) + 1e-12)
  wanted = wanted * gamma + beta
  assert float((cupy.abs(y - wanted) / (cupy.abs(wanted) + 1)).max()) < 1e-3  # half a step of float16 is 5e-4


@parametrize("width", [1031, 1032])
def test_more_than_two_to_the_31_elements(width):
  """4.3 GB in and 4.3 GB out, every element checked; one operand has one element a row."""
  need_memory(20)
  rows = (1 << 31) // width + 4321
  assert rows * width > 1 << 31
  text = typed("(T x, T c) => (T y) { n = LayerNormalization(x) y = Mul(n, c) }", "float16")
  x, y = cupy.empty((rows, width), np.float16), cupy.zeros((rows, width), np.float16)
  step = 1 << 16
  columns = cupy.arange(width, dtype=np.int64)[None]
  for first in range(0, rows, step):
    numbers = cupy.arange(first, min(rows, first + step), dtype=np.int64)[:, None]
    x[first : first + step] = ((numbers * 7919 + columns * columns) % 1013).astype(np.float16)
  c = ((cupy.arange(rows, dtype=np.int64) % 61 + 1) / 16).astype(np.float16)[:, None]
  session = make(model_of(text, [("n", width), ("n", 1)]))
  run_bound(session, [x, c], [y])
  for first in range(0, rows, step):
    s = x[first : first + step].astype(np.float64)
    s -= s.mean(axis=1, keepdims=True)
    s /= cupy.sqrt((s * s).mean(axis=1, keepdims=True) + 1e-5)
    s *= c[first : first + step]
    s -= y[first : first + step]
    assert float(cupy.abs(s).max()) < 2.5e-3, f"rows from {first} on"  # half a step of float16 below 8 is 2e-3
  del x, y, c, s, session
  cupy.get_default_memory_pool().free_all_blocks()


def test_the_second_gpu():
  """Modules belong to a device: the same kernel on both, in one process."""
  count = cupy.cuda.runtime.getDeviceCount()
  if count < 2:
    pytest.skip(f"this machine has {count} GPU")
  for name in CHOSEN:
    case = by_name[name]
    first, second = (run(make(case.model(), device_id=str(device)), case) for device in (0, 1))
    check(case, second)
    assert same_bits(first, second)
