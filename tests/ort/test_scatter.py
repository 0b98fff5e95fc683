"""ScatterND, ScatterElements and UpdateSlice in ONNX Runtime on the CPU: equal to their reference bit for bit, to their
decomposition and to ORT's own operators; in place where that is granted and right where it is not; and what happens
with nodes and inputs that are wrong."""

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from node_cases import OPSET, bits
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx_models import built, infos, one_in, ones, parametrize, parsed, raises
from scatter_cases import CASES, FLOATING, by_name, check, check_any_order, elements, expect, nd, window
from threads import in_threads

import ortplugin
from ort.host import CPU_ONLY, assert_inferred, make, options, run_one as run
from ort.refusals import assert_refused_in_time, refusals_of
from ortplugin.graph import DOMAIN
from ortplugin.ops import find


@parametrize("case", CASES)
def test_equals_the_reference(case):
  session = make(case.model())
  assert session.get_outputs()[0].shape == list(case.shapes[0])
  check(case, run(session, case))


# ---- ORT's own operators, as the oracle

# What ONNX Runtime's CPU provider lacks, by words of its message.
LACKS = ("NOT_IMPLEMENTED", "not supported with Scatter", "type is not supported")


def theirs(nodes, case):
  """The output of a model of standard nodes, without the library; None where ONNX Runtime lacks a kernel.

  One thread: of several updates of one element the last one then stays here too.
  """
  made = onnxruntime.SessionOptions()
  made.log_severity_level = 4
  made.intra_op_num_threads = 1
  try:
    return run(onnxruntime.InferenceSession(case.model(nodes=nodes), made, providers=CPU_ONLY), case)
  except Exception as error:
    if any(words in str(error) for words in LACKS):
      return None
    raise


def test_the_decompositions_run_without_the_library():
  """Bit for bit, but for 16-bit sums, which ORT rounds at each step or lacks, and the signs of zeros and NaN."""
  compared = {}
  for case in CASES:
    if "float8" in case.dtype:  # no standard scatter has it
      continue
    got = theirs(find(DOMAIN, case.op).decompose(case.node(), OPSET), case)
    if got is None or (case.reduction in ("min", "max") and case.dtype in FLOATING):
      continue
    if case.reduction in ("add", "mul") and case.dtype in ("float16", "bfloat16"):
      continue
    check(case, got)
    compared[case.op] = compared.get(case.op, 0) + 1
  assert compared["ScatterND"] > 80
  assert compared["ScatterElements"] > 80
  assert compared["UpdateSlice"] > 60


@parametrize("reduction", ["none", "add", "mul", "min", "max"])
@parametrize("dtype", ["float", "double", "int32", "int64", "uint8"])
def test_equals_the_runtimes_own_operators(dtype, reduction):
  given = {} if reduction == "none" else {"reduction": reduction}
  values = "near one" if dtype in FLOATING else "bits"
  compared = 0
  for case in (
    nd("own", (17, 5, 33), (40, 2), dtype, "few", values, **given),
    nd("own rows", (17, 5, 33), (9, 1), dtype, "mixed", values, **given),
    elements("own", (17, 5, 33), (17, 9, 20), dtype, "mixed", values, axis=1, **given),
    elements("own line", (301,), (500,), dtype, "mixed", values, axis=-1, **given),
  ):
    own = case.node()
    own.domain = ""
    wanted = theirs([own], case)
    if wanted is None:
      continue
    assert (bits(run(make(case.model()), case)) == bits(wanted)).all(), case.name
    compared += 1
  assert compared >= 2


@parametrize("dtype", FLOATING)
def test_sums_in_any_order_stay_within_their_bound(dtype):
  """deterministic=0 on the CPU takes the same order; the bound is the one that a GPU's atomics are held to."""
  for case in (
    nd("loose", (31, 5), (2000, 1), dtype, "few", "spread", reduction="add", deterministic=0),
    elements("loose", (7, 23), (7, 1000), dtype, "mixed", "spread", axis=1, reduction="add", deterministic=0),
  ):
    check_any_order(case, run(make(case.model()), case))
    check(case, run(make(case.model()), case))


