"""FusedAttention in ONNX Runtime on a GPU: equal to its reference for every dtype, layout, mask and address, the same
bits in every run, under threads and CUDA graphs, beyond 2^31 elements."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
from attention_cases import CASES, GROWING, LARGE_CASES, TF32_CASES, by_name, case_of, check, growing
from node_cases import model_with
from onnx.helper import make_node
from onnx_models import parametrize

import ortplugin
from gpu.device import bind, cupy, host, make, need_memory, run, run_bound
from gpu.sessions import (
  Trial,
  check_addresses,
  check_capture,
  check_graph,
  check_repeats,
  check_replays,
  check_stream,
  check_threads,
  trial as trial_of,
)
from ortplugin.graph import DOMAIN
from ortplugin.ops.attention import OPERATOR
from ortplugin.program import NUMPY_DTYPES

# Of a cache of fixed length: the rows of one kernel, rotated and not, and those of a copy before another's.
WRITTEN = (
  "written 9, 1 at 8 of 4, half, float16",
  "written 9, 1 at 8 of 4, none, float",
  "written 300, 3 at -100 of 1, none, float16",
  "written 1024, 1 at 777 of 4, interleaved, float16",
  "written 130, 20 at 20 of 1, half, float16",
  "large: GPT-2, written, float16",
)

# One of each way that the kernels can take.
CHOSEN = (
  "merged, float16",
  "K transposed, of other sizes",
  "packed, fewer heads, bfloat16",
  "packed, an axis, double",
  "mask all, bool of float16, zero",
  "mask of keys, float of float, zero",
  "window, 20 by 90, float, alone",
  "softcap and mask, bfloat16",
  "large: ViT-B, float16",
  "large: BERT, float",
  "large: Llama, bfloat16",
  "large: Stable Diffusion, float16",
  "large: decoding, float16",
  "large: Whisper, float16",
  "large: lower right, bfloat16",
  "large: window, float16",
  "rotary half, 130 rows, 20 pairs of 40, float for bfloat16",
  "rotary interleaved, everything, float16",
  "rotary half, channels first",
  "large: Llama rotated, float16",
  "large: long and rotated, float16",
  "large: GPT-2 with a cache, float16",
  "large: Llama with a cache, bfloat16",
  "past 1024, 3 queries of 4, interleaved, window, float16",
  "past 1024, 17 queries of 4, half, causal, float16",
  "past 7, 1 queries of 4, half, causal, float",
  "past b s (h d), merged, float16",
  *WRITTEN,
  "large: BERT, float, TF32",
  "large: Swin, float, TF32",
  "window, 20 by 90, float, alone, TF32",
  "rotary half, 70 rows, 32 pairs of 64, float for float, TF32",
  "past 7, 1 queries of 4, half, causal, float, TF32",
)
DTYPES = {"float16": {}, "bfloat16": {}, "float": {}, "TF32": {"allow_tf32": 1}}


@parametrize("case", [*CASES, *LARGE_CASES, *TF32_CASES])
def test_equals_the_reference(case):
  check(case, run(make(case.model()), case))


@parametrize("says", DTYPES)
def test_every_head_size(says):
  dtype, given = "float" if says == "TF32" else says, DTYPES[says]
  for size in (*range(1, 34), 40, 48, 56, 63, 64, 65, 72, 80, 88, 96, 112, 120, 128, 136, 160, 192, 224, 248, 255, 256):
    value = (size * 7) % 256 + 1
    if size > 1:
      for rotary in ("half", "interleaved"):
        case = case_of(f"{rotary}, {size}, {dtype}", dtype, (1, 2, 1, 70, 70, size, size), rotary=rotary, **given,
                       tables=(("float", dtype)[size % 2], (70, size // 2)))  # fmt: skip
        check(case, run(make(case.model()), case))
    for name, value_size in (("the same", size), ("another", value)):
      case = case_of(f"{name}, {size}, {dtype}", dtype, (1, 2, 1, 70, 67, size, value_size), **given)
      check(case, run(make(case.model()), case))
      few = case_of(f"{name}, {size}, {dtype}, a cache", dtype, (1, 2, 1, 1, 301, size, value_size), past=300, **given)
      check(few, run(make(few.model()), few))


@parametrize("seed", range(4))
def test_random_cases(seed):
  """Sizes, masks, causality and layouts as they come."""
  rng = np.random.default_rng(seed)

  def one(*of):
    return of[int(rng.integers(len(of)))]

  for number in range(12):
    layout = one("standard", "merged", "channels first", "K transposed", "sequence first", "one of two")
    group, kv_heads = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    queries, keys = int(rng.integers(1, 150)), int(rng.integers(1, 300))
    size = 8 * int(rng.integers(1, 20)) if number % 2 else int(rng.integers(1, 130))
    given = dict(one({}, {"causal": "upper_left"}, {"causal": "lower_right", "window": 37}))
    dtype = str(one("float16", "bfloat16", "float", "double", "TF32"))
    given, dtype = (given | DTYPES["TF32"], "float") if dtype == "TF32" else (given, dtype)
    shape = one((queries, keys), (1, 1, 1, keys), (2, 1, queries, keys), (2, group * kv_heads, queries, keys))
    mask = one(None, ("bool", shape), ("float", shape), (dtype, shape))
    sizes = (2, group * kv_heads, kv_heads, queries, keys, size, size)
    case = case_of(
      f"random {seed} {number}", dtype, sizes, str(layout), mask, masked_rows=str(one("nan", "zero")), **given
    )
    check(case, run(make(case.model()), case))


@parametrize("session", ["0", "1"])
@parametrize("said", [None, 0, 1])
def test_tf32_only_where_it_is_allowed(session, said):
  """Rounded to the nearest, it leaves no bias in what values of one sign become."""
  case = case_of(
    "of one sign", "float", (2, 4, 197, 300, 64), "merged", **({} if said is None else {"allow_tf32": said})
  )
  feeds = {name: np.abs(each) + 1 if name == "v" else each for name, each in case.feeds().items()}
  (found,) = host(ortplugin.run(make(case.model(), use_tf32=session), feeds))
  (wanted,) = OPERATOR.reference(case.node(), list(feeds.values()), rounded=False)
  error = found / wanted - 1
  is_allowed = session == "1" if said is None else bool(said)
  assert 2e-5 < np.abs(error).max() < 2e-3 if is_allowed else np.abs(error).max() < 5e-6
  assert abs(error.mean()) < 2e-5


def test_float32_by_three_products_of_tf32():
  """Keys that end within a tile; values that are not finite, or almost."""
  sizes = [(keys, size) for keys in (1, 7, 49, 197, 257) for size in (8, 40, 64, 72, 128)]
  for number, (keys, size) in enumerate(sizes):
    given = ({}, {"causal": "upper_left"}, {"mask": ("float", (2, 1, 1, keys))})[number % 3]
    case = case_of(f"exact, {keys} keys, {size}", "float", (2, 3, keys, keys, size), masked_rows="zero", **given)
    feeds = case.feeds()
    if not given:
      feeds["v"][0, 0, 0, :4] = np.nan, np.inf, -np.inf, 3.4e38
    found = host(ortplugin.run(make(case.model()), feeds))
    # What is left out of each of so few products, below 2^-20 of it, shows where 3.4e38 has a tiny weight.
    check(case, found, unit=2.0**-22, inputs=list(feeds.values()))


@parametrize("name", CHOSEN)
def test_runs_are_bit_identical(name):
  check_repeats(by_name[name])


@parametrize("name", CHOSEN)
def test_tensors_may_start_anywhere(name):
  """At a multiple of its elements' size, not of 16 bytes: inputs, the output, both."""
  case = by_name[name]
  tensors = SimpleNamespace(model=case.model, inputs=lambda: list(case.feeds().values()))  # packed ones once
  like = OPERATOR.reference(case.node(), case.inputs())
  offsets = [([1, 2, 3, 5], [0]), ([0], [1]), ([3, 0, 0, 1], [5]), ([0, 0, 0, 1], [0])]
  check_addresses(tensors, lambda found: check(case, found), offsets, like)


