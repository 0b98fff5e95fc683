"""Mistakes planted in passes, one at a time, and after how many random graphs each is found.

    cd tests && python -m fuzz.mistakes --graphs 20000 --jobs 2

A mistake is another text for a line of a module of ortplugin, which a worker process imports in place of the module's
own. A finding counts that the same seed does not give without it.
"""

import argparse
import importlib.machinery
import importlib.util
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Mistake:
  """`wrong` in place of `right`, which stands once in the module. `what` says what is forgotten."""

  name: str
  module: str
  right: str
  wrong: str
  what: str


MISTAKES = (
  Mistake(
    "conv-epilogue",
    "ortplugin.passes.absorb",
    "for tensor in member.outputs if scope.used_beyond(tensor, nodes)]",
    "for tensor in member.outputs if scope.is_output(tensor)]",
    "another consumer of a value between convolution and activation, or before a sum",
  ),
  Mistake(
    "fold-batch-norm",
    "ortplugin.passes.conv.fold_batch_norm",
    "shifted = bias * affine.scale + affine.shift",
    "shifted = bias + affine.shift",
    "that the convolution's bias is scaled, too",
  ),
  Mistake(
    "channel-shuffle",
    "ortplugin.passes.layout.channel_shuffle",
    ".reshape(groups, members).T",
    ".reshape(members, groups).T",
    "which of the two factors comes first",
  ),
  Mistake(
    "channels-last",
    "ortplugin.passes.layout.axes",
    "sorted(axis_last(axis, rank) for axis in given)",
    "sorted(axis % rank for axis in given)",
    "that a reduction's axes have other numbers with channels last",
  ),
)


def source_of(module):
  package = importlib.util.find_spec("ortplugin")
  folders = [Path(each) for each in package.submodule_search_locations or ()]
  files = [folder.joinpath(*module.split(".")[1:]).with_suffix(".py") for folder in folders]
  return next(file for file in files if file.is_file())


def plant(name):
  """Lets later imports of the module have the mistake."""
  mistake = next(each for each in MISTAKES if each.name == name)
  if mistake.module in sys.modules:
    raise RuntimeError(f"{mistake.module} has been imported already")
  text = source_of(mistake.module).read_text()
  if text.count(mistake.right) != 1:
    raise RuntimeError(f"{mistake.module} has the text {mistake.right!r} {text.count(mistake.right)} times")
  sys.meta_path.insert(0, _Finder(mistake.module, text.replace(mistake.right, mistake.wrong)))


class _Finder:
  """Finds one module, whose source is a text."""

  def __init__(self, module, text):
    self._module, self._text = module, text

  def find_spec(self, name, path=None, target=None):
    return importlib.machinery.ModuleSpec(name, self) if name == self._module else None

  def create_module(self, spec):
    """As usual."""

  def exec_module(self, module):
    exec(compile(self._text, f"<{self._module} with a mistake>", "exec"), vars(module))


def graphs_needed(name, graphs, jobs, first=0):
  """(how many graphs it took to find the mistake, as what); None if `graphs` were not enough."""
  from .worker import Worker, in_parallel

  found = []
  seeds, lock = iter(range(first, first + graphs)), threading.Lock()

  def work():
    worker, clean = Worker(mistake=name), Worker()
    try:
      while not found:
        with lock:
          seed = next(seeds, None)
        if seed is None:
          return
        verdict = worker.ask(seed)
        if verdict.what == "broken":
          raise RuntimeError(verdict.message)
        finding = verdict.finding
        if finding is not None and clean.ask(seed).finding is None:
          found.append((seed - first + 1, f"{finding.kind}: {finding.message}"))
    finally:
      worker.close()
      clean.close()

  in_parallel(jobs, work)
  return min(found, default=None)


def main(arguments=None):
  """The command line; the exit status is 1 where a mistake is not found."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--graphs", type=int, default=20_000, help="the most for each (default 20000)")
  parser.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
  parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
  parser.add_argument("names", nargs="*", help="some of the mistakes (default: all)")
  chosen = parser.parse_args(arguments)
  missed = 0
  for mistake in MISTAKES:
    if chosen.names and mistake.name not in chosen.names:
      continue
    start = time.monotonic()
    found = graphs_needed(mistake.name, chosen.graphs, chosen.jobs, chosen.first)
    after = f"found after {found[0]} graphs, {found[1][:90]}" if found else f"NOT FOUND in {chosen.graphs} graphs"
    print(f"{mistake.name:22} forgets {mistake.what}: {after} ({time.monotonic() - start:.0f} s)", flush=True)
    missed += found is None
  return 1 if missed else 0


if __name__ == "__main__":
  sys.exit(main())
