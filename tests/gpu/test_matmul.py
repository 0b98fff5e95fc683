"""FusedMatMul and FusedMatMulNorm in ONNX Runtime on a GPU: equal to their reference in every form, dtype and
algorithm, at odd addresses, with shapes that change, the same bits in every run and under CUDA graphs. The engines are
FusedConv's, whose tests have the rest."""

from dataclasses import replace
from functools import partial

import numpy as np
from conv_cases import BESIDE, BESIDE_CASES
from matmul_cases import (
  BARE,
  BIAS_RELU,
  GATES,
  INSIDE,
  LAYER_NORM,
  NORM_TEXTS,
  NORMS,
  PRODUCTS,
  RESIDUAL_RELU,
  TWO,
  check as check_exactly,
  expect,
  gated,
  made,
  normed,
  transposed,
)
from node_cases import UNIT_ROUNDOFF
from onnx_models import parametrize

from gpu.device import cupy, make, poison, run
from gpu.sessions import (
  Trial,
  check_addresses,
  check_all,
  check_capture,
  check_graph,
  check_repeats,
  check_threads,
  permuted,
  variants,
)
from gpu.test_few_output_channels import NOT_TAKEN
from ortplugin.ops.matmul import OPERATOR, norm as matmul_norm

GELU = "(T c, T b) => (T y) { a = Add(c, b) y = Gelu(a) }"
SEVERAL = "(T c, T b, T r) => (T s, T y) { a = Add(c, b) s = Add(a, r) y = Relu(s) }"


# The unit roundoff of the arithmetic, as of a library that rounds the value before the program.
CHECKED_UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float": 2.0**-24}


def check(case, found, inputs=None):
  """With a library the value may be rounded to its dtype before the program."""
  dtype = case.program.parameters[0].dtype
  rounded = "float16" if "allow_tf32" in case.attributes else dtype  # TF32 has its bits
  unit = max(UNIT_ROUNDOFF[rounded], UNIT_ROUNDOFF["float"]) if dtype != "double" else None
  expected = expect(case, inputs, unit)
  for number, result in enumerate(case.program.results):
    if result.dtype == "bool" and dtype in ("float16", "bfloat16"):  # comparisons may turn on that rounding
      assert (found[number] != expected.outputs[number]).mean() < 0.01
      expected.outputs[number] = expected.wide[number] = found[number]
  check_exactly(case, found, expected)


@parametrize("case", PRODUCTS)
def test_equals_the_reference(case):
  check(case, run(make(case.model()), case))


@parametrize("algorithm", ["auto", "whole", "apart"])
@parametrize("case", NORMS)
def test_a_norm_equals_the_reference(case, algorithm):
  case = replace(case, attributes={**case.attributes, "algorithm": algorithm})
  case.check(run(make(case.model()), case), CHECKED_UNIT.get(case.program.parameters[0].dtype))


# BERT's and ViT's layers: one tile of 64 rows, one of 128; float32 in TF32.
LARGE_NORMS = [
  normed(f"{algorithm}: {a}, {n}, {kind}, {dtype}", NORM_TEXTS[kind][0], dtype, a, n, keeps=keeps, constant=True,
         attributes={"algorithm": algorithm, **({"allow_tf32": 1} if dtype == "float" else {})})
  for a, n in (((8, 128, 3072), 768), ((8, 197, 768), 768), ((1, 1500, 384), 384), ((197, 64), 1024))
  for kind, keeps in (("layer norm", True), ("RMS norm", False))
  for dtype in ("float16", "bfloat16", "float")
  for algorithm in ("auto", "whole")
]  # fmt: skip


@parametrize("case", LARGE_NORMS)
def test_norms_of_large_products(case):
  dtype = case.program.parameters[0].dtype
  case.check(run(make(case.model()), case), 2.0**-11 if dtype == "float" else 2.0**-24)


# BERT's and GPT-2's layers, a decoding step, a head.
LARGE = [
  made(f"large: {name}, {dtype}", text, dtype, a, n, constant=True)
  for name, text, a, n in (
    ("up", GELU, (8, 128, 768), 3072),
    ("down", RESIDUAL_RELU, (2, 128, 3072), 768),
    ("one token", RESIDUAL_RELU, (1, 1, 768), 2304),
    ("few tokens", SEVERAL, (16, 1, 768), 768),
    ("one long token", RESIDUAL_RELU, (1, 1, 3072), 768),
    ("two long tokens", SEVERAL, (2, 1, 2048), 512),
    ("few long tokens", SEVERAL, (6, 1, 1500), 77),
    ("odd head", BARE, (1, 64, 768), 5003),
    ("two blocks", RESIDUAL_RELU, (250, 2816), 1024),
    ("six blocks, odd", SEVERAL, (60, 4096), 1002),
  )
  for dtype in ("float16", "bfloat16", "float")
]
# Of Llama: one kernel, in two forms of tiles; few rows, which are two; columns that fill no tile.
LARGE += [
  gated(f"gate: {kind}, {a}, {n}, {dtype}", GATES[kind], dtype, a, n, constant=True,
        attributes={"allow_tf32": 1} if dtype == "float" else {})
  for kind, a, n in (("SwiGLU", (1, 256, 1024), 2816), ("GEGLU with biases", (8, 128, 512), 1024),
                     ("two results", (3000, 256), 1000), ("SwiGLU", (2048, 1024), 2816), ("SwiGLU", (1, 1, 1024), 2816),
                     ("two results", (300, 64), 72), ("two results", (60, 3072), 776))
  for dtype in ("float16", "bfloat16", "float")
]  # fmt: skip
LARGE.append(made("wide: bands of columns", BARE, "float16", (5200, 32), 5200, constant=True))
LARGE += [transposed(case) for case in LARGE]
large = {case.name: case for case in LARGE}


