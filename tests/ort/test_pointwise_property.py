"""Random programs as FusedPointwise, as ONNX's own operators and in the reference: the same numbers.

Integers and bools are equal, NaNs and infinities are in the same places, other values within what rounding in the
dtype can do. The same programs in every run, unless ORTPLUGIN_PROPERTY_EXAMPLES says how many random ones to try.
"""

import os
from collections import Counter

import numpy as np
import onnxruntime
from hypothesis import HealthCheck, Phase, assume, given, settings, strategies as st
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel
from pointwise_programs import (
  IMPRECISE,
  POINTWISE,
  compare_fused,
  compare_onnx,
  estimates,
  examples,
  fused_graph,
  onnx_results,
  session_of,
)
from sample import SAMPLING

import ortplugin
from ortplugin.errors import ModelError
from ortplugin.ops.decompose import to_onnx
from ortplugin.program import DTYPES, INTEGERS, NUMPY_DTYPES, parse

GIVEN = os.environ.get("ORTPLUGIN_PROPERTY_EXAMPLES")
EXAMPLES = int(GIVEN or (150 if SAMPLING else 1500))


def fused_results(example):
  """The program as one FusedPointwise."""
  options = onnxruntime.SessionOptions()
  ortplugin.register(options)
  found = ortplugin.run(session_of(fused_graph(example), options), example.feeds())
  return {each.name: found[f"out_{each.name}"] for each in example.program.results}


def test_fused_like_onnxs_own_operators():
  seen = Counter()

  @settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=GIVEN is None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
  )
  @given(examples())
  def check(example):
    program = example.program
    assert str(parse(str(program))) == str(program)
    feeds = example.feeds()
    wanted = estimates(program, list(feeds.values()))
    shape = np.broadcast_shapes(*example.shapes)
    fused = fused_results(example)
    theirs = onnx_results(example)
    for result in program.results:
      estimate = wanted[result.name]
      try:
        compare_fused(fused[result.name], estimate, result.dtype, shape)
      except AssertionError as error:
        raise AssertionError(f"'{result.name}', fused: {error}\n{program}\n{feeds}") from error
      seen["elements"] += estimate.unknown.size
      seen["compared"] += int((~estimate.unknown).sum())
      if result.name in theirs:
        try:
          compare_onnx(theirs[result.name], estimate, result.dtype)
        except AssertionError as error:
          raise AssertionError(f"'{result.name}', ONNX: {error}\n{program}\n{feeds}") from error
        seen["compared with ONNX"] += int((~(estimate.unknown | estimate.left_open)).sum())
    seen.update({statement.op for statement in program.statements} | set(program.dtypes.values()))

  check()
  assert SAMPLING or {*POINTWISE, *DTYPES} <= seen.keys()  # a sample is too small to have each
  assert seen["compared"] > 0.8 * seen["elements"], seen
  assert seen["compared with ONNX"] > 0.5 * seen["elements"], seen


def decomposes(program, example):
  """Whether the decomposition is the program's equal: ONNX defines all of it, and nothing is rounded to 16 bits."""
  shapes = {p.name: shape for p, shape in zip(program.parameters, example.shapes, strict=True)}
  for statement in program.statements:
    shapes[statement.name] = np.broadcast_shapes(*[shapes[name] for name in statement.names])
    numbers = [x for x in statement.operands[1:] if not isinstance(x, str)]
    dtype = program.operand_dtype(statement)
    divides = dtype in INTEGERS and statement.op in ("Div", "Mod")
    if divides and (not numbers or numbers[0] in (0, -1)):  # ONNX Runtime's process ends in a division by 0
      return False
    if (statement.op, dtype) in IMPRECISE:
      return False
    if statement.op == "Clip" and len(numbers) < 2:  # ONNX's limits are scalars
      return False
    if statement.op == "PRelu" and not all(isinstance(x, str) for x in statement.operands):
      return False
    if statement.op == "PRelu" and shapes[statement.names[0]] != shapes[statement.name]:  # its slope is the smaller
      return False
  return not {"float16", "bfloat16"} & set(program.dtypes.values())


def test_decomposed_like_the_reference():
  seen = Counter()

  @settings(
    max_examples=EXAMPLES // 3,
    deadline=None,
    derandomize=GIVEN is None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
  )
  @given(examples(), st.sampled_from([11, 13, 18, 20]))
  def check(example, opset):
    program = example.program
    assume(decomposes(program, example))
    names = [parameter.name for parameter in program.parameters]
    outputs = [f"out_{result.name}" for result in program.results]
    try:
      session = session_of(fused_graph(example, to_onnx(program, names, outputs, opset, "t")), opset=opset)
    except (ModelError, NoKernel) as error:  # Bitwise operators before opset 18; what ONNX Runtime lacks
      seen[type(error).__name__] += 1
      return
    feeds = example.feeds()
    wanted = estimates(program, list(feeds.values()))
    found = ortplugin.run(session, feeds)
    shape = np.broadcast_shapes(*example.shapes)
    for result in program.results:
      got = found[f"out_{result.name}"]
      assert (got.dtype, got.shape) == (NUMPY_DTYPES[result.dtype], shape)
      compare_onnx(got, wanted[result.name], result.dtype)
    seen[f"opset {opset}"] += 1

  check()
  assert all(seen[f"opset {opset}"] > EXAMPLES // 150 for opset in (11, 13, 18, 20)), seen
