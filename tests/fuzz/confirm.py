"""Whether a finding on a GPU is ortplugin's: ONNX Runtime has faults of its own there.

Under a CUDA graph a node whose host side reads a value (If) reads one that the capture has not computed, random numbers
repeat, and some of it loses the GPU. So a finding counts only where the original, as it is, in its own dtype and in the
same mode, gives the reference's outputs in every one of some runs, and the optimized model in as many does not.
Operators of ours in the original are spelled out for that: their faults are ours.

A model runs in ROUNDS sessions, PASSES times over the feeds in each. Before each of these runs comes one on other
numbers, others each time, whose outputs nobody looks at: what is left of it, or what a capture took from it, is wrong.

What is told apart is no finding and is counted with its reason: "unfit" where the original is at fault, or where the
optimized model is right in a session without ONNX Runtime's own optimizations, which is how the original is judged on
the CPU; "unrepeated" where the optimized model is right each time.
"""

import contextlib
import gc
from dataclasses import dataclass

import numpy as np

import ortplugin
from ortplugin.check.compare import compare
from ortplugin.errors import OrtPluginError, one_line
from ortplugin.graph import walk_nodes

from . import lethal
from .evaluate import OURS
from .generate import Case
from .judge import Judge, Verdict, optimize, status
from .reference import Finding, Outputs, references_of

ROUNDS, PASSES = 3, 2
ORIGINAL = "the original "  # begins each reason that it is at fault, and the stage in which it runs
BY_OPTIMIZATIONS = "ONNX Runtime's own optimizations: the optimized model is right without them"
NOT_CAPTURED = f"{ORIGINAL}is not captured in a CUDA graph, and without one the optimized model is right"


@dataclass(frozen=True)
class Doubt:
  """A finding that is to be confirmed, of a seed or a case. `bare`: without ONNX Runtime's own optimizations, for what
  ends the process with them."""

  what: int | Case
  finding: Finding
  bare: bool = False


@dataclass
class _Runs:
  """What a model gave: for each of the references, the outputs of each run. `captured`: all in CUDA graphs."""

  outputs: list[list[Outputs]]
  captured: bool


def is_doubtful(finding):
  """Whether the GPU has a part in it."""
  in_optimizer = finding.kind in ("crash", "hang") and "optimize" in finding.message
  return finding.kind not in ("exception", "again", "restore") and not in_optimizer


def confirm(judge, case, finding):
  """The verdict on a case that a first run on the judge's provider found something in."""
  judge.tell("original")
  gc.collect()  # of the first run's sessions
  references = references_of(case)
  model = _of_onnx_runtime(case.model)
  provider = judge.provider
  skipped = False  # whether the original is not captured
  while provider is not None:
    plain = provider.plain()
    here = Judge(provider)  # silent: whatever dies, does so in the stage that is told here
    faults = {}
    if model is not None:
      judge.tell(f"{ORIGINAL}{provider.where}")
      try:
        original = _runs(provider, model, references)
      except Exception as error:
        return Verdict("unfit", f"{ORIGINAL}fails {provider.where}: {one_line(error)[:80]}")
      if plain is not None and not original.captured:
        provider, skipped = plain, True
        continue
      faults = _faults(here, case, model, references, original)
      _learn(references, original, faults)
      _learn_narrow(provider, references)
    verdict = _optimized(here, judge.tell, case, references, finding, faults, plain is not None)
    if verdict is None:
      provider = plain
      continue
    if verdict.what == "finding":
      bare = provider.unoptimized()
      again = bare and _optimized(Judge(bare), judge.tell, case, references, finding, faults, False)
      if again is not None and again.what != "finding":  # by each output that the original has right
        return Verdict("unfit", BY_OPTIMIZATIONS)
      if bare and model is not None and _fails_alike(bare, case, model, references, verdict.finding):
        return Verdict("unfit", f"{ORIGINAL}fails alike without ONNX Runtime's own optimizations")
    return Verdict("unfit", NOT_CAPTURED) if skipped and verdict.what == "unrepeated" else verdict
  raise AssertionError("a provider without a CUDA graph gives a verdict")


