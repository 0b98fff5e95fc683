"""Differential testing on random graphs.

    cd tests && python -m fuzz.run --seeds 0:1000 --jobs 2

prints each finding, minimised, and how many cases were what, also when it is terminated. The exit status is 1 if there
is a finding, or if it was terminated. On a GPU what the original does, too, is no finding (confirm.py) but counted by
its reason, which is printed.
"""

import argparse
import os
import re
import signal
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

from ortplugin.session import resolve_provider

from .confirm import BY_OPTIMIZATIONS, ORIGINAL
from .corpus import known, to_text
from .evaluate import Evaluator
from .generate import Case, make_case
from .guilty import find_guilty
from .minimise import Minimiser
from .providers import NAMES as PROVIDERS
from .reference import Finding
from .worker import ALONE, LIVING, Worker, in_parallel


@dataclass
class Result:
  """What became of many seeds. `findings`: seed, minimised case and what is wrong with it.

  `spent`: seconds by stage.
  """

  counts: Counter[str] = field(default_factory=Counter)
  reasons: Counter[str] = field(default_factory=Counter)
  rewrites: Counter[str] = field(default_factory=Counter)
  spent: Counter[str] = field(default_factory=Counter)
  findings: list[tuple[int, Case, Finding]] = field(default_factory=list)
  unfinished: dict[int, Finding] = field(default_factory=dict)  # by seed, while they are made small
  seconds: float = 0.0
  captured: int = 0

  @property
  def graphs(self):
    return self.counts.total()


def fuzz(
  seeds,
  jobs=2,
  provider="cpu",
  minimise=90,
  found=lambda seed, case, finding: None,
  stop=lambda result: False,
  ignore="",
  result=None,
):
  """Judges the cases of the seeds in `jobs` processes.

  Args:
      seeds: each is taken once.
      jobs: processes.
      provider: one of PROVIDERS. RuntimeMissingError where there is no GPU.
      minimise: seconds that a finding may take to become small; 0 leaves it as it is.
      found: told of each finding as it is there.
      stop: asked after each case whether it is enough.
      ignore: a regular expression; a finding whose text it is found in is counted as "ignored".
      result: what is filled in and returned, for who wants to know of it before the end.
  """
  if provider != "cpu":
    resolve_provider("cuda")  # raises where there is none
  result, lock, start = result or Result(), threading.Lock(), time.monotonic()

  def work():
    worker = Worker(provider, 60 if provider == "cpu" else 120)  # kernels are compiled at first
    try:
      while True:
        with lock:
          seed = next(seeds, None)
          if seed is None or stop(result):
            return
        verdict = worker.ask(seed)
        with lock:
          result.spent += worker.spent
        worker.spent.clear()
        if ignore and verdict.finding is not None and re.search(ignore, verdict.finding.message):
          verdict = replace(verdict, what="ignored", finding=None)
        with lock:
          result.counts[verdict.what] += 1
          result.rewrites.update(verdict.rewrites)
          result.captured += verdict.captured
          known = verdict.message.startswith((ALONE, BY_OPTIMIZATIONS))
          if known or verdict.what in ("unrepeated", "broken"):  # each is to be explained
            result.reasons[f"{verdict.what}: {verdict.message} with seed {seed}"] += 1
          elif verdict.message:
            result.reasons[f"{verdict.what}: {verdict.message[:160]}"] += 1
        if verdict.finding is not None:
          result.unfinished[seed] = verdict.finding
          case, finding = shrink(seed, verdict.finding, worker, minimise)
          del result.unfinished[seed]
          if ignore and re.search(ignore, to_text(case, finding)):
            result.counts.update({"finding": -1, "ignored": 1})
            continue
          with lock:
            result.findings.append((seed, case, finding))
            found(seed, case, finding)
    finally:
      worker.close()

  in_parallel(jobs, work)
  result.seconds = time.monotonic() - start
  return result


_making = threading.Lock()