@parametrize("name", CHOSEN)
def test_a_cuda_graph_gives_the_same_bits(name):
  check_replays(by_name[name])


def test_a_stream_of_the_callers():
  case = by_name["large: BERT, float"]
  check_stream(case.model(), trial_of(case, check))


SHAPES = [["b", "s", "c"], ["b", "t", "c"], ["b", "t", "c"]]


def sized(name, batch, queries, keys):
  return case_of(name, "float16", (batch, 3, queries, keys, 16), "merged", causal="lower_right")


def test_shapes_may_change_from_run_to_run():
  session = make(sized("any", 1, 1, 1).model(SHAPES))
  for sizes in ((2, 5, 7), (1, 65, 130), (0, 1, 1), (2, 0, 4), (2, 3, 0), (2, 5, 7), (64, 300, 300)):
    case = sized(f"changing {sizes}", *sizes)
    check(case, run(session, case))


def test_a_cache_grows_from_run_to_run():
  """A prompt, then tokens: what is present is the past of the next run, in one session."""
  session = make(growing(0, 1).model(GROWING))
  past = 0
  given = []
  for rows in (40, 1, 1, 3, 1, 120, 1):
    case = growing(past, rows)
    inputs = [*case.inputs()[:5], *(given or case.inputs()[5:])]
    found = host(ortplugin.run(session, dict(zip(case.names, inputs, strict=True))))
    check(case, found, inputs=inputs)
    past, given = past + rows, found[1:]


