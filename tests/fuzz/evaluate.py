"""Nodes and models in ONNX Runtime on the CPU, with its own optimizations off and one thread."""

from collections import OrderedDict
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import helper

import ortplugin
from ortplugin.session import run_on_host

from . import lethal

Array = np.ndarray[Any, Any]

CONTRIB = "com.microsoft"
OURS = "ortplugin"
FUNCTIONS = "local"  # the domain of local functions
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


class UnfitError(Exception):
  """A node that ONNX Runtime refuses, or whose values a graph has no use for."""


def to_onnx(dtype):
  return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def make_session(model, plugin=True, optimize=False, providers=None):
  """A silent session. `optimize`: with ONNX Runtime's own optimizations."""
  options = onnxruntime.SessionOptions()
  levels = onnxruntime.GraphOptimizationLevel
  options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimize else levels.ORT_DISABLE_ALL
  options.log_severity_level = 4
  options.intra_op_num_threads = options.inter_op_num_threads = 1
  options.enable_cpu_mem_arena = False
  if plugin:
    ortplugin.register(options)
  model = model if isinstance(model, bytes) else model.SerializeToString()
  return onnxruntime.InferenceSession(model, options, providers=providers or ["CPUExecutionProvider"])


def run(session, feeds, names=None):
  """The outputs by name. Feeds that the session does not take are left out."""
  taken = {each.name for each in [*session.get_inputs(), *session.get_overridable_initializers()]}
  wanted = [each.name for each in session.get_outputs()] if names is None else list(names)
  return run_on_host(session, {name: value for name, value in feeds.items() if name in taken}, wanted)


class Evaluator:
  """Runs single nodes, with a cache of sessions: the nodes of random graphs repeat."""

  def __init__(self, size=3000):
    self._size = size
    self._sessions = OrderedDict()

  def node(self, op, domain, inputs, outputs, attributes, opset):
    """The outputs of one node. UnfitError with ONNX Runtime's message if it can't be made or run."""
    if words := lethal.of_node(op, inputs):
      raise UnfitError(words)
    types = tuple(None if each is None else _type_of(each) for each in inputs)
    key = (op, domain, types, outputs, repr(sorted(attributes.items())), opset)
    session = self._sessions.get(key)
    if session is None:
      names = ["" if each is None else f"i{index}" for index, each in enumerate(inputs)]
      node = helper.make_node(op, names, [f"o{k}" for k in range(outputs)], domain=domain, **attributes)
      session = _session_of([node], dict(zip(names, types, strict=True)), list(node.output), opset)
      self._sessions[key] = session
      if len(self._sessions) > self._size:
        self._sessions.popitem(last=False)
    else:
      self._sessions.move_to_end(key)
    feeds = {f"i{index}": each for index, each in enumerate(inputs) if each is not None}
    return _run(session, feeds, [f"o{k}" for k in range(outputs)])

  def nodes(self, nodes, inputs, outputs, opset, functions=()):
    """The values `outputs` that a few nodes make of `inputs`."""
    types = {name: _type_of(each) for name, each in inputs.items()}
    return _run(_session_of(nodes, types, outputs, opset, functions), dict(inputs), list(outputs))


def _type_of(array):
  """The element type, and the shape of vectors: Resize takes a vector of unknown length for an empty one."""
  return to_onnx(array.dtype), tuple(array.shape) if array.ndim == 1 else (None,) * array.ndim


def _session_of(nodes, types, outputs, opset, functions=()):
  given = [helper.make_tensor_value_info(name, each[0], each[1]) for name, each in types.items() if each and name]
  wanted = [onnx.ValueInfoProto(name=name) for name in outputs]
  graph = helper.make_graph(list(nodes), "one", given, wanted)
  model = helper.make_model(graph, opset_imports=imports(opset), ir_version=ir_version(opset), functions=functions)
  plugin = any(node.domain == OURS for node in nodes)
  try:
    return make_session(model, plugin)
  except Exception as error:  # ONNX Runtime's own classes have no common base
    raise UnfitError(str(error)) from error


def _run(session, feeds, outputs):
  try:
    return [np.asarray(each) for each in session.run(outputs, feeds)]
  except Exception as error:  # as above
    raise UnfitError(str(error)) from error


def imports(opset):
  return [helper.make_opsetid("", opset), *(helper.make_opsetid(name, 1) for name in (CONTRIB, OURS, FUNCTIONS))]


def ir_version(opset):
  """The IR version of the time of an opset, at least 4 so that initializers need not be inputs."""
  return max(4, min(13, onnx.IR_VERSION, _IR.get(opset, 4)))


_IR = {9: 4, 10: 5, 11: 6, 12: 7, 13: 7, 14: 7, 15: 8, 16: 8, 17: 8, 18: 8, 19: 9, 20: 9, 21: 10, 22: 10, 23: 11,
       24: 11, 25: 12}  # fmt: skip
