"""One case: the original and the optimized model run, and what is wrong with the latter."""

import re
from dataclasses import dataclass, field, replace

import onnx

import ortplugin
from ortplugin.errors import ModelError, OrtPluginError, one_line
from ortplugin.graph import walk_nodes

from . import lethal
from .definite import definite
from .emulate import emulated
from .evaluate import OURS, UnfitError, make_session, run
from .inferred import contradiction
from .left_open import (
  has_convolution,
  has_masked_attention,
  has_spoilt_scores,
  is_special,
  without_infinities,
  without_specials,
)
from .narrow import HALVES
from .oracle import all_values, is_undefined
from .providers import NotCapturedError, Provider
from .reference import Finding, Reference, references_of

REUSED = "attempting to re-use buffer"  # ONNX Runtime's word where a result has another size than it had planned


@dataclass
class Verdict:
  """What became of a case: "same", "unfit" (nothing to compare with), "refused", "finding", or "unrepeated".

  The last is what a GPU got wrong once and then no more. `captured`: whether it ran under a CUDA graph.
  """

  what: str
  message: str = ""
  finding: Finding | None = None
  rewrites: list[str] = field(default_factory=list)
  captured: bool = False


class Judge:
  """Judges cases on a provider. `tell` hears what is under way, for the case that the process dies."""

  def __init__(self, provider=None, tell=lambda _: None):
    self.provider = provider or Provider()
    self.tell = tell

  def judge(self, case):
    """The verdict on a case, without looking for the guilty pass."""
    self.tell("original")
    if not self.provider.is_cpu and any(node.op_type.startswith("Random") for node in walk_nodes(case.model)):
      return Verdict("unfit", "ONNX Runtime draws other random numbers on a GPU")
    try:
      references = references_of(case)
    except Exception as error:
      return Verdict("unfit", one_line(error))
    if not self.provider.is_cpu and any(lethal.of_scale(case.model, each.feeds) for each in references):
      return Verdict("unfit", "ONNX Runtime's LayerNormalization on CUDA reads beyond a scale that broadcasts")
    self.tell("optimize")
    try:
      made, report = optimize(case)
    except ModelError as error:
      if "can't be upgraded" in str(error) or "is older than" in str(error):
        return Verdict("refused", one_line(error))
      return Verdict("finding", finding=Finding("exception", f"ModelError: {one_line(error)}"))
    except OrtPluginError as error:
      return Verdict("finding", finding=Finding("exception", f"{type(error).__name__}: {one_line(error)}"))
    except Exception as error:  # a defect, whatever its class
      return Verdict("finding", finding=Finding("exception", f"{type(error).__name__}: {one_line(error)}"))
    rewrites = [change.rewrite for change in report.changes]
    try:
      found, captured = self._compare_modes(case, references, made)
      found = found or self._check(case, references, made)
    except UnfitError as error:
      return Verdict("unfit", one_line(error), rewrites=rewrites)
    return Verdict("finding" if found else "same", finding=found, rewrites=rewrites, captured=captured)

  def _compare_modes(self, case, references, made):
    """The first finding in any of the provider's modes, and whether the last of them ran under a CUDA graph."""
    captured = False
    for mode in self.provider.modes():
      try:
        found = Judge(mode, self.tell)._compare(case, references, made)
      except NotCapturedError:
        continue
      captured = mode.captured
      if found is not None:
        return replace(found, mode=mode.name), captured
    return None, captured

  def _compare(self, case, references, made):
    ort = "ort" in case.checks and self.provider.is_cpu
    if ort:
      self.tell("the original under ONNX Runtime's own optimizations")  # if it dies of it, that is known
      ort = not any(_status_by_default(case, each) for each in references)
      ort = ort and not any(known(made) for known in (lethal.of_rotation, lethal.of_cubic, lethal.of_crop))
    self.tell("load")
    try:
      session = self.provider.session(made, ort)
    except (UnfitError, NotCapturedError):
      raise
    except Exception as error:
      return Finding("load", one_line(error))
    self.tell("run")
    for reference in references:
      try:
        got = self.provider.run(session, reference.feeds_of(made))
      except NotCapturedError:
        raise
      except Exception as error:  # as above
        if "data type is not supported" in str(error):
          raise UnfitError(str(error)) from error
        if lethal.of_cast(str(error)):
          raise UnfitError("ONNX Runtime leaves out a Cast that bodies alone read") from error
        ran = [bool(each) for each in reference.trials()]
        if any(ran) and not all(ran):
          raise UnfitError("whether the original runs depends on rounding") from error
        if REUSED in str(error) and self._is_misplanned(reference, made):
          raise UnfitError("ONNX Runtime plans memory by a shape that it infers wrongly") from error
        if status(error) == _status_by_default(case, reference):
          raise UnfitError("the original fails alike with ONNX Runtime's own optimizations") from error
        if undefined := is_undefined(case.oracle, reference.feeds, reference.is_half):
          raise UnfitError(undefined) from error
        if not all(reference.trials()):
          raise UnfitError("whether the original runs is decided by rounding") from error
        return Finding("run", one_line(error))
      problem = self.problem(case, reference, made, got)
      if problem:
        if ort and not self._differs(case, reference, made):
          return None  # ONNX Runtime's own optimizations did it
        undefined = is_undefined(case.oracle, reference.feeds, reference.is_half)
        if undefined:
          raise UnfitError(undefined)
        if self._is_of_casts(case, reference):
          continue
        return problem
    return None

  def _is_misplanned(self, reference, made):
    """Whether it fails by ONNX Runtime's own shapes: also without those that the model says."""
    bare = onnx.ModelProto()
    bare.CopyFrom(made)
    del bare.graph.value_info[:]
    try:
      self.provider.run(self.provider.session(bare, False), reference.feeds_of(bare))
    except Exception as error:
      return REUSED in str(error)
    return False

  def _differs(self, case, reference, made):
    session = self.provider.session(made, False)
    return self.problem(case, reference, made, self.provider.run(session, reference.feeds_of(made))) is not None

  def problem(self, case, reference, made, got, names=None, restored=False):
    """What is wrong with the outputs, but for what ONNX leaves open and ONNX Runtime does in several ways.

    `names`: those to look at; None: all. `restored`: `made` is an optimized model's standard form.
    """
    problem = reference.problem(got, names)
    if problem is None or problem.kind != "values":
      return problem
    if (not self.provider.is_cpu and has_convolution(made)) or _has_open_scores(case, reference, made, restored):
      problem = self._defined_problem(case, reference, made, got, names)
      if problem is None:
        return None
    model, wide = definite(case.model), None if case.wide is None else definite(case.wide)
    if model is None or (case.wide is not None and wide is None):
      return problem
    self.tell("maxima")
    try:
      same = Reference(replace(case, model=model, wide=wide), reference.feeds)
      feeds = reference.feeds_of(made)
      other = same.problem(self.provider.run(self.provider.session(definite(made) or made, False), feeds), names)
      # Another run may be right for another reason: the model as it is has to be wrong again.
      again = reference.problem(self.provider.run(self.provider.session(made, False), feeds), names)
      return other if again is not None else problem
    except Exception:  # what does not run in that form is judged as it is
      return problem

  def _defined_problem(self, case, reference, made, got, names):
    """The problem but for what becomes of infinities and NaN that left_open.py says to be open."""
    wanted = reference.wanted
    if not is_special(case.oracle, reference.feeds, wanted):
      return reference.problem(got, names)
    problem = reference.problem(without_specials(got, wanted), names)
    if problem is None:
      return None
    # Clip or a comparison may have made finite values of them: those on finite inputs decide.
    tamed = Reference(case, without_infinities(reference.feeds))
    if is_special(case.oracle, tamed.feeds):
      return problem
    found = self.provider.run(self.provider.session(made, False), tamed.feeds_of(made))
    if is_special(case.oracle, tamed.wanted):  # such as the root of a negative number
      found = without_specials(found, tamed.wanted)
    return tamed.problem(found, names)

  def _check(self, case, references, made):
    """What else a case asks for: a second run changes nothing; the restored model gives the same; shapes are so."""
    if "again" in case.checks and case.options.keys() <= {"layout", "skip", "providers"}:
      self.tell("again")
      try:
        _, report = ortplugin.optimize(made, **case.options)
      except Exception as error:
        return Finding("again", f"{type(error).__name__}: {one_line(error)}")
      if report.changes:
        return Finding("again", f"a second run changes it by {report.changes[0].rewrite}", report.changes[0].rewrite)
    for reference in references if "shapes" in case.checks and self.provider.is_cpu else ():
      words = contradiction(case.oracle, {**reference.feeds, **all_values(case.oracle, reference.feeds)})
      if words and not is_undefined(case.oracle, reference.feeds, reference.is_half):
        return Finding("shapes", words, "annotate")
    if "restore" in case.checks and self.provider.is_cpu and any(node.domain == OURS for node in walk_nodes(made)):
      self.tell("restore")
      try:
        restored = ortplugin.restore(made)
        got = self.provider.run(self.provider.session(restored, False), references[0].feeds_of(made))
      except UnfitError:
        return None
      except Exception as error:
        if "data type is not supported" in str(error):
          return None  # of ONNX Runtime's own kernels in fp16
        return Finding("restore", f"{type(error).__name__}: {one_line(error)}")
      problem = self.problem(case, references[0], restored, got, restored=True)
      if problem and not self._is_of_casts(case, references[0], restored=True):
        return Finding("restore", problem.message)
    return None

  def _is_of_casts(self, case, reference, restored=False):
    """Whether the model is right where its inputs have the precision asked for: on the CPU ONNX Runtime computes
    fp16 in float32 and leaves out a Cast to it before one back, so that some of its readers see x not rounded."""
    if not self.provider.is_cpu or case.options.get("precision") not in HALVES or "precision_io" in case.options:
      return False
    narrow = replace(case, options={**case.options, "precision_io": True})
    try:
      made, _ = optimize(narrow)
      model = ortplugin.restore(made) if restored else made
      same = Reference(narrow, reference.feeds)
      got = self.provider.run(self.provider.session(model, False), same.feeds_of(model))
    except Exception:  # what does not run in that form is judged as it is
      return False
    return self.problem(narrow, same, model, got) is None


def _has_open_scores(case, reference, made, restored):
  masked = has_masked_attention(optimize(case)[0] if restored else made)
  return masked and has_spoilt_scores(case.oracle, all_values(case.oracle, reference.feeds))


def status(error):
  """What failed, whatever the node's name."""
  return re.sub(r"Name:'[^']*'", "", one_line(error))


def _status_by_default(case, reference):
  """How the original fails with ONNX Runtime's own optimizations; "" if it does not."""
  model = emulated(case.model) if case.dtype == "bf16" else case.model
  try:
    run(make_session(model, optimize=True), case.narrowed(reference.feeds))
  except Exception as error:
    return status(error)
  return ""


def optimize(case, **more):
  return ortplugin.optimize(case.model, **{**case.options, **more})
