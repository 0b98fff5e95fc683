"""A process that makes and judges cases, and may die of it; `Worker` is the other end of its pipe."""

import os
import pickle
import select
import struct
import subprocess
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from .confirm import BY_OPTIMIZATIONS, ORIGINAL, Doubt, is_doubtful
from .judge import Verdict
from .providers import LostError, provider_of
from .reference import Finding

TESTS = Path(__file__).resolve().parent.parent
RENEW = 1500  # tasks after which a process makes way for a new one, whatever memory it has lost
MEMORY = 6 << 30
LOST_STATUS = 70  # with which a process ends that has lost its GPU
ALONE = "ONNX Runtime alone"
BEFORE = ("start", "generate", "original")  # stages in which only ONNX Runtime works


def _write(stream, thing):
  data = pickle.dumps(thing)
  stream.write(struct.pack("<Q", len(data)) + data)
  stream.flush()


LIVING = set()
"""The processes of all workers. One in a kernel that never returns outlives this process unless it is killed."""


class Worker:
  """Asks a process of its own; where that dies or takes too long, the verdict says so, and the next is started."""

  def __init__(self, provider="cpu", seconds=60, module="fuzz.worker"):
    self.provider = provider
    self.seconds = seconds
    self.module = module
    self.spent = Counter()  # seconds by stage
    self._process = None
    self._tasks = 0

  def ask(self, task):
    """The verdict on a seed or a case. On a GPU a finding is one that the original does not give, too."""
    verdict = self._ask(task)
    if self.provider == "cpu" or verdict.finding is None or not is_doubtful(verdict.finding):
      return verdict
    again = self._ask(Doubt(task, verdict.finding))
    ends = again.finding is not None and again.finding.kind in ("crash", "hang")
    if ends and self._ask(Doubt(task, verdict.finding, bare=True)).finding is None:
      again = Verdict("unfit", BY_OPTIMIZATIONS)
    return replace(again, rewrites=verdict.rewrites, captured=verdict.captured)

  def _ask(self, task):
    if self._process is None or self._tasks >= RENEW:
      self.close()
      self._start()
    self._tasks += 1
    stage, words, since = "start", "", time.monotonic()
    try:
      _write(self._process.stdin, task)
      end = time.monotonic() + self.seconds
      while True:
        kind, value = self._read(end)
        self.spent[stage] += time.monotonic() - since
        since = time.monotonic()
        if kind == "done":
          return value
        if kind == "stage":
          stage = value
        else:
          words = f' "{value}"'  # its last
    except TimeoutError:
      self.close()
      what = f"it takes more than {self.seconds:g} s"
      return _unfit(stage, what) or Verdict("finding", finding=Finding("hang", f"{what} to {stage}"))
    except (EOFError, BrokenPipeError):
      status = self._process.wait()
      self.close()
      what = f"the process died with status {status}"
      return _unfit(stage, what) or Verdict("finding", finding=Finding("crash", f"{what} in '{stage}'{words}"))

  def close(self):
    if self._process is not None:
      self._process.kill()
      self._process.wait()
      LIVING.discard(self._process)
      for pipe in (self._process.stdin, self._process.stdout):
        if pipe is not None:
          pipe.close()
      self._process = None

  def _start(self):
    command = [sys.executable, "-m", self.module, self.provider]
    self._process = subprocess.Popen(
      command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, cwd=TESTS, env=environment()
    )
    LIVING.add(self._process)
    self._tasks = 0

  def _read(self, end):
    size = struct.unpack("<Q", self._bytes(8, end))[0]
    return pickle.loads(self._bytes(size, end))

  def _bytes(self, count, end):
    pipe, data = self._process.stdout, b""
    while len(data) < count:
      left = end - time.monotonic()
      if left <= 0 or not select.select([pipe], [], [], left)[0]:
        raise TimeoutError
      part = os.read(pipe.fileno(), count - len(data))
      if not part:
        raise EOFError
      data += part
    return data


def _unfit(stage, what):
  if stage.startswith(ORIGINAL):
    return Verdict("unfit", f"{stage}: {what}")
  return Verdict("unfit", f"{ALONE}: {what} in '{stage}'") if stage in BEFORE else None


def in_parallel(jobs, work):
  """Does the work in so many threads; raises what one of them raised."""
  with ThreadPoolExecutor(jobs) as pool:
    for future in [pool.submit(work) for _ in range(jobs)]:
      future.result()


def environment():
  """This process's, with its search path, so that both use the same ortplugin."""
  paths = [str(TESTS), *(path for path in sys.path if path)]
  return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def main(make_provider=provider_of):
  out = os.fdopen(os.dup(1), "wb", buffering=0)
  os.dup2(2, 1)  # what libraries print is no answer

  import onnxruntime

  from .confirm import confirm
  from .evaluate import Evaluator
  from .generate import make_case
  from .judge import Judge

  onnxruntime.set_default_logger_severity(4)  # what kernels say goes to this logger, not to their session's
  provider = make_provider(sys.argv[1])
  if provider.is_cpu:  # a GPU's driver reserves more addresses than there is memory
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
  evaluator = Evaluator()
  judge = Judge(provider, lambda stage: _write(out, ("stage", stage)))
  while True:
    header = sys.stdin.buffer.read(8)
    if len(header) < 8:
      return
    task = pickle.loads(sys.stdin.buffer.read(struct.unpack("<Q", header)[0]))
    try:
      judge.tell("generate")
      what = task.what if isinstance(task, Doubt) else task
      case = make_case(what, evaluator) if isinstance(what, int) else what
      if isinstance(task, Doubt):
        seen = task.finding.mode  # unknown where a process ended
        for name in [seen] if seen else [mode.name for mode in provider.modes()]:
          there = make_provider(name)
          there = (task.bare and there.unoptimized()) or there
          verdict = confirm(Judge(there, judge.tell), case, task.finding)
          if verdict.what == "finding":
            break
      else:
        verdict = judge.judge(case)
    except LostError as error:
      _write(out, ("lost", " ".join(str(error).replace('"', "'").split())))
      os._exit(LOST_STATUS)
    except Exception as error:  # a defect of the fuzzer, which must be seen
      verdict = Verdict("broken", "".join(traceback.format_exception(error)))
    _write(out, ("done", verdict))


if __name__ == "__main__":
  main()
