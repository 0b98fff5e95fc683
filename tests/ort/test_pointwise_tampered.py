"""A model whose program was tampered with is refused with a message: at no place of a program does foreign text pass.

The text never reaches a compiler: a node is refused before its kernel is made, on whatever provider.
"""

from functools import cache

import numpy as np
import onnxruntime
from onnx import helper
from onnx_models import built
from tampering import PROGRAM, TOKENS, tampered

import ortplugin
from ortplugin.program import parse


def model_of(program, node_type="FusedPointwise"):
  attributes = {} if program is None else {"program": program}
  node = helper.make_node(node_type, ["x", "u"], ["y", "z", "i"], "culprit", domain="ortplugin", **attributes)
  return built([node], "float[4] x, uint8[4] u", "float[] y, uint8[] z, bool[] i", 18, 9, domains=["ortplugin"])


@cache
def quiet():
  """Registered, and without ONNX Runtime's log of errors that are wanted."""
  options = onnxruntime.SessionOptions()
  options.log_severity_level = 4
  options.intra_op_num_threads = 1
  ortplugin.register(options)
  return options


def session_of(model):
  return onnxruntime.InferenceSession(model.SerializeToString(), quiet(), providers=["CPUExecutionProvider"])


def refusal(model):
  try:
    session_of(model)
  except Exception as error:  # each of ONNX Runtime's errors has a class of its own
    return str(error)
  return ""


def test_the_program_itself_is_accepted():
  assert refusal(model_of(PROGRAM)) == ""
  assert str(parse(PROGRAM)) == PROGRAM
  kinds = {token[0] for token in TOKENS}
  assert {"float", "x", "=>", "-1", "1000", "0.5", '"tanh"', '"LEFT"', "float16", "255", "<", ">"} <= kinds


def test_no_payload_passes_anywhere():
  accepted, unclear, tried = [], [], 0
  for text in tampered(every=7):  # unit/test_program_parity.py has them all
    tried += 1
    message = refusal(model_of(text.encode()))
    if not message:
      accepted.append(text)
    elif not all(word in message for word in ("culprit", "FusedPointwise", "line")) or not _is_one_line(message):
      unclear.append((text, message))
  assert tried > 600
  assert not accepted, f"{len(accepted)} of {tried}, the first: {accepted[0]}"
  assert not unclear, f"{len(unclear)} of {tried}, the first: {unclear[0]}"


def _is_one_line(message):
  """No byte of the text reaches the message that would break it up or move a terminal's cursor."""
  return all(each.isprintable() for each in message.rstrip("\n"))


def test_values_that_a_tampered_number_cannot_reach():
  """A number that was changed to another is a program still: it computes with that number, and nothing else."""
  session = session_of(model_of(PROGRAM.replace("u, 3", "u, 200").replace("-1, 1000", "-100000, inf")))
  x = np.float32([np.nan, np.inf, -np.inf, 1.0])
  _, z, i = session.run(None, {"x": x, "u": np.arange(4, dtype=np.uint8)})
  assert z.tolist() == [255] * 4
  assert i.tolist() == [False, True, False, False]