@parametrize("case", LARGE)
def test_large_tensors(case):
  check(case, run(make(case.model()), case))


@parametrize("algorithm", ["own", "fused", "split"])
@parametrize("name", INSIDE)
@parametrize("turned", [False, True])
def test_operands_inside_the_rows(name, turned, algorithm):
  a, n, u, v = INSIDE[name]
  case = made(f"{name}, {algorithm}", TWO, "float16", a, n, {"u": u, "v": v}, attributes={"algorithm": algorithm})
  case = transposed(case) if turned else case
  check(case, run(make(case.model()), case))


@parametrize("name", ["down, float16", "down, float16, trans_b", "few tokens, bfloat16, trans_b"])
def test_every_algorithm(name):
  """What --tune is offered computes the same."""
  case = large[f"large: {name}"]
  found = variants(case, 1)
  assert found
  for each in found:
    check(case, run(make(replace(case, attributes=each).model()), case))


@parametrize("a, n", [((2, 6, 7, 5), 2), ((84, 5), 8), ((84, 6), 2), ((96, 64), 64)])
@parametrize("name, dtype, given", BESIDE_CASES)
def test_a_result_beside_another(name, dtype, given, a, n):
  """By every algorithm, in memory that no right run has filled: cuDNN 9.19 leaves some in float32 unwritten."""
  case = transposed(made(f"{name}, {a}, {n}, {dtype}", BESIDE[name], dtype, a, n, constant=True, attributes=given))
  node = lambda each: replace(case, attributes={**given, **each})  # noqa: E731
  session = lambda each: make(node(each).model(), **poison.provider_options())  # noqa: E731
  check_all(({}, *variants(case, 1)), lambda each: check(case, run(session(each), case)))


def test_no_rows_have_no_algorithms():
  assert not variants(made("none", BARE, "float16", (0, 64), 64))


TF32 = {"algorithm": "own", "allow_tf32": 1}
CHOSEN = [
  large["large: down, float16, trans_b"],
  large["large: one token, float16, trans_b"],
  large["large: few tokens, float16"],
  replace(large["large: up, bfloat16, trans_b"], attributes={"algorithm": "split"}),
  large["large: up, float"],
  replace(large["large: down, float, trans_b"], attributes=TF32),
  large["gate: SwiGLU, (1, 256, 1024), 2816, float16, trans_b"],
  large["gate: two results, (300, 64), 72, float16"],
  made("apart", TWO, "float16", *INSIDE["five axes"][:2], dict(zip("uv", INSIDE["five axes"][2:], strict=True))),
]
chosen = parametrize("case", CHOSEN)
CHOSEN_NORMS = [each for each in LARGE_NORMS if each.name.startswith("whole: (8, 197, 768), 768")]


@parametrize("case", CHOSEN_NORMS)
def test_runs_of_a_norm_are_bit_identical(case):
  check_repeats(case, 10, lambda number: cupy.full(1 << 22, np.nan if number % 2 else 7.0, np.float32))


@parametrize("case", [each for each in CHOSEN_NORMS if not each.keeps])
def test_a_cuda_graph_with_a_norm_gives_the_same_bits(case):
  other = replace(case, name=f"{case.name}, other")
  trials = [Trial(each.feeds(), partial(each.check, unit=2.0**-11), matmul_norm.reference(each.node(), each.inputs()))
            for each in (replace(each, constant=False) for each in (case, other))]  # fmt: skip
  check_graph(replace(case, constant=False).model(), trials)


def test_tensors_of_a_norm_may_start_anywhere():
  case = replace(CHOSEN_NORMS[0], constant=False)
  check_addresses(case, case.check, [([1, 0, 0, 0, 0, 0], [0, 0]), ([0, 1, 3, 5, 1, 0], [0, 1]), ([0], [1, 0])])


