"""FusedLayerNorm in ONNX Runtime on the CPU: equal to its reference, its decomposition and ORT's own operator; and what
happens with nodes, inputs and surroundings that are wrong."""

import re
import subprocess

import numpy as np
import onnx
import onnxruntime
import pytest
from layer_norm_cases import AFFINE, BARE, CASES, RESIDUAL, Case, by_name, check, expect, model_of
from node_cases import OPSET, model_with, typed
from onnx import TensorProto
from onnx.helper import make_node
from onnx_models import built, ones, parametrize, raises
from threads import in_threads

import ortplugin
from ort.host import (
  CPU_ONLY,
  assert_inferred,
  assert_runs_repeat,
  assert_threads_change_nothing,
  make,
  options,
  plain,
  run,
  run_decomposed,
)
from ort.refusals import assert_refused_in_time, python, refusals_of, wrong_programs, wrong_texts
from ortplugin.errors import RuntimeMissingError
from ortplugin.session import CUDA, gpu_count


@parametrize("case", CASES)
def test_equals_the_reference(case):
  check(case, run(make(case.model()), case))


# Cases whose decomposition can't run or be compared, with the reason.
NO_DECOMPOSITION = {
  "Gelu, double, 33": "ONNX Runtime has no Erf of double",
  **{
    f"{name}, {dtype}": "an axis from the front has no decomposition without the rank"
    for name in ("three axes", "two axes", "last axis")
    for dtype in ("float16", "float")
  },
  **{
    f"one long row{what}, float": "ONNX Runtime's ReduceMean loses three digits over two million elements"
    for what in ("", ", aligned")
  },
  **{
    case.name: "ONNX Runtime has no pointwise operators of bfloat16"
    for case in CASES
    if "bfloat16" in case.name or case.name.startswith("results of all dtypes")
  },
}
DECOMPOSED = [case for case in CASES if case.name not in NO_DECOMPOSITION]


def test_the_list_of_what_lacks_a_decomposition_is_current():
  assert NO_DECOMPOSITION.keys() <= by_name.keys()
  assert len(DECOMPOSED) > 200


@parametrize("case", DECOMPOSED)
def test_the_decomposition_runs_without_the_library(case):
  found, unit = run_decomposed(case)
  check(case, found, expect(case, unit=4 * unit))


@parametrize("dtype", ["float16", "float", "double"])
@parametrize("width", [1, 7, 33, 768, 1023, 5140])
def test_equals_the_runtimes_own_operator(dtype, width):
  case = Case(f"own {width} {dtype}", typed(AFFINE, dtype), ((11, width), (width,), (width,)))
  own = make_node("LayerNormalization", ["x", "gamma", "beta"], ["y"], epsilon=1e-5)
  theirs = plain(model_of(case.text, case.shapes, [own]))
  (wanted,), (got,) = run(theirs, case), run(make(case.model()), case)
  tolerance = {"float16": 4e-3, "float": 2e-5, "double": 1e-12}[dtype]
  np.testing.assert_allclose(got.astype(np.float64), wanted.astype(np.float64), rtol=tolerance, atol=tolerance)


# ---- shape inference


@parametrize(
  "shapes, wanted",
  [
    (((4, 7, 32), (32,), (4, 7, 32), (32,), (32,)), [4, 7, 32]),
    (((1, 7, 32), (32,), (4, 1, 32), (32,), (32,)), [4, 7, 32]),
    ((("batch", "length", 32), (32,), ("batch", "length", 32), (32,), (32,)), ["batch", "length", 32]),
    ((("batch", "length", 32), (32,), ("batch", 7, 32), (32,), (32,)), ["batch", 7, 32]),
    ((("batch", 7, 32), (32,), ("other", 7, 32), (32,), (32,)), [None, 7, 32]),
    (((None, 7, "width"), ("width",), (None, 7, "width"), (32,), (32,)), [None, 7, "width"]),
    (((7, 32), (32,), ("batch", 1, 1), (32,), (32,)), ["batch", 7, 32]),
    (((0, 32), (32,), (1, 32), (32,), (32,)), [0, 32]),
  ],
)
def test_shapes_are_inferred(shapes, wanted):
  for dtype in ("float16", "bfloat16", "float", "double"):
    session = make(model_of(typed(RESIDUAL, dtype), shapes))
    for output in session.get_outputs():
      assert_inferred(output, wanted, dtype)


