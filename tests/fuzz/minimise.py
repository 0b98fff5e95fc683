"""A finding becomes a model that fits a screen: outputs, nodes, options and sizes go as long as it stays a finding."""

import re
import time
from dataclasses import replace

from .smaller import (
  bypassed,
  copy,
  ones,
  rebuilt,
  renamed,
  resized,
  rounded,
  sizes_of,
  values_of,
  with_outputs,
  without,
)


class Minimiser:
  """`probe`: what is wrong with a case. `seconds`: after that the smallest case so far is the result."""

  def __init__(self, probe, seconds=90):
    self._probe = probe
    self._seconds = seconds
    self._end = 0.0

  def minimise(self, case, finding):
    """The smallest case found, and what is wrong with it."""
    self._end = time.monotonic() + self._seconds
    self._signature = signature(finding)
    self._best = (case, finding)
    if not self._try(rebuilt(case, copy(case), case.feeds)):
      self._best = (replace(case, dead=True), finding)
    for step in (self._feeds, self._options, self._last_node, self._cut, self._options, self._bypass, self._sizes,
                 self._cut, self._plain, self._passes):  # fmt: skip
      if time.monotonic() > self._end:
        break
      step()
    return self._best

  # ---- the steps

  def _try(self, case):
    if case is None or time.monotonic() > self._end:
      return False
    found = self._probe(case)
    if found is None or signature(found) != self._signature:
      return False
    self._best = (case, found)
    return True

  @property
  def _case(self):
    return self._best[0]

  def _feeds(self):
    for feeds in self._case.feeds:
      if len(self._case.feeds) > 1 and self._try(replace(self._case, feeds=[feeds])):
        return
    self._try(replace(self._case, feeds=self._case.feeds[:1]))

  def _options(self):
    self._try(replace(self._case, checks=()))
    for name in list(self._case.options):
      gone = (name, "precision_io") if name == "precision" else (name,)
      kept = {key: value for key, value in self._case.options.items() if key not in gone}
      self._try(replace(self._case, options=kept))

  def _last_node(self):
    """The earliest value that shows it as the only output."""
    case = self._case
    values = values_of(case)
    if values is None:
      return
    for output in case.oracle.graph.output:
      if len(case.oracle.graph.output) > 1 and self._try(with_outputs(case, [output.name], values)):
        break
    for node in list(self._case.oracle.graph.node):
      for name in node.output:
        shown = values.get(name)
        if shown is not None and self._try(with_outputs(self._case, [name], values)):
          return

  def _cut(self):
    """Runs of nodes become inputs."""
    length = max(1, len(self._case.oracle.graph.node) // 2)
    while length:
      at = 0
      while at < len(self._case.oracle.graph.node):
        if not self._try(without(self._case, range(at, at + length))):
          at += length
      length //= 2

  def _bypass(self):
    """A node that keeps dtype and shape gives way to one of its inputs."""
    at = 0
    while at < len(self._case.oracle.graph.node):
      if not any(self._try(each) for each in bypassed(self._case, at)):
        at += 1

  def _sizes(self):
    for size in sorted(sizes_of(self._case), reverse=True):
      for smaller in dict.fromkeys((1, 2, size // 2, size - 1)):
        if smaller < size and any(self._try(resized(self._case, size, smaller, how)) for how in range(3)):
          break

  def _plain(self):
    for tensor in self._case.oracle.graph.initializer:
      self._try(ones(self._case, tensor.name))
    for digits in (0, 1, 2):
      if self._try(rounded(self._case, digits)):
        break
    self._try(renamed(self._case))

  def _passes(self):
    from ortplugin.optimizer import PIPELINE

    left_out = [each for each in self._case.options.get("skip", ())]
    if "only" in self._case.options:
      return
    for step in PIPELINE:
      if step.name not in left_out and self._try(
        replace(self._case, options={**self._case.options, "skip": [*left_out, step.name]})
      ):
        left_out.append(step.name)
    kept = [step.name for step in PIPELINE if step.name not in left_out]
    options = {key: value for key, value in self._case.options.items() if key != "skip"}
    self._try(replace(self._case, options={**options, "only": kept}))


_NAMES = re.compile(
  r"'[^']*'|\"[^\"]*\"|[\d.]+|\[[^\]]*\]|after rewrites by [^:]*|Name:\S*|\([^)]*\)"  # and numbers, and shapes
)


def signature(finding):
  """What two findings of one fault have in common: the kind, and the words of an error without names and numbers."""
  if finding.kind in ("values", "form"):
    return finding.kind
  words = _NAMES.sub("", finding.message)
  return f"{finding.kind} {' '.join(words.split())[:100]}"
