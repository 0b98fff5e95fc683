from dataclasses import replace

import numpy as np
from lstm_cases import CASES, Case, by_name, check
from node_cases import changed
from onnx_models import parametrize, raises
from threads import in_threads

import ortplugin
from ort.host import make, plain, run
from ortplugin.ops.lstm import decompose


@parametrize("case", CASES)
def test_equals_the_reference(case):
  session = make(case.model())
  found = run(session, case)
  check(case, found)
  if case.steps * case.batch:  # a length of 0 is unknown before a run
    assert session.get_outputs()[0].shape == list(found[0].shape)


def test_a_nan_stays_in_its_sequence():
  case = by_name["a NaN, float16"]
  y, *states = run(make(case.model()), case)
  assert np.isnan(y[:, 3]).any()
  assert not np.isnan(np.delete(y, 3, 1)).any()
  assert not np.isnan(np.delete(states, 3, 2)).any()


@parametrize("opset", [11, 18])
@parametrize("direction", ["forward", "reverse", "bidirectional"])
@parametrize("dtype", ["float16", "float"])
def test_the_decomposition_gives_the_same(dtype, direction, opset):
  for batch_first in (False, True):
    for columns in (1, 2):
      case = Case("decomposed", dtype, 5, 6, 16, direction, batch_first, states=batch_first, columns=columns)
      check(case, run(plain(case.model(nodes=decompose(case.node(), opset), opset=opset)), case))


def test_unknown_lengths():
  case = by_name["R of a run, float"]
  session = make(case.model([("n", "m", None), *case.shapes[1:2], (2, "m", 48), (2, "m", 48)]))
  assert session.get_outputs()[0].shape == ["n", "m", 96]
  for steps, batch in ((4, 11), (1, 2), (9, 1)):
    each = replace(case, steps=steps, batch=batch)
    check(each, run(session, each))


def test_sequences_on_many_threads():
  case = Case("large", "float16", 20, 64, 48)
  wanted = run(make(case.model(), 1), case)
  check(case, wanted)
  session = make(case.model(), 4)

  def again(number):
    for one, other in zip(run(session, case), wanted, strict=True):
      np.testing.assert_array_equal(one, other)

  in_threads(4, again)


@parametrize(
  "changes, words",
  [
    ({"hidden_size": None}, "'hidden_size' is 0 but must be from 1"),
    ({"hidden_size": 24}, "G has the shape [4, 11, 384], but must have [-1, -1, 192]"),
    ({"dtype": "double"}, "'dtype' is 'double' but must be one of float16, bfloat16, float"),
    ({"dtype": "bfloat16"}, "G is float, but the attribute 'dtype' is bfloat16; cast it"),
    ({"direction": "both"}, "'direction' is 'both' but must be one of"),
    ({"direction": "forward"}, "G has the shape [4, 11, 384], but must have [-1, -1, 192]"),
    ({"batch_first": 2}, "'batch_first' is 2 but must be 0 or 1"),
    ({"allow_tf32": 2}, "allow_tf32 is 2; it must be 0 or 1"),
    ({"batch_first": 1}, "h0 has the shape [2, 11, 48], but must have [2, 4, 48]"),
    ({"inputs": ["G", "R", "h0"]}, "3 inputs, but takes 2, G and R, or 4 with h0 and c0"),
    ({"inputs": ["R", "G"]}, "must have"),
  ],
)
def test_what_is_refused(changes, words):
  case = by_name["R of a run, float"]

  def attempt():
    ortplugin.run(make(case.model([None] * 4, [changed(case.node(), changes)])), case.feeds())

  with raises(Exception, "node 'recurrence'") as caught:
    attempt()
  assert words in str(caught.value)
