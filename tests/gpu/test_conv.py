"""FusedConv in ONNX Runtime on a GPU: equal to its reference in every dtype, layout, form and algorithm, at odd
addresses, with shapes that change, under threads and CUDA graphs, and without TF32 unless it is allowed."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from conv_cases import BESIDE, BESIDE_CASES, CASES, GROUPED, ONE_SIDED, check as check_shared, expect as expect_shared
from node_cases import OPSET, UNIT_ROUNDOFF, planar, typed
from onnx import helper
from onnx_models import built, parametrize
from threads import in_threads

import ortplugin
from gpu.device import at_offset, before_nan, cupy, host, make, poison, python, run_bound, run_case, same_bits
from gpu.sessions import Trial, check_all, check_capture, check_graph, check_rounding, check_threads
from ortplugin.graph import TensorType
from ortplugin.ops.conv import OPERATOR, reference
from ortplugin.ops.conv.algorithms import device_variants
from ortplugin.program import NUMPY_DTYPES, parse

BARE = "(T c) => (T c) {}"
BIAS = "(T c, T b) => (T y) { y = Add(c, b) }"
RELU = "(T c, T b) => (T y) { v = Add(c, b) y = Relu(v) }"
RESIDUAL = "(T c, T b, T z) => (T y) { v = Add(c, b) s = Add(v, z) y = Relu(s) }"
SILU = "(T c, T b) => (T y) { v = Add(c, b) g = Sigmoid(v) y = Mul(v, g) }"
GELU = "(T c, T b) => (T y) { v = Add(c, b) y = Gelu(v) }"
SCALED = "(T c, T b, T s, T z) => (T y) { v = Add(c, b) w = Mul(v, s) y = Add(w, z) }"
SEVERAL = "(T c, T b) => (T y, T s) { s = Add(c, b) y = Relu(s) }"
WIDENED = "(T c, T b) => (float y) { v = Add(c, b) w = Sin(v) y = Cast<to=float>(w) }"
IN_DOUBLE = "(T c, T b) => (double y) { v = Add(c, b) y = Cast<to=double>(v) }"
SPLIT = "(T c, T b, T z) => (T y) { v = Add(c, b) w = Mish(v) m = Atan(w) y = Sub(m, z) }"

# What results may be off by, relative to the largest: roundings to the dtype, and of the sums. TF32 has the bits of
# float16, and is off by 3e-4.
BOUNDS = {"float16": 2e-3, "bfloat16": 1.6e-2, "float": 1e-5, "double": 1e-13}


@dataclass(frozen=True)
class Conv:
  """A node with its inputs.

  `x`: [N, C, spatial..] whatever the layout. The program's parameter "b" is a bias, "z" has the result's shape, "s"
  is a scale of each image and channel.
  """

  program: str
  dtype: str = "float16"
  layout: str = "NHWC"
  x: tuple[int, ...] = (2, 16, 9, 11)
  filters: int = 24
  kernel: tuple[int, ...] = (3, 3)
  group: int = 1
  constant: bool = True  # W and what is named "b" are initializers
  attributes: dict[str, Any] = field(default_factory=lambda: planar(pads=1))

  @property
  def text(self):
    return typed(self.program, self.dtype)

  def node(self):
    program = parse(self.text)
    names = ["x", "w", *(parameter.name for parameter in program.parameters[1:])]
    return helper.make_node(
      OPERATOR.name,
      names,
      [f"{result.name}_out" for result in program.results],
      "conv",
      domain=OPERATOR.domain,
      program=self.text,
      layout=self.layout,
      kernel_shape=list(self.kernel),
      group=self.group,
      **self.attributes,
    )

  def ordered(self, shape):
    return shape if self.layout == "NCHW" else (shape[0], *shape[2:], shape[1])

  def open_shapes(self):
    """As `model` declares them where nothing is known of images but their channels."""
    x, z = self.ordered(("n", self.x[1], "h", "w")), self.ordered(("n", self.filters, "p", "q"))
    return {"x": x, "z": z, "s": self.ordered(("n", self.filters, 1, 1))}

  def shapes(self):
    """Of every input, as it lies in memory."""
    w = (self.filters, self.x[1] // self.group, *self.kernel)
    first = self.attributes.get("input_layout") == "NCHW"
    found = {"x": self.x if first else self.ordered(self.x), "w": self.ordered(w)}
    numpy = NUMPY_DTYPES[self.dtype]
    bare = replace(self, program=BARE)
    (result,) = OPERATOR.infer_shapes(bare.node(), [TensorType(numpy, shape) for shape in found.values()])
    assert result.shape is not None
    full = tuple(int(dim) for dim in result.shape if isinstance(dim, int))
    ones = (1,) * (len(self.x) - 2)
    kinds = {"b": self.ordered((1, self.filters, *ones))[1:], "z": full}
    kinds["s"] = self.ordered((self.x[0], self.filters, *ones))
    return found | {parameter.name: kinds[parameter.name] for parameter in parse(self.text).parameters[1:]}

  def arrays(self, seed=""):
    """Inputs by name; weights are scaled so that results are of the order of one."""
    rng = np.random.default_rng(zlib.crc32((seed + str(self)).encode()))
    dtypes = {parameter.name: parameter.dtype for parameter in parse(self.text).parameters}
    made = {}
    for name, shape in self.shapes().items():
      scale = 1 / np.sqrt(np.prod(shape[1:])) if name == "w" else 1
      made[name] = (rng.standard_normal(shape) * scale).astype(NUMPY_DTYPES[dtypes.get(name, self.dtype)])
    return made

  def model(self, arrays, shapes=None):
    """A model of the node; `shapes` declares other shapes than the arrays have."""
    program = parse(self.text)
    fixed = ("w", "b") if self.constant else ()
    inputs = {
      name: (helper.np_dtype_to_tensor_dtype(array.dtype), (shapes or {}).get(name, array.shape))
      for name, array in arrays.items()
      if name not in fixed
    }
    outputs = {f"{result.name}_out": (result.dtype, None) for result in program.results}
    weights = {name: array for name, array in arrays.items() if name in fixed}
    return built([self.node()], inputs, outputs, OPSET, 9, domains=["ortplugin"], weights=weights).SerializeToString()

  def feeds(self, arrays):
    return {name: array for name, array in arrays.items() if not (self.constant and name in ("w", "b"))}

  def check(self, arrays, found):
    node, bound = self.node(), BOUNDS["float16" if self.attributes.get("allow_tf32") else self.dtype]
    wanted = reference(node, [arrays[name] for name in node.input])
    assert len(found) == len(wanted)
    for got, want in zip(found, wanted, strict=True):
      assert got.dtype == want.dtype
      assert got.shape == want.shape
      scale = np.abs(want.astype(np.float64)).max()
      if want.size == 1 and "b" in arrays:  # of one sum little may be left, or nothing
        scale = max(scale, np.abs(arrays["b"].astype(np.float64)).max())
      error = np.abs(got.astype(np.float64) - want.astype(np.float64)).max() / scale
      assert error < bound, f"{self}: {error:.1e}"

  def trial(self, seed="", constants=None):
    """A run whose constants are those of this convolution (or of `constants`) without a seed."""
    fixed = (constants or self).arrays()
    arrays = self.arrays(seed) | {name: fixed[name] for name in "wb"}
    node = self.node()
    like = reference(node, [arrays[name] for name in node.input])
    return Trial(self.feeds(arrays), partial(self.check, arrays), like)

  def found(self, arrays, **provider):
    """The outputs of a session of its own."""
    return host(ortplugin.run(make(self.model(arrays), **provider), self.feeds(arrays)))

  def run(self, seed="", **provider):
    arrays = self.arrays(seed)
    found = self.found(arrays, **provider)
    self.check(arrays, found)
    return found


# ---- parity


# What becomes of infinities and NaN is cuDNN's to say: some of its kernels multiply them by padding.
SHARED = [case for case in CASES if case.values != "special"]


@parametrize("case", SHARED)
def test_equals_the_reference(case):
  """Where the program is not in cuDNN's kernel, the convolution's value is rounded to its dtype before it."""
  unit = UNIT_ROUNDOFF[case.program.parameters[0].dtype]
  expected = expect_shared(case, unit=unit)
  found = run_case(case)
  for number, result in enumerate(case.program.results):
    if result.dtype == "bool" and unit > UNIT_ROUNDOFF["float"]:  # comparisons may turn on that rounding
      assert (found[number] != expected.outputs[number]).mean() < 0.01
      expected.outputs[number] = expected.wide[number] = found[number]
  check_shared(case, found, expected)


# What is small and has its channels last is done by a kernel of ours, if cuDNN is not asked for.
WAYS = [("NCHW", "auto"), ("NHWC", "auto"), ("NHWC", "fused")]


def done_by(conv, algorithm):
  return replace(conv, attributes={**conv.attributes, "algorithm": algorithm})


@parametrize("dtype", BOUNDS)
@parametrize("layout, algorithm", WAYS)
@parametrize(
  "program", [BARE, RELU, RESIDUAL, SILU, GELU, SCALED, SEVERAL, WIDENED, IN_DOUBLE, SPLIT], ids=lambda text: text[-40:]
)
def test_every_epilogue(program, layout, algorithm, dtype):
  done_by(Conv(program, dtype, layout), algorithm).run()


# Name to attributes of Conv; x has 2 images, 16 channels.
FORMS = {
  "1x1": {"kernel": (1, 1), "attributes": {}},
  "1x1, stride 2": {"kernel": (1, 1), "attributes": {"strides": [2, 2]}},
  "3x3, stride 2": {"attributes": planar(pads=1, strides=2)},
  "5x3, unequal": {"kernel": (5, 3), "attributes": {"pads": [2, 0, 1, 3], "strides": [1, 2]}},
  "dilated": {"attributes": planar(pads=2, dilations=2)},
  "same upper": {"attributes": {"auto_pad": "SAME_UPPER", "strides": [2, 2]}},
  "valid": {"attributes": {"auto_pad": "VALID"}},
  "groups": {"group": 4},
  "depthwise": {"group": 16, "filters": 16},
  "depthwise, 5x5, stride 2": {
    "group": 16,
    "filters": 16,
    "kernel": (5, 5),
    "attributes": planar(pads=2, strides=2),
  },
  "depthwise, two of each": {"group": 16, "filters": 32},
  "stem": {"x": (2, 3, 32, 32), "filters": 32, "kernel": (7, 7), "attributes": planar(pads=3, strides=2)},
  "stem, 3x3": {"x": (2, 3, 31, 33), "filters": 16, "attributes": planar(pads=1, strides=2)},
  "stem, two columns at once": {
    "x": (2, 3, 31, 64),
    "filters": 128,
    "kernel": (3, 4),
    "attributes": planar(pads=1, strides=[1, 2]),
  },
  "one channel": {"x": (3, 1, 28, 28), "filters": 16},
  "odd channels": {"x": (2, 13, 9, 11), "filters": 27},
  "one pixel": {"x": (5, 32, 1, 1), "filters": 48, "kernel": (1, 1), "attributes": {}},
  "one image": {"x": (1, 64, 14, 14), "filters": 64},
  "large": {"x": (4, 64, 56, 56), "filters": 64},
  "a row": {"x": (2, 16, 33), "kernel": (3,), "attributes": {"pads": [1, 1]}},
  "a row, stride 2": {"x": (2, 16, 33), "kernel": (5,), "attributes": {"pads": [2, 1], "strides": [2]}},
  "frames": {"x": (2, 16, 5, 8, 9), "kernel": (1, 3, 3), "attributes": {"pads": [0, 1, 1] * 2}},
  "in time": {"x": (2, 16, 7, 8, 9), "kernel": (3, 1, 1), "attributes": {"strides": [2, 1, 1]}},
  "a volume": {"x": (2, 16, 7, 8, 9), "kernel": (3, 3, 3), "attributes": {"pads": [1] * 6}},
}


@parametrize("dtype", ["float16", "bfloat16", "float"])
@parametrize("layout, algorithm", WAYS)
@parametrize("form", FORMS)
def test_every_form(form, layout, algorithm, dtype):
  done_by(Conv(RESIDUAL, dtype, layout, **FORMS[form]), algorithm).run()


@parametrize("dtype", ["float16", "float"])
def test_weights_that_are_inputs(dtype):
  for form in ("3x3, stride 2", "depthwise", "stem"):
    for layout in ("NCHW", "NHWC"):
      Conv(RESIDUAL, dtype, layout, constant=False, **FORMS[form]).run()


def error_of(conv, **provider):
  """Of a bare float32 convolution, relative to the largest result."""
  arrays = conv.arrays()
  (found,) = conv.found(arrays, **provider)
  node = conv.node()
  (wanted,) = reference(node, [arrays[name] for name in node.input], rounded=False)
  return float(np.abs(found - wanted).max() / np.abs(wanted).max())


@parametrize("layout", ["NCHW", "NHWC"])
@parametrize("program", [BARE, RELU, SILU, IN_DOUBLE], ids=["bare", "relu", "silu", "double"])
@parametrize("session", ["0", "1"])
@parametrize("said", [None, 0, 1])
def test_tf32_only_where_it_is_allowed(program, layout, session, said):
  """By the node, or where it says nothing by the session. 64 channels of 3x3: sums in float32 are off by some 1e-7,
  products of TF32 by some 1e-4."""
  conv = Conv(program, "float", layout, (4, 64, 28, 28), 64)
  if said is not None:
    conv = replace(conv, attributes={**conv.attributes, "allow_tf32": said})
  is_allowed = session == "1" if said is None else bool(said)
  error = error_of(conv, use_tf32=session)
  assert 2e-5 < error < 2e-3 if is_allowed else error < 5e-6


def test_the_sessions_word_on_tf32_in_a_graph():
  """Whose kernels were planned when the session was made, before any run could tell."""
  conv = Conv(RELU, "float", "NHWC", (4, 64, 28, 28), 64)
  arrays = conv.arrays()
  model, feeds = conv.model(arrays), conv.feeds(arrays)
  for word in ("0", "1"):
    graph = ortplugin.session(model, [("cuda", {"use_tf32": word})], cuda_graph=True)
    wanted = host(ortplugin.run(make(model, use_tf32=word), feeds))
    for _ in range(3):
      assert same_bits(host(ortplugin.run(graph, feeds)), wanted)


# ---- algorithm


def algorithms(conv, arrays):
  types = [TensorType(array.dtype, array.shape) for array in arrays.values()]
  constant = [conv.constant and name in ("w", "b") for name in arrays]
  return [str(each["algorithm"]) for each in device_variants(conv.node(), types, constant)]


@parametrize("group", [1, 64])
def test_no_images_have_no_algorithms(group):
  conv = Conv(BARE, x=(0, 64, 14, 14), filters=64, group=group)
  assert algorithms(conv, conv.arrays()) == []


@parametrize(
  "conv",
  [
    Conv(RESIDUAL, x=(2, 64, 14, 14), filters=64),
    Conv(RELU, "float", "NCHW", (2, 16, 14, 14), 32),
    Conv(SILU, x=(2, 64, 14, 14), filters=64, group=64),
    Conv(BARE, x=(2, 64, 14, 14), filters=64),
  ],
  ids=["fp16", "few channels, float", "depthwise", "bare"],
)
def test_every_algorithm(conv):
  """What --tune is offered computes the same, and is what it says: nothing warns."""
  found = algorithms(conv, conv.arrays())
  assert len(found) > 1
  for algorithm in found:
    code = "from gpu.test_conv import *\n"
    each = done_by(conv, algorithm)
    each.run()
    if algorithm in (found[0], found[-1]):
      done = python(code + f"{each!r}.run()\n")
      assert done.returncode == 0, done.stderr
      assert "algorithm" not in done.stderr


SIGMOID = "(T c) => (T y) { y = Sigmoid(c) }"
SHIFTED = "(T c) => (T y) { y = Add(c, 0.25) }"
ADDED = "(T c, T z) => (T y) { y = Add(c, z) }"
# x, filters, kernel, more: the image, the result or both have one pixel, in one to three dimensions.
PIXELS = [
  ((4, 16, 1, 1), 24, (1, 1), {}),
  ((4, 16, 1, 1), 16, (3, 3), {"attributes": {"pads": [1] * 4}}),
  ((2, 16, 3, 3), 16, (3, 3), {}),
  ((2, 16, 1, 1), 8, (1, 1), {"attributes": {"pads": [1] * 4}}),
  ((4, 1, 3, 3), 16, (3, 3), {}),
  ((3, 16, 1, 7), 16, (1, 7), {}),
  ((2, 2, 1), 2, (3,), {"group": 2, "attributes": {"pads": [1, 1]}}),
  ((2, 1, 1), 2, (1,), {}),
  ((2, 16, 1), 16, (3,), {"attributes": {"pads": [1, 1]}}),
  ((2, 6, 1, 1, 1), 4, (1, 1, 1), {}),
  ((2, 6, 1, 1, 1), 4, (3, 3, 3), {"attributes": {"pads": [1] * 6}}),
]


@parametrize("dtype", ["float16", "bfloat16", "float"])
@parametrize("program", [BARE, SIGMOID, SHIFTED, ADDED], ids=["bare", "sigmoid", "shifted", "added"])
@parametrize("number", range(len(PIXELS)))
def test_images_of_one_pixel(number, program, dtype):
  """By every algorithm, with TF32: cuDNN 9.19 proposes kernels that mistake the layout of such images."""
  x, filters, kernel, more = PIXELS[number]
  tf32 = {"allow_tf32": 1} if dtype == "float" else {}
  conv = Conv(program, dtype, "NCHW", x, filters, kernel, **{"attributes": {}} | more)
  conv = replace(conv, attributes={**conv.attributes, **tf32})
  arrays = conv.arrays()
  for algorithm in algorithms(conv, arrays):
    conv.check(arrays, done_by(conv, algorithm).found(arrays))


@parametrize("program", [BARE, RELU, SILU], ids=["bare", "relu", "silu"])
@parametrize("x, filters, strides", [((4, 3, 64, 64), 16, 2), ((2, 16, 28, 28), 24, 1), ((2, 48, 28, 28), 96, 2)])
def test_factors_are_rounded_to_the_nearest(x, filters, strides, program):
  """By every algorithm, in TF32: cuDNN 9.19 proposes kernels that cut them off, by which results are 7e-4 smaller."""
  attributes = planar(pads=1, strides=strides) | {"allow_tf32": 1}
  conv = Conv(program, "float", "NHWC", x, filters, attributes=attributes)
  arrays = conv.arrays()
  node = conv.node()
  (wanted,) = reference(node, [arrays[name] for name in node.input], rounded=False)

  def check(algorithm):
    (found,) = done_by(conv, algorithm).found(arrays)
    check_rounding(found, wanted)

  check_all(("auto", *algorithms(conv, arrays)), check)


@parametrize("layout", ["NCHW", "NHWC"])
@parametrize("program", [SILU, SCALED], ids=["silu", "scaled"])
def test_exact_float32_has_no_kernels_compiled_by_cudnn(program, layout):
  """cuDNN 9.19 compiles ones without tensor cores, a hundred times slower than its ready-made ones."""
  conv = Conv(program, "float", layout, (2, 64, 28, 28), 64)
  found = algorithms(conv, conv.arrays())
  assert any(each.startswith("split") for each in found)
  assert not any(each.startswith("fused") for each in found)


@parametrize("layout", ["NCHW", "NHWC"])
@parametrize("name, dtype, given", BESIDE_CASES)
@parametrize("kernel, filters", [((3, 3), 24), ((1, 1), 32)])
def test_a_result_beside_another(kernel, filters, name, dtype, given, layout):
  """By every algorithm, in memory that no right run has filled: cuDNN 9.19 leaves some in float32 unwritten."""
  pads = {"pads": [size // 2 for size in kernel] * 2}
  conv = Conv(BESIDE[name], dtype, layout, filters=filters, kernel=kernel, attributes={**pads, **given})
  arrays = conv.arrays()
  found = lambda each: done_by(conv, each).found(arrays, **poison.provider_options())  # noqa: E731
  check_all(("auto", *algorithms(conv, arrays)), lambda each: conv.check(arrays, found(each)))


# x, filters, kernel, strides, pads: more on one side than on the other.


@parametrize("dtype", ["float16", "bfloat16", "float"])
@parametrize("layout", ["NCHW", "NHWC"])
@parametrize("groups", ["one", "two", "channels"])
@parametrize("number", range(len(ONE_SIDED)))
def test_pads_of_one_side(number, groups, layout, dtype):
  """By every algorithm: cuDNN 9.19 has an engine that pads both sides alike."""
  x, filters, kernel, strides, pads = ONE_SIDED[number]
  group = {"one": 1, "two": 2, "channels": filters}[groups]
  conv = Conv(BARE, dtype, layout, x, filters, kernel, group, attributes={"pads": pads, "strides": strides})
  arrays = conv.arrays()
  check_all(("auto", *algorithms(conv, arrays)), lambda each: conv.check(arrays, done_by(conv, each).found(arrays)))


@parametrize("dtype", ["float16", "bfloat16", "float"])
@parametrize("layout", ["NCHW", "NHWC"])
@parametrize("number", range(len(GROUPED)))
def test_groups_end_with_the_tensor(number, layout, dtype):
  """By every algorithm: cuDNN 9.19 has engines that multiply by 0 what lies behind the last group's channels."""
  x, filters, kernel, group = GROUPED[number]
  pads = [size // 2 if x[2] == 1 else 0 for size in kernel] * 2
  conv = Conv(BIAS, dtype, layout, x, filters, kernel, group, attributes={"pads": pads})
  arrays = conv.arrays()
  feeds = {"x": before_nan(arrays["x"])}

  def attempt(algorithm):
    conv.check(arrays, host(ortplugin.run(make(done_by(conv, algorithm).model(arrays)), feeds)))

  check_all(("auto", *algorithms(conv, arrays)), attempt)


# Attributes for which a maximum, a minimum or a product of signs is not what the operator is.
UNUSUAL = {
  "LeakyRelu, steeper below 0": "y = LeakyRelu<alpha=1.5>(v)",
  "LeakyRelu, falling below 0": "y = LeakyRelu<alpha=-0.5>(v)",
  "PRelu": "y = PRelu(v, b)",
  "Elu, steep": "y = Elu<alpha=2.5>(v)",
  "Elu, falling below 0": "y = Elu<alpha=-1.5>(v)",
  "Selu": "y = Selu<alpha=-1.25, gamma=-0.5>(v)",
  "Swish": "y = Swish<alpha=-1.5>(v)",
  "HardSigmoid, falling": "y = HardSigmoid<alpha=-0.5, beta=0.75>(v)",
  "HardSigmoid, above 1": "y = HardSigmoid<alpha=0.25, beta=1.5>(v)",
  "Clip below 0": "y = Clip(v, -1, -0.25)",
  "Clip to one number": "y = Clip(v, 0.5, 0.5)",
  "Clip, bounds the wrong way round": "y = Clip(v, 0, -1)",
}


@parametrize("dtype", ["float16", "bfloat16", "float"])
@parametrize("name", UNUSUAL)
def test_unusual_attributes(name, dtype):
  """By every algorithm: cuDNN's ReLU with a slope is max(x, slope x), which is none with a slope above 1."""
  program = f"(T c, T b) => (T y) {{ v = Add(c, b) {UNUSUAL[name]} }}"
  tf32 = {"allow_tf32": 1} if dtype == "float" else {}
  convs = (
    Conv(program, dtype),
    Conv(program, dtype, "NCHW", (2, 16, 7, 7), 16),
    Conv(program, dtype, "NHWC", (1, 1, 1, 1, 1), 1, (1, 1, 1), attributes=tf32),
  )

  def attempt(conv):
    arrays = conv.arrays()
    conv.check(arrays, conv.found(arrays))

  check_all((done_by(conv, each) for conv in convs for each in ("auto", *algorithms(conv, conv.arrays()))), attempt)


@parametrize("dtype", ["float16", "float"])
@parametrize("layout, x", [("NCHW", (2, 16, 5, 5)), ("NHWC", (15, 512, 15))])
def test_a_literal_beside_one_filter(layout, x, dtype):
  """cuDNN 9.19 takes the literal, whose dims are those of a bias then, for an address."""
  conv = Conv(SHIFTED, dtype, layout, x, 1, (1,) * (len(x) - 2), attributes={})
  for algorithm in algorithms(conv, conv.arrays()):
    done_by(conv, algorithm).run()


@parametrize("algorithm", ["fused:engine=9999;k2=1", "split:engine=9999", "own"])
def test_an_algorithm_that_is_not_there_is_auto(algorithm):
  conv = done_by(Conv(RESIDUAL, "float", x=(2, 64, 14, 14), filters=64, group=2), algorithm)
  done = python(f"from gpu.test_conv import *\nfor _ in range(2): {conv!r}.run()\n")
  assert done.returncode == 0, done.stderr
  assert f"node 'conv': the algorithm '{algorithm}' is not used, but auto" in done.stderr
  assert done.stderr.count("is not used") == 2  # once for each session


@parametrize("algorithm", ["", "fast", "auto:engine=1", "fused:", "split:engine=x", "own:engine=1"])
def test_algorithms_that_are_none_are_refused(algorithm):
  conv = Conv(RELU, attributes=planar(pads=1, algorithm=algorithm))
  with pytest.raises(Exception, match=re.compile("node 'conv'.*algorithm", re.DOTALL)):
    conv.run()


# ---- shapes, addresses, threads


@parametrize("dtype", ["float16", "float"])
@parametrize("layout", ["NCHW", "NHWC"])
@parametrize("channels", [1, 16])
def test_shapes_may_change_from_run_to_run(channels, layout, dtype):
  base = Conv(RESIDUAL, dtype, layout, (2, channels, 9, 11))
  session = None
  for sizes in ((2, 9, 11), (1, 9, 11), (5, 30, 7), (0, 9, 11), (64, 9, 11), (2, 9, 11)):
    conv = replace(base, x=(sizes[0], channels, *sizes[1:]))
    arrays = conv.arrays("same") | {name: base.arrays("same")[name] for name in "wb"}
    if session is None:
      session = make(base.model(arrays, base.open_shapes()))
    found = host(ortplugin.run(session, conv.feeds(arrays)))
    if sizes[0] == 0:
      assert found[0].shape == conv.shapes()["z"]
    else:
      conv.check(arrays, found)


@parametrize(
  "conv",
  [
    Conv(RESIDUAL),
    done_by(Conv(RESIDUAL), "fused"),
    done_by(Conv(SPLIT), "split"),
    Conv(SEVERAL, "float", "NCHW"),
    Conv(RELU, group=16, filters=16),
    Conv(RELU, "float", "NCHW", (3, 1, 28, 28), 16),
  ],
  ids=["few pixels", "fused", "split", "float", "depthwise", "few channels"],
)
def test_tensors_may_start_anywhere(conv):
  conv = replace(conv, constant=False)
  arrays = conv.arrays()
  session = make(conv.model(arrays))
  for offsets in ((1, 0, 0, 0, 0), (0, 1, 0, 0, 0), (0, 0, 3, 1, 0), (0, 0, 0, 0, 1), (1, 2, 3, 4, 5)):
    inputs = {n: at_offset(a, o) for (n, a), o in zip(arrays.items(), offsets, strict=False)}
    blank = [np.zeros_like(a) for a in reference(conv.node(), list(arrays.values()))]
    outputs = [at_offset(array, offsets[-1]) for array in blank]
    run_bound(session, list(inputs.values()), outputs)
    conv.check(arrays, [cupy.asnumpy(array) for array in outputs])


CHOSEN = {
  "few pixels": Conv(RESIDUAL, x=(2, 64, 28, 28), filters=64),
  "fused": done_by(Conv(RESIDUAL, x=(2, 64, 28, 28), filters=64), "fused"),
  "split": done_by(Conv(SPLIT, x=(2, 64, 28, 28), filters=64), "split"),
  "scratch": done_by(Conv(WIDENED, x=(2, 64, 28, 28), filters=64), "split"),
  "channels first": Conv(RESIDUAL, "float16", "NCHW", (2, 64, 28, 28), 64),
  "float": Conv(RESIDUAL, "float", "NCHW", (2, 64, 28, 28), 64),
  "few channels": Conv(RESIDUAL, "float", "NCHW", (7, 4, 14, 14), 32),
  "sixteen channels": done_by(Conv(RESIDUAL, "float", "NCHW", (7, 16, 14, 14), 32), "own"),
  "depthwise": Conv(SILU, x=(2, 64, 28, 28), filters=64, group=64),
}


@parametrize("name", CHOSEN)
def test_runs_are_bit_identical(name):
  conv = CHOSEN[name]
  arrays = conv.arrays()
  session = make(conv.model(arrays))
  first = host(ortplugin.run(session, conv.feeds(arrays)))
  for _ in range(100):
    assert same_bits(host(ortplugin.run(session, conv.feeds(arrays))), first)
  assert same_bits(conv.run(), first)


@parametrize("name", CHOSEN)
def test_a_cuda_graph_gives_the_same_bits(name):
  conv = CHOSEN[name]
  check_graph(conv.model(conv.arrays()), [conv.trial(f"replay {number}") for number in range(3)])


def captured():
  base = Conv(RESIDUAL)
  first, later = (replace(base, x=(images, *base.x[1:])).trial(constants=base) for images in (3, 5))
  return base.model(base.arrays(), base.open_shapes()), first, later


def test_new_shapes_under_capture_are_refused():
  check_capture(captured, "conv")


def test_many_threads_run_one_session():
  base = Conv(RESIDUAL)

  def trial_of(number):
    return replace(base, x=(2 if number % 2 else number + 3, *base.x[1:])).trial(str(number), base)

  check_threads(base.model(base.arrays(), base.open_shapes()), trial_of)


def test_threads_make_sessions_at_once():
  def work(number):
    for conv in CHOSEN.values():
      conv.run(str(number % 2))

  in_threads(6, work)


# ---- without cuDNN

WITHOUT_CUDNN = """
from gpu.test_conv import *
try:
    {conv!r}.run()
    print("ran")
except Exception as error:
    print(error)
"""


def hidden(conv):
  """What a run prints where the only cuDNN that may be tried is not there."""
  done = python(WITHOUT_CUDNN.format(conv=conv), ORTPLUGIN_CUDNN="/nonexistent/libcudnn.so.9")
  assert done.returncode == 0, done.stderr
  return done.stdout


def test_without_cudnn_the_node_and_the_package_are_named():
  message = hidden(done_by(Conv(RESIDUAL), "fused"))
  assert "node 'conv'" in message
  assert "nvidia-cudnn" in message


def test_without_cudnn_our_own_kernels_run():
  """Where they are what `auto` takes, and where they are asked for."""
  # On GPUs without a kernel for few pixels that one is cuDNN's.
  of_hopper = ["few pixels"] if cupy.cuda.Device().compute_capability == "90" else []
  for name in ("depthwise", "few channels", "sixteen channels", *of_hopper):
    assert hidden(CHOSEN[name]) == "ran\n", name
