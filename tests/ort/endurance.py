"""A process that runs every operator of ours many times over; test_endurance.py starts it and judges what it prints.

    python -m ort.endurance runs 10000 [leak]      memory before and after as many runs of one session
    python -m ort.endurance failed 10000 [leak]    of runs that the operators refuse
    python -m ort.endurance sessions 1000 [leak]   of sessions that are made, run once and dropped
    python -m ort.endurance refused 1000 [leak]    of sessions whose nodes are refused
    python -m ort.endurance threads 13 500         the runs, in so many threads, that differ from a single thread's

`leak`: bytes that are allocated each time and lost, to see that they are found.
"""

import ctypes
import gc
import json
import resource
import sys
from functools import cache
from itertools import combinations, cycle
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from node_cases import model_with
from onnx.helper import make_node
from onnx_models import built
from threads import in_threads

from ort.host import CPU_ONLY, options
from ortplugin.graph import DOMAIN

# Cases of <operator>_cases.py: every way that a CPU kernel has of doing its work, and every width of a float that NumPy
# has. A new operator adds its own; test_endurance.py fails without.
CASES = {
  "lstm": ("forward 1 1 16 float False",),
  "transpose": ("to channels first, float16",),
  "attention": (
    "packed, fewer heads, float16",
    "K transposed, double",
    "one of two, float",
    "channels first, float16",
    "mask of keys, float of float16, zero",
    "mask all, bool of float, zero",
    "window, 20 by 90, float, alone",
    "softcap and mask, float16",
    "rotary half, channels first",
    "rotary interleaved, everything, float16",
  ),
  "conv": (
    "3x3, float",
    "Gelu, float16",
    "groups, double",
    "SAME_UPPER with strides, float, NHWC but X",
    "1x1, float, NHWC",
    "1x1 with strides, double, NHWC",
    "constant weights: normal, stem, float",
    "constant weights: normal, depthwise, float, NHWC",
  ),
  "conv_transpose": ("3x3, NCHW, float", "groups, NHWC, float16", "strided, NHWC, double", "3-D, turned, float"),
  "conv_grad": ("3x3, NCHW, float", "groups, NHWC, float16", "strided, transposed, NHWC, double", "scaled, float"),
  "matmul": (
    "odd, float",
    "Gelu, float16, trans_b",
    "inside: five axes, double",
    "constant weights: aligned, float, trans_b",
    "two images, layer norm, float16",
  ),
  "layer_norm": ("Gelu, float, 256", "bare RMS, double, 33", "three axes, float16"),
  "pointwise": ("a chain of eight, float16", "integers beside, float", "bits, int64, normal", "16 results, double"),
  "sum_to": (
    "lerp, odd gradients, float16",
    "rows and columns, double",
    "sums in other dtypes, float",
    "whole rows, int64, whole range",
  ),
  "pool": (
    "max, ResNet's stem, NCHW, uint8",
    "average with its padding, odd halves, rounded up, NHWC, float16",
    "global_average of 13x5, NHWC, float",
    "linear, half_pixel, (11,) by (23,), NHWC, float16",
    "linear, align_corners, (7, 10) by (1.5, 0.6), NCHW, float",
    "round_prefer_floor, half_pixel, (5, 7) by (13, 9), NCHW, double",
  ),
  "scatter": (
    "nd rows, float",
    "nd add of few, float16",
    "elements add, axis 1, double",
    "elements every dtype, axis 1, int16",
    "slice columns backwards, float",
    "slice every dtype, gaps, double",
  ),
}


@cache
def cases():
  found = []
  for module, names in CASES.items():
    by_name = {case.name: case for case in __import__(f"{module}_cases").CASES}
    found += [by_name[name] for name in names]
  return found


@cache
def model():
  """One model of all the cases, side by side."""
  models = (onnx.ModelProto.FromString(case.model()) for case in cases())
  return _beside(onnx.compose.add_prefix(each, f"{number}/") for number, each in enumerate(models))


def _beside(models):
  """A model of the nodes of all, whose names differ."""
  whole, *others = models
  for one in others:
    for kind in ("node", "input", "output", "initializer", "value_info"):
      getattr(whole.graph, kind).extend(getattr(one.graph, kind))
  return whole.SerializeToString()


def feeds(thread=0):
  """What a run is given. `thread`: a number of a thread, which has floats of its own."""
  rng = np.random.default_rng(thread)
  given = {}
  for number, case in enumerate(cases()):
    for name, array in case.feeds().items():
      is_moved = thread and array.dtype.kind == "f"
      given[f"{number}/{name}"] = rng.permutation(array.reshape(-1)).reshape(array.shape) if is_moved else array
  return given


def make(made, threads=1):
  return onnxruntime.InferenceSession(made, options(threads), providers=CPU_ONLY)


def bits(session, given):
  return [output.tobytes() for output in session.run(None, dict(given))]


# ---- what is to be refused


