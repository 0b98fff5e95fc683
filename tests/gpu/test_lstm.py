"""FusedLSTM in ONNX Runtime on a GPU: the reference for every size, direction and address, under threads and CUDA
graphs."""

from dataclasses import replace

import numpy as np
import pytest
from lstm_cases import CASES, TF32, Case, by_name, check
from onnx_models import parametrize

import ortplugin
from gpu.device import at_offset, cupy, host, make, run, run_bound, run_case
from gpu.sessions import check_graph, check_repeats, check_stream, check_threads, trial as trial_of
from ortplugin.ops.lstm import DTYPES, FAST_HIDDEN, reference

pytestmark = pytest.mark.usefixtures("library")

# Every number of units that tensor cores take, steps and sequences around the sizes of tiles.
LARGE = [
  Case(f"large: {steps} {batch} {hidden} {dtype}", dtype, steps, batch, hidden, direction, batch_first, states=states,
       allow_tf32=1 if dtype == "float" else None)
  for hidden in FAST_HIDDEN
  for steps, batch, direction, batch_first, states in (
    (1, 1, "bidirectional", False, True),
    (2, 15, "forward", True, False),
    (33, 16, "reverse", False, True),
    (32, 40, "bidirectional", True, False),
    (16, 3000, "bidirectional", False, False),
  )
  for dtype in DTYPES
]  # fmt: skip
CHOSEN = [
  Case("chosen", "float16", 33, 41, 96, states=True),
  Case("odd", "bfloat16", 9, 3, 20),
  by_name["odd units, float"],
  Case("chosen, TF32", "float", 33, 41, 96, states=True, allow_tf32=1),
]


def trial(case):
  return trial_of(case, check)


@parametrize("case", [*CASES, *TF32, *LARGE], ids=lambda case: case.name)
def test_equals_the_reference(case):
  check(case, run_case(case))


@parametrize("dtype", [*DTYPES, "float, TF32"])
def test_a_nan_stays_in_its_sequence(dtype):
  case = by_name[f"a NaN, {dtype}"]
  y, *states = (each.astype(np.float32) for each in run_case(case))
  assert np.isnan(y[:, 3]).any()
  assert not np.isnan(np.delete(y, 3, 1)).any()
  assert not np.isnan(np.delete(states, 3, 2)).any()


@parametrize("session", ["0", "1"])
@parametrize("said", [None, 0, 1])
def test_tf32_only_where_it_is_allowed(session, said):
  """Off by some 2e-7 in float32, 1.8e-4 in TF32, and 5.3e-4 where its factors are cut off, not rounded."""
  case = Case("sixteen steps", "float", 16, 64, 96, outputs=1, allow_tf32=said)
  (found,) = host(ortplugin.run(make(case.model(), use_tf32=session), case.feeds()))
  (wanted,) = reference(case.node(), case.inputs(), rounded=False)
  is_allowed = session == "1" if said is None else bool(said)
  error = np.abs(found - wanted).max()
  assert 2e-5 < error < 3.5e-4 if is_allowed else error < 2e-6


def test_tensors_may_start_anywhere():
  for case in (CHOSEN[0], CHOSEN[-1], Case("from their starts", "bfloat16", 5, 9, 32, outputs=2)):
    session, like = make(case.model()), trial(case).like
    for inner, outer in ((0, 0), (1, 0), (0, 1), (8, 0), (4, 3)):
      inputs = [at_offset(array, inner) for array in case.feeds().values()]
      outputs = [at_offset(np.zeros_like(array), outer) for array in like]
      run_bound(session, inputs, outputs)
      check(case, [cupy.asnumpy(array) for array in outputs])


@parametrize("case", CHOSEN, ids=lambda case: case.name)
def test_a_cuda_graph_gives_the_same_bits(case):
  check_graph(case.model(), [trial(each) for each in others(case)])


def others(case):
  """The same node on other values of G; R is a part of the model."""
  return [replace(case, scale=scale) for scale in (1, 0.5, 2)]


@parametrize("case", CHOSEN, ids=lambda case: case.name)
def test_runs_repeat(case):
  check_repeats(case)


def test_a_stream_of_the_callers():
  check_stream(CHOSEN[0].model(), trial(CHOSEN[0]))


def sized(steps, batch):
  return Case("sized", "float16", steps, batch, 48)


OPEN = sized(1, 1).model([("n", "m", 384), (2, 192, 48)])


def test_shapes_may_change_from_run_to_run():
  session = make(OPEN)
  for steps, batch in ((3, 7), (1, 1), (0, 4), (20, 100), (2, 0), (3, 7)):
    case = sized(steps, batch)
    check(case, run(session, case))


def test_many_threads_run_one_session():
  check_threads(OPEN, lambda number: trial(sized(1 + number, 3 * number + 1)))
