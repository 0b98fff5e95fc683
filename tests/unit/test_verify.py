import os
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx_models import ones, parametrize, parsed, raises, zeros

from ortplugin.check import timing
from ortplugin.check.compare import Tolerance, compare, compare_form
from ortplugin.check.inputs import CANDIDATES, Sizes, generate, load_inputs, required_inputs
from ortplugin.errors import UsageError
from ortplugin.optimizer import find_guilty
from ortplugin.report import GRAPH

SIZES = Sizes(batch=2, sequence=16, past=3, image=64, other=4)
FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]


def passed(expected, actual, **tolerance):
  return compare("y", expected, actual, Tolerance(**tolerance)).passed


# ---- comparator


@parametrize("dtype", FLOATS)
def test_equal_outputs_agree(dtype):
  values = np.array([0, -0.0, 1, -2.5, np.inf, -np.inf, np.nan, 1e-6], dtype)
  result = compare("y", values, values.copy())
  assert result.passed
  assert result.max_abs_error == 0
  assert result.max_rel_error == 0
  assert result.message == ""


@parametrize("dtype", FLOATS)
@parametrize(
  "expected, actual",
  [
    ([1, np.nan], [1, 2]),  # a missing NaN, which ONNX Runtime's own comparator once let pass
    ([1, 2], [1, np.nan]),
    ([np.nan, 1], [1, np.nan]),
    ([np.nan, np.nan], [np.nan, 0]),
    ([np.inf, 1], [-np.inf, 1]),
    ([np.inf, 1], [60000, 1]),
    ([60000, 1], [np.inf, 1]),
    ([np.inf, 1], [np.nan, 1]),
    ([-np.inf, 1], [1, -np.inf]),
    ([1, 2], [1, 3]),
    ([0, 0], [0, 0.5]),
    ([1, 1], [-1, 1]),
  ],
)
def test_different_outputs_fail(dtype, expected, actual):
  result = compare("y", np.array(expected, dtype), np.array(actual, dtype))
  assert not result.passed
  assert result.message


@parametrize("dtype", FLOATS)
def test_one_wrong_element_among_many_fails(dtype, rng):
  values = rng.standard_normal((64, 256)).astype(dtype)
  wrong = values.copy()
  wrong[17, 99] += np.asarray(4, dtype)
  result = compare("y", values, wrong)
  assert not result.passed
  assert "[17, 99]" in result.message
  assert 3.5 < result.max_abs_error < 4.5


@parametrize(
  "dtype, fine, wrong",
  [(np.float16, 3e-3, 5e-2), (ml_dtypes.bfloat16, 1e-2, 3e-1), (np.float32, 1e-5, 1e-3), (np.float64, 1e-10, 1e-6)],
)
def test_rounding_noise_agrees_and_more_fails(dtype, fine, wrong, rng):
  """Noise as a fraction of the largest value."""
  values = rng.standard_normal(1000)
  noise = rng.uniform(-1, 1, 1000) * np.abs(values).max()
  assert passed(values.astype(dtype), (values + fine * noise).astype(dtype))
  assert not passed(values.astype(dtype), (values + wrong * noise).astype(dtype))


def test_an_error_is_measured_against_the_outputs_scale():
  assert passed(np.float32([1000, 0]), np.float32([1000, 0.05]))
  assert not passed(np.float32([1, 0]), np.float32([1, 0.05]))


def test_the_filling_of_a_mask_does_not_widen_the_tolerance():
  for dtype in (np.float16, np.float32, ml_dtypes.bfloat16):
    lowest = ml_dtypes.finfo(dtype).min
    expected = np.array([lowest, 1.0, 2.0]).astype(dtype)
    actual = np.array([lowest, 1.0, 3.0]).astype(dtype)
    assert not passed(expected, actual)


def test_shape_and_dtype_must_be_the_same():
  given = ones(2, 3)
  assert "shape" in compare("y", given, given.reshape(3, 2)).message
  assert "shape" in compare("y", given, ones(1, 2, 3)).message
  assert "shape" in compare("y", np.float32(1), ones(1)).message
  assert "dtype" in compare("y", given, given.astype(np.float64)).message
  assert "dtype" in compare("y", given.astype(np.int32), given.astype(np.int64)).message
  assert not passed(ones(0, 3), ones(0, 4))