def test_unknown_ranks_stay_unknown_until_the_run():
  for bias in ((8,), None):
    session = make(model_of(typed(RESIDUAL, "float"), [None, bias, None, None, None]))
    assert [output.type for output in session.get_outputs()] == ["tensor(float)"] * 2
    for shape in ((2, 8), (3, 1, 8), (8,)):
      case = Case(f"unknown {shape}", typed(RESIDUAL, "float"), (shape, (8,), shape, (8,), ()))
      check(case, run(session, case))


def test_unnamed_dimensions_meet_known_ones():
  """A dimension that inference can't tell must not look like a number to the node behind."""
  nodes = [Case("", typed(BARE, "float"), ((4, 8),)).node(), make_node("Add", ["y", "w"], ["z"])]
  session = make(model_with(nodes, [("x", "float", [None, 8]), ("w", "float", [4, 8])], [("z", "float")]))
  assert session.get_outputs()[0].shape == [4, 8]
  x = ones(4, 8)
  assert (session.run(None, {"x": x, "w": x})[0] == 1).all()


def test_each_result_has_its_own_dtype():
  case = by_name["results of all dtypes, float, 256"]
  found = {output.name: (output.type, output.shape) for output in make(case.model()).get_outputs()}
  dtypes = {"h": "float16", "b": "bfloat16", "f": "float", "d": "double", "t": "bool"}
  assert found == {name: (f"tensor({dtype})", [3, 7, 256]) for name, dtype in dtypes.items()}


def test_inferred_shapes_reach_other_nodes():
  """An output without a declared type, and a node behind ours that needs the shape."""
  node = Case("", typed(BARE, "float"), ((2, 8),)).node()
  nodes = [node, make_node("Shape", ["y"], ["shape"]), make_node("Neg", ["y"], ["z"])]
  model = built(nodes, {"x": ("float", ["n", 8])}, {}, OPSET, 9, domains=["ortplugin"])
  model.graph.output.extend([onnx.ValueInfoProto(name="shape"), onnx.ValueInfoProto(name="z")])
  session = make(model)
  assert [(output.type, output.shape) for output in session.get_outputs()] == [
    ("tensor(int64)", [2]),
    ("tensor(float)", ["n", 8]),
  ]


def test_shapes_may_change_from_run_to_run():
  session = make(model_of(typed(RESIDUAL, "float16"), [("b", "s", "h"), ("h",), ("b", "s", "h"), ("h",), ("h",)]))
  for batch, length, width in ((1, 1, 1), (3, 5, 7), (2, 9, 1023), (3, 5, 7), (0, 4, 8), (1, 2, 70001)):
    x = (batch, length, width)
    case = Case(f"changing {x}", typed(RESIDUAL, "float16"), (x, (width,), x, (width,), (width,)))
    check(case, run(session, case))


# ---- wrong nodes


wrong = wrong_programs("FusedLayerNorm", typed(BARE, "float"))


def bare(core):
  return f"(float x) => (float y) {{ y = {core} }}"


SCALED = "(float x, float g) => (float y) { n = LayerNormalization(x) y = Mul(n, g) }"
SUM = "(float x, float r) => (float y) { s = Add(x, r) y = LayerNormalization(s) }"
TWO = "(float x) => (float y, float z) { y = LayerNormalization(x) z = Relu(y) }"
UNKNOWN = ("n", "m")
ORDER = ("ordered", "order", "image")