@parametrize("algorithm", ["auto", "sequential", "parallel", "sorting"])
def test_the_algorithm_is_the_gpus(algorithm):
  case = by_name["nd add of few, float16"].with_attributes(algorithm=algorithm)
  check(case, run(make(case.model()), case))


LARGE = (
  nd("a million of many", (1 << 20,), (1 << 20, 1)),
  nd("a million, added", (1 << 19,), (1 << 20, 1), "float", "mixed", "spread", reduction="add"),
  nd("a million halves, added", (1 << 19,), (1 << 20, 1), "float16", "mixed", "spread", reduction="add"),
  nd("few of many halves, added", (1 << 22,), (1 << 15, 1), "bfloat16", "mixed", "spread", reduction="add"),
  nd("rows, added", (1 << 12, 100), (1 << 14, 1), "float", "mixed", "spread", reduction="add"),
  nd("rows of halves", (1 << 12, 300), (1 << 12, 1), "float16", "mixed", "spread", reduction="add"),
  nd("three components", (64, 128, 32), (1 << 17, 3), "int16"),
  nd("wide rows", (999, 256, 7, 7), (49, 1)),
  elements("columns", (513, 1025), (700, 1025), "float", axis=0),
  elements("rows of three", (30001, 3), (50001, 3), "double", axis=0),
  elements("a middle axis", (33, 65, 257), (33, 100, 257), "float", "mixed", "spread", axis=1, reduction="add"),
  elements("one index a row", (3001, 257), (5001, 257), "float", indices=(5001, 1), axis=0),
  elements("one index a column", (1025, 513), (1025, 1500), "uint8", indices=(1, 1500), axis=1),
  window("columns", (3001, 1023), (3001, 300), (-700,), axes=[1], steps=[2]),
  window("a cache", (8, 16, 1025, 64), (8, 16, 3, 64), (-3,), "float16", axes=[2]),
)


@one_in(3)
@parametrize("threads", [1, 2, 5])
@parametrize("case", LARGE)
def test_large_ones_on_any_number_of_threads(case, threads):
  made = options()
  made.intra_op_num_threads = threads
  check(case, run(onnxruntime.InferenceSession(case.model(), made, providers=CPU_ONLY), case))


def test_many_threads_run_one_session():
  """Each with shapes and values of its own, over and over."""
  first = nd("", (8, 8), (4, 1), "float16", "few", "spread", reduction="add")
  session = make(first.model([("n", "w"), ("k", 1), ("k", "w")]))

  def work(number):
    rows, width = 5 + 400 * number, (3, 129, 1023, 1)[number % 4]
    case = nd(f"thread {number}", (rows, width), (3 * rows, 1), "float16", "mixed", "spread", reduction="add")
    feeds, wanted = case.feeds(), expect(case)
    for _ in range(8):
      check(case, session.run(None, feeds)[0], wanted)

  in_threads(8, work)


# ---- shape inference


@parametrize(
  "case, shapes, wanted",
  [
    (nd("", (4, 3), (2, 1)), [("n", 3), ("k", 1), ("k", 3)], ["n", 3]),
    (nd("", (4, 3), (2, 1)), [(4, 3), None, None], [4, 3]),
    (nd("", (4, 3), (2, 1)), [("n", "n"), (2, 1), None], ["n", "n"]),
    (elements("", (4, 3), (2, 3)), [("n", "m"), ("k", 1), ("k", "m")], ["n", "m"]),
    (elements("", (4, 3), (2, 3)), [(4, None), (2, 3), (2, 3)], [4, None]),
    (window("", (4, 3), (2, 3), (0,), axes=[0]), [("past", 3), ("new", 3), (1,)], ["past", 3]),
    (window("", (4, 3), (2, 3), (0,), axes=[0]), [(4, 3), ("new", 3), ()], [4, 3]),
  ],
)
def test_shapes_are_inferred(case, shapes, wanted):
  for dtype in ("float16", "bfloat16", "float", "int64", "bool"):
    (output,) = make(replace(case, dtype=dtype).model(shapes)).get_outputs()
    assert_inferred(output, wanted, dtype)