def test_empty_outputs_agree():
  assert passed(ones(0, 3), ones(0, 3))
  assert passed(np.ones((0,), np.int64), np.ones((0,), np.int64))


@parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint64, np.bool_])
def test_integers_and_booleans_must_be_equal(dtype):
  values = np.array([0, 1, 1], dtype)
  assert passed(values, values.copy())
  result = compare("y", values, np.array([0, 1, 0], dtype), Tolerance(10, 10))  # no tolerance holds for them
  assert not result.passed
  assert "[2]" in result.message


def test_integers_beyond_the_precision_of_a_double():
  big = np.int64([2**62])
  result = compare("y", big, -big - 1)
  assert not result.passed
  assert result.max_abs_error == float(2**63 + 1)
  assert not passed(big, big + 1)


@parametrize("dtype", [*FLOATS, np.uint8, np.int64, np.uint64])
def test_what_lies_beyond_the_first_block_is_compared(dtype, patch):
  """Large outputs are compared block by block; scale, masks and the worst element are those of the whole."""
  patch("ortplugin.check.compare._BLOCK", 16)
  values = (np.arange(99) % 7 + 1).reshape(9, 11).astype(dtype)
  assert passed(values, values.copy())
  wrong, exact = values.copy(), np.dtype(dtype).kind in "iu"
  wrong[2, 3], wrong[8, 9] = values[2, 3] + 1, values[8, 9] + 3
  result = compare("y", values, wrong)
  assert not result.passed
  assert result.max_abs_error == 3
  assert result.message.startswith("2 of 99 differ")
  assert ("[2, 3]" if exact else "[8, 9]") in result.message
  if exact:
    return
  for value, words in ((np.nan, "1 NaN are expected, got 2"), (-np.inf, "1 -Inf are expected, got 2")):
    expected, found = values.copy(), values.copy()
    expected[0, 0] = found[0, 0] = value
    assert passed(expected, found)
    found[7, 1] = value
    assert compare("y", expected, found).message.startswith(f"{words}; first difference at [7, 1]")
  large = values.copy()
  large[8, 10] = 1000  # the scale of the first block, too
  close = large.copy()
  close[0, 0] += np.asarray(0.03, dtype)
  assert passed(large, close) == (dtype != np.float64)


def test_comparing_takes_little_memory_besides():
  """Copies in float64, masks and lists of integers took 60 times an output of uint8."""
  rng = np.random.default_rng(0)
  for one, other in (
    (rng.integers(0, 255, 2**24, np.uint8), rng.integers(0, 255, 2**24, np.uint8)),
    (rng.standard_normal(2**22, np.float32), rng.standard_normal(2**22, np.float32)),
  ):
    tracemalloc.start()
    compare("y", one, other)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**25


@parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64, np.uint64])
def test_the_largest_difference_of_integers_is_exact(dtype):
  low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
  expected, actual = np.array([1, low, high, 5], dtype), np.array([1, high, low, 3], dtype)
  assert compare("y", expected, actual).max_abs_error == float(int(high) - int(low))


def test_strings_must_be_equal():
  words = np.array(["a", "b"], dtype=object)
  assert passed(words, np.array(["a", "b"]))
  assert not passed(words, np.array(["a", "c"], dtype=object))


def test_sequences_and_maps():
  first, second = np.float32([1, 2]), np.int64([3])
  assert passed([first, second], [first.copy(), second.copy()])
  assert not passed([first, second], [first])
  assert not passed([first], first)
  assert not passed([first, second], [first, second + 1])
  assert passed([{"a": 1.0}], [{"a": 1.0}])
  assert not passed([{"a": 1.0}], [{"b": 1.0}])
  assert not passed([{1: 1.0, 2: 0.5}], [{1: 1.0, 2: 0.75}])
  assert passed(None, None)
  assert not passed(None, first)
  assert not passed(first, None)


def test_complex_numbers():
  values = np.array([1 + 1j, 2 - 1j], np.complex64)
  assert passed(values, values.copy())
  assert not passed(values, values.conj())


