"""A worker whose GPU is a stand-in with faults: `python -m fuzz.faulty_worker FAULTS`, for tests without a GPU.

FAULTS is a list of `what:fault[:output]` between commas. A model has the fault if a node of it has `what` for its
operator or domain, or if `what` is a number and it has fewer nodes. The faults:

    off         float outputs are too large by 1
    stale       they are those of the session's run before
    once        they are off in the process's first run only
    lost        a run loses the GPU
    dies        a run ends the process
    fails       a run raises
    open        the model can't be captured
    talks       ONNX Runtime has something to say in a run, in no session's log

`graph` alone in the list: runs are captured. A fault with `graph/` before it shows only in runs that are captured, one
with `plain/` only in those that are not, one with `fused/` only in sessions with ONNX Runtime's own optimizations, one
with `bare/` only in those without them, one with `half/` only in models that take float16.
"""

import os
from dataclasses import dataclass, field
from typing import Any

import onnx
import onnx.parser
import onnxruntime

from ortplugin.graph import walk_nodes

from .providers import LostError, Provider
from .worker import main


def talk():
  """ONNX Runtime's default logger gets an error: there is no such core."""
  options = onnxruntime.SessionOptions()
  options.intra_op_num_threads, options.log_severity_level = 2, 4
  options.add_session_config_entry("session.intra_op_thread_affinities", "100000")
  model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (bool x) => (bool y) { y = Not(x) }')
  onnxruntime.InferenceSession(model.SerializeToString(), options)


@dataclass
class _Session:
  ort: Any
  faults: list[list[str]]  # each: fault, and the output if it is one's
  captured: bool
  last: dict[str, Any] = field(default_factory=dict)


class Faulty(Provider):
  """The CPU provider with faults."""

  is_cpu = False

  def __init__(self, faults, optimize=True):
    self.name = faults
    self._text = faults.split(",")
    self._optimize = optimize
    self._graph = "graph" in self._text
    self._runs = 0
    self.where = "under a graph" if self._graph else "on the stand-in"

  def plain(self):
    without = ",".join(each for each in self._text if each != "graph")
    return Faulty(without, self._optimize) if self._graph else None

  def unoptimized(self):
    return Faulty(",".join(self._text), optimize=False) if self._optimize else None

  def session(self, model, optimize):
    nodes = list(walk_nodes(model))
    known = {node.op_type for node in nodes} | {node.domain for node in nodes}
    found = []
    for what, *fault in (each.split(":") for each in self._text if ":" in each):
      if what in known or (what.isdecimal() and len(nodes) < int(what)):
        found.append(fault)
    captured = self._graph and ["open"] not in found
    dtypes = {each.type.tensor_type.elem_type for each in model.graph.input}
    others = ("plain/" if captured else "graph/", "bare/" if self._optimize else "fused/")
    others += () if onnx.TensorProto.FLOAT16 in dtypes else ("half/",)
    kept = [[name.split("/")[-1], *rest] for name, *rest in found if not name.startswith(others)]
    return _Session(super().session(model, False), kept, captured)

  def run(self, session, feeds):
    self._runs += 1
    self.captured = session.captured
    right = super().run(session.ort, feeds)
    made = dict(right)
    for fault, *only in session.faults:
      if fault == "lost":
        raise LostError("CUDA error 700: an illegal memory access (kernel 'k')")
      if fault == "dies":
        os._exit(9)
      if fault == "talks":
        talk()
      if fault == "fails":
        raise RuntimeError("there is no such kernel")
      for name in only or list(made):
        if fault == "off" or (fault == "once" and self._runs == 1):
          made[name] = right[name] + 1
        elif fault == "stale":
          made[name] = session.last.get(name, right[name])
    session.last = right
    return made


if __name__ == "__main__":
  main(Faulty)