def _optimized(judge, tell, case, references, finding, faults, captured):
  """The verdict on its runs; None if they should be `captured` and are not."""
  right = [name for name in references[0].names if name not in faults]
  by_values = finding.kind in ("values", "form")
  if faults and (not right or not by_values):  # what it computes may be what it fails by
    return Verdict("unfit", next(iter(faults.values())))
  tell("optimize")
  made, _ = optimize(case)
  tell("load" if "'load'" in finding.message else "run")  # so that one fault has one signature
  try:
    runs = _runs(judge.provider, made, references)
  except Exception as error:
    if lethal.of_conv(made, str(error)):
      return Verdict("unfit", "ONNX Runtime's own Conv in three dimensions")
    kind = "load" if finding.kind == "load" else "run"
    return Verdict("finding", finding=Finding(kind, one_line(error)))
  if captured and not runs.captured:
    return None
  for reference, outputs in zip(references, runs.outputs, strict=True):
    for got in outputs:
      problem = judge.problem(case, reference, made, got, right)
      if problem is not None:
        return Verdict("finding", finding=problem)
  if faults:
    return Verdict("unfit", next(iter(faults.values())))
  for reference, outputs in zip(references, runs.outputs, strict=True):
    others, reference.others = reference.others, []
    alone = judge.problem(case, reference, made, outputs[0], right)
    reference.others = others
    if alone is not None and others:
      return Verdict("same", f"by what the original gives {judge.provider.where}")
  count = sum(len(each) for each in runs.outputs)
  first = f"{finding.kind}, {finding.message[:300]}"
  return Verdict("unrepeated", f"{first}, and then right in {count} runs {judge.provider.where}")


def _fails_alike(provider, case, model, references, finding):
  """Whether the original fails as the finding says: a node that ONNX Runtime's optimizations would have removed.

  Such as its Softmax in double, which on CUDA has the precision of float32, unless an Add before it is a part of it.
  """
  try:
    runs = _runs(provider, model, references)
  except Exception as error:
    return finding.kind == "run" and status(error) == status(finding.message)
  if finding.kind != "values":
    return False
  faults = _faults(Judge(provider), case, model, references, runs)
  return any(finding.message.startswith(f"'{name}': ") for name in faults)


def _of_onnx_runtime(model):
  """The original without operators of ours, whose faults are findings wherever they are; None if some stay."""
  if not _has_ours(model):
    return model
  try:
    restored = ortplugin.restore(model)
  except OrtPluginError:
    return None
  return None if _has_ours(restored) else restored


def _has_ours(model):
  return any(node.domain == OURS for node in walk_nodes(model))


def _runs(provider, model, references):
  result = _Runs([[] for _ in references], True)
  for _ in range(ROUNDS):
    session = provider.session(model, False)
    for _ in range(PASSES):
      for number, reference in enumerate(references):
        feeds = reference.feeds_of(model)
        with contextlib.suppress(Exception):  # the model need not run on these
          provider.run(session, _other_numbers(feeds, sum(map(len, result.outputs))))
        result.outputs[number].append(provider.run(session, feeds))
        result.captured = result.captured and provider.captured
  return result


def _other_numbers(feeds, number):
  """Feeds with other floats, within the range of theirs and in other places: those may be computed from them."""

  def other(array):
    factor = array.dtype.type(1 / (number + 2))
    return np.asarray(np.roll(array, number + 1) * factor, array.dtype)

  return {name: other(array) if _is_floating(array) else array for name, array in feeds.items()}


def _is_floating(array):
  return isinstance(array, np.ndarray) and (array.dtype.kind == "f" or "float" in array.dtype.name)


def _faults(judge, case, model, references, runs):
  found = {}
  for reference in references:
    reference.others = []  # nothing that it gave explains what it gives
  for name in references[0].names:
    right = steady = True
    for reference, outputs in zip(references, runs.outputs, strict=True):
      distinct = []
      for got in outputs:
        if not any(_same(got[name], each[name]) for each in distinct):
          distinct.append(got)
      steady = steady and len(distinct) == 1
      right = right and all(judge.problem(case, reference, model, got, [name]) is None for got in distinct)
    if not right:
      found[name] = f"{ORIGINAL}is not {'right' if steady else 'steady'} {judge.provider.where}"
  return found


def _same(first, second):
  if isinstance(first, np.ndarray) and isinstance(second, np.ndarray) and first.dtype.kind != "O":
    return (first.dtype, first.shape, first.tobytes()) == (second.dtype, second.shape, second.tobytes())
  return bool(compare("", first, second).passed)


def _learn(references, runs, faults):
  """What the original gives there, where that is right, is one way to compute it."""
  for reference, outputs in zip(references, runs.outputs, strict=True):
    reference.others = [{name: array for name, array in outputs[0].items() if name not in faults}]


def _learn_narrow(provider, references):
  """So is what the original gives in the precision asked for: ONNX Runtime's Conv in three dimensions and 16 bits may
  lose an infinity."""
  for reference in references:
    with contextlib.suppress(Exception):  # it need not run
      reference.others += reference.in_precision(
        lambda model, feeds: provider.run(provider.session(model, False), feeds)
      )