def test_unknown_shapes_are_known_at_the_run():
  session = make(nd("", (4, 3), (2, 1)).model([None, None, None]))
  for case in (nd("a", (4, 3), (2, 1)), nd("b", (5, 2, 7), (3, 2, 2)), nd("c", (9,), (1,)), nd("d", (0, 2), (0, 1))):
    check(case, run(session, case))


# ---- in place


@dataclass(frozen=True)
class Place:
  """A graph around a scatter: nodes that make 'data' and nodes that use it.

  Data is [rows, 1024] floats. `tensors`: how many of its size ONNX Runtime's memory must hold at once, which is one
  less where the scatter takes over data's memory. A caller's arrays and initializers lie elsewhere.
  """

  before: str
  after: str
  outputs: tuple[str, ...]
  tensors: int
  has_weight: bool = False
  is_known: bool = True  # whether the shapes are

  def model(self, rows):
    size = rows if self.is_known else "rows"
    inputs = f"float{[1, 1] if self.before else f'[{size},1024]'} x, int64[3,1] indices, float[3,1024] updates"
    weights = {"one": np.array([1])}
    if self.is_known:
      weights["shape"] = np.array([rows, 1024])
    else:
      inputs += ", int64[2] shape"
    if self.has_weight:
      weights["weight"] = ones(rows, 1024)
    graph = f"g ({inputs}) => () {{ {self.before} {self.after} }}"
    model = parsed(graph, OPSET, 10, domains=[DOMAIN], weights=weights)
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in self.outputs)
    model.graph.value_info.extend(infos({"y": ("float", [size, 1024])}))
    return model

  def feeds(self, rows):
    rng = np.random.default_rng(7)
    x = np.full((1, 1), 0.5, np.float32) if self.before else rng.standard_normal((rows, 1024), np.float32)
    feeds = {
      "x": x,
      "indices": np.int64([[1], [rows - 1], [1]]),
      "updates": rng.standard_normal((3, 1024), np.float32),
    }
    return feeds if self.is_known else {**feeds, "shape": np.int64([rows, 1024])}


MADE = "data = Expand(x, shape)"
WRITE = "y = ortplugin.ScatterND(data, indices, updates)"
MOST = "most = ReduceMax(y)"

PLACES = {
  "the last use": Place(MADE, f"{WRITE} {MOST}", ("most",), 1),
  "a slice": Place(MADE, f"y = ortplugin.UpdateSlice<axes=[0]>(data, updates, one) {MOST}", ("most",), 1),
  "a chain": Place(
    MADE,
    f"""u = ortplugin.ScatterND(data, indices, updates)
        v = ortplugin.UpdateSlice<axes=[0]>(u, updates, one)
        y = ortplugin.ScatterND(v, indices, updates) {MOST}""",
    ("most",),
    1,
  ),
  "the result is an output": Place(MADE, WRITE, ("y",), 2),
  "data is used afterwards": Place(MADE, f"{WRITE} {MOST} sum = Add(data, most) after = ReduceMax(sum)", ("after",), 2),
  "data is used before": Place(
    f"{MADE} before = ReduceMax(data)",
    f"new = Add(updates, before) y = ortplugin.ScatterND(data, indices, new) {MOST}",
    ("most",),
    1,
  ),
  "data is written twice": Place(
    MADE,
    f"""v = ortplugin.ScatterND(data, indices, updates)
        y = ortplugin.UpdateSlice<axes=[0]>(data, updates, one) {MOST} other = ReduceMax(v)""",
    ("most", "other"),
    2,
  ),
  "data is an output": Place(MADE, f"{WRITE} {MOST}", ("most", "data"), 2),
  "data is an input": Place("", f"y = ortplugin.ScatterND(x, indices, updates) {MOST}", ("most",), 1),
  "data is an initializer": Place(
    MADE, f"y = ortplugin.ScatterND(weight, indices, updates) {MOST}", ("most",), 1, has_weight=True
  ),
  "shapes are unknown": Place(MADE, f"{WRITE} {MOST}", ("most",), 2, is_known=False),
}

