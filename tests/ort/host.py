"""Sessions on the CPU provider, for the tests of every operator."""

from contextlib import closing

import numpy as np
import onnxruntime
import pytest
from node_cases import OPSET, UNIT_ROUNDOFF, bits
from onnx_models import serialized

import ortplugin
from ort.refusals import assert_blamed
from ortplugin.check.verify import Verifier
from ortplugin.session import element_type

CPU_ONLY = ["CPUExecutionProvider"]


def options(threads=0):
  """Registered, and quiet where an error is wanted. `threads`: 0 is as many as there are cores."""
  made = onnxruntime.SessionOptions()
  made.log_severity_level = 4
  made.intra_op_num_threads = threads
  ortplugin.register(made)
  return made


def make(model, threads=0):
  return onnxruntime.InferenceSession(serialized(model), options(threads), providers=CPU_ONLY)


def plain(model):
  return onnxruntime.InferenceSession(serialized(model), providers=CPU_ONLY)


def run(session, case):
  return list(ortplugin.run(session, case.feeds()).values())  # NumPy lacks bfloat16, so not session.run


def run_one(session, case):
  (output,) = run(session, case)
  return output


def assert_equals_reference(case, check, inferred=True):
  """The outputs pass the check; `inferred`: whether the session knows their shapes before the run."""
  session = make(case.model())
  found = run(session, case)
  check(case, found)
  assert not inferred or [each.shape for each in session.get_outputs()] == [list(each.shape) for each in found]


def run_decomposed(case):
  """The outputs of a case's decomposition without the library, and the unit roundoff of its coarsest dtype."""
  model = case.model_of(case.text, case.shapes, case.operator.decompose(case.node(), OPSET))
  dtypes = set(case.program.dtypes.values())
  unit = next(UNIT_ROUNDOFF[dtype] for dtype in ("float16", "float", "double") if dtype in dtypes)
  return run(plain(model), case), unit


def assert_refused(wrong, operator):
  """`wrong`: has a `model`, the shapes to run it on (`fed`; None: the session is not made), and the message's words."""
  if wrong.fed is None:
    with pytest.raises(Exception) as caught:  # noqa: PT011, ONNX Runtime's own kinds
      make(wrong.model())
  else:
    session = make(wrong.model())
    feeds = {each.name: np.ones(shape, np.float32) for each, shape in zip(session.get_inputs(), wrong.fed, strict=True)}
    with pytest.raises(Exception) as caught:  # noqa: PT011
      session.run(None, feeds)
  assert_blamed(caught.value, wrong.words, operator)


def assert_same_bits(got, wanted):
  for each, other in zip(got, wanted, strict=True):
    assert (bits(each) == bits(other)).all()


def assert_inferred(output, wanted, dtype):
  """A session's output has the dtype and shape; None in it is a dimension that nothing names, which gets a new name."""
  assert len(output.shape) == len(wanted)
  for found, size in zip(output.shape, wanted, strict=True):
    assert found == size or (size is None and found.startswith("ortplugin_"))
  assert element_type(output.type) == element_type(f"tensor({dtype})")


def on_any_threads(case):
  """The outputs, which have the same bits however many threads work on a run."""
  first, *others = (run(make(case.model(), threads), case) for threads in (1, 2, 5))
  for other in others:
    assert_same_bits(other, first)
  return first


def assert_threads_change_nothing(case, threads):
  """However many threads work on one run, it gives the same bits."""
  assert_same_bits(run(make(case.model(), threads), case), run(make(case.model()), case))


def assert_runs_repeat(session, case, check, times=10):
  """The right outputs, and the same bits in each of so many more runs."""
  first = run(session, case)
  check(case, first)
  for _ in range(times):
    assert_same_bits(run(session, case), first)


def verify(original, optimized):
  with closing(Verifier(original, providers=["cpu"], timed=False)) as verifier:
    (result,) = verifier.verify(optimized)
  assert result.inputs
  assert result.passed, result
