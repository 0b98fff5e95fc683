"""Random programs as FusedPointwise and in the reference: the same numbers.

Integers and bools are equal, NaNs and infinities are in the same places, other values within what rounding in the
dtype can do. The same programs in every run, unless ORTPLUGIN_PROPERTY_EXAMPLES says how many random ones to try.
"""

import os
from collections import Counter

import numpy as np
import onnxruntime
from hypothesis import HealthCheck, Phase, given, settings
from pointwise_programs import POINTWISE, compare_fused, estimates, examples, fused_graph, model_of
from sample import SAMPLING

import ortplugin
from ortplugin.program import DTYPES, parse

GIVEN = os.environ.get("ORTPLUGIN_PROPERTY_EXAMPLES")
EXAMPLES = int(GIVEN or (150 if SAMPLING else 1500))


def fused_results(example):
  """The program as one FusedPointwise."""
  options = onnxruntime.SessionOptions()
  options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL  # which would drop copies
  ortplugin.register(options)
  session = onnxruntime.InferenceSession(model_of(fused_graph(example)), options, providers=["CPUExecutionProvider"])
  found = ortplugin.run(session, example.feeds())
  return {each.name: found[f"out_{each.name}"] for each in example.program.results}


def test_fused_like_the_reference():
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
    for result in program.results:
      estimate = wanted[result.name]
      try:
        compare_fused(fused[result.name], estimate, result.dtype, shape)
      except AssertionError as error:
        raise AssertionError(f"'{result.name}', fused: {error}\n{program}\n{feeds}") from error
      seen["elements"] += estimate.unknown.size
      seen["compared"] += int((~estimate.unknown).sum())
    seen.update({statement.op for statement in program.statements} | set(program.dtypes.values()))

  check()
  assert SAMPLING or {*POINTWISE, *DTYPES} <= seen.keys()  # a sample is too small to have each
  assert seen["compared"] > 0.8 * seen["elements"], seen