# Runs each model once in a memory of so many bytes; says what kept it from running.
TRY_IN = """
import json, sys, numpy, onnxruntime, ortplugin
limit, rows, places = json.loads(sys.stdin.readline())
onnxruntime.create_and_register_allocator(
    onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    ),
    onnxruntime.OrtArenaCfg({"max_mem": limit, "arena_extend_strategy": 1, "initial_chunk_size_bytes": 1024}),
)
for name, model in places:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.use_env_allocators", "1")
    options.enable_mem_pattern = False
    ortplugin.register(options)
    values = {
        "x": numpy.full((1, 1), 0.5, numpy.float32),
        "indices": numpy.array([[1], [2], [1]], numpy.int64),
        "updates": numpy.ones((3, 1024), numpy.float32),
        "shape": numpy.array([rows, 1024], numpy.int64),
    }
    try:
        session = onnxruntime.InferenceSession(bytes.fromhex(model), options, providers=["CPUExecutionProvider"])
        inputs = {each.name: each.shape for each in session.get_inputs()}
        if inputs["x"] != [1, 1]:
            values["x"] = numpy.ones(inputs["x"], numpy.float32)
        session.run(None, {name: values[name] for name in inputs})
        message = ""
    except Exception as error:
        message = str(error)
    print(json.dumps([name, message]), flush=True)
"""
ROWS = 2048


