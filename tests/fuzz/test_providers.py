import weakref

import numpy as np
from onnx_models import parametrize, parsed, raises

from fuzz import providers
from fuzz.handmade import case_of
from fuzz.judge import Judge
from fuzz.providers import Cuda, LostError, provider_of

MODEL = parsed("(bool x) => (bool y) { y = Not(x) }")


class Session:
  def __init__(self, graph):
    self.graph = graph


class Machine:
  """In place of ONNX Runtime: `errors` by whether a session has a graph, as it is made and as it runs."""

  def __init__(self, monkeypatch):
    self.loading = {}
    self.running = {}
    self.sessions = []
    self.runs = []
    self.outputs = {}
    monkeypatch.setattr(providers, "_cuda_session", self.session)
    monkeypatch.setattr(providers, "_on_gpu", self.run)

  def session(self, data, graph, optimize, poisoned=False):
    self.optimized = optimize
    assert all(each() is None for each in self.sessions)  # a capture that failed is open as long as its session
    if graph in self.loading:
      raise RuntimeError(self.loading[graph])
    made = Session(graph)
    self.sessions.append(weakref.ref(made))
    return made

  def run(self, session, feeds, times):
    self.runs.append((session.graph, times))
    if session.graph in self.running:
      raise RuntimeError(self.running[session.graph])
    return {"y": self.outputs[session.graph]} if self.outputs else {}


def test_a_model_that_is_captured(monkeypatch):
  machine, cuda = Machine(monkeypatch), Cuda(graph=True)
  cuda.run(cuda.session(MODEL, False), {})
  assert machine.runs == [(True, 2)]  # captured, then replayed
  assert cuda.captured


@parametrize("when", ["loading", "running"])
def test_a_model_that_is_not_captured_runs_without_a_graph(monkeypatch, when):
  machine, cuda = Machine(monkeypatch), Cuda(graph=True)
  getattr(machine, when)[True] = "this can't be captured"
  session = cuda.session(MODEL, False)
  cuda.run(session, {})
  assert machine.runs[-1] == (False, 1)
  assert not cuda.captured
  cuda.run(session, {})  # nor is it tried again
  assert machine.runs[-2:] == [(False, 1), (False, 1)]
  assert not cuda.captured


def test_what_ours_say_of_a_capture_is_not_tried_without_one(monkeypatch):
  machine, cuda = Machine(monkeypatch), Cuda(graph=True)
  machine.running[True] = "ortplugin::FusedConv can't be captured"
  with raises(RuntimeError, "FusedConv"):
    cuda.run(cuda.session(MODEL, False), {})


@parametrize("graph", [True, False])
@parametrize("when", ["loading", "running"])
def test_a_lost_gpu(monkeypatch, when, graph):
  machine, cuda = Machine(monkeypatch), Cuda(graph)
  getattr(machine, when)[graph] = "CUDA failure 700: an illegal memory access was encountered"
  with raises(LostError, "illegal memory access"):
    cuda.run(cuda.session(MODEL, False), {})


@parametrize("graph, mode", [("", ""), ("right", ""), ("wrong", "cuda-graph"), ("fails", "cuda")])
def test_one_after_the_other(monkeypatch, graph, mode):
  """Without a graph and then under one; a finding says where it was seen."""
  machine, both = Machine(monkeypatch), provider_of("cuda-both")
  if not graph:
    machine.loading[True] = "this can't be captured"
  machine.outputs = {False: np.array(False), True: np.array(graph == "wrong")}
  if graph == "fails":
    machine.running[False] = "there is no such kernel"
  verdict = Judge(both).judge(case_of(MODEL, {"x": np.array(True)}))
  assert verdict.captured == (graph in ("right", "wrong"))
  assert verdict.what == ("finding" if mode else "same")
  assert (verdict.finding.mode if verdict.finding else "") == mode