def test_the_users_tolerances_replace_the_defaults():
  expected, actual = np.float32([100, 1]), np.float32([101, 1])
  assert not passed(expected, actual)
  assert passed(expected, actual, rtol=0.02)
  assert passed(expected, actual, atol=1.5)
  assert not passed(expected, np.nextafter(expected, np.float32(1e9)), rtol=0, atol=0)
  assert passed(expected, expected.copy(), rtol=0, atol=0)


def test_nothing_finite_is_remarked_upon():
  result = compare("y", np.float32([np.nan, np.nan]), np.float32([np.nan, np.nan]))
  assert result.passed
  assert "no element is finite" in result.message


def test_random_outputs_are_compared_by_form():
  one, other = zeros(3), ones(3)
  assert compare_form("y", one, other).passed
  assert "other values" in compare_form("y", one, other).message
  assert not compare_form("y", one, ones(4)).passed


@parametrize("guilty", [1, 2, 7, 99, 100])
def test_bisection_finds_the_first_change_that_fails(guilty):
  asked = []

  def passes_with(limit):
    asked.append(limit)
    return limit < guilty

  assert find_guilty(100, passes_with) == guilty
  assert len(asked) <= 9


def test_bisection_when_nothing_is_to_blame():
  assert find_guilty(10, lambda limit: False) is None


def test_times_are_taken_in_turns(patch):
  calls = []
  patch(timing, "time", SimpleNamespace(perf_counter=lambda: sum(calls)))
  fast, slow, tiny = (lambda count, each=each: calls.extend([each] * count) for each in (0.004, 0.006, 0.0005))
  found = timing.time_in_turns(fast, slow, GRAPH)
  assert (found.mode, found.loses) == (GRAPH, True)
  assert (found.original_ms, found.optimized_ms) == pytest.approx((4, 6))
  assert calls.count(0.004) == calls.count(0.006) >= 50
  assert calls[-4:] in ([0.004, 0.006, 0.006, 0.004], [0.006, 0.004, 0.004, 0.006])
  assert not timing.time_in_turns(slow, fast).loses
  calls.clear()
  assert timing.time_in_turns(tiny, fast).original_ms == pytest.approx(0.5)
  assert calls.count(0.0005) == calls.count(0.004) < 150, "a turn is no longer than the slower needs"


@parametrize("optimized, loses", [([1.01] * 8, 0), ([1.03] * 8, 1), ([0.9] * 3 + [1.1] * 5, 0)])
def test_a_loss_is_more_than_the_margin_and_the_spread(optimized, loses):
  assert timing.is_loss([(1.0, each) for each in optimized]) == loses


# ---- inputs


def model_of(inputs, nodes, outputs="float[] y", **weights):
  return parsed(f"({inputs}) => ({outputs}) {{ {nodes} }}", weights=weights)


def test_indices_stay_within_their_table():
  values = generate(model_of("int64[50,50] i", "y = Gather(t, i)", t=zeros(7, 300)), SIZES).feeds["i"]
  assert values.dtype == np.int64
  assert values.min() == 0
  assert values.max() == 6


def test_indices_are_distinct_where_they_can_be():
  """A scatter that meets an element twice may give what it likes."""
  inputs = "float[20,4] data, int64[15,1] rows, float[15,4] a, int64[30,4] at, float[30,4] b"
  nodes = "y = ScatterND(data, rows, a) z = ScatterElements<axis=0>(data, at, b)"
  feeds = generate(model_of(inputs, nodes, "float[20,4] y, z"), CANDIDATES[0]).feeds
  rows, at = feeds["rows"], feeds["at"]
  assert len(set(rows.flat)) == 15
  assert 0 <= rows.min() <= rows.max() < 20
  assert set(at.flat) == set(range(20)), "30 do not fit in 20: each occurs"
  assert all(len(set(at[first : first + 20, column])) == 20 for first in range(11) for column in range(4))


def test_indices_are_traced_through_arithmetic_and_bodies():
  """position + 2 indexes a table of 10, as in OPT; a body reads the input by its name."""
  model = model_of(
    "int32[40,40] i",
    """c = Cast <to=7>(i)  u = Unsqueeze(c, axis)  moved = Add(two, u)
      y = If(flag) <body () => (float[] o) { o = Gather(t, moved) },
                     body () => (float[] o) { o = Gather(t, moved) }>""",
    t=zeros(10, 4),
    axis=np.int64([0]),
    two=np.int64(2),
    flag=np.bool_(True),
  )
  values = generate(model, SIZES).feeds["i"]
  assert values.dtype == np.int32
  assert values.min() == 0
  assert values.max() == 7