def test_shapes_of_a_norm_may_change_from_run_to_run():
  make_case = lambda rows: normed(f"rows {rows}", LAYER_NORM, "float16", (2, rows, 64), 256,  # noqa: E731
                                  attributes={"algorithm": "whole"})  # fmt: skip
  session = make(make_case(5).model([("n", "s", 64), (64, 256), (256,), ("n", "s", 256), (256,), (256,)]))
  for rows in (5, 0, 197, 3000, 20000, 1):
    case = make_case(rows)
    case.check(run(session, case))


@chosen
def test_runs_are_bit_identical(case):
  """Whatever stood in the output's memory before: nothing of it is read."""
  fill = lambda number: cupy.full(1 << 22, np.nan if number % 2 else 7.0, np.float32)  # noqa: E731
  check_repeats(case, 10, fill)


@chosen
def test_a_cuda_graph_gives_the_same_bits(case):
  def inputs(case, feeds):
    given = iter(feeds)
    named = zip(case.names, case.inputs(), strict=True)
    return [each if name in case.constants else next(given) for name, each in named]

  trials = permuted(case, lambda case, found, feeds: check(case, found, inputs(case, feeds)))
  check_graph(case.model(), trials)


@chosen
def test_tensors_may_start_anywhere(case):
  case = replace(case, constant=False)
  check_addresses(
    case, lambda found: check(case, found), [([1, 0, 0, 0], [0]), ([0, 1, 3, 5], [0]), ([0], [1]), ([1, 2, 3, 4], [5])]
  )


def trial(first, batch, rows):
  whole = (batch, rows, first.shapes[1][1])
  shapes = ((batch, rows, first.shapes[0][-1]), *first.shapes[1:3], whole)
  case = replace(first, name=f"{first.name} {shapes}", shapes=shapes)
  return Trial(case.feeds(), lambda found: check(case, found), OPERATOR.reference(case.node(), case.inputs()))


CHANGING = made("changing", RESIDUAL_RELU, "float16", (2, 37, 64), 48)
OPEN = [("n", "s", 64), (64, 48), (48,), ("n", "s", 48)]


def test_shapes_may_change_from_run_to_run():
  session = make(CHANGING.model(OPEN))
  for batch, rows in ((2, 37), (1, 1), (0, 37), (8, 128), (3, 1), (2, 37)):
    shapes = ((batch, rows, 64), (64, 48), (48,), (batch, rows, 48))
    case = replace(CHANGING, name=f"changing {shapes}", shapes=shapes)
    check(case, run(session, case))


def captured():
  return CHANGING.model(OPEN), trial(CHANGING, 2, 37), trial(CHANGING, 3, 37)


def test_new_shapes_are_refused_while_a_graph_is_captured():
  check_capture(captured, "product")


def test_many_threads_run_one_session():
  check_threads(CHANGING.model(OPEN), lambda number: trial(CHANGING, 1 + number, 20 + number))


def error_of(case, inputs, **provider):
  """Of a case of one result, relative to the largest of those that these inputs have."""
  (found,) = run(make(case.model(), **provider), case)
  (wanted,) = OPERATOR.reference(case.node(), inputs, rounded=False)
  return float(np.abs(found - wanted).max() / np.abs(wanted).max())


@parametrize("session", ["0", "1"])
@parametrize("said", [None, 0, 1])
def test_tf32_only_where_it_is_allowed(session, said):
  """Sums of 768 products in float32 are off by some 1e-7, of TF32 by some 1e-4."""
  attributes = {} if said is None else {"allow_tf32": said}
  case = transposed(made("float", BIAS_RELU, "float", (4, 196, 768), 256, constant=True, attributes=attributes))
  is_allowed = session == "1" if said is None else bool(said)
  error = error_of(case, case.inputs(), use_tf32=session)
  assert 2e-5 < error < 2e-3 if is_allowed else error < 5e-6


def to_tf32(array):
  return ((array.view(np.uint32) + np.uint32(1 << 12)) & np.uint32(0xFFFFE000)).view(np.float32)


# Rows, K, N: few of each; of gemm each kind of tile; what fills none.
@parametrize(
  "m, k, n",
  [
    (100, 12, 9), (16, 768, 3072), (128, 3072, 768), (256, 200, 1002), (1024, 768, 2304), (1576, 768, 2304),
    (1576, 3072, 768), (12608, 768, 768), (25088, 768, 2304),
  ],
)  # fmt: skip
@parametrize("text", [BARE, GELU, RESIDUAL_RELU], ids=["bare", "gelu", "residual"])
def test_factors_are_rounded_to_the_nearest(hopper, capfd, text, m, k, n):
  """By our engine; cut off they would make results smaller by some 1e-3."""
  case = transposed(made(f"tf32 {m} {k} {n}", text, "float", (m, k), n, constant=True, attributes=TF32))
  a, b, *operands = case.inputs()
  assert error_of(case, [to_tf32(a), to_tf32(b), *operands]) < 2e-4
  assert NOT_TAKEN not in capfd.readouterr().err
