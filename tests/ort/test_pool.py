"""FusedPool and FusedResize in ONNX Runtime on the CPU: their references, ONNX Runtime's own operators, what their
decompositions give, shapes, threads, what is refused."""

import itertools
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from node_cases import OPSET, bits, model_with, planar
from onnx import TensorProto, helper
from onnx.helper import make_node
from onnx_models import built, computed, parametrize, raises
from pool_cases import CASES, LARGE_CASES, Case, by_name, check, frozen
from threads import in_threads

import ortplugin
from ort.host import CPU_ONLY, make, options, run_one as run
from ort.refusals import assert_blamed
from ortplugin.graph import DOMAIN
from ortplugin.ops import find


@parametrize("case", [*CASES, *LARGE_CASES])
def test_equals_the_reference(case):
  session = make(case.model())
  found = run(session, case)
  check(case, found)
  if 0 not in case.shape[1:]:  # a spatial size of 0 is unknown before a run
    assert session.get_outputs()[0].shape == list(found.shape)


def _runs_decomposed(case):
  """What ONNX Runtime's CPU provider has.

  It takes the lowest finite number for the maximum of nothing, and its global pools of channels first refuse images
  without pixels. 1.32 ends the process where a pool has no windows, and counts what a window has beyond the image as
  padding, which 1.31 did not. Where a spatial size stays the same, its optimizer may take the Transposes out and
  another axis, the channels, for the one whose neighbours have weight 0.
  """
  given = dict(case.attributes)
  if case.values == "special rows" and given.get("layout") == "NHWC" and case.op == "FusedResize":
    return all(a != b for a, b in zip(given["sizes"], case.shape[1:-1], strict=True)) and case.dtype == "float"
  if case.name.startswith("max, dilated over nothing") or "no windows" in case.name:
    return False
  if case.name.startswith("padded average, a window beyond the image by less"):
    return False
  if " of no pixels, " in case.name and given["layout"] == "NCHW":
    return False
  if case.dtype == "float":
    return "nothing, " not in case.name  # where batch or channels are 0
  half = case.dtype == "float16" and case.values == "normal"
  return half or (case.dtype in ("int8", "uint8") and given.get("kind") == "max")


DECOMPOSED = [case for case in (*CASES, *LARGE_CASES) if _runs_decomposed(case)]


@parametrize("case", DECOMPOSED)
def test_the_decomposition_gives_the_same(case):
  """In ONNX Runtime's own operators, without the library."""
  nodes = find(DOMAIN, case.op).decompose(case.node(), 19)
  check(case, *computed(case.model_of(nodes, case.shape, opset=19), case.feeds()), unit=2.0**-20)


@parametrize("opset", [11, 13, 18, 22])
@parametrize(
  "name",
  [
    "max, ResNet's stem, NHWC, float",
    "average with its padding, uneven pads, NHWC, float",
    "global_average of 7x7x96, NHWC, float",
    "global_max of 13x5, NHWC, float",
    "global_max of 7x7x96, NCHW, float",
    "linear, half_pixel, (5, 7) by (13, 9), NHWC, float",
    "linear, half_pixel, (7, 10) by (1.5, 0.6), NHWC, float",
  ],
)
def test_the_decomposition_at_every_opset(name, opset):
  case = by_name[name]
  model = case.model_of(find(DOMAIN, case.op).decompose(case.node(), opset), [None] * len(case.shape), opset=opset)
  check(case, *computed(model, case.feeds()), unit=2.0**-20)


@parametrize("case", LARGE_CASES)
def test_the_number_of_threads_changes_no_bit(case):
  found = [run(make(case.model(), threads), case) for threads in (1, 2, 5)]
  assert all((bits(other) == bits(found[0])).all() for other in found[1:])


# ---- ONNX Runtime's own, over many sizes

LINES = (1, 2, 3, 5, 6, 7, 9, 10, 13, 14, 20, 28, 33, 49, 97)
RESIZED = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 14, 20, 28, 56, 70)
KINDS = {"max": ("MaxPool", {}), "average": ("AveragePool", {}), "padded": ("AveragePool", {"count_include_pad": 1})}
SCALED = (0.3, 0.35, 0.55, 0.7, 1.25, 1.7, 2.0, 2.2, 3.3, 6.4)