WRONG = {
  **wrong_texts(wrong, bare("LayerNormalization(x)"), SCALED),
  "a zero byte": wrong("found '\\x00'", bare("LayerNormalization(x)") + "\0#error"),
  "no core": wrong("no LayerNormalization and no RMSNormalization", bare("Relu(x)")),
  "two cores": wrong("at most one core", bare("LayerNormalization(n)").replace("{", "{ n = RMSNormalization(x)")),
  "a negative epsilon": wrong("epsilon is -1", bare("LayerNormalization<epsilon=-1>(x)")),
  "an infinite epsilon": wrong("epsilon is inf", bare("LayerNormalization<epsilon=inf>(x)")),
  "an epsilon of NaN": wrong("epsilon is nan", bare("RMSNormalization<epsilon=nan>(x)")),
  "an axis too large": wrong("axis 2 is out of range for the shape [2, 3]", bare("LayerNormalization<axis=2>(x)")),
  "an axis too small": wrong("axis -3 is out of range for the shape [2, 3]", bare("RMSNormalization<axis=-3>(x)")),
  "axes beyond the rank": wrong("axis 2 is out of range", bare('LayerNormalization<axes="0 2">(x)')),
  "axes and axis": wrong("both axis and axes", bare('LayerNormalization<axis=0, axes="1">(x)')),
  "groups without axes": wrong("with groups, expected axes", bare("LayerNormalization<groups=2>(x)")),
  "three runs of axes": wrong(
    "more than two runs", bare('LayerNormalization<axes="0 2 4">(x)'), shapes=((2, 3, 2, 3, 2, 3),)
  ),
  "an axis twice": wrong("axis 1 is divided into groups and among", bare('LayerNormalization<axes="1", groups=1>(x)')),
  "groups that divide nothing": wrong(
    "2 groups don't divide the axis 1 of the shape [2, 3]", bare('LayerNormalization<axes="0", groups=2>(x)')
  ),
  "more elements than memory holds": wrong("more elements than any memory", shapes=((1 << 31, 1 << 30),)),
  "an integer dtype": wrong("input 0 is int64", dtypes=(TensorProto.INT64,)),
  "an absent input": wrong("absent", SCALED, ((2, 3),), inputs=("p0", "")),
  "no inputs": wrong("input size 0", inputs=()),
  "an output too few": wrong("2 results, the node 1 outputs", TWO),
  "an absent output": wrong("output 1 is absent", TWO, outputs=("y", ""), fed=((2, 3),)),
  "operands that do not broadcast": wrong("[4] and [2, 3] do not broadcast", SUM, ((2, 3), (4,))),
  "a gain larger than the sum": wrong("input 1 ('g'): the shape [2, 3]", SCALED, ((1, 3), (2, 3))),
  "a gain of another width": wrong("the shape [2] does not broadcast to [2, 3]", SCALED, ((2, 3), (2,))),
  "operands that do not broadcast at the run": wrong(
    "[2, 4] and [2, 3] do not broadcast", SUM, (UNKNOWN, UNKNOWN), fed=((2, 3), (2, 4))
  ),
  "a gain of another width at the run": wrong(
    "input 1 ('g'): the shape [4] does not broadcast to [2, 3]", SCALED, (UNKNOWN, ("k",)), fed=((2, 3), (4,))
  ),
  "a scalar": wrong("axis -1 is out of range for the shape []", shapes=((),)),
  "a scalar at the run": wrong("axis -1 is out of range for the shape []", shapes=(None,), fed=((),)),
  **{
    f"order {i}": wrong(
      "must be numbers of inputs", shapes=((2, 3, 4),), attributes=dict(zip(ORDER, given, strict=False))
    )
    for i, given in enumerate(
      (([0],), (None, [0]), ([1], [0]), ([-1], [0]), ([0], [0, 1, 2], [2]), ([0], [0], [-1, -1]), ([0], [-1]))
    )
  },
  "a row too far": wrong("with more rows than 3", shapes=((2, 3, 4),), attributes={"ordered": [0], "order": [0, 3]}),
  "no rows at the run": wrong(
    "must be [images, rows", shapes=(None,), attributes={"ordered": [0], "order": [0]}, fed=((2, 3),)
  ),
  "an axis too large at the run": wrong(
    "axis 2 is out of range for the shape [5]", bare("LayerNormalization<axis=2>(x)"), (None,), fed=((5,),)
  ),
}


@pytest.fixture(scope="module")
def refusals(library):
  return refusals_of(
    {
      name: (each.model(), None if each.fed is None else [("float32", shape, None) for shape in each.fed])
      for name, each in WRONG.items()
    }
  )


@parametrize("name", WRONG)
def test_a_wrong_node_is_refused(refusals, name):
  node = WRONG[name]
  assert_refused_in_time(refusals[name], at_load=node.fed is None, words=node.words, operator="FusedLayerNorm")


def test_a_good_node_is_accepted():
  assert make(wrong("").model())


# ---- threads, processes, surroundings


def test_many_threads_run_one_session():
  text = typed(RESIDUAL, "float")
  session = make(model_of(text, [("n", "h"), ("h",), ("n", "h"), ("h",), ("h",)]))

  def work(number):
    shape = (5 + 40 * number, (33, 768, 1023, 5140)[number % 4])
    assert_runs_repeat(session, Case(f"thread {number}", text, (shape, shape[1:], shape, shape[1:], shape[1:])), check)

  in_threads(8, work)


@parametrize("threads", [1, 2, 5])
def test_threads_inside_a_run_change_nothing(threads):
  assert_threads_change_nothing(by_name["bias, residual, sum kept, float16, 1023"], threads)


def test_options_are_registered_twice_and_by_many_threads():
  case = by_name["awkward, float"]
  shared = onnxruntime.SessionOptions()

  def work(_):
    ortplugin.register(shared)
    own = onnxruntime.SessionOptions()
    for _ in range(3):
      ortplugin.register(own)
    for chosen in (shared, own):
      check(case, run(onnxruntime.InferenceSession(case.model(), chosen, providers=CPU_ONLY), case))

  in_threads(8, work)