@pytest.fixture(scope="module")
def tensors_held(library):
  """Of each place the least number of tensors of data's size in which it runs, with room for a half of one more."""
  size = ROWS * 1024 * 4
  held = {}
  for count in range(4):
    left = [(name, place.model(ROWS).SerializeToString().hex()) for name, place in PLACES.items() if name not in held]
    done = subprocess.run(
      [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\n{TRY_IN}"],
      input=json.dumps([size * count + size // 2, ROWS, left]),
      capture_output=True,
      text=True,
      timeout=120,
    )
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
      name, message = json.loads(line)
      assert message == "" or "memory" in message, message
      if not message:
        held[name] = count
  return held


@one_in(2)
@parametrize("name", PLACES)
def test_a_copy_is_made_only_where_it_must(tensors_held, name):
  assert tensors_held[name] == PLACES[name].tensors


@parametrize("name", PLACES)
def test_outputs_are_right_in_place_and_out_of_it(name):
  place = PLACES[name]
  model = place.model(37)
  session, feeds = make(model), place.feeds(37)
  kept = {key: value.copy() for key, value in feeds.items()}
  expected = ReferenceEvaluator(ortplugin.restore(model)).run(None, feeds)
  for _ in range(3):
    for output, wanted in zip(session.run(None, feeds), expected, strict=True):
      np.testing.assert_array_equal(output, wanted)
    for key, value in kept.items():  # a caller's arrays are never written to
      np.testing.assert_array_equal(feeds[key], value)


# ---- wrong nodes and indices

F, D, L, J = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64, TensorProto.INT32
AT_RUN = (("a", "b"), ("c", "d"), ("e", "f"))


@dataclass(frozen=True)
class Wrong:
  """A node that must be refused: words of the message beside the names of operator and node.

  It is refused when the session is made, or at the run where something is `fed`: of each input its shape, a tuple,
  or its values.
  """

  words: str
  op: str = "ScatterND"
  given: tuple[tuple[str, Any], ...] = ()
  shapes: tuple[tuple[int | str, ...] | None, ...] = ((4, 3), (2, 1), (2, 3))
  dtypes: tuple[int, ...] = (F, L, F)
  fed: tuple[Any, ...] | None = None
  inputs: tuple[str, ...] | None = None  # of the node
  outputs: tuple[str, ...] = ("y",)

  def model(self):
    names = [f"p{i}" for i in range(len(self.shapes))]
    inputs = names if self.inputs is None else self.inputs
    node = helper.make_node(self.op, inputs, self.outputs, "culprit", domain=DOMAIN, **dict(self.given))
    given = dict(zip(names, zip(self.dtypes, self.shapes, strict=True), strict=True))
    results = {name: (self.dtypes[0], None) for name in self.outputs}
    return built([node], given, results, OPSET, 10, domains=[DOMAIN]).SerializeToString()

  def feeds(self):
    """(dtype, shape, values or None) of each input."""
    if self.fed is None:
      return None
    return [
      (helper.tensor_dtype_to_np_dtype(dtype).name, value if isinstance(value, tuple) else np.shape(value),
       None if isinstance(value, tuple) else np.ravel(value).tolist())
      for dtype, value in zip(self.dtypes, self.fed, strict=True)
    ]  # fmt: skip


def a(**given):
  return tuple(given.items())


def index(words, indices, data, updates, **more):
  """An index out of range, in tensors whose shapes are known beforehand."""
  shape = np.shape(indices)
  return Wrong(words, shapes=(data, shape, updates), fed=(data, indices, updates), **more)


def start(words, starts, data, updates, **given):
  shapes = (data, updates, (len(starts),))
  return Wrong(words, "UpdateSlice", a(**given), shapes, (F, F, L), fed=(data, updates, starts))


ELEMENTS = {"op": "ScatterElements", "shapes": ((4, 3), (2, 3), (2, 3))}
SLICE = {"op": "UpdateSlice", "shapes": ((4, 3), (2, 3), (1,)), "dtypes": (F, F, L)}

WRONG = {
  "an unknown reduction": Wrong("'sum'", given=a(reduction="sum")),
  "an unknown algorithm": Wrong("'fast'", given=a(algorithm="fast")),
  "unique is 2": Wrong("'unique' is 2", given=a(unique=2)),
  "deterministic is -1": Wrong("'deterministic' is -1", given=a(deterministic=-1)),
  "an input too few": Wrong("3 inputs", inputs=("p0", "p1")),
  "an absent input": Wrong("", inputs=("p0", "", "p2")),
  "an output too many": Wrong("one output", outputs=("y", "z")),
  "strings": Wrong("string", dtypes=(TensorProto.STRING, L, TensorProto.STRING)),
  "4-bit integers": Wrong("whole bytes", dtypes=(TensorProto.INT4, L, TensorProto.INT4)),
  "updates of another dtype": Wrong("double", dtypes=(F, L, D)),
  "indices that are floating": Wrong("int64", dtypes=(F, F, F)),
  "32-bit indices of ScatterND": Wrong("int64", dtypes=(F, J, F)),
  "sums of bools": Wrong("'add'", given=a(reduction="add"), dtypes=(TensorProto.BOOL, L, TensorProto.BOOL)),
  "complex numbers, which ORT gives to no operator of a library": Wrong(
    "tensor(complex64)", given=a(reduction="mul"), dtypes=(TensorProto.COMPLEX64, L, TensorProto.COMPLEX64)
  ),
  "minima of 8-bit floats": Wrong(
    "'min'", given=a(reduction="min"), dtypes=(TensorProto.FLOAT8E4M3FN, L, TensorProto.FLOAT8E4M3FN)
  ),
  "indices deeper than data": Wrong("3 components", shapes=((4, 3), (2, 3), (2,))),
  "indices of no components": Wrong("0 components", shapes=(None, None, None), fed=((4, 3), (2, 0), (2, 4, 3))),
  "updates of another width": Wrong("take [2, 3]", shapes=((4, 3), (2, 1), (2, 4))),
  "more elements than memory holds": Wrong("memory", shapes=((1 << 31, 1 << 30), (2, 1), (2, 1 << 30))),
  "updates of another width at the run": Wrong("take [2, 3]", shapes=AT_RUN, fed=((4, 3), (2, 1), (2, 4))),
  "a scalar at the run": Wrong("", shapes=(None, None, None), fed=((), (1,), ())),
  "an axis too large": Wrong("axis 2", given=a(axis=2), **ELEMENTS),
  "an axis too small": Wrong("axis -3", given=a(axis=-3), **ELEMENTS),
  "indices of another rank": Wrong("rank", "ScatterElements", shapes=((4, 3), (2,), (2, 3))),
  "updates of another rank": Wrong("rank", "ScatterElements", shapes=((4, 3), (2, 3), (6,))),
  "indices that do not broadcast": Wrong("broadcast", "ScatterElements", shapes=((4, 3), (2, 2), (2, 3))),
  "updates that broadcast to indices": Wrong("broadcast", "ScatterElements", shapes=((4, 3), (2, 3), (1, 3))),
  "updates larger beside the axis": Wrong("larger", "ScatterElements", shapes=((4, 3), (2, 4), (2, 4))),
  "no axes": Wrong("'axes'", **SLICE),
  "a negative axis": Wrong("-1", given=a(axes=[-1]), **SLICE),
  "an axis twice": Wrong("twice", "UpdateSlice", a(axes=[0, 0]), ((4, 3), (2, 3), (2,)), (F, F, L)),
  "an axis beyond the rank": Wrong("axis 2", given=a(axes=[2]), **SLICE),
  "a step of 0": Wrong("steps", given=a(axes=[0], steps=[0]), **SLICE),
  "a step too few": Wrong(
    "2 axes but 1 steps", "UpdateSlice", a(axes=[0, 1], steps=[1]), ((4, 3), (2, 3), (2,)), (F, F, L)
  ),
  "a start too few": Wrong("starts", given=a(axes=[0, 1]), **SLICE),
  "a scalar start for two axes": Wrong("2 axes", "UpdateSlice", a(axes=[0, 1]), ((4, 3), (2, 3), ()), (F, F, L)),
  "32-bit starts": Wrong("int64", "UpdateSlice", a(axes=[0]), ((4, 3), (2, 3), (1,)), (F, F, J)),
  "a slab of another rank": Wrong("rank", "UpdateSlice", a(axes=[0]), ((4, 3), (3,), (1,)), (F, F, L)),
  "a slab of another width": Wrong("axis 1", "UpdateSlice", a(axes=[0]), ((4, 3), (2, 2), (1,)), (F, F, L)),
  "a slab larger than data": Wrong("beyond", "UpdateSlice", a(axes=[0]), ((4, 3), (5, 3), (1,)), (F, F, L)),
  "steps beyond data": Wrong("beyond", "UpdateSlice", a(axes=[0], steps=[-4]), ((4, 3), (2, 3), (1,)), (F, F, L)),
  "steps beyond all numbers": Wrong(
    "beyond", "UpdateSlice", a(axes=[0], steps=[1 << 62]), ((40, 3), (9, 3), (1,)), (F, F, L)
  ),
  "an index too large": index(
    "index 4 at [1, 0] of indices is out of range: axis 0 of data has size 4, so that it must be from -4 to 3",
    [[3], [4], [9]],
    (4, 3),
    (3, 3),
  ),
  "a second component": index(
    "index 3 at [1, 0, 1] of indices is out of range: axis 1 of data has size 3, so that it must be from -3 to 2",
    [[[3, 2]], [[0, 3]]],
    (4, 3),
    (2, 1),
  ),
  "an index on the last axis": index(
    "index 3 at [0, 1] of indices is out of range: axis 1 of data has size 3, so that it must be from -3 to 2",
    [[2, 3], [0, 0]],
    (4, 3),
    (2, 2),
    op="ScatterElements",
    given=a(axis=-1),
  ),
  "an index that broadcasts": index("index 4 at [1, 0] of", [[2], [4]], (4, 3), (2, 3), op="ScatterElements"),
  "an index among many": index("index 70000 at [29999, 0] of", [*[[1]] * 29999, [70000], [1]], (70000,), (30001,)),
  "a start too large": start(
    "starts[0] is 3, from where 2 elements at step 1 leave axis 0 of data, whose size is 4: "
    "it must be from 0 to 2 or from -4 to -2",
    [3],
    (4, 3),
    (2, 3),
    axes=[0],
  ),
  "a start too near the front": start("it must be from 1 to 3", [0], (4, 3), (2, 3), axes=[0], steps=[-1]),
  "a second start": start("starts[1] is 2", [0, 2], (4, 3), (2, 2), axes=[0, 1]),
}


@pytest.fixture(scope="module")
def refusals(library):
  """(stage, message) of every wrong node."""
  return refusals_of({name: (each.model(), each.feeds()) for name, each in WRONG.items()})


@parametrize("name", WRONG)
def test_a_wrong_node_or_index_is_refused(refusals, name):
  wrong = WRONG[name]
  assert_refused_in_time(refusals[name], at_load=wrong.fed is None, words=wrong.words, operator=wrong.op)


def test_good_nodes_are_accepted():
  assert make(Wrong("").model())
  assert make(Wrong("", **ELEMENTS).model())
  assert make(Wrong("", given=a(axes=[0]), **SLICE).model())


def test_after_an_error_the_next_run_is_right():
  case = by_name["nd rows, float"]
  session, feeds = make(case.model()), case.feeds()
  for _ in range(3):
    with raises(Exception, "index 100 at"):
      session.run(None, {**feeds, "indices": np.full((7, 1), 100)})
    check(case, session.run(None, feeds)[0])


# ---- random shapes


def random_case(rng, number):
  """Any operator, shapes whose sizes lie around the kernel's block of 1024 updates, any dtype and reduction."""
  op = ("ScatterND", "ScatterElements", "UpdateSlice")[int(rng.integers(3))]
  rank = int(rng.integers(1, 6))
  sizes = [1, 2, 3, 5, 7, 31, 32, 33, 257, 1023, 1024, 1025]
  shape = []
  for _ in range(rank):
    room = 40000 // max(1, int(np.prod(shape)))
    shape.append(int(rng.choice([size for size in sizes if size <= room])))
  data = tuple(int(size) for size in rng.permutation(shape))
  reduction = str(rng.choice(["none", "none", "add", "mul", "min", "max"]))
  dtype = str(rng.choice(["float16", "bfloat16", "float", "int8", "int64"]))
  given = {} if reduction == "none" else {"reduction": reduction}
  values = "spread" if reduction == "add" and dtype in FLOATING else "near one" if dtype in FLOATING else "bits"
  kind = str(rng.choice(["mixed", "few", "one", "ends"]))
  name = f"random {number}"
  if op == "ScatterND":
    depth = int(rng.integers(1, rank + 1))
    width = int(np.prod(data[depth:]))
    count = int(rng.choice([1, 2, 65, 1024, 1025, 5003]))
    rows = (min(count, 1 + 200000 // width),) if rng.random() < 0.7 else (2, 3)
    return nd(name, data, (*rows, depth), dtype, kind, values, **given)
  if op == "ScatterElements":
    axis = int(rng.integers(rank))
    updates = [int(rng.integers(1, size + 1)) if rng.random() < 0.3 else size for size in data]
    room = 200000 // max(1, int(np.prod([size for i, size in enumerate(updates) if i != axis])))
    updates[axis] = int(rng.integers(1, max(2, min(room, 3000))))
    indices = [1 if rng.random() < 0.3 else size for size in updates]
    axis = axis - rank if rng.random() < 0.5 else axis
    return elements(
      name, data, tuple(updates), dtype, kind, values, tuple(indices), str(rng.choice(["int32", "int64"])),
      axis=axis, **given,
    )  # fmt: skip
  axes = [int(axis) for axis in rng.permutation(rank)[: int(rng.integers(1, rank + 1))]]
  updates, starts, steps = [size if rng.random() < 0.7 else 1 for size in data], [], []
  for axis in axes:
    size, step = data[axis], int(rng.choice([1, 1, 2, 3, -1, -2]))
    updates[axis] = int(rng.integers(1, (size - 1) // abs(step) + 2))
    span = (updates[axis] - 1) * abs(step)
    first = int(rng.integers(0, size - span)) + (span if step < 0 else 0)
    starts.append(first - size if rng.random() < 0.5 else first)
    steps.append(step)
  return window(name, data, tuple(updates), tuple(starts), dtype, axes=axes, steps=steps)


@one_in(3)
@parametrize("seed", range(8))
def test_random_shapes(seed):
  rng = np.random.default_rng(seed)
  for number in range(10):
    case = random_case(rng, 10 * seed + number)
    check(case, run(make(case.model()), case))