def shrink(seed, finding, worker, seconds):
  """The seed's case made small, and the pass to blame."""
  with _making:
    case = make_case(seed, Evaluator())
  slow = finding.kind == "hang"
  if not seconds:
    return case, finding
  limited = worker if not slow else Worker(worker.provider, 20)
  case, finding = Minimiser(lambda each: limited.ask(each).finding, seconds * (4 if slow else 1)).minimise(
    case, finding
  )
  finding = replace(finding, guilty=find_guilty(case, finding, limited))
  if slow:
    limited.close()
  return case, finding


def parse_seeds(text):
  """'3' or '0:1000'."""
  first, _, last = text.partition(":")
  return range(int(first), int(last)) if last else range(int(first), int(first) + 1)


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--seeds", type=parse_seeds, default=range(1000), help="one, or first:last (default 0:1000)")
  parser.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
  parser.add_argument("--provider", choices=PROVIDERS, default="cpu")
  parser.add_argument("--minutes", type=float, help="stop after that, whatever seeds are left")
  parser.add_argument("--minimise", type=float, default=90, help="seconds for each finding; 0: not at all")
  parser.add_argument("--save", type=Path, help="a folder to write findings to, such as fuzz/corpus")
  parser.add_argument("--ignore", help="a regular expression of findings to leave out (default: known.txt's)")
  parser.add_argument("--reasons", action="store_true", help="why cases were unfit or refused")
  arguments = parser.parse_args()

  def show(seed, case, finding):
    text = to_text(case, finding)
    print(f"\n---- seed {seed}: {finding.kind}, guilty: {finding.guilty or '?'}\n{text}", flush=True)
    if arguments.save is not None:
      arguments.save.mkdir(parents=True, exist_ok=True)
      (arguments.save / f"{finding.guilty or finding.kind}-{seed}.txt").write_text(text)

  ignore = known() if arguments.ignore is None else arguments.ignore
  seeds, jobs = iter(arguments.seeds), arguments.jobs
  end = time.monotonic() + 60 * (arguments.minutes or float("inf"))
  late = lambda _: time.monotonic() > end  # noqa: E731
  result, start = Result(), time.monotonic()

  def terminate(*_):
    """A case that hangs must not cost what is known of the others."""
    result.seconds = time.monotonic() - start
    summarize(result, arguments.provider, arguments.reasons)
    for process in list(LIVING):
      process.kill()
    os._exit(1)

  signal.signal(signal.SIGTERM, terminate)
  fuzz(seeds, jobs, arguments.provider, arguments.minimise, show, late, ignore, result)
  summarize(result, arguments.provider, arguments.reasons)
  return 1 if result.findings or result.counts["broken"] else 0


def summarize(result, provider, reasons):
  """Prints how many cases were what; why they were unfit or refused, where asked to."""
  always = ("broken", "unrepeated", f"unfit: {ALONE}", f"unfit: {ORIGINAL}", f"unfit: {BY_OPTIMIZATIONS}")
  for reason, count in result.reasons.most_common():
    if reasons or reason.startswith(always):
      print(f"{count:5} {reason}")
  for seed, finding in result.unfinished.items():
    print(f"finding with seed {seed}, not made small: {finding.kind}, {finding.message[:300]}")
  guilty = Counter(f"{finding.guilty or '?'} ({finding.kind})" for _, _, finding in result.findings)
  for name, count in guilty.most_common():
    print(f"{count:5} findings: {name}")
  whole = result.spent.total() or 1
  print("spent: " + ", ".join(f"{stage} {part / whole:.0%}" for stage, part in result.spent.most_common(6)))
  rewrites = f"{result.rewrites.total()} rewrites by {len(result.rewrites)} passes"
  graphs = provider in ("cuda-graph", "cuda-both")
  under = f", {result.captured} under a CUDA graph" if graphs else ""
  print(f"{result.graphs} graphs{under}, {dict(result.counts)}, {rewrites}, {result.seconds:.0f} s", flush=True)


if __name__ == "__main__":
  sys.exit(main())