def _line(size, mode):
  """Of which the nearest element tells its number, and a linear place its weight: every other element is 0."""
  numbers = np.arange(size, dtype=np.float32)
  return (numbers if mode == "nearest" else numbers % 2).reshape(1, 1, 1, size)


@pytest.mark.one_in(2)
@parametrize("coordinates", ["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"])
@parametrize("mode", ["linear", "round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_places_are_onnx_runtimes(coordinates, mode):
  """The same elements and the same weights, to the last bit.

  But where a scale leaves the size as it is: its CPU provider then copies the image, where ONNX's formula, its CUDA
  provider and FusedResize move the places.
  """
  nodes, constants, outputs = [], [], []
  words = {"mode": "linear"} if mode == "linear" else {"mode": "nearest", "nearest_mode": mode}
  given = {**words, "coordinate_transformation_mode": coordinates}
  targets = [(size, "sizes", out) for size in LINES for out in RESIZED]
  targets += [(size, "scales", scale) for size in LINES for scale in SCALED if int(size * scale) not in (0, size)]
  for number, (size, kind, target) in enumerate(targets):
    line, whole = f"x{size}", np.array([1, 1, 1, target], np.int64 if kind == "sizes" else np.float32)
    constants.append((f"c{number}", whole))
    last = [f"c{number}"] if kind == "scales" else ["", f"c{number}"]
    nodes.append(make_node("Resize", [line, "", *last], [f"theirs{number}"], **given))
    nodes.append(make_node("FusedResize", [line], [f"ours{number}"], domain=DOMAIN, **given, **{kind: [1, target]}))
    outputs += [f"theirs{number}", f"ours{number}"]
  lines = {f"x{size}": _line(size, words["mode"]) for size in LINES}
  model = model_with(
    nodes, [(name, "float", line.shape) for name, line in lines.items()], [(o, "float") for o in outputs], constants
  )
  found = make(model).run(outputs, lines)
  for target, theirs, ours in zip(targets, found[::2], found[1::2], strict=True):
    np.testing.assert_array_equal(ours, theirs, err_msg=str(target))


def test_windows_are_onnx_runtimes():
  """However small the image: as many as its pools have, and refused where they refuse."""

  made = options()
  made.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL  # whose NCHWc pools die

  def result(session, x):
    try:
      return np.asarray(session.run(None, {"x": x})[0])
    except Exception:  # ONNX Runtime's own classes have no common base
      return None

  refused = 0
  for kernel, stride, ceil, pads, kind in itertools.product((2, 3, 5), (1, 2, 4), (0, 1), ((0, 0), (1, 0)), KINDS):
    name, counts = KINDS[kind]
    given = {"kernel_shape": [kernel], "strides": [stride], "pads": pads, "ceil_mode": ceil, **counts}
    inputs, outputs = [("x", "float", (1, 2, "w"))], [("y", "float")]
    theirs = model_with([make_node(name, ["x"], ["y"], **given)], inputs, outputs, opset=19)
    word = "max" if kind == "max" else "average"
    ours = model_with([make_node("FusedPool", ["x"], ["y"], domain=DOMAIN, kind=word, **given)], inputs, outputs)
    sessions = [onnxruntime.InferenceSession(each, made, providers=CPU_ONLY) for each in (theirs, ours)]
    for size in range(6):
      x = np.arange(2 * size, dtype=np.float32).reshape(1, 2, size)
      wanted, found = (result(each, x) for each in sessions)
      refused += wanted is None
      assert (found is None) == (wanted is None), (kind, given, size)
      if wanted is not None:
        np.testing.assert_allclose(found, wanted, rtol=1e-6, err_msg=f"{kind}, {given}, {size}")
  assert refused > 10


# ---- huge windows

HUGE = 2**31 - 1


@parametrize("layout", ["NCHW", "NHWC"])
@parametrize(
  "given, wanted",
  [
    (planar(kind="max", auto_pad="SAME_UPPER", kernel_shape=HUGE), [[9, 9, 9, 9]] * 3),
    (planar(kind="average", auto_pad="SAME_LOWER", kernel_shape=HUGE), [[5, 5, 5, 5]] * 3),
    # Each window ends at an element, or begins at one.
    (
      {"kind": "average", "kernel_shape": [3, 10**9], "strides": [1, 10**9], "pads": [0, 10**9 - 1, 0, 10**9 - 3]},
      [[12 / 3, 48 / 9]],
    ),
    (
      {
        "kind": "average",
        "kernel_shape": [3, 10**6],
        "strides": [1, 10**6],
        "pads": [0, 10**6 - 1, 0, 10**6 - 3],
        "count_include_pad": 1,
      },
      [[12 / (3 * 10**6), 48 / (3 * 10**6)]],
    ),
  ],
)
def test_a_huge_window_is_only_what_lies_in_the_image(given, wanted, layout):
  x = np.float32([[3, 9, 4, 8], [2, 6, 5, 1], [7, 3, 6, 6]])
  shape = (1, 3, 4, 1) if layout == "NHWC" else (1, 1, 3, 4)
  session = make(Case("huge", "FusedPool", "float", shape, frozen({**given, "layout": layout})).model())
  start = time.perf_counter()
  (found,) = session.run(None, {"x": x.reshape(shape)})
  assert time.perf_counter() - start < 5
  np.testing.assert_allclose(found.reshape(np.shape(wanted)), wanted, rtol=1e-6)


def test_what_resizing_keeps_does_not_grow_with_the_image():
  """In a process of its own, whose memory is measured: 64 MiB of output took 1.9 GB of places."""
  script = """if True:
        import resource, sys
        import numpy as np
        from pool_cases import Case
        from ort.host import make
        given = (("coordinate_transformation_mode", "asymmetric"), ("nearest_mode", "floor"), ("sizes", (1, 2**26)))
        case = Case("long", "FusedResize", "uint8", (1, 1, 1, 2**20), given)
        session, x = make(case.model()), np.arange(2**20).astype(np.uint8).reshape(case.shape)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        (y,) = session.run(None, {"x": x})
        assert (y[0, 0, 0, ::64] == x[0, 0, 0]).all()
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 300_000, f"{grown} KiB"
    """
  path = os.pathsep.join(each for each in sys.path if each)
  environment = {**os.environ, "PYTHONPATH": path}
  folder = Path(__file__).parent  # without the package's sources, which would come before the installed one
  ended = subprocess.run([sys.executable, "-c", script], env=environment, cwd=folder, capture_output=True)
  assert ended.returncode == 0, ended.stderr.decode()[-2000:]


@parametrize("layout", ["NCHW", "NHWC"])
@parametrize("mode", ["linear", "nearest"])
def test_long_rows_are_made_in_segments(mode, layout):
  given = frozen({"mode": mode, "sizes": (2, 50_001), "layout": layout})
  shape = (1, 3, 20_011, 2) if layout == "NHWC" else (1, 2, 3, 20_011)
  for dtype in ("float", "float16"):
    case = Case(f"long rows, {mode}, {layout}, {dtype}", "FusedResize", dtype, shape, given)
    check(case, run(make(case.model()), case))


# ---- shapes

POOL = planar(kind="max", kernel_shape=3, strides=2, pads=1)
SIZES = {"sizes": [8, 9], "mode": "linear"}
SCALES = {"scales": [2.0, 1.5]}
GLOBAL = {"kind": "global_average"}


@parametrize(
  "op, given, shape, wanted",
  [
    ("FusedPool", POOL, ("n", "c", 7, 8), ["n", "c", 4, 4]),
    ("FusedPool", {**POOL, "layout": "NHWC"}, ("n", 7, 8, "c"), ["n", 4, 4, "c"]),
    ("FusedPool", GLOBAL, ("n", 5, "h", "w"), ["n", 5, 1, 1]),
    ("FusedPool", {**GLOBAL, "layout": "NHWC"}, (2, "h", 4), [2, 1, 4]),
    ("FusedResize", SIZES, ("n", "c", "h", "w"), ["n", "c", 8, 9]),
    ("FusedResize", {**SCALES, "layout": "NHWC"}, ("n", 7, 5, "c"), ["n", 14, 7, "c"]),
  ],
)
def test_shapes_are_inferred(op, given, shape, wanted):
  assert make(Case("shapes", op, "float", (), frozen(given)).model(shape)).get_outputs()[0].shape == wanted


@parametrize("given", [POOL, {**POOL, "layout": "NHWC"}])
def test_what_is_not_known_gets_no_name_of_the_input(given):
  """The output's height is another one than the input's."""
  case = Case("names", "FusedPool", "float", (), frozen(given))
  found = make(case.model(("n", "h", "w", "c"))).get_outputs()[0].shape
  assert found[0] == "n"
  assert not {"h", "w"} & set(found[1:3] if "layout" in given else found[2:])


@parametrize("op", ["FusedPool", "FusedResize"])
def test_shapes_may_change_from_run_to_run(op):
  given = {**(POOL if op == "FusedPool" else SCALES), "layout": "NHWC"}
  for declared in (("a", "b", "c", "d"), None):
    session = make(Case("changing", op, "float16", (), frozen(given)).model(declared))
    for shape in ((1, 5, 7, 3), (2, 33, 8, 64), (0, 4, 4, 8), (1, 5, 7, 3)):
      case = Case(f"changing {shape}", op, "float16", shape, frozen(given))
      check(case, run(session, case))


# ---- wrong nodes


@dataclass(frozen=True)
class Wrong:
  """A node that must be refused: words of the message beside the names of operator and node."""

  words: str
  op: str
  given: dict[str, Any]
  shape: tuple[int, ...] = (1, 4, 6, 6)
  dtype: int = TensorProto.FLOAT
  inputs: int = 1

  def node(self):
    names = [f"x{i}" for i in range(self.inputs)]
    return make_node(self.op, names, ["y"], "culprit", domain=DOMAIN, **self.given)

  def model(self, known):
    inputs = {f"x{i}": (self.dtype, self.shape if known else None) for i in range(self.inputs)}
    return built([self.node()], inputs, {"y": (self.dtype, None)}, OPSET, 9, domains=[DOMAIN]).SerializeToString()


K = {"kind": "average", "kernel_shape": [3, 3]}
WRONG = {
  "no kind": Wrong("kind", "FusedPool", {"kernel_shape": [3, 3]}),
  "another kind": Wrong("must be one of max", "FusedPool", {"kind": "median"}),
  "no kernel": Wrong("'kernel_shape' is missing", "FusedPool", {"kind": "max"}),
  "windows of a global kind": Wrong("which", "FusedPool", {"kind": "global_max", "strides": [2, 2]}),
  "another layout": Wrong("must be one of NCHW, NHWC", "FusedPool", {**K, "layout": "CHWN"}),
  "a stride of 0": Wrong("must be from 1 to", "FusedPool", {**K, "strides": [0, 1]}),
  "too few strides": Wrong("1 numbers", "FusedPool", {**K, "strides": [2]}),
  "four spatial dimensions": Wrong("there must be 1 to 3", "FusedPool", {"kind": "max", "kernel_shape": [2] * 4}),
  "pads as large as the kernel": Wrong("smaller than the kernel", "FusedPool", {**K, "pads": [0, 3, 0, 0]}),
  "pads beside auto_pad": Wrong("remove one of them", "FusedPool", {**K, "pads": [1] * 4, "auto_pad": "SAME_UPPER"}),
  "dilated SAME": Wrong("write the pads", "FusedPool", {**K, "dilations": [2, 2], "auto_pad": "SAME_UPPER"}),
  "ceil_mode of 2": Wrong("must be 0 or 1", "FusedPool", {**K, "ceil_mode": 2}),
  "a maximum that counts": Wrong("count_include_pad", "FusedPool", {**K, "kind": "max", "count_include_pad": 1}),
  "a kernel too large": Wrong("spans 9 elements on spatial axis 1", "FusedPool", {**K, "kernel_shape": [3, 9]}),
  "another rank": Wrong("4 dimensions, but must have 3", "FusedPool", {**K, "kernel_shape": [3]}),
  "an average of bytes": Wrong("int8", "FusedPool", K, dtype=TensorProto.INT8),
  "no pixels": Wrong("spatial axis 1 of the input has no elements", "FusedPool", K, (1, 4, 6, 0)),
  "two inputs": Wrong("2 inputs", "FusedPool", K, inputs=2),
  "neither sizes nor scales": Wrong("'sizes' or 'scales'", "FusedResize", {}),
  "sizes and scales": Wrong("and not both", "FusedResize", {"sizes": [2, 2], "scales": [2.0, 2.0]}),
  "a cubic": Wrong("must be one of nearest, linear", "FusedResize", {"sizes": [2, 2], "mode": "cubic"}),
  "a size of 0": Wrong("must be from 1 to", "FusedResize", {"sizes": [2, 0]}),
  "a scale below 0": Wrong("must be positive", "FusedResize", {"scales": [2.0, -1.0]}),
  "a scale that is too large": Wrong("elements of the 6", "FusedResize", {"scales": [2.0, 1e9]}),
  "integers in between": Wrong("no linear", "FusedResize", {**SIZES}, dtype=TensorProto.INT32),
  "sizes of another rank": Wrong("4 dimensions, but must have 3", "FusedResize", {"sizes": [5]}),
}


@parametrize("known", [True, False], ids=["with the session", "at the run"])
@parametrize("name", WRONG)
def test_a_wrong_node_is_refused(name, known):
  """By ONNX Runtime, when the session is created or, where the shape is known late, when it runs; and in Python."""
  wrong = WRONG[name]
  numpy = helper.tensor_dtype_to_np_dtype(wrong.dtype)

  def use():
    session = make(wrong.model(known))
    session.run(None, {each.name: np.ones(wrong.shape, numpy) for each in session.get_inputs()})

  with pytest.raises(Exception) as caught:  # noqa: PT011, ONNX Runtime's own kinds
    use()
  types = [ortplugin.ops.TensorType(numpy, wrong.shape)] * wrong.inputs
  with pytest.raises(ortplugin.errors.ModelError) as spec:
    find(DOMAIN, wrong.op).infer_shapes(wrong.node(), types)
  for error in (caught.value, spec.value):
    assert_blamed(error, wrong.words, wrong.op)


def test_an_unknown_attribute_is_named():
  node = make_node("FusedPool", ["x"], ["y"], "culprit", domain=DOMAIN, kind="max", kernel_size=[2, 2])
  with raises(ortplugin.errors.ModelError, r"kernel_size.*did you mean kernel_shape"):
    find(DOMAIN, "FusedPool").infer_shapes(node, [ortplugin.ops.TensorType(None, None)])


def test_a_dilated_average_needs_an_opset():
  case = by_name["average, dilated, NCHW, float"]
  with raises(ortplugin.errors.ModelError, "opset 19"):
    find(DOMAIN, case.op).decompose(case.node(), 18)


# ---- threads


@parametrize("op", ["FusedPool", "FusedResize"])
def test_many_threads_run_one_session(op):
  """Each with a shape and values of its own, over and over: the same bits every time."""
  given = {**(POOL if op == "FusedPool" else {"mode": "linear", **SCALES}), "layout": "NHWC"}
  session = make(Case("threads", op, "float16", (), frozen(given)).model(None))

  def work(number):
    shape = (1 + number, (5, 33, 60, 21)[number % 4], 16 + number, (64, 3)[number % 2])
    case = Case(f"thread {number}", op, "float16", shape, frozen(given))
    wanted = run(session, case)
    check(case, wanted)
    for _ in range(10):
      assert (bits(run(session, case)) == bits(wanted)).all()

  in_threads(8, work)