def test_the_library_itself_bears_being_registered_twice(library):
  """As any program does it, without `ortplugin.register`."""
  case = by_name["awkward, float"]
  made = onnxruntime.SessionOptions()
  made.register_custom_ops_library(str(library))
  made.register_custom_ops_library(str(library))
  ortplugin.register(made)
  check(case, run(onnxruntime.InferenceSession(case.model(), made, providers=CPU_ONLY), case))


SESSION = """
import gc, os, sys
import numpy, onnxruntime, ortplugin
def session():
    options = onnxruntime.SessionOptions()
    ortplugin.register(options)
    made = onnxruntime.InferenceSession(bytes.fromhex(sys.stdin.readline()), options)
    made.run(None, {"x": numpy.ones((2, 8), numpy.float32)})
    return made, options
"""

ENDINGS = {
  "everything alive at the exit": "made, options = session()",
  "options first": "made, options = session(); del options; gc.collect(); del made; gc.collect()",
  "session first": "made, options = session(); del made; gc.collect(); del options; gc.collect()",
  "registered, no session": "options = onnxruntime.SessionOptions(); ortplugin.register(options)",
  "alive in a cycle": "made = session(); loop = [made]; loop.append(loop); del made",
  "alive in a module": "sys.kept = session()",
  "alive at the very last": "import atexit; made = session(); atexit.register(lambda x: x[0].get_inputs(), made)",
  "in a thread": "import threading; t = threading.Thread(target=session); t.start(); t.join()",
  "a thread at the exit": (
    "import threading, time; made = session()\n"
    "def work():\n"
    "    while True: made[0].run(None, {'x': numpy.ones((2, 8), numpy.float32)})\n"
    "threading.Thread(target=work, daemon=True).start(); time.sleep(0.05); os._exit(0)"
  ),
  "opened by hand before": (
    "import ctypes; held = ctypes.CDLL(ortplugin.library_path()); made, options = session(); del made, options"
  ),
  "closed by hand after": (
    "import ctypes, _ctypes; held = ctypes.CDLL(ortplugin.library_path()); made, options = session()\n"
    "del made, options; gc.collect(); _ctypes.dlclose(held._handle)"
  ),
  "opened and closed alone": (
    "import ctypes, _ctypes\n"
    "for _ in range(3): _ctypes.dlclose(ctypes.CDLL(ortplugin.library_path())._handle)\n"
    "made, options = session()"
  ),
}


@pytest.mark.one_in(3)
@parametrize("ending", ENDINGS)
def test_a_process_ends_in_any_order(ending):
  model = model_of(typed(BARE, "float"), ((2, 8),))
  done = python(f"{SESSION}\n{ENDINGS[ending]}\nprint('the end', flush=True)", model.hex() + "\n")
  assert done.returncode == 0, done.stderr
  assert done.stderr == ""
  assert done.stdout == ("" if "os._exit" in ENDINGS[ending] else "the end\n")


def test_the_library_needs_no_cuda(library):
  """Neither loading it nor running on the CPU opens anything of CUDA's."""
  done = python(
    f"{SESSION}\nmade = session()\nprint([x for x in open('/proc/self/maps') if 'libcuda' in x or 'nvrtc' in x])",
    model_of(typed(BARE, "float"), ((2, 8),)).hex() + "\n",
  )
  assert done.returncode == 0, done.stderr
  if not gpu_count():
    assert done.stdout == "[]\n"
  linked = subprocess.run(["ldd", str(library)], capture_output=True, text=True).stdout
  assert not re.search("cuda|nvrtc|onnxruntime|python", linked)


@pytest.mark.skipif(CUDA in onnxruntime.get_available_providers(), reason="this ONNX Runtime has the CUDA provider")
def test_cuda_without_a_cuda_build_is_explained():
  model = model_of(typed(BARE, "float"), ((2, 8),))
  with raises(RuntimeMissingError, "has no CUDA provider; remove it and install onnxruntime-gpu"):
    ortplugin.session(model, ["cuda"])
  # ONNX Runtime itself warns and goes on with what it has.
  with pytest.warns(UserWarning, match="'CUDAExecutionProvider' is not in available provider names"):
    session = onnxruntime.InferenceSession(model, options(), providers=[CUDA, *CPU_ONLY])
  assert session.get_providers() == CPU_ONLY
  assert session.run(None, {"x": ones(2, 8)})[0].shape == (2, 8)