@parametrize("name", WRITTEN)
def test_a_cache_is_written_in_place(name):
  """What is present has the memory of the past; also in a graph's replays, whose position the caller writes there."""
  case = by_name[name]
  session = make(case.model(), enable_cuda_graph=True)
  arrays = [cupy.asarray(case.feeds()[value.name]) for value in session.get_inputs()]
  given = dict(zip((value.name for value in session.get_inputs()), arrays, strict=True))
  (y, *_) = OPERATOR.reference(case.node(), case.inputs())
  outputs = [cupy.zeros(y.shape, y.dtype), given["past_key"], given["past_value"]]
  binding = bind(session, arrays, outputs)
  starts, added = case.position
  for position in (starts, starts, [case.past - added] * len(starts)):
    given["position"][:] = cupy.asarray(position)
    inputs = [cupy.asnumpy(given[name]) for name in case.names]
    cupy.cuda.get_current_stream().synchronize()
    session.run_with_iobinding(binding)
    check(case, [cupy.asnumpy(each) for each in outputs], inputs=inputs)


def test_a_cache_that_our_kernels_have_just_written():
  """A cache is read before the kernels in front have ended, unless they write it or the position."""
  case = by_name["large: GPT-2, written, float16"]
  node, nodes = case.node(), []
  for name in ("position", "past_key", "past_value"):
    dtype = "int64" if name == "position" else "float16"
    program = f"({dtype} x) => ({dtype} y) {{ n = Neg(x) y = Neg(n) }}"
    nodes.append(make_node("FusedPointwise", [name], [f"{name} again"], domain=DOMAIN, program=program))
    node.input[list(node.input).index(name)] = f"{name} again"
  given = [replace(case, name=f"{case.name}, {number}") for number in range(4)]
  check_graph(case.model_of([*nodes, node]), [Trial(each.feeds()) for each in given])


def captured():
  first, later = (trial_of(sized(f"captured {keys}", 2, 30, keys), check) for keys in (30, 500))
  return sized("new", 1, 1, 1).model(SHAPES), first, later


def test_new_shapes_under_capture_are_refused():
  check_capture(captured, "attention")


def test_many_threads_run_one_session():

  def trial(number):
    sizes = (4, 200, 200) if number % 2 else (1 + number, 7 * number + 1, 33)
    return trial_of(sized(f"thread {number}", *sizes), check)

  check_threads(sized("threads", 1, 1, 1).model(SHAPES), trial)


@parametrize("dtype", ["float16", "float"])
def test_more_than_two_to_the_31_elements(dtype):
  """Keys and values at the end of packed tensors that are larger; the last elements show."""
  need_memory(24 if dtype == "float" else 12)
  batch, keys, heads, size = 3, 1 << 17, 48, 128
  node = case_of("far", dtype, (batch, heads, heads, 1, keys, size, size), "merged").node()
  stored = NUMPY_DTYPES[dtype]  # NumPy's own "float" has 64 bits
  x = cupy.zeros((batch, keys, heads * size), stored)
  assert x.size > 1 << 31
  x[-1, -1, -size:] = 1
  q = cupy.ones((batch, 1, heads * size), stored)
  q *= 8
  y = cupy.zeros(q.shape, stored)
  node.input[:] = ["q", "x", "x"]
  run_bound(make(model_with([node], [("q", dtype, q.shape), ("x", dtype, x.shape)], [("y", dtype)])), [q, x], [y])
  # The last key of the last head has the score 8 sqrt(size) and the value 1, all others have 0.
  last = np.exp(8 * np.sqrt(size))
  wanted = np.zeros(q.shape)
  wanted[-1, 0, -size:] = last / (last + keys - 1)
  np.testing.assert_allclose(cupy.asnumpy(y).astype(np.float64), wanted, 2e-3, 1e-6)
