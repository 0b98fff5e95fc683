"""Judges that die, hang or take memory on purpose, for test_judge_process.py: a process imports them by name."""

import ctypes
import os
import signal
import sys
import time

import onnx

from ortplugin.check.judge import Judge, Step
from ortplugin.errors import UsageError
from ortplugin.report import GRAPH


class Dying(Judge):
  """What a node is named decides: its name is the fault of the model, when its session is made or run."""

  def _make(self, side, provider, tf32=False, **options):
    names = {node.name for node in onnx.load(side.path).graph.node}
    if "segmentation" in names:
      ctypes.string_at(0)
    if "abort" in names:
      print("terminate called after throwing an instance of 'std::bad_alloc'", file=sys.stderr, flush=True)
      os.abort()
    if "killed" in names:
      os.kill(os.getpid(), signal.SIGKILL)
    if "hang" in names:
      time.sleep(600)
    if "memory" in names:
      taken = [bytearray(os.urandom(1)) * 2**26 for _ in range(64)]
      time.sleep(600 + len(taken))
    if "defect" in names:
      raise KeyError("no such thing")
    if "warning" in names:
      print("ortplugin: a plan is not used", file=sys.stderr, flush=True)
      print("somebody else's words", file=sys.stderr, flush=True)
    return super()._make(side, provider, tf32, **options)


class DyingInTiming(Judge):
  def _time(self, *arguments):
    self._tell(Step("timing on CPU", is_timing=True))
    os.abort()


class DyingInGraphs(Judge):
  """A GPU that is not there: replays of the original kill the process, those of the optimized model are refused."""

  def verify(self, provider, side, timed):
    return self._verify_graphs(super().verify(provider, side, timed), side)

  def _reference(self, provider):
    return super()._reference("CPUExecutionProvider")

  def _replay(self, side, tf32=False):
    if side == self._question.original:
      self._tell(Step("replaying the original in a CUDA graph", of_original=True, mode=GRAPH))
      os.abort()
    return [], "it has control flow"


class Lost(Judge):
  """After a comparison that failed its process is useless."""

  def _check_gpu(self, provider):
    self.is_lost = True

  def number(self):
    return os.getpid()


class Refused:
  def __init__(self, question, tell):
    raise UsageError("this is not for you")
