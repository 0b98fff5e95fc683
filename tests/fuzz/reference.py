"""What the original gives, and what is wrong with outputs that should be the same."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from ortplugin.check.compare import compare

from . import lethal, oracle, zeros
from .doubles import in_double, in_float, through_double
from .emulate import emulated
from .evaluate import UnfitError, make_session, run
from .graph import HALVES
from .narrow import narrow_feeds, narrow_model, widen_feeds, widen_model, with_tensors

Outputs = dict[str, Any]


@dataclass
class Finding:
  """What is wrong: `kind` is exception, load, run, form, values, again, restore, shapes, crash or hang.

  `guilty`: the pass to blame. `mode`: the name of the provider's mode in which it was seen.
  """

  kind: str
  message: str
  guilty: str = ""
  mode: str = ""


def references_of(case):
  """One for each of the case's feeds, of those after the first only where the original runs on them.

  Raises what ONNX Runtime raises where the original does not run on the first.
  """
  references = [Reference(case, feeds) for feeds in case.feeds[:1]]
  references[0].wanted  # noqa: B018, which runs the original
  if case.dtype in HALVES:
    references[0].narrow()
  for feeds in case.feeds[1:]:  # of other values and sizes
    try:
      references.append(Reference(case, feeds))
      references[-1].wanted  # noqa: B018
    except Exception:
      references.pop()
  return references


class Reference:
  """What the original gives for some feeds, in several ways, each computed when it is first asked for.

  `others`: outputs of other runs of it that are known to be right; some may be missing.
  """

  def __init__(self, case, feeds):
    self.case = case
    self.feeds = feeds
    self.others = []
    self.names = [each.name for each in case.model.graph.output]
    self._wanted = None
    self._oracle = in_double(case.oracle)
    self._ways = None
    self._trials = None
    self._more_trials = None

  @property
  def wanted(self):
    if self._wanted is None:
      if words := lethal.of_model(self.case.oracle, self.feeds):
        raise UnfitError(words)
      if self._oracle is not self.case.oracle:
        run(make_session(self.case.oracle), self.feeds, self.names)
      self._wanted = run(make_session(self._oracle), self.feeds, self.names)
    return self._wanted

  def narrow(self):
    model = emulated(self.case.model) if self.case.dtype == "bf16" else self.case.model
    return run(make_session(model), self.case.narrowed(self.feeds), self.names)

  def feeds_of(self, made):
    from ortplugin.check.inputs import as_wanted

    return as_wanted(self.case.narrowed(self.feeds), made)

  def problem(self, got, names=None):
    """What is wrong with an optimized model's outputs, or with those of some names."""
    dtypes = {each.name: each.type.tensor_type.elem_type for each in self.case.model.graph.output}
    for name in self.names if names is None else names:
      wanted, have = self.wanted[name], got[name]
      if not isinstance(wanted, np.ndarray) or wanted.dtype.kind == "O":  # a sequence, say
        result = compare(name, wanted, have)
        if not result.passed:
          return Finding("values", f"'{name}': {result.message}")
        continue
      half = self.case.wide is not None
      expected = onnx.helper.tensor_dtype_to_np_dtype(dtypes[name]) if half else wanted.dtype
      if have.dtype != expected and "precision_io" not in self.case.options:
        return Finding("form", f"'{name}' is {have.dtype} and not {expected}")
      dtype = self._dtype(wanted, have)
      message = oracle.quick(wanted, have, dtype)
      if message and self._fails(name, have, dtype):
        kind = "form" if message.startswith("shape") else "values"
        return Finding(kind, f"'{name}': {message}")
    return None

  def _dtype(self, wanted, have):
    """The name of the coarsest dtype that the output went through."""
    through = [oracle.NAMES[self.case.dtype], oracle.NAMES[self.case.options.get("precision", self.case.dtype)]]
    through += [each.dtype.name for each in (wanted, have) if each.dtype.name in oracle.TOLERANCE]
    return max(through, key=lambda name: oracle.TOLERANCE[name])

  @property
  def is_half(self):
    """Whether float32 of the oracle is float16 in the case, or is to become so."""
    return "fp16" in (self.case.dtype, self.case.options.get("precision"))

  def trials(self):
    """The oracle's outputs where every value is off by a little; {} where it does not run then."""
    if self._trials is None:
      self._trials = self._run_trials(range(oracle.TRIALS))
    return self._trials

  def _run_trials(self, numbers):
    unit = max(
      (oracle.NAMES[self.case.dtype], oracle.NAMES[self.case.options.get("precision", "fp64")]),
      key=lambda each: oracle.UNIT[each],
    )
    return oracle.trials(
      self._oracle, self.feeds, "float32" if unit == "float64" else unit, self.names, self.case.seed, numbers
    )

  def _in_dtype(self):
    return [] if self.case.wide is None else [self.narrow()]

  def in_precision(self, execute):
    """The original in the dtype that it is converted to, spelled by us: what rounding decides is decided alike."""
    precision = self.case.options.get("precision")
    if self.case.dtype != "fp32" or precision not in HALVES:
      return []
    model = narrow_model(with_tensors(self.case.model), precision, self.case.kept)
    found = execute(model, narrow_feeds(self.feeds, precision, self.case.kept))
    return [{name: np.asarray(array, self.wanted[name].dtype) for name, array in found.items()}]

  def _in_precision(self):
    return self.in_precision(lambda model, feeds: run(make_session(emulated(model)), feeds, self.names))

  def _in_double(self):
    form = through_double(self._oracle)
    return [] if form is None else [run(make_session(form), self.feeds, self.names)]

  def _signed(self):
    forms = [zeros.signed(self._oracle, negative) for negative in (False, True)]
    return [run(make_session(each), self.feeds, self.names) for each in forms if each]

  def _widened(self):
    """In double throughout: a sum that is 0, say, and then no truth value, need not be 0 in float32."""
    if self.case.dtype == "fp64":
      return []
    model = widen_model(self._oracle, self.case.kept)
    lacking = set()  # operators of which ONNX Runtime has none in double
    while True:
      try:
        session = make_session(in_float(model, lacking).SerializeToString())
        return [run(session, widen_feeds(self.feeds, self.case.kept), self.names)]
      except Exception as error:
        found = re.search(r"Could not find an implementation for (\w+)\(", str(error))
        if found is None or found[1] in lacking:
          raise
        lacking.add(found[1])

  def _fails(self, name, have, dtype):
    if self._ways is None:
      self._ways = []
      for other in (self._in_dtype, self._in_precision, self._in_double, self._signed, self._widened):
        try:
          self._ways += other()
        except Exception:  # what does not run explains nothing
          continue
    runs = [self.wanted, *self._ways, *self.others, *self.trials()]
    found = [np.asarray(each[name]) for each in runs if name in each]
    if not oracle.explained(found, have, dtype):
      return False
    if not any(self.trials()):
      return True
    rare = have.shape != self.wanted[name].shape or not oracle.is_floating(have)
    rare = rare or not np.array_equal(np.isfinite(have), np.isfinite(self.wanted[name]))  # as the logarithm of 0 is
    if rare or oracle.is_discontinuous(self._oracle) or oracle.is_beside_pole(found, have, dtype):
      if self._more_trials is None:
        self._more_trials = self._run_trials(range(oracle.TRIALS, oracle.MORE_TRIALS))
      found += [np.asarray(each[name]) for each in self._more_trials if name in each]
    return bool(oracle.explained(found, have, dtype))