def test_the_smallest_table_and_the_given_axis_decide():
  nodes = "x = Gather <axis=1>(a, i)  j = Sub(i, one)  y = GatherElements <axis=0>(b, j)"
  tables = {"a": zeros(2, 9), "b": zeros(5, 60), "one": np.int64(1)}
  values = generate(model_of("int64[60,60] i", nodes, "float[] x, y", **tables), SIZES).feeds["i"]
  assert values.min() == 1
  assert values.max() == 5


def test_a_table_of_unknown_length_gets_its_first_entry():
  assert generate(model_of("float[n,4] t, int64[batch,seq] i", "y = Gather(t, i)"), SIZES).feeds["i"].max() == 0


def test_masks_have_no_empty_row():
  model = model_of("int64[40,12] attention_mask", "y = Cast <to=1>(attention_mask)")
  mask = generate(model, SIZES).feeds["attention_mask"]
  assert set(np.unique(mask)) == {0, 1}
  assert (mask[:, :6] == 1).all()
  assert (np.diff(mask, axis=1) <= 0).all()


def test_no_text_ends_before_its_cache_where_that_is_open_then():
  node = "s = ReduceSum<keepdims=0>(attention_mask, o)  n = Sub(s, o)  l = Cast<to=6>(n)  t = int32 {7}"
  node += "  y, k, v = com.microsoft.GroupQueryAttention<num_heads=1, kv_num_heads=1>(q, q, q, p, p, l, t)"
  inputs = "float[3,1,8] q, float[3,1,9,8] p, int64[3,7] attention_mask"
  text = f"({inputs}) => (float[3,1,8] y) <int64[1] o = {{1}}> {{ {node} }}"
  feeds = generate(parsed(text, domains=["com.microsoft"]), SIZES).feeds
  assert feeds["attention_mask"].all()
  assert feeds["p"][:, :, :7].all()
  assert not feeds["p"][:, :, 7:].any()


@parametrize("dtype", ["float16", "bfloat16", "double", "bool", "string", "uint8", "int8", "complex64", "float8e4m3fn"])
def test_every_dtype(dtype):
  value = generate(model_of(f"{dtype}[2,3,4] x", "y = Identity(x)"), SIZES).feeds["x"]
  assert value.shape == (2, 3, 4)
  assert value.dtype == np.dtype(helper.tensor_dtype_to_np_dtype(TensorProto.DataType.Value(dtype.upper())))


def test_dynamic_dimensions_agree_across_inputs():
  model = model_of(
    """int64[batch_size,sequence_length] input_ids, int64[batch_size,total] mask,
      float[batch_size,4,past_sequence_length,8] past, float[?,3,?,?] pixels, float[twice,third,code] odd""",
    "y = Identity(past)",
  )
  texts = {
    "total": "past_sequence_length + sequence_length",
    "twice": "2*sequence_length",
    "third": "sequence_length // 3",
    "code": "import os",
  }
  for dim in (dim for value in model.graph.input for dim in value.type.tensor_type.shape.dim if dim.dim_param in texts):
    dim.dim_param = texts[dim.dim_param]
  case = generate(model, SIZES)
  assert {name: value.shape for name, value in case.feeds.items()} == {
    "input_ids": (2, 16),
    "mask": (2, 19),
    "past": (2, 4, 3, 8),
    "pixels": (2, 3, 64, 64),
    "odd": (32, 5, 4),
  }
  assert "batch_size=2" in case.name
  fixed = generate(model, SIZES, {"input_ids": (5, 7)})
  assert fixed.feeds["mask"].shape == (5, 10)
  assert fixed.feeds["past"].shape[0] == 5


def test_inputs_are_the_same_each_time_and_differ_by_seed():
  model = model_of("float[8] x, z", "y = Identity(x)")
  first, again, other = generate(model, SIZES), generate(model, SIZES), generate(model, SIZES, seed=1)
  assert (first.feeds["x"] == again.feeds["x"]).all()
  assert (first.feeds["x"] != other.feeds["x"]).any()
  assert (first.feeds["x"] != first.feeds["z"]).any()


