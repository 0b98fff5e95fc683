"""Random programs as FusedPointwise on a GPU and in the reference: the same numbers, as tests/ort has them on the CPU.

Each program is a kernel to compile, so they are fewer. ORTPLUGIN_PROPERTY_EXAMPLES says how many random ones to try.
"""

import os
from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from pointwise_programs import compare_fused, estimates, examples, fused_graph, model_of

import ortplugin
from gpu.device import cupy, make

GIVEN = os.environ.get("ORTPLUGIN_PROPERTY_EXAMPLES")


@settings(
  max_examples=int(GIVEN or 60),
  deadline=None,
  derandomize=GIVEN is None,
  database=None,
  suppress_health_check=list(HealthCheck),
  phases=[Phase.generate],
)
@given(examples())
def test_fused_like_the_reference(example):
  example = replace(example, copied=False)
  feeds = example.feeds()
  found = ortplugin.run(make(model_of(fused_graph(example))), feeds)
  wanted = estimates(example.program, list(feeds.values()))
  shape = np.broadcast_shapes(*example.shapes)
  for result in example.program.results:
    fused = cupy.asnumpy(found[f"out_{result.name}"])
    try:
      compare_fused(fused, wanted[result.name], result.dtype, shape)
    except AssertionError as error:
      raise AssertionError(f"'{result.name}': {error}\n{example.program}\n{feeds}") from error