def failing():
  """A model, and feeds that its operators refuse: an index that lies outside, shapes that do not fit."""
  text = "(float c, float b) => (float y) { y = Add(c, b) }"
  nodes = [
    make_node("ScatterND", ["x", "i", "u"], ["s"], "scatter", domain=DOMAIN),
    make_node("FusedConv", ["s", "w", "b"], ["y"], "convolution", domain=DOMAIN, program=text),
    make_node("FusedPointwise", ["y", "b"], ["z"], "pointwise", domain=DOMAIN, program=text),
  ]
  inputs = "float[?,?,?,?] x, u, w, float[?,?,?] b, int64[?,?] i"
  made = built(nodes, inputs, "float[] z", 18, 9, domains=[DOMAIN])

  def given(index, channels, bias):
    x, w = np.ones((2, 3, 5, 5), "float32"), np.ones((4, channels, 3, 3), "float32")
    return {"x": x, "u": x[:1], "w": w, "b": np.ones((bias, 1, 1), "float32"), "i": np.array([[index]])}

  return made.SerializeToString(), [given(2, 3, 4), given(0, 2, 4), given(0, 3, 5)]


def refused_models():
  """Models whose sessions can't be made for one node behind all the others: its program, dtype or attribute."""
  texts = ("", "(float x) => (float y) { y = Relu(z) }", "(int32 x) => (int32 y) { y = Exp(x) }")
  nodes = [
    make_node(name, ["x"], ["y"], name, domain=DOMAIN, **attributes)
    for name, attributes in [
      *(("FusedPointwise", {"program": text}) for text in texts),
      ("FusedAttention", {"qkv_dtype": "float", "heads": 4, "kv_heads": 3}),
      ("FusedPool", {"kind": "median"}),
      ("FusedResize", {"mode": "linear", "scales": [1.0, -2.0]}),
    ]
  ]
  found = []
  for node in nodes:
    one = model_with([node], [("x", "float", [2, 3, 4, 4])], [("y", "float")])
    found.append(_beside([onnx.ModelProto.FromString(model()), onnx.ModelProto.FromString(one)]))
  return found


# ---- memory


_NAMES = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


class _Counts(ctypes.Structure):
  """glibc's struct mallinfo2 (2.33 or later)."""

  _fields_ = [(name, ctypes.c_size_t) for name in _NAMES]


_libc = ctypes.CDLL(None)


def memory():
  """(resident, allocated): the pages that the process holds, and what of its heap is in use, in bytes.

  The second counts each allocation of C++, and of Python with PYTHONMALLOC=malloc. Pages come and go by many at a
  time, so the first is coarser, but it knows what is mapped past the heap as well.
  """
  gc.collect()
  resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
  counts = _libc.mallinfo2()
  return resident, counts.uordblks + counts.hblkhd


PARTS = 10


def growth(work, times, leak):
  """What the process holds more after the work was done so many times, behind a quarter as many to warm up.

  `allocated`: in bytes a time, the median slope between any two of PARTS + 1 marks (Theil and Sen's estimator). A
  leak grows all the way; a table that doubles does once, and what ONNX Runtime keeps of runs that failed comes and
  goes. `resident`: in bytes, from the first mark to the last.
  """
  _libc.mallinfo2.restype = _Counts
  _libc.malloc.restype = ctypes.c_void_p

  def repeat(count):
    for _ in range(count):
      work()
      if leak:
        ctypes.memset(_libc.malloc(leak), 1, leak)
    return memory()

  each = times // PARTS
  marks = np.array([repeat(times // 4), *(repeat(each) for _ in range(PARTS))])
  slopes = [(marks[j, 1] - marks[i, 1]) / (j - i) / each for i, j in combinations(range(PARTS + 1), 2)]
  return {"resident": int(marks[-1, 0] - marks[0, 0]), "allocated": float(np.median(slopes))}


def raises(work):
  try:
    work()
  except Exception:
    return
  raise AssertionError("it was not refused")


# ---- modes


def runs(times, leak=0):
  session, given = make(model()), feeds()
  wanted, different = bits(session, given), 0

  def work():
    nonlocal different
    different += bits(session, given) != wanted

  return {**growth(work, times, leak), "different": different}


def failed(times, leak=0):
  made, refused = failing()
  session = make(made)

  def work():
    for given in refused:
      raises(lambda: session.run(None, given))  # noqa: B023, which is called at once

  return growth(work, times, leak)


def sessions(times, leak=0):
  given, wanted = feeds(), bits(make(model()), feeds())
  different = 0

  def work():
    nonlocal different
    different += bits(make(model()), given) != wanted

  return {**growth(work, times, leak), "different": different}


def refused(times, leak=0):
  made = cycle(refused_models())
  return growth(lambda: raises(lambda: make(next(made))), times, leak)


def threads(count, times):
  given = [feeds(number) for number in range(count)]
  alone, shared = make(model()), make(model(), 2)
  wanted = [bits(alone, each) for each in given]
  different = [0] * count

  def work(number):
    for _ in range(times):
      different[number] += bits(shared, given[number]) != wanted[number]

  in_threads(count, work)
  return {"different": different, "inputs": len({tuple(each) for each in wanted})}


MODES = {"runs": runs, "failed": failed, "sessions": sessions, "refused": refused, "threads": threads}

if __name__ == "__main__":
  print(json.dumps(MODES[sys.argv[1]](*map(int, sys.argv[2:]))))