def test_initializers_are_not_fed():
  model = model_of("float[3] x, w", "y = Add(x, w)", w=np.ones(3))
  assert [value.name for value in required_inputs(model)] == ["x"]


def test_absurd_shapes_are_refused_before_allocating():
  model = model_of(f"float[{2**31},{2**31}] x", "y = Identity(x)")
  with raises(UsageError, "too large"):
    generate(model, SIZES)


def test_an_input_without_a_shape_asks_for_one():
  model = model_of("float[] x", "y = Identity(x)")
  with raises(UsageError, "--input-shape x:"):
    generate(model, SIZES)
  assert generate(model, SIZES, {"x": (2, 5)}).feeds["x"].shape == (2, 5)


def test_sequences_are_generated_and_optional_inputs_left_out():
  model = model_of("seq(float[2,3]) s, optional(float[]) o", "y = SequenceAt(s, zero)", zero=np.int64(0))
  feeds = generate(model, SIZES).feeds
  assert list(feeds) == ["s"]
  assert [part.shape for part in feeds["s"]] == [(2, 3), (2, 3)]


def test_candidates_differ():
  assert len(set(CANDIDATES)) == len(CANDIDATES)


# ---- the user's inputs


def two_inputs():
  return model_of("float[n,3] x, int64[batch,seq] i", "y = Identity(x)")


def test_npz_files_are_read(tmp_path):
  path = tmp_path / "data.npz"
  np.savez(path, x=ones(4, 3), i=np.ones((1, 2), np.int64))
  case = load_inputs(path, two_inputs())
  assert case.name == str(path)
  assert case.feeds["x"].shape == (4, 3)


def test_npz_files_keep_bfloat16(tmp_path):
  values = np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16)
  np.savez(tmp_path / "data.npz", x=values)
  model = model_of("bfloat16[2,3] x", "y = Identity(x)")
  assert (load_inputs(tmp_path / "data.npz", model).feeds["x"] == values).all()


@parametrize(
  "arrays, words",
  [
    ({"x": np.ones((4, 3))}, "float64"),
    ({"x": ones(4, 4)}, "shape"),
    ({"x": ones(3)}, "shape"),
    ({"x": ones(4, 3)}, "'i' is missing"),
    ({"xx": np.ones(3)}, "did you mean x"),
  ],
)
def test_wrong_arrays(tmp_path, arrays, words):
  np.savez(tmp_path / "data.npz", **arrays)
  with raises(UsageError, rf"^.*{words}.*\Z"):  # one line
    load_inputs(tmp_path / "data.npz", two_inputs())


def test_a_small_file_with_large_arrays_is_refused(tmp_path, monkeypatch):
  path = tmp_path / "data.npz"
  np.savez_compressed(path, x=zeros(2**18, 3), i=np.ones((1, 2), np.int64))
  assert path.stat().st_size < 2**14
  monkeypatch.setattr("ortplugin.check.inputs.free_memory", lambda: 4 * 2**20)
  with raises(UsageError, "too much for this machine's memory"):
    load_inputs(path, two_inputs())
  monkeypatch.undo()
  assert load_inputs(path, two_inputs()).feeds["x"].shape == (2**18, 3)


def test_what_is_no_regular_file_is_refused(tmp_path):
  os.mkfifo(tmp_path / "pipe.npz")
  for path in (tmp_path, tmp_path / "pipe.npz"):
    with raises(UsageError, "no regular file"):
      load_inputs(path, two_inputs())


def test_python_objects_are_never_unpickled(tmp_path):
  class Bomb:
    def __reduce__(self):
      return (Path(tmp_path / "exploded").touch, ())

  np.savez(tmp_path / "data.npz", x=np.array([Bomb()], dtype=object))
  with raises(UsageError, "without Python objects"):
    load_inputs(tmp_path / "data.npz", two_inputs())
  assert not (tmp_path / "exploded").exists()


def test_files_that_are_no_npz(tmp_path):
  (tmp_path / "text.npz").write_text("hello")
  (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04")
  np.save(tmp_path / "one.npy", np.ones(3))
  for name in ("text.npz", "cut.npz", "one.npy", "none.npz"):
    with raises(UsageError, rf"^.*{name}.*\Z"):  # one line
      load_inputs(tmp_path / name, two_inputs())
