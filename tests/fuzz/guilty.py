"""Which pass is to blame: the one that makes the first change with which the case is a finding."""

import re
from dataclasses import replace

from ortplugin.graph.messages import standard_opset
from ortplugin.ops.decompose import MINIMUM_OPSET

from .judge import optimize


def find_guilty(case, finding, worker):
  """The name of the pass; '' if the finding does not depend on how many changes are made, or is in the process."""
  named = re.search(r"the pass '([\w-]+)'", finding.message)
  if named:
    return named.group(1)
  if finding.guilty or finding.kind in ("again",):
    return finding.guilty

  def fails(limit):
    found = worker.ask(replace(case, options={**case.options, "limit": limit})).finding
    return found is not None and found.kind == finding.kind

  try:
    if worker.ask(case).finding is None:
      return "unsteady"
    if finding.kind in ("hang", "exception") or (finding.kind == "crash" and "'optimize'" in finding.message):
      return "optimizer"
    changes = [change.rewrite for change in optimize(case)[1].changes]
  except Exception:  # it dies in the optimizer then, which names no pass
    return ""
  if not changes or fails(0):
    return "conversion" if "precision" in case.options else "loading"
  low, high = 0, len(changes)  # fails(high) and not fails(low)
  while high - low > 1:
    middle = (low + high) // 2
    low, high = (low, middle) if fails(middle) else (middle, high)
  if high == 1 and standard_opset(case.model) < MINIMUM_OPSET:
    return "upgrade"  # which shows where anything is rewritten
  return changes[high - 1]
